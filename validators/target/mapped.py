"""Tensors mapped from files, not loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eagle3_interop.convert.read.folders import Folder, LocalFolder
from eagle3_interop.convert.read.stored import Stored, numpy_dtype
from eagle3_interop.schemas.findings import refusal

PIECE = 64 << 20
"""Bytes of one request to the Hub."""


def mapped(stored: Stored, path: Path | None = None) -> Tensor:
    """A tensor whose pages the system reads when they are used, and may drop again.

    Args:
        stored: where it lies.
        path: the file, where it is not the one that `stored` names.

    Raises:
        Refused: torch has no such dtype, or the file ends before the tensor does.
    """
    file = stored.file if path is None else path
    size = stored.stop - stored.start
    if file.stat().st_size < stored.stop:
        raise refusal("broken-file", file, f"is truncated: {stored.name!r} lies beyond its end")
    if not size:
        return _typed(np.empty(0, dtype=np.uint8), stored)
    # Copy on write: torch wants memory that may be written, and nothing of ours writes it.
    raw = np.memmap(file, dtype=np.uint8, mode="c", offset=stored.start, shape=(size,))
    return _typed(raw, stored)


def placed(folder: Folder, stored: Stored) -> Tensor:
    """A tensor of a folder: mapped where the folder is local, read by ranges where it is on the Hub."""
    if isinstance(folder, LocalFolder):
        return mapped(stored, folder.path(stored.file.name))
    raw = np.empty(stored.stop - stored.start, dtype=np.uint8)
    for first in range(0, len(raw), PIECE):
        last = min(first + PIECE, len(raw))
        piece = folder.read(stored.file.name, stored.start + first, stored.start + last)
        if len(piece) != last - first:
            raise refusal("broken-file", stored.file, f"ends within {stored.name!r}")
        raw[first:last] = np.frombuffer(piece, dtype=np.uint8)
    return _typed(raw, stored)


def _typed(raw: np.ndarray[Any, Any], stored: Stored) -> Tensor:
    dtype = numpy_dtype(stored.dtype, stored.name)
    if stored.dtype == "BF16":
        return torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16).view(stored.shape)
    return torch.from_numpy(raw.view(dtype)).view(stored.shape)
