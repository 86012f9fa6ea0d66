"""Findings: every remark of this tool, with a stable code.

A finding is data. The text on a terminal, the JSON and the exit status are renderings of it; ``explain``
and the documentation read the same registry (``codes.py``).
"""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field

from eagle3_interop.schemas.codes import CODES, Severity


class Finding(BaseModel):
    """One remark.

    Attributes:
        code: stable kebab-case name, a key of the registry.
        severity: an ``error`` refuses; a ``warning`` may cost acceptance; a ``note`` records a choice.
        where: the file, config key or tensor it is about.
        message: what was found, and what it means.
        fix: what to do about it.
        settled_by: dotted path of the description that settles it when the user sets it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    severity: Severity
    where: str
    message: str
    fix: str = ""
    settled_by: str = Field(default="", exclude=True)


def finding(
    code: str, where: str, message: str, *, fix: str | None = None, settled_by: str = ""
) -> Finding:
    """A finding with the registry's severity, and its way out unless another is given.

    Raises:
        KeyError: the code is not in the registry.
    """
    entry = CODES[code]
    way_out = entry.fix if fix is None else fix
    if settled_by and not way_out:
        way_out = f"Say which is right: --set {settled_by}=VALUE."
    return Finding(
        code=code,
        severity=entry.severity,
        where=where,
        message=message,
        fix=way_out,
        settled_by=settled_by,
    )


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that refuse."""
    return [item for item in findings if item.severity == "error"]


class Refused(Exception):  # noqa: N818 - what happened, not a malfunction
    """What a folder contains cannot be handled exactly (exit code 3). Nothing was written."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        """Keep the findings; at least one of them is an error."""
        self.findings = tuple(findings)
        super().__init__("; ".join(f"{f.where}: {f.message}" for f in errors(self.findings)))


class Unavailable(Exception):  # noqa: N818
    """The outside world failed: disk, network, a missing extra, an engine (exit code 4)."""


class Usage(Exception):  # noqa: N818
    """The command was called wrongly (exit code 2)."""
