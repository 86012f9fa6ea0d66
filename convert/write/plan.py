"""What is to be written, decided from headers alone; `stream` turns it into bytes.

Planning is finished before the first byte is written: everything that can be refused has been refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_interop.convert.read.folders import State
from eagle3_interop.convert.read.stored import ITEM_BITS, Stored


@dataclass(frozen=True)
class Copy:
    """The bytes as they are, under whatever name."""

    source: Stored


@dataclass(frozen=True)
class Rewrite:
    """A tensor computed from one stored tensor, a slab of rows at a time.

    The steps run in this order: gather rows, scale columns, permute or sum blocks of columns, cast.
    Sums and scales are done in float32 and rounded once, to the output's dtype.

    Attributes:
        source: the stored tensor (a draft's or the target's).
        rows: output row i is source row rows[i]; None keeps them all.
        scale: float32 factor of each source column (last axis); None is 1.
        blocks: output block j of the last axis is the sum of these source blocks, all equally wide;
            None keeps the columns.
        dtype: dtype of the output; None keeps the source's.
    """

    source: Stored
    rows: np.ndarray[Any, Any] | None = None
    scale: np.ndarray[Any, Any] | None = None
    blocks: tuple[tuple[int, ...], ...] | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Make:
    """A small tensor that this tool computed itself (a vocabulary map, a vector of ones)."""

    values: np.ndarray[Any, Any]
    dtype: str


Op = Copy | Rewrite | Make


@dataclass(frozen=True)
class Output:
    """One tensor of the output.

    Attributes:
        name: its name in the output.
        dtype: its dtype there.
        shape: its shape there.
        op: where its bytes come from.
        note: what was done, in words, for the plan's table ("renamed", "fc blocks 2, 0, 1", ...).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    op: Op
    note: str

    @property
    def nbytes(self) -> int:
        """Size of the tensor's data in bytes."""
        return ITEM_BITS[self.dtype] * prod(self.shape) // 8


@dataclass(frozen=True)
class Taken:
    """A whole file taken over byte for byte (copied, or hard-linked with ``--link``).

    ``name`` is its name in the output folder; ``source`` the file.
    """

    name: str
    source: Path


@dataclass(frozen=True)
class Written:
    """A safetensors file that is written anew.

    ``metadata`` becomes the header's ``__metadata__``; tensors are laid out in the order given.
    """

    name: str
    tensors: tuple[Output, ...]
    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})


@dataclass(frozen=True)
class Plan:
    """Everything that the output folder will hold.

    Attributes:
        weights: the weight files, whole or written anew.
        texts: small text files by name (config.json, the index), content ready to be written.
        sides: side files taken over whole (tokenizer, generation config, licence).
        states: of every file that the plan was made from, as it was listed before it was read.
        provenance: content of ``eagle3_interop.json``, to which `stream` adds the digests.
    """

    weights: tuple[Taken | Written, ...]
    texts: Mapping[str, str]
    sides: tuple[Taken, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[Path, State] = field(default_factory=dict)
