"""Reports put side by side: every draft and setting a row, and what keeps two from being compared."""

from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eagle3_interop.convert.read.strict_json import MAX_JSON_BYTES, parse_object
from eagle3_interop.schemas.comparison import Comparison, ComparisonRow, Difference, Obstacle
from eagle3_interop.schemas.findings import Refused, Unavailable, Usage, finding
from eagle3_interop.schemas.intervals import paired_difference, swapped_p_value
from eagle3_interop.schemas.report import AcceptanceReport, Report
from eagle3_interop.validators.report.terminal import drafted


def read_report(path: Path) -> Report:
    """A report of a validation.

    Raises:
        Usage: there is no such file.
        Refused: it is no report.
        Unavailable: it cannot be read.
    """
    if not path.exists() or path.is_dir():
        raise Usage(f"{path}: {'a folder' if path.is_dir() else 'there is no such file'}.")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error
    told = parse_object(content, "not-a-report", path)
    try:
        return Report.model_validate(told)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise Refused([finding("not-a-report", path, f"{key}: {first['msg']}.")]) from error


def compare(reports: Sequence[tuple[str, Report]]) -> Comparison:
    """Reports side by side, each against the first.

    Args:
        reports: names and reports, at least one.
    """
    first = reports[0][1]
    rows: list[ComparisonRow] = []
    told: dict[int, tuple[Obstacle, ...]] = {}
    for number, (file, report) in enumerate(reports):
        found = tuple(obstacles(first, report)) if number else ()
        if found:
            told[number] = found
        surely = any(one.certain for one in found)
        difference = None if number == 0 or surely else against(first, report)
        rows += _rows(number, file, report, difference)
    return Comparison(rows=tuple(rows), obstacles=told)


def _rows(
    number: int, file: str, report: Report, difference: Difference | None
) -> Iterator[ComparisonRow]:
    environment = report.environment
    same = {
        "report": number,
        "file": file,
        "draft": _text(environment, "draft", "path"),
        "target": _text(environment, "target", "path"),
        "dtype": str(environment.get("dtype") or ""),
        "verdict": _verdict(report),
    }
    if (ours := report.acceptance) is None:
        blank = dict.fromkeys(("num_draft_tokens", "tree", "accept_length", "interval"))
        yield ComparisonRow(**same, **blank, setting="")
        return
    yield ComparisonRow(
        **same,
        **_setting(ours),
        speed=dict(report.speed) if report.speed else None,
        difference=difference,
        categories=report.breakdown.categories if report.breakdown else (),
    )
    for row in report.sweep or ():
        if (row.tree, row.num_draft_tokens) != (ours.tree, ours.num_draft_tokens):
            expected = row.tokens_per_second
            yield ComparisonRow(**same, **_setting(row), expected=expected, swept=True)


def _setting(one: AcceptanceReport) -> dict[str, Any]:
    return {
        "setting": drafted(one),
        "num_draft_tokens": one.num_draft_tokens,
        "tree": one.tree,
        "accept_length": one.accept_length,
        "interval": one.interval,
    }


def _verdict(report: Report) -> str:
    if report.acceptance is None:
        return "refused"
    return report.verdict if report.gates else "measured"


def _text(environment: dict[str, Any], part: str, key: str) -> str:
    held = environment.get(part)
    return str(held.get(key) or "") if isinstance(held, dict) else ""


def against(first: Report, other: Report) -> Difference | None:
    """The accept lengths of two reports on the same texts, compared prompt by prompt."""
    if first.prompts is None or other.prompts is None or len(first.prompts) != len(other.prompts):
        return None
    both = zip(first.prompts, other.prompts, strict=True)
    # What one of them did not count is no pair: a stretch of a recording may be too short for its draft.
    pairs = [(a, b) for a, b in both if a.steps and b.steps]
    if not pairs:
        return None
    ours, theirs = (
        [(row.steps, row.accepted) for row in side] for side in zip(*pairs, strict=True)
    )
    difference, low, high = paired_difference(ours, theirs)
    return Difference(
        difference=difference,
        interval=(low, high) if isfinite(low) else None,
        p_value=swapped_p_value(ours, theirs, int(first.environment.get("seed") or 0)),
        prompts=len(pairs),
    )


def obstacles(first: Report, other: Report) -> Iterator[Obstacle]:
    """Why two reports cannot be compared, or cannot surely."""
    sides = (first.environment, other.environment)
    if first.acceptance is None or other.acceptance is None:
        return
    yield from _texts(first, other)
    targets: list[dict[str, Any] | None] = [
        (side.get("target") or {}).get("digest") for side in sides
    ]
    if targets[0] is None or targets[1] is None:
        message = "it cannot be told whether the target is the same: a report has no digest of it"
        yield Obstacle(what="target", certain=False, message=message)
    elif name := _unlike(targets[0], targets[1]):
        yield Obstacle(what="target", certain=True, message=f"another target: {name} differs")
    computed = [_dtypes(one) for one in (first, other)]
    if computed[0] != computed[1]:
        message = f"another dtype: {computed[1]}, and {computed[0]} in the first"
        yield Obstacle(what="dtype", certain=True, message=message)
    if first.speed and other.speed:
        makers = [_measured_by(one) for one in (first, other)]
        if makers[0] != makers[1]:
            message = f"its speed was measured by {makers[1]}, that of the first by {makers[0]}"
            yield Obstacle(what="speed", certain=False, message=message)


def _measured_by(report: Report) -> str:
    """The engine and the machine of its speed."""
    engine = report.engine or {}
    name = f"{engine.get('engine')} {engine.get('version')} ({engine.get('how')})"
    return f"{name} on {report.environment.get('platform')}, {report.environment.get('device')}"


def _texts(first: Report, other: Report) -> Iterator[Obstacle]:
    sides = (first.environment, other.environment)
    digests = [(side.get("texts") or {}).get("sha256") for side in sides]
    if all(digests):
        if digests[0] != digests[1]:
            yield Obstacle(what="texts", certain=True, message=f"other texts{_why(*sides)}")
        return
    live = not any(side.get("streams") for side in sides)
    if why := _why(*sides) if live else "":
        yield Obstacle(what="texts", certain=True, message=f"other texts{why}")
        return
    message = "it cannot be told whether the texts are the same: a report has no digest of them"
    yield Obstacle(what="texts", certain=False, message=message)


def _why(first: dict[str, Any], other: dict[str, Any]) -> str:
    """What the texts came from differs, in words; nothing where that is not what makes them differ."""
    prompts = [(side.get("prompts") or {}).get("sha256") for side in (first, other)]
    names = ["the prompts"] if prompts[0] != prompts[1] else []
    keys = {"max_new_tokens": "--max-new-tokens", "end_of_sequence": "--stop-at-eos"}
    names += [word for key, word in keys.items() if first.get(key) != other.get(key)]
    return f" (not the same: {', '.join(names)})" if names else ""


def _unlike(first: dict[str, Any], other: dict[str, Any]) -> str:
    """The first part of two digests of a target that differs; of weights, those that both have."""
    for name in ("config", "headers"):
        if first.get(name) != other.get(name):
            return {"config": "config.json", "headers": "the headers of its tensors"}[name]
    weights = [side.get("weights") or {} for side in (first, other)]
    shared = weights[0].keys() & weights[1].keys()
    return next((name for name in sorted(shared) if weights[0][name] != weights[1][name]), "")


def _dtypes(report: Report) -> str:
    """In what both networks ran, and in what hidden states were recorded."""
    computed = str(report.environment.get("dtype"))
    recorded = report.streams.dtype if report.streams else computed
    return computed if recorded == computed else f"{computed} on recorded {recorded}"
