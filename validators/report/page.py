"""A report as one page that needs nothing else: no script, no font, no image from elsewhere."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from eagle3_interop.schemas.findings import Finding
from eagle3_interop.schemas.report import (
    AcceptanceReport,
    AgainstReport,
    AsTrainedReport,
    LogitsReport,
    Report,
    SweepRow,
)
from eagle3_interop.validators.report import breakdown, plots
from eagle3_interop.validators.report.speed import speed_lines
from eagle3_interop.validators.report.tables import table as _table
from eagle3_interop.validators.report.terminal import (
    drafted,
    number,
    sweep_figure,
    sweep_groups,
    sweep_kind,
    sweep_title,
    tensors_by_state,
)

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1c2330; --soft: #5c6675;
  --line: #dde2ea; --a: #2563eb; --b: #d97706; --good: #15803d; --bad: #b91c1c; --warn: #b45309; }
@media (prefers-color-scheme: dark) { :root { --page: #11151c; --card: #1a202b; --text: #e6eaf1;
  --soft: #9aa5b5; --line: #2e3747; --a: #6ea8fe; --b: #f0a94b; --good: #4ade80; --bad: #f87171;
  --warn: #fbbf24; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 48px; }
header, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 18px 22px; margin-bottom: 16px; }
header { border-left: 8px solid var(--soft); }
header.pass { border-left-color: var(--good); } header.fail { border-left-color: var(--bad); }
h1 { margin: 0; font-size: 26px; } h2 { margin: 0 0 10px; font-size: 17px; }
.pass h1, .good { color: var(--good); } .fail h1, .bad, .error { color: var(--bad); }
.warning { color: var(--warn); } .note, .soft { color: var(--soft); }
header p { margin: 4px 0 0; overflow-wrap: anywhere; }
.tiles { display: flex; flex-wrap: wrap; gap: 8px 36px; margin-top: 14px; }
.tiles b { display: block; font-size: 24px; font-weight: 650; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 16px; }
.two section { min-width: 0; margin-bottom: 0; } .two { margin-bottom: 16px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-top: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
td:first-child { min-width: 180px; }
td:first-child code { white-space: nowrap; }
thead th { border-top: 0; color: var(--soft); font-weight: 500; }
.figures td, .figures th { text-align: right; white-space: nowrap; padding: 5px 10px; }
.figures tbody th { text-align: left; font-weight: 500; }
.heat thead th { text-align: center; } .heat tbody th { border: 0; }
.heat td { min-width: 64px; text-align: center; border: 2px solid var(--card); border-radius: 6px; }
.heat .best { outline: 2px solid var(--text); outline-offset: -3px; font-weight: 700; }
code { font: 13px/1.4 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 12px; text-anchor: middle; }
svg .end { text-anchor: end; } svg .value { fill: var(--text); }
.grid { stroke: var(--line); } polyline { fill: none; stroke-width: 2.5; }
.s0 { fill: var(--a); } .s1 { fill: var(--b); } .l0 { stroke: var(--a); } .l1 { stroke: var(--b); }
.legend { margin: 6px 0 0; color: var(--soft); font-size: 13px; }
.legend span { margin-right: 18px; display: inline-block; }
.legend i { width: 10px; height: 10px; border-radius: 2px; display: inline-block; margin-right: 6px; }
.b0 { background: var(--a); } .b1 { background: var(--b); }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.6 ui-monospace, Menlo, Consolas, monospace; }
mark { color: inherit; background: color-mix(in srgb, var(--good) 28%, var(--card)); border-radius: 3px; }
"""


def page(report: Report, agreement: Sequence[float] = ()) -> str:
    """The page.

    Args:
        report: of a validation that ran.
        agreement: by depth, the share of positions at which the draft's token is the target's.
    """
    environment = report.environment
    title = f"{environment['draft']['path']} on {environment['target']['path']}"
    parts = [_header(report, title), _gates(report)]
    if report.acceptance is not None:
        parts.append(_plots(report.acceptance, report.against, agreement))
    if report.breakdown is not None:
        parts += breakdown.sections(report.breakdown)
    if report.as_trained is not None:
        parts.append(_as_trained(report.as_trained))
    if report.against is not None:
        parts.append(_against(report.against))
    if report.sweep is not None:
        parts.append(_sweep(report.sweep))
    parts += [
        _figures("Sampling", report.sampling),
        _figures("Recorded hidden states", report.streams.model_dump() if report.streams else None),
        _figures("Engine", report.engine),
        _lines("Speed", speed_lines(report)),
        findings_table(report.findings),
        _table("Files", ("file", "sha256"), _pairs(report.checkpoint.files)),
        _table("Environment", ("", ""), _pairs(_flat(environment))),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_kind(report)}: {escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _kind(report: Report) -> str:
    """The verdict; where no gate ran there is none."""
    return report.verdict if report.gates else "measured"


def _header(report: Report, title: str) -> str:
    kind = _kind(report)
    words = {"pass": "Passed", "fail": "Failed", "measured": "Measured; no gate ran"}[kind]
    tiles = ""
    if (one := report.acceptance) is not None:
        low, high = one.interval
        interval = f"95 % {low:.2f} to {high:.2f}" if one.varies else "no interval"
        shown = (
            (f"{one.accept_length:.3f}", f"accept length, {interval}"),
            (f"{one.drafts:,}", "verification steps"),
            (f"{one.accepted:,}", "draft tokens accepted"),
            (f"{one.tokens:,}", "new tokens"),
        )
        tiles = "".join(
            f"<div><b>{value}</b><span class=soft>{name}</span></div>" for value, name in shown
        )
    detail = f"{drafted(one)}, greedy" if one else ""
    return (
        f'<header class="{kind}"><h1>{words}</h1><p>{escape(title)}</p>'
        f'<p class="soft">{detail}</p><div class="tiles">{tiles}</div></header>'
    )


def _gates(report: Report) -> str:
    rows = (
        (
            f'<span class="{"good" if gate.passed else "bad"}">{"✓" if gate.passed else "✗"}</span> '
            f"<code>{escape(gate.name)}</code>",
            escape(number(gate.wanted)),
            escape(number(gate.got)),
        )
        for gate in report.gates
    )
    return _table("Gates", ("gate", "wanted", "got"), rows) if report.gates else ""


def _plots(
    ours: AcceptanceReport, against: AgainstReport | None, agreement: Sequence[float]
) -> str:
    series = [("checkpoint", ours.rates)]
    if against is not None:
        series.append(("source", against.acceptance.rates))
    first = (
        "<section><h2>Acceptance by position</h2>"
        f"{plots.bars('share of steps that accepted a token at each position', series)}"
        f"{plots.legend([f'{name}: share of steps that accepted it' for name, _ in series])}</section>"
    )
    reached = [ours.drafts, *ours.per_position[:-1]]
    chance = [
        count / before if before else 0.0
        for count, before in zip(ours.per_position, reached, strict=True)
    ]
    both = [("where all before were accepted", chance)]
    if agreement:
        both.append(("anywhere in the text, fed the text", list(agreement)))
    second = (
        "<section><h2>Draft and target agree, by depth</h2>"
        f"{plots.lines('share of tokens on which draft and target agree', both)}"
        f"{plots.legend([name for name, _ in both])}</section>"
    )
    return f'<div class="two">{first}{second}</div>'


def _compared(logits: LogitsReport) -> list[tuple[str, str]]:
    return [
        ("largest logit difference", number(logits.max_abs_diff)),
        ("mean logit difference", number(logits.mean_abs_diff)),
        ("same token proposed", f"{100 * logits.top1_agreement:.3f} %"),
        ("KL by depth", number(list(logits.kl))),
        ("start positions", f"{logits.positions:,}"),
    ]


def _as_trained(trained: AsTrainedReport) -> str:
    one = trained.acceptance
    rows = [
        ("accept length as trained", f"{one.accept_length:.3f}"),
        ("verification steps as trained", f"{one.drafts:,}"),
        ("draft tokens accepted as trained", f"{one.accepted:,}"),
    ]
    rows += _compared(trained.logits)
    return _table("As its trainer computed it, against what engines compute", ("", ""), rows)


def _against(against: AgainstReport) -> str:
    part = against.first_difference
    rows = _compared(against.logits)
    if part is not None:
        size = "" if part.max_abs_diff is None else f", by {part.max_abs_diff:.4g}"
        stage = f'<b class="bad">{escape(part.stage)}</b>{size}: {escape(part.meaning)}'
        rows.insert(0, ("the networks part at", stage))
    rows += [
        (
            f"<code>{escape(path)}</code>",
            escape(f"{ours!r}, in the source {theirs!r}"),
        )
        for path, (ours, theirs) in against.differences.items()
    ]
    rows += [
        (f"tensors {state}", f"<code>{escape(', '.join(names))}</code>")
        for state, names in tensors_by_state(against).items()
    ]
    if not against.tensors:
        rows.append(("tensors", "equal bit for bit"))
    return _table(f"Against {escape(against.source)} ({escape(against.layout)})", ("", ""), rows)


def _sweep(rows: Sequence[SweepRow]) -> str:
    kind = sweep_kind(rows)
    values = [x for row in rows if (x := sweep_figure(row, kind)) is not None]
    low, high = min(values), max(values)
    columns, groups = sweep_groups(rows)
    head = "".join(f"<th>{tokens}</th>" for tokens in columns)
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(_cell(group.get(n), kind, low, high) for n in columns)}</tr>"
        for name, group in groups.items()
    )
    return (
        f"<section><h2>{sweep_title(rows).capitalize()}</h2>"
        f'<div class="scroll"><table class="figures heat"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _cell(row: SweepRow | None, kind: str, low: float, high: float) -> str:
    value = None if row is None else sweep_figure(row, kind)
    if row is None or value is None:
        return "<td></td>"
    share = round(8 + 62 * (value - low) / (high - low)) if high > low else 8
    best = ' class="best"' if row.best else ""
    tip = escape(f"{drafted(row)}: accept length {row.accept_length:.3f}, {row.drafts} steps")
    colour = f"color-mix(in srgb, var(--a) {share}%, var(--card))"
    return f'<td{best} style="background:{colour}" title="{tip}">{value:.2f}</td>'


def _lines(title: str, lines: Iterable[str]) -> str:
    said = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f"<section><h2>{title}</h2>{said}</section>" if said else ""


def _figures(title: str, values: dict[str, Any] | None) -> str:
    return "" if values is None else _table(title, ("", ""), _pairs(_flat(values)))


def findings_table(found: Iterable[Finding]) -> str:
    """A section of findings, the gravest first; empty where there are none."""
    order = {"error": 0, "warning": 1, "note": 2}
    rows = [
        (
            f'<span class="{item.severity}">{item.severity}</span>',
            f"<code>{escape(item.code)}</code>",
            escape(f"{item.where}: {item.message}")
            + (f"<br><span class=soft>{escape(item.fix)}</span>" if item.fix else ""),
        )
        for item in sorted(found, key=lambda item: order[item.severity])
    ]
    return _table("Findings", ("", "code", "what"), rows) if rows else ""


def _pairs(values: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (escape(key), f"<code>{escape('none' if value is None else number(value))}</code>")
        for key, value in values.items()
    ]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
