"""The gate of a push: a report of eagle3-validate that passed, and that is about these very files."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from eagle3_interop.convert.read.strict_json import MAX_JSON_BYTES, parse_object
from eagle3_interop.recipes.publish.consistency import contradictions
from eagle3_interop.schemas.codes import CODES
from eagle3_interop.schemas.findings import Finding, Refused, Usage, named
from eagle3_interop.schemas.report import AcceptanceReport, Report


class _Draft(BaseModel):
    as_is: dict[str, str] | None = None
    since: dict[str, str | None] | None = None


class _Environment(BaseModel):
    """What a push uses of it."""

    versions: dict[str, str | None] | None = None
    target: dict[str, Any] | None = None
    draft: _Draft | None = None
    prompts: dict[str, Any] | None = None
    seed: int | None = None


class _Surroundings(BaseModel):
    environment: _Environment


def read_report(path: Path) -> Report:
    """Read a report.

    Raises:
        Usage: it cannot be read, or is not a report of eagle3-validate.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)  # a device may have no end
        if len(content) > MAX_JSON_BYTES:
            raise Usage(f"--report {path}: more than {MAX_JSON_BYTES // 10**6} MB; give a report.")
        report = Report.model_validate(parse_object(content, "broken-config", path))
        _Surroundings.model_validate({"environment": report.environment})
    except OSError as error:
        raise Usage(f"--report {path}: {error.strerror}") from None
    except Refused as refused:
        reason = refused.findings[0].message
        raise Usage(f"--report {path} is not a report of eagle3-validate: {reason}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        message = f"--report {path} is not a report of eagle3-validate: {key}: {first['msg']}"
        raise Usage(message) from None
    return report


def check_allowed(codes: Collection[str]) -> None:
    """Refuse an ``--allow`` that could never have an effect.

    Raises:
        Usage: the code is unknown, or not a warning's.
    """
    for code in codes:
        if code not in CODES:
            raise Usage(f"--allow {code}: there is no such code; see eagle3-convert explain CODE.")
        if CODES[code].severity != "warning":
            raise Usage(f"--allow {code}: it is no warning, and only warnings can be allowed.")


def failures(
    report: Report,
    files: Mapping[str, str],
    allowed: Collection[str] = (),
    min_accept_length: float | None = None,
    left: Collection[str] = (),
) -> list[str]:
    """Every reason not to push; none is a pass.

    Args:
        report: of the validation.
        files: name to sha256 of every file that would be pushed.
        allowed: codes of warnings that the user accepts.
        min_accept_length: what the measured accept length must reach.
        left: files of the folder that would not be pushed; they may be in the report.
    """
    return [
        *_verdict(report),
        *contradictions(report),
        *_files(report.checkpoint.files, files, left),
        *_findings(report, allowed),
        *_length(report.acceptance, min_accept_length),
    ]


def accepted_warnings(report: Report, allowed: Collection[str]) -> list[Finding]:
    """The report's warnings that ``--allow`` let through."""
    return named((item for item in report.findings if item.severity == "warning"), allowed)


def _verdict(report: Report) -> list[str]:
    reasons = []
    if report.verdict != "pass":
        reasons.append(f"the report's verdict is {report.verdict!r}")
    if not report.gates:
        reasons.append(
            "the report holds no gate: validate with --against, an engine or --min-accept-length"
        )
    reasons += [
        f"the gate {gate.name} failed: wanted {gate.wanted}, got {gate.got}"
        for gate in report.gates
        if not gate.passed
    ]
    return reasons


def _files(
    validated: Mapping[str, str], files: Mapping[str, str], left: Collection[str]
) -> list[str]:
    reasons = []
    for name, sha256 in files.items():
        if name not in validated:
            reasons.append(f"{name} is not in the report: validate the folder as it is now")
        elif validated[name].lower() != sha256:
            reasons.append(f"{name} is not the file that was validated (its sha256 differs)")
    missing = sorted(validated.keys() - {*files, *left})
    reasons += [f"{name} was validated, and is not in this folder" for name in missing]
    return reasons


def _findings(report: Report, allowed: Collection[str]) -> list[str]:
    accepted = accepted_warnings(report, allowed)
    return [
        f"{item.severity} {item.code} ({item.where}): {item.message}"
        + (f" Accept it with --allow {item.code}." if item.severity == "warning" else "")
        for item in report.findings
        if item.severity != "note" and item not in accepted
    ]


def _length(acceptance: AcceptanceReport | None, wanted: float | None) -> list[str]:
    if wanted is None:
        return []
    if acceptance is None:
        return ["--min-accept-length: the report holds no accept length"]
    if not wanted <= acceptance.accept_length < math.inf:
        return [f"the accept length is {acceptance.accept_length:.3f}, and {wanted:g} is wanted"]
    return []
