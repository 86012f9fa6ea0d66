"""Acceptance: how many drafted tokens the target takes, exactly as the serving engines count it.

A text is the target's own continuation of a prompt by N (`Text.scored`) tokens. What a draft from every
position would have had accepted is known from `drafting`; the serial engine is then a walk: the prefill
gives the first new token, and from there each step takes (accepted + 1) tokens until N are out. The last
step counts in full, as in the engines.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eagle3_interop.schemas.intervals import accept_length_interval
from eagle3_interop.validators.accept.drafting import (
    CHUNK,
    Batch,
    batches,
    chain_lengths,
    draft_steps,
    tree_paths,
)
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.target.running import Progress
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.texts import Text


@dataclass(frozen=True)
class Acceptance:
    """The counters of one shape over some texts.

    Attributes:
        shape: what was drafted a step.
        tokens: new tokens put out, over all texts.
        prompts: (drafts, accepted) of each text.
        per_position: steps that accepted more than j tokens.
        positions: the same of each text.
        one_pass: all tokens of a step come from one pass of the draft (P-EAGLE).
        steps: where they were kept, every step of each text: the place in its completion that it drafts for,
            and how many tokens it accepted.
    """

    shape: Shape
    tokens: int
    prompts: tuple[tuple[int, int], ...]
    per_position: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...] = ()
    one_pass: bool = False
    steps: tuple[tuple[tuple[int, int], ...], ...] = ()

    @property
    def drafts(self) -> int:
        """Verification steps."""
        return sum(drafts for drafts, _ in self.prompts)

    @property
    def accepted(self) -> int:
        """Draft tokens that were accepted."""
        return sum(accepted for _, accepted in self.prompts)

    @property
    def accept_length(self) -> float:
        """Tokens a step: 1 + accepted / drafts."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    def interval(self, seed: int = 0, level: float = 0.95) -> tuple[float, float]:
        """Bootstrap interval of the accept length over prompts."""
        return accept_length_interval(self.prompts, seed, level)

    def speedup(self, cost_ratio: float) -> float:
        """Expected tokens in the time of one without drafting.

        A verification pass is taken to cost one target step, however many tokens it checks: true while the
        target waits for its weights rather than for arithmetic, too kind to large trees and batches.

        Args:
            cost_ratio: time of one draft step over time of one target step.
        """
        passes = 1 if self.one_pass else self.shape.steps
        return self.accept_length / (1 + passes * cost_ratio)

    def summary(self, seed: int = 0) -> dict[str, Any]:
        """The report's JSON object."""
        return {
            "accept_length": self.accept_length,
            "interval": list(self.interval(seed)),
            "drafts": self.drafts,
            "accepted": self.accepted,
            "per_position": list(self.per_position),
            "num_draft_tokens": self.shape.steps,
            "tree": None if self.shape.is_chain else list(self.shape),
            "tokens": self.tokens,
        }


def measure(
    network: Network,
    target: Source,
    texts: Sequence[Text],
    shapes: Sequence[Shape],
    *,
    token_budget: int = 4096,
    progress: Progress | None = None,
) -> dict[Shape, Acceptance]:
    """Acceptance of every shape on the same texts, from one pass of the target.

    Chains share the run of the longest one, and trees of one top-k share the run of the deepest.

    Args:
        network: the draft.
        target: the target that the texts are of.
        texts: each with at least ``steps - 1`` tokens after the scored ones.
        shapes: any number of chains and trees.
        token_budget: tokens a batch may hold.
        progress: told the tokens done.

    Raises:
        Usage: SGLang would not run one of the shapes.
        ValueError: a text is too short for the deepest shape.
    """
    counters = {shape: Counter(shape) for shape in map(Shape.checked, shapes)}
    taps = network.draft.fed_taps(target.depth)
    final = network.draft.fc is None
    for batch in batches(
        target, texts, taps, final=final, token_budget=token_budget, progress=progress
    ):
        for shape, lengths in batch_lengths(network, batch, list(counters)).items():
            counters[shape].add(batch, lengths)
    one_pass = network.draft.parallel is not None
    return {
        shape: replace(counter.result(texts), one_pass=one_pass)
        for shape, counter in counters.items()
    }


def batch_lengths(network: Network, batch: Batch, shapes: Sequence[Shape]) -> dict[Shape, Tensor]:
    """[B, S] of every shape: tokens accepted by a draft from each start."""
    deepest: dict[int, int] = {}
    for shape in shapes:
        deepest[shape.topk] = max(shape.steps, deepest.get(shape.topk, 0))
    results: dict[Shape, Tensor] = {}
    for topk, steps in deepest.items():
        paths = tree_paths(network, batch, steps, topk) if topk > 1 else None
        chain = chain_lengths(network, batch, steps) if topk == 1 else None
        for shape in (shape for shape in shapes if shape.topk == topk):
            if paths is not None:
                results[shape] = paths.lengths(shape)
            elif chain is not None:
                results[shape] = chain.clamp(max=shape.steps)
    return results


def walk(lengths: Sequence[int], scored: int) -> list[int]:
    """What each step of the serial engine accepted.

    Args:
        lengths: by start, as many as `Text.starts`.
        scored: new tokens to put out; the prefill gives the first.
    """
    steps, out = [], 1
    while out < scored:
        steps.append(lengths[out - 1])
        out += steps[-1] + 1
    return steps


def steps_of(text: Text, lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The steps of a text: the place in its completion that each drafts for, and what it accepted.

    Args:
        text: with its walks.
        lengths: by start, as many as `Text.starts`.
    """
    for first, scored in text.walks:
        place = first + 1
        for taken in walk(lengths[first:], scored):
            yield place, taken
            place += taken + 1


class Counter:
    """Walks the texts of each batch for one shape; keeps a few integers a text, or each step."""

    def __init__(self, shape: Shape, *, steps: bool = False) -> None:
        """Begin at zero.

        Args:
            shape: what is drafted a step.
            steps: keep what each step accepted, and where.
        """
        self.shape = shape
        self._steps: dict[int, tuple[tuple[int, int], ...]] | None = {} if steps else None
        self._prompts: dict[int, tuple[int, int]] = {}
        self._positions: dict[int, tuple[int, ...]] = {}

    def add(self, batch: Batch, lengths: Tensor) -> None:
        """Count a batch, whose `lengths` are of `batch_lengths`: [B, S].

        Raises:
            ValueError: a text is too short for the shape.
        """
        for index, text, row in zip(batch.indices, batch.texts, lengths.tolist(), strict=True):
            if len(text.completion) < text.scored + self.shape.steps - 1:
                raise ValueError(
                    f"{self.shape.steps} steps need as many tokens after the scored ones"
                )
            placed = tuple(steps_of(text, row))
            if self._steps is not None:
                self._steps[index] = placed
            steps = [taken for _, taken in placed]
            self._prompts[index] = len(steps), sum(steps)
            self._positions[index] = tuple(
                sum(taken > position for taken in steps) for position in range(self.shape.steps)
            )

    def result(self, texts: Sequence[Text]) -> Acceptance:
        """The counters over these texts, once all batches were added; one without a start counts nothing."""
        tokens = sum(scored for text in texts for _, scored in text.walks)
        nothing = (0,) * self.shape.steps
        prompts = tuple(self._prompts.get(index, (0, 0)) for index in range(len(texts)))
        positions = tuple(self._positions.get(index, nothing) for index in range(len(texts)))
        total = tuple(sum(row[j] for row in positions) for j in range(self.shape.steps))
        kept = self._steps
        steps = () if kept is None else tuple(kept.get(index, ()) for index in range(len(texts)))
        return Acceptance(self.shape, tokens, prompts, total, positions, steps=steps)


def best_by_cost(results: Sequence[Acceptance], cost_ratio: float) -> Acceptance:
    """The shape with the largest expected speed-up; of equals the one with fewest tokens."""
    return max(results, key=lambda one: (one.speedup(cost_ratio), -one.shape.tokens))


@dataclass(frozen=True)
class Sampled:
    """Acceptance when the target samples at a temperature, in expectation over all starts.

    Attributes:
        temperature: of the target (and of a draft that samples).
        starts: start positions, over all texts.
        greedy: by depth j, the probability that more than j tokens are accepted when the draft proposes its
            likeliest token: the target's probability of that token, where all before it were accepted.
        probabilistic: the same for a draft that samples its proposals at the same temperature: the sum of
            min(p, q), where all before it were accepted.
        prompts: (starts, expected accepted tokens) of each text, for the greedy draft.
    """

    temperature: float
    starts: int
    greedy: tuple[float, ...]
    probabilistic: tuple[float, ...]
    prompts: tuple[tuple[float, float], ...]

    @property
    def accept_length(self) -> float:
        """Expected tokens a step with the engines' default, greedy drafting."""
        return 1 + sum(self.greedy)

    @property
    def probabilistic_accept_length(self) -> float:
        """Expected tokens a step with probabilistic drafting."""
        return 1 + sum(self.probabilistic)

    def summary(self, seed: int = 0) -> dict[str, Any]:
        """The report's JSON object."""
        return {
            "temperature": self.temperature,
            "starts": self.starts,
            "accept_length": self.accept_length,
            "interval": list(accept_length_interval(self.prompts, seed)),
            "per_position": list(self.greedy),
            "probabilistic_accept_length": self.probabilistic_accept_length,
            "probabilistic_per_position": list(self.probabilistic),
        }


def measure_sampled(
    network: Network,
    target: Source,
    sampled: Iterable[Batch],
    depth: int,
    temperature: float,
) -> Sampled:
    """Expected acceptance of chains along texts that the target sampled at this temperature.

    A text stands for the tokens that were accepted, so each start is weighted, at depth j, by how likely
    the text's j tokens would have been accepted divided by how likely the target was to sample them:
    for the greedy draft 1 or 0 (it proposed them or not), for the probabilistic one the product of
    min(1, q/p). That makes both figures unbiased.

    Args:
        network: the draft.
        target: the target.
        sampled: texts sampled by the target at `temperature`, each with ``depth - 1`` tokens after the scored
            ones; features, the final output's too, reach `depth` positions beyond the last start.
        depth: proposed tokens a step.
        temperature: above 0.
    """
    sums = torch.zeros(2, depth, dtype=torch.float64)
    prompts: dict[int, tuple[float, float]] = {}
    for batch in sampled:
        expected = _expected(network, target, batch, depth, temperature).cpu()
        sums += expected.sum(dim=(0, 1))
        gained, counts = expected[:, :, 0].sum(dim=(1, 2)).tolist(), batch.valid.sum(dim=1).tolist()
        for index, count, gain in zip(batch.indices, counts, gained, strict=True):
            prompts[index] = float(count), gain
    rows = tuple(prompts[index] for index in sorted(prompts))
    starts = int(sum(count for count, _ in rows))
    greedy, probabilistic = (sums / max(starts, 1)).tolist()
    return Sampled(temperature, starts, tuple(greedy), tuple(probabilistic), rows)


@torch.no_grad()
def _expected(
    network: Network, target: Source, batch: Batch, depth: int, temperature: float
) -> Tensor:
    """[B, S, 2, depth] float64: probability that more than j are accepted, greedy and probabilistic."""
    rows = torch.arange(len(batch.starts), device=batch.starts.device)[:, None]
    weights = batch.valid.double()[..., None]
    reached = []
    for step, out in enumerate(draft_steps(network, batch, depth)):
        judged = batch.features.final[rows, batch.starts + 1 + step]
        rate, factor = _judge(
            network, target, out.normed, judged, batch.text(2 + step), temperature
        )
        reached.append(weights * rate)
        weights = weights * factor
    return torch.stack(reached, dim=-1)


def _judge(
    network: Network,
    target: Source,
    normed: Tensor,
    final: Tensor,
    token: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """One depth of every start, a chunk of logits at a time.

    Returns:
        [B, S, 2] float64 each, for the greedy and for the probabilistic draft: the acceptance rate
        here, and the factor of the weight if the text goes on with `token`.
    """
    rates, factors = [], []
    chunks = (torch.split(x.flatten(0, 1), CHUNK) for x in (normed, final, token))
    for drafted, judged, text in zip(*chunks, strict=True):
        p = (target.logits(judged) / temperature).softmax(dim=-1).to(network.weights.device)
        q = _over_target(network, (network.logits(drafted).float() / temperature).softmax(-1), p)
        best, text = q.argmax(dim=-1, keepdim=True), text[:, None]
        shared = torch.minimum(p, q).sum(dim=-1, keepdim=True)
        ratio = (q.gather(1, text) / p.gather(1, text)).clamp(max=1)
        rates.append(torch.cat([p.gather(1, best), shared], dim=1))
        factors.append(torch.cat([(best == text).float(), ratio], dim=1))
    rate, factor = (torch.cat(x).double().view(*token.shape, 2) for x in (rates, factors))
    return rate, factor


def _over_target(network: Network, q: Tensor, p: Tensor) -> Tensor:
    """The draft's probabilities [N, D] spread over the target's vocabulary, [N, V] like `p`."""
    ids = network.weights.target_ids
    return q if ids is None else torch.zeros_like(p).index_copy_(1, ids, q)
