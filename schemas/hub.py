"""Ids of the Hugging Face Hub, told in one place: ``ORG/NAME``, and ``ORG/NAME@REVISION``."""

import re

_ID = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_PINNED = re.compile(rf"(?P<repo>{_ID})(@(?P<revision>\w[\w./-]*))?", re.ASCII)


def is_hub_id(text: str) -> bool:
    """Whether a text has the form ``ORG/NAME`` (a folder may have it too)."""
    return re.fullmatch(_ID, text, re.ASCII) is not None


def split_hub_id(text: str) -> tuple[str, str | None] | None:
    """``ORG/NAME[@REVISION]`` in its two parts; None where a text has another form."""
    match = _PINNED.fullmatch(text)
    return None if match is None else (match["repo"], match["revision"])
