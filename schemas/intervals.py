"""Intervals over prompts, by drawing them again: one definition for validating, diagnosing and the gate of a push."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

ROUNDS = 2000
"""Draws of a bootstrap."""

AT_ONCE = 1 << 21
"""Entries that are drawn at a time, which bounds the memory and changes no draw."""


def ratio_interval(
    sums: ArrayLike, counts: ArrayLike, seed: int = 0, level: float = 0.95, rounds: int = ROUNDS
) -> tuple[float, float]:
    """Bootstrap interval of ``sum(sums) / sum(counts)`` over entries drawn again with replacement.

    Args:
        sums: [n], of each entry.
        counts: [n], of each entry.
        seed: of the draws; the same seed draws the same anywhere (numpy's frozen ``RandomState``).
        level: probability that the interval shall hold.
        rounds: draws.
    """
    total, parts = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    generator = np.random.RandomState(seed % 2**32)
    count, ratios = len(total), np.empty(rounds)
    at_once = max(1, AT_ONCE // count)
    for start in range(0, rounds, at_once):
        drawn = generator.randint(count, size=(min(at_once, rounds - start), count))
        gained, steps = total[drawn].sum(axis=1), parts[drawn].sum(axis=1)
        ratios[start : start + at_once] = gained / steps.clip(min=1e-12)
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_interval(sums: ArrayLike, counts: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Student's interval of ``sum(sums) / sum(counts)``: as wide as few entries make it.

    A bootstrap draws only what was seen: of three entries that lean one way, every draw does too. Of one entry
    alone nothing is known of the spread, and the interval has no ends.

    Args:
        sums: [n], of each entry.
        counts: [n], of each entry.
        level: probability that the interval shall hold.
    """
    total, parts = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    count = len(total)
    ratio = float(total.sum() / parts.sum())
    if count < 2:
        return -np.inf, np.inf
    spread = np.square(total - ratio * parts).sum() * count / (count - 1)
    reach = student(level, count - 1) * float(np.sqrt(spread)) / float(parts.sum())
    return ratio - reach, ratio + reach


def paired_difference(
    first: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]], level: float = 0.95
) -> tuple[float, float, float]:
    """The accept length of `other` less that of `first`, and Student's interval of it over prompts.

    What a prompt is hard for it is hard for both, and only what is left of that counts as spread.

    Args:
        first: (steps, accepted) of each prompt.
        other: the same, of the same prompts.
        level: probability that the interval shall hold.

    Returns:
        The difference and the interval's ends, which are infinite of fewer than two prompts.
    """
    rates, leans = [], []
    for steps, accepted in (np.asarray(x, np.float64).T for x in (first, other)):
        rates.append(accepted.sum() / steps.sum())
        leans.append((accepted - rates[-1] * steps) / steps.mean())
    difference, count = float(rates[1] - rates[0]), len(first)
    if count < 2:
        return difference, -np.inf, np.inf
    spread = np.square(leans[1] - leans[0]).sum() / (count * (count - 1))
    reach = student(level, count - 1) * float(np.sqrt(spread))
    return difference, difference - reach, difference + reach


def swapped_p_value(
    first: Sequence[tuple[float, float]],
    other: Sequence[tuple[float, float]],
    seed: int = 0,
    rounds: int = 9999,
) -> float:
    """How often a difference of accept lengths is as large, if each prompt's two results change places by chance.

    Of few prompts every way of changing places is counted; of more, `rounds` are drawn.

    Args:
        first: (steps, accepted) of each prompt.
        other: the same, of the same prompts.
        seed: of the draws.
        rounds: draws.
    """
    pairs = np.asarray([first, other], np.float64)  # [2, n, 2]
    total, halves = pairs.sum(axis=0), (pairs[1] - pairs[0]) / 2
    count = len(halves)
    every = count < rounds.bit_length()
    rounds = 2**count if every else rounds
    generator = np.random.RandomState(seed % 2**32)
    seen = float(_gap(total, halves, np.ones((1, count)))[0])
    larger, at_once = 0, max(1, AT_ONCE // max(count, 1))
    for start in range(0, rounds, at_once):
        stop = min(rounds, start + at_once)
        if every:
            bits = np.arange(start, stop)[:, None] >> np.arange(count) & 1
        else:
            bits = generator.randint(2, size=(stop - start, count))
        larger += int((_gap(total, halves, 2 * bits - 1) >= seen - 1e-12).sum())
    return larger / rounds if every else (larger + 1) / (rounds + 1)


def _gap(total: np.ndarray, halves: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """[rounds], the difference of two accept lengths without its sign, where some prompts changed places."""
    moved = signs @ halves
    high, low = total.sum(axis=0) / 2 + moved, total.sum(axis=0) / 2 - moved
    gap: np.ndarray = np.abs(high[:, 1] / high[:, 0] - low[:, 1] / low[:, 0])
    return gap


@cache
def student(level: float, freedom: int) -> float:
    """How many standard errors a two-sided interval of this level reaches, by degrees of freedom."""
    # With t = tan(a) * sqrt(n), Student's density is proportional to cos(a) ** (n - 1).
    angles = np.linspace(0.0, np.pi / 2, 200_001)
    mass = np.cos(angles) ** (freedom - 1)
    inside = np.concatenate([[0.0], np.cumsum((mass[1:] + mass[:-1]) / 2)])
    angle = np.interp(level, inside / inside[-1], angles)
    return float(np.tan(angle) * np.sqrt(freedom))


def accept_length_interval(
    prompts: Sequence[tuple[float, float]],
    seed: int = 0,
    level: float = 0.95,
    rounds: int = ROUNDS,
) -> tuple[float, float]:
    """Interval of the accept length, 1 + accepted / steps, over prompts.

    Args:
        prompts: (steps, accepted) of each.
        seed: of the draws.
        level: probability that the interval shall hold.
        rounds: draws.
    """
    if not any(steps for steps, _ in prompts):
        return 1.0, 1.0
    steps, accepted = zip(*prompts, strict=True)
    low, high = ratio_interval(accepted, steps, seed, level, rounds)
    return 1 + low, 1 + high
