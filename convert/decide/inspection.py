"""What a checkpoint is, which frameworks can run it, what they would get wrong; and whether two are one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from eagle3_interop.convert.decide.fitting import fit
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.decide.releases import Row, right_since, runs_since, verdict
from eagle3_interop.convert.decide.releases import rows as rows_of_releases
from eagle3_interop.convert.read.same_values import same_bytes
from eagle3_interop.schemas.draft import differences
from eagle3_interop.schemas.engines.releases import RELEASES, Named, newest, releases_for
from eagle3_interop.schemas.engines.targets import class_named
from eagle3_interop.schemas.findings import Finding, Refused, errors, finding, has_effect
from eagle3_interop.schemas.options import Options

_EMBEDDINGS = "embed_tokens.weight"


def shown(path: str, value: object) -> str:
    """A value of `differences`, for people."""
    if path == "taps" and value is None:
        return "the default triple (2, L // 2, L - 3)"
    return repr(value)


def engines(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """For each framework: what it makes of this very folder, and whether a conversion for it exists.

    Returns:
        By framework: ``as_is``: ``same``, ``different`` (with ``differences``) or ``does-not-load``; and
        ``convertible``: ``stock``, ``plugin`` or ``refused`` (with ``reasons``, the error codes).
    """
    return as_json(judged(loaded))


def judged(loaded: Loaded, wanted: Sequence[Named] = ()) -> dict[str, dict[str, Any]]:
    """The facts of `engines` with findings as they were made, and those of the conversion under ``said``.

    Args:
        loaded: the folder.
        wanted: releases that the user named; of their engines no other is looked at beside the newest.
    """
    return {
        name: {
            **_as_is(loaded, name),
            **_convertible(loaded, name),
            "releases": rows_of_releases(loaded, name, wanted),
        }
        for name in RELEASES
    }


def as_json(facts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What `judged` found, as `engines` gives it."""
    return {name: _shown(row) for name, row in facts.items()}


_STATES = {"same": "runs it", "different": "runs it wrongly", "does-not-load": "does not load"}
_CONVERTED = {"stock": "runs", "plugin": "runs with plugin", "refused": "impossible"}

_MEANINGS = {
    "runs it": "computes exactly this network from the folder as it is",
    "runs it wrongly": "starts without an error and computes another network, so fewer draft tokens are accepted",
    "in doubt": "the folder has an error that must be settled before anybody can say",
    "runs with plugin": "SGLang runs the output of auto-to-sglang with the plugin of this package",
}

COLUMNS = ("engine", "this folder", "converted", "why")
"""Of the table that people read."""


def rows(loaded: Loaded, facts: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """What `judged` found, as rows of a table: each reason has one of its own.

    Args:
        loaded: the source; what an error of its own leaves open is not said to run.
        facts: what was found.
    """
    unsettled = errors(loaded.reading.findings)
    table: list[tuple[str, ...]] = []
    for engine, row in facts.items():
        state, converted = _STATES[row["as_is"]], _CONVERTED[row["convertible"]]
        reasons = list(_reasons(engine, row, unsettled))
        if unsettled:
            state = state if reasons else "in doubt"
            converted = "not yet"
            codes = ", ".join(dict.fromkeys(item.code for item in unsettled))
            reasons.append(f"settle first: {codes}")
        else:
            reasons += [f"converted: {item.message} [{item.code}]" for item in row["said"]]
        table += [
            (engine, state, converted, reason) if not index else ("", "", "", reason)
            for index, reason in enumerate(reasons or [""])
        ]
    return table


RELEASE_COLUMNS = ("engine", "release", "this folder", "converted", "why")
"""Of the table of releases that people read."""


def release_rows(loaded: Loaded, facts: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """What the releases make of a folder, as rows of a table; none while it has errors to settle first.

    Args:
        loaded: the folder.
        facts: of `judged`.
    """
    if errors(loaded.reading.findings):
        return []
    table: list[tuple[str, ...]] = []
    for engine, found in facts.items():
        named = engine
        for told, rows_alike in groupby(found["releases"], key=_told):
            alike = list(rows_alike)
            if alike[0].named:
                versions = ", ".join(row.versions for row in alike)
            else:
                versions = replace(alike[-1], since=alike[0].since).versions
            table.append((named, versions, *told))
            named = ""
    return table


def _told(row: Row) -> tuple[str, str, str]:
    return _STATES[row.verdict.as_is], _CONVERTED[row.convertible], row.reason


def _reasons(engine: str, row: dict[str, Any], unsettled: list[Finding]) -> Iterator[str]:
    """What an engine makes otherwise of the folder, besides what the source's own errors leave open."""
    if row["as_is"] != "same":
        title = newest(engine).title
        for path, (meant, computed) in row["differences"].items():
            yield f"{path}: {title} computes {shown(path, computed)}, not {shown(path, meant)}"
        for item in dict.fromkeys(row["findings"]):
            at_fault = item.severity == "error" or has_effect(item, engine)
            if at_fault and item not in unsettled:
                yield f"{item.where}: {item.message} [{item.code}]"


def meanings(table: list[tuple[str, ...]]) -> list[str]:
    """What the words mean that stand in a table of `rows`."""
    words = {word for row in table for word in row[1:3]}
    return [f"{word}: {meaning}." for word, meaning in _MEANINGS.items() if word in words]


def require_same(loaded: Loaded, engine: str, wanted: Named | None = None) -> None:
    """Refuse a folder that an engine would not run as it is.

    Args:
        loaded: the folder.
        engine: its name.
        wanted: the release of it; the newest, where none is named.

    Raises:
        Refused: the engine does not load it, or computes another network from it.
    """
    require_captured(loaded, engine, wanted)
    release = wanted.release if wanted else newest(engine)
    found = verdict(loaded, release)
    if found.as_is == "same":
        return
    name = wanted.name if wanted else release.title
    if found.as_is == "does-not-load":
        why = "; ".join(
            f"{item.where}: {item.message}"
            for item in found.findings
            if item.row.effect == "does-not-load" or item.severity == "error"
        )
        message = f"{name} does not load this folder. {why}"
    else:
        wrong = "; ".join(
            f"{path}: {shown(path, theirs)}, not {shown(path, ours)}"
            for path, (ours, theirs) in found.differences.items()
        )
        said = "; ".join(item.message.rstrip(".") for item in found.findings)
        message = f"{name} computes another network from this folder: {wrong or said}."
    fix = _way_out(loaded, engine, wanted)
    raise Refused([finding("serve-folder", "config.json", message, fix=fix)])


def _way_out(loaded: Loaded, engine: str, wanted: Named | None) -> str:
    """What to do about a folder that a release does not run right: a conversion, another release, or both."""
    release = wanted.release if wanted else newest(engine)
    command = f"eagle3-convert auto-to-{engine}"
    command += f" --target {loaded.target.path}" if loaded.target else ""
    if rows_of_releases(loaded, engine, [wanted] if wanted else ())[-1].convertible != "refused":
        command += f" --for {wanted.word}" if wanted else ""
        return f"{command} first, and serve its output."
    every = rows_of_releases(loaded, engine)
    if since := runs_since(every):
        return f"Serve it with {release.title} {since} or later: no conversion makes this release run it."
    converted = [(row.since, "no" if row.convertible == "refused" else "yes") for row in every]
    if since := right_since(converted, "yes"):
        return f"{command} first, and serve its output with {release.title} {since} or later."
    return f"No conversion makes {release.title} run it: {command} says why."


def require_captured(loaded: Loaded, engine: str, wanted: Named | None = None) -> None:
    """Refuse a pair of which the target cannot hand over in this engine what the draft taps.

    Args:
        loaded: the draft and its target.
        engine: its name.
        wanted: the release of it; the newest, where none is named.

    Raises:
        Refused: with the reasons.
    """
    draft = loaded.reading.draft
    facts = loaded.facts or class_named(draft)
    release = wanted.release if wanted else newest(engine)
    if facts is None or not (lost := errors(release.uncaptured(draft, facts))):
        return
    states = [
        (one.since, "no" if errors(one.uncaptured(draft, facts)) else "yes")
        for one in releases_for(engine, facts)
    ]
    if since := right_since(states, "yes"):
        lost = [
            item.model_copy(update={"fix": f"Serve with {release.title} {since} or later."})
            for item in lost
        ]
    raise Refused(lost)


def unasked(loaded: Loaded, engine: str, wanted: Named | None = None) -> list[Finding]:
    """What depends on the target's class, where neither the target nor its class is known.

    Args:
        loaded: the draft.
        engine: its name.
        wanted: the release of it; the newest, where none is named.
    """
    draft = loaded.reading.draft
    release = wanted.release if wanted else newest(engine)
    return [] if loaded.facts or class_named(draft) else list(release.unasked(draft))


def _as_is(loaded: Loaded, engine: str) -> dict[str, Any]:
    found = verdict(loaded, newest(engine))
    return {
        "as_is": found.as_is,
        "differences": dict(found.differences),
        "findings": list(found.findings),
    }


def _convertible(loaded: Loaded, engine: str) -> dict[str, Any]:
    lost = errors(loaded.reading.findings)
    if not lost:
        try:
            fitted = fit(loaded, engine, Options(target_name="ORG/NAME"))
        except Refused as refused:
            lost = errors(refused.findings)
        else:
            said = [item for item in fitted.findings if item.row.tells_of_plugin]
            state = "plugin" if fitted.writing.plugin else "stock"
            return {"convertible": state, "reasons": [], "said": said}
    return {"convertible": "refused", "reasons": sorted({f.code for f in lost}), "said": lost}


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in facts.items() if key != "said"}
    return kept | {
        "findings": [item.model_dump() for item in facts["findings"]],
        "releases": [row.report() for row in facts["releases"]],
    }


def compare(one: Loaded, other: Loaded) -> dict[str, Any]:
    """Whether two checkpoints hold the same network, whatever their layouts.

    Descriptions are compared as each one's own framework reads it; tensors bit for bit under their
    canonical names. ``t2d`` repeats ``d2t`` and is not compared; embedding tables are compared as
    stored, and where both readings share the target's table, not at all.

    Returns:
        ``same``, ``differences`` by dotted path, and ``tensors``: by canonical name ``different``,
        ``only in A`` or ``only in B``.
    """
    shared = (
        one.reading.draft.vocabulary.embeddings
        == other.reading.draft.vocabulary.embeddings
        == "target"
    )
    stored = _EMBEDDINGS in one.reading.names and _EMBEDDINGS in other.reading.names
    # The tables themselves tell more than whose they are said to be.
    told = stored or one.own_embeddings is False or other.own_embeddings is False
    described = differences(one.reading.draft, other.reading.draft, tables=not told)
    tensors = {}
    for name in sorted({*one.reading.names, *other.reading.names} - {"t2d"}):
        if name == _EMBEDDINGS and (shared or not stored):
            continue
        if name not in other.reading.names and name not in other.reading.maps:
            tensors[name] = "only in A"
        elif name not in one.reading.names and name not in one.reading.maps:
            tensors[name] = "only in B"
        elif not _same(one, other, name):
            tensors[name] = "different"
    return {"same": not described and not tensors, "differences": described, "tensors": tensors}


def _same(one: Loaded, other: Loaded, name: str) -> bool:
    if name in one.reading.names and name in other.reading.names and name != "d2t":
        return same_bytes(one.stored(name), other.stored(name))
    left, right = (
        loaded.reading.maps.get(name)
        if name not in loaded.reading.names
        else loaded.checkpoint.values(loaded.reading.names[name])
        for loaded in (one, other)
    )
    return bool(left is not None and right is not None and left.tolist() == right.tolist())
