#!/usr/bin/env python3
"""Run every release of vLLM and SGLang on the same folders, and hold our rules against what they do.

    python tests/engines/releases.py                    # all of it, and docs/releases.md: two hours
    python tests/engines/releases.py vllm 0.21.0 0.24.0 # the grid in some releases, or all of an engine
    python tests/engines/releases.py --rows 'no fc'     # some rows of the grid; the others stay as they were seen
    python tests/engines/releases.py --trained          # the trained drafts, where the releases begin to run them
    python tests/engines/releases.py --whole            # whole engines on trained drafts
    python tests/engines/releases.py --new vllm 0.34.0  # one that came out: what changed, and the value to add

``--kept`` takes what an earlier run of the same rigs on the same folders left. Exit code 1 where a rule and a run
disagree.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import release_new
import release_page
import release_seen
import release_trained
import release_whole
from release_grid import Grid
from release_page import TITLES, Found
from release_rows import ROWS, VERSIONS

from eagle3_interop.schemas.engines.releases import RELEASES


def run(engine: str, version: str, grid: Grid, *, kept: bool) -> Found | str:
    """What one release does, beside what its rules say; or why it did not run."""
    seen = release_seen.see(engine, version, grid, kept=kept)
    if isinstance(seen, str):
        return seen
    rules = release_seen.rules_of(engine, version)
    cells = release_seen.judge(engine, rules, seen, grid)
    return {cell.case.name: cell.report() for cell in cells}


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", nargs="?", choices=VERSIONS)
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--kept", action="store_true", help="take what an earlier run left")
    parser.add_argument("--rows", nargs="+", choices=ROWS, metavar="ROW", help="of the grid")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--trained", action="store_true", help="the trained drafts alone")
    part.add_argument("--whole", action="store_true", help="whole engines alone")
    part.add_argument("--new", action="store_true", help="judge by the newest known release")
    arguments = parser.parse_args()
    if arguments.new and not arguments.versions:
        parser.error("--new: give an engine and the version that came out")
    everything = not (arguments.engine or arguments.rows or arguments.trained or arguments.whole)
    engines = [arguments.engine] if arguments.engine else list(VERSIONS)
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="eagle3-releases-") as scratch:
        root = Path(scratch)
        if not (arguments.trained or arguments.whole):
            grid = Grid.write(root / "grid", rows=arguments.rows or ROWS)
            if arguments.new:
                return _new(grid, arguments)
            failed += _grid(grid, arguments)
        if arguments.trained or everything:
            failed += _kept(
                "trained", release_trained.run(root / "trained", engines, kept=arguments.kept)
            )
        if arguments.whole or everything:
            failed += _kept("whole", release_whole.run(root / "whole", engines))
    print("\n".join(failed))
    return 1 if failed else 0


def _new(grid: Grid, arguments: argparse.Namespace) -> int:
    for version in arguments.versions:
        known = RELEASES[arguments.engine]
        lines = release_new.new(arguments.engine, version, grid, known, kept=arguments.kept)
        print("\n".join(lines))
    return 0


def _grid(grid: Grid, arguments: argparse.Namespace) -> list[str]:
    """What failed and what is wrong; all else is saved release by release, and survives an interruption."""
    failed: list[str] = []
    for engine in [arguments.engine] if arguments.engine else VERSIONS:
        for version in arguments.versions or VERSIONS[engine]:
            found = run(engine, version, grid, kept=arguments.kept)
            title = f"{TITLES[engine]} {version}"
            if isinstance(found, str):
                failed.append(f"{title} did not run:\n{found}")
                continue
            release_page.save(engine, {version: found}, merged=bool(arguments.rows))
            lines = release_page.wrong(found)
            failed += [f"{title}, {line}" for line in lines]
            print(f"{title}: {len(found)} folders, {len(lines)} wrong", flush=True)
    return failed


def _kept(section: str, ran: tuple[dict[str, Any], list[str]]) -> list[str]:
    """What failed; what was found is saved."""
    found, failed = ran
    release_page.save(section, found)
    return failed


if __name__ == "__main__":
    sys.exit(main())
