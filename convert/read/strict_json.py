"""JSON read strictly: what two readers could understand differently is refused."""

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from eagle3_interop.schemas.findings import refusal

MAX_JSON_BYTES = 100_000_000  # safetensors' own limit for a header

_DEEPEST = 100
"""Levels of objects and lists; configs have six, and whoever walks a value by recursion ends at a few hundred."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def loads(text: str, *, infinities: bool = False) -> Any:  # noqa: ANN401 - whatever it holds
    """Parse any JSON.

    Args:
        text: the JSON.
        infinities: accept ``Infinity``; NaN is never accepted.

    Raises:
        ValueError: not JSON (`json.JSONDecodeError`), or JSON that is not meant so: a key given twice, NaN, a
            number too large, half of a character, or too deep.
    """

    def constant(word: str) -> float:
        if word == "NaN" or not infinities:
            raise ValueError(f"{word} is not a JSON number")
        return float(word)

    def number(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else constant(digits)

    def integer(digits: str) -> int:
        if not math.isfinite(float(digits)):
            raise ValueError(f"an integer of {len(digits)} digits is too large to be meant")
        return int(digits)

    try:
        value = json.loads(
            text,
            object_pairs_hook=_without_duplicates,
            parse_constant=constant,
            parse_float=number,
            parse_int=integer,
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    if _SURROGATE.search(text) or _ESCAPED_SURROGATE.search(text):
        _check_characters(value)
    return value


_TOO_DEEP = f"nested deeper than {_DEEPEST} levels"


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [item for one in level for item in _items(one) if isinstance(item, dict | list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _items(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_characters(value: object, key: str = "") -> None:
    """Half of a pair of surrogates is no character, and can be written to no file."""
    if isinstance(value, str) and _SURROGATE.search(value):
        raise ValueError(f"{key or 'its text'} holds half of a character, {value!r:.60}")
    pairs = value.items() if isinstance(value, dict) else ((key, item) for item in _items(value))
    for name, item in pairs:
        if _SURROGATE.search(name):
            raise ValueError(f"the key {name!r:.60} holds half of a character")
        _check_characters(item, name)


def parse_object(
    raw: bytes, code: str, where: object, *, infinities: bool = False
) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        raw: the text, UTF-8.
        code: finding code of a refusal.
        where: the file, for the message.
        infinities: accept ``Infinity`` (configs of some targets hold it).

    Raises:
        Refused: not UTF-8, not JSON, not an object, too large, or what `loads` does not take.
    """
    if len(raw) > MAX_JSON_BYTES:
        raise refusal(code, where, f"{len(raw)} bytes of JSON are too many to be meant")
    try:
        value = loads(raw.decode("utf-8"), infinities=infinities)
    except ValueError as error:
        raise refusal(code, where, f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise refusal(code, where, f"holds a JSON {type(value).__name__}, not an object")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return result
