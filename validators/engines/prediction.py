"""What an engine should count on the texts that it wrote itself, and how far rounding can move that.

Two implementations of one network differ in the last bits of their logits. In float32 that decides
nothing; in half precision it now and then turns one argmax into another. So the walk is repeated with
noise of that size on the draft's logits: the spread of the counters is what rounding can do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import torch
from torch import Tensor

from eagle3_interop.validators.accept.acceptance import Acceptance, Counter, batch_lengths
from eagle3_interop.validators.accept.drafting import batches
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.engines.answers import Served
from eagle3_interop.validators.network.reference import Network, Trace
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.texts import Text

ROUNDING = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
"""Size of the noise, by dtype, relative to the largest logit of a position."""

DRAWS = 8

SPREAD = 4.0
"""Standard deviations of the draws that the interval reaches to either side."""

Allowed = dict[str, Any]


class Rounded(Network):
    """A network whose logits carry the noise of rounding."""

    def __init__(self, network: Network, size: float, seed: int) -> None:
        """Take the same weights.

        Args:
            network: without noise.
            size: of the noise, relative to the largest logit of a position.
            seed: of the noise.
        """
        super().__init__(network.draft, network.weights)
        self._size = size
        self._generator = torch.Generator(device=network.weights.device).manual_seed(seed)

    def logits(self, normed: Tensor, trace: Trace | None = None) -> Tensor:
        """Those of the network, rounded otherwise."""
        exact = super().logits(normed, trace).float()
        noise = torch.randn(exact.shape, generator=self._generator, device=exact.device)
        return exact + noise * self._size * exact.abs().amax(dim=-1, keepdim=True)


@dataclass(frozen=True)
class Prediction:
    """What to expect.

    Attributes:
        exact: the counters of the reference.
        draws: the same with rounding noise.
        open_starts: start positions whose draft some noise changed.
        starts: all of them.
    """

    exact: Acceptance
    draws: tuple[Acceptance, ...]
    open_starts: int
    starts: int

    @property
    def allowed(self) -> Allowed:
        """By figure the smallest and largest value that rounding explains; one value where it can do nothing."""
        rows = [figures(one) for one in (self.exact, *self.draws)]
        moved = any(row != rows[0] for row in rows)
        found: Allowed = {name: _range([row[name] for row in rows], moved) for name in SINGLE}
        columns = zip(*(row["per_position"] for row in rows), strict=True)
        found["per_position"] = [_range(column, moved) for column in columns]
        return found

    @property
    def spoken(self) -> dict[str, Any]:
        """The same for people: a value, or from which to which."""
        allowed = self.allowed
        found = {name: _spoken(allowed[name]) for name in SINGLE}
        return {**found, "per_position": [_spoken(one) for one in allowed["per_position"]]}

    def explains(self, served: Served) -> bool:
        """Whether an engine counted what is expected."""
        got, allowed = figures(served), self.allowed
        if len(got["per_position"]) != len(allowed["per_position"]):
            return False
        pairs = [(got[name], allowed[name]) for name in SINGLE]
        pairs += zip(got["per_position"], allowed["per_position"], strict=True)
        return all(low <= value <= high for value, (low, high) in pairs)


SINGLE = ("drafts", "accepted")


def figures(counted: Acceptance | Served) -> dict[str, Any]:
    """The counters that are compared."""
    return {
        "drafts": counted.drafts,
        "accepted": counted.accepted,
        "per_position": list(counted.per_position),
    }


def _spoken(ends: tuple[int, int]) -> int | str:
    low, high = ends
    return low if low == high else f"{low} to {high}"


def _range(values: Sequence[int], moved: bool) -> tuple[int, int]:
    """Values that are no surprise after these; where anything moved, chance may have spared one figure."""
    if not moved:
        return values[0], values[0]
    drawn = torch.tensor(values, dtype=torch.float64)
    reach = SPREAD * max(float(drawn.std()), 0.5)
    middle = float(drawn.mean())
    return min(*values, floor(middle - reach)), max(*values, ceil(middle + reach))


def predict(
    network: Network, target: Source, texts: Sequence[Text], shape: Shape, dtypes: Sequence[str]
) -> Prediction:
    """The counters that an engine should have on these texts.

    Args:
        network: the draft.
        target: of it.
        texts: the engine's own.
        shape: what it drafts a step.
        dtypes: of the engine and of the reference; the coarser one counts.
    """
    size = max(ROUNDING.get(dtype, ROUNDING["bfloat16"]) for dtype in dtypes)
    networks = [network, *(Rounded(network, size, seed) for seed in range(DRAWS))]
    opened = starts = 0

    def look(lengths: Sequence[Tensor], valid: Tensor) -> None:
        nonlocal opened, starts
        differs = (torch.stack(list(lengths[1:])) != lengths[0]).any(dim=0)
        opened += int(differs[valid].sum())
        starts += int(valid.sum())

    exact, *draws = count(networks, target, texts, shape, look)
    return Prediction(exact, tuple(draws), opened, starts)


def count(
    networks: Sequence[Network],
    target: Source,
    texts: Sequence[Text],
    shape: Shape,
    look: Callable[[Sequence[Tensor], Tensor], None] | None = None,
) -> list[Acceptance]:
    """The counters of several networks from one pass of the target.

    Args:
        networks: any number.
        target: of them all.
        texts: to walk.
        shape: what is drafted a step.
        look: shown the accepted lengths [B, S] of all, and which are real.
    """
    counters = [Counter(shape) for _ in networks]
    taps = sorted({tap for one in networks for tap in one.draft.fed_taps(target.depth)})
    final = any(one.draft.fc is None for one in networks)
    for batch in batches(target, texts, taps, final=final):
        lengths = [batch_lengths(one, batch, [shape])[shape] for one in networks]
        for counter, found in zip(counters, lengths, strict=True):
            counter.add(batch, found)
        if look is not None:
            look(lengths, batch.valid)
    return [counter.result(texts) for counter in counters]


def summary(counted: Acceptance | Served) -> Mapping[str, Any]:
    """For the report."""
    return {"accept_length": counted.accept_length, **figures(counted)}
