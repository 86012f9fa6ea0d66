"""Prompts, from a file or from the package. Free of torch: what does not parse is said before the work."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_interop.convert.read.folders import did_you_mean
from eagle3_interop.convert.read.strict_json import loads
from eagle3_interop.schemas.findings import Usage

BUNDLED = Path(__file__).with_name("data") / "prompts.jsonl"
"""Chat, code, maths and several languages."""

MOST_BYTES = 64 * 2**20
"""Of a file of prompts; a device has no end."""


@dataclass(frozen=True)
class Prompt:
    """One prompt as it was given: exactly one of the first three; where it stood, for messages.

    Attributes:
        text: raw text, tokenised as it is.
        messages: a chat, through the target's template.
        token_ids: already tokenised.
        completion: the target's continuation, generated elsewhere.
        category: what kind of prompt it is, for figures by kind.
        where: file and line.
    """

    text: str | None = None
    messages: tuple[dict[str, str], ...] | None = None
    token_ids: tuple[int, ...] | None = None
    completion: tuple[int, ...] | None = None
    category: str | None = None
    where: str = ""


def bundled_prompts() -> list[Prompt]:
    """The package's own prompts."""
    return parse_prompts(BUNDLED.read_text(encoding="utf-8"), BUNDLED.name)


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file.

    Raises:
        Usage: it cannot be read or parsed.
    """
    try:
        with path.expanduser().open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise Usage(f"--prompts {path}: more than {MOST_BYTES >> 20} MiB; give fewer prompts.")
        return parse_prompts(content.decode("utf-8"), str(path))
    except FileNotFoundError as error:
        raise Usage(f"--prompts {path}: there is no such file{did_you_mean(path)}") from error
    except (OSError, UnicodeDecodeError, RuntimeError, ValueError) as error:
        raise Usage(f"--prompts {str(path)[:200]}: {error}") from error


_KINDS = {"prompt", "messages", "token_ids"}
"""What a prompt in JSON is given as."""


def parse_prompts(content: str, name: str) -> list[Prompt]:
    """Prompts of a file: JSON lines if its first non-blank character is ``{``, else messages by line.

    Args:
        content: of the file.
        name: of the file, for messages.

    Raises:
        Usage: a line does not parse, with its number; or there is no prompt at all.
    """
    lines = [
        (f"{name}:{number}", line.strip())
        for number, line in enumerate(content.split("\n"), 1)  # U+2028 ends no line of JSON
        if line.strip()
    ]
    if not lines:
        raise Usage(f"{name}: no prompt in it")
    if lines[0][1].startswith("{"):
        return [_from_json(line, where) for where, line in lines]
    for where, line in lines:
        if _is_entry(line):
            raise Usage(
                f"{where}: a JSON object among lines of plain text. Write all prompts as JSON, or all as text."
            )
    return [
        Prompt(messages=({"role": "user", "content": line},), where=where) for where, line in lines
    ]


def _is_entry(line: str) -> bool:
    """Whether a line is a prompt in JSON."""
    if not line.startswith("{"):
        return False
    try:
        entry = loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and bool(_KINDS & set(entry))


def _from_json(line: str, where: str) -> Prompt:
    try:
        entry = loads(line)
    except ValueError as error:
        raise Usage(f"{where}: not JSON: {error}") from error
    if not isinstance(entry, dict) or len(_KINDS & set(entry)) != 1:
        raise Usage(f"{where}: expected exactly one of prompt, messages and token_ids")
    if unknown := set(entry) - _KINDS - {"completion_token_ids", "category"}:
        raise Usage(f"{where}: unknown key {', '.join(sorted(unknown))}")
    completion = entry.get("completion_token_ids")
    return Prompt(
        text=_text(entry["prompt"], where) if "prompt" in entry else None,
        messages=_messages(entry["messages"], where) if "messages" in entry else None,
        token_ids=_ids(entry["token_ids"], where) if "token_ids" in entry else None,
        completion=None if completion is None else _ids(completion, where),
        category=_category(entry.get("category"), where),
        where=where,
    )


def _text(value: Any, where: str) -> str:  # noqa: ANN401
    if not isinstance(value, str) or not value:
        raise Usage(f"{where}: prompt must be a text that is not empty")
    return value


def _category(value: Any, where: str) -> str | None:  # noqa: ANN401
    if value is None or (isinstance(value, str) and value.strip()):
        return None if value is None else str(value).strip()
    raise Usage(f"{where}: category must be a word that is not empty")


def _ids(value: Any, where: str) -> tuple[int, ...]:  # noqa: ANN401
    if not isinstance(value, list) or not value or any(type(i) is not int or i < 0 for i in value):
        raise Usage(f"{where}: token ids must be a list of integers that is not empty")
    return tuple(value)


def _messages(value: Any, where: str) -> tuple[dict[str, str], ...]:  # noqa: ANN401
    def fine(message: Any) -> bool:  # noqa: ANN401
        return (
            isinstance(message, dict)
            and set(message) == {"role", "content"}
            and all(isinstance(part, str) for part in message.values())
        )

    if not isinstance(value, list) or not value or not all(map(fine, value)):
        raise Usage(f'{where}: messages must be a list of {{"role": ..., "content": ...}}')
    return tuple(value)
