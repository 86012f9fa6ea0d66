"""A tensor as it lies in a file, and what safetensors' dtypes are in bits and in numpy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from eagle3_interop.schemas.findings import refusal

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip

# Every dtype of safetensors 0.8; those without whole bytes or a numpy type are only ever copied.
ITEM_BITS = {name: 8 * size for name, size in ITEM_BYTES.items()} | {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64,
}  # fmt: skip

NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(bool),
    "U8": np.dtype("<u1"),
    "I8": np.dtype("<i1"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
}


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in a source file.

    Attributes:
        file: the file that holds it (absolute, symlinks not resolved).
        name: its name there.
        dtype: safetensors' name of the dtype.
        shape: its shape.
        start: first byte, counted from the beginning of the file.
        stop: one past the last byte.
    """

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it lies in."""
        return (self.file,)


def numpy_dtype(dtype: str, name: str) -> np.dtype[Any]:
    """The type, numpy's or ml_dtypes', of a tensor's values.

    Raises:
        Refused: there is none (code ``unknown-dtype``).
    """
    if dtype not in NUMPY:
        raise refusal("unknown-dtype", name, f"cannot be computed with: its dtype is {dtype}")
    return NUMPY[dtype]
