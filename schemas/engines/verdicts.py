"""What a release makes of a folder: the network that is meant, another one, or nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts
from eagle3_interop.schemas.dialects.hf import CONFIG
from eagle3_interop.schemas.dialects.reading import check, check_target, with_target
from eagle3_interop.schemas.dialects.rules import Loading
from eagle3_interop.schemas.draft import Draft, differences
from eagle3_interop.schemas.engines import targets
from eagle3_interop.schemas.engines.release import Release
from eagle3_interop.schemas.findings import Finding, Refused, errors, finding, has_effect

AsIs = Literal["same", "different", "does-not-load"]
Remembered = dict[tuple[int, int], tuple[Reading, list[Finding]]]
"""By what reads a folder, what was read and what is to be said of its tensors."""


@dataclass(frozen=True)
class Verdict:
    """What one release makes of one folder.

    Attributes:
        as_is: it computes the network that is meant, another one without an error, or it does not load.
        differences: dotted path of the description to what is meant and what it computes.
        findings: what there is to say of that: why it does not load, what it would do otherwise.
    """

    as_is: AsIs
    differences: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def predict(
    release: Release,
    source: Source,
    meant: Draft,
    target: TargetFacts | None = None,
    *,
    tables: bool = False,
    remembered: Remembered | None = None,
) -> Verdict:
    """What a release makes of a folder, by its rules.

    Args:
        release: of an engine.
        source: the folder: config.json and the headers of its tensors.
        meant: the network that it shall compute.
        target: the target's facts, where it was given.
        tables: whose embedding table is used counts; False where it is the same either way, or not known.
        remembered: what readings of this folder found, where releases that read it by the same rules are asked.
    """
    if why := release.refuses(source.config):
        return Verdict("does-not-load", findings=(finding("fails-to-load", CONFIG, why),))
    facts = target or targets.facts_named(meant)
    classed = target or targets.class_named(meant)
    rules = release.rules(source.config)
    known = {} if remembered is None else remembered
    reader = release.reader(source.config)
    try:
        if reader not in known:
            known[reader] = _read(release, source, facts, target)
    except Refused as refused:
        return Verdict("does-not-load", findings=tuple(errors(refused.findings)))
    reading, checked = known[reader]
    wrong = differences(meant, reading.draft, tables=tables)
    found = [
        *reading.findings,
        *reading.stops,
        *checked,
        *_raised(source, reading, checked, rules),
        *([] if target is None else check_target(reading.draft, target)),
        *(
            release.unasked(reading.draft)
            if classed is None
            else release.uncaptured(reading.draft, classed)
        ),
    ]
    trouble = tuple(x for x in found if x.severity != "note" or has_effect(x, release.engine))
    fails = any(item.row.effect == "does-not-load" for item in trouble)
    differs = wrong or errors(trouble) or any(has_effect(x, release.engine) for x in trouble)
    state: AsIs = "does-not-load" if fails else "different" if differs else "same"
    return Verdict(state, wrong, trouble)


def _read(
    release: Release, source: Source, facts: TargetFacts | None, target: TargetFacts | None
) -> tuple[Reading, list[Finding]]:
    """What a release reads, and what there is to say of the tensors."""
    reading = release.read(source, facts)
    if target is not None:
        reading = with_target(reading, target)
    return reading, check(reading, source.tensors)


def _raised(
    source: Source, reading: Reading, checked: list[Finding], rules: Loading
) -> Iterator[Finding]:
    """An error for the first tensor that the release's class does not have, where its loader raises one."""
    if not rules.strict(source.config):
        return
    left = {item.where for item in checked if item.row.left_over}
    for name, stored in reading.names.items():
        if stored in left and not rules.passes_over(name):
            message = (
                f"{rules.title}'s class has no such parameter, and its loader raises an error."
            )
            yield finding("fails-to-load", stored, message)
            return
