"""Write ``docs/findings.md`` from the registry of findings (``make docs``; a test compares the two)."""

from pathlib import Path

from eagle3_interop.schemas.codes import CODES

PAGE = Path(__file__).with_name("findings.md")
HEAD = """# Findings

Every remark of the tool has one of these codes; `eagle3-convert explain CODE` prints its row. An `error`
refuses (exit code 3, nothing is written), a `warning` may cost acceptance, a `note` records a choice.
This page is written by `make docs`.

| code | severity | what it means | what to do |
|---|---|---|---|
"""


def page() -> str:
    """The page."""
    rows = (
        f"| `{code}` | {entry.severity} | {entry.meaning} | {entry.fix} |"
        for code, entry in sorted(CODES.items())
    )
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
