"""Write a checkpoint, in its own layout, with another wiring, where a layout can say it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_interop.convert import api
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.schemas.dialects.base import Reading
from eagle3_interop.schemas.engines.universal import is_for_all
from eagle3_interop.schemas.findings import Finding, Refused, errors, finding
from eagle3_interop.schemas.parameters import MAPS
from eagle3_interop.validators.diagnose.wiring import (
    NEIGHBOURS,
    PRUNED,
    READS,
    STREAM,
    USUAL,
    Subject,
    Wiring,
)

_NOWHERE = {
    "head_norm": "the head reads the hidden state before the final norm",
    "shift": "features and tokens are paired one position apart",
    "hidden_norms": "the hidden state passes two norms",
    "embedding_scale": "the embedding is scaled",
}
"""Flags that no description has: neither vLLM nor SGLang nor speculators computes their other value."""

_ENTRY_NORMS = ("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight")


@dataclass(frozen=True)
class Rewritten:
    """What became of the wish to write.

    Attributes:
        output: the folder, or None where nothing was written.
        findings: what was done, or why not.
    """

    output: Path | None
    findings: tuple[Finding, ...]


def write_wiring(
    checkpoint: str,
    target: str,
    subject: Subject,
    wiring: Wiring,
    output: Path,
    *,
    trainer: str | None = None,
    allow: Sequence[str] = (),
) -> Rewritten:
    """Write a checkpoint as this wiring means it, or say why it cannot be.

    Args:
        checkpoint: the source.
        target: of it.
        subject: the weights as they were diagnosed.
        wiring: what they were trained for.
        output: a folder that does not exist.
        trainer: by whose word the weights were diagnosed.
        allow: codes of what was trained and no engine computes, which may be lost.
    """
    options = api.Options(target=target, trainer=trainer, allow=tuple(allow))
    if hindrances := list(_hindrances(subject, wiring)):
        return Rewritten(None, tuple(_not_written(what) for what in hindrances))
    try:
        conversion = _convert(checkpoint, options, subject, wiring)
    except Refused as refusal:
        found = errors(refusal.findings)
        return Rewritten(
            None, tuple(_not_written(f"{x.where}: {x.message} {x.fix}") for x in found)
        )
    result = api.write(conversion, output)
    return Rewritten(output, (*conversion.fitted.findings, *api.said_of(result)))


def _not_written(what: str) -> Finding:
    return finding("wiring-not-written", "--write", what)


def _hindrances(subject: Subject, wiring: Wiring) -> list[str]:
    """What no framework computes."""
    found = [
        f"{what}; neither vLLM nor SGLang nor speculators computes that."
        for name, what in _NOWHERE.items()
        if wiring.flag(name) != USUAL[name] and name not in subject.allowed
    ]
    if PRUNED in subject.maps:
        found.append(
            "the head was pruned by offsets in the place of token ids; the rows of its tokens are lost."
        )
    for block, read in enumerate(wiring.reads):
        if read != STREAM:
            found.append(
                f"block {block} of fc reads {READS[read]}; vLLM, SGLang and speculators all hand over the "
                "residual stream."
            )
    return found


def _convert(
    checkpoint: str, options: api.Options, subject: Subject, wiring: Wiring
) -> api.Conversion:
    sets = _sets(subject, wiring)
    taps = wiring.taps or None
    named = api.load(checkpoint, weights=False, diagnosing=True).reading.draft.target.name
    options = replace(
        options,
        target_name=named if named and not Path(named).is_absolute() else None,
        taps=taps if taps != subject.configured.taps or not subject.known else None,
        sets=sets,
    )
    loaded = api.load(checkpoint, "auto", options, diagnosing=True)
    exchanged = wiring.flag("order") != subject.configured.flag("order")
    loaded = replace(
        loaded,
        reading=_reread(loaded, subject, wiring),
        exchanged=exchanged,
    )
    universal = is_for_all(loaded.checkpoint.config)
    return api.convert(loaded, "universal" if universal else loaded.layout, options)


def _sets(subject: Subject, wiring: Wiring) -> dict[str, Any]:
    """The description's keys that say this wiring."""
    flags, before = dict(wiring.flags), dict(subject.configured.flags)
    changed = {name for name, value in flags.items() if value != before[name]}
    sets: dict[str, Any] = {name: flags[name] for name in changed & {"residual", "feedback"}}
    for name in changed & {"input_norm", "block_norms"}:
        sets[f"fc.{name}"] = flags[name] == "on"
    if "qk_norm" in changed:
        sets["layers.attention.qk_norm"] = flags["qk_norm"] == "on"
    if "pairs" in changed:
        sets["layers.attention.interleaved"] = flags["pairs"] == NEIGHBOURS
    if "scores" in changed:
        sets["layers.attention.softmax_scale"] = subject.scores[flags["scores"]]
    if "embeddings" in changed:
        sets["vocabulary.embeddings"] = flags["embeddings"]
    if "window" in changed:
        sets["layers.windows"] = list(subject.windows[flags["window"]])
    if "rope" in changed:
        rope = subject.ropes[flags["rope"]]
        sets |= {f"rope.{key}": getattr(rope, key) for key in ("theta", "scaling", "parameters")}
    if wiring.flag("map") != before["map"] or not subject.known:
        sets["vocabulary.mapped"] = subject.maps[flags["map"]] is not None
    return sets


def _reread(loaded: Loaded, subject: Subject, wiring: Wiring) -> Reading:
    """The reading with norms under the names that the wiring gives them, and the map that it means."""
    reading, names = loaded.reading, dict(loaded.reading.names)
    for one, other in _swapped(subject, wiring):
        names[one], names[other] = names[other], names[one]
    if wiring.flag("later_norms") == "other-name":
        names |= dict(subject.other_names)
    for prefix, flag in (("input_norm.", "input_norm"), ("fc_norm.", "block_norms")):
        if wiring.flag(flag) == "off":
            names = {name: x for name, x in names.items() if not name.startswith(prefix)}
    maps = dict(reading.maps)
    if wiring.flag("map") != subject.configured.flag("map") or not subject.known:
        names, maps = _remap(names, subject, wiring)
    kept = tuple(item for item in reading.findings if not item.row.answered_by_search)
    return replace(reading, names=names, maps=maps, findings=kept)


def _swapped(subject: Subject, wiring: Wiring) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    if wiring.flag("entry_norms") == "swapped":
        pairs.append(_ENTRY_NORMS)
    if wiring.flag("later_norms") == "swapped":
        stems = [f"layers.{layer}" for layer in range(1, subject.draft.layers.count)]
        norms = ("input_layernorm", "post_attention_layernorm")
        pairs += [(f"{stem}.{norms[0]}.weight", f"{stem}.{norms[1]}.weight") for stem in stems]
    return pairs


def _remap(
    names: dict[str, str], subject: Subject, wiring: Wiring
) -> tuple[dict[str, str], dict[str, np.ndarray[Any, Any]]]:
    """Names without the stored maps, and the maps that are meant."""
    vocabulary, ids = subject.draft.vocabulary, subject.maps[wiring.flag("map")]
    names = {name: x for name, x in names.items() if name not in MAPS}
    rows = np.arange(vocabulary.draft_size, dtype=np.int64)
    wanted = rows if ids is None else ids.cpu().numpy()
    return names, {"d2t": wanted - rows}
