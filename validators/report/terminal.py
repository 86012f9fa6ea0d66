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
from eagle3_interop.schemas.report import AcceptanceReport, AgainstReport, Gate, Report, SweepRow

if TYPE_CHECKING:
    from eagle3_interop.validators.prove.validate import Watch

LOOK: dict[str, Any] = {
    "title_justify": "left",
    "title_style": "bold",
    "header_style": "dim",
    "box": None,
    "pad_edge": False,
    "collapse_padding": True,
}


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
    width = None if sys.stdout.isatty() else 120
    out = RichConsole(file=sys.stdout, highlight=False, soft_wrap=True, width=width)
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
        out.print(_sweep(report.sweep))
        for row in report.sweep:
            if row.best:
                out.print(Text(f"the best: {drafted(row)}, {sweep_figure(row):.2f}"))
    if report.sampling is not None:
        out.print(Text(sampling_line(report.sampling)))
    if report.engine is not None:
        out.print(Text(report.engine["sentence"]))
    for gate in report.gates:
        out.print(_gate(gate))
    out.print(verdict(report))


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


def _acceptance(ours: AcceptanceReport, against: AgainstReport | None) -> Table:
    table = Table(title=f"acceptance, {drafted(ours)}", **LOOK)
    for name in ("", "accept length", "steps", "accepted"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for position in range(1, len(ours.per_position) + 1):
        table.add_column(f"#{position}", justify="right", no_wrap=True)
    named = [("checkpoint", ours)] + ([("source", against.acceptance)] if against else [])
    for name, one in named:
        low, high = one.interval
        length = f"{one.accept_length:.3f} ({low:.2f} to {high:.2f})"
        shares = (f"{100 * rate:.1f}%" for rate in rates(one))
        table.add_row(name, length, f"{one.drafts}", f"{one.accepted}", *shares)
    return table


def rates(acceptance: AcceptanceReport) -> list[float]:
    """By position, the share of steps that accepted a token there."""
    steps = max(acceptance.drafts, 1)
    return [count / steps for count in acceptance.per_position]


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


def _sweep(rows: Sequence[SweepRow]) -> Table:
    table = Table(title=sweep_title(rows), **LOOK)
    columns, groups = sweep_groups(rows)
    table.add_column("", no_wrap=True)
    for tokens in columns:
        table.add_column(f"{tokens}", justify="right", no_wrap=True)
    for name, group in groups.items():
        found = [group.get(tokens) for tokens in columns]
        table.add_row(name, *(Text("") if row is None else _sweep_cell(row) for row in found))
    return table


def _sweep_cell(row: SweepRow) -> Text:
    return Text(f"{sweep_figure(row):.2f}", style="bold reverse" if row.best else "")


def sweep_title(rows: Sequence[SweepRow]) -> str:
    """What the figures of a sweep are."""
    costed = any(row.speedup is not None for row in rows)
    figure = "expected speed-up" if costed else "accept length"
    return f"sweep: {figure}, by tokens verified a step (the root included)"


def sweep_figure(row: SweepRow) -> float:
    """The figure of one setting."""
    return row.accept_length if row.speedup is None else row.speedup


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
