"""A report on a terminal."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from eagle3_interop.convert.console import Console
from eagle3_interop.convert.tables import Figures
from eagle3_interop.schemas.report import (
    AcceptanceReport,
    AgainstReport,
    AsTrainedReport,
    Gate,
    Report,
    Speed,
    SweepRow,
)
from eagle3_interop.schemas.streams import StreamsReport
from eagle3_interop.validators.report import breakdown
from eagle3_interop.validators.report.speed import speed_lines

if TYPE_CHECKING:
    from eagle3_interop.validators.prove.validate import Watch

BASES = {
    "last-state": "the recorded last hidden state",
    "top-logprobs": "the text; the engine's likeliest tokens stand for the distribution",
    "text": "the text",
}
"""What the target's choice rests on."""


def watch(console: Console) -> "Watch":
    """Progress over tokens."""

    def shown(title: str, total: int) -> AbstractContextManager[Any]:
        return console.progress(title, total)

    return shown


def show(console: Console, report: Report) -> None:
    """The report on stdout; of quiet the verdict alone."""
    if console.talks:
        console.show(*_parts(report))
    elif not console.as_json and report.acceptance is not None:
        console.result(f"accept length {_length(report.acceptance)}")
    if not console.as_json:
        console.show(verdict(report))


def _parts(report: Report) -> Iterator[RenderableType]:
    environment = report.environment
    target, draft = environment["target"], environment["draft"]
    yield Text(
        f"{draft['path']} ({draft['layout']}) on {target['path']}, {environment['device']}, "
        f"{environment['dtype']}, {environment['prompts']['count']} prompts, "
        f"end of sequence {environment['end_of_sequence']}"
    )
    if report.acceptance is not None:
        yield _acceptance(report)
    if report.breakdown is not None:
        yield from breakdown.figures(report.breakdown)
    yield from map(Text, streams_lines(report.streams))
    if report.as_trained is not None:
        yield Text(as_trained_line(report.as_trained))
    if report.against is not None:
        yield from map(Text, against_lines(report.against))
    if report.sweep is not None:
        yield _sweep(report.sweep)
        yield from map(Text, best_lines(report.sweep, report.speed))
    if report.sampling is not None:
        yield Text(sampling_line(report.sampling))
    if report.engine is not None:
        yield Text(report.engine["sentence"])
    yield from map(Text, speed_lines(report))
    yield from map(_gate, report.gates)


def verdict(report: Report) -> Text:
    """The last line."""
    if not report.gates:
        return Text(
            "measured; no gate ran (--against, --engine, --server, --min-accept-length)",
            style="bold",
        )
    style = "bold green" if report.verdict == "pass" else "bold red"
    return Text(report.verdict.upper(), style=style)


def drafted(acceptance: AcceptanceReport) -> str:
    """What is drafted a step, in words."""
    if acceptance.tree is None:
        return f"{acceptance.num_draft_tokens} draft token{'s' * (acceptance.num_draft_tokens > 1)} a step"
    steps, topk, tokens = acceptance.tree
    return f"tree of {steps} steps, top-k {topk}, {tokens} tokens"


def _acceptance(report: Report) -> Figures:
    ours = report.acceptance
    assert ours is not None  # noqa: S101
    positions = (f"#{position}" for position in range(1, len(ours.per_position) + 1))
    others = {"source": report.against, "as trained": report.as_trained}
    named = [("checkpoint", ours)]
    named += [(name, one.acceptance) for name, one in others.items() if one is not None]
    rows = []
    for name, one in named:
        shares = (f"{100 * rate:.1f}%" for rate in one.rates)
        rows.append((name, _length(one), f"{one.drafts}", f"{one.accepted}", *shares))
    columns = ("", "accept length", "steps", "accepted", *positions)
    return Figures(f"acceptance, {drafted(ours)}", columns, rows)


def _length(acceptance: AcceptanceReport) -> str:
    low, high = acceptance.interval
    if not acceptance.varies:
        return f"{acceptance.accept_length:.3f} (no interval)"
    return f"{acceptance.accept_length:.3f} ({low:.2f} to {high:.2f})"


def as_trained_line(trained: AsTrainedReport) -> str:
    """What engines compute of a draft, against what its trainer computed."""
    logits = trained.logits
    largest = f" of {number(logits.largest)}" if logits.largest is not None else ""
    return (
        f"as engines compute it, against as it was trained: logits differ by at most {number(logits.max_abs_diff)}"
        f"{largest}, the same token {100 * logits.top1_agreement:.2f} %"
    )


def against_lines(against: AgainstReport) -> list[str]:
    """The comparison, in a few lines."""
    logits, part = against.logits, against.first_difference
    kl = number(list(logits.kl))
    lines = [
        f"against {against.source} ({against.layout}): logits differ by at most "
        f"{number(logits.max_abs_diff)} (mean {number(logits.mean_abs_diff)}), the same token "
        f"{100 * logits.top1_agreement:.2f} %, KL by depth {kl}, {logits.positions} positions"
    ]
    if part is not None:
        size = "" if part.max_abs_diff is None else f" (by {part.max_abs_diff:.3g})"
        lines.append(f"the networks part at: {part.stage}{size}; {part.meaning}")
    lines += [
        f"  {path}: {ours!r}, in the source {theirs!r}"
        for path, (ours, theirs) in against.differences.items()
    ]
    return lines + [
        f"  tensors {state}: {', '.join(names)}"
        for state, names in tensors_by_state(against).items()
    ]


def streams_lines(streams: StreamsReport | None) -> list[str]:
    """Where recorded hidden states came from, and what trainers report of them."""
    if streams is None:
        return []
    by = "" if streams.by is None else f" by {streams.by.engine} {streams.by.version}".rstrip()
    lines = [
        f"hidden states recorded{by}: {streams.source}, {streams.texts} texts, {streams.tokens} tokens, "
        f"{streams.dtype}; choices from {BASES[streams.basis]}; {streams.counted_starts} of {streams.starts} "
        "start positions count"
    ]
    if (forced := streams.teacher_forced) is not None:
        shares = " ".join(f"{100 * share:.1f}%" for share in forced.accuracy)
        lines.append(f"teacher-forced accuracy by step, over all positions: {shares}")
    return lines


def tensors_by_state(against: AgainstReport) -> dict[str, list[str]]:
    """Names of the tensors that are not equal, by what they are instead."""
    states: dict[str, list[str]] = {}
    for name, state in against.tensors.items():
        states.setdefault(state, []).append(name)
    return states


def sampling_line(sampling: dict[str, Any]) -> str:
    """Acceptance under sampling."""
    return (
        f"at temperature {sampling['temperature']:g}: accept length {sampling['accept_length']:.3f}; "
        f"if the draft samples too {sampling['probabilistic_accept_length']:.3f}"
    )


def _sweep(rows: Sequence[SweepRow]) -> Figures:
    (columns, groups), kind = sweep_groups(rows), sweep_kind(rows)
    cells: list[Sequence[str | Text]] = [
        (name, *(_sweep_cell(row, kind) for row in map(group.get, columns)))
        for name, group in groups.items()
    ]
    return Figures(sweep_title(rows), ("", *map(str, columns)), cells)


def _sweep_cell(row: SweepRow | None, kind: str) -> Text:
    figure = None if row is None else sweep_figure(row, kind)
    if row is None or figure is None:
        return Text("")
    return Text(f"{figure:.2f}", style="bold reverse" if row.best else "")


def best_lines(rows: Sequence[SweepRow], speed: Speed | None) -> Iterator[str]:
    """Which setting to serve, and what that rests on."""
    for row in rows:
        if not row.best:
            continue
        if (made := row.tokens_per_second) is None or speed is None:
            yield f"the best: {drafted(row)}, {row.speedup:.2f}"
            yield "by --cost-ratio, a guess that counts a verification as one step however wide it is; --engine measures both"
            continue
        at = f" at batch size {speed['batch']}" if speed["batch"] > 1 else ""
        yield f"serve {drafted(row)}: {made:.1f} tokens a second expected by the measured costs{at}"
        if speed["without"] is not None and made <= speed["without"]:
            yield f"no setting is expected to be faster than the {speed['without']:.1f} tokens a second without a draft"


FIGURES = {
    "tokens_per_second": "expected tokens a second",
    "speedup": "expected speed-up",
    "accept_length": "accept length",
}
"""What a sweep is judged by, the best ground first."""


def sweep_kind(rows: Sequence[SweepRow]) -> str:
    """Which figure a sweep is judged by: the first that it has."""
    return next(name for name in FIGURES if any(getattr(row, name) is not None for row in rows))


def sweep_title(rows: Sequence[SweepRow]) -> str:
    """What the figures of a sweep are."""
    return f"sweep: {FIGURES[sweep_kind(rows)]}, by tokens verified a step (the root included)"


def sweep_figure(row: SweepRow, kind: str) -> float | None:
    """The figure of one setting; None where measured costs do not reach so far."""
    figure: float | None = getattr(row, kind)
    return figure


def sweep_groups(rows: Sequence[SweepRow]) -> tuple[list[int], dict[str, dict[int, SweepRow]]]:
    """A sweep as a table: its columns (tokens verified a step), and each line's cells by column."""
    groups: dict[str, dict[int, SweepRow]] = {}
    for row in rows:
        if row.tree is None:
            groups.setdefault("chain", {})[row.num_draft_tokens + 1] = row
        else:
            groups.setdefault(f"top-k {row.tree[1]}, {row.tree[0]} steps", {})[row.tree[2]] = row
    return sorted({tokens for group in groups.values() for tokens in group}), groups


def _gate(gate: Gate) -> Text:
    mark, style = ("✓", "green") if gate.passed else ("✗", "red")
    line = Text(f"{mark} ", style=style)
    return line.append(
        f"{gate.name}: wanted {number(gate.wanted)}, got {number(gate.got)}", style=""
    )


def number(value: Any) -> str:  # noqa: ANN401
    """A gate's value, short."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {number(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(number, value))
    if value is None:
        return "not a number"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
