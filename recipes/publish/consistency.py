"""Whether a report agrees with itself: every verdict is computed again from the report's own numbers.

A report is a record, not a signature: who writes a false one that is consistent is not found out. What is
found out is a report that was edited, cut, or put together from two.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from eagle3_interop.schemas.codes import CODES
from eagle3_interop.schemas.counting import NEAR, counted_wrong, rows_wrong
from eagle3_interop.schemas.intervals import accept_length_interval
from eagle3_interop.schemas.report import LOGIT_ROUNDING, AcceptanceReport, Gate, Report

_COMPARED = ({"draft-vocabulary"}, {"logits-agree", "max-logit-diff"}, {"counters-equal"})
"""Gates that every comparison with a source has: one of each."""

COUNTED = ("steps", "accepted")
"""Of a row."""


def contradictions(report: Report) -> Iterator[str]:
    """Each place where the report contradicts itself, in a sentence."""
    yield from _verdict(report)
    yield from counted_wrong(report)
    yield from _prompts(report)
    yield from _breakdown(report)
    yield from _speed(report)
    for gate in report.gates:
        yield from _gate(gate, report)
    yield from _findings(report)


def _verdict(report: Report) -> Iterator[str]:
    names = [gate.name for gate in report.gates]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"the report holds the gate {name} twice"
    if report.verdict != ("pass" if all(gate.passed for gate in report.gates) else "fail"):
        yield f"the report's verdict is {report.verdict!r}, and its gates say otherwise"
    if report.engine is not None and "engine-counters" not in names:
        yield "the report holds an engine's counters, and the gate engine-counters is left out"
    for either in _COMPARED if report.against is not None else ():
        if not either & set(names):
            yield f"the report compares with a source, and the gate {min(either)} is left out"


def _speed(report: Report) -> Iterator[str]:
    for row in (report.speed or {"batches": []})["batches"]:
        with_, without, ratio = row["with"], row["without"], row["ratio"]
        if without is not None and not math.isclose(ratio or 0.0, with_ / without, rel_tol=NEAR):
            yield f"speed: at batch size {row['batch']} the ratio is not that of its figures"
    if report.speed is not None and report.engine is None:
        yield "the report holds a speed, and no engine"


def _prompts(report: Report) -> Iterator[str]:
    """The rows are all there, explain the tokens, and give the interval again."""
    rows, measured = report.prompts, report.acceptance
    if measured is None:
        return
    if rows is None:
        yield "the report has no row a prompt, as 0.1.0 wrote none: validate the folder again"
        return
    count = (report.environment.get("prompts") or {}).get("count")
    if count != len(rows):
        yield f"prompts: {len(rows)} rows for {count} prompts"
    # The prefill writes one token of each text, and a last step may go past the end.
    written = len(rows) + measured.drafts + measured.accepted
    beyond = len(rows) * max(measured.num_draft_tokens, 1)
    if not measured.tokens <= written <= measured.tokens + beyond:
        yield f"acceptance: {measured.tokens} tokens, and its steps wrote {written}"
    if any(rows_wrong(rows, measured)):
        return
    pairs = [(row.steps, row.accepted) for row in rows]
    low, high = accept_length_interval(pairs, report.environment.get("seed") or 0)
    both = zip((low, high), measured.interval, strict=True)
    if not all(math.isclose(one, other, rel_tol=1e-6) for one, other in both):
        yield f"acceptance: the rows of its prompts give the interval {low:.4f} to {high:.4f}"


def _breakdown(report: Report) -> Iterator[str]:
    """What is taken apart adds up to the rows of the prompts; reports of before did not have it."""
    rows, measured, parts = report.prompts, report.acceptance, report.breakdown
    if rows is None or measured is None or parts is None:
        return
    if sum(row.tokens or 0 for row in rows) != measured.tokens:
        yield f"prompts: the rows do not add up to {measured.tokens} tokens"
    lacks = (sum(row.inexpressible or 0 for row in rows), measured.tokens)
    if lacks != (parts.vocabulary.inexpressible, parts.vocabulary.tokens):
        yield "breakdown: vocabulary has other tokens than the rows of the prompts"
    whole = (measured.drafts, measured.accepted)
    if whole != tuple(sum(getattr(x, name) for x in parts.contexts) for name in COUNTED):
        yield f"breakdown: contexts do not add up to {whole[0]} steps and {whole[1]} accepted"
    for kind in parts.categories:
        ours = [row for row in rows if row.category == kind.category]
        steps, accepted = (sum(getattr(row, name) for row in ours) for name in COUNTED)
        if (kind.prompts, kind.steps, kind.accepted) != (len(ours), steps, accepted):
            yield f"breakdown: category {kind.category!r} has other counters than its prompts"


def _gate(gate: Gate, report: Report) -> Iterator[str]:
    judge = _GATES.get(gate.name)
    if judge is None:
        yield f"{gate.name} is no gate of eagle3-validate"
        return
    measured, decided = judge(gate, report)
    if measured is not _UNKNOWN and not _same(measured, gate.got):
        yield f"the gate {gate.name} says that it got {gate.got}, and the report holds {measured}"
    if gate.passed and not decided:
        yield f"the gate {gate.name} passed, but wanted {gate.wanted} and got {gate.got} say otherwise"


_UNKNOWN = object()

_Judged = tuple[Any, bool]
"""What the rest of the report says was got, and whether the gate's own figures pass."""


def _absent(gate: Gate, report: Report) -> _Judged:
    return _UNKNOWN, gate.wanted == 0 and gate.got == 0 and report.against is not None


def _logits(gate: Gate, report: Report) -> _Judged:
    held = None if report.against is None else report.against.logits.max_abs_diff
    return held, _is_number(gate.got) and _is_number(gate.wanted) and gate.got <= gate.wanted


def _rounding(gate: Gate, report: Report) -> _Judged:
    held, agree = _logits(gate, report)
    largest = None if report.against is None else report.against.logits.largest
    share = LOGIT_ROUNDING.get(str(report.environment.get("dtype")))
    if largest is None or share is None or not _is_number(gate.wanted):
        return held, False
    return held, agree and math.isclose(gate.wanted, share * largest, rel_tol=NEAR)


def _counted_alike(gate: Gate, report: Report) -> _Judged:
    theirs = None if report.against is None else report.against.acceptance
    agree = _same(gate.wanted, _figures(theirs)) and _same(gate.wanted, gate.got)
    return _figures(report.acceptance), agree


def _long_enough(gate: Gate, report: Report) -> _Judged:
    held = None if report.acceptance is None else report.acceptance.accept_length
    return held, _is_number(gate.got) and _is_number(gate.wanted) and gate.got >= gate.wanted


def _engine(gate: Gate, report: Report) -> _Judged:
    """Each figure is the one that was wanted, or lies between the two that it names ("12 to 14")."""
    if not isinstance(gate.wanted, dict) or not isinstance(gate.got, dict) or not report.engine:
        return _UNKNOWN, False
    pairs = [(gate.wanted.get(key), gate.got.get(key)) for key in ("drafts", "accepted")]
    wanted, got = (side.get("per_position") for side in (gate.wanted, gate.got))
    if not isinstance(wanted, list) or not isinstance(got, list) or len(wanted) != len(got):
        return _UNKNOWN, False
    pairs += zip(wanted, got, strict=True)
    fits = all(_between(value, ends) for ends, value in pairs)
    counted = report.engine.get("got")
    held = {key: counted.get(key) for key in gate.got} if isinstance(counted, dict) else None
    return held, fits and _is_number(gate.got.get("drafts")) and gate.got["drafts"] > 0


_GATES: dict[str, Callable[[Gate, Report], _Judged]] = {
    "draft-vocabulary": _absent,
    "logits-agree": _rounding,
    "max-logit-diff": _logits,
    "counters-equal": _counted_alike,
    "min-accept-length": _long_enough,
    "engine-counters": _engine,
}
"""Every gate of eagle3-validate."""


def _figures(measured: AcceptanceReport | None) -> Any:  # noqa: ANN401
    if measured is None:
        return None
    return {
        "drafts": measured.drafts,
        "accepted": measured.accepted,
        "per_position": list(measured.per_position),
    }


def _between(value: object, ends: object) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    low, _, high = str(ends).partition(" to ")
    try:
        return int(low) <= value <= int(high or low)
    except ValueError:
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def _findings(report: Report) -> Iterator[str]:
    """A finding has the severity of its code; one that is not known here cannot be judged."""
    for item in report.findings:
        entry = CODES.get(item.code)
        if entry is None:
            yield f"{item.code} is no finding of this version: validate the folder with it"
        elif entry.severity != item.severity:
            yield f"the finding {item.code} is called a {item.severity}, and is of severity {entry.severity}"
