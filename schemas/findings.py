"""Findings: every remark of this tool, with a stable code.

A finding is data. The text on a terminal, the JSON and the exit status are renderings of it; `explain`
and the documentation read the same registry.
"""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

Severity = Literal["error", "warning", "note"]


class Finding(BaseModel):
    """One remark.

    Attributes:
        code: stable kebab-case name, a key of the registry.
        severity: an ``error`` refuses; a ``warning`` may cost acceptance; a ``note`` records a choice.
        where: the file, config key or tensor it is about.
        message: what was found, and what it means.
        fix: what to do about it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    severity: Severity
    where: str
    message: str
    fix: str = ""


class Refused(Exception):
    """What a folder contains cannot be handled exactly (exit code 3). Nothing was written."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        """Keep the findings; at least one of them is an error."""
        self.findings = tuple(findings)
        super().__init__("; ".join(f"{f.where}: {f.message}" for f in self.findings if f.severity == "error"))


class Unavailable(Exception):
    """The outside world failed: disk, network, a missing extra, an engine (exit code 4)."""


class Usage(Exception):
    """The command was called wrongly (exit code 2)."""
