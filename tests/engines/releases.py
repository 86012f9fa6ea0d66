#!/usr/bin/env python3
"""Run every release of vLLM and SGLang on the same folders, and hold our rules against what they do.

    python tests/engines/releases.py                    # every known release, and docs/releases.md: two hours
    python tests/engines/releases.py vllm 0.21.0 0.24.0 # some of them
    python tests/engines/releases.py --new vllm 0.34.0  # one that came out: what changed, and the value to add

``--kept`` takes what an earlier run of the same rigs on the same folders left. Exit code 1 where a rule and a run
disagree.
"""

import argparse
import json
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import release_grid
from release_grid import FAILS, FORM_TITLES, FORMS, OTHER, SAME, VERSIONS, Cell, Grid

from eagle3_interop.schemas.engines.release import Release, computing
from eagle3_interop.schemas.engines.releases import RELEASES
from eagle3_interop.schemas.engines.versions import before

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "releases.json"
PAGE = ROOT / "docs" / "releases.md"
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
WORDS = {SAME: "runs", OTHER: "other", FAILS: "fails"}

Found = dict[str, dict[str, str]]
"""By case: ``predicted``, ``seen``, ``why`` (the rules' reason) and ``detail`` (of the run)."""


def run(engine: str, version: str, grid: Grid, *, kept: bool) -> Found | str:
    """What one release does, beside what its rules say; or why it did not run."""
    seen = release_grid.see(engine, version, grid, kept=kept)
    if isinstance(seen, str):
        return seen
    rules = release_grid.rules_of(engine, version)
    return {cell.case.name: _kept(cell) for cell in release_grid.judge(engine, rules, seen, grid)}


def _kept(cell: Cell) -> dict[str, str]:
    return {
        "predicted": cell.predicted.verdict,
        "seen": cell.seen.verdict,
        "why": cell.predicted.detail,
        "detail": cell.seen.detail[:160],
    }


def wrong(found: Found) -> list[str]:
    """A line for each cell where rules and run disagree."""
    return [
        f"{name}: predicted {cell['predicted']} ({cell['why']}), seen {cell['seen']} ({cell['detail']})"
        for name, cell in found.items()
        if cell["predicted"] != cell["seen"]
    ]


def save(found: dict[str, dict[str, Found]]) -> None:
    """Merge with what is known, and write data and page."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for engine, versions in found.items():
        known.setdefault(engine, {}).update(versions)
    for engine, versions in known.items():
        known[engine] = {name: versions[name] for name in VERSIONS[engine] if name in versions}
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(known))


def page(known: dict[str, dict[str, Found]]) -> str:
    """The page."""
    lines = [
        "# Releases",
        "",
        *_wrapped(
            "Written by `make releases`: do not edit. Every release ran its own config reader, loader, sharing of "
            "tables, capture of hidden states and draft class on every folder: drafts with random weights, one "
            "feature a row, beside a llama target of 8 layers, three draft steps deep, in float32. Old wheels are "
            "unpacked side by side and imported by today's Python and torch, with the transformers that they pin; "
            "what is compiled in them stands still, and torch code of the engine's own computes in its place."
        ),
        "",
        *_wrapped(
            "*runs*: the logits are those of the reference for the network that the folder means, to float32 "
            "rounding. *other*: it loads without an error and computes another network, in parentheses what of it "
            "differs by our rules. *fails*: an error, at loading or at the first step. Each cell was predicted by "
            "the rules of `schemas/engines` and then seen; where the two differ it says **WRONG**. Neighbours that "
            "agree in every cell share a column."
        ),
    ]
    for engine in VERSIONS:
        if engine not in known:
            continue
        for form in FORMS[engine]:
            lines += ["", f"## {TITLES[engine]}, {FORM_TITLES[form]}", ""]
            lines += table(engine, form, known[engine])
    return "\n".join(lines) + "\n"


def table(engine: str, form: str, known: dict[str, Found]) -> list[str]:
    """One form of folder in all releases of an engine."""
    versions = [version for version in VERSIONS[engine] if version in known]
    ending = f" ({form})"
    found = {name for cells in known.values() for name in cells}
    rows = [f"{row}{ending}" for row in release_grid.ROWS if f"{row}{ending}" in found]
    columns: list[tuple[list[str], list[str]]] = []
    for version in versions:
        cells = [_cell(known[version].get(name)) for name in rows]
        if columns and columns[-1][1] == cells:
            columns[-1][0].append(version)
        else:
            columns.append(([version], cells))
    titles = [f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0] for names, _ in columns]
    lines = ["| | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for index, name in enumerate(rows):
        shown = [cells[index] for _, cells in columns]
        lines.append(f"| {name.removesuffix(ending)} | " + " | ".join(shown) + " |")
    return lines


def _cell(found: dict[str, str] | None) -> str:
    if found is None:
        return ""
    seen, predicted = found["seen"], found["predicted"]
    if seen != predicted:
        return f"**WRONG**: predicted {WORDS[predicted]}, {WORDS[seen]}"
    return f"{WORDS[seen]} ({found['why']})" if seen == OTHER and found["why"] else WORDS[seen]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_long_words=False)


def new(
    engine: str, version: str, grid: Grid, known: Sequence[Release], *, kept: bool = False
) -> list[str]:
    """What a release that came out does otherwise than the newest known, and the value to add.

    Args:
        engine: a key of ``VERSIONS``.
        version: of the release.
        grid: the folders.
        known: the releases that are known; the last is the one before.
        kept: take what an earlier run left.

    Returns:
        Lines for people.
    """
    last, title = known[-1], f"{TITLES[engine]} {version}"
    seen = release_grid.see(engine, version, grid, kept=kept)
    if isinstance(seen, str):
        return [f"{title} did not run: the stand-ins do not carry it. It says:", seen]
    changed = [cell for cell in release_grid.judge(engine, last, seen, grid) if not cell.agrees]
    if not changed:
        return [
            f"{title} did with all {len(seen)} folders what the rules of {last.name} say.",
            f"Nothing to add but until={version!r} of {last.name}, and {version!r} in VERSIONS of "
            "tests/engines/release_grid.py.",
        ]
    powers = powers_of(changed)
    value = computing(last, since=version, until=version, **powers)
    left = [cell for cell in release_grid.judge(engine, value, seen, grid) if not cell.agrees]
    name = "_".join((engine.upper(), *version.split(".")))
    old = "_".join((engine.upper(), *last.since.split(".")))
    ends = before(version.removesuffix(".0"))
    given = "".join(f", {power}={now}" for power, now in powers.items())
    return [
        f"{title} did otherwise with {len(changed)} of {len(seen)} folders than {last.name}:",
        *_told(changed, title),
        f"The value to add to schemas/engines, at the end of RELEASES[{engine!r}], and the end of the one before:",
        f"    {name} = computing({old}, since={version!r}, until={version!r}{given})",
        f"    {old}: until={ends!r}",
        *(["It explains all of them."] if not left else []),
        *(
            [f"It leaves {len(left)} open, by another rule; look in the release's code:"]
            if left
            else []
        ),
        *_told(left, title),
    ]


def _told(cells: Iterable[Cell], title: str) -> list[str]:
    return [
        f"    {cell.case.name}: {WORDS[cell.predicted.verdict]} by the rules ({cell.predicted.detail}); "
        f"{title}: {WORDS[cell.seen.verdict]} ({cell.seen.detail[:160]})"
        for cell in cells
    ]


def powers_of(cells: Iterable[Cell]) -> dict[str, bool]:
    """What the classes compute now, or no longer, by the rows that changed."""
    found = {}
    for cell in cells:
        for power in POWERS.get(cell.case.row, ()):
            found[power] = cell.seen.verdict == SAME
    return found


POWERS: dict[str, tuple[str, ...]] = {
    "two layers": ("later_layers",),
    "norm_before_residual": ("residual_normed",),
    "norm_before_fc": ("input_norm",),
    "fc_norm": ("block_norms",),
    "norm_output": ("post_norm",),
    "two taps": ("other_blocks",),
    "four taps": ("other_blocks",),
    "own embeddings": ("own_embeddings",),
    "full vocabulary": ("own_whole_head",),
    "full vocabulary and its d2t": ("full_map",),
    "no fc": ("no_fc",),
    "llama, MLP biases": ("mlp_bias",),
    "fc bias": ("fc_bias",),
    "llama, sliding window": ("windows",),
    "gelu": ("any_activation",),
    "logit_scale": ("logit_scale",),
}
"""By row, the fields of `Powers` that are its feature."""


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", nargs="?", choices=VERSIONS)
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--kept", action="store_true", help="take what an earlier run left")
    parser.add_argument("--new", action="store_true", help="judge by the newest known release")
    arguments = parser.parse_args()
    engines = [arguments.engine] if arguments.engine else list(VERSIONS)
    with tempfile.TemporaryDirectory(prefix="eagle3-releases-") as scratch:
        grid = Grid.write(Path(scratch) / "grid")
        if arguments.new:
            for version in arguments.versions:
                known = RELEASES[arguments.engine]
                lines = new(arguments.engine, version, grid, known, kept=arguments.kept)
                print("\n".join(lines))
            return 0
        return _run_all(grid, engines, arguments.versions, kept=arguments.kept)


def _run_all(grid: Grid, engines: list[str], versions: list[str], *, kept: bool) -> int:
    failed: list[str] = []
    for engine in engines:
        for version in versions or VERSIONS[engine]:
            found = run(engine, version, grid, kept=kept)
            title = f"{TITLES[engine]} {version}"
            if isinstance(found, str):
                failed.append(f"{title} did not run:\n{found}")
                continue
            save({engine: {version: found}})  # what two hours have found survives an interruption
            lines = wrong(found)
            failed += [f"{title}, {line}" for line in lines]
            print(f"{title}: {len(found)} folders, {len(lines)} wrong", flush=True)
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
