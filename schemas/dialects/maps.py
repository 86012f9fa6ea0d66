"""d2t and t2d in all the states they are found in."""

from typing import Any

import numpy as np

from eagle3_interop.schemas.dialects.reading import Reader

MAP_AS_IDS = "vocabulary.map"
"""What a user sets to ``ids`` where d2t holds target ids instead of offsets."""

Maps = dict[str, np.ndarray[Any, Any]]


def resolve_map(
    reader: Reader, draft_size: int, target_size: int, *, trainer_sorts: bool
) -> tuple[bool, Maps]:
    """Which target token each draft token is.

    Args:
        reader: the reading in progress.
        draft_size: D.
        target_size: V.
        trainer_sorts: the framework's own trainer orders the draft vocabulary by target id, so that
            d2t follows from t2d.

    Returns:
        Whether a map takes part in the network, and maps that had to be derived.
    """
    _say_failures(reader, reduced=draft_size != target_size)
    if not _fits(reader, draft_size, target_size):
        return draft_size != target_size, {}
    listed = None
    if "t2d" in reader.names:
        listed = np.flatnonzero(reader.source.values(reader.names["t2d"]))
        if len(listed) != draft_size:
            message = f"t2d lists {len(listed)} tokens, the head has {draft_size} rows."
            reader.say("map-size", reader.names["t2d"], message)
            return draft_size != target_size, {}
    if "d2t" in reader.names:
        return _with_d2t(reader, listed, draft_size, target_size, trainer_sorts=trainer_sorts)
    if draft_size == target_size:
        return False, {}
    return _without_d2t(reader, listed, draft_size, target_size, trainer_sorts=trainer_sorts)


def _say_failures(reader: Reader, *, reduced: bool) -> None:
    """What loaders fail on: ``load_verifier_weights`` without t2d, and an unused d2t in a strict class."""
    if reader.loading.needs_t2d and reduced and "t2d" not in reader.names:
        message = "absent: speculators needs it to gather the verifier's head, and fails to load."
        reader.say("fails-to-load", "t2d", message)
    if reader.strict and not reader.loading.full_map and not reduced and "d2t" in reader.names:
        message = f"{reader.engine} has no map for a full vocabulary and fails to load."
        reader.say("fails-to-load", reader.names["d2t"], message)


def _fits(reader: Reader, draft_size: int, target_size: int) -> bool:
    """Whether the maps are as long as the two vocabularies, and made of the right kind of numbers."""
    fits = True
    for name, size, kinds in (("d2t", draft_size, "IU"), ("t2d", target_size, "BIU")):
        header = reader.header(name)
        if header is None:
            continue
        if header.shape != (size,):
            message = (
                f"has shape {list(header.shape)}, wanted [{size}]: a map of another vocabulary."
            )
            reader.say("map-size", reader.names[name], message)
            fits = False
        elif header.dtype[0] not in kinds or header.dtype == "BF16":
            message = f"holds {header.dtype} numbers, which are no token ids."
            reader.say("bad-map", reader.names[name], message)
            fits = False
    return fits


def _with_d2t(
    reader: Reader,
    listed: np.ndarray[Any, Any] | None,
    draft_size: int,
    target_size: int,
    *,
    trainer_sorts: bool,
) -> tuple[bool, Maps]:
    where = reader.names["d2t"]
    offsets = reader.source.values(where).astype(np.int64)
    ids = offsets + np.arange(draft_size)
    if draft_size == target_size and not offsets.any():
        return False, {}
    ascending = np.sort(ids)
    broken = ascending[0] < 0 or ascending[-1] >= target_size or not np.all(np.diff(ascending))
    absolute = _as_target_ids(offsets, target_size)
    if (
        absolute
        and (broken or listed is not None)
        and (listed is None or np.array_equal(offsets, listed))
    ):
        proof = "and t2d lists just these" if listed is not None else "and as offsets they are none"
        message = f"it holds target ids themselves, ascending, {proof}; {reader.engine} adds each to its draft id."
        reader.say("absolute-map", where, message, settled_by=MAP_AS_IDS)
    elif broken:
        message = (
            "read as offsets (target id = draft id + d2t), ids repeat or leave the vocabulary."
        )
        reader.say("bad-map", where, message)
    elif listed is not None and not np.array_equal(ascending, listed):
        message = f"d2t maps to other tokens than t2d lists ({len(listed)} of {target_size})."
        reader.say("map-disagrees", where, message)
    elif absolute and listed is None:
        message = (
            "it ascends at every step, as target ids do; offsets do so only where no two neighbours of the target's "
            f"vocabulary were both chosen. It was read as offsets, as {reader.engine} reads it."
        )
        reader.say("map-looks-absolute", where, message, settled_by=MAP_AS_IDS)
    elif not offsets.any():
        _say_prefix(reader, "prefix-map" if listed is not None else "zero-map", where, draft_size)
    elif trainer_sorts and np.any(np.diff(ids) < 0):
        message = "d2t is not ascending, but speculators' trainer takes the head's rows in ascending order."
        reader.say("map-order", where, message)
    return True, {}


def _as_target_ids(values: np.ndarray[Any, Any], target_size: int) -> bool:
    """Whether these could be target ids, ascending: no offsets of a vocabulary that has neighbours could."""
    ascends = len(values) > 1 and bool(np.all(np.diff(values) > 0))
    return ascends and int(values[0]) >= 0 and int(values[-1]) < target_size


def _without_d2t(
    reader: Reader,
    listed: np.ndarray[Any, Any] | None,
    draft_size: int,
    target_size: int,
    *,
    trainer_sorts: bool,
) -> tuple[bool, Maps]:
    if listed is None:
        message = (
            f"the draft proposes {draft_size} of {target_size} tokens and nothing says which. "
            f"{reader.engine} would take the first {draft_size}."
        )
        reader.say("missing-map", "d2t", message)
        return True, {}
    if not trainer_sorts:
        message = (
            "d2t is absent, and t2d does not tell in which order the trainer put the head's rows. "
            f"{reader.engine} would take the first {draft_size} tokens."
        )
        reader.say("missing-map", "d2t", message)
        return True, {}
    offsets = (listed - np.arange(draft_size)).astype(np.int64)
    message = (
        "derived from t2d: speculators' trainer orders the draft vocabulary by target id. The speculators "
        "library itself leaves an absent d2t uninitialised."
    )
    reader.say("map-derived", "d2t", message)
    if not offsets.any():
        _say_prefix(reader, "prefix-map", "t2d", draft_size)
    return True, {"d2t": offsets}


def _say_prefix(reader: Reader, code: str, where: str, draft_size: int) -> None:
    message = f"the draft vocabulary is the first {draft_size} target tokens. Was the map ever set?"
    reader.say(code, where, message)
