"""Findings: every remark of this tool, with a stable code.

A finding is data. The text on a terminal, the JSON and the exit status are renderings of it; ``explain``
and the documentation read the same registry (``codes/``). What a code means for the program is on its row
too: nothing outside this module and the registry asks a finding for its name.
"""

from collections.abc import Collection, Iterable

from pydantic import BaseModel, ConfigDict, Field

from eagle3_interop.schemas.codes import CODES, Code, Severity


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

    @property
    def row(self) -> Code:
        """What the registry knows of every finding with this code."""
        return CODES[self.code]


def finding(
    code: str, where: object, message: str, *, fix: str | None = None, settled_by: str = ""
) -> Finding:
    """A finding with the registry's severity, and its way out unless another is given: the one constructor.

    Args:
        code: a key of the registry.
        where: the file, config key or tensor.
        message: what was found.
        fix: another way out than the registry's.
        settled_by: dotted path of the description that settles it.

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
        where=str(where),
        message=message,
        fix=way_out,
        settled_by=settled_by,
    )


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that refuse."""
    return [item for item in findings if item.severity == "error"]


def named(findings: Iterable[Finding], codes: Collection[str]) -> list[Finding]:
    """Those that the user named by their codes, with ``--allow``."""
    return [item for item in findings if item.code in codes]


def unmended(findings: Iterable[Finding]) -> list[Finding]:
    """Those whose fault the output still has: what a writer says that it mended is no finding any more."""
    said = list(findings)
    codes = {item.code for item in said}
    return [item for item in said if item.row.mended_by not in codes]


def has_effect(item: Finding, engine: str) -> bool:
    """Whether an engine that is run on this very folder does not load it, or computes something else."""
    return item.row.effect is not None and item.row.effect_in in ("", engine)


class Error(Exception):
    """What this tool raises on purpose: the message says what happened and what to do.

    Attributes:
        findings: what was found; empty where no folder is to blame.
    """

    findings: tuple[Finding, ...] = ()


class Refused(Error):  # noqa: N818 - what happened, not a malfunction
    """What a folder contains cannot be handled exactly (exit code 3). Nothing was written."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        """Keep the findings; at least one of them is an error."""
        self.findings = tuple(findings)
        super().__init__("; ".join(f"{f.where}: {f.message}" for f in errors(self.findings)))


def refusal(code: str, where: object, message: str, fix: str | None = None) -> Refused:
    """A `Refused` with one finding, ready to be raised; the arguments are those of `finding`."""
    return Refused([finding(code, where, message, fix=fix)])


class Unavailable(Error):  # noqa: N818
    """The outside world failed: disk, network, a missing extra, an engine (exit code 4)."""


class Usage(Error):  # noqa: N818
    """The command was called wrongly (exit code 2)."""
