"""Every release that is known, by engine, oldest first. A new one is one value and its place in its engine's tuple."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from eagle3_interop.schemas.dialects.base import Forms, TargetFacts
from eagle3_interop.schemas.dialects.rules import NestedRules
from eagle3_interop.schemas.engines.release import Release
from eagle3_interop.schemas.engines.sglang_releases import SGLANG
from eagle3_interop.schemas.engines.speculators_releases import SPECULATORS
from eagle3_interop.schemas.engines.versions import at_least, begins, is_version, numbers
from eagle3_interop.schemas.engines.vllm_releases import VLLM
from eagle3_interop.schemas.findings import Finding, Usage, finding, refusal

RELEASES: dict[str, tuple[Release, ...]] = {
    "speculators": SPECULATORS,
    "sglang": SGLANG,
    "vllm": VLLM,
}

HALF_A_YEAR = {"speculators": "0.6", "sglang": "0.5.11", "vllm": "0.20"}
"""The first release of the six months before the newest, by the dates in the wheels."""


def newest(engine: str) -> Release:
    """The newest known release of an engine."""
    return RELEASES[engine][-1]


def is_recent(release: Release) -> bool:
    """Whether one of its versions came out in the six months before the newest."""
    first = HALF_A_YEAR[release.engine]
    return at_least(release.until, first) or begins(release.until, first)


@dataclass(frozen=True)
class Named:
    """A release as somebody named it, or an engine said of itself.

    Attributes:
        version: as it was said.
        release: whose rules count.
        known: it is one that was looked at; else it is newer than all of them.
    """

    version: str
    release: Release
    known: bool = True

    @property
    def name(self) -> str:
        """The engine and the version, for messages."""
        return f"{self.release.title} {self.version}"

    @property
    def word(self) -> str:
        """As it stands on a command line."""
        return f"{self.release.engine}=={self.version}"

    @property
    def remarks(self) -> tuple[Finding, ...]:
        """What there is to say of a version that was not looked at."""
        if self.known:
            return ()
        message = f"{self.name} is newer than all that this tool knows: the rules of {self.release.name} were used."
        fix = "Load the folder with it once: its class says what it misses."
        if self.release.serves:
            fix = f"Measure what it does: eagle3-validate --engine {self.release.engine}."
        return (finding("release-unknown", self.word, message, fix=fix),)


def releases_for(engine: str, target: TargetFacts | None) -> list[Release]:
    """Every known release of an engine, oldest first, told apart where this target's class is another there."""
    return [part for release in RELEASES[engine] for part in release.split(target)]


def named(engine: str, version: str) -> Named:
    """The release of an engine that a version stands for; a prefix stands for its newest patch.

    Raises:
        Usage: it is no version.
        Refused: it is older than every known release.
    """
    releases = RELEASES[engine]
    if not is_version(version):
        latest = newest(engine)
        raise Usage(f"{version[:40]!r} is no version of {latest.title}, such as {latest.until}.")
    fitting = [release for release in releases if release.covers(version)]
    if fitting:
        return Named(version, replace(fitting[-1], since=version, until=version))
    earlier = [release for release in releases if at_least(version, release.since)]
    if not earlier:
        oldest = releases[0]
        message = f"{oldest.title} {version} is older than {oldest.since}, the oldest that this tool knows."
        raise refusal("release-too-old", f"{engine}=={version}", message)
    return Named(version, earlier[-1], known=earlier[-1] is not releases[-1])


def parse_named(words: Iterable[str]) -> tuple[Named, ...]:
    """Releases as a command line names them, ``ENGINE==VERSION``.

    Raises:
        Usage: it is something else.
        Refused: it is older than every known release.
    """
    found = []
    for word in dict.fromkeys(words):
        engine, equals, version = word.partition("==")
        if not equals or engine not in RELEASES:
            known = ", ".join(RELEASES)
            raise Usage(f"--for {word[:60]!r}: give ENGINE==VERSION, with one of {known}.")
        found.append(named(engine, version))
    return tuple(found)


def of_itself(engine: str, version: str) -> Named:
    """The release that an engine says of itself; a build that has no version of a release counts as newer than all.

    Raises:
        Refused: it is older than every known release.
    """
    if not is_version(version) or ".dev" in version:
        return Named(version, newest(engine), known=False)
    return named(engine, version)


def named_of(words: Iterable[str], engine: str) -> tuple[Named, ...]:
    """The releases of an engine that a command line names, oldest first.

    Raises:
        Usage: it names another engine's.
        Refused: one is older than every known release.
    """
    found = parse_named(words)
    for one in found:
        if one.release.engine != engine:
            raise Usage(f"--for {one.word}: give releases of {engine}.")
    return tuple(sorted(found, key=lambda one: numbers(one.version)))


def forms_for(releases: Iterable[Release]) -> Forms:
    """The forms of a folder that all these releases read right, where there is a choice."""
    found = Forms()
    for release in releases:
        for form in release.forms:
            if isinstance(form.rules, NestedRules):
                lost = (*found.bare, *form.rules.loses)
                found = replace(found, bare=tuple(dict.fromkeys(lost)))
            else:
                layer0 = form.rules.spelling.layer0
                kept = [one for one in found.layer0 or layer0 if one in layer0]
                found = replace(found, layer0=tuple(kept))
        found = replace(found, plain_targets=found.plain_targets | release.plain_targets)
    return found
