"""A draft as it was trained, where the code that trained it computes otherwise than the servers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eagle3_interop.convert.decide.overrides import settles, value_at, with_values
from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts
from eagle3_interop.schemas.dialects.hf import CONFIG
from eagle3_interop.schemas.dialects.keys import NEUTRAL, names_ids, no_longer_kept
from eagle3_interop.schemas.dialects.reading import with_target
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding, Usage, errors, finding, named
from eagle3_interop.schemas.parameters import shapes
from eagle3_interop.schemas.trainers.base import Certainty, Deviation, Signature, Trainer
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
        changes: dotted path to what was trained, of all that a description can say.
        switches: name to what was trained, of all that it can not, and no engine computes.
        accepted: switches whose loss the user accepts.
    """

    name: str
    certainty: Certainty
    sign: str
    applied: bool
    deviations: tuple[Mapping[str, Any], ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)
    accepted: frozenset[str] = frozenset()

    def draft(self, draft: Draft) -> Draft:
        """A description as it was trained, but for the switches."""
        return with_values(draft, self.changes) if self.changes else draft

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
    source: Source,
    reading: Reading,
    told: str | None,
    *,
    served_is_meant: bool,
    only_served: bool = False,
    allowed: Collection[str] = (),
    target: TargetFacts | None = None,
) -> tuple[Reading, Trained | None]:
    """The reading as the draft was trained, with what there is to say of that, and who trained it.

    Args:
        source: the folder.
        reading: as an engine serves it.
        told: the trainer that the user names, ``none``, or nothing.
        served_is_meant: the command names the engine whose reading it wants.
        only_served: the served network is measured, whoever trained it; what it differs in is said.
        allowed: codes of deviations that no folder can say, and that the user accepts.
        target: the target's facts, where it was given.

    Raises:
        Usage: no such trainer, or nothing that could be allowed.
    """
    _know_allowed(allowed)
    trainer, signature = _trainer(source, told)
    if trainer is None or signature is None:
        return reading, None
    own = _own_reading(trainer, source, reading, target)
    unread = _unread(own, reading)
    changes: dict[Deviation, Any] = {}
    draft = own.draft
    for deviation in trainer.deviations:
        value = deviation.trained(source, draft)
        if value != value_at(draft.model_dump(), deviation.path):
            changes[deviation] = value
            draft = with_values(draft, {deviation.path: value})
    lost = [one for one in trainer.uncarried if one.holds(source, own.draft)]
    certain = signature.certainty == "certain" and not served_is_meant and not only_served
    sign = f"{signature.certainty} sign of {trainer.title} ({signature.sign})"
    losses = {one.path: finding(one.code, CONFIG, f"{sign}: {one.message}") for one in lost}
    accepted = frozenset(path for path, item in losses.items() if named([item], allowed))
    otherwise = bool(changes or unread)
    # A loss that is accepted is settled, too: what is written asks nobody again.
    settled_now = (certain and otherwise) or (bool(accepted) and not otherwise)
    applied = told not in (None, NOBODY) or (told is None and settled_now and not only_served)
    served = reading.draft.model_dump()
    rows = [
        {
            "code": deviation.code,
            "path": deviation.path,
            "trained": value,
            "served": value_at(served, deviation.path),
            "written": value if applied else value_at(served, deviation.path),
        }
        for deviation, value in changes.items()
    ]
    rows += [
        {
            "code": "unread-tensor",
            "path": name,
            "trained": stored,
            "served": None,
            "written": stored if applied else None,
        }
        for name, stored in unread.items()
    ]
    rows += [
        {
            "code": one.code,
            "path": one.path,
            "trained": one.trained,
            "served": one.served,
            "written": one.served,
        }
        for one in lost
    ]
    who = Trained(
        trainer.name,
        signature.certainty,
        signature.sign,
        applied,
        tuple(rows),
        {deviation.path: value for deviation, value in changes.items()},
        {one.path: one.trained for one in lost},
        accepted,
    )
    if told == NOBODY:
        return reading, replace(who, changes={}, switches={})
    said: list[Finding] = []
    if told is None:
        code = (
            "served-otherwise"
            if only_served
            else "read-as-trained"
            if applied
            else "trained-otherwise"
        )
        for deviation, value in changes.items():
            was = value_at(served, deviation.path)
            message = f"{sign}, which trains with {deviation.path} {value!r} (served: {was!r})."
            said.append(finding(code, CONFIG, message, settled_by=deviation.path))
        if unread:
            message = f"{sign}, whose own layers use {', '.join(unread.values())}; the engine of this layout reads past that."
            said.append(finding(code, next(iter(unread.values())), message))
    for path, item in losses.items():
        lenient = path in accepted or only_served
        said.append(item.model_copy(update={"severity": "warning"}) if lenient else item)
    said += [
        finding(doubt.code, CONFIG, f"{sign}: {doubt.message}", settled_by=doubt.path)
        for doubt in trainer.doubts
        if doubt.holds(source, reading.draft)
    ]
    if trainer.ids_option and reading.draft.fc is not None and not names_ids(source.config):
        message = (
            f"{sign}, and no layer ids: if {trainer.ids_option} was set in the training run, "
            "that list never reached this folder, and engines feed the default triple instead."
        )
        said.append(finding("ids-were-options", CONFIG, message, settled_by="taps"))
    reading = own if applied else reading
    if certain or told is not None:
        said += _answered(trainer, sign, reading)
        reading = replace(reading, findings=_unasked(trainer, reading))
    settled = {deviation.path for deviation in changes}
    kept = [item for item in reading.findings if not settles(settled, item.settled_by)]
    if not applied:
        return replace(reading, findings=(*said, *kept)), who
    extras = _without(reading.extras, trainer.drops)
    if dropped := [path for path in trainer.drops if value_at(reading.extras, path) is not None]:
        message = f"by which {trainer.title} is recognised; left out of the keys that are kept: {', '.join(dropped)}."
        said.append(finding("trainer-keys", CONFIG, message))
        kept = no_longer_kept(kept, dropped)
    return replace(reading, draft=draft, extras=extras, findings=(*said, *kept)), who


def _own_reading(
    trainer: Trainer, source: Source, reading: Reading, target: TargetFacts | None
) -> Reading:
    """The folder as the trainer's own class takes it, which is mostly what engines take."""
    own = trainer.reads(source, target)
    if own is None:
        return reading
    return own if target is None else with_target(own, target)


def _unread(own: Reading, served: Reading) -> dict[str, str]:
    """Canonical to stored name of what the trainer's class uses and the engine does not."""
    used = shapes(served.draft)
    return {
        name: stored
        for name, stored in own.names.items()
        if served.names.get(name) != stored or (name in shapes(own.draft) and name not in used)
    }


def _answered(trainer: Trainer, sign: str, reading: Reading) -> list[Finding]:
    """What its forward answers of the errors of a reading, which were raised for engines."""
    computed = reading.draft.model_dump()
    asked = [item for item in errors(reading.findings) if item.settled_by in trainer.settles]
    return [
        finding(
            "read-as-trained",
            item.where,
            f"{trainer.title} never reads this key, and it is left out ({sign})."
            if item.settled_by in NEUTRAL
            else f"{trainer.title} computes {item.settled_by} "
            f"{value_at(computed, item.settled_by)!r}, as the folder says ({sign}).",
        )
        for item in asked
    ]


def _unasked(trainer: Trainer, reading: Reading) -> tuple[Finding, ...]:
    asked = {item for item in errors(reading.findings) if item.settled_by in trainer.settles}
    return tuple(item for item in reading.findings if item not in asked)


def _without(extras: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """The keys without those at these dotted paths."""
    kept: dict[str, Any] = {}
    for key, value in extras.items():
        if key in paths:
            continue
        inner = [path.removeprefix(f"{key}.") for path in paths if path.startswith(f"{key}.")]
        kept[key] = _without(value, inner) if inner and isinstance(value, Mapping) else value
    return kept


def _know_allowed(words: Collection[str]) -> None:
    known = {one.code for trainer in TRAINERS.values() for one in trainer.uncarried}
    for word in sorted(set(words) - known):
        listed = ", ".join(sorted(known))
        raise Usage(f"--allow {word}: a conversion can be allowed to lose one of {listed}.")


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
