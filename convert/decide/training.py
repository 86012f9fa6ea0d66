"""A draft as it was trained, where the code that trained it computes otherwise than the servers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eagle3_interop.convert.decide.overrides import value_at, with_values
from eagle3_interop.schemas.dialects.base import Reading, Source
from eagle3_interop.schemas.findings import Finding, Usage, finding
from eagle3_interop.schemas.trainers.base import Certainty, Signature, Trainer
from eagle3_interop.schemas.trainers.table import TRAINERS

NOBODY = "none"
"""The word by which a user asks for what is served, whoever trained it."""


@dataclass(frozen=True)
class Trained:
    """Who trained a draft, and what became of it.

    Attributes:
        name: of the trainer.
        certainty: how sure that is.
        sign: by which it was recognised.
        applied: the network is the trained one; else the served one.
        deviations: rows of ``code``, ``path``, ``trained``, ``served`` and ``written``.
    """

    name: str
    certainty: Certainty
    sign: str
    applied: bool
    deviations: tuple[Mapping[str, Any], ...]

    def report(self) -> dict[str, Any]:
        """The JSON of ``trainer`` (``docs/cli.md``)."""
        rows = [dict(row) for row in self.deviations]
        return {
            "name": self.name,
            "certainty": self.certainty,
            "sign": self.sign,
            "applied": self.applied,
            "deviations": rows,
        }


def as_trained(
    source: Source, reading: Reading, told: str | None, *, served_is_meant: bool
) -> tuple[Reading, Trained | None, list[Finding]]:
    """The reading as the draft was trained, who trained it, and what there is to say of that.

    Args:
        source: the folder.
        reading: as an engine serves it.
        told: the trainer that the user names, ``none``, or nothing.
        served_is_meant: the command names the engine whose reading it wants.

    Raises:
        Usage: no such trainer.
    """
    trainer, signature = _trainer(source, told)
    if trainer is None or signature is None:
        return reading, None, []
    changes = {}
    draft = reading.draft
    for deviation in trainer.deviations:
        value = deviation.trained(source, draft)
        if value != value_at(draft.model_dump(), deviation.path):
            changes[deviation] = value
            draft = with_values(draft, {deviation.path: value})
    said, applied = [], told not in (None, NOBODY)
    if changes and told is None:
        applied = signature.certainty == "certain" and not served_is_meant
        what = "; ".join(
            f"{deviation.path} {value!r} (served: {value_at(reading.draft.model_dump(), deviation.path)!r})"
            for deviation, value in changes.items()
        )
        code = "read-as-trained" if applied else "trained-otherwise"
        message = f"{signature.certainty} sign of {trainer.title} ({signature.sign}), which trains with {what}."
        said.append(finding(code, "config.json", message))
    served = reading.draft.model_dump()
    rows = tuple(
        {
            "code": deviation.code,
            "path": deviation.path,
            "trained": value,
            "served": value_at(served, deviation.path),
            "written": value if applied else value_at(served, deviation.path),
        }
        for deviation, value in changes.items()
    )
    who = Trained(trainer.name, signature.certainty, signature.sign, applied, rows)
    if not applied:
        return reading, who, said
    extras = {key: value for key, value in reading.extras.items() if key not in trainer.drops}
    return replace(reading, draft=draft, extras=extras), who, said


def _trainer(source: Source, told: str | None) -> tuple[Trainer | None, Signature | None]:
    if told not in (None, NOBODY, *TRAINERS):
        known = ", ".join((*TRAINERS, NOBODY))
        raise Usage(f"--trainer {told}: give one of {known}.")
    if told is not None and told != NOBODY:
        return TRAINERS[told], Signature("told", f"--trainer {told}")
    found = [(one, sign) for one in TRAINERS.values() if (sign := one.signs(source)) is not None]
    # A certain sign goes before a likely one; of two likely ones nobody can choose.
    found.sort(key=lambda pair: pair[1].certainty)
    if not found or (len(found) > 1 and found[0][1].certainty == found[1][1].certainty):
        return None, None
    return found[0]
