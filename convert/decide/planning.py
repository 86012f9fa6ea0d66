"""From a reading and a destination to a plan, and the proof that it reads back as what was meant."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eagle3_interop.convert.decide.fitting import Choices, Fit, Loaded, op_dtype
from eagle3_interop.convert.write.plan import Copy, Make, Output, Rewrite
from eagle3_interop.schemas.dialects.base import Reading, Wishes, Writing
from eagle3_interop.schemas.dialects.reading import check
from eagle3_interop.schemas.dialects.registry import LAYOUTS
from eagle3_interop.schemas.dialects.spelling import shapes
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding, Refused, errors, unmended

__all__ = ["Choices", "Fitted", "Loaded", "fit", "read_back"]


@dataclass(frozen=True)
class Fitted:
    """A network in a destination's dialect.

    Attributes:
        draft: the network as the destination's own loader shall read it back.
        writing: the destination's config and names.
        outputs: every tensor of the output, in the order of the source.
        findings: everything said since the source was opened.
    """

    draft: Draft
    writing: Writing
    outputs: tuple[Output, ...]
    findings: tuple[Finding, ...]


def fit(loaded: Loaded, destination: str, choices: Choices) -> Fitted:
    """Decide how a destination writes this network, tensor by tensor.

    Args:
        loaded: the source, checked.
        destination: a layout's name.
        choices: the user's.

    Returns:
        The destination's config and tensors.

    Raises:
        Refused: the destination cannot express the network exactly.
    """
    this = Fit(loaded, destination, choices)
    this.order_taps()
    this.raise_positions()
    this.check_rope()
    this.settle_embeddings()
    own = loaded.own_embeddings is True or (
        loaded.own_embeddings is None and this.draft.trains_embeddings
    )
    own = own and this.draft.vocabulary.embeddings == "own"
    if choices.dtype is not None:
        this.update(dtype=choices.dtype)
    wishes = Wishes(
        loaded.facts,
        choices.verifier,
        choices.verifier_is_path,
        choices.stock,
        own,
        loaded.reading.extras,
    )
    layout = LAYOUTS[destination]
    this.resolve_head(layout.write(this.draft, wishes))
    writing = layout.write(this.draft, wishes)
    this.settle_maps(writing)
    this.add_zeros(writing)
    this.cast()
    this.warn_of_kv_shape()
    if writing.embeddings == "replaced":
        this.set_vocabulary(embeddings="target")
    findings = tuple(unmended(dict.fromkeys((*this.findings, *writing.findings))))
    if errors(findings):
        raise Refused(findings)
    outputs = tuple(_outputs(this, writing))
    return Fitted(this.draft, writing, outputs, findings)


def _outputs(this: Fit, writing: Writing) -> Iterator[Output]:
    wanted = shapes(this.draft)
    for canonical, (op, note) in this.ops.items():
        stored = this.loaded.reading.names.get(canonical)
        shape = wanted.get(canonical) or _shape(op)
        name = writing.spelling.write(canonical)
        kept = stored is not None and writing.spelling.accepts(stored, canonical)
        if kept and not this.choices.canonical_names and stored is not None:
            name = stored
        said = ", ".join(
            part for part in ("renamed" if stored not in (None, name) else "", note) if part
        )
        yield Output(name, op_dtype(op), shape, op, said)
        layer = canonical.removeprefix("layers.").partition(".")
        if writing.later_norms_twice and layer[2] == "input_layernorm.weight" and layer[0] != "0":
            twin = canonical.replace("input_layernorm", "hidden_norm")
            yield Output(twin, op_dtype(op), shape, op, "second name")


def _shape(op: Copy | Rewrite | Make) -> tuple[int, ...]:
    if isinstance(op, Make):
        return tuple(op.values.shape)
    return op.source.shape


class Planned:
    """A conversion's output as a source of its own, before a byte of it is written.

    The destination's reader is run over it: what it reads back must be what was meant.
    """

    def __init__(self, fitted: Fitted, loaded: Loaded) -> None:
        """Keep the config as JSON would give it back."""
        self.path = "the planned output"
        self.config: Mapping[str, Any] = json.loads(json.dumps(fitted.writing.config))
        self._outputs = {output.name: output for output in fitted.outputs}
        self._loaded = loaded

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Headers by name: an `Output` has a dtype and a shape, which is all that a header is."""
        return self._outputs

    def values(self, name: str) -> np.ndarray[Any, Any]:
        """Values of a map or a bias."""
        op = self._outputs[name].op
        if isinstance(op, Make):
            return op.values
        read: Callable[[str], np.ndarray[Any, Any]] = self._loaded.checkpoint.values
        return read(op.source.name)


def read_back(fitted: Fitted, loaded: Loaded, destination: str) -> Reading:
    """What the destination's reader finds in the planned output, its check of the tensors included."""
    planned = Planned(fitted, loaded)
    reading = LAYOUTS[destination].read(planned, loaded.facts)
    found = (*reading.findings, *check(reading, planned.tensors))
    return replace(reading, findings=found)
