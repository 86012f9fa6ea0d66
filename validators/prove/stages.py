"""Where two networks part: every stage of both, traced on the same text and compared.

A stage that differs although all that it is computed from is equal is where a difference arises; it
counts if differing stages lead from there to the proposals. The first such stage is the answer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3_interop.validators.accept.drafting import Batch
from eagle3_interop.validators.network.reference import Network, Trace

ROUNDING = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Differences that are rounding, relative to a stage's largest value.

Equal tensors under an equal description give equal bits here. What may differ is the order of a sum,
where a conversion permuted or merged blocks of fc: at most 1.4e-6 at any stage of the tiny pair in float32.
The half types are only as exact as their 11 and 8 bits.
"""

MEANING = {
    "fc input": "other taps of the target are fed, or normed otherwise: compare taps and fc norms",
    "fc output": "fc's weights differ, or its blocks meet other taps",
    "embedding": "the two look their input tokens up in different tables, or take another mask token",
    "mask": "mask_hidden or its way through fc differs, or one proposes all tokens in one pass and the other does not",
    "first-layer input": "the norms of embedding and hidden state differ, or their order",
    "layer input": "the norm before attention differs",
    "residual": "one adds the raw hidden state, the other the normed one (norm_before_residual)",
    "attention": "q, k, v, o, their latents, norms or biases, rope, mscale or a sliding window differ",
    "MLP": "the MLP's weights, its norm or its activation differ",
    "final norm": "the final norm's weight differs",
    "head": "the rows of the head differ, or their scale",
    "vocabulary map": "draft ids stand for other target ids (d2t)",
    "feedback": "one hands the hidden state to the next step before the final norm, the other after",
}


@dataclass(frozen=True)
class Stage:
    """A stage of one step.

    Attributes:
        key: step and name in the trace.
        name: for people; a key of `MEANING`.
        inputs: keys of the stages that it is computed from.
    """

    key: str
    name: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Parting:
    """The first stage at which two networks part.

    Attributes:
        stage: for people, with the step where it is not the first.
        step: counted from 1.
        max_abs_diff: None where the two have other shapes there, or one has nothing.
        largest: largest value of the second network there.
        meaning: what usually makes networks part there.
    """

    stage: str
    step: int
    max_abs_diff: float | None
    largest: float | None
    meaning: str


def first_parting(one: Network, other: Network, batch: Batch, depth: int) -> Parting | None:
    """The first stage at which two networks part on one text, or None.

    Args:
        one: a network.
        other: the one that it should equal.
        batch: a single text, with the features of both networks' taps.
        depth: steps to follow.
    """
    left, right = (trace_steps(network, batch, depth) for network in (one, other))
    parallel = any(network.draft.parallel is not None for network in (one, other))
    stages = list(_stages(depth, max(one.draft.layers.count, other.draft.layers.count), parallel))
    limit = ROUNDING[one.weights.dtype]
    differing = {stage.key for stage in stages if not _same(left, right, stage.key, limit)}
    if "0 head" not in differing:
        # Maps in another order, the head's rows with them: the same network.
        differing.discard("ids")
    for stage in stages:
        arises = stage.key in differing and not differing & set(stage.inputs)
        if arises and _matters(stage.key, stages, differing):
            return _parting(stage, left, right)
    return None


@torch.no_grad()
def trace_steps(network: Network, batch: Batch, depth: int) -> dict[str, Tensor]:
    """Every stage of `depth` steps along a text: ``"STEP NAME"``, steps counted from 0.

    The first step is traced at all positions, those that follow and all heads at the start positions.
    Blocks of fc's input stand in the order of the taps, rows of the head in the order of target ids.
    """
    found: dict[str, Tensor] = {}
    trace: dict[str, Tensor] = {}
    hidden = network.fuse(batch.features, trace)
    out, cache = network.begin(batch.tokens[:, 1 : hidden.shape[1] + 1], hidden, trace)
    rows = torch.arange(len(batch.starts), device=batch.starts.device)[:, None]
    normed, feedback = out.normed[rows, batch.starts], out.feedback[rows, batch.starts]
    cache = cache.select(rows, batch.starts)
    for step in range(depth):
        if step:
            trace = {}
            out = network.step(batch.text(1 + step), feedback, cache, trace)
            normed, feedback = out.normed, out.feedback
        logits = network.logits(normed)
        heads = {"head": _by_token(network, logits), "raw head": logits}
        found |= {f"{step} {name}": value for name, value in (trace | heads).items()}
    if "0 fc_input" in found:
        found["0 fc_input"] = _by_tap(network, found["0 fc_input"])
    ids = network.weights.target_ids
    size = found["0 raw head"].shape[-1]
    found["ids"] = torch.arange(size, device=batch.tokens.device) if ids is None else ids
    return found


def _stages(depth: int, layers: int, parallel: bool) -> Iterator[Stage]:
    for step in range(depth):
        later = f"{step} mask" if parallel else f"{step - 1} feedback"
        hidden = "0 fc_output" if step == 0 else later
        if step == 0:
            yield Stage("0 fc_input", "fc input", ())
            yield Stage("0 fc_output", "fc output", ("0 fc_input",))
        elif parallel:
            yield Stage(later, "mask", ())
        yield Stage(f"{step} embedding", "embedding", ())
        inputs: tuple[str, ...] = (hidden,)
        for layer in range(layers):
            prefix = f"{step} layers.{layer}"
            name = "first-layer input" if layer == 0 else "layer input"
            entry = (*inputs, f"{step} embedding") if layer == 0 else inputs
            yield Stage(f"{prefix}.input", name, entry)
            yield Stage(f"{prefix}.residual", "residual", inputs)
            yield Stage(f"{prefix}.attention", "attention", (f"{prefix}.input",))
            added = (f"{prefix}.residual", f"{prefix}.attention")
            yield Stage(f"{prefix}.mlp", "MLP", added)
            inputs = (*added, f"{prefix}.mlp")
        yield Stage(f"{step} norm", "final norm", inputs)
        yield Stage(f"{step} raw head", "head", (f"{step} norm",))
        if step == 0:
            yield Stage("ids", "vocabulary map", ())
        yield Stage(f"{step} head", "head", (f"{step} raw head", "ids"))
        if not parallel:
            yield Stage(f"{step} feedback", "feedback", (*inputs, f"{step} norm"))


def _same(left: Trace, right: Trace, key: str, limit: float) -> bool:
    if key not in left or key not in right:
        return key not in left and key not in right
    if key == "ids":
        return torch.equal(left[key], right[key])
    if _is_head(key) and not torch.equal(left["ids"].sort().values, right["ids"].sort().values):
        return False
    difference = largest_difference(left[key], right[key])
    return difference is not None and difference <= limit * _largest(right[key])


def _is_head(key: str) -> bool:
    """The head's logits token by token, where two networks must agree."""
    return key.endswith(" head") and not key.endswith(" raw head")


def largest_difference(one: Tensor, other: Tensor) -> float | None:
    """Largest absolute difference; None where the shapes differ."""
    if one.shape != other.shape:
        return None
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _matters(key: str, stages: list[Stage], differing: set[str]) -> bool:
    """Whether differing stages lead from here to what is proposed, token by token."""
    reached = {key}
    for stage in stages:
        if stage.key in differing and reached & set(stage.inputs):
            reached.add(stage.key)
    return any(map(_is_head, reached))


def _parting(stage: Stage, left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Parting:
    step = int(stage.key.split()[0]) if stage.key != "ids" else 0
    parts = stage.key.split(".")
    name = stage.name
    if stage.name == "feedback":
        step += 1
    elif len(parts) == 3 and int(parts[1]) > 0:
        name = f"{stage.name} of layer {int(parts[1]) + 1}"
    there = stage.key in left and stage.key in right
    difference = largest_difference(left[stage.key], right[stage.key]) if there else None
    return Parting(
        name if step == 0 else f"{name} of step {step + 1}",
        step + 1,
        difference,
        _largest(right[stage.key]) if stage.key in right else None,
        MEANING[stage.name],
    )


def _by_tap(network: Network, fed: Tensor) -> Tensor:
    """What fc takes, its blocks in ascending order of their taps."""
    taps = network.draft.network.taps
    if taps is None:
        return fed
    blocks = fed.chunk(len(taps), dim=-1)
    order = sorted(range(len(taps)), key=lambda i: taps[i])
    return torch.cat([blocks[i] for i in order], dim=-1)


def _by_token(network: Network, logits: Tensor) -> Tensor:
    """Logits in ascending order of the target's ids."""
    ids = network.weights.target_ids
    return logits if ids is None else logits[..., ids.argsort()]
