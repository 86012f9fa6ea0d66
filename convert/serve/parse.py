"""A launch command taken apart into its words and flags, beside the draft that it is to serve."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from eagle3_interop.convert.read.folders import pinned
from eagle3_interop.schemas.engines.flags import Flags, flags_of
from eagle3_interop.schemas.findings import Usage

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([a-zA-Z]+)")
_LARGEST = 2**63 - 1
LONGEST = 128 * 1024 - 1
"""Bytes of a command that is judged: no argument of a program is longer on Linux (``MAX_ARG_STRLEN``)."""

_QUOTED_OR_DROPPED = re.compile(
    r"""('[^']*'|"(?:\\.|[^"\\])*"|\\[^\n])|\\\n|(?<![^\s;&|])\#[^\n]*""", re.DOTALL
)
"""What a shell keeps as it is; else the ends of lines that go on, and comments, which it drops."""

_BETWEEN = re.compile(r"[;&|]+")
_STARTS = ("serve", "sglang.launch_server", "vllm.entrypoints.openai.api_server")
_IMAGE = re.compile(r"(?:.*/)?vllm-openai(?:[:@].*)?")
"""vLLM's own image, which starts its server with whatever stands behind its name."""
_MANY = {"?": 1, "*": inf, "+": inf}
"""How many values argparse takes by its signs."""
_NUMBER = re.compile(r"-\d.*")
_VARIABLE = re.compile(r"(?:--env=|-e=?)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
"""An assignment, bare or as a flag of ``docker run``."""


def size(value: str, units: Mapping[str, int]) -> int | None:
    """A whole number, plain or with one of these units; None, where it is none."""
    try:
        number = int(value)
    except ValueError:
        match = _SIZE.fullmatch(value)
        if match is None or match[2] not in units:
            return None
        number = int(Decimal(match[1]) * units[match[2]])
    return number if abs(number) <= _LARGEST else None


def home(path: str) -> str:
    """The path with a leading ``~`` replaced, which inside quotes neither a shell nor an engine does."""
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:  # no such user
        return path


def named(spec: str) -> tuple[str, str | None]:
    """A model as an engine shall find it: a folder, or a Hub id and its revision."""
    return pinned(home(spec))


def same_place(one: str, other: str) -> bool:
    """Whether two paths lead to one place."""
    try:
        return Path(home(one)).resolve() == Path(home(other)).resolve()
    except (OSError, RuntimeError, ValueError):  # too long, a circle of links, a null byte
        return False


def _lines_joined(text: str) -> str:
    """The text without what a shell drops: line ends behind a backslash, and comments."""

    def kept(match: re.Match[str]) -> str:
        part = match[1] or ""
        return re.sub(r"(\\[^\n])|\\\n", r"\1", part) if part.startswith('"') else part

    return _QUOTED_OR_DROPPED.sub(kept, text)


@dataclass(frozen=True)
class Launch:
    """A command, or only its arguments; environment variables may stand before it.

    Attributes:
        engine: whose command it is.
        arguments: the command as the user gave it.
        config: the draft's config.json.
        checkpoint: the draft as the user names it.
        target: the target's config.json (a multimodal one's text part), where it is at hand.
        target_name: the target as the user names it, where that was said.
        version: of the engine, where that was said.
    """

    engine: str
    arguments: str
    config: Mapping[str, Any]
    checkpoint: str
    target: Mapping[str, Any] | None
    target_name: str | None = None
    version: str | None = None

    @cached_property
    def words(self) -> list[str]:
        """The command as a shell splits it; ``;``, ``&`` and ``|`` are words of their own.

        Raises:
            Usage: a quote is left open, it is not UTF-8, or longer than a command can be.
        """
        try:
            length = len(self.arguments.encode())
            if length > LONGEST:
                raise Usage(f"--check: {length:,} bytes, and {LONGEST:,} are the most.")
            lexer = shlex.shlex(_lines_joined(self.arguments), posix=True, punctuation_chars=";&|")
            lexer.whitespace_split, lexer.commenters = True, ""
            return list(lexer)
        except ValueError as error:
            raise Usage(f"--check: {error}") from None

    @cached_property
    def own(self) -> list[str]:
        """Of several commands in a line the words of the one that starts an engine; else all."""
        commands: list[list[str]] = [[]]
        for word in self.words:
            if _BETWEEN.fullmatch(word):
                commands.append([])
            else:
                commands[-1].append(word)
        starting = (one for one in commands if any(word in _STARTS for word in one))
        return next(starting, self.words)

    @cached_property
    def given(self) -> list[tuple[str, str]]:
        """Flags and values in their order; ``--flag value`` and ``--flag=value``, ``_`` as good as ``-``.

        A beginning that only one flag has stands for that flag, as argparse has it.
        """
        given, words = [], self.own
        for i, word in enumerate(words):
            if not word.startswith("-"):
                continue
            name, equals, value = word.partition("=")
            following = words[i + 1] if i + 1 < len(words) else ""
            if not equals and not following.startswith("--"):
                value = following
            given.append((self._in_full(name), value))
        return given

    def _in_full(self, word: str) -> str:
        name = word.lstrip("-").replace("_", "-")
        first, dot, rest = name.partition(".")
        meant = self.known.meant(f"--{first}") if word.startswith("--") else ()
        return f"{meant[0][2:]}{dot}{rest}" if len(meant) == 1 else name

    @cached_property
    def known(self) -> Flags:
        """What the engine's parser takes."""
        return flags_of(self.engine, self.version)

    @cached_property
    def handed_on(self) -> list[str]:
        """The words that the engine's own parser sees; none, where another program stands first."""
        words = self.own
        starts = (i for i, word in enumerate(words) if word in _STARTS or _IMAGE.fullmatch(word))
        if (start := next(starts, None)) is not None:
            after = words[start + 1 :]
            entered = _IMAGE.fullmatch(words[start]) and "--entrypoint" in words[:start]
            return after[1:] if entered and after[:1] == ["serve"] else after
        first = (i for i, word in enumerate(words) if not _VARIABLE.fullmatch(word))
        start = next(first, len(words))
        return words[start:] if words[start : start + 1] and words[start].startswith("-") else []

    @cached_property
    def parsed(self) -> tuple[list[str], list[str]]:
        """Of `handed_on` the flags as they are written, and the words that are no flag's value."""
        flags: list[str] = []
        others: list[str] = []
        left: float = 0
        for word in self.handed_on:
            if word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word):
                name, equals, _ = word.partition("=")
                flags.append(name)
                left = 0 if equals else self._takes(name)
            elif left > 0:
                left -= 1
            else:
                others.append(word)
        return flags, others

    def _takes(self, name: str) -> float:
        """How many words behind this flag are its values."""
        if "." in name:
            return 1
        if name.startswith("-O"):  # vLLM's `parse_args` takes it before the parser does
            return int(name == "-O")
        known = f"--{self._in_full(name)}" if name.startswith("--") else name
        values = self.known.values.get(known, 1)
        return values if isinstance(values, int) else _MANY[values]

    @cached_property
    def flags(self) -> dict[str, str]:
        """Each flag's last value, which is the one that counts."""
        return dict(self.given)

    @cached_property
    def takes_a_file(self) -> bool:
        """Whether the engine reads more flags from a file; both do for ``--config FILE`` alone, without ``=``."""
        return "--config" in self.own

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
            raise Usage(f"--{names[0]} is {value!r}, not a number.")
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
            if isinstance(value, dict):
                "".join(value).encode()  # findings name keys
        except ValueError as error:
            raise Usage(f"--check: --{names[0]} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise Usage(f"--check: --{names[0]} is not a JSON object.")
        return value

    def variable(self, name: str) -> str | None:
        """The value that the command last gives an environment variable."""
        pairs = (_VARIABLE.fullmatch(word) for word in self.words)
        values = [pair[2] for pair in pairs if pair is not None and pair[1] == name]
        return values[-1] if values else None

    def switched_on(self, variable: str) -> bool:
        """Whether an environment variable of the command says yes."""
        return (self.variable(variable) or "").lower() in ("1", "true", "yes", "y")

    def switched_off(self, variable: str) -> bool:
        """Whether an environment variable of the command says no."""
        return (self.variable(variable) or "").lower() in ("0", "false", "no", "n")
