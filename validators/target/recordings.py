"""The files of recorded hidden states, in three forms: what each says, checked, its tensors mapped.

| form | sign | a file holds |
|---|---|---|
| ours | ``streams.json`` | ``hidden_states`` [tokens, taps (+ last), H], ``token_ids`` |
| speculators 0.9 | ``hs_<i>.safetensors`` | the same, the last hidden state before the norm; no layers |
| SpecForge 0.2 | ``data_<i>.ckpt`` or ``.ckpt.gz`` | ``aux_hidden_state`` [1, tokens, taps x H], ``hidden_state`` after the norm |
"""

import gzip
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from eagle3_interop.convert.read.folders import local_path
from eagle3_interop.convert.read.pickles import read_pickle
from eagle3_interop.convert.read.safetensors_file import parse_header
from eagle3_interop.convert.read.stored import Stored
from eagle3_interop.convert.read.strict_json import loads
from eagle3_interop.convert.write.stream import sha256_of
from eagle3_interop.schemas.findings import Finding, Refused, Unavailable, Usage, finding
from eagle3_interop.schemas.streams import (
    MANIFEST,
    PARTIAL,
    Basis,
    Last,
    RecordedBy,
    Recorder,
    StreamsManifest,
)
from eagle3_interop.validators.target.mapped import mapped
from eagle3_interop.validators.target.tables import TargetTables

FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Recorded:
    """One text.

    Attributes:
        file: its name, for messages.
        tokens: [tokens] int64.
        first: of the tokens that count: those before it are the prompt.
        counted: [tokens] bool, the tokens that a trainer learned from.
        slices: maps [tokens, taps, H].
        last: maps [tokens, H], where the last hidden state is there.
        top: maps ids and log-probabilities [tokens, n] of the likeliest next tokens, where they are there.
        category: of its prompt, where it was recorded.
    """

    file: str
    tokens: Tensor
    first: int
    counted: Tensor
    slices: Callable[[], Tensor]
    last: Callable[[], Tensor]
    top: Callable[[], tuple[Tensor, Tensor]] | None = None
    category: str | None = None

    @property
    def count(self) -> int:
        """Tokens."""
        return int(self.tokens.numel())


@dataclass
class Recordings:
    """A folder.

    Attributes:
        source: as the user named it.
        taps: of the slices, in order.
        last: what the last hidden state is.
        basis: what the target's distribution is taken from.
        dtype: of the hidden states.
        texts: every text.
        manifest: ours, where it has one.
        by: who recorded it.
        findings: said while reading.
    """

    source: str
    taps: tuple[int, ...]
    last: Last
    basis: Basis
    dtype: str
    texts: tuple[Recorded, ...]
    manifest: StreamsManifest | None = None
    by: RecordedBy | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def greedy(self) -> bool:
        """The target wrote every text itself, choosing the likeliest token."""
        return self.manifest is not None


def open_recordings(
    spec: str | Path, held: TargetTables, taps: Sequence[int] | None = None
) -> Recordings:
    """Read a folder of recordings, and hold it against its target.

    Args:
        spec: the folder.
        held: the target.
        taps: of files that do not name them.

    Raises:
        Usage: no recordings there, or the taps are missing, or given although the manifest has them.
        Refused: a damaged file, or of another target.
        Unavailable: the disk failed.
    """
    folder = local_path(spec)
    if not folder.is_dir():
        raise Usage(f"--streams {spec}: no such folder.")
    try:
        if (folder / MANIFEST).exists():
            if taps is not None:
                raise Usage("--stream-taps: streams.json says which taps these are; leave it out.")
            return _ours(folder, str(spec), held)
        if (folder / PARTIAL).exists():
            raise Usage(
                f"--streams {spec}: this recording is not finished; run the same eagle3-record again, "
                "which goes on where it stopped."
            )
        return _theirs(folder, str(spec), held, taps)
    except OSError as error:
        raise Unavailable(f"{error.filename or spec}: {error.strerror or error}") from error


def read_manifest(path: Path) -> StreamsManifest:
    """A manifest.

    Raises:
        Refused: it is no such JSON object.
    """
    try:
        return StreamsManifest.model_validate(loads(path.read_text(encoding="utf-8")))
    except (ValueError, ValidationError) as error:
        said = str(error).replace("\n", "; ")[:300]
        raise Refused([finding("broken-streams", str(path), f"not a manifest: {said}.")]) from error


# Ours.


def _ours(folder: Path, source: str, held: TargetTables) -> Recordings:
    manifest = read_manifest(folder / MANIFEST)
    _check_target(manifest, source, held)
    texts = []
    for entry in manifest.texts:
        path = folder / entry.file
        if not re.fullmatch(r"[\w.-]+", entry.file) or entry.file.startswith("."):
            raise _broken(path, "its name leaves the folder")
        if not path.is_file():
            raise _broken(path, "the manifest names it, and it is not there")
        if path.stat().st_size != entry.bytes:
            raise _broken(
                path, f"is truncated or changed: {path.stat().st_size} bytes of {entry.bytes}"
            )
        if sha256_of(path) != entry.sha256:
            raise _broken(path, "is not the file that was recorded: its sha256 is another")
        slices = len(manifest.taps) + (manifest.last != "absent")
        one = _stacked(path, slices, manifest.last != "absent", held.hidden_size)
        if (one.count, entry.tokens) != (
            entry.tokens,
            one.count,
        ) or not 0 < entry.prompt < one.count:
            raise _broken(path, f"holds {one.count} tokens, the manifest says {entry.tokens}")
        counted = torch.arange(one.count) >= entry.prompt
        texts.append(replace(one, first=entry.prompt, counted=counted, category=entry.category))
        if entry.tokens != entry.prompt + manifest.new_tokens + manifest.lookahead:
            raise _broken(path, "is shorter or longer than the manifest says texts are")
    return Recordings(
        source,
        manifest.taps,
        manifest.last,
        manifest.basis,
        manifest.dtype,
        tuple(texts),
        manifest,
        manifest.by,
    )


def _check_target(manifest: StreamsManifest, source: str, held: TargetTables) -> None:
    """Refuse recordings of another target."""
    theirs = manifest.target
    sizes = {
        "features wide": (theirs.hidden_size, held.hidden_size),
        "layers deep": (theirs.layers, held.depth),
        "tokens in its vocabulary": (theirs.vocab_size, held.vocabulary_size),
    }
    for what, (recorded, given) in sizes.items():
        if recorded != given:
            message = (
                f"recorded from a target {recorded} {what}; {held.checkpoint.path} has {given}."
            )
            raise Refused([finding("wrong-streams", source, message)])
    if theirs.sha256 != held.digest:
        message = (
            f"recorded from {theirs.path}, whose embedding table, final norm or head is not that of "
            f"{held.checkpoint.path} (sha256 {theirs.sha256[:12]} and {held.digest[:12]})."
        )
        raise Refused([finding("wrong-streams", source, message)])


def _stacked(path: Path, slices: int, has_last: bool, width: int) -> Recorded:
    """A file of ``hidden_states`` [tokens, slices, H] and ``token_ids`` [tokens]."""
    with path.open("rb", buffering=0) as file:

        def read(start: int, stop: int) -> bytes:
            return os.pread(file.fileno(), stop - start, start)

        tensors = parse_header(read, path.stat().st_size, path).tensors
    states = _tensor(path, tensors, "hidden_states")
    tokens = _ids(path, _tensor(path, tensors, "token_ids"))
    wanted = (len(tokens), slices, width)
    if states.shape != wanted or states.dtype not in FLOATS:
        raise _shape(path, "hidden_states", states, wanted)
    count = slices - has_last
    top = None
    if "top_ids" in tensors and "top_logprobs" in tensors:
        ids, scores = tensors["top_ids"], tensors["top_logprobs"]

        def top() -> tuple[Tensor, Tensor]:
            return mapped(ids).long(), mapped(scores)

    return Recorded(
        path.name,
        tokens,
        1,
        torch.ones(len(tokens), dtype=torch.bool),
        lambda: mapped(states)[:, :count],
        lambda: mapped(states)[:, -1],
        top,
    )


# Others'.


def _theirs(
    folder: Path, source: str, held: TargetTables, taps: Sequence[int] | None
) -> Recordings:
    inner = folder / "hidden_states"
    for place in (folder, inner):
        found = sorted(place.glob("hs_*.safetensors"), key=_order) if place.is_dir() else []
        if found:
            return _speculators(found, source, held, _told(taps, source))
    found = sorted({*folder.rglob("data_*.ckpt"), *folder.rglob("data_*.ckpt.gz")}, key=_order)
    if found:
        return _specforge(found, source, held, _told(taps, source))
    raise Usage(
        f"--streams {source}: no recordings in it: neither streams.json, nor hs_*.safetensors "
        "(speculators), nor data_*.ckpt (SpecForge)."
    )


def _told(taps: Sequence[int] | None, source: str) -> tuple[int, ...]:
    if taps is None:
        raise Usage(
            f"--streams {source}: these files do not say which layers they hold. Give --stream-taps, in the "
            "order of the trainer: 2,16,29 for hidden states that entered layers 2, 16 and 29."
        )
    return tuple(taps)


def _order(path: Path) -> tuple[int, str]:
    number = _NUMBER.search(path.name)
    return (int(number[0]) if number else -1), str(path)


def _speculators(
    files: Sequence[Path], source: str, held: TargetTables, taps: tuple[int, ...]
) -> Recordings:
    masks, said = _loss_masks(files[0].parent.parent)
    texts = []
    for path in files:
        one = _stacked(path, len(taps) + 1, True, held.hidden_size)
        _check_ids(path, one.tokens, held)
        mask = masks(_order(path)[0]) if masks is not None else None
        if mask is not None and len(mask) != one.count:
            raise _broken(path, f"holds {one.count} tokens, its data set's row {len(mask)}")
        texts.append(_masked(one, mask))
    kept = tuple(text for text in texts if text.count > text.first)
    return _found(kept, source, taps, "pre-norm", "speculators", said)


def _loss_masks(folder: Path) -> tuple[Callable[[int], Tensor] | None, tuple[Finding, ...]]:
    """The loss masks of the data set beside the files, by the number in a file's name."""
    if not (folder / "dataset_info.json").exists():
        message = "no data set lies beside the files: every token counts as the trainer's."
        return None, (finding("no-loss-mask", str(folder), message),)
    if find_spec("datasets") is None:
        message = "the data set beside the files needs the package datasets: every token counts."
        return None, (finding("no-loss-mask", str(folder), message),)
    from importlib import import_module

    rows = import_module("datasets").load_from_disk(str(folder))
    if "loss_mask" not in rows.column_names:
        message = "the data set beside the files has no loss_mask: every token counts."
        return None, (finding("no-loss-mask", str(folder), message),)

    def mask(number: int) -> Tensor:
        if number >= len(rows):
            raise _broken(folder, f"has no row {number}, of which there is a file")
        return torch.as_tensor(rows[number]["loss_mask"]).flatten().bool()

    return mask, ()


def _specforge(
    files: Sequence[Path], source: str, held: TargetTables, taps: tuple[int, ...]
) -> Recordings:
    scratch = None
    if any(path.suffix == ".gz" for path in files):
        scratch = Path(tempfile.mkdtemp(prefix="eagle3-streams-"))
    try:
        texts = _checkpoints(files, scratch, held, taps)
        kept = tuple(text for text in texts if text.count > text.first)
        made = _found(kept, source, taps, "post-norm", "specforge", ())
    except BaseException:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        raise
    if scratch is not None:  # it goes when the recordings do
        weakref.finalize(made, shutil.rmtree, scratch, ignore_errors=True)
    return made


def _checkpoints(
    files: Sequence[Path], scratch: Path | None, held: TargetTables, taps: tuple[int, ...]
) -> list[Recorded]:
    texts = []
    for number, path in enumerate(files):
        opened = path
        if path.suffix == ".gz":
            assert scratch is not None  # noqa: S101
            opened = _unpacked(path, scratch / f"{number}.ckpt")
        texts.append(_checkpoint(opened, path, held, taps))
    return texts


def _unpacked(path: Path, place: Path) -> Path:
    """A compressed file on the disk as what it holds: only that can be mapped."""
    try:
        with gzip.open(path, "rb") as packed, place.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
    except (EOFError, gzip.BadGzipFile) as error:
        raise _broken(path, f"is truncated or no gzip file: {error}") from error
    return place


def _checkpoint(opened: Path, path: Path, held: TargetTables, taps: tuple[int, ...]) -> Recorded:
    """A file of SpecForge's; `opened` is what can be mapped of it, `path` what it is called."""
    tensors = read_pickle(opened)
    ids, mask, last, states = (
        _tensor(path, tensors, name)
        for name in ("input_ids", "loss_mask", "hidden_state", "aux_hidden_state")
    )
    tokens = _ids(path, ids)
    _check_ids(path, tokens, held)
    count, width = len(tokens), held.hidden_size
    for name, tensor, size in (
        ("aux_hidden_state", states, len(taps) * width),
        ("hidden_state", last, width),
    ):
        if tensor.shape not in ((1, count, size), (count, size)) or tensor.dtype not in FLOATS:
            raise _shape(path, name, tensor, (1, count, size))
    flags = mapped(mask).flatten().bool()
    if len(flags) != count:
        raise _shape(path, "loss_mask", mask, (count,))
    one = Recorded(
        path.name,
        tokens,
        1,
        flags,
        lambda: mapped(states).view(count, len(taps), width),
        lambda: mapped(last).view(count, width),
    )
    return _masked(one, flags)


def _found(
    texts: tuple[Recorded, ...],
    source: str,
    taps: tuple[int, ...],
    last: Last,
    engine: Recorder,
    said: tuple[Finding, ...],
) -> Recordings:
    if not texts:
        raise Refused([finding("broken-streams", source, "no text has a token that counts.")])
    dtype = str(texts[0].slices().dtype).removeprefix("torch.")
    by = RecordedBy(engine=engine, version="", how="library")
    return Recordings(source, taps, last, "last-state", dtype, texts, None, by, said)


def _masked(one: Recorded, mask: Tensor | None) -> Recorded:
    """A text, counted from its first token that the trainer learned from."""
    counted = torch.ones(one.count, dtype=torch.bool) if mask is None else mask.bool()
    places = counted[1:].nonzero()
    first = int(places[0]) + 1 if len(places) else one.count
    return Recorded(one.file, one.tokens, first, counted, one.slices, one.last, one.top)


# Checks.


def _tensor(path: Path, tensors: Mapping[str, Stored], name: str) -> Stored:
    if name not in tensors:
        raise _broken(path, f"holds no {name}, but {', '.join(sorted(tensors)) or 'nothing'}")
    return tensors[name]


def _ids(path: Path, stored: Stored) -> Tensor:
    if stored.dtype not in ("I64", "I32") or len(stored.shape) not in (1, 2):
        raise _shape(path, stored.name, stored, ("tokens",))
    return mapped(stored).flatten().long().clone()


def _check_ids(path: Path, tokens: Tensor, held: TargetTables) -> None:
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < held.vocabulary_size:
        message = f"token {int(tokens.max())}: the target has {held.vocabulary_size}."
        raise Refused([finding("wrong-streams", str(path), message)])


def _shape(path: Path, name: str, stored: Stored, wanted: Sequence[object]) -> Refused:
    message = (
        f"{name} is {stored.dtype} {list(stored.shape)}, and {list(wanted)} of float32, bfloat16 or float16 "
        "was expected of this target and these taps."
    )
    return Refused([finding("wrong-streams", str(path), message)])


def _broken(path: Path, message: str) -> Refused:
    return Refused([finding("broken-streams", os.fspath(path), f"{message}.")])
