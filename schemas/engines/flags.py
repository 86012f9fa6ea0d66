"""The flags that an engine's parser takes, and the keys of vLLM's speculative config.

``data/ENGINE-RELEASE.json`` is what the engine's own parser answered (``tests/engines/record_flags.py``);
a test with the mark ``engine`` asks it again. ``data/ENGINE-releases.json`` is what the parsers of all minor
releases answered: of every flag and key, in which of them it is.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eagle3_interop.schemas.engines.versions import begins

_RECORDED = {"vllm": "0.32.0", "sglang": "0.5.23"}


@dataclass(frozen=True)
class Flags:
    """What one release of an engine takes on its command line.

    Attributes:
        release: the version that was asked.
        values: how many values each flag takes, by its name with its dashes: a number, or argparse's sign.
        settings: the keys of the speculative config; none, where the engine has no such thing.
    """

    release: str
    values: Mapping[str, int | str]
    settings: frozenset[str]

    def meant(self, name: str) -> tuple[str, ...]:
        """The flags that argparse takes this word for: itself, else each that begins with it (``allow_abbrev``).

        Args:
            name: a flag with two dashes before it.
        """
        if name in self.values:
            return (name,)
        return tuple(flag for flag in self.values if flag.startswith(name) and name != "--")


@cache
def flags_of(engine: str, version: str | None = None) -> Flags:
    """What a release of this engine takes.

    Args:
        engine: its name.
        version: of it; None is the one that this tool was run against, as is any that was not asked.
    """
    if version is not None and (found := _of_release(engine, version)) is not None:
        return found
    return _newest(engine)


def _of_release(engine: str, version: str) -> Flags | None:
    place = Path(__file__).with_name("data") / f"{engine}-releases.json"
    asked = json.loads(place.read_text(encoding="utf-8"))
    names: list[str] = asked["releases"]
    index = next((i for i, name in enumerate(names) if begins(version, name)), None)
    if index is None:
        return None

    def there(ranges: list[list[Any]]) -> list[Any]:
        return [row[2:] for row in ranges if row[0] <= index <= row[1]]

    values = {flag: row[0][0] for flag, ranges in asked["flags"].items() if (row := there(ranges))}
    settings = frozenset(key for key, ranges in asked["settings"].items() if there(ranges))
    return Flags(names[index], values, settings)


def _newest(engine: str) -> Flags:
    place = Path(__file__).with_name("data") / f"{engine}-{_RECORDED[engine]}.json"
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return Flags(found["release"], found["flags"], frozenset(found.get("settings", ())))
