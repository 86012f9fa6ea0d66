"""The settings that ``--sweep`` measures, and the one that costs make the best: measured ones, else a guessed ratio."""

from collections.abc import Sequence

from eagle3_interop.schemas.report import Speed, SweepRow
from eagle3_interop.validators.accept.acceptance import Acceptance, best_by_cost
from eagle3_interop.validators.accept.costs import expected
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
    results: Sequence[Acceptance],
    cost_ratio: float | None,
    seed: int = 0,
    speed: Speed | None = None,
    *,
    trees: bool = True,
) -> tuple[SweepRow, ...]:
    """The report's rows: chains by length, then trees by top-k, steps and tokens.

    Args:
        results: one a setting.
        cost_ratio: the user's guess, where there is one.
        seed: of the intervals.
        speed: measured costs, which go before a guess.
        trees: the engine that was measured drafts trees as well.
    """
    ordered = sorted(results, key=lambda one: (one.shape.topk, one.shape.steps, one.shape.tokens))
    made = {one.shape: _made(one, speed) for one in ordered} if speed else {}
    fastest = {
        shape: rate
        for shape, rate in made.items()
        if rate is not None and (trees or shape.is_chain)
    }
    best = None
    if fastest:
        best = max(fastest, key=lambda shape: (fastest[shape], -shape.tokens))
    elif cost_ratio is not None:
        best = best_by_cost(ordered, cost_ratio).shape
    return tuple(
        SweepRow(
            **one.summary(seed),
            speedup=None if cost_ratio is None else one.speedup(cost_ratio),
            tokens_per_second=made.get(one.shape),
            best=one.shape == best,
        )
        for one in ordered
    )


def _made(one: Acceptance, speed: Speed) -> float | None:
    return expected(speed, one.shape, one.accept_length, one_pass=one.one_pass)
