"""A launch command taken apart into its words and flags, beside the draft that it is to serve."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eagle3_interop.schemas.findings import Usage


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
    def flags(self) -> dict[str, str]:
        """Flags and values; both ``--flag value`` and ``--flag=value``, with ``_`` as good as ``-``."""
        flags: dict[str, str] = {}
        for i, word in enumerate(self.words):
            if not word.startswith("-"):
                continue
            name, equals, value = word.partition("=")
            following = self.words[i + 1] if i + 1 < len(self.words) else ""
            if not equals and not following.startswith("--"):
                value = following
            flags[name.lstrip("-").replace("_", "-")] = value
        return flags

    def first(self, *names: str) -> str | None:
        """The value of the first of these flags that is given; they are one another's aliases."""
        return next((self.flags[name] for name in names if name in self.flags), None)

    def number(self, name: str) -> int | None:
        """The value of a flag that takes a number.

        Raises:
            Usage: it is none.
        """
        value = self.flags.get(name)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError:
            raise Usage(f"--check: --{name} is {value!r}, not a number.") from None

    def table(self, name: str) -> dict[str, Any] | None:
        """The value of a flag that takes a JSON object.

        Raises:
            Usage: it is none.
        """
        raw = self.flags.get(name)
        if raw is None:
            return None
        try:
            value = json.loads(raw)
        except json.JSONDecodeError as error:
            raise Usage(f"--check: --{name} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise Usage(f"--check: --{name} is not a JSON object.")
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
