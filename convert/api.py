"""Conversion as a library: load, fit, plan, write, compare. The commands are thin shells over this."""

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from eagle3_interop.convert.decide.dequantising import dequantised
from eagle3_interop.convert.decide.description import describe
from eagle3_interop.convert.decide.fitting import Fitted, fit
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.decide.overrides import apply, settles
from eagle3_interop.convert.decide.planning import read_back
from eagle3_interop.convert.decide.recognition import (
    layout_of,
    left_beside,
    recall_tokens,
    refuse_other,
)
from eagle3_interop.convert.decide.releases import (
    reaches,
    require_readers,
    rules_of,
    said_of_releases,
)
from eagle3_interop.convert.decide.training import as_trained
from eagle3_interop.convert.read.checkpoint import Checkpoint, open_checkpoint
from eagle3_interop.convert.read.folders import check_links, local_path
from eagle3_interop.convert.read.head_rows import repeated_rows
from eagle3_interop.convert.read.same_values import same_values
from eagle3_interop.convert.read.target_tables import TargetCheckpoint, open_target
from eagle3_interop.convert.write import stream
from eagle3_interop.convert.write.plan import Plan, Taken
from eagle3_interop.convert.write.shards import index, weight_files
from eagle3_interop.schemas.dialects.base import Reading, TargetFacts
from eagle3_interop.schemas.dialects.reading import check, check_target, with_target
from eagle3_interop.schemas.draft import differences
from eagle3_interop.schemas.engines.releases import parse_named
from eagle3_interop.schemas.engines.universal import is_for_all
from eagle3_interop.schemas.findings import Finding, Refused, Usage, errors, finding
from eagle3_interop.schemas.options import Options
from eagle3_interop.schemas.registry import DESTINATIONS, readable

_CODE = (".py", ".so", ".sh", ".js")


@dataclass(frozen=True)
class Conversion:
    """A conversion that was decided, and can be written.

    Attributes:
        loaded: the source.
        destination: the layout's name.
        fitted: the network in the destination's dialect.
        plan: what the folder will hold.
        rules: of each engine that loads it, the releases that it was proved with.
    """

    loaded: Loaded
    destination: str
    fitted: Fitted
    plan: Plan
    rules: Mapping[str, Sequence[str]] = field(default_factory=dict)

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
            "trainer": self.loaded.trainer and self.loaded.trainer.report(),
            "findings": [item.model_dump() for item in said],
            "tensors": _table(self.loaded, self.fitted),
        }


def know(name: object, names: Sequence[str], what: str) -> None:
    """Raise `Usage` where it is none of these names."""
    if name in names:
        return
    near = difflib.get_close_matches(str(name).lower(), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}."
    raise Usage(f"no {what} is called {name!r}: {hint}")


def _expect(value: object, kind: type, maker: str) -> None:
    """Raise `Usage` where it is not what this function gives."""
    if not isinstance(value, kind):
        raise Usage(
            f"a {type(value).__name__} was given where a {kind.__name__} is needed: {maker} gives one."
        )


def load(
    source: str | Path,
    layout: str = "auto",
    options: Options | None = None,
    *,
    weights: bool = True,
    diagnosing: bool = False,
    describing: bool = False,
    shared: bool = True,
    served: bool = False,
) -> Loaded:
    """Read a draft by its own framework's rules, and put the user's word in.

    Args:
        source: folder or Hub id.
        layout: ``speculators``, ``sglang``, ``vllm``, or ``auto``.
        options: the user's.
        weights: False reads headers only.
        diagnosing: errors that a diagnosis answers do not refuse.
        describing: no error refuses once the folder could be read; they stand among the findings.
        shared: a folder for all three must say the same to all three; False asks speculators' keys alone.
        served: the network that engines compute is wanted, whoever trained it, unless the user names a trainer.

    Raises:
        Refused: it is no draft, another layout, or holds what cannot be understood exactly.
        Usage: an override that does not fit.
        Unavailable: the disk or the Hub failed.
    """
    options = options or Options()
    know(layout, (*DESTINATIONS, "auto"), "layout")
    checkpoint = open_checkpoint(str(source), weights=weights)
    refuse_other(checkpoint)
    for_all = shared and layout == "auto" and is_for_all(checkpoint.config)
    beside = left_beside(checkpoint)
    named = layout != "auto"
    layout, said = layout_of(checkpoint, layout, beside)
    target = None
    if options.target is not None:
        target = open_target(options.target, weights=weights and not options.ranges)
    facts = _facts(target, options) if target else None
    reading = readable("universal" if for_all else layout).read(checkpoint, facts)
    if facts is not None:
        reading = with_target(reading, facts)
    trainer = None
    # What this tool wrote says all that it was trained as, unless the user says more.
    if not beside or options.trainer is not None:
        reading, trainer = as_trained(
            checkpoint,
            reading,
            options.trainer,
            served_is_meant=named,
            only_served=served,
            allowed=options.allow,
            target=facts,
        )
    reading = apply(reading, options.taps, options.sets or {}, checkpoint)
    reading, borrowed = _share_head(recall_tokens(reading, beside), target)
    told = {*(options.sets or ()), *(key for key in ("taps", "dtype") if getattr(options, key))}
    found = [*checkpoint.findings, *said, *_code_left(checkpoint), *reading.findings, *borrowed]
    found = [item for item in found if not settles(told, item.settled_by)]
    if facts is not None:
        found += check_target(reading.draft, facts)
    found += check(reading, checkpoint.tensors)
    if weights and not errors(found):
        found += repeated_rows(checkpoint, reading)
    reading = replace(reading, findings=tuple(found))
    unsettled = [] if describing else errors(found)
    if any(not (diagnosing and item.row.answered_by_search) for item in unsettled):
        raise Refused(reading.findings)
    loaded = Loaded(checkpoint, layout, reading, target, facts, trainer=trainer)
    return _compare_embeddings(loaded) if weights else loaded


def _code_left(checkpoint: Checkpoint) -> list[Finding]:
    """What runs when a folder is trusted: the files themselves, and the config key that names them."""
    left = [name for name in checkpoint.folder.sizes if name.endswith(_CODE)]
    if checkpoint.config.get("auto_map"):
        left.append("config.json: auto_map")
    return [finding("code-left", ", ".join(left), "code is never copied.")] if left else []


def _facts(target: TargetCheckpoint, options: Options) -> TargetFacts:
    known = target.facts
    vocab, layers = target.vocab_size, known.layers
    if vocab is None or layers is None:
        message = "its config names no number of layers or tokens; is it a causal language model?"
        raise Refused([finding("wrong-target", target.path, message)])
    return TargetFacts(
        name=options.target_name or target.name or target.path,
        hidden_size=known.hidden_size,
        layers=layers,
        vocab_size=vocab,
        model_type=known.model_type or "",
        architectures=known.architectures,
        max_position=target.max_position,
        window=target.window,
        is_path=options.target_name is None and target.name is None,
    )


def _share_head(reading: Reading, target: TargetCheckpoint | None) -> tuple[Reading, list[Finding]]:
    """An absent head becomes the target's, where the target is at hand."""
    vocabulary = reading.draft.vocabulary
    stored = {"lm_head.weight", "lm_head.weight_packed"} & reading.names.keys()
    if target is None or vocabulary.head != "own" or stored:
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
    target = loaded.target
    same = same_values(loaded.stored(name), loaded.target.embedding, target.folder.read)
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
        Usage: no such destination, not what `load` gives, or a release that never reads this destination.
    """
    options = options or Options()
    _expect(loaded, Loaded, "load(SOURCE)")
    know(destination, tuple(DESTINATIONS), "layout")
    wanted = parse_named(options.releases)
    require_readers(destination, wanted)
    if options.dequantize:
        loaded = dequantised(loaded)
    fitted = fit(loaded, destination, options)
    if DESTINATIONS[destination].engines[0] not in {one.release.engine for one in wanted}:
        _prove(fitted, loaded, destination)
    reached = reaches(fitted, loaded, destination)
    fitted = replace(fitted, findings=(*fitted.findings, *said_of_releases(reached, wanted)))
    if errors(fitted.findings):
        raise Refused(fitted.findings)
    weights = weight_files(loaded, fitted, destination, options.max_shard_bytes)
    texts = {"config.json": _json(fitted.writing.config)}
    if len(weights) > 1:
        texts["model.safetensors.index.json"] = _json(index(weights, loaded.checkpoint))
    states = dict(loaded.checkpoint.folder.states)
    check_links((*loaded.checkpoint.sides, *loaded.checkpoint.odd_sides), states)
    sides = tuple(Taken(path.name, path) for path in loaded.checkpoint.sides)
    if loaded.target is not None:
        states |= loaded.target.folder.states
    plan = Plan(weights, texts, sides, states=states)
    rules = {reach.engine: rules_of(reach.engine, wanted) for reach in reached}
    conversion = Conversion(loaded, destination, fitted, plan, rules)
    return replace(
        conversion, plan=replace(conversion.plan, provenance=_provenance(conversion, options))
    )


def _prove(fitted: Fitted, loaded: Loaded, destination: str) -> None:
    """What the destination's reader finds in the planned output is the network that was meant.

    Raises:
        Refused: it is not.
    """
    reading, meant = read_back(fitted, loaded, destination), fitted.draft
    # Of the target, a folder tells the width alone; a table that is written is compared as bytes.
    read = reading.draft.model_copy(
        update={
            "target": meant.target.model_copy(
                update={"hidden_size": reading.draft.target.hidden_size}
            )
        }
    )
    tables = all(output.name != "embed_tokens.weight" for output in fitted.outputs)
    wrong = differences(meant, read, tables=tables)
    if meant.max_position != read.max_position:
        wrong["max_position"] = (meant.max_position, read.max_position)
    lost = [
        finding("not-read-back", path, f"{ours!r} is meant, {destination} would read {theirs!r}.")
        for path, (ours, theirs) in wrong.items()
    ]
    if found := [*lost, *errors(reading.findings)]:
        raise Refused([*fitted.findings, *found])


def write(
    conversion: Conversion,
    output: str | Path,
    *,
    link: bool = False,
    overwrite: bool = False,
    digest: bool = False,
    progress: Callable[[int], None] | None = None,
) -> stream.WriteResult:
    """Write a conversion; see `stream.write` for what is guaranteed and raised."""
    _expect(conversion, Conversion, "convert(load(SOURCE), DESTINATION)")
    return stream.write(
        conversion.plan,
        local_path(output),
        link=link,
        overwrite=overwrite,
        digest=digest,
        progress=progress,
    )


def said_of(result: stream.WriteResult) -> list[Finding]:
    """What there is to say of a finished write."""
    return [
        finding("link-copied", name, "lies on another file system.") for name in result.not_linked
    ]


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
            **({"dequantize": True} if options.dequantize else {}),
            "target_name": options.target_name,
            "for": list(options.releases),
        },
        "rules": {engine: list(names) for engine, names in conversion.rules.items()},
        "draft": report["draft"],
        "trainer": report["trainer"],
        "tensors": report["tensors"],
        "findings": report["findings"],
    }


__all__ = ["Conversion", "Options", "convert", "describe", "load", "write"]
