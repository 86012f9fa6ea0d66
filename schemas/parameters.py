"""Every tensor that an EAGLE-3 draft can own: one row each, with named axes.

Shapes, checks, rewrites and the SGLang plugin all read these rows. A rewrite asks for an axis and not for
a tensor: "put the taps in order" permutes every axis `TAPS`, "sort the map" every axis `DRAFT_VOCAB`,
"exchange the halves" every axis `ENTRY`, whatever tensors have it.

A quantised weight has no row of its own: `parameters` divides its row into those of its parts, with the same
axes, so that whatever is asked for an axis finds them too.

The SGLang plugin reads this module inside a server's environment, so it imports the standard library, `draft`
and `quantisation` (pydantic) alone.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Any, Literal

from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.quantisation import PARTS, Piece, Scheme

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """One direction of a tensor.

    Attributes:
        name: what runs along it.
        size: where the description has its size, or the size itself; of several, the sum.
    """

    name: str
    size: tuple[str | int, ...]

    def of(self, draft: Draft) -> int:
        """Its size in a network."""
        sizes = [size if isinstance(size, int) else _at(draft, size) for size in self.size]
        if not all(isinstance(size, int) for size in sizes):
            raise TypeError(f"this network has no axis {self.name}")
        return sum(sizes)


@dataclass(frozen=True)
class When:
    """When a network owns a tensor.

    Attributes:
        path: a key of the description.
        value: what it says then; True and False stand for anything there, and for nothing or no.
        told: ``--set`` can say it.
    """

    path: str
    value: str | bool = True
    told: bool = True

    def holds(self, draft: Draft) -> bool:
        """Whether the description says so."""
        found = _at(draft, self.path)
        return found == self.value if isinstance(self.value, str) else bool(found) is self.value


def _at(draft: Draft, path: str) -> Any:  # noqa: ANN401
    found: Any = draft
    for key in path.split("."):
        found = getattr(found, key, None)
    return found


Dimension = tuple[Axis, ...]
"""One dimension of a tensor, outermost axis first: ``(TAPS, TARGET)`` is a block of the target's width for each tap."""

ONE = Axis("ONE", (1,))
ENTRY = Axis("ENTRY", (2,))
"""What layer 0 takes: [embedding, hidden]."""
HIDDEN = Axis("HIDDEN", ("hidden_size",))
TARGET = Axis("TARGET", ("target.hidden_size",))
TAPS = Axis("TAPS", ("fc.blocks",))
LAYERS = Axis("LAYERS", ("layers.count",))
MLP = Axis("MLP", ("layers.mlp.width",))
TARGET_VOCAB = Axis("TARGET_VOCAB", ("vocabulary.target_size",))
DRAFT_VOCAB = Axis("DRAFT_VOCAB", ("vocabulary.draft_size",))
HEADS = Axis("HEADS", ("layers.attention.heads",))
KV_HEADS = Axis("KV_HEADS", ("layers.attention.kv_heads",))
HEAD_DIM = Axis("HEAD_DIM", ("layers.attention.head_dim",))

Q_RANK = Axis("Q_RANK", ("layers.attention.q_rank",))
KV_RANK = Axis("KV_RANK", ("layers.attention.kv_rank",))
V_DIM = Axis("V_DIM", ("layers.attention.v_dim",))
QK_DIM = Axis("QK_DIM", ("layers.attention.nope_dim", "layers.attention.rope_dim"))
KV_RANK_AND_ROPE = Axis("KV_RANK + ROPE", ("layers.attention.kv_rank", "layers.attention.rope_dim"))
NOPE_AND_V = Axis("NOPE + V", ("layers.attention.nope_dim", "layers.attention.v_dim"))

Which = tuple[int, int | None]
EVERY, FIRST, LATER = (0, None), (0, 1), (1, None)


@dataclass(frozen=True)
class Parameter:
    """A tensor, or one of each layer or block.

    Attributes:
        name: canonical; ``{}`` stands for the number of the layer or block.
        axes: its dimensions.
        when: what all must hold for the network to own it.
        each: the axis that its number counts along.
        which: those of them that have it, from and up to.
        holds: what its values are.
        tolerated: it may lie in the file of a network that does not own it.
        repeats: the tensor that it says nothing beyond; it is made from that one where it is wanted.
        steps: of a part of a quantised weight: how many entries of the weight one of its own stands for, in each
            dimension.
        dtypes: of such a part: those that it may have; empty for a plain tensor.
    """

    name: str
    axes: tuple[Dimension, ...]
    when: tuple[When, ...] = ()
    each: Axis | None = None
    which: Which = EVERY
    holds: Literal["weights", "offsets", "flags"] = "weights"
    tolerated: bool = False
    repeats: str | None = None
    steps: tuple[int, ...] = ()
    dtypes: frozenset[str] = frozenset()

    def owned_by(self, draft: Draft) -> bool:
        """Whether a network has it as its own."""
        return self.repeats is None and all(condition.holds(draft) for condition in self.when)

    def shape(self, draft: Draft) -> Shape:
        """Its shape in a network."""
        sizes = [prod(axis.of(draft) for axis in dimension) for dimension in self.axes]
        steps = self.steps or (1,) * len(sizes)
        return tuple(-(-size // step) for size, step in zip(sizes, steps, strict=True))

    def cut_by(self, draft: Draft, axis: Axis) -> bool:
        """Whether one of its entries stands for more than one step along an axis, or for parts of two."""
        for dimension, step in zip(self.axes, self.steps, strict=False):
            if axis in dimension:
                inner = dimension[dimension.index(axis) + 1 :]
                return prod(one.of(draft) for one in inner) % step != 0
        return False

    def names(self, canonical: str) -> bool:
        """Whether a canonical name is this parameter's, of whatever layer or block."""
        pattern = re.escape(self.name).replace(re.escape("{}"), r"\d+")
        return re.fullmatch(pattern, canonical) is not None


def _linear(
    name: str,
    rows: Dimension,
    columns: Dimension,
    *when: When,
    bias: When | None = None,
    which: Which = EVERY,
) -> tuple[Parameter, ...]:
    each = LAYERS if "{}" in name else None
    weight = Parameter(f"{name}.weight", (rows, columns), when, each, which)
    if bias is None:
        return (weight,)
    return (weight, Parameter(f"{name}.bias", (rows,), (*when, bias), each, which))


def _norm(name: str, width: Dimension, *when: When, which: Which = EVERY) -> Parameter:
    return Parameter(f"{name}.weight", (width,), when, LAYERS if "{}" in name else None, which)


def _entry(
    name: str, rows: Dimension, *when: When, bias: When | None = None
) -> tuple[Parameter, ...]:
    """What projects the input of a layer, which in layer 0 is [embedding, hidden]."""
    return (
        *_linear(name, rows, (ENTRY, HIDDEN), *when, bias=bias, which=FIRST),
        *_linear(name, rows, (HIDDEN,), *when, bias=bias, which=LATER),
    )


_FC = When("fc", told=False)
_GQA = When("layers.attention.kind", "gqa", told=False)
_MLA = When("layers.attention.kind", "mla", told=False)
_Q_LATENT = When("layers.attention.q_rank", told=False)
_NO_Q_LATENT = When("layers.attention.q_rank", False, told=False)
_QKV_BIAS = When("layers.attention.qkv_bias")
_OUTPUT_BIAS = When("layers.attention.output_bias")
_QK_NORM = When("layers.attention.qk_norm")
_MLP_BIAS = When("layers.mlp.bias")

PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        "embed_tokens.weight",
        ((TARGET_VOCAB,), (HIDDEN,)),
        (When("vocabulary.embeddings", "own"),),
        tolerated=True,
    ),
    # From the taps to the draft's width. Norms before fc: over the whole concatenation, or on each block.
    *_linear("fc", (HIDDEN,), (TAPS, TARGET), _FC, bias=When("fc.bias")),
    _norm("input_norm", (TAPS, TARGET), When("fc.input_norm")),
    Parameter("fc_norm.{}.weight", ((TARGET,),), (When("fc.block_norms"),), each=TAPS),
    Parameter("mask_hidden", ((ONE,), (ONE,), (TAPS, TARGET)), (_FC, When("parallel", told=False))),
    # The layers. Layer 0 has a norm for each half of its input.
    _norm("layers.{}.input_layernorm", (HIDDEN,)),
    _norm("layers.{}.hidden_norm", (HIDDEN,), which=FIRST),
    *_entry("layers.{}.self_attn.q_proj", (HEADS, HEAD_DIM), _GQA, bias=_QKV_BIAS),
    *_entry("layers.{}.self_attn.k_proj", (KV_HEADS, HEAD_DIM), _GQA, bias=_QKV_BIAS),
    *_entry("layers.{}.self_attn.v_proj", (KV_HEADS, HEAD_DIM), _GQA, bias=_QKV_BIAS),
    *_linear("layers.{}.self_attn.o_proj", (HIDDEN,), (HEADS, HEAD_DIM), _GQA, bias=_OUTPUT_BIAS),
    _norm("layers.{}.self_attn.q_norm", (HEAD_DIM,), _QK_NORM),
    _norm("layers.{}.self_attn.k_norm", (HEAD_DIM,), _QK_NORM),
    # Latent attention: queries from a latent of their own or at once, keys and values from theirs.
    *_entry("layers.{}.self_attn.q_proj", (HEADS, QK_DIM), _MLA, _NO_Q_LATENT),
    *_entry("layers.{}.self_attn.q_a_proj", (Q_RANK,), _MLA, _Q_LATENT),
    _norm("layers.{}.self_attn.q_a_layernorm", (Q_RANK,), _MLA, _Q_LATENT),
    *_linear("layers.{}.self_attn.q_b_proj", (HEADS, QK_DIM), (Q_RANK,), _MLA, _Q_LATENT),
    *_entry("layers.{}.self_attn.kv_a_proj_with_mqa", (KV_RANK_AND_ROPE,), _MLA),
    _norm("layers.{}.self_attn.kv_a_layernorm", (KV_RANK,), _MLA),
    *_linear("layers.{}.self_attn.kv_b_proj", (HEADS, NOPE_AND_V), (KV_RANK,), _MLA),
    *_linear("layers.{}.self_attn.o_proj", (HIDDEN,), (HEADS, V_DIM), _MLA),
    _norm("layers.{}.post_attention_layernorm", (HIDDEN,)),
    *_linear("layers.{}.mlp.gate_proj", (MLP,), (HIDDEN,), bias=_MLP_BIAS),
    *_linear("layers.{}.mlp.up_proj", (MLP,), (HIDDEN,), bias=_MLP_BIAS),
    *_linear("layers.{}.mlp.down_proj", (HIDDEN,), (MLP,), bias=_MLP_BIAS),
    # The final norm, the head, and what its rows stand for.
    _norm("norm", (HIDDEN,)),
    *_linear("lm_head", (DRAFT_VOCAB,), (HIDDEN,), When("vocabulary.head", "own")),
    # Target id = draft id + d2t[draft id]; t2d says of each target token whether the draft has it.
    Parameter(
        "d2t", ((DRAFT_VOCAB,),), (When("vocabulary.mapped"),), holds="offsets", tolerated=True
    ),
    Parameter("t2d", ((TARGET_VOCAB,),), holds="flags", tolerated=True, repeats="d2t"),
)
"""The table, in the order of a pass through the network."""

MAPS = frozenset(row.name for row in PARAMETERS if row.holds != "weights")
"""What holds no weights, and is never cast."""


def is_part(stored: str) -> bool:
    """Whether a name is that of a part of a quantised weight, other than a ``weight`` itself."""
    return stored.rpartition(".")[2] in PARTS


def parameters(draft: Draft) -> Iterator[tuple[str, Parameter]]:
    """Canonical name and row of every tensor that a network owns, layer by layer."""
    for each, group in groupby(PARAMETERS, key=lambda row: row.each):
        rows = [row for row in group if row.owned_by(draft)]
        numbers = range(each.of(draft) if each is not None and rows else 1)
        for number in numbers:
            for row in rows:
                if number in numbers[slice(*row.which)]:
                    yield from _in_parts(draft, row.name.format(number), row)


def _in_parts(draft: Draft, name: str, row: Parameter) -> Iterator[tuple[str, Parameter]]:
    """A tensor as it is stored: by itself, or in the parts of its scheme."""
    scheme = draft.quantisation.scheme_of(name) if draft.quantisation is not None else None
    if scheme is None:
        yield name, row
        return
    for piece in scheme.pieces:
        yield name.removesuffix("weight") + piece.suffix, _part(row, piece)


def _part(row: Parameter, piece: Piece) -> Parameter:
    if piece.per is None:
        alone = (replace(ONE, size=(piece.size,)),)
        return replace(row, axes=(alone,), steps=(1,), dtypes=piece.dtypes)
    divided = zip(row.axes, piece.per, strict=True)
    axes = tuple((ONE,) if step is None else axis for axis, step in divided)
    steps = tuple(step or 1 for step in piece.per)
    return replace(row, axes=axes, steps=steps, dtypes=piece.dtypes)


def scheme_of(draft: Draft, canonical: str) -> Scheme | None:
    """The scheme of the module that a tensor is a part of; None where that is not quantised."""
    if draft.quantisation is None:
        return None
    return draft.quantisation.modules.get(canonical.rpartition(".")[0])


def shapes(draft: Draft) -> dict[str, Shape]:
    """Canonical name to shape, of every tensor that a network owns."""
    return {name: row.shape(draft) for name, row in parameters(draft)}


def storable(draft: Draft, owned: Mapping[str, Shape] | None = None) -> dict[str, Shape]:
    """The same, with what may lie in its file besides.

    Args:
        draft: the network.
        owned: its own, where they are known already.
    """
    known = shapes(draft) if owned is None else owned
    return {row.name: row.shape(draft) for row in PARAMETERS if row.tolerated} | dict(known)


def along(draft: Draft, axis: Axis) -> dict[str, int]:
    """The tensors of a network that are divided along an axis, and the dimension that is.

    What has one tensor for each step along the axis is found by `numbered`.
    """
    return {
        name: number
        for name, row in parameters(draft)
        for number, dimension in enumerate(row.axes)
        if axis in dimension
    }


def cut(draft: Draft, axis: Axis) -> str | None:
    """A part of a quantised weight that a rewrite along an axis would cut through; None where there is none."""
    rows = ((name, row) for name, row in parameters(draft) if row.dtypes)
    return next((name for name, row in rows if row.cut_by(draft, axis)), None)


def numbered(draft: Draft, axis: Axis) -> list[list[str]]:
    """The names of the tensors that a network has one of for each step along an axis, step by step."""
    rows = [row for row in PARAMETERS if row.each == axis and row.owned_by(draft)]
    steps = range(axis.of(draft)) if rows else range(0)
    return [
        [row.name.format(step) for row in rows if step in steps[slice(*row.which)]]
        for step in steps
    ]


@lru_cache(maxsize=4096)
def settled_by(canonical: str) -> str | None:
    """The key of the description that says whether a network owns this tensor.

    Returns:
        The key; empty where ``--set`` has no say in it, None for no tensor of any network.
    """
    row = next((row for row in PARAMETERS if row.names(canonical)), None)
    if row is None:
        return None
    return next((condition.path for condition in row.when if condition.told), "")
