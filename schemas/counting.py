"""Whether the counters of a report agree with one another, whoever reads it."""

import math
from collections.abc import Iterator, Sequence

from eagle3_interop.schemas.report import AcceptanceReport, PromptRow, Report

NEAR = 1e-9
"""Relative difference of two figures that were computed alike."""


def counted_wrong(report: Report) -> Iterator[str]:
    """Each place where counters of a report contradict one another, in a sentence."""
    for name, measured in _measured(report):
        yield from _counters(name, measured)
    if report.prompts is not None and report.acceptance is not None:
        for index, row in enumerate(report.prompts):
            yield from _row(f"prompts[{index}]", row)
        yield from rows_wrong(report.prompts, report.acceptance)


def rows_wrong(rows: Sequence[PromptRow], measured: AcceptanceReport) -> Iterator[str]:
    """What the rows of prompts do not add up to, in a sentence."""
    if any(len(row.per_position) != len(measured.per_position) for row in rows):
        yield "prompts: a row has another number of positions than acceptance"
        return
    totals = [sum(column) for column in zip(*(row.per_position for row in rows), strict=True)]
    sums = (sum(row.steps for row in rows), sum(row.accepted for row in rows), totals)
    if sums != (measured.drafts, measured.accepted, list(measured.per_position)):
        yield f"prompts: the rows add up to {sums[0]} steps and {sums[1]} accepted, by position {totals}"


def _measured(report: Report) -> Iterator[tuple[str, AcceptanceReport]]:
    if report.acceptance is not None:
        yield "acceptance", report.acceptance
    if report.against is not None:
        yield "against.acceptance", report.against.acceptance
    for index, row in enumerate(report.sweep or ()):
        yield f"sweep[{index}]", row


def _counters(name: str, measured: AcceptanceReport) -> Iterator[str]:
    low, high = measured.interval
    if len(measured.per_position) != measured.num_draft_tokens:
        yield (
            f"{name}: {len(measured.per_position)} positions for {measured.num_draft_tokens} "
            "draft tokens"
        )
    if measured.tree is not None and measured.tree[0] != measured.num_draft_tokens:
        yield f"{name}: a tree of {measured.tree[0]} steps for {measured.num_draft_tokens}"
    if measured.tokens < 0:
        yield f"{name}: tokens is negative"
    yield from _steps(name, measured.drafts, measured.accepted, measured.per_position)
    length = 1 + measured.accepted / measured.drafts if measured.drafts else 1.0
    if not math.isclose(measured.accept_length, length, rel_tol=NEAR):
        yield (
            f"{name}: accept_length is {measured.accept_length:g}, and its counters give {length:g}"
        )
    if not low - NEAR <= measured.accept_length <= high + NEAR:
        yield f"{name}: the interval {low:g} to {high:g} does not hold the accept length"


def _row(name: str, row: PromptRow) -> Iterator[str]:
    yield from _steps(name, row.steps, row.accepted, row.per_position)
    length = 1 + row.accepted / row.steps if row.steps else 1.0
    if row.accept_length is not None and not math.isclose(row.accept_length, length):
        yield f"{name}: accept_length is {row.accept_length:g}, and its counters give {length:g}"


def _steps(name: str, steps: int, accepted: int, positions: Sequence[int]) -> Iterator[str]:
    if sum(positions) != accepted:
        yield f"{name}: per_position adds up to {sum(positions)}, accepted is {accepted}"
    falling = [steps, *positions, 0]
    if falling != sorted(falling, reverse=True):
        yield f"{name}: per_position must fall from at most {steps} steps"
