"""What a layout is: one framework's dialect, read into a `Draft` and written back out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from eagle3_interop.schemas.dialects.spelling import Spelling
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding
from eagle3_interop.schemas.options import Options


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
class TargetFacts:
    """What the target's own config says (its text config, where it has several).

    Attributes:
        name: Hub id or path, as it shall be written where a layout names the verifier.
        hidden_size: width of its residual stream, T.
        layers: its depth, L.
        vocab_size: rows of its embedding table, V.
        model_type: transformers' model type of the whole model.
        architectures: of the whole model.
        max_position: positions that it reaches, as SGLang counts them (`context.context_of`).
        window: the sliding window of all its layers, in positions; None where some attend to everything.
        is_path: the name is that of a folder of this machine.
    """

    name: str
    hidden_size: int
    layers: int
    vocab_size: int
    model_type: str
    architectures: tuple[str, ...] = ()
    max_position: int | None = None
    window: int | None = None
    is_path: bool = False


@dataclass(frozen=True)
class Reading:
    """What a layout's reader found.

    Attributes:
        draft: the network as the framework itself would compute it.
        names: canonical name to stored name, for every tensor that the framework uses.
        unused: stored names that the framework reads past (each explained by a finding).
        maps: d2t and t2d as the framework resolves them, where they had to be derived.
        findings: every default, disagreement and refusal met on the way.
        extras: config keys that no schema here knows, to be carried over (`keys.carry`).
        stops: why the class that the config selects does not start with this network; the network is in no doubt.
    """

    draft: Draft
    names: dict[str, str]
    unused: tuple[str, ...] = ()
    maps: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    extras: dict[str, Any] = field(default_factory=dict)
    stops: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Forms:
    """A form of folder that some releases need, where a destination has a choice.

    Attributes:
        layer0: prefixes of layer 0 that all of them know; empty, where nobody asked.
        bare: flags that stand among the layers' own keys too, because a reader loses those at the top.
        plain_targets: target classes of which one of them reads ids by the plain rule.
    """

    layer0: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    plain_targets: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Wishes:
    """What a writer is told beside the network itself.

    Attributes:
        options: the user's.
        target: the target's facts, where it was given.
        own_embeddings: the draft's table differs from the target's, or was trained.
        extras: keys of the source that are carried over.
        forms: what the releases need that the user named.
    """

    options: Options = field(default_factory=Options)
    target: TargetFacts | None = None
    own_embeddings: bool = False
    extras: Mapping[str, Any] = field(default_factory=dict)
    forms: Forms = Forms()


@dataclass(frozen=True)
class Writing:
    """How a layout writes a draft down.

    Attributes:
        config: config.json.
        spelling: how tensors are named.
        findings: choices made, and refusals.
        later_norms_twice: write the norm of layers >= 1 under both names.
        zeros: canonical names of biases that the loader creates and would leave uninitialised.
        plugin: SGLang computes it with this package's plugin only.
    """

    config: dict[str, Any]
    spelling: Spelling
    findings: tuple[Finding, ...] = ()
    later_norms_twice: bool = False
    zeros: tuple[str, ...] = ()
    plugin: bool = False
