"""A tensor computed from a stored one, a slab of rows at a time, so that memory stays small."""

import os
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from eagle3_interop.convert.read.decoded import Decoded, values_of
from eagle3_interop.convert.read.safetensors_file import decode
from eagle3_interop.convert.read.stored import Stored, numpy_dtype
from eagle3_interop.convert.write.plan import Output, Rewrite
from eagle3_interop.schemas.findings import refusal

SLAB_BYTES = 4 << 20

Array = np.ndarray[Any, Any]


def rewritten(file: int, output: Output, op: Rewrite) -> Iterator[Array]:
    """The output's values, in order, as arrays of whole rows.

    Args:
        file: descriptor of ``op.source.file``.
        output: the tensor to be written; its shape says how wide a block is.
        op: how it is computed.

    Raises:
        Refused: the source ends early (``broken-file``), or a finite value does not fit the new
            dtype (``cast-overflow``).
        ValueError: the plan names rows that the source does not have.
    """
    count, width = _matrix(op)
    rows = np.arange(count) if op.rows is None else np.asarray(op.rows)
    if rows.size and (rows.min() < 0 or rows.max() >= count):
        raise ValueError(f"{output.name}: rows beyond the {count} of {op.source.name}")
    item = numpy_dtype(op.source.dtype, op.source.name).itemsize
    step = max(1, SLAB_BYTES // max(1, width * item))
    block = output.shape[-1] // len(op.blocks) if op.blocks else 0
    if isinstance(op.source, Decoded):
        plain = values_of(op.source, _read_part)
        yield _computed(plain.reshape(count, width)[rows], output, op, block)
        return
    for first in range(0, len(rows), step):
        values = _read_rows(file, op.source, rows[first : first + step], width)
        yield _computed(values, output, op, block)


def cast(values: Array, dtype: str, name: str) -> Array:
    """Values in another dtype, rounded to nearest.

    Args:
        values: any numbers.
        dtype: safetensors' name of the new dtype.
        name: the tensor, for the message.

    Raises:
        Refused: a finite value would become infinite, or an integer another one.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        result = values.astype(numpy_dtype(dtype, name))
    _check_fits(result, _is_finite(values), name)
    if not _is_float(values) and not np.array_equal(result.astype(values.dtype), values):
        raise _overflow(name, f"its integers do not all fit {dtype}")
    return result


def _matrix(op: Rewrite) -> tuple[int, int]:
    """Rows and columns: rows are gathered along the first axis, blocks along the last."""
    shape = op.source.shape or (1,)
    if op.rows is not None:
        return shape[0], prod(shape[1:])
    return prod(shape[:-1]), shape[-1]


def _read_rows(file: int, source: Stored, rows: Array, width: int) -> Array:
    values: Array = np.empty((len(rows), width), numpy_dtype(source.dtype, source.name))
    row_bytes = width * values.itemsize
    target = values.view(np.uint8).reshape(-1).data
    breaks = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    for first, last in pairwise(breaks):
        part = target[first * row_bytes : last * row_bytes]
        _read_into(file, part, source.start + int(rows[first]) * row_bytes, source)
    return values


def _read_part(part: Stored) -> Array:
    """All values of a part of a quantised weight, in whatever file it lies."""
    raw = bytearray(part.stop - part.start)
    file = os.open(part.file, os.O_RDONLY)
    try:
        _read_into(file, memoryview(raw), part.start, part)
    finally:
        os.close(file)
    return decode(bytes(raw), part)


def _read_into(file: int, target: memoryview, offset: int, source: Stored) -> None:
    done = 0
    while done < len(target):
        count = os.preadv(file, [target[done:]], offset + done)
        if count == 0:
            raise refusal("broken-file", source.file, f"ends within {source.name!r}")
        done += count


def _computed(values: Array, output: Output, op: Rewrite, block: int) -> Array:
    exact = op.scale is None and all(len(sources) == 1 for sources in op.blocks or ())
    if exact:
        moved = _blocks(values, op, block)
        same = output.dtype == op.source.dtype
        return moved if same else cast(moved, output.dtype, output.name)
    finite = _blocks(_is_finite(values), op, block, np.logical_and)
    wide = values.astype(np.promote_types(np.float32, values.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        if op.scale is not None:
            wide *= np.asarray(op.scale, wide.dtype)
        result = _blocks(wide, op, block).astype(numpy_dtype(output.dtype, output.name))
    _check_fits(result, finite, output.name)
    return result


def _blocks(values: Array, op: Rewrite, width: int, add: np.ufunc = np.add) -> Array:
    """Each output block is what `add` makes of its source blocks."""
    if op.blocks is None:
        return values
    parts = [
        reduce(add, (values[:, source * width : (source + 1) * width] for source in sources))
        for sources in op.blocks
    ]
    return np.concatenate(parts, axis=1)


def _check_fits(result: Array, finite_before: Array, name: str) -> None:
    lost = np.count_nonzero(finite_before & ~_is_finite(result))
    if lost:
        raise _overflow(name, f"{lost} finite values do not fit {result.dtype.name}")


def _is_float(values: Array) -> bool:
    return values.dtype.kind not in "biu"


def _is_finite(values: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        finite: Array = np.isfinite(values)
    return finite


def _overflow(name: str, message: str) -> Exception:
    return refusal("cast-overflow", name, message)
