"""Plots as inline SVG, coloured by the page's own variables, so that they follow its colour scheme."""

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 16, 40

Series = tuple[str, Sequence[float]]
"""A name, and a share between 0 and 1 for each position."""


def bars(title: str, series: Sequence[Series]) -> str:
    """Bars side by side: shares by draft position."""
    count = max(len(values) for _, values in series)
    slot = (WIDTH - LEFT - RIGHT) / max(count, 1)
    width = min(56.0, slot * 0.8 / len(series))
    parts = []
    for place, (name, values) in enumerate(series):
        for index, value in enumerate(values):
            x = LEFT + slot * (index + 0.5) + width * (place - len(series) / 2)
            y = _y(value)
            tip = escape(f"{name}, position {index + 1}: {100 * value:.1f} %")
            parts.append(
                f'<rect class="s{place}" x="{x + 1:.1f}" y="{y:.1f}" width="{width - 2:.1f}" '
                f'height="{_y(0) - y:.1f}" rx="2"><title>{tip}</title></rect>'
            )
            if width >= 24:
                parts.append(
                    f'<text class="value" x="{x + width / 2:.1f}" y="{y - 5:.1f}">{100 * value:.0f}</text>'
                )
    return _plot(title, count, slot, parts)


def lines(title: str, series: Sequence[Series]) -> str:
    """Lines with dots: shares by draft position."""
    count = max(len(values) for _, values in series)
    slot = (WIDTH - LEFT - RIGHT) / max(count, 1)
    parts = []
    for place, (name, values) in enumerate(series):
        points = [
            (LEFT + slot * (index + 0.5), _y(value), value) for index, value in enumerate(values)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline class="l{place}" points="{path}"/>')
        for index, (x, y, value) in enumerate(points):
            tip = escape(f"{name}, position {index + 1}: {100 * value:.1f} %")
            parts.append(
                f'<circle class="s{place}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{tip}</title></circle>'
            )
    return _plot(title, count, slot, parts)


def legend(names: Sequence[str]) -> str:
    """What the colours mean."""
    entries = (
        f'<span><i class="b{place}"></i>{escape(name)}</span>' for place, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(entries)}</p>'


def _y(share: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(share, 0.0), 1.0))


def _plot(title: str, count: int, slot: float, parts: Sequence[str]) -> str:
    grid = []
    for percent in range(0, 101, 25):
        y = _y(percent / 100)
        grid.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        grid.append(f'<text class="tick end" x="{LEFT - 8}" y="{y + 4}">{percent} %</text>')
    for index in range(count):
        x = LEFT + slot * (index + 0.5)
        grid.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 20}">{index + 1}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    grid.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 4}">draft position</text>')
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(grid)}{''.join(parts)}</svg>"
    )
