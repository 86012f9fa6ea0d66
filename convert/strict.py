"""Refusals, and JSON read strictly: what two readers could understand differently is refused."""

import json
import math
from typing import Any

from eagle3_interop.schemas.findings import Finding, Refused

MAX_JSON_BYTES = 100_000_000  # safetensors' own limit for a header


def refusal(code: str, where: object, message: str, fix: str = "") -> Refused:
    """A `Refused` with one error finding, ready to be raised."""
    finding = Finding(code=code, severity="error", where=str(where), message=message, fix=fix)
    return Refused([finding])


def parse_object(
    raw: bytes, code: str, where: object, *, infinities: bool = False
) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        raw: the text, UTF-8.
        code: finding code of a refusal.
        where: the file, for the message.
        infinities: accept ``Infinity`` (configs of some targets hold it); NaN is never accepted.

    Raises:
        Refused: not UTF-8, not JSON, not an object, a key given twice, NaN, or too large.
    """

    def constant(word: str) -> float:
        if word == "NaN" or not infinities:
            raise ValueError(f"{word} is not a JSON number")
        return float(word)

    def number(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else constant(digits)

    if len(raw) > MAX_JSON_BYTES:
        raise refusal(code, where, f"{len(raw)} bytes of JSON are too many to be meant")
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_constant=constant,
            parse_float=number,
        )
    except (ValueError, RecursionError) as error:
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
