"""The settings that ``--sweep`` measures, and the one that a cost ratio makes the best."""

from collections.abc import Sequence

from eagle3_interop.schemas.report import SweepRow
from eagle3_interop.validators.accept.acceptance import Acceptance, best_by_cost
from eagle3_interop.validators.accept.shape import Shape

CHAINS = range(1, 9)
STEPS = (2, 3, 5, 7)
TOPK = (2, 4, 8)
TOKENS = (4, 8, 16, 32, 64)


def grid(shape: Shape) -> list[Shape]:
    """Chains and trees to measure beside `shape`: all of them share a few runs of the draft."""
    longest = max(CHAINS[-1], shape.steps if shape.is_chain else 0)
    chains = [Shape.chain(steps) for steps in range(CHAINS[0], longest + 1)]
    trees = [Shape(steps, topk, n) for topk in TOPK for steps in STEPS for n in TOKENS]
    return [*chains, *(tree for tree in trees if tree.steps < tree.tokens <= tree.nodes + 1)]


def rows(
    results: Sequence[Acceptance], cost_ratio: float | None, seed: int = 0
) -> tuple[SweepRow, ...]:
    """The report's rows: chains by length, then trees by top-k, steps and tokens."""
    ordered = sorted(results, key=lambda one: (one.shape.topk, one.shape.steps, one.shape.tokens))
    best = best_by_cost(ordered, cost_ratio) if cost_ratio is not None else None
    return tuple(
        SweepRow(
            **one.summary(seed),
            speedup=None if cost_ratio is None else one.speedup(cost_ratio),
            best=best is not None and one.shape == best.shape,
        )
        for one in ordered
    )
