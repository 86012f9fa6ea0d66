"""Reports put side by side: every draft and setting a row, and what keeps two from being compared."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from eagle3_interop.convert.read.strict_json import MAX_JSON_BYTES, parse_object
from eagle3_interop.schemas.comparison import Comparison, ComparisonRow, Difference, Obstacle
from eagle3_interop.schemas.counting import counted_wrong
from eagle3_interop.schemas.findings import Finding, Refused, Unavailable, Usage, errors, finding
from eagle3_interop.schemas.intervals import paired_difference, swapped_p_value
from eagle3_interop.schemas.report import AcceptanceReport, Report
from eagle3_interop.validators.report.terminal import drafted


class _Named(BaseModel):
    path: str = ""


class _Digest(BaseModel):
    config: str | None = None
    headers: str | None = None
    weights: dict[str, str] = {}


class _Target(_Named):
    digest: _Digest | None = None


class _Digested(BaseModel):
    sha256: str | None = None


class _Environment(BaseModel):
    """What a comparison uses of a report's environment."""

    draft: _Named = _Named()
    target: _Target = _Target()
    dtype: str = ""
    prompts: _Digested = _Digested()
    texts: _Digested = _Digested()
    streams: str | None = None
    max_new_tokens: int | None = None
    end_of_sequence: str | None = None
    seed: int = 0
    platform: str | None = None
    device: str | None = None


@dataclass(frozen=True)
class _Side:
    """A report with its environment.

    Attributes:
        file: it came from.
        report: itself.
        environment: of it.
    """

    file: str
    report: Report
    environment: _Environment

    @classmethod
    def of(cls, file: str, report: Report) -> "_Side":
        if wrong := next(counted_wrong(report), None):
            message = f"it contradicts itself: {wrong}."
            raise Refused([finding("not-a-report", file, message)])
        try:
            return cls(file, report, _Environment.model_validate(report.environment))
        except ValidationError as error:
            raise Refused([_no_report(file, error, "environment.")]) from error


def _no_report(file: object, error: ValidationError, part: str = "") -> Finding:
    first = error.errors(include_url=False)[0]
    key = part + (".".join(map(str, first["loc"])) or "the file")
    return finding("not-a-report", file, f"{key}: {first['msg']}.")


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
        raise Refused([_no_report(path, error)]) from error


def compare(reports: Sequence[tuple[str, Report]]) -> Comparison:
    """Reports side by side, each against the first.

    Args:
        reports: names and reports, at least one.

    Raises:
        Refused: the environment of one is none that a validation writes.
    """
    sides = [_Side.of(file, report) for file, report in reports]
    rows: list[ComparisonRow] = []
    told: dict[int, tuple[Obstacle, ...]] = {}
    for number, side in enumerate(sides):
        found = tuple(_obstacles(sides[0], side)) if number else ()
        if found:
            told[number] = found
        surely = any(one.certain for one in found)
        difference = None if number == 0 or surely else _against(sides[0], side)
        rows += _rows(number, side, difference)
    return Comparison(rows=tuple(rows), obstacles=told)


def _rows(number: int, side: _Side, difference: Difference | None) -> Iterator[ComparisonRow]:
    report, environment = side.report, side.environment
    same = {
        "report": number,
        "file": side.file,
        "draft": environment.draft.path,
        "target": environment.target.path,
        "dtype": environment.dtype,
        "verdict": _verdict(report),
    }
    if (ours := report.acceptance) is None:
        blank = dict.fromkeys(("num_draft_tokens", "tree", "accept_length", "interval"))
        codes = tuple(dict.fromkeys(item.code for item in errors(report.findings)))
        yield ComparisonRow(**same, **blank, setting="", refused=codes)
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


def _against(first: _Side, other: _Side) -> Difference | None:
    """The accept lengths of two reports on the same texts, compared prompt by prompt."""
    ours, theirs = first.report.prompts, other.report.prompts
    if ours is None or theirs is None or len(ours) != len(theirs):
        return None
    # What one of them did not count is no pair: a stretch of a recording may be too short for its draft.
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.steps > 0 and b.steps > 0]
    if not pairs:
        return None
    before, after = ([(x.steps, x.accepted) for x in side] for side in zip(*pairs, strict=True))
    difference, low, high = paired_difference(before, after)
    return Difference(
        difference=difference,
        interval=(low, high) if isfinite(low) else None,
        p_value=swapped_p_value(before, after, first.environment.seed),
        prompts=len(pairs),
    )


def _obstacles(first: _Side, other: _Side) -> Iterator[Obstacle]:
    """Why two reports cannot be compared, or cannot surely."""
    if first.report.acceptance is None or other.report.acceptance is None:
        return
    yield from _texts(first.environment, other.environment)
    targets = [side.environment.target.digest for side in (first, other)]
    if targets[0] is None or targets[1] is None:
        message = "it cannot be told whether the target is the same: a report has no digest of it"
        yield Obstacle(what="target", certain=False, message=message)
    elif name := _unlike(targets[0], targets[1]):
        yield Obstacle(what="target", certain=True, message=f"another target: {name} differs")
    computed = [_dtypes(side) for side in (first, other)]
    if not (first.environment.dtype and other.environment.dtype):
        message = "it cannot be told whether the dtype is the same: a report does not name it"
        yield Obstacle(what="dtype", certain=False, message=message)
    elif computed[0] != computed[1]:
        message = f"another dtype: {computed[1]}, and {computed[0]} in the first"
        yield Obstacle(what="dtype", certain=True, message=message)
    if first.report.speed and other.report.speed:
        makers = [_measured_by(side) for side in (first, other)]
        if makers[0] != makers[1]:
            message = f"its speed was measured by {makers[1]}, that of the first by {makers[0]}"
            yield Obstacle(what="speed", certain=False, message=message)


def _measured_by(side: _Side) -> str:
    """The engine and the machine of its speed."""
    engine = side.report.engine or {}
    name = f"{engine.get('engine')} {engine.get('version')} ({engine.get('how')})"
    return f"{name} on {side.environment.platform}, {side.environment.device}"


def _texts(first: _Environment, other: _Environment) -> Iterator[Obstacle]:
    """Whether the texts are others; what they came from tells it where their own digest is missing."""
    why = _why(first, other)
    if first.texts.sha256 and other.texts.sha256:
        if first.texts.sha256 != other.texts.sha256:
            yield Obstacle(what="texts", certain=True, message=f"other texts{why}")
    elif why and not (first.streams or other.streams):
        yield Obstacle(what="texts", certain=True, message=f"other texts{why}")
    else:
        message = "it cannot be told whether the texts are the same: a report has no digest of them"
        yield Obstacle(what="texts", certain=False, message=message)


def _why(first: _Environment, other: _Environment) -> str:
    """What texts come from and is not the same, in words; recordings have prompts of token ids, which say nothing."""
    told = {
        "the prompts": not (first.streams or other.streams)
        and first.prompts.sha256 != other.prompts.sha256,
        "--max-new-tokens": first.max_new_tokens != other.max_new_tokens,
        "--stop-at-eos": first.end_of_sequence != other.end_of_sequence,
    }
    names = ", ".join(name for name, differs in told.items() if differs)
    return f" (not the same: {names})" if names else ""


def _unlike(first: _Digest, other: _Digest) -> str:
    """The first part of two digests of a target that differs; of weights, those that both have."""
    if first.config != other.config:
        return "config.json"
    if first.headers != other.headers:
        return "the headers of its tensors"
    shared = sorted(first.weights.keys() & other.weights.keys())
    return next((name for name in shared if first.weights[name] != other.weights[name]), "")


def _dtypes(side: _Side) -> str:
    """In what both networks ran, and in what hidden states were recorded."""
    computed, streams = side.environment.dtype, side.report.streams
    recorded = streams.dtype if streams else computed
    return computed if recorded == computed else f"{computed} on recorded {recorded}"
