"""Intervals of a ratio by bootstrap: how far a figure would move with other prompts."""

import torch
from torch import Tensor


def ratio_interval(
    sums: Tensor, counts: Tensor, seed: int = 0, *, level: float = 0.95, rounds: int
) -> tuple[float, float]:
    """Interval of ``sum(sums) / sum(counts)`` over entries drawn again with replacement.

    Args:
        sums: one of each entry.
        counts: one of each entry.
        seed: of the draws.
        level: the interval's probability.
        rounds: draws.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(sums), (rounds, len(sums)), generator=generator)
    ratios = sums.double()[drawn].sum(dim=1) / counts.double()[drawn].sum(dim=1).clamp(min=1e-12)
    edges = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = ratios.quantile(edges).tolist()
    return low, high
