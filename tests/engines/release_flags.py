#!/usr/bin/env python3
"""Ask the parsers of all known releases what they take, and keep the answers where ``serve --for`` reads them.

    python tests/engines/release_flags.py ENGINE ANSWERS

ANSWERS is a folder of what `ENGINE_flags.py` answered in each release, ``ENGINE-VERSION.json``. Writes
``schemas/engines/data/ENGINE-releases.json``: the releases in their order; for every flag, ranges of them as
``[first, last, values]``; for every key of the speculative config, ranges as ``[first, last]``.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "schemas" / "engines" / "data"
MINOR = {"vllm": r"0\.\d+", "sglang": r"0\.5\.\d+"}
"""How much of a version names a release, of which the newest patch is asked."""


def ranges(present: Sequence[Any]) -> list[list[Any]]:
    """Runs of equal answers, without those that are None: first and last index, and the answer unless it is True."""
    found: list[list[Any]] = []
    for index, answer in enumerate(present):
        if answer is None:
            continue
        told = [] if answer is True else [answer]
        if found and found[-1][1] == index - 1 and found[-1][2:] == told:
            found[-1][1] = index
        else:
            found.append([index, index, *told])
    return found


def merged(engine: str, answers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the answers of an engine's releases, oldest first, have in common."""
    rows = list(answers.values())
    flags = sorted({flag for row in rows for flag in row["flags"]})
    keys = sorted({key for row in rows for key in row.get("settings", ())})
    return {
        "engine": engine,
        "releases": list(answers),
        "flags": {flag: ranges([row["flags"].get(flag) for row in rows]) for flag in flags},
        "settings": {
            key: ranges([True if key in row.get("settings", ()) else None for row in rows])
            for key in keys
        },
    }


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def main() -> None:
    """Read the answers of one engine, and write."""
    engine, folder = sys.argv[1], Path(sys.argv[2])
    by_release: dict[str, tuple[str, Path]] = {}
    for path in folder.glob(f"{engine}-*.json"):
        version = path.stem.removeprefix(f"{engine}-")
        release = re.match(MINOR[engine], version)
        if release and _numbers(version) >= _numbers(by_release.get(release[0], ("0", path))[0]):
            by_release[release[0]] = (version, path)
    answers = {
        release: json.loads(by_release[release][1].read_text(encoding="utf-8"))
        for release in sorted(by_release, key=_numbers)
    }
    lines = [
        f" {json.dumps(key)}: {json.dumps(value)}"
        if key in ("engine", "releases")
        else f" {json.dumps(key)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in value.items())
        + "\n }"
        for key, value in merged(engine, answers).items()
    ]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (DATA / f"{engine}-releases.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
