"""A launch command taken apart into its words and flags, beside the draft that it is to serve."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

from eagle3_interop.schemas.findings import Usage

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([a-zA-Z]+)")


def size(value: str, units: Mapping[str, int]) -> int | None:
    """A whole number, plain or with one of these units; None, where it is none."""
    try:
        return int(value)
    except ValueError:
        match = _SIZE.fullmatch(value)
    if match is None or match[2] not in units:
        return None
    return int(Decimal(match[1]) * units[match[2]])


@dataclass(frozen=True)
class Launch:
    """A command, or only its arguments; environment variables may stand before it.

    Attributes:
        arguments: the command as the user gave it.
        config: the draft's config.json.
        checkpoint: the draft as the user names it.
        target: the target's config.json (a multimodal one's text part), where it is at hand.
    """

    arguments: str
    config: Mapping[str, Any]
    checkpoint: str
    target: Mapping[str, Any] | None

    @cached_property
    def words(self) -> list[str]:
        """The command as a shell splits it.

        Raises:
            Usage: a quote is left open.
        """
        try:
            return shlex.split(self.arguments)
        except ValueError as error:
            raise Usage(f"--check: {error}") from None

    @cached_property
    def given(self) -> list[tuple[str, str]]:
        """Flags and values in their order; ``--flag value`` and ``--flag=value``, ``_`` as good as ``-``."""
        given = []
        for i, word in enumerate(self.words):
            if not word.startswith("-"):
                continue
            name, equals, value = word.partition("=")
            following = self.words[i + 1] if i + 1 < len(self.words) else ""
            if not equals and not following.startswith("--"):
                value = following
            given.append((name.lstrip("-").replace("_", "-"), value))
        return given

    @cached_property
    def flags(self) -> dict[str, str]:
        """Each flag's last value, which is the one that counts."""
        return dict(self.given)

    @cached_property
    def takes_a_file(self) -> bool:
        """Whether the engine reads more flags from a file; both do for ``--config FILE`` alone, without ``=``."""
        return "--config" in self.words

    def last(self, *names: str) -> str | None:
        """The value that is given last for any of these flags, which are one another's aliases."""
        return next((value for name, value in reversed(self.given) if name in names), None)

    def absent(self, *names: str) -> bool:
        """Whether none of these flags is given, nor may be in a file."""
        return not self.takes_a_file and not any(name in self.flags for name in names)

    def number(self, *names: str, units: Mapping[str, int] | None = None) -> int | None:
        """The value of a flag that takes a number.

        Args:
            names: the flag and its aliases.
            units: what may stand behind the number, and how much it is.

        Raises:
            Usage: it is none.
        """
        value = self.last(*names)
        if value is None:
            return None
        number = size(value, units or {})
        if number is None:
            raise Usage(f"--check: --{names[0]} is {value!r}, not a number.")
        return number

    def table(self, *names: str) -> dict[str, Any] | None:
        """The value of a flag that takes a JSON object.

        Args:
            names: the flag and its aliases.

        Raises:
            Usage: it is none.
        """
        raw = self.last(*names)
        if raw is None:
            return None
        try:
            value = json.loads(raw)
        except json.JSONDecodeError as error:
            raise Usage(f"--check: --{names[0]} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise Usage(f"--check: --{names[0]} is not a JSON object.")
        return value

    def switched_on(self, variable: str) -> bool:
        """Whether an environment variable before the command says yes."""
        return self._variable(variable) in ("1", "true", "yes", "y")

    def switched_off(self, variable: str) -> bool:
        """Whether an environment variable before the command says no."""
        return self._variable(variable) in ("0", "false", "no", "n")

    def _variable(self, name: str) -> str | None:
        values = [word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")]
        return values[-1].lower() if values else None
