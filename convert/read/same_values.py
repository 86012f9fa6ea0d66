"""Tensors compared bit for bit, a slab at a time."""

from collections.abc import Callable, Iterator

import numpy as np

from eagle3_interop.convert.read.safetensors_file import decode
from eagle3_interop.convert.read.stored import ITEM_BYTES, Stored

_SLAB_BYTES = 8 * 2**20


def same_bytes(one: Stored, other: Stored) -> bool:
    """Whether two stored tensors have the same dtype, shape and bytes."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return all(a == b for a, b in zip(_slabs(one, 1), _slabs(other, 1), strict=True))


Read = Callable[[str, int, int], bytes]
"""Bytes [start, stop) of a file, by its name: a folder's own `read`, near or far."""


def same_values(one: Stored, other: Stored, read: Read | None = None) -> bool:
    """Whether two stored tensors hold the same numbers, whatever their dtypes.

    Dtypes that numpy has no numbers for equal themselves only.

    Args:
        one: on a local disk.
        other: there too, unless `read` is given.
        read: reads the other's file.
    """
    if one.shape != other.shape:
        return False
    if one.dtype == other.dtype:
        return all(a == b for a, b in zip(_slabs(one, 1), _slabs(other, 1, read), strict=True))
    if not {one.dtype, other.dtype} <= set(ITEM_BYTES):
        return False
    slabs = zip(
        _slabs(one, ITEM_BYTES[one.dtype]),
        _slabs(other, ITEM_BYTES[other.dtype], read),
        strict=True,
    )
    return all(np.array_equal(_floats(a, one), _floats(b, other)) for a, b in slabs)


def _slabs(tensor: Stored, item: int, read: Read | None = None) -> Iterator[bytes]:
    """The tensor's bytes, the same number of elements at a time for every dtype."""
    step = _SLAB_BYTES // 8 * item if item > 1 else _SLAB_BYTES
    if read is not None:
        for start in range(tensor.start, tensor.stop, step):
            yield read(tensor.file.name, start, min(start + step, tensor.stop))
        return
    with tensor.file.open("rb", buffering=0) as file:
        for start in range(tensor.start, tensor.stop, step):
            file.seek(start)
            yield file.read(min(step, tensor.stop - start))


def _floats(raw: bytes, like: Stored) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    flat = Stored(
        like.file, like.name, like.dtype, (len(raw) // ITEM_BYTES[like.dtype],), 0, len(raw)
    )
    return decode(raw, flat).astype(np.float64)
