"""Which rows of latent attention are rotated with each other: neighbours, or the two halves of each head."""

from dataclasses import replace
from typing import Any

import numpy as np

from eagle3_interop.convert.decide.rewrites.quantised import whole
from eagle3_interop.convert.decide.rewrites.work import Work
from eagle3_interop.convert.write.plan import Make, Rewrite
from eagle3_interop.schemas.draft import Draft, Mla
from eagle3_interop.schemas.parameters import KV_RANK_AND_ROPE, QK_DIM, Axis, along


def pair_neighbours(work: Work) -> Work:
    """Put the rows of each rotated half beside their partners, for a class that rotates neighbours alone.

    Row 2i becomes row i of the first half, row 2i + 1 row i of the second: queries and keys are rotated by the same
    angles, and their products stay the same.
    """
    attention = work.draft.layers.attention
    if not isinstance(attention, Mla) or attention.interleaved or work.draft_class.half_rotation:
        return work
    for axis in (QK_DIM, KV_RANK_AND_ROPE):
        whole(work, axis, "rows of the rotated halves become neighbours")
        for name in along(work.draft, axis):
            work = _reorder(work, name, _rows(work.draft, attention, axis))
    message = "rows of the two rotated halves became neighbours: the same angles, the same scores."
    work = work.say("rotation-paired", "layers.attention.interleaved", message)
    paired = attention.model_copy(update={"interleaved": True})
    return work.describe(layers=work.draft.layers.model_copy(update={"attention": paired}))


def _rows(draft: Draft, attention: Mla, axis: Axis) -> np.ndarray[Any, Any]:
    """The new order of rows: of each stretch along the axis the rotated part comes last."""
    size, half = axis.of(draft), attention.rope_dim // 2
    order = np.arange(size)
    order[-attention.rope_dim :] = (
        size - attention.rope_dim + np.arange(2 * half).reshape(2, half).T.ravel()
    )
    stretches = attention.heads if axis == QK_DIM else 1
    return (np.arange(stretches)[:, None] * size + order).ravel()


def _reorder(work: Work, name: str, rows: np.ndarray[Any, Any]) -> Work:
    tensor = work.tensors.get(name)
    if tensor is None:
        return work
    if isinstance(tensor.op, Make):
        raise TypeError(f"{name} is never made from nothing")
    before = tensor.op if isinstance(tensor.op, Rewrite) else Rewrite(tensor.op.source)
    note = ", ".join(part for part in (tensor.note, "rotated rows paired") if part)
    return work.put(name, replace(before, rows=rows), note)
