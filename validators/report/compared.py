"""A comparison of reports for people and spreadsheets: terminal, Markdown, CSV, page."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html import escape

from rich.text import Text

from eagle3_interop.convert.tables import Figures
from eagle3_interop.schemas.comparison import Comparison, ComparisonRow
from eagle3_interop.validators.report.breakdown import UNNAMED
from eagle3_interop.validators.report.page import STYLE
from eagle3_interop.validators.report.tables import table

COLUMNS = ("", "draft", "drafted", "accept length", "tokens/s", "verdict", "against [0]")

MOST_SWEPT = 8
"""Settings of a report's sweep on a terminal and in Markdown; the page, CSV and JSON have all."""


def parts(found: Comparison) -> Iterator[Figures | Text]:
    """On a terminal."""
    shown = _shown(found)
    yield Figures("", *_cells(found, shown))
    kinds = _kinds(found)
    if kinds:
        yield Figures("accept length by category", *kinds)
    yield from map(Text, [*remarks(found), *_left(found, shown)])


def markdown(found: Comparison) -> str:
    """Tables and remarks."""
    shown = _shown(found)
    lines = _markdown_table(*_cells(found, shown))
    if kinds := _kinds(found):
        lines += ["", *_markdown_table(*kinds)]
    said = [*remarks(found), *_left(found, shown)]
    lines += ["", *(f"- {_plain(line)}" for line in said)]
    return "\n".join(lines) + "\n"


def page(found: Comparison) -> str:
    """One page that needs nothing else."""
    said = "".join(f"<li>{escape(line)}</li>" for line in remarks(found))
    body = [_html("Drafts and settings", *_cells(found, found.rows))]
    if kinds := _kinds(found):
        body.append(_html("Accept length by category", *kinds))
    body.append(f"<section><h2>Remarks</h2><ul>{said}</ul></section>")
    count = 1 + max(row.report for row in found.rows)
    title = f"{count} report{'s' * (count > 1)} of eagle3-validate"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>"
        f"<body><main><header><h1>{title}</h1></header>{''.join(body)}</main></body></html>\n"
    )


def as_csv(found: Comparison) -> str:
    """A row a setting, figures unrounded."""
    columns: dict[str, Callable[[ComparisonRow], object]] = {
        "report": lambda row: row.report,
        "file": lambda row: row.file,
        "draft": lambda row: row.draft,
        "target": lambda row: row.target,
        "dtype": lambda row: row.dtype,
        "num_draft_tokens": lambda row: row.num_draft_tokens,
        "tree": lambda row: row.tree and ",".join(map(str, row.tree)),
        "swept": lambda row: row.swept,
        "accept_length": lambda row: row.accept_length,
        "low": lambda row: row.interval and row.interval[0],
        "high": lambda row: row.interval and row.interval[1],
        "batch": lambda row: _speed(row, "batch"),
        "tokens_per_second": lambda row: _speed(row, "with"),
        "without_draft": lambda row: _speed(row, "without"),
        "ratio": lambda row: _speed(row, "ratio"),
        "expected_tokens_per_second": lambda row: row.expected,
        "verdict": lambda row: row.verdict,
        "difference": lambda row: row.difference and row.difference.difference,
        "difference_low": lambda row: _end(row, 0),
        "difference_high": lambda row: _end(row, 1),
        "p_value": lambda row: row.difference and row.difference.p_value,
        "prompts": lambda row: row.difference and row.difference.prompts,
        "not_compared": lambda row: "; ".join(
            one.message for one in found.obstacles.get(row.report, ())
        ),
    }
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([value(row) for value in columns.values()] for row in found.rows)
    return made.getvalue()


def remarks(found: Comparison) -> list[str]:
    """Which report is which file, and what keeps each from being compared with the first."""
    files = {row.report: row for row in found.rows}
    lines = [f"[{number}] {row.file}: {_of_what(row)}" for number, row in files.items()]
    for number, row in files.items():
        told = found.obstacles.get(number, ())
        surely = [one.message for one in told if one.certain]
        if surely:
            lines.append(f"[{number}] cannot be compared with [0]: {'; '.join(surely)}.")
        elif told:
            lines.append(f"[{number}]: {'; '.join(one.message for one in told)}.")
        elif number and (why := _no_difference(found, row)):
            lines.append(f"[{number}] has no difference from [0]: {why}.")
    return lines


def _of_what(row: ComparisonRow) -> str:
    """What was measured there."""
    if row.accept_length is None:
        return f"nothing was measured ({', '.join(row.refused) or 'no reason is given'})"
    target = f"target {row.target}" if row.target else "the target is not named"
    return f"{target}, {row.dtype or 'the dtype is not named'}"


def _no_difference(found: Comparison, row: ComparisonRow) -> str:
    """Why none is stated, where one is missed."""
    if row.accept_length is None or any(
        one.difference for one in found.rows if one.report == row.report
    ):
        return ""
    if found.rows[0].accept_length is None:
        return "nothing was measured there"
    return "a report has no rows of its prompts, or counted nothing in them"


def _shown(found: Comparison) -> list[ComparisonRow]:
    """Rows for a narrow place: of long sweeps those that are expected to be fastest, where that is known."""
    shown = []
    for number in dict.fromkeys(row.report for row in found.rows):
        swept = [row for row in found.rows if row.report == number and row.swept]
        if len(swept) > MOST_SWEPT:
            known = [row for row in swept if row.expected is not None]
            best = sorted(known, key=lambda row: -(row.expected or 0.0))[:MOST_SWEPT]
            swept = [row for row in swept if row in best]
        asked = (row for row in found.rows if row.report == number and not row.swept)
        shown += [*asked, *swept]
    return shown


def _left(found: Comparison, shown: Sequence[ComparisonRow]) -> Iterator[str]:
    """How many settings are not shown."""
    counts = Counter(row.report for row in found.rows)
    counts.subtract(Counter(row.report for row in shown))
    for number, count in counts.items():
        if count:
            yield f"[{number}] has {count} more settings of its sweep: --html, --csv and --json hold them."


def _cells(
    found: Comparison, rows: Sequence[ComparisonRow]
) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Columns and rows; a column of nothing is left out."""
    cells = [
        (
            f"[{row.report}]",
            row.draft,
            row.setting,
            _length(row),
            _pace(row),
            "sweep" if row.swept else row.verdict,
            _difference(found, row),
        )
        for row in rows
    ]
    kept = [place for place in range(len(COLUMNS)) if any(row[place] for row in cells)]
    return [COLUMNS[place] for place in kept], [
        tuple(row[place] for place in kept) for row in cells
    ]


def _length(row: ComparisonRow) -> str:
    if row.accept_length is None:
        return ""
    low, high = row.interval or (0.0, 0.0)
    told = f"({low:.2f} to {high:.2f})" if low < high else "(no interval)"
    return f"{row.accept_length:.3f} {told}"


def _pace(row: ComparisonRow) -> str:
    if row.expected is not None:
        return f"{row.expected:.1f} expected"
    if row.speed is None or _speed(row, "with") is None:
        return ""
    told = f"{row.speed['with']:.1f} at batch {row.speed['batch']}"
    if _speed(row, "without") is not None:
        told += f", {row.speed['without']:.1f} without"
    return told + (f" (x{row.speed['ratio']:.2f})" if _speed(row, "ratio") is not None else "")


def _speed(row: ComparisonRow, key: str) -> object:
    return None if row.speed is None else row.speed.get(key)


def _end(row: ComparisonRow, side: int) -> float | None:
    one = row.difference
    return None if one is None or one.interval is None else one.interval[side]


def _difference(found: Comparison, row: ComparisonRow) -> str:
    one = row.difference
    if one is None:
        certain = any(x.certain for x in found.obstacles.get(row.report, ()))
        return "not comparable" if certain and not row.swept else ""
    told = f"{one.difference:+.3f}"
    if one.interval is not None:
        told += f" ({one.interval[0]:+.2f} to {one.interval[1]:+.2f})"
    return f"{told}, p {one.p_value:.2g}{'' if one.certain else ', may be chance'}"


def _kinds(found: Comparison) -> tuple[Sequence[str], list[tuple[str, ...]]] | None:
    """Categories by reports, where at least one report has two of them."""
    told = {
        row.report: {x.category: x for x in row.categories} for row in found.rows if not row.swept
    }
    if max(map(len, told.values()), default=0) < 2:
        return None
    names = dict.fromkeys(name for kinds in told.values() for name in kinds)
    rows = [
        (
            name or UNNAMED,
            *(
                f"{kinds[name].accept_length:.3f}" if name in kinds else ""
                for kinds in told.values()
            ),
        )
        for name in names
    ]
    return ("", *(f"[{number}]" for number in told)), rows


def _html(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(title, columns, [[escape(cell) for cell in row] for row in rows])


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *([_plain(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _plain(text: str) -> str:
    """A text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>|~#!&])", r"\\\1", " ".join(text.split()))
