"""A release: what an engine of one version makes of a folder and of a target, as data."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eagle3_interop.schemas.dialects.base import (
    Reading,
    Source,
    TargetFacts,
    TensorHeader,
)
from eagle3_interop.schemas.dialects.flat import read_flat
from eagle3_interop.schemas.dialects.hf import CONFIG
from eagle3_interop.schemas.dialects.keys import IDS
from eagle3_interop.schemas.dialects.nested import read_nested
from eagle3_interop.schemas.dialects.rules import FlatRules, NestedRules
from eagle3_interop.schemas.draft import DefaultTaps, Draft, default_taps
from eagle3_interop.schemas.engines.loaders import Loader
from eagle3_interop.schemas.engines.naming import Naming
from eagle3_interop.schemas.engines.targets import taps_of
from eagle3_interop.schemas.engines.versions import at_least, before, begins, covers, numbers
from eagle3_interop.schemas.findings import Finding, finding


@dataclass(frozen=True)
class Form:
    """A form of folder that a release reads.

    Attributes:
        accepts: from config.json, whether a folder has this form.
        rules: how it is read.
        config: from config.json, the keys that the engine makes of it before it reads them.
    """

    accepts: Callable[[Mapping[str, Any]], bool]
    rules: FlatRules | NestedRules
    config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict


@dataclass(frozen=True)
class _Viewed:
    """A source whose config is what an engine makes of it."""

    path: str
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorHeader]
    values: Callable[[str], Any]


@dataclass(frozen=True)
class Release:
    """One engine over a range of its versions: another version is `dataclasses.replace` of it.

    Attributes:
        engine: its name in commands.
        title: its name for people.
        since: the first version of the range; messages name it.
        until: the last version of the range that was looked at; its patches are in the range.
        forms: what it reads; the first that accepts a folder counts, else the last.
        refuses: from config.json, why it would not start at all; empty where it would, rightly or not.
        captures: from the release's name, a draft and its target: what the target's class cannot hand over.
        naming: by which names it asks a quantised folder's lists.
        loader: what its loader does with a folder, whatever the network.
        serves: it serves drafts; a library that only trains and loads them does not.
        trees: it drafts trees as well as chains.
        files_of_transformers: it looks for weight files by transformers' own names alone.
        hands_out: of a target, the first version that takes hidden states from it; None, where nothing is said.
        plain_targets: target classes whose ids it takes by the plain rule, although the newest has another.
        no_embedding: target classes that fail on a tap before their first layer, as others do today.
        no_end: no target captures the stream after its last layer.
        consolidated_first: of safetensors files it takes Mistral's ``consolidated*`` before all others.
        joined_flags: short flags that take their value without a space and are in no list of its parser.
    """

    engine: str
    title: str
    since: str
    until: str
    forms: tuple[Form, ...]
    refuses: Callable[[Mapping[str, Any]], str]
    captures: Callable[[str, Draft, TargetFacts], Iterator[Finding]]
    naming: Naming
    loader: Loader = field(default_factory=Loader)
    serves: bool = True
    trees: bool = False
    files_of_transformers: bool = False
    hands_out: Callable[[TargetFacts], str | None] = lambda _target: None
    plain_targets: frozenset[str] = frozenset()
    no_embedding: frozenset[str] = frozenset()
    no_end: bool = False
    consolidated_first: bool = False
    joined_flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The engine and its version, for messages; of a range the last."""
        return f"{self.title} {self.until}"

    @property
    def possessive(self) -> str:
        """Its title in the genitive."""
        return f"{self.title}'" if self.title.endswith("s") else f"{self.title}'s"

    def covers(self, version: str) -> bool:
        """Whether it is this version's release; a prefix such as ``0.21`` stands for the newest patch."""
        return covers(self.since, self.until, version)

    def rules(self, config: Mapping[str, Any]) -> FlatRules | NestedRules:
        """By which rules it reads a folder with this config.json."""
        return self._form(config).rules

    def read(self, source: Source, target: TargetFacts | None) -> Reading:
        """Read a folder as this release does.

        Args:
            source: the checkpoint.
            target: the target's facts, where it was given.

        Raises:
            Refused: the config cannot be understood at all.
        """
        rules, config = self.rules(source.config), self.seen(source.config)
        if config != source.config:
            source = _Viewed(source.path, config, source.tensors, source.values)
        if isinstance(rules, NestedRules):
            return read_nested(source, target, rules)
        return read_flat(source, target, rules)

    def seen(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """What this release makes of a config.json before it reads its keys."""
        return self._form(config).config(config)

    def reader(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """What tells its reading of a folder from another release's: its rules, and what it makes of the config."""
        form = self._form(config)
        return id(form.rules), id(form.config)

    def _form(self, config: Mapping[str, Any]) -> Form:
        return next((form for form in self.forms if form.accepts(config)), self.forms[-1])

    def uncaptured(self, draft: Draft, target: TargetFacts) -> Iterator[Finding]:
        """What this target's class in the engine cannot hand over of what the draft taps."""
        yield from self.captures(self.name, draft, target)
        if draft.fc is None:
            return
        if draft.tapping == DefaultTaps() and default_taps(target.layers) is None:
            message = (
                f"{self.title} feeds the default triple, and {target.layers} layers do not have three "
                f"different streams for it: fc takes {draft.fc.blocks}."
            )
            yield finding("taps-mismatch", f"{CONFIG}: {IDS}", message)
        named, where = next(iter(target.architectures), ""), f"{CONFIG}: architectures"
        first = self.hands_out(target)
        if first is not None and not (at_least(self.until, first) or begins(first, self.until)):
            message = f"{self.title} takes no hidden states from {named} before {first}."
            yield finding("target-captures-nothing", where, message)
        taps = taps_of(draft, target)
        if 0 in taps and named in self.no_embedding:
            message = f"this {self.title}'s {named} fails on a tap before its first layer."
            yield finding("embedding-tap", where, message)
        if target.layers in taps and self.no_end:
            message = f"tap {target.layers} lies after the last layer, which no target of this {self.title} captures."
            yield finding("end-tap", where, message)

    def unasked(self, draft: Draft) -> Iterator[Finding]:
        """What depends on the class of a target that nothing names."""
        if self.no_embedding and draft.fc is not None and 0 in (draft.taps or ()):
            message = (
                f"this {self.title} fails on a tap before the first layer of a target of the classes "
                f"{', '.join(sorted(self.no_embedding))}, and nothing names the target."
            )
            yield finding("target-unnamed", f"{CONFIG}: {IDS}", message)

    def split(self, target: TargetFacts | None) -> Iterator["Release"]:
        """Itself; in two, where a target hands hidden states out since a version inside its range."""
        first = self.hands_out(target) if target is not None else None
        inside = first is not None and at_least(first, self.since) and self.covers(first)
        if first is None or not inside or numbers(first) == numbers(self.since):
            yield self
            return
        yield replace(self, until=before(first))
        yield replace(self, since=first)


def computing(release: Release, since: str, until: str, **powers: bool) -> Release:
    """Another release, whose draft classes compute more than before, or less.

    Args:
        release: the one that it is like.
        since: the first version.
        until: the last that was looked at.
        powers: fields of `Powers`, for every class that has them.
    """
    forms = tuple(replace(form, rules=_computing(form.rules, powers)) for form in release.forms)
    return replace(release, since=since, until=until, forms=forms)


def _computing(
    rules: FlatRules | NestedRules, powers: Mapping[str, Any]
) -> FlatRules | NestedRules:
    if isinstance(rules, NestedRules):
        changed = {kind: replace(one, **powers) for kind, one in rules.powers.items()}
        return replace(rules, powers=changed)
    return replace(rules, powers=lambda keys: replace(rules.powers(keys), **powers))
