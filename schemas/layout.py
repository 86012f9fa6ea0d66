"""What a layout is: one framework's dialect, read into a `Draft` and written back out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding


@dataclass(frozen=True)
class TensorHeader:
    """What a safetensors header says of a tensor: its dtype (``BF16``, ``F32``, ``I64`` ...) and shape."""

    dtype: str
    shape: tuple[int, ...]


class Source(Protocol):
    """A checkpoint as layouts see it: a config, headers, and the values of a small tensor on demand."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json."""

    @property
    def tensors(self) -> Mapping[str, TensorHeader]:
        """Name to header, of every stored tensor."""

    def values(self, name: str) -> np.ndarray[Any, Any]:
        """The tensor's values (maps and biases only: reads the whole tensor)."""


@dataclass(frozen=True)
class Reading:
    """What a layout's reader found.

    Attributes:
        draft: the network as the framework itself would compute it.
        names: canonical name to stored name, for every tensor that the framework uses.
        unused: stored names that the framework reads past (each explained by a finding).
        maps: d2t and t2d as the framework resolves them, where they had to be derived.
        findings: every default, disagreement and refusal met on the way.
    """

    draft: Draft
    names: dict[str, str]
    unused: tuple[str, ...] = ()
    maps: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
