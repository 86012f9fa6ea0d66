"""Values in a card: text that Markdown and HTML show as it is, whatever it holds."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from eagle3_interop.convert.masking import masked, shortened

# What Markdown reads inside a line: marks of emphasis, code, links, images, tables, struck text, formulas.
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# Bare addresses become links on their own.
_LINKS = re.compile(r"(?i)(?<=:)//|(?<=www)\.|(?<=xmpp):|(?<=mailto):|@")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
_CODE = re.compile(r"[^\W_][\w .,:;/@+=()\[\]{}'\"!?%^-]*|[_./-]*[^\W][\w ./@+=-]*")
_WORD = re.compile(r"[^\W][\w.,:@/+=-]*|\.{1,2}/[\w./-]+")
_TICKS = re.compile(r"`{3,}")


def plain(value: object) -> str:
    """Text for a line or a cell: it starts no mark of Markdown, no HTML, no link, and ends no section."""
    text = _UNSEEN.sub(" ", masked(shortened(_shown(value))))
    text = escape(_MARKS.sub(r"\\\g<0>", " ".join(text.split())), quote=False)
    return _LINKS.sub(_broken, text)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_shown, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def _broken(match: re.Match[str]) -> str:
    return "&#64;" if match[0] == "@" else f"\\{match[0]}"


def code(value: object) -> str:
    """An identifier: as code where nothing in it could end the code, as text otherwise."""
    text = str("" if value is None else value)
    return f"`{text}`" if _CODE.fullmatch(text) and shortened(text) == text else plain(text)


def word(value: object, instead: str) -> str:
    """A word of a command that somebody may paste; what is not plainly one is left for them to fill in."""
    text = masked(shortened(str(value)))
    return text if _WORD.fullmatch(text) else instead


def block(command: str) -> str:
    """A block of shell commands; its fence is longer than any in it."""
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in _TICKS.findall(command)), 3)
    return f"{fence}bash\n{command}\n{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are Markdown already, by `plain` or `code`."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
