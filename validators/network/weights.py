"""A draft's weights under canonical names, as torch tensors, read one at a time when first used."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from eagle3_interop.convert.read.checkpoint import Checkpoint
from eagle3_interop.convert.read.decoded import Decoded
from eagle3_interop.schemas.dialects.base import Reading, Source
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Refused, finding
from eagle3_interop.schemas.parameters import Shape, storable
from eagle3_interop.validators.target.mapped import mapped

_MAPPED = frozenset({"F32", "BF16", "F16"})

_PIECE = 1 << 24
"""Values that are looked at together."""

Load = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class Tables:
    """What a draft may borrow from its target.

    Attributes:
        embeddings: [V, T], the rows as stored: vLLM 0.32, SGLang 0.5.23 and speculators 0.9 all
            look rows up raw for the draft, also where the target scales its own embeddings.
        head: [V, T], the target's output projection.
    """

    embeddings: torch.Tensor
    head: torch.Tensor


class Weights:
    """Canonical name to tensor, on one device and in one dtype.

    A tensor is loaded at its first use and kept. Integer and boolean tensors (``d2t``, ``t2d``)
    keep their own dtype.
    """

    def __init__(
        self,
        draft: Draft,
        load: Load,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        tables: Callable[[], Tables] | None = None,
    ) -> None:
        """Keep the sources; nothing is read yet.

        Args:
            draft: says which tables are the target's.
            load: gives a tensor by its canonical name, in its stored dtype.
            device: where the tensors go.
            dtype: of every floating-point tensor.
            tables: gives the target's tables; only called where the draft borrows one.
        """
        self.draft = draft
        self.device = torch.device(device)
        self.dtype = dtype
        self._load = load
        self._tables = tables
        self._kept: dict[str, torch.Tensor] = {}

    @classmethod
    def of(cls, draft: Draft, tensors: Mapping[str, torch.Tensor], **options: Any) -> "Weights":  # noqa: ANN401
        """Weights held in memory; `options` are those of the constructor."""
        return cls(draft, tensors.__getitem__, **options)

    @classmethod
    def read(cls, reading: Reading, source: Source, **options: Any) -> "Weights":  # noqa: ANN401
        """Weights of a checkpoint as its layout read it; `options` are those of the constructor.

        Large ones are mapped from the file, not copied: a draft of a wide target is gigabytes.
        """

        def load(name: str) -> torch.Tensor:
            if name in reading.maps:
                return as_tensor(reading.maps[name])
            stored = reading.names[name]
            place = source.stored[stored] if isinstance(source, Checkpoint) else None
            if place is not None and place.dtype in _MAPPED and place.file.is_file():
                # A quantised weight is computed, and lies nowhere as it is.
                return (
                    as_tensor(source.values(stored))
                    if isinstance(place, Decoded)
                    else mapped(place)
                )
            return as_tensor(source.values(stored))

        return cls(reading.draft, load, **options)

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor under this canonical name.

        Raises:
            Refused: it holds NaN or infinite values, or has another shape than the network's: torch
                would stretch a norm of one value without a word.
        """
        if name not in self._kept:
            self._kept[name] = self._placed(name, self._shaped(name))
        return self._kept[name]

    def _shaped(self, name: str) -> torch.Tensor:
        """A tensor as stored, if it has the network's shape."""
        tensor = self._load(name)
        wanted, found = self._shapes.get(name), tuple(tensor.shape)
        if wanted not in (None, found):
            message = f"has shape {list(found)}; the network's is {list(wanted or ())}."
            raise Refused([finding("shape-mismatch", name, message)])
        return tensor

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        return storable(self.draft)

    @property
    def embeddings(self) -> torch.Tensor:
        """[V, H], the table that the draft really looks its input tokens up in."""
        if self.draft.vocabulary.embeddings == "own":
            return self["embed_tokens.weight"]
        return self._borrowed("embed_tokens.weight", lambda tables: tables.embeddings)

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """The rows of `embeddings` for these tokens.

        On a CPU they are looked up as they are stored, and cast then: the same numbers, and no cast copy of a
        table of gigabytes, of which a text uses a few rows.
        """
        name = "embed_tokens.weight"
        if self.device.type != "cpu" or {name, f"target:{name}"} & self._kept.keys():
            return F.embedding(tokens, self.embeddings)
        if "table" not in self._kept:
            own = self.draft.vocabulary.embeddings == "own"
            found = self._shaped(name) if own else self._lent(name, lambda x: x.embeddings)
            self._kept["table"] = _sound(name, found)
        return F.embedding(tokens, self._kept["table"]).to(self.dtype)

    @property
    def head(self) -> torch.Tensor:
        """[D, H], the output projection; of the target's, the rows of the draft's vocabulary."""
        kind = self.draft.vocabulary.head
        if kind == "own":
            return self["lm_head.weight"]
        if kind == "tied":
            return self.embeddings
        return self._borrowed("lm_head.weight", self._gathered_head)

    @property
    def target_ids(self) -> torch.Tensor | None:
        """[D] int64, the target's id of every draft id; None where they are the same ids."""
        if not self.draft.vocabulary.mapped:
            return None
        offsets = self["d2t"].long()
        return torch.arange(offsets.numel(), device=offsets.device) + offsets

    def _gathered_head(self, tables: Tables) -> torch.Tensor:
        ids = self.target_ids
        return tables.head if ids is None else tables.head[ids.to(tables.head.device)]

    def _borrowed(self, name: str, pick: Callable[[Tables], torch.Tensor]) -> torch.Tensor:
        key = f"target:{name}"
        if key not in self._kept:
            self._kept[key] = self._placed(name, self._lent(name, pick))
        return self._kept[key]

    def _lent(self, name: str, pick: Callable[[Tables], torch.Tensor]) -> torch.Tensor:
        """A table of the target, as stored."""
        if self._tables is None:
            raise Refused([finding("needs-target", name, "the draft uses the target's")])
        table = pick(self._tables())
        if table.shape[-1] != self.draft.hidden_size:
            message = f"the target's is {table.shape[-1]} wide, the draft {self.draft.hidden_size}"
            raise Refused([finding("wrong-target", name, message)])
        return table

    def _placed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor.to(self.device)
        return _sound(name, tensor).to(self.device, self.dtype)


def _sound(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not finite(tensor):
        raise Refused([finding("non-finite-weights", name, "it holds NaN or infinite values")])
    return tensor


def finite(tensor: torch.Tensor) -> bool:
    """Whether every value is a number; looked at piece by piece, for tables that are mapped from a file."""
    return all(bool(torch.isfinite(part).all()) for part in torch.split(tensor.flatten(), _PIECE))


def as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A numpy array as a tensor of the same dtype, the bfloat16 of ml_dtypes included."""
    owned = np.array(array, order="C")
    if owned.dtype.name == "bfloat16":
        return torch.from_numpy(owned.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(owned)
