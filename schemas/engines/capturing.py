"""Which target classes of an engine can hand over hidden states at all.

``data/ENGINE-RELEASE-targets.json`` is what the engine's own registry answered
(``tests/engines/record_targets.py``); a test with the mark ``engine`` asks it again.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eagle3_interop.schemas.dialects.base import TargetFacts
from eagle3_interop.schemas.findings import Finding, finding

_RECORDED = {"vllm": "0.32.0", "sglang": "0.5.23"}
_TITLES = {"vllm": "vLLM", "sglang": "SGLang"}


@dataclass(frozen=True)
class Capturing:
    """The registered target classes of one release of an engine.

    Attributes:
        release: the version that was asked.
        captures: classes that can.
        lacks: classes that cannot. A class in neither list could not be asked.
    """

    release: str
    captures: frozenset[str]
    lacks: frozenset[str]


@cache
def capturing_of(engine: str) -> Capturing:
    """The classes of the release of this engine that this tool was run against."""
    place = Path(__file__).with_name("data") / f"{engine}-{_RECORDED[engine]}-targets.json"
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return Capturing(found["release"], frozenset(found["captures"]), frozenset(found["lacks"]))


def known_targets(engine: str) -> frozenset[str]:
    """Every target class that the engine's registry was asked about."""
    known = capturing_of(engine)
    return known.captures | known.lacks


def without_capture(
    engine: str, release: str, target: TargetFacts, where: str
) -> Iterator[Finding]:
    """An error for a target whose class in an engine cannot hand over hidden states, and who else can.

    Args:
        engine: its name.
        release: its name and version, for messages.
        target: the target; engines take the first of its architectures that they know.
        where: the key that would name the layers.
    """
    known = capturing_of(engine)
    name = next((n for n in target.architectures if n in known_targets(engine)), None)
    if name is None or name in known.captures:
        return
    others = [_TITLES[e] for e in _RECORDED if e != engine and name in capturing_of(e).captures]
    message = f"{release}'s {name} captures no hidden states, and {_TITLES[engine]} does not start."
    fix = f"Serve with {others[0]}, whose class does." if others else None
    yield finding("target-captures-nothing", where, message, fix=fix)
