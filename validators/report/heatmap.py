"""A diagnosis as one page that needs nothing else, with the heat map of every block over every depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from eagle3_interop.schemas.findings import Finding
from eagle3_interop.validators.diagnose.wiring import FLAGS, READS, STREAM
from eagle3_interop.validators.report.page import STYLE, findings_table

if TYPE_CHECKING:
    from eagle3_interop.validators.diagnose.run import Answer
    from eagle3_interop.validators.diagnose.verdict import Diagnosis

_STYLE = """
header.best { border-left-color: var(--good); } header.other { border-left-color: var(--warn); }
header.none { border-left-color: var(--bad); }
header.best h1 { color: var(--good); } header.other h1 { color: var(--warn); }
header.none h1 { color: var(--bad); }
.depths td { min-width: 46px; padding: 6px 4px; text-align: center; border: 2px solid var(--card);
  border-radius: 6px; font-size: 13px; }
.depths.many td { min-width: 12px; height: 26px; padding: 0; font-size: 0; border-width: 1px; }
.depths.many { table-layout: fixed; min-width: 900px; }
.depths.many th:first-child { width: 120px; }
.depths th { padding: 4px 8px 4px 0; border: 0; font-weight: 500; white-space: nowrap; color: var(--soft); }
.depths thead th { padding: 2px; text-align: center; font-size: 12px; }
.depths tbody th b { color: var(--text); font-weight: 600; }
.depths .best { outline: 2px solid var(--text); outline-offset: -3px; font-weight: 700; }
.depths .was { outline: 2px dashed var(--warn); outline-offset: -3px; }
.depths .off { background: none; color: var(--soft); }
.key i { display: inline-block; width: 14px; height: 14px; border-radius: 4px; margin: 0 6px -2px 0; }
.key span { margin-right: 20px; }
tr.mark td { font-weight: 650; }
td.number { white-space: nowrap; }
"""

SCORE = "cross-entropy to the target in nats, summed over four depths; lower fits better"
"""What the score is, of which unit, and which way is better."""

_WORDS = {
    "configured-is-best": ("best", "The configured wiring is the best"),
    "better-wiring": ("other", "Another wiring fits better"),
    "no-match": ("none", "No wiring fits"),
}

Heat = Mapping[tuple[int, str], Sequence[float | None]]
"""By block and what it reads, a score for every depth."""


@dataclass(frozen=True)
class Row:
    """A wiring in a table.

    Attributes:
        score: cross-entropy over the depths.
        length: accept length and its interval.
        text: what it changes.
        mark: ``configured``, ``best``, ``equivalent`` or nothing.
        gain: against the configured wiring, with its interval.
        accepted: the accept length alone.
    """

    score: float
    length: str
    text: str
    mark: str
    gain: str
    accepted: float = 1.0


def rows(report: dict[str, Any]) -> list[Row]:
    """Every wiring that was scored on all texts, the best first."""
    return [_row(entry, report) for entry in report["candidates"]]


def foremost(found: Sequence[Row], count: int) -> list[Row]:
    """The best, the configured wiring wherever it stands, all equivalents in one row, and the first of the rest."""
    marked = [row for row in found if "best" in row.mark or "configured" in row.mark]
    folded = [row for row in found if "equivalent" in row.mark and row not in marked]
    rest = [row for row in found if not row.mark]
    one = [fold(folded)] if folded else []
    return [*marked, *one, *rest[: max(0, count - len(marked) - len(one))]]


def fold(found: Sequence[Row]) -> Row:
    """Equivalent wirings as one row."""
    low, high = found[0], found[-1]
    text = f"{len(found)} that these texts cannot tell from the best: {low.text}"
    more = f" ({len(found) - 1} more in the JSON)" if len(found) > 1 else ""
    length = low.length if len(found) == 1 else f"{low.accepted:.3f} to {high.accepted:.3f}"
    return replace(low, text=f"{text}{more}", length=length, mark="equivalent")


def _row(entry: dict[str, Any], report: dict[str, Any]) -> Row:
    low, high = entry["interval"]
    marks = []
    if entry.get("changes") == []:
        marks.append("configured")
    if _same(entry, report["best"]):
        marks.append("best")
    elif any(_same(entry, one) for one in report["best"]["equivalent"]):
        marks.append("equivalent")
    text = "; ".join(entry.get("changes") or []) or f"taps {entry['taps']}"
    gain = ""
    if "gain" in entry:
        first, last = entry["gain_interval"]
        gain = f"{entry['gain']:+.3f} ({first:+.3f} to {last:+.3f})"
    mark = ", ".join(marks)
    interval = f"{low:.2f} to {high:.2f}" if low < high else "no interval"
    length = f"{entry['accept_length']:.3f} ({interval})"
    shown = f"{text} [{mark}]" if mark and mark != "equivalent" else text
    return Row(entry["score"], length, shown, mark, gain, entry["accept_length"])


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["taps"] == other["taps"] and one["flags"] == other["flags"])


def page(answer: "Answer") -> str:
    """The page."""
    from eagle3_interop.validators.diagnose.run import answer as sentence

    report, diagnosis = answer.report, answer.diagnosis
    environment = report["environment"]
    title = f"{environment['draft']['path']} on {environment['target']['path']}"
    if (streams := report.get("streams")) is not None:
        by = streams["by"] or {}
        title += f", hidden states recorded by {by.get('engine')} {by.get('version')}: {streams['source']}"
    kind, words = _WORDS[report["verdict"]]
    parts = [
        _header(kind, words, title, sentence(diagnosis), report),
        _doubts(report),
        _heat(diagnosis, answer.heat),
        _candidates(rows(report)),
        _flags(report),
        findings_table(map(Finding.model_validate, report["findings"])),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(words)}: {escape(title)}</title><style>{STYLE}{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _header(kind: str, words: str, title: str, answer: str, report: dict[str, Any]) -> str:
    tiles = []
    if (before := report["configured"]) is not None:
        tiles.append((f"{before['accept_length']:.2f}", "accept length as configured"))
    tiles += [
        (f"{report['best']['accept_length']:.2f}", "accept length of the best wiring"),
        (f"{report['tried']:,}", "wirings tried"),
        (f"{report['seconds']:.0f} s", "of search"),
    ]
    shown = "".join(
        f'<div><b>{escape(value)}</b><span class="soft">{name}</span></div>'
        for value, name in tiles
    )
    return (
        f'<header class="{kind}"><h1>{words}</h1><p>{escape(answer)}</p>'
        f'<p class="soft">{escape(title)}</p><div class="tiles">{shown}</div></header>'
    )


def _doubts(report: dict[str, Any]) -> str:
    told = "".join(f"<li>{escape(doubt)}</li>" for doubt in report.get("doubts", []))
    return f"<section><h2>What speaks against it</h2><ul>{told}</ul></section>" if told else ""


def _heat(diagnosis: "Diagnosis", heat: Heat) -> str:
    scores = [score for row in heat.values() for score in row if score is not None]
    if not scores:
        return ""
    low = min(scores)
    high = sorted(scores)[min(len(scores) - 1, round(0.9 * len(scores)))]
    depth = len(next(iter(heat.values())))
    head = "".join(f"<th>{tap if depth <= 25 or tap % 8 == 0 else ''}</th>" for tap in range(depth))
    body = "".join(
        _heat_row(diagnosis, block, read, row, (low, high))
        for (block, read), row in heat.items()
        if any(score is not None for score in row)
    )
    many = " many" if depth > 25 else ""
    key = (
        '<p class="legend key"><span><i style="outline:2px solid var(--text)"></i>best wiring</span>'
        '<span><i style="outline:2px dashed var(--warn)"></i>as configured</span>'
        "<span>stronger colour: lower cross-entropy at depth 0, in nats</span></p>"
    )
    return (
        "<section><h2>What each block of fc reads, and at which depth of the target</h2>"
        '<p class="soft">The best wiring with one block moved: 0 is the embedding, k the stream entering '
        "layer k.</p>"
        f'<div class="scroll"><table class="depths{many}"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{key}</section>"
    )


def _heat_row(
    diagnosis: "Diagnosis",
    block: int,
    read: str,
    row: Sequence[float | None],
    span: tuple[float, float],
) -> str:
    best = diagnosis.best.wiring
    was = diagnosis.configured.wiring if diagnosis.configured else None
    cells = []
    for tap, score in enumerate(row):
        marks = []
        if (best.taps[block], best.reads[block]) == (tap, read):
            marks.append("best")
        elif was is not None and (was.taps[block], was.reads[block]) == (tap, read):
            marks.append("was")
        if score is None:
            cells.append(f'<td class="{" ".join([*marks, "off"])}">·</td>')
            continue
        share = (score - span[0]) / (span[1] - span[0]) if span[1] > span[0] else 0.0
        strength = round(6 + 70 * (1 - min(1.0, share) ** 0.5))
        colour = f"color-mix(in srgb, var(--a) {strength}%, var(--card))"
        tip = escape(f"block {block}, {READS[read]}, depth {tap}: {score:.4f} nats")
        cells.append(
            f'<td class="{" ".join(marks)}" style="background:{colour}" title="{tip}">{score:.2f}</td>'
        )
    name = f"<b>block {block}</b> {read}" if read == STREAM else read
    return f"<tr><th>{name}</th>{''.join(cells)}</tr>"


def _candidates(found: Sequence[Row]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("score", "gain", "accept length", "wiring"))
    body = []
    for row in foremost(found, len(found)):
        cells = _cells(row)
        if row.mark == "equivalent":
            inside = "".join(f"<tr>{_cells(one)}</tr>" for one in found if one.mark == "equivalent")
            count = sum(one.mark == "equivalent" for one in found)
            cells = (
                f'<td colspan="4"><details><summary>{count} that these texts cannot tell from the best'
                f"</summary><table><tbody>{inside}</tbody></table></details></td>"
            )
        marked = "best" in row.mark or "configured" in row.mark
        body.append(f'<tr class="{"mark" if marked else ""}">{cells}</tr>')
    return (
        "<section><h2>Wirings scored on all texts</h2>"
        f'<p class="soft">Score: {SCORE}. Gain: how much lower the score is than the configured '
        "wiring's, with its paired 95 % interval over texts. What makes no difference at all is left out.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
        "</section>"
    )


def _cells(row: Row) -> str:
    return (
        f'<td>{row.score:.3f}</td><td class="number">{row.gain}</td><td class="number">{row.length}</td>'
        f"<td>{escape(row.text)}</td>"
    )


def _flags(report: dict[str, Any]) -> str:
    best, before = report["best"], report["configured"] or report["best"]
    taps = [("taps", "layers passed before each block of fc", before["taps"], best["taps"])]
    entries = taps + [
        (name, FLAGS.get(name, "what each block reads"), before["flags"][name], value)
        for name, value in best["flags"].items()
    ]
    body = "".join(
        f'<tr class="{"mark" if old != new else ""}"><td><code>{name}</code></td>'
        f"<td>{escape(_shown(old))}</td><td>{escape(_shown(new))}</td>"
        f'<td class="soft">{escape(meaning)}</td></tr>'
        for name, meaning, old, new in entries
    )
    head = "".join(f"<th>{name}</th>" for name in ("", "configured", "best", "what it is"))
    return (
        f'<section><h2>Wiring</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
