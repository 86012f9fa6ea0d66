"""The trained drafts: the first release of each engine that runs them right, and the last that does not.

`inspect` names both, for a folder as it is and for what a conversion makes of it; here both run it, and the newest.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import release_grid
import release_seen
import trained
from release_grid import Case, Grid
from release_page import TITLES
from release_rows import VERSIONS
from release_seen import SAME, Cell, Seen

from eagle3_interop.convert import api
from eagle3_interop.convert.decide import inspection
from eagle3_interop.convert.decide.releases import right_since
from eagle3_interop.schemas.engines.versions import begins, numbers

LENGTH = 80
"""Of the texts: more than the window of the draft that slides."""

STORED, CONVERTED = "as stored", "converted"
PLACES = ("first", "before", "newest")
EVERY_FORM = dict.fromkeys(TITLES, ("speculators", "sglang", "vllm"))
RIGHT = {STORED: ("as_is", ("same",)), CONVERTED: ("convertible", ("stock", "plugin"))}
"""By form the key of `inspect`, and its values for a release that runs it right."""


@dataclass(frozen=True)
class Turn:
    """Where the releases of an engine begin to run a folder right, by `inspect`.

    Attributes:
        first: the first since which every one does; None, where none does.
        before: the last that does not; None, where every known one does.
        newest: the newest, where it does.
    """

    first: str | None
    before: str | None
    newest: str | None


def turn_of(engine: str, ranges: Sequence[Mapping[str, Any]], form: str) -> Turn:
    """Where it is, as versions that can be fetched.

    Args:
        engine: whose releases.
        ranges: ``releases`` in the JSON of `inspect`.
        form: ``as stored`` or ``converted``.
    """
    key, right = RIGHT[form]
    states = [(one["since"], "right" if one[key] in right else "wrong") for one in ranges]
    first, newest = right_since(states, "right"), VERSIONS[engine][-1]
    if first is None:
        return Turn(None, newest, None)
    before = [one["until"] for one in ranges if numbers(one["since"]) < numbers(first)]
    return Turn(first_patch(first), last_patch(engine, before[-1]) if before else None, newest)


def turns(folder: Path, engine: str) -> dict[str, Turn]:
    """Those of a trained draft, by the form of the folder."""
    ranges = inspection.engines(api.load(str(folder), "auto", trained.OPTIONS))[engine]["releases"]
    return {form: turn_of(engine, ranges, form) for form in RIGHT}


def first_patch(version: str) -> str:
    """The first release that a prefix stands for."""
    return version if len(numbers(version)) > 2 else f"{version}.0"


def last_patch(engine: str, version: str) -> str:
    """The last release that a prefix stands for."""
    return [one for one in VERSIONS[engine] if begins(one, version)][-1]


@dataclass(frozen=True)
class Asked:
    """One folder in one release.

    Attributes:
        draft: its name.
        engine: whose release.
        form: as stored, or converted.
        place: of ``PLACES``.
        version: of the release.
    """

    draft: str
    engine: str
    form: str
    place: str
    version: str

    def folder(self, output: Path) -> Path:
        """What the release is given, written below `output` where it is a conversion."""
        source = trained.source(self.draft)
        if self.form == STORED:
            return source
        words = (f"{self.engine}=={self.version}",) if self.place == "first" else ()
        folder = output / f"{self.engine}-{self.place}" / self.draft
        options = replace(trained.OPTIONS, releases=words)
        loaded = api.load(str(source), "auto", options)
        api.write(api.convert(loaded, self.engine, options), folder, overwrite=True)
        return folder


def asked(engines: Iterable[str] = TITLES) -> Iterator[Asked]:
    """All that is to be run."""
    for engine in engines:
        for draft in sorted(trained.names()):
            for form, turn in turns(trained.source(draft), engine).items():
                for place in PLACES:
                    if version := getattr(turn, place):
                        yield Asked(draft, engine, form, place, version)


def run(
    root: Path, engines: Sequence[str] = tuple(TITLES), *, kept: bool
) -> tuple[dict[str, Any], list[str]]:
    """Run each draft in the first right release of each engine and in the last wrong one.

    Args:
        root: a new folder.
        engines: whose releases.
        kept: take what an earlier run left.

    Returns:
        By engine, draft, form and place the version and what was predicted and seen; and a line for each that failed
        or is wrong.
    """
    root.mkdir()
    layers = json.loads((trained.TARGET / "config.json").read_text())["num_hidden_layers"]
    inputs = release_grid.write_inputs(root / "inputs.safetensors", layers, LENGTH)
    found: dict[str, Any] = {engine: {} for engine in engines}
    failed: list[str] = []
    by_run: dict[tuple[str, str], list[tuple[Asked, Case]]] = defaultdict(list)
    for one in asked(engines):
        written = "speculators" if one.form == STORED else one.engine
        title = f"{one.draft}, {one.form}, {one.place}"
        case = Case(title, written, one.folder(root / "converted"), inputs)
        by_run[one.engine, one.version].append((one, case))
    for (engine, version), given in sorted(by_run.items()):
        given.sort(key=lambda pair: pair[0].form == STORED)  # SGLang starts beside the first
        grid = Grid(root, trained.TARGET, [case for _, case in given], EVERY_FORM)
        for one, case in given:
            grid.means_as(case, Case(one.draft, "speculators", trained.source(one.draft), inputs))
        seen = release_seen.see(engine, version, grid, kept=kept)
        title = f"{TITLES[engine]} {version}"
        rules = release_seen.rules_of(engine, version)
        for one, case in given:
            ran = Seen("", seen) if isinstance(seen, str) else seen[case.name]
            cell = Cell(case, release_seen.predict(case, grid, rules), ran)
            if not right(cell, one):
                failed.append(f"{title}, {case.name}: {cell.report()}")
            nothing: dict[str, Any] = dict.fromkeys(PLACES)
            forms = found[engine].setdefault(one.draft, {form: dict(nothing) for form in RIGHT})
            forms[one.form][one.place] = {"version": version, **cell.report()}
        print(f"{title}: {len(given)} folders of trained drafts", flush=True)
    return found, failed


def right(cell: Cell, one: Asked) -> bool:
    """Whether the release does what the rules and `inspect` say of it."""
    return cell.agrees and (cell.seen.verdict == SAME) == (one.place != "before")
