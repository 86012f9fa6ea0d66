"""Tables on a terminal that lose no figure, however narrow it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

LOOK: dict[str, Any] = {
    "title_justify": "left",
    "title_style": "bold",
    "header_style": "dim",
    "box": None,
    "pad_edge": False,
    "collapse_padding": True,
}

PROSE = 24
"""Columns below which a text is not read as a column."""


@dataclass(frozen=True)
class Figures:
    """A table that loses no figure: where it does not fit, each row is a sentence that wraps.

    Attributes:
        title: above it.
        columns: their names.
        rows: their cells.
        prose: the last column is a text, which may wrap.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    prose: bool = False

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        """The table, or the sentences."""
        rigid = len(self.columns) - self.prose
        wide = options.update(max_width=100_000)
        needed = Measurement.get(console, wide, self._table(rigid)).maximum + PROSE * self.prose
        if needed <= options.max_width:
            yield self._table(len(self.columns))
            return
        if self.title:
            yield Text(self.title, style="bold")
        for row in self.rows:
            pairs = zip(self.columns, row, strict=True)
            yield Text(
                ", ".join(f"{name}: {cell}" if name else f"{cell}" for name, cell in pairs if cell)
            )

    def _table(self, count: int) -> Table:
        table = Table(title=escape(self.title) or None, **LOOK)
        for index, name in enumerate(self.columns[:count]):
            wraps = self.prose and index == len(self.columns) - 1
            figures = name and not self.prose
            table.add_column(
                name,
                justify="right" if figures else "left",
                no_wrap=not wraps,
                overflow="fold",
            )
        for row in self.rows:
            # A plain text would be read as rich's markup: "[best]" would be a style, and not seen.
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row[:count]))
        return table
