"""Whether a head was pruned by offsets in the place of ids: then its rows repeat, and the others are lost."""

import numpy as np

from eagle3_interop.convert.read.checkpoint import Checkpoint
from eagle3_interop.schemas.dialects.base import Reading
from eagle3_interop.schemas.findings import Finding, finding

_HEAD, _MAP = "lm_head.weight", "d2t"
_FEWEST, _MOST = 4, 64
"""Pairs of rows to judge by; tokens that never occurred may share a row in a few places."""


def repeated_rows(checkpoint: Checkpoint, reading: Reading) -> list[Finding]:
    """An error for a head that has the same row wherever its map has the same offset; no trained head has."""
    if _HEAD not in reading.names or not reading.draft.vocabulary.mapped:
        return []
    offsets = _offsets(checkpoint, reading)
    head = checkpoint.stored[reading.names[_HEAD]]
    if offsets is None or len(offsets) != head.shape[0] or not head.file.is_file():
        return []
    order = np.argsort(offsets, kind="stable")
    same = np.flatnonzero(np.diff(offsets[order]) == 0)
    if len(same) < _FEWEST:
        return []
    spread = same[np.linspace(0, len(same) - 1, min(len(same), _MOST)).astype(int)]
    size = (head.stop - head.start) // head.shape[0]
    with head.file.open("rb") as file:

        def row(index: int) -> bytes:
            file.seek(head.start + index * size)
            return file.read(size)

        if any(row(int(order[at])) != row(int(order[at + 1])) for at in spread):
            return []
    message = (
        f"rows are equal bit for bit wherever {_MAP} has the same offset (all of {len(spread)} pairs compared): "
        "the head was pruned by offsets in the place of token ids, and the rows of its tokens are lost."
    )
    return [finding("repeated-head-rows", reading.names[_HEAD], message)]


def _offsets(
    checkpoint: Checkpoint, reading: Reading
) -> "np.ndarray[tuple[int], np.dtype[np.int64]] | None":
    if _MAP in reading.maps:
        return reading.maps[_MAP].astype(np.int64)
    return (
        checkpoint.values(reading.names[_MAP]).astype(np.int64) if _MAP in reading.names else None
    )
