"""What the user says of a draft: ``--taps`` and ``--set``, applied to the neutral description."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from eagle3_interop.convert.read.strict_json import loads
from eagle3_interop.schemas.dialects.base import Reading, Source
from eagle3_interop.schemas.dialects.keys import NEUTRAL
from eagle3_interop.schemas.dialects.maps import MAP_AS_IDS
from eagle3_interop.schemas.draft import PLAIN_PARAMETERS, Draft
from eagle3_interop.schemas.findings import Usage, finding

_MOST_LAYERS = 10_000
_MAPS = ("ids", "offsets")
"""What d2t can hold."""


def parse_taps(text: str) -> tuple[int, ...]:
    """Read ``--taps``: layers passed, comma-separated, ``embed`` for 0; in brackets as they are printed.

    Raises:
        Usage: something else.
    """
    inner = re.fullmatch(r"\s*\[(.*)\]\s*", text)
    parts = (inner[1] if inner else text).split(",")
    try:
        taps = tuple(0 if part.strip() == "embed" else int(part) for part in parts)
    except ValueError:
        taps = (-1,)
    if min(taps) < 0:
        raise Usage(
            f"--taps {text[:80]!r}: give counts of passed layers, such as 'embed,3,31' or '31,0,3'."
        )
    return taps


def parse_sets(items: Sequence[str]) -> dict[str, Any]:
    """Read ``--set KEY=VALUE``s; values are JSON, or words (``none`` is null).

    Raises:
        Usage: no ``=``, no such key, or JSON that no config could hold.
    """
    sets: dict[str, Any] = {}
    known = _paths() | NEUTRAL.keys() | {MAP_AS_IDS}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or key not in known:
            listed = ", ".join(sorted(known))
            raise Usage(f"--set {item!r}: give KEY=VALUE with one of these keys: {listed}.")
        try:
            sets[key] = loads(text)
        except json.JSONDecodeError:
            sets[key] = None if text.lower() == "none" else _word(text)
        except ValueError as error:
            raise Usage(f"--set {key}: {error}.") from None
        if key == MAP_AS_IDS and sets[key] not in _MAPS:
            raise Usage(f"--set {item}: d2t holds one of {', '.join(_MAPS)}.")
        if key in NEUTRAL and sets[key] not in NEUTRAL[key]:
            words = " or ".join("none" if v is None else json.dumps(v) for v in NEUTRAL[key])
            raise Usage(f"--set {item}: this tool computes it as {words} alone.")
    return sets


def checked_sets(sets: Mapping[str, Any]) -> dict[str, Any]:
    """What ``--set`` would have read, of values that need no reading.

    Raises:
        Usage: no such key, or a value that no config could hold.
    """
    try:
        return parse_sets([f"{key}={json.dumps(value)}" for key, value in sets.items()])
    except (TypeError, ValueError) as error:
        raise Usage(f"sets: {error}: give values that JSON can hold.") from None


def parse_size(text: str) -> int:
    """A size such as ``5GB``, ``500MB`` or a number of bytes.

    Raises:
        Usage: anything else.
    """
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B?)", text.strip().upper())
    size = float(match[1]) * units[match[2]] if match and match[2] in units else 0.0
    if not 1 <= size < 2**63:
        raise Usage(f"--max-shard-size {text[:40]!r}: give a size such as 5GB.")
    return int(size)


def _word(text: str) -> str | bool:
    return {"true": True, "false": False}.get(text.lower(), text)


def _paths() -> set[str]:
    """Every dotted path of the description that a user can set."""
    paths = set()
    for name, field in Draft.model_fields.items():
        inner = _inner_fields(field.annotation)
        for key, deeper in inner.items():
            paths |= {f"{name}.{key}.{last}" for last in deeper} or {f"{name}.{key}"}
        if not inner:
            paths.add(name)
    return paths - {
        "dtype",
        "fc.blocks",
        "hidden_size",
        "layers.attention.kind",
        "quantisation",
        "taps",
    }


def _inner_fields(annotation: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401 - a type, whatever its form
    found: dict[str, dict[str, Any]] = {}
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        fields = getattr(kind, "model_fields", None) or {}
        found |= {name: _inner_fields(field.annotation) for name, field in fields.items()}
    return found


def apply(
    reading: Reading, taps: tuple[int, ...] | None, sets: Mapping[str, Any], source: Source
) -> Reading:
    """The reading with the user's word put in; what it settles is no longer a finding.

    Args:
        reading: as the framework reads the source.
        taps: in which order the trainer concatenated the features of fc, or None.
        sets: dotted path to value; a config key's neutral value; and what d2t holds.
        source: the folder.

    Raises:
        Usage: a value that the description cannot hold.
    """
    if taps is None and not sets:
        return reading
    if sets.get(MAP_AS_IDS) == "ids":
        reading = _offsets(reading, source)
    data = reading.draft.model_dump()
    settled = {*sets, *(("taps",) if taps is not None else ())}
    beside = {key: value for key, value in sets.items() if key in NEUTRAL or key == MAP_AS_IDS}
    said = [
        finding("set-by-user", "d2t", f"it holds {value}.")
        if key == MAP_AS_IDS
        else finding("set-by-user", key, "the key was left out of the output.")
        for key, value in beside.items()
    ]
    sets = {path: value for path, value in sets.items() if path not in beside}
    said += [
        finding("set-by-user", path, f"{value_at(data, path)!r} became {value!r}.")
        for path, value in sets.items()
    ]
    if taps is not None:
        said.append(finding("set-by-user", "taps", f"{data['taps']!r} became {list(taps)}."))
    draft = with_values(reading.draft, sets if taps is None else {**sets, "taps": taps})
    kept = [item for item in reading.findings if not settles(settled, item.settled_by)]
    return replace(reading, draft=draft, findings=(*kept, *said))


def _offsets(reading: Reading, source: Source) -> Reading:
    """The reading with d2t's target ids as offsets.

    Raises:
        Usage: there is no d2t.
    """
    stored = reading.names.get("d2t")
    if stored is None:
        raise Usage(f"--set {MAP_AS_IDS}: this draft has no d2t.")
    ids = source.values(stored).astype(np.int64)
    names = {name: place for name, place in reading.names.items() if name != "d2t"}
    maps = {**reading.maps, "d2t": ids - np.arange(len(ids))}
    return replace(reading, names=names, maps=maps, unused=(*reading.unused, stored))


def with_values(draft: Draft, values: Mapping[str, Any]) -> Draft:
    """The description with other values.

    Args:
        draft: the description.
        values: dotted path to value.

    Raises:
        Usage: a value that the description cannot hold.
    """
    data = draft.model_dump()
    for path, value in values.items():
        _put(data, path, value)
    _fit_windows(data["layers"], values)
    _fit_rope(data["rope"], values)
    try:
        return Draft.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        raise Usage(f"--taps/--set: {where}: {problem}".replace(": :", ":")) from None


def settles(paths: Collection[str], wanted: str) -> bool:
    """Whether values at these dotted paths answer a finding that is settled by one."""
    return bool(wanted) and any(path == wanted or path.startswith(f"{wanted}.") for path in paths)


def value_at(data: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - whatever stands there
    """What stands at a dotted path; None where nothing does."""
    value: Any = data
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _put(data: dict[str, Any], path: str, value: Any) -> None:  # noqa: ANN401 - whatever was given
    *parents, last = path.split(".")
    for part in parents:
        if not isinstance(data.get(part), dict):
            raise Usage(f"--set {path}: this draft has no {part}.")
        data = data[part]
    data[last] = value


def _fit_windows(layers: dict[str, Any], sets: Mapping[str, Any]) -> None:
    """One window a layer: a single value counts for all, and a changed count keeps the first ones."""
    windows, count = layers["windows"], layers["count"]
    if "layers.windows" in sets and not isinstance(windows, list | tuple):
        windows = (windows,) * count
    if "layers.count" in sets and type(count) is int and count <= _MOST_LAYERS:
        windows = (*windows, *(None,) * count)[:count]
    layers["windows"] = windows


def _fit_rope(rope: dict[str, Any], sets: Mapping[str, Any]) -> None:
    """A plain rotation has no numbers of a scaled one."""
    if sets.get("rope.scaling", "") is None and "rope.parameters" not in sets:
        rope["parameters"] = {k: v for k, v in rope["parameters"].items() if k in PLAIN_PARAMETERS}
