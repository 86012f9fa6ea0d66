"""A report on a terminal."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from eagle3_interop.convert.console import Console
from eagle3_interop.schemas.report import AcceptanceReport, AgainstReport, Gate, Report

if TYPE_CHECKING:
    from eagle3_interop.validators.validate import Watch


def watch(console: Console) -> "Watch":
    """Progress bars over tokens, on stderr where somebody watches."""

    def shown(title: str, total: int) -> AbstractContextManager[Any]:
        return _bar(title, total, shown=console.talks and sys.stderr.isatty())

    return shown


@contextmanager
def _bar(title: str, total: int, *, shown: bool) -> Iterator[Any]:
    if not shown:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    stderr = RichConsole(stderr=True)
    with Bar(
        *columns, TextColumn("tokens"), TimeRemainingColumn(), console=stderr, transient=True
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


def show(report: Report) -> None:
    """The whole report on stdout."""
    out = RichConsole(file=sys.stdout, highlight=False)
    environment = report.environment
    target, draft = environment["target"], environment["draft"]
    out.print(
        Text(
            f"{draft['path']} ({draft['layout']}) on {target['path']}, {environment['device']}, "
            f"{environment['dtype']}, {environment['prompts']['count']} prompts, "
            f"end of sequence {environment['end_of_sequence']}"
        )
    )
    if report.acceptance is not None:
        out.print(_acceptance(report.acceptance, report.against))
    if report.against is not None:
        for line in against_lines(report.against):
            out.print(Text(line))
    if report.sweep is not None:
        out.print(_sweep(report))
    if report.sampling is not None:
        out.print(Text(sampling_line(report.sampling)))
    for gate in report.gates:
        out.print(_gate(gate))
    out.print(verdict(report))


def verdict(report: Report) -> Text:
    """The last line."""
    if not report.gates:
        return Text("measured; no gate ran (--against, --min-accept-length)", style="bold")
    style = "bold green" if report.verdict == "pass" else "bold red"
    return Text(report.verdict.upper(), style=style)


def drafted(acceptance: AcceptanceReport) -> str:
    """What is drafted a step, in words."""
    if acceptance.tree is None:
        return f"{acceptance.num_draft_tokens} draft token(s) a step"
    steps, topk, tokens = acceptance.tree
    return f"tree of {steps} steps, top-k {topk}, {tokens} tokens"


def _acceptance(ours: AcceptanceReport, against: AgainstReport | None) -> Table:
    table = Table(title=f"acceptance, {drafted(ours)}", title_justify="left")
    for name in ("", "accept length", "95 % over prompts", "steps", "accepted"):
        table.add_column(name, justify="right" if name else "left")
    for position in range(1, len(ours.per_position) + 1):
        table.add_column(f"#{position}", justify="right")
    named = [("checkpoint", ours)] + ([("source", against.acceptance)] if against else [])
    for name, one in named:
        low, high = one.interval
        shares = (f"{100 * rate:.1f} %" for rate in rates(one))
        cells = f"{one.accept_length:.3f}", f"{low:.2f} to {high:.2f}"
        table.add_row(name, *cells, f"{one.drafts}", f"{one.accepted}", *shares)
    return table


def rates(acceptance: AcceptanceReport) -> list[float]:
    """By position, the share of steps that accepted a token there."""
    steps = max(acceptance.drafts, 1)
    return [count / steps for count in acceptance.per_position]


def against_lines(against: AgainstReport) -> list[str]:
    """The comparison, in a few lines."""
    logits, part = against.logits, against.first_difference
    kl = " ".join(f"{value:.2g}" for value in logits.kl)
    lines = [
        f"against {against.source} ({against.layout}): logits differ by at most "
        f"{logits.max_abs_diff:.3g} (mean {logits.mean_abs_diff:.2g}), the same token "
        f"{100 * logits.top1_agreement:.2f} %, KL by depth {kl}, {logits.positions} positions"
    ]
    if part is not None:
        size = "" if part.max_abs_diff is None else f" (by {part.max_abs_diff:.3g})"
        lines.append(f"the networks part at: {part.stage}{size}; {part.meaning}")
    lines += [
        f"  {path}: {ours!r}, in the source {theirs!r}"
        for path, (ours, theirs) in against.differences.items()
    ]
    return lines + [f"  {name}: {state}" for name, state in against.tensors.items()]


def sampling_line(sampling: dict[str, Any]) -> str:
    """Acceptance under sampling."""
    return (
        f"at temperature {sampling['temperature']:g}: accept length {sampling['accept_length']:.3f}; "
        f"if the draft samples too {sampling['probabilistic_accept_length']:.3f}"
    )


def _sweep(report: Report) -> Table:
    rows: Sequence[Any] = report.sweep or ()
    costed = any(row.speedup is not None for row in rows)
    table = Table(title="sweep, on the same texts", title_justify="left")
    for name in ("drafted a step", "accept length", "95 % over prompts", "steps"):
        table.add_column(name, justify="left" if name == "drafted a step" else "right")
    if costed:
        table.add_column("speed-up", justify="right")
    for row in rows:
        low, high = row.interval
        cells = [f"{row.accept_length:.3f}", f"{low:.2f} to {high:.2f}", f"{row.drafts}"]
        cells += [f"{row.speedup:.2f}"] if costed else []
        table.add_row(drafted(row), *cells, style="bold green" if row.best else None)
    return table


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
    return f"{value:.4g}" if isinstance(value, float) else str(value)
