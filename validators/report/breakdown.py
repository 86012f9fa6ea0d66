"""Where a draft is accepted and where not: on a terminal, on the page, and as CSV."""

import csv
import io
from collections.abc import Iterator
from html import escape

from eagle3_interop.convert.tables import Figures
from eagle3_interop.schemas.breakdown import Breakdown, CategoryRow, MarkedText, VocabularyRow
from eagle3_interop.schemas.report import Report
from eagle3_interop.validators.report.tables import table

UNNAMED = "(none)"
"""The category of prompts that name none."""


def figures(found: Breakdown) -> Iterator[Figures | str]:
    """On a terminal: the categories, where there are two at least, and what the vocabulary lacks."""
    if len(found.categories) > 1:
        rows = [
            (row.category or UNNAMED, _length(row), f"{row.prompts}", f"{row.steps}")
            for row in found.categories
        ]
        yield Figures("by category", ("", "accept length", "prompts", "steps"), rows)
    if found.vocabulary.inexpressible:
        yield spoken(found.vocabulary)


def spoken(row: VocabularyRow) -> str:
    """What the vocabulary costs, in a sentence."""
    return (
        f"the draft can propose {row.draft_size:,} of the target's {row.target_size:,} tokens, but not "
        f"{row.inexpressible:,} of the {row.tokens:,} new ones ({_share(row.inexpressible, row.tokens)}): no draft with "
        f"this vocabulary has an accept length above {row.accept_length_bound:.3f} on these texts"
    )


def sections(found: Breakdown) -> list[str]:
    """On the page."""
    vocabulary = found.vocabulary
    told = (
        spoken(vocabulary)
        if vocabulary.inexpressible
        else f"the draft can propose all {vocabulary.tokens:,} new tokens of these texts"
    )
    return [
        _categories(found) if found.categories else "",
        _contexts(found),
        f"<section><h2>Vocabulary</h2><p>{escape(told)}.</p></section>",
        _missed(found) if found.missed else "",
        _texts(found) if found.texts else "",
    ]


def _categories(found: Breakdown) -> str:
    rows = (
        (escape(row.category or UNNAMED), _length(row), f"{row.prompts}", f"{row.steps:,}")
        for row in found.categories
    )
    columns = ("category", "accept length, 95 % interval", "prompts", "steps")
    return table("Accept length by category", columns, rows)


def _contexts(found: Breakdown) -> str:
    rows = (
        (f"{row.first:,} to {row.last:,}", f"{row.accept_length:.3f}", f"{row.steps:,}")
        for row in found.contexts
    )
    columns = ("tokens before the step", "accept length", "steps")
    return table("Accept length by position in the context", columns, rows)


def _missed(found: Breakdown) -> str:
    rows = (
        (
            f"<code>{escape(repr(row.text))}</code>",
            f"{row.token}",
            f"{row.missed:,}",
            f"{row.tokens:,}",
            "" if row.expressible else "the draft cannot propose it",
        )
        for row in found.missed
    )
    columns = ("token", "id", "drafts that ended at it", "times in the texts", "")
    return table("Where drafts fail most", columns, rows)


def _texts(found: Breakdown) -> str:
    texts = "".join(
        f"<h3>Text {one.prompt}</h3><div class=text>{_marked(one)}</div>" for one in found.texts
    )
    return (
        "<section><h2>The texts with the smallest accept length</h2>"
        '<p class="soft">Marked: accepted draft tokens. Each gap between two marks is one token of the target\'s '
        f"own, or several where nothing was accepted.</p>{texts}</section>"
    )


def _marked(one: MarkedText) -> str:
    """The text with its accepted runs."""
    parts, done = [], 0
    for first, last in one.accepted:
        parts += [escape(one.text[done:first]), f"<mark>{escape(one.text[first:last])}</mark>"]
        done = last
    parts += [escape(one.text[done:]), "" if one.whole else "<span class=soft> ...</span>"]
    return "".join(parts)


def _length(row: CategoryRow) -> str:
    low, high = row.interval
    told = f"{low:.2f} to {high:.2f}" if low < high else "no interval"
    return f"{row.accept_length:.3f} ({told})"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"


def prompts_csv(report: Report) -> str:
    """The rows of the prompts."""
    rows = report.prompts or ()
    depth = max((len(row.per_position) for row in rows), default=0)
    positions = [f"accepted_at_{position}" for position in range(1, depth + 1)]
    names = ("prompt", "category", "tokens", "steps", "accepted", "accept_length", "inexpressible")
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow([*names, *positions])
    for number, row in enumerate(rows):
        values = (getattr(row, name) for name in names[1:])
        writer.writerow([number, *values, *row.per_position])
    return made.getvalue()
