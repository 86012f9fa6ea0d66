"""d2t and t2d in the state that the destination's loader wants."""

from typing import Any

import numpy as np

from eagle3_interop.convert.decide.rewrites.quantised import whole
from eagle3_interop.convert.decide.rewrites.work import Work
from eagle3_interop.convert.write.plan import Copy, Make, Rewrite
from eagle3_interop.schemas.parameters import DRAFT_VOCAB, MAPS, along


def settle_maps(work: Work) -> Work:
    """Drop a map that says nothing, or sort, retype and rebuild for a loader that is strict."""
    vocabulary = work.draft.vocabulary
    if vocabulary.draft_size == vocabulary.target_size and not vocabulary.mapped:
        return _drop(work)
    if not work.loader.strict_maps:
        return work
    ids = target_ids(work)
    order = np.argsort(ids, kind="stable")
    op = work.tensors["d2t"].op
    if not np.array_equal(order, np.arange(len(ids))):
        whole(work, DRAFT_VOCAB, "the head's rows are sorted")
        ids = ids[order]
        work = work.put("d2t", _offsets(ids), "sorted")
        for name in [name for name in along(work.draft, DRAFT_VOCAB) if name not in MAPS]:
            work = _sort_rows(work, name, order)
        work = work.say("map-sorted", "d2t", "sorted by target id, the head's rows with it.")
    elif isinstance(op, Copy) and op.source.dtype != "I64":
        work = work.put("d2t", _offsets(ids), "as int64")
    return _rebuild_t2d(work, ids)


def target_ids(work: Work) -> np.ndarray[Any, Any]:
    """Target id of each draft id."""
    op = work.tensors["d2t"].op
    read = work.loaded.checkpoint.values
    offsets = op.values if isinstance(op, Make) else read(op.source.name)
    return offsets.astype(np.int64) + np.arange(len(offsets))


def _offsets(ids: np.ndarray[Any, Any]) -> Make:
    return Make(ids - np.arange(len(ids)), "I64")


def _drop(work: Work) -> Work:
    present = [name for name in ("d2t", "t2d") if name in work.tensors]
    if not present or work.draft_class.full_map:
        return work
    message = "dropped: both vocabularies are equal, and engines fail on such a map or expect none."
    return work.without(*present).say("map-dropped", ", ".join(present), message)


def _sort_rows(work: Work, name: str, order: np.ndarray[Any, Any]) -> Work:
    tensor = work.tensors[name]
    if isinstance(tensor.op, Make):
        raise TypeError(f"{name} is never made from nothing")
    before = tensor.op if isinstance(tensor.op, Rewrite) else Rewrite(tensor.op.source)
    rows = order if before.rows is None else before.rows[order]
    op = Rewrite(before.source, rows=rows, dtype=before.dtype)
    return work.put(name, op, tensor.note or "rows sorted")


def _rebuild_t2d(work: Work, ids: np.ndarray[Any, Any]) -> Work:
    stored = work.tensors.get("t2d")
    if stored is not None and isinstance(stored.op, Copy) and stored.op.source.dtype == "BOOL":
        return work
    listed = np.zeros(work.draft.vocabulary.target_size, dtype=np.bool_)
    listed[ids] = True
    work = work.put("t2d", Make(listed, "BOOL"), "rebuilt from d2t")
    return work.say("map-rebuilt", "t2d", f"{len(ids)} of {len(listed)} tokens.")
