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
from eagle3_interop.schemas.parameters import storable

AsIs = Literal["same", "different", "does-not-load"]


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
) -> Verdict:
    """What a release makes of a folder, by its rules.

    Args:
        release: of an engine.
        source: the folder: config.json and the headers of its tensors.
        meant: the network that it shall compute.
        target: the target's facts, where it was given.
        tables: whose embedding table is used counts; False where it is the same either way, or not known.
    """
    if why := release.refuses(source.config):
        return Verdict("does-not-load", findings=(finding("fails-to-load", CONFIG, why),))
    facts = target or targets.facts_named(meant)
    try:
        reading = release.read(source, facts)
    except Refused as refused:
        return Verdict("does-not-load", findings=tuple(errors(refused.findings)))
    if target is not None:
        reading = with_target(reading, target)
    wrong = differences(meant, reading.draft, tables=tables)
    found = [
        *reading.findings,
        *check(reading, source.tensors),
        *_raised(source, reading, release.rules(source.config)),
        *([] if target is None else check_target(reading.draft, target)),
        *([] if target is None else release.uncaptured(meant, target)),
    ]
    trouble = tuple(x for x in found if x.severity != "note" or has_effect(x, release.engine))
    fails = any(item.row.effect == "does-not-load" for item in trouble)
    differs = wrong or errors(trouble) or any(has_effect(x, release.engine) for x in trouble)
    state: AsIs = "does-not-load" if fails else "different" if differs else "same"
    return Verdict(state, wrong, trouble)


def _raised(source: Source, reading: Reading, rules: Loading) -> Iterator[Finding]:
    """An error for the first tensor that the release's class does not have, where its loader raises one."""
    if not rules.strict(source.config):
        return
    known = storable(reading.draft)
    for name, stored in reading.names.items():
        if name not in known and not rules.passes_over(name):
            message = (
                f"{rules.title}'s class has no such parameter, and its loader raises an error."
            )
            yield finding("fails-to-load", stored, message)
            return
