"""Conversion as a library: load, fit, plan, write, compare. The commands are thin shells over this."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from eagle3_interop.convert import stream
from eagle3_interop.convert.checkpoint import Checkpoint, open_checkpoint
from eagle3_interop.convert.compare import same_values
from eagle3_interop.convert.overrides import apply
from eagle3_interop.convert.plan import Copy, Output, Plan, Taken, Written
from eagle3_interop.convert.planning import Choices, Fitted, Loaded, fit, read_back
from eagle3_interop.convert.target import TargetCheckpoint, open_target
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding, Refused, errors, finding
from eagle3_interop.schemas.layout import Reading, TargetFacts
from eagle3_interop.schemas.reading import check, check_target, with_target
from eagle3_interop.schemas.registry import LAYOUTS, SOURCES, recognise

DEFAULT_SHARD_BYTES = 5_000_000_000
PROVENANCE = "eagle3_interop.json"


@dataclass(frozen=True)
class Options:
    """Everything that the user can say about one conversion.

    Attributes:
        target: folder or Hub id of the target.
        target_name: the Hub id to write where a layout names its verifier.
        stock: refuse what needs the SGLang plugin.
        taps: the order in which the trainer concatenated fc's features.
        sets: dotted path of the description to value.
        dtype: cast the weights.
        max_shard_bytes: split files that are written anew beyond this size.
        canonical_names: rename also what the destination would accept.
    """

    target: str | None = None
    target_name: str | None = None
    stock: bool = False
    taps: tuple[int, ...] | None = None
    sets: Mapping[str, Any] | None = None
    dtype: str | None = None
    max_shard_bytes: int = DEFAULT_SHARD_BYTES
    canonical_names: bool = False


@dataclass(frozen=True)
class Conversion:
    """A conversion that was decided, and can be written.

    Attributes:
        loaded: the source.
        destination: the layout's name.
        fitted: the network in the destination's dialect.
        plan: what the folder will hold.
    """

    loaded: Loaded
    destination: str
    fitted: Fitted
    plan: Plan

    def report(self, output: str, findings: Sequence[Finding] | None = None) -> dict[str, Any]:
        """The JSON of convert (``docs/cli.md``).

        Args:
            output: the folder, for the report.
            findings: what is to be reported; everything said while deciding, unless given.
        """
        said = self.fitted.findings if findings is None else findings
        return {
            "status": "ok",
            "source": {"layout": self.loaded.layout, "path": self.loaded.checkpoint.path},
            "output": {"layout": self.destination, "path": output},
            "draft": self.fitted.draft.model_dump(mode="json"),
            "findings": [item.model_dump() for item in said],
            "tensors": _table(self.loaded, self.fitted),
        }


def load(
    source: str, layout: str = "auto", options: Options | None = None, *, weights: bool = True
) -> Loaded:
    """Read a draft by its own framework's rules, and put the user's word in.

    Args:
        source: folder or Hub id.
        layout: ``speculators``, ``sglang``, ``vllm``, or ``auto``.
        options: the user's.
        weights: False reads headers only.

    Raises:
        Refused: it is another layout, or holds what cannot be understood exactly.
        Usage: an override that does not fit.
        Unavailable: the disk or the Hub failed.
    """
    options = options or Options()
    checkpoint = open_checkpoint(source, weights=weights)
    layout, said = _layout(checkpoint, layout)
    target = open_target(options.target, weights=weights) if options.target else None
    facts = _facts(target, options) if target else None
    reading = LAYOUTS[layout].read(checkpoint, facts)
    found = [*checkpoint.findings, *said]
    if facts is not None:
        found += check_target(reading.draft, facts)
        reading = with_target(reading, facts)
    reading = apply(reading, options.taps, options.sets or {})
    reading, more = _share_head(reading, target)
    reading = replace(
        reading,
        findings=(*found, *more, *reading.findings, *check(reading, checkpoint.tensors)),
    )
    if errors(reading.findings):
        raise Refused(reading.findings)
    loaded = Loaded(checkpoint, layout, reading, target, facts)
    return _compare_embeddings(loaded) if weights else loaded


def _layout(checkpoint: Checkpoint, wanted: str) -> tuple[str, list[Finding]]:
    names = list(checkpoint.tensors)
    found = recognise(checkpoint.config, names)
    if wanted == "auto":
        if found is None:
            message = "neither speculators' keys nor one of SGLang's or vLLM's classes or id keys."
            raise Refused([finding("not-recognised", "config.json", message)])
        layout, sign = found
        message = f"read as {layout}'s: {sign}."
        return layout, [finding("recognised", "config.json", message)]
    if LAYOUTS[wanted].recognise(checkpoint.config, names) is not None:
        return wanted, []
    if found is None:
        # Nothing speaks for another layout, so the user's word counts.
        return wanted, []
    message = f"this is {found[0]}'s layout ({found[1]}), not {wanted}'s."
    fix = f"Use {found[0]}-to-... or auto-to-...."
    raise Refused([finding("wrong-layout", "config.json", message, fix=fix)])


def _facts(target: TargetCheckpoint, options: Options) -> TargetFacts:
    known = target.facts
    vocab, layers = target.vocab_size, known.layers
    if vocab is None or layers is None:
        message = "its config names no number of layers or tokens; is it a causal language model?"
        raise Refused([finding("wrong-target", target.path, message)])
    positions = target.text_config.get("max_position_embeddings")
    return TargetFacts(
        name=options.target_name or target.name or target.path,
        hidden_size=known.hidden_size,
        layers=layers,
        vocab_size=vocab,
        model_type=known.model_type or "",
        architectures=known.architectures,
        max_position=positions if isinstance(positions, int) else None,
    )


def _share_head(reading: Reading, target: TargetCheckpoint | None) -> tuple[Reading, list[Finding]]:
    """An absent head becomes the target's, where the target is at hand."""
    vocabulary = reading.draft.vocabulary
    if target is None or vocabulary.head != "own" or "lm_head.weight" in reading.names:
        return reading, []
    draft = reading.draft.model_copy(
        update={"vocabulary": vocabulary.model_copy(update={"head": "target"})}
    )
    message = "absent from the source: the target's is meant."
    return replace(reading, draft=draft), [finding("target-head", "lm_head.weight", message)]


def _compare_embeddings(loaded: Loaded) -> Loaded:
    """Compare the stored embedding table with the target's, once for everybody."""
    draft, name = loaded.reading.draft, "embed_tokens.weight"
    if name not in loaded.reading.names:
        return replace(loaded, own_embeddings=False)
    if draft.hidden_size != draft.target.hidden_size:
        return replace(loaded, own_embeddings=True)
    if loaded.target is None or loaded.target.embedding is None:
        return loaded
    same = same_values(loaded.stored(name), loaded.target.embedding)
    reading = loaded.reading
    if same:
        vocabulary = draft.vocabulary.model_copy(update={"embeddings": "target"})
        said = finding("embeddings-equal", name, "compared row by row.")
        reading = replace(
            reading,
            draft=draft.model_copy(update={"vocabulary": vocabulary}),
            findings=(*reading.findings, said),
        )
    return replace(loaded, reading=reading, own_embeddings=not same)


def convert(loaded: Loaded, destination: str, options: Options | None = None) -> Conversion:
    """Decide a conversion completely, without writing anything.

    Args:
        loaded: the source.
        destination: ``speculators``, ``sglang``, ``vllm`` or ``universal``.
        options: the user's.

    Raises:
        Refused: the destination cannot express the network exactly.
    """
    options = options or Options()
    choices = Choices(
        options.target_name or options.target, options.stock, options.dtype, options.canonical_names
    )
    fitted = fit(loaded, destination, choices)
    _prove(fitted, loaded, destination)
    weights = _weight_files(loaded, fitted, destination, options.max_shard_bytes)
    texts = {"config.json": _json(fitted.writing.config)}
    if len(weights) > 1:
        texts["model.safetensors.index.json"] = _index(weights, loaded)
    sides = tuple(Taken(path.name, path) for path in loaded.checkpoint.sides)
    conversion = Conversion(loaded, destination, fitted, Plan(weights, texts, sides))
    return replace(
        conversion, plan=replace(conversion.plan, provenance=_provenance(conversion, options))
    )


def _prove(fitted: Fitted, loaded: Loaded, destination: str) -> None:
    """What the destination's reader finds in the planned output is the network that was meant."""
    found, meant = read_back(fitted, loaded, destination), fitted.draft
    if network(found, fitted) != network(meant, fitted):
        raise AssertionError(f"bug: {destination} would read back\n{found!r}\nnot\n{meant!r}")


def network(draft: Any, fitted: Fitted) -> Any:  # noqa: ANN401
    """The description without what no loader computes with."""
    vocabulary = draft.vocabulary
    if any(output.name == "embed_tokens.weight" for output in fitted.outputs):
        vocabulary = vocabulary.model_copy(update={"embeddings": "target"})
    target = type(draft.target)(hidden_size=draft.target.hidden_size)
    return draft.model_copy(
        update={
            "target": target,
            "speculative_tokens": None,
            "trains_embeddings": False,
            "taps": draft.resolved_taps(fitted.draft.target.layers),
            "vocabulary": vocabulary,
        }
    )


def write(
    conversion: Conversion,
    output: Path,
    *,
    link: bool = False,
    overwrite: bool = False,
    digest: bool = False,
    progress: Callable[[int], None] | None = None,
) -> stream.WriteResult:
    """Write a conversion; see `stream.write` for what is guaranteed and raised."""
    return stream.write(
        conversion.plan, output, link=link, overwrite=overwrite, digest=digest, progress=progress
    )


def said_of(result: stream.WriteResult) -> list[Finding]:
    """What there is to say of a finished write."""
    return [
        finding("link-copied", name, "lies on another file system.") for name in result.not_linked
    ]


def describe(draft: Draft) -> list[str]:
    """The network in a few lines, for people."""
    layers, attention, vocabulary = draft.layers, draft.layers.attention, draft.vocabulary
    taps = "the default triple (2, L // 2, L - 3)" if draft.taps is None else list(draft.taps)
    norms = [
        name
        for name, there in (
            ("input norm", draft.fc is not None and draft.fc.input_norm),
            ("block norms", draft.fc is not None and draft.fc.block_norms),
            ("q/k norms", attention.qk_norm),
        )
        if there
    ]
    fc = "no fc" if draft.fc is None else f"fc over {draft.fc.blocks} taps: {taps}"
    return [
        f"{layers.count} layer(s) of width {draft.hidden_size}, {attention.heads} heads of "
        f"{attention.head_dim} ({attention.kv_heads} KV), MLP {layers.mlp.width}, {draft.dtype}",
        fc + (f"; {', '.join(norms)}" if norms else ""),
        f"residual {draft.residual}, feedback {draft.feedback}, rope theta {draft.rope.theta:g}"
        f"{f' {draft.rope.scaling}' if draft.rope.scaling else ''}",
        f"{vocabulary.draft_size} of {vocabulary.target_size} tokens, head {vocabulary.head}, "
        f"embeddings {vocabulary.embeddings}",
    ]


def _weight_files(
    loaded: Loaded, fitted: Fitted, destination: str, limit: int
) -> tuple[Taken | Written, ...]:
    """One output file for each source file: taken whole where nothing in it changes, else written."""
    sources = list(loaded.checkpoint.files)
    groups: dict[Path, list[Output]] = {path: [] for path in sources}
    last = sources[-1]
    for output in fitted.outputs:
        home = getattr(getattr(output.op, "source", None), "file", last)
        groups[home if home in groups else last].append(output)
    files: list[Path | list[Output]] = []
    for path, outputs in groups.items():
        if _unchanged(path, outputs, loaded.checkpoint, destination) and _fits(outputs, limit):
            files.append(path)
        elif outputs:
            files += _split(outputs, limit)
    names = _file_names(files)
    return tuple(
        Taken(name, file) if isinstance(file, Path) else Written(name, tuple(file))
        for name, file in zip(names, files, strict=True)
    )


def _unchanged(
    path: Path, outputs: Sequence[Output], checkpoint: Checkpoint, destination: str
) -> bool:
    header = checkpoint.headers.get(path.name)
    if header is None:
        return False
    if destination in ("speculators", "universal") and header.metadata.get("format") != "pt":
        # transformers refuses a file that does not say which library wrote it.
        return False
    kept = {
        output.name
        for output in outputs
        if isinstance(output.op, Copy) and output.op.source.name == output.name
    }
    return len(kept) == len(outputs) and kept == set(header.tensors)


def _fits(outputs: Sequence[Output], limit: int) -> bool:
    return limit == DEFAULT_SHARD_BYTES or sum(output.nbytes for output in outputs) <= limit


def _split(outputs: Sequence[Output], limit: int) -> list[list[Output]]:
    shards: list[list[Output]] = [[]]
    size = 0
    for output in outputs:
        if shards[-1] and size + output.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(output)
        size += output.nbytes
    return shards


def _file_names(files: Sequence[Path | list[Output]]) -> list[str]:
    count = len(files)
    if count == 1:
        return ["model.safetensors"]
    pattern = re.compile(rf"model-\d{{5}}-of-{count:05d}\.safetensors")
    kept = [file.name for file in files if isinstance(file, Path)]
    if len(kept) == count and all(pattern.fullmatch(name) for name in kept):
        return kept
    return [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def _index(weights: Sequence[Taken | Written], loaded: Loaded) -> str:
    weight_map: dict[str, str] = {}
    total = 0
    for file in weights:
        if isinstance(file, Written):
            weight_map |= {output.name: file.name for output in file.tensors}
            total += sum(output.nbytes for output in file.tensors)
        else:
            tensors = loaded.checkpoint.headers[file.source.name].tensors
            weight_map |= dict.fromkeys(tensors, file.name)
            total += sum(tensor.stop - tensor.start for tensor in tensors.values())
    return _json(
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    )


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _table(loaded: Loaded, fitted: Fitted) -> list[dict[str, str | None]]:
    rows: list[dict[str, str | None]] = []
    used = set()
    for output in fitted.outputs:
        source = getattr(output.op, "source", None)
        used.add(source.name if source else None)
        operation = output.note or "kept"
        rows.append(
            {"source": source.name if source else None, "output": output.name, "op": operation}
        )
    left = [name for name in loaded.checkpoint.tensors if name not in used]
    return [*rows, *({"source": name, "output": None, "op": "left out"} for name in left)]


def _provenance(conversion: Conversion, options: Options) -> dict[str, Any]:
    source = conversion.loaded.checkpoint
    report = conversion.report("")
    target = conversion.loaded.target
    return {
        "tool": {"name": "eagle3-interop", "version": version("eagle3-interop")},
        "source": {"layout": conversion.loaded.layout, **source.provenance()},
        "target": target
        and {"path": options.target_name or target.path, "revision": target.revision},
        "output": {"layout": conversion.destination},
        "options": {
            "taps": options.taps and list(options.taps),
            "set": dict(options.sets or {}),
            "dtype": options.dtype,
        },
        "draft": report["draft"],
        "tensors": report["tensors"],
        "findings": report["findings"],
    }


__all__ = ["SOURCES", "Conversion", "Options", "convert", "load", "write"]
