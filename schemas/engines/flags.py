"""The flags that an engine's parser takes, and the keys of vLLM's speculative config.

``data/ENGINE-RELEASE.json`` is what the engine's own parser answered (``tests/engines/record_flags.py``);
a test with the mark ``engine`` asks it again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
def flags_of(engine: str) -> Flags:
    """What the release of this engine takes that this tool was run against."""
    place = Path(__file__).with_name("data") / f"{engine}-{_RECORDED[engine]}.json"
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return Flags(found["release"], found["flags"], frozenset(found.get("settings", ())))
