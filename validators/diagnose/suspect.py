"""From a checkpoint and its target to the weights whose wiring is sought, and what could be meant by them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eagle3_interop.convert.decide.dequantising import dequantised
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.read.head_rows import repeated_rows
from eagle3_interop.schemas.dialects.spelling import LaterNorm, understand
from eagle3_interop.schemas.draft import Draft, Mla, Rope, default_taps
from eagle3_interop.schemas.findings import errors
from eagle3_interop.validators.diagnose.wiring import (
    HALVES,
    NEIGHBOURS,
    PRUNED,
    STREAM,
    Subject,
    Wiring,
    candidate_maps,
    candidate_ropes,
    candidate_scores,
    candidate_windows,
    configured_flags,
    for_latent_attention,
)
from eagle3_interop.validators.network.reference import refuse_unknown
from eagle3_interop.validators.network.weights import Weights, as_tensor
from eagle3_interop.validators.target.source import Source

SPELLINGS: tuple[LaterNorm, ...] = ("hidden_norm", "input_layernorm")


def subject_of(
    loaded: Loaded,
    target: Source,
    *,
    device: torch.device,
    dtype: torch.dtype,
    recorded: Sequence[int] | None = None,
) -> Subject:
    """The weights of a checkpoint, and every wiring that makes sense for them.

    Args:
        loaded: the checkpoint.
        target: of it.
        device: where it runs.
        dtype: in which it runs.
        recorded: the taps that can be tried, where not all can.

    Raises:
        Refused: a kind of draft that is not computed here.
    """
    loaded = dequantised(loaded)
    draft = _with_taps(loaded.reading.draft, target.depth, recorded)
    refuse_unknown(draft)
    reading = replace(loaded.reading, draft=draft)
    weights = Weights.read(
        reading, loaded.checkpoint, device=device, dtype=dtype, tables=target.tables
    )
    names = frozenset({*reading.names, *reading.maps})
    maps = _maps(draft, weights, names)
    if repeated_rows(loaded.checkpoint, loaded.reading):
        maps[PRUNED] = weights["d2t"].long()
    windows = candidate_windows(draft.layers.windows, loaded.facts.window if loaded.facts else None)
    trained = loaded.trainer.switches if loaded.trainer else {}
    ropes = candidate_ropes(draft.rope, target_rope(target))
    scores = _scores(draft, target)
    if scores:
        ropes = for_latent_attention(ropes)
    tables = _tables(draft, weights, target, names)
    others = _other_names(loaded)
    other_norms = _other_norms(loaded, weights, others)
    configured = configured_flags(draft) | dict(trained)
    known = not any(item.row.leaves_unwired for item in errors(loaded.reading.findings))
    named = loaded.reading.draft.taps or default_taps(target.depth)
    known = known and (draft.fc is None or draft.taps == named)
    if configured["map"] not in maps:
        configured["map"], known = next(iter(maps)), False
    values = _options(draft, names, maps, ropes, tables, other_norms)
    values["window"] = list(windows)
    if any(draft.layers.windows):
        values["window_of"] = ["step", "start"]
    if scores:
        values |= {"pairs": [NEIGHBOURS, HALVES], "scores": list(scores)}
    options = {name: tuple(dict.fromkeys([configured[name], *x])) for name, x in values.items()}
    taps = draft.taps or ()
    wiring = Wiring(taps, (STREAM,) * len(taps), tuple(configured.items()))
    return Subject(
        draft,
        weights,
        wiring,
        options,
        ropes,
        maps,
        tables,
        names,
        other_norms,
        others,
        known,
        windows,
        trained,
        loaded.trainer.accepted if loaded.trainer else frozenset(),
        scores,
    )


def _with_taps(draft: Draft, depth: int, recorded: Sequence[int] | None = None) -> Draft:
    """The draft with some taps: its own, or, where it names none that can be tried, a first guess."""
    if draft.fc is None:
        return draft
    taps = draft.taps or default_taps(depth)
    if recorded is not None and not set(taps or (-1,)) <= set(recorded):
        last, count = len(recorded) - 1, draft.fc.blocks
        taps = tuple(recorded[round(i * last / max(1, count - 1))] for i in range(count))
        return draft.model_copy(update={"taps": taps})
    if taps is None or max(taps) > depth:
        blocks = draft.fc.blocks
        triple = default_taps(depth) if blocks == 3 else None
        taps = triple or tuple(round(i * depth / max(1, blocks)) for i in range(1, blocks + 1))
    return draft.model_copy(update={"taps": taps})


def target_rope(target: Source) -> Rope | None:
    """The target's rope, as far as a draft's could be the same."""
    found = getattr(target.config, "rope_parameters", None)
    if not isinstance(found, Mapping) or not isinstance(found.get("rope_theta"), int | float):
        return None
    kind = found.get("rope_type", "default")
    known = kind if kind in ("linear", "dynamic", "yarn", "llama3", "longrope") else None
    own = ("rope_theta", "rope_type", "type", "partial_rotary_factor", "mrope_section")
    numbers = {key: value for key, value in found.items() if key not in own} if known else {}
    return Rope(theta=float(found["rope_theta"]), scaling=known, parameters=numbers)


def _scores(draft: Draft, target: Source) -> dict[str, float]:
    """What the scores of latent attention may be multiplied by; nothing for other attention."""
    attention = draft.layers.attention
    if not isinstance(attention, Mla):
        return {}
    return candidate_scores(attention, draft.rope, target_rope(target))


def _maps(draft: Draft, weights: Weights, names: frozenset[str]) -> dict[str, Tensor | None]:
    vocabulary = draft.vocabulary
    if vocabulary.head != "own" or vocabulary.draft_size == vocabulary.target_size:
        # Whatever the map says, the head's rows follow it; or every row is its own token.
        return {"offset" if vocabulary.mapped else "absent": weights.target_ids}
    stored = weights["d2t"] if "d2t" in names else None
    listed = weights["t2d"] if "t2d" in names else None
    found = candidate_maps(stored, listed, vocabulary.target_size, vocabulary.draft_size)
    return {k: None if v is None else v.to(weights.device) for k, v in found.items()}


def _tables(
    draft: Draft, weights: Weights, target: Source, names: frozenset[str]
) -> dict[str, Tensor]:
    kind: str = draft.vocabulary.embeddings
    found = {kind: weights.embeddings}
    if kind == "target" and "embed_tokens.weight" in names:
        found["own"] = weights["embed_tokens.weight"]
    theirs = target.tables().embeddings
    if kind == "own" and theirs.shape[-1] == draft.hidden_size:
        found["target"] = theirs.to(weights.device, weights.dtype)
    if len(found) == 2 and torch.equal(found["own"], found["target"]):
        return {kind: found[kind]}
    return found


def _other_names(loaded: Loaded) -> dict[str, str]:
    """The norms of later layers that stand in the file under the spelling that is not read."""
    found: dict[str, str] = {}
    for stored in loaded.reading.unused:
        for spelling in SPELLINGS:
            name = understand(stored, spelling).canonical
            if name is not None and name.endswith("input_layernorm.weight"):
                found[name] = stored
    return found


def _other_norms(loaded: Loaded, weights: Weights, others: Mapping[str, str]) -> dict[str, Tensor]:
    """Their weights, where they are not the same."""
    found = {
        name: as_tensor(loaded.checkpoint.values(stored)).to(weights.device, weights.dtype)
        for name, stored in others.items()
    }
    return {name: x for name, x in found.items() if not torch.equal(x, weights[name])}


def _options(
    draft: Draft,
    names: frozenset[str],
    maps: Mapping[str, Tensor | None],
    ropes: Mapping[str, Rope],
    tables: Mapping[str, Tensor],
    other_norms: Mapping[str, Tensor],
) -> dict[str, list[str]]:
    switch = ["off", "on"]
    options = {
        "residual": ["raw", "normed"],
        "feedback": ["pre-norm", "post-norm"],
        "head_norm": ["on", "off"],
        "embedding_scale": ["raw", "scaled"],
        "order": ["embedding-hidden", "hidden-embedding"],
        "shift": ["0", "1", "-1"],
        "rope": list(ropes),
        "map": list(maps),
        "embeddings": list(tables),
        "hidden_norms": ["one", "two"],
        "entry_norms": ["as-named", "swapped"],
    }
    if draft.parallel is not None:
        del options["feedback"]  # nothing is handed on
    if draft.fc is not None:
        options |= {"input_norm": switch, "block_norms": switch}
    if draft.layers.count > 1:
        other = ["other-name"] if other_norms else []
        options["later_norms"] = ["as-named", "swapped", *other]
    if "layers.0.self_attn.q_norm.weight" in names:
        options["qk_norm"] = switch
    return options
