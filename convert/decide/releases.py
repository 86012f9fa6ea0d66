"""What each release makes of a folder, and of what a conversion writes; and which forms some of them need."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from eagle3_interop.convert.decide.fitting import Fitted, fit
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.decide.planning import Planned
from eagle3_interop.convert.read.checkpoint import by_transformers
from eagle3_interop.schemas.dialects.base import Forms, Source
from eagle3_interop.schemas.dialects.hf import CONFIG
from eagle3_interop.schemas.dialects.keys import LAYER
from eagle3_interop.schemas.engines.release import Release
from eagle3_interop.schemas.engines.releases import (
    RELEASES,
    Named,
    forms_for,
    is_recent,
    newest,
    releases_for,
)
from eagle3_interop.schemas.engines.targets import class_named, special_class
from eagle3_interop.schemas.engines.verdicts import AsIs, Remembered, Verdict, predict
from eagle3_interop.schemas.engines.versions import numbers
from eagle3_interop.schemas.findings import (
    Finding,
    Refused,
    Usage,
    errors,
    finding,
    has_effect,
)
from eagle3_interop.schemas.options import Options
from eagle3_interop.schemas.registry import DESTINATIONS, serving

_EMBEDDINGS = "embed_tokens.weight"


class ReadOnce:
    """A source whose maps and biases are read once, however many releases ask for them."""

    def __init__(self, source: Source) -> None:
        """Keep what costs nothing."""
        self.path = source.path
        self.config = source.config
        self.tensors = source.tensors
        self.values = cache(source.values)
        self.remembered: Remembered = {}


def verdict(loaded: Loaded, release: Release, source: ReadOnce | None = None) -> Verdict:
    """What a release makes of this very folder, by its rules.

    Args:
        loaded: the folder.
        release: of an engine.
        source: the folder again, where several releases are asked.
    """
    checkpoint = loaded.checkpoint
    if (
        release.files_of_transformers
        and not release.refuses(checkpoint.config)
        and not by_transformers(checkpoint.folder)
    ):
        message = (
            "transformers looks for model.safetensors, pytorch_model.bin and their indexes alone."
        )
        failing = finding("fails-to-load", checkpoint.files[0].name, message)
        return Verdict("does-not-load", findings=(failing,))
    tables = loaded.own_embeddings is True
    meant = loaded.reading.draft
    once = source or ReadOnce(checkpoint)
    found = predict(release, once, meant, loaded.facts, tables=tables, remembered=once.remembered)
    # No description holds the map itself: where the user's word replaced it, every engine adds other values.
    told = "d2t" in loaded.reading.maps and any("d2t" in name for name in loaded.reading.unused)
    if told and found.as_is == "same":
        return replace(found, as_is="different", differences={"vocabulary.map": ("ids", "offsets")})
    return found


def planned(fitted: Fitted, loaded: Loaded) -> Callable[[Release], Verdict]:
    """What a release makes of a planned output, before a byte of it is written."""
    stored = any(output.name == _EMBEDDINGS for output in fitted.outputs)
    own = fitted.draft.vocabulary.embeddings == "own" and loaded.own_embeddings is True
    source = ReadOnce(Planned(fitted, loaded))

    def of(release: Release) -> Verdict:
        return predict(
            release,
            source,
            fitted.draft,
            loaded.facts,
            tables=own or not stored,
            remembered=source.remembered,
        )

    return of


@dataclass(frozen=True)
class Row:
    """Releases that make the same of a folder, and for which the same conversion exists.

    Attributes:
        since: the first of them.
        until: the last; None for the newest and all that follow it.
        verdict: what they make of the folder as it is.
        convertible: ``stock``, ``plugin`` or ``refused``: what they would run of a conversion's output.
        obstacle: what they make otherwise of that output, in a few words.
        trouble: what they make otherwise of the folder, likewise.
        named: the user named this one release, and its neighbours were not looked at.
    """

    since: str
    until: str | None
    verdict: Verdict
    convertible: str
    obstacle: str = ""
    trouble: str = ""
    named: bool = False

    @property
    def versions(self) -> str:
        """The range, for people."""
        if self.until is None:
            return f"{self.since} and later"
        return self.since if self.since == self.until else f"{self.since} to {self.until}"

    @property
    def reason(self) -> str:
        """Why it is not right, the folder or what it becomes, in a few words."""
        if self.obstacle:
            return f"converted, {self.obstacle}"
        return self.trouble

    def same_as(self, other: "Row") -> bool:
        """Whether there is nothing to tell the two apart by."""
        return self._told() == other._told()

    def _told(self) -> tuple[Any, ...]:
        said = [(item.code, item.where) for item in self.verdict.findings]
        return self.verdict.as_is, self.verdict.differences, said, self.convertible, self.obstacle

    def report(self) -> dict[str, Any]:
        """One of ``releases`` in the JSON of inspect."""
        return {
            "since": self.since,
            "until": self.until,
            "as_is": self.verdict.as_is,
            "convertible": self.convertible,
            "differences": dict(self.verdict.differences),
            "findings": [item.model_dump() for item in self.verdict.findings],
        }


def rows(loaded: Loaded, engine: str, wanted: Sequence[Named] = ()) -> list[Row]:
    """What releases of an engine make of a folder, oldest first; equal neighbours are one row.

    Args:
        loaded: the folder.
        engine: whose releases.
        wanted: those that the user named; every known one, where none is of this engine.
    """
    convertible = _convertible(loaded, engine)
    source = ReadOnce(loaded.checkpoint)

    def row_of(release: Release, since: str, until: str) -> Row:
        state = verdict(loaded, release, source)
        converted, obstacle = convertible(release)
        return Row(since, until, state, converted, obstacle, brief(state, release))

    asked = [one for one in wanted if one.release.engine == engine]
    if asked:
        asked.sort(key=lambda one: numbers(one.version))
        return [replace(row_of(one.release, one.version, one.version), named=True) for one in asked]
    found: list[Row] = []
    for release in releases_for(engine, loaded.facts or class_named(loaded.draft)):
        row = row_of(release, release.since, release.until)
        if found and found[-1].same_as(row):
            row = replace(row, since=found.pop().since)
        found.append(row)
    return [*found[:-1], replace(found[-1], until=None)]


def _convertible(loaded: Loaded, engine: str) -> Callable[[Release], tuple[str, str]]:
    """For each release, what it would run of a conversion's output, made for it where there is a choice.

    Returns:
        From a release to ``stock``, ``plugin`` or ``refused``, and what stands in the way.
    """

    @cache
    def written(words: tuple[str, ...]) -> tuple[Fitted, Callable[[Release], Verdict]] | None:
        if errors(loaded.reading.findings):
            return None
        try:
            output = fit(loaded, engine, Options(target_name="ORG/NAME", releases=words))
        except Refused:
            return None
        return output, planned(output, loaded)

    # One word for all releases that need the same.
    words: dict[Forms, tuple[str, ...]] = {}

    def forms_of(release: Release, usual: Fitted) -> tuple[str, ...]:
        chosen = _chosen(forms_for([release]), usual, loaded)
        return words.setdefault(chosen, (f"{engine}=={release.until}",) if words else ())

    def of(release: Release) -> tuple[str, str]:
        first = written(())
        if first is None:
            return "refused", ""
        forms_of(newest(engine), first[0])
        obstacle = ""
        for word in dict.fromkeys(((), forms_of(release, first[0]))):
            output = written(word)
            if output is None:
                continue
            state = output[1](release)
            if state.as_is == "same":
                return "plugin" if output[0].writing.plugin else "stock", ""
            obstacle = brief(state, release)
        return "refused", obstacle

    return of


def _chosen(forms: Forms, usual: Fitted, loaded: Loaded) -> Forms:
    """What of the forms that a release needs makes another folder of this draft."""
    return Forms(
        layer0=tuple(x for x in usual.writing.spelling.layer0 if x in forms.layer0),
        bare=forms.bare if LAYER in usual.writing.config else (),
        plain_targets=forms.plain_targets & {special_class(loaded.facts)},
    )


def right_since(states: Sequence[tuple[str, AsIs | str]], right: str) -> str | None:
    """The first release since which every one is right; None, where the newest is not.

    Args:
        states: of every range its first version, and what is to be looked at; oldest first.
        right: the state that is right.
    """
    since = None
    for first, state in reversed(states):
        if state != right:
            break
        since = first
    return since


def runs_since(found: Sequence[Row]) -> str | None:
    """The first release since which every one runs a folder as it is; None, where the newest does not.

    Args:
        found: of `rows`.
    """
    return right_since([(row.since, row.verdict.as_is) for row in found], "same")


def readers(destination: str) -> tuple[str, ...]:
    """The engines that load what a conversion writes."""
    return tuple(dict.fromkeys((*DESTINATIONS[destination].engines, *serving(destination))))


def require_readers(destination: str, wanted: Sequence[Named]) -> None:
    """Refuse a named release of an engine that never loads this destination's folders.

    Raises:
        Usage: there is one.
    """
    able = readers(destination)
    for one in wanted:
        if one.release.engine not in able:
            titles = ", ".join(RELEASES[engine][-1].title for engine in able)
            raise Usage(f"--for {one.name}: what is written for {destination} is read by {titles}.")


@dataclass(frozen=True)
class Reach:
    """Which releases of an engine read an output right.

    Attributes:
        engine: its name.
        states: of every known release, oldest first, what it makes of the output.
        of: what any other does.
    """

    engine: str
    states: tuple[tuple[Release, Verdict], ...]
    of: Callable[[Release], Verdict]

    @property
    def since(self) -> str | None:
        """The first release since which every one reads it right."""
        states = [
            (r.since, "unasked" if unasked(found) else found.as_is) for r, found in self.states
        ]
        return right_since(states, "same")


def reaches(fitted: Fitted, loaded: Loaded, destination: str) -> list[Reach]:
    """Of every engine that loads a planned output, what each release makes of it."""
    of, classed = planned(fitted, loaded), loaded.facts or class_named(loaded.draft)
    return [
        Reach(engine, tuple((r, of(r)) for r in releases_for(engine, classed)), of)
        for engine in readers(destination)
    ]


def said_of_releases(found: Sequence[Reach], wanted: Sequence[Named]) -> list[Finding]:
    """What there is to say of the releases that read an output.

    Args:
        found: of `reaches`.
        wanted: releases that the user named: an error for each that does not read it right.
    """
    asked = {one.release.engine for one in wanted}
    said: list[Finding] = [item for one in wanted for item in one.remarks]
    for reach in found:
        said += _wrong_for(reach, [one for one in wanted if one.release.engine == reach.engine])
        title = RELEASES[reach.engine][-1].title
        if reach.since is None:
            said += _silently_other(replace(reach, states=reach.states[-1:]))
            continue
        message = f"{title} reads this output right since {reach.since}."
        said.append(finding("read-since", CONFIG, message))
        if reach.engine not in asked:
            said += _silently_other(reach)
    return said


def rules_of(engine: str, wanted: Sequence[Named]) -> list[str]:
    """The releases of an engine that an output was proved with: those that the user named, and the newest."""
    asked = [one.name for one in wanted if one.release.engine == engine]
    return [*asked, newest(engine).name]


def _wrong_for(reach: Reach, wanted: Sequence[Named]) -> Iterator[Finding]:
    for one in wanted:
        state = reach.of(one.release)
        if state.as_is == "same":
            yield from unasked(state)
            continue
        message = f"{one.name} {outcome(state)}: {why(state, one.release)}"
        title = one.release.title
        if reach.since is None:
            fix = f"No release of {title} that this tool knows reads it right."
        else:
            fix = f"Serve with {title} {reach.since} or later: it is the first that reads it right."
        yield finding("not-for-release", f"--for {one.word}", message, fix=fix)


def _silently_other(reach: Reach) -> Iterator[Finding]:
    for release, state in reach.states:
        if state.as_is == "different" and is_recent(release):
            versions = Row(release.since, release.until, state, "").versions
            message = f"{release.title} {versions} {outcome(state)}: {why(state, release)}"
            yield finding("older-differs", CONFIG, message)


def brief(state: Verdict, release: Release) -> str:
    """The reason in a few words: where it computes otherwise, or the first thing that keeps it from loading."""
    if state.as_is == "same":
        return " ".join(item.message for item in unasked(state))
    if state.as_is == "different" and state.differences:
        return f"otherwise: {', '.join(state.differences)}"
    return why(state, release, most=1)


def unasked(state: Verdict) -> list[Finding]:
    """What a release makes otherwise of a folder for some targets, where nothing names the target."""
    return [item for item in state.findings if item.row.asks_for_target]


_OUTCOMES = {
    "same": "reads this output right",
    "different": "computes another network from this output",
    "does-not-load": "does not load this output",
}


def outcome(state: Verdict) -> str:
    """What becomes of an output, in words."""
    return _OUTCOMES[state.as_is]


def why(state: Verdict, release: Release, most: int = 2) -> str:
    """The reason, in one line: what keeps it from loading, else what is computed otherwise."""
    reasons = [item for item in state.findings if item.row.effect == "does-not-load"]
    if state.as_is == "different":
        other = [
            f"{path} is {theirs!r}, not {ours!r}"
            for path, (ours, theirs) in state.differences.items()
        ]
        if other:
            return "; ".join(other) + "."
        reasons = [x for x in state.findings if has_effect(x, release.engine)]
    reasons = reasons or errors(state.findings)
    return "; ".join(f"{item.where}: {item.message}" for item in reasons[:most])
