"""A conversion that is being decided: what each rewrite takes, and gives on changed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.read.decoded import Decoded
from eagle3_interop.convert.read.stored import Stored
from eagle3_interop.convert.write.plan import Copy, Make, Op, Rewrite
from eagle3_interop.schemas.dialects.base import Forms, Wishes, Writing
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.engines.loaders import Loader
from eagle3_interop.schemas.engines.releases import forms_for, parse_named
from eagle3_interop.schemas.findings import Finding, Refused, finding
from eagle3_interop.schemas.options import Options
from eagle3_interop.schemas.powers import Powers
from eagle3_interop.schemas.registry import DESTINATIONS, Destination

SAFE = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""safetensors' names of the dtypes that weights have."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of the output: where its bytes come from, and what was done, in words."""

    op: Op
    note: str = ""

    @property
    def dtype(self) -> str:
        """The dtype of what the operation yields."""
        if isinstance(self.op, Copy):
            return self.op.source.dtype
        return self.op.dtype or (self.op.source.dtype if not isinstance(self.op, Make) else "")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what the operation starts from."""
        return tuple(self.op.values.shape) if isinstance(self.op, Make) else self.op.source.shape


@dataclass(frozen=True)
class Work:
    """A conversion being decided; a rewrite is a function from one of these to the next.

    Attributes:
        loaded: the source.
        destination: the layout's name.
        options: the user's.
        draft: the network, as far as it is rewritten.
        tensors: by canonical name, in the order of the source.
        findings: everything said so far.
        written: how the destination writes it, once its writer has run.
    """

    loaded: Loaded
    destination: str
    options: Options
    draft: Draft
    tensors: Mapping[str, Tensor]
    findings: tuple[Finding, ...]
    written: Writing | None = None

    def say(self, code: str, where: str, message: str) -> "Work":
        """With one finding more."""
        return replace(self, findings=(*self.findings, finding(code, where, message)))

    def refused(self, code: str, where: str, message: str) -> Refused:
        """Everything said so far and why it ends here, ready to be raised."""
        return Refused(self.say(code, where, message).findings)

    def describe(self, **changes: object) -> "Work":
        """With another description of the network."""
        return replace(self, draft=self.draft.model_copy(update=changes))

    def describe_vocabulary(self, **changes: object) -> "Work":
        """With another description of its vocabulary."""
        return self.describe(vocabulary=self.draft.vocabulary.model_copy(update=changes))

    def put(self, name: str, op: Op, note: str) -> "Work":
        """With another operation on a tensor; a new one comes last."""
        return replace(self, tensors={**self.tensors, name: Tensor(op, note)})

    def without(self, *names: str) -> "Work":
        """Without these tensors."""
        return replace(self, tensors={k: v for k, v in self.tensors.items() if k not in names})

    @property
    def place(self) -> Destination:
        """What the destination is."""
        return DESTINATIONS[self.destination]

    @property
    def loader(self) -> Loader:
        """What the destination's loader does with a folder."""
        return self.place.loader_of(self.draft)

    @property
    def wishes(self) -> Wishes:
        """What the destination's writer is told beside the network."""
        known = self.loaded.own_embeddings
        own = self.draft.trains_embeddings if known is None else known
        own = own and self.draft.vocabulary.embeddings == "own"
        return Wishes(self.options, self.loaded.facts, own, self.loaded.reading.extras, self.forms)

    @cached_property
    def forms(self) -> Forms:
        """What the releases need that the user named."""
        return forms_for(one.release for one in parse_named(self.options.releases))

    @cached_property
    def draft_class(self) -> Powers:
        """What the class computes that the output's folder selects."""
        return self.place.draft_class(self.draft, self.wishes)

    @property
    def writing(self) -> Writing:
        """How the destination writes it.

        Raises:
            RuntimeError: its writer has not run yet, which is a mistake in the order of the rewrites.
        """
        if self.written is None:
            raise RuntimeError("the destination's writer has not run yet")
        return self.written


def begin(loaded: Loaded, destination: str, options: Options) -> Work:
    """The source as it is: every tensor copied, in the order in which they lie in the files."""
    stored, names = loaded.checkpoint.stored, loaded.reading.names
    tensors = {
        name: _as_stored(stored[names[name]])
        for name in sorted(names, key=lambda name: _place(stored[names[name]]))
    }
    tensors |= {name: Tensor(Make(x, "I64"), "derived") for name, x in loaded.reading.maps.items()}
    reading = loaded.reading
    return Work(loaded, destination, options, reading.draft, tensors, reading.findings)


def _as_stored(tensor: Stored) -> Tensor:
    """What becomes of a tensor that no rewrite touches: of a quantised one, the plain one that it stands for."""
    if isinstance(tensor, Decoded):
        return Tensor(Rewrite(tensor), f"dequantised to {tensor.dtype}")
    return Tensor(Copy(tensor))


def write(work: Work) -> Work:
    """Have the destination write the network down: its config, its names, and what it refuses."""
    written = work.place.write(work.draft, work.wishes)
    layer0 = [one for one in written.spelling.layer0 if one in work.forms.layer0]
    if layer0:
        written = replace(written, spelling=replace(written.spelling, layer0=tuple(layer0)))
    return replace(work, written=written)


def _place(stored: Stored) -> tuple[str, int]:
    return str(stored.file), stored.start
