"""Tables of a page."""

from collections.abc import Iterable, Sequence


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A section with a table; cells are HTML."""
    head = "".join(f"<th>{name}</th>" for name in columns)
    head = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<section><h2>{title}</h2><div class="scroll"><table>{head}<tbody>{body}</tbody></table>'
        "</div></section>"
    )
