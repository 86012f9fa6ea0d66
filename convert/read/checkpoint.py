"""Checkpoints opened: a config, headers and side files, whatever the weights are stored as.

Nothing is ever written to a source, and nothing but headers is read until somebody asks for values.
"""

import fnmatch
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_interop.convert.read.decoded import Decoded, values_of
from eagle3_interop.convert.read.folders import Folder, open_folder, safe_names
from eagle3_interop.convert.read.formats import is_pointer, other_format, refuse_pointers
from eagle3_interop.convert.read.pickles import RESAVE, read_pickle
from eagle3_interop.convert.read.safetensors_file import Header, decode, parse_header
from eagle3_interop.convert.read.stored import Stored
from eagle3_interop.convert.read.strict_json import MAX_JSON_BYTES, parse_object
from eagle3_interop.schemas.dialects.base import TensorHeader
from eagle3_interop.schemas.dialects.quantised import BESIDE, KEY, stated
from eagle3_interop.schemas.engines.releases import RELEASES, newest
from eagle3_interop.schemas.findings import Finding, Refused, Unavailable, finding, refusal

SAFETENSORS_INDEX = "model.safetensors.index.json"
BIN_INDEX = "pytorch_model.bin.index.json"
_SINGLE, _SINGLE_BIN = "model.safetensors", "pytorch_model.bin"

# Of a trainer, not of a model: vLLM and SGLang pass them over.
_NO_WEIGHTS = ("training_args.bin", "optimizer.bin")

# Carried along as they are. Code is not among them, nor is README.md: it describes the source.
_SIDES = (
    "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
    "chat_template*", "generation_config.json", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*",
)  # fmt: skip
_CODE = (".py", ".so", ".sh", ".pkl", ".pt", ".bin")
_SIDE_MAPS = ("eagle_meta.pt", "eagle3_meta.pt")


@dataclass(frozen=True)
class Checkpoint:
    """A draft's folder: what layouts read (`schemas.layout.Source`) and what `stream` copies.

    Attributes:
        folder: where it lies.
        config: config.json.
        stored: where each tensor lies.
        files: the weight files, in order. Of a Hub checkpoint opened without weights these and
            `Stored.file` are mere labels.
        sides: files to carry along: tokenizer, generation config, licence. Never code.
        headers: of each safetensors file, by name.
        findings: what was noticed on the way: files that an index leaves out, maps in side files.
        odd_sides: what is called like one of these and is no file; it is refused where it would be copied.
    """

    folder: Folder
    config: Mapping[str, Any]
    stored: Mapping[str, Stored]
    files: tuple[Path, ...]
    sides: tuple[Path, ...]
    headers: Mapping[str, Header] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    odd_sides: tuple[Path, ...] = ()

    @property
    def path(self) -> str:
        """What the user calls it."""
        return self.folder.label

    @property
    def revision(self) -> str | None:
        """The Hub's commit, where known."""
        return self.folder.revision

    @property
    def tensors(self) -> Mapping[str, TensorHeader]:
        """Name to header, of every stored tensor."""
        return {name: TensorHeader(t.dtype, t.shape) for name, t in self.stored.items()}

    def values(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor's values; bfloat16 and float8 through ml_dtypes. Reads the whole tensor.

        Raises:
            Refused: the file ends before the tensor does, or numpy has no such dtype.
            KeyError: there is no such tensor.
        """
        return read_values(self.folder, self.stored[name])

    def provenance(self) -> dict[str, Any]:
        """Where the weights come from, for ``eagle3_interop.json``: sizes in bytes, digests."""
        files = {}
        for path in self.files:
            header = self.headers.get(path.name)
            facts = {
                "bytes": self.folder.sizes[path.name],
                "header_sha256": header and header.sha256,
                "sha256": self.folder.sha256(path.name),
            }
            files[path.name] = {key: value for key, value in facts.items() if value is not None}
        return {"path": self.path, "revision": self.revision, "files": files}


def open_checkpoint(spec: str, *, weights: bool = True) -> Checkpoint:
    """Open a local folder or a Hub id ``ORG/NAME[@REVISION]``; a local folder wins.

    Args:
        spec: folder or Hub id.
        weights: False reads headers only (by range request where the folder is on the Hub), for a
            look without a conversion.

    Raises:
        Usage: no such folder, and not a Hub id.
        Refused: the folder is not a sound checkpoint.
        Unavailable: the disk or the Hub failed.
    """
    folder = open_folder(spec)
    try:
        return _open(folder, download=weights)
    except OSError as error:
        raise Unavailable(f"{error.filename or spec}: {error.strerror or error}") from error


def read_config(folder: Folder, *, infinities: bool = False) -> dict[str, Any]:
    """config.json of a folder.

    Raises:
        Refused: there is none (``no-config``), or it is not a JSON object (``broken-config``).
    """
    if "config.json" not in folder.sizes:
        no_config = refusal(
            "no-config", folder.label, "holds no config.json", "Give a model's folder."
        )
        raise other_format(folder) or no_config
    return _read_object(folder, "config.json", "broken-config", infinities=infinities)


def read_index(
    folder: Folder, index: str, wanted: Collection[str] | None = None
) -> dict[str, str] | None:
    """``weight_map`` of an index: tensor to file, every file in the folder; None without an index.

    Args:
        folder: that holds it.
        index: its name.
        wanted: the tensors that matter; files that hold none of them may be missing.

    Raises:
        Refused: the index is damaged, or names files that are elsewhere or missing.
    """
    if index not in folder.sizes:
        return None
    weight_map = _read_object(folder, index, "broken-index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise refusal("broken-index", index, "has no weight_map")
    listed = {str(file) for file in weight_map.values()}
    there = sorted(fnmatch.filter(folder.sizes, f"*{Path(min(listed)).suffix or '.safetensors'}"))
    plain = all(file == Path(file).name for file in listed)
    if there and plain and listed.isdisjoint(folder.sizes):
        message = f"names {min(listed)}, and no file that is here ({there[0]}): it belongs to another model"
        raise refusal("broken-index", index, message, f"Remove {index}.")
    if wanted is not None:
        weight_map = {name: file for name, file in weight_map.items() if name in wanted}
    safe_names(weight_map, folder.sizes, index)
    return weight_map


def read_values(folder: Folder, tensor: Stored) -> np.ndarray[Any, Any]:
    """All values of a tensor that lies in the folder.

    Raises:
        Refused: the file ends before the tensor does, or numpy has no such dtype.
    """
    if isinstance(tensor, Decoded):
        return values_of(tensor, lambda part: read_values(folder, part))
    raw = folder.read(tensor.file.name, tensor.start, tensor.stop)
    if len(raw) != tensor.stop - tensor.start:
        raise refusal("broken-file", tensor.file, f"ends within {tensor.name!r}")
    return decode(raw, tensor)


def read_file(
    folder: Folder, name: str, *, download: bool
) -> tuple[dict[str, Stored], Header | None]:
    """Where the tensors of one weight file lie, and its header if it is safetensors."""
    refuse_pointers(folder, [name])
    if not name.endswith(".safetensors"):
        tensors = read_pickle(folder.path(name))
        if not tensors:
            raise refusal("unreadable-pickle", name, "holds no tensors at its top level", RESAVE)
        return tensors, None
    label = folder.path(name) if download else Path(folder.label, name)
    header = parse_header(lambda a, b: folder.read(name, a, b), folder.sizes[name], label)
    return header.tensors, header


def weight_names(
    folder: Folder, wanted: Collection[str] | None = None
) -> tuple[list[str], dict[str, str] | None]:
    """The weight files that count, and the index that says so (if one does).

    Of the index only the `wanted` tensors count, where these are given.

    safetensors go before ``.bin``; with an index the files that it names count, as vLLM and SGLang have
    it; without one, all. `by_transformers` differs.

    Returns:
        No names where the folder holds none.

    Raises:
        Refused: the index is damaged.
    """
    for index, pattern in ((SAFETENSORS_INDEX, "*.safetensors"), (BIN_INDEX, "pytorch_model*.bin")):
        weight_map = read_index(folder, index, wanted)
        if weight_map is not None:
            return safe_names(weight_map, folder.sizes, index), weight_map
        names = sorted(fnmatch.filter(folder.sizes, pattern))
        if names:
            return names, None
    return [], None


def by_transformers(folder: Folder, *, partial: bool = False) -> list[str]:
    """The weight files that transformers 5 takes, none where it finds no name that it knows.

    A single file goes before an index, and nothing is merged (``_get_resolved_checkpoint_files``).

    Args:
        folder: that holds them.
        partial: files may be missing: of a target its tables may be all that is there.
    """
    for single, index in ((_SINGLE, SAFETENSORS_INDEX), (_SINGLE_BIN, BIN_INDEX)):
        if single in folder.sizes:
            return [single]
        weight_map = read_index(folder, index, () if partial else None)
        if weight_map is not None and partial:
            listed = _read_object(folder, index, "broken-index")["weight_map"].values()
            return sorted({name for name in listed if name in folder.sizes})
        if weight_map is not None:
            return sorted(set(weight_map.values()))
    return []


def _by_engine(folder: Folder, *, consolidated_first: bool) -> list[str]:
    """The weight files that a serving engine takes (``DefaultModelLoader._prepare_weights``)."""
    names = sorted(fnmatch.filter(folder.sizes, "*.safetensors"))
    consolidated = fnmatch.filter(names, "consolidated*")
    if consolidated_first and consolidated:
        return consolidated
    weight_map = read_index(folder, SAFETENSORS_INDEX) if names else None
    if weight_map is not None:
        return sorted(set(weight_map.values()))
    bins = fnmatch.filter(folder.sizes, "*.bin")
    return names or sorted(name for name in bins if not name.endswith(_NO_WEIGHTS))


def _require_one_choice(folder: Folder, config: Mapping[str, Any], names: list[str]) -> None:
    """Refuse a folder from which frameworks load different files: each would run another network."""
    served = [release for release in map(newest, RELEASES) if release.serves]
    choices = {
        release.title: _by_engine(folder, consolidated_first=release.consolidated_first)
        for release in sorted(served, key=lambda one: one.title, reverse=True)
    }
    if "speculators_model_type" in config:
        choices["transformers"] = by_transformers(folder)
    if all(choice in ([], names) for choice in choices.values()):
        return
    said = "; ".join(f"{name} {', '.join(choice)}" for name, choice in choices.items() if choice)
    message = f"frameworks load different weight files from this folder: {said}."
    raise Refused([finding("ambiguous-weights", folder.label, message)])


def _open(folder: Folder, *, download: bool) -> Checkpoint:
    config, beside = _quantised_beside(folder, read_config(folder))
    names, weight_map = weight_names(folder)
    if not names:
        fix = "Give the folder that holds *.safetensors or pytorch_model*.bin."
        raise other_format(folder) or refusal("no-weights", folder.label, "holds no weights", fix)
    _require_one_choice(folder, config, names)
    stored: dict[str, Stored] = {}
    headers: dict[str, Header] = {}
    files = []
    for name in names:
        tensors, header = read_file(folder, name, download=download)
        _check_once(stored, tensors)
        stored |= tensors
        files.append(folder.path(name) if download else Path(folder.label, name))
        if header is not None:
            headers[name] = header
    findings = (
        [*beside] if weight_map is None else beside + _check_index(folder, weight_map, stored)
    )
    maps = _side_maps(folder, stored)
    findings += [_side_map_finding(tensor) for tensor in maps.values()]
    sides = [name for name in folder.sizes if _is_side(name)] if download else []
    pointers = [name for name in sides if is_pointer(folder, name)]
    message = "is a Git LFS pointer, and not the file; it was left out"
    findings += [finding("pointer-left-out", name, message) for name in pointers]
    return Checkpoint(
        folder,
        config,
        stored | maps,
        tuple(files),
        tuple(folder.path(name) for name in sides if name not in pointers),
        headers,
        tuple(findings),
        tuple(folder.path(name) for name in folder.odd if _is_side(name)),
    )


def _quantised_beside(
    folder: Folder, config: dict[str, Any]
) -> tuple[dict[str, Any], list[Finding]]:
    """The config with what ModelOpt says of its quantisation in a file beside, where engines look without a key."""
    if BESIDE not in folder.sizes or stated(config)[0] is not None:
        return config, []
    said = _read_object(folder, BESIDE, "broken-config")
    message = f"read: config.json has no {KEY}, and engines look here then."
    taken = {**config, KEY: {"quant_method": "modelopt", **said}}
    return taken, [finding("quantisation-beside", BESIDE, message)]


def _read_object(
    folder: Folder, name: str, code: str, *, infinities: bool = False
) -> dict[str, Any]:
    refuse_pointers(folder, [name])
    with folder.path(name).open("rb") as file:
        raw = file.read(MAX_JSON_BYTES + 1)
    return parse_object(raw, code, folder.label + "/" + name, infinities=infinities)


def _check_once(stored: Mapping[str, Stored], more: Mapping[str, Stored]) -> None:
    for name in more:
        if name in stored:
            places = f"{stored[name].file.name} and in {more[name].file.name}"
            fix = "Keep the file that is meant; which one a framework loads is a matter of order."
            raise refusal("duplicate-tensor", name, f"is stored in {places}", fix)


def _check_index(
    folder: Folder, weight_map: Mapping[str, str], stored: Mapping[str, Stored]
) -> list[Finding]:
    if stored.keys().isdisjoint(weight_map):
        message = (
            f"lists {len(weight_map)} tensors, of which none is here: it belongs to another model"
        )
        raise refusal("broken-index", SAFETENSORS_INDEX, message, "Remove the index.")
    for name, file in weight_map.items():
        if name not in stored or stored[name].file.name != file:
            raise refusal("broken-index", name, f"is not in {file}, where the index has it")
    listed = set(weight_map.values())
    suffix = Path(min(listed)).suffix
    unread = [name for name in folder.sizes if name.endswith(suffix) and name not in listed]
    unlisted = [name for name in stored if name not in weight_map]
    fix = "Delete what is not meant, and let the index list the rest."
    does_not = "is not in the index: no framework loads this file"
    does = "is not in the index, but in a file that is, and so is loaded"
    return [finding("outside-index", name, does_not, fix=fix) for name in unread] + [
        finding("outside-index", name, does, fix=fix) for name in unlisted
    ]


def _side_maps(folder: Folder, stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """d2t and t2d of SafeAILab's side files, where the weights have no map of their own."""
    if {"d2t", "t2d"} & set(stored):
        return {}
    for name in _SIDE_MAPS:
        if name in folder.sizes:
            refuse_pointers(folder, [name])
            tensors = read_pickle(folder.path(name))
            return {key: tensors[key] for key in ("d2t", "t2d") if key in tensors}
    return {}


def _side_map_finding(tensor: Stored) -> Finding:
    message = f"{tensor.name} is taken from this file; the weights have none"
    return finding("map-in-side-file", tensor.file.name, message)


def _is_side(name: str) -> bool:
    matches: Iterable[str] = (pattern for pattern in _SIDES if fnmatch.fnmatchcase(name, pattern))
    return any(matches) and not name.endswith(_CODE)
