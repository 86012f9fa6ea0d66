"""Weights that are stored as small integers or floats, with the factors that give their values back.

A quantised weight lies in several tensors, its parts: the values themselves, as they are or packed, and scales
for the whole, for each row, for groups of columns or for blocks. `pieces` says which parts a scheme has, and
how many rows and columns each of their entries stands for; `parameters` makes rows of them.

The SGLang plugin imports this inside a server's environment, so it knows pydantic alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FLOATS = frozenset({"BF16", "F16", "F32"})
_FP8 = frozenset({"F8_E4M3"})

Method = Literal["compressed-tensors", "modelopt"]
Format = Literal[
    "naive-quantized",
    "int-quantized",
    "float-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "FP8",
    "NVFP4",
]
"""compressed-tensors' formats, and ModelOpt's two algorithms."""

PARTS = (
    "weight_packed",
    "weight_shape",
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "weight_zero_point",
    "weight_g_idx",
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
)
"""What the parts of a quantised weight are called, beside or in place of its ``weight``."""

STORED_SMALL = ("I8", "U8", "I32", "U32", "F8_", "F4", "F6_")
"""How the dtypes begin that no plain weight has."""


@dataclass(frozen=True)
class Piece:
    """One part of a quantised weight.

    Attributes:
        suffix: its name, after the module's.
        per: the rows and columns that one entry stands for, None for all of them; None for a part that is
            not divided like the weight.
        dtypes: those that it may have.
        size: of a part that is not divided: how many numbers it is.
    """

    suffix: str
    per: tuple[int | None, int | None] | None
    dtypes: frozenset[str]
    size: int = 1


class Scheme(BaseModel):
    """How the weights of some modules are stored, and what their inputs are rounded to.

    Attributes:
        method: whose scheme it is.
        format: how the values lie in the file.
        weights: compressed-tensors' own arguments of the weights; ModelOpt's algorithms have none.
        input_activations: those of the inputs; None where they are not rounded.
        output_activations: those of the outputs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Method
    format: Format
    weights: dict[str, Any] = {}
    input_activations: dict[str, Any] | None = None
    output_activations: dict[str, Any] | None = None

    @property
    def bits(self) -> int:
        """Bits of each value."""
        known = {"FP8": 8, "NVFP4": 4}
        return known.get(self.format) or int(self.weights.get("num_bits") or 8)

    @property
    def packed(self) -> int:
        """Values that share an entry of the tensor which holds them."""
        if self.format == "pack-quantized":
            return 32 // self.bits
        return 2 if self.bits == 4 else 1

    @property
    def holder(self) -> str:
        """The suffix of the tensor that holds the values."""
        return "weight_packed" if "pack" in self.format else "weight"

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Every part of a weight of this scheme."""
        return tuple(_pieces(self))

    def __str__(self) -> str:
        """For people."""
        if self.method == "modelopt":
            return f"ModelOpt {self.format}"
        kind = "float" if self.weights.get("type") == "float" else "int"
        inputs = self.input_activations
        rounded = f"A{inputs.get('num_bits', 8)}" if inputs else "A16"
        return f"{self.format}, W{self.bits}{rounded} {kind}, {_strategy(self.weights)} scales"


class Group(BaseModel):
    """Modules of one scheme.

    Attributes:
        scheme: how they are stored.
        modules: their canonical names, such as ``layers.0.mlp.down_proj``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scheme: Scheme
    modules: tuple[str, ...]


class Quantisation(BaseModel):
    """Which modules are stored quantised, and how. Names in ignore lists and targets are spelling, and not here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: tuple[Group, ...]

    @property
    def method(self) -> Method:
        """Whose it is; the groups of a folder have one method."""
        return self.groups[0].scheme.method

    @property
    def modules(self) -> dict[str, Scheme]:
        """Canonical name of a module to its scheme."""
        return {module: group.scheme for group in self.groups for module in group.modules}

    def scheme_of(self, weight: str) -> Scheme | None:
        """The scheme of a weight, by its canonical name; None for one that is not quantised."""
        module, _, end = weight.rpartition(".")
        return self.modules.get(module) if end == "weight" else None

    def __str__(self) -> str:
        """For people."""
        return "; ".join(f"{group.scheme}: {len(group.modules)} matrices" for group in self.groups)


def _pieces(scheme: Scheme) -> Iterator[Piece]:
    if scheme.method == "modelopt":
        if scheme.format == "FP8":
            yield Piece("weight", (1, 1), _FP8)
            yield Piece("weight_scale", None, FLOATS)
        else:
            yield Piece("weight", (1, 2), frozenset({"U8"}))
            yield Piece("weight_scale", (1, 16), _FP8)
            yield Piece("weight_scale_2", None, FLOATS)
        yield Piece("input_scale", None, FLOATS)
        return
    weights, integer = scheme.weights, scheme.weights.get("type", "int") == "int"
    match scheme.format:
        case "nvfp4-pack-quantized":
            yield Piece("weight_packed", (1, 2), frozenset({"U8"}))
            yield Piece("weight_scale", (1, 16), _FP8)
            yield Piece("weight_global_scale", None, FLOATS)
            if scheme.input_activations:
                yield Piece("input_global_scale", None, FLOATS)
            return
        case "mxfp4-pack-quantized":
            yield Piece("weight_packed", (1, 2), frozenset({"U8"}))
            yield Piece("weight_scale", (1, 32), frozenset({"U8"}))
            return
        case "mxfp8-quantized":
            yield Piece("weight", (1, 1), _FP8)
            yield Piece("weight_scale", (1, 32), frozenset({"U8"}))
            return
        case "pack-quantized":
            yield Piece("weight_packed", (1, scheme.packed), frozenset({"I32"}))
            yield Piece("weight_shape", None, frozenset({"I32", "I64"}), 2)
        case _:
            yield Piece("weight", (1, 1), frozenset({"I8"}) if integer else _FP8)
    scales = _per(weights)
    yield Piece("weight_scale", scales, FLOATS)
    if not weights.get("symmetric", True):
        if scheme.format == "pack-quantized" and scales is not None:
            yield Piece("weight_zero_point", (scheme.packed, scales[1]), frozenset({"I32"}))
        else:
            yield Piece("weight_zero_point", scales, frozenset({"I8"}))
    for what, arguments in (
        ("input", scheme.input_activations),
        ("output", scheme.output_activations),
    ):
        if arguments and not arguments.get("dynamic"):
            yield Piece(f"{what}_scale", None, FLOATS)
            if not arguments.get("symmetric", True):
                yield Piece(f"{what}_zero_point", None, frozenset({"I8"}))


def _strategy(weights: dict[str, Any]) -> str:
    """As compressed-tensors completes what is not said."""
    said, size = weights.get("strategy"), weights.get("group_size")
    if said is not None:
        return str(said)
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _per(weights: dict[str, Any]) -> tuple[int | None, int | None] | None:
    """Rows and columns that share a scale; None for one scale of all."""
    match _strategy(weights):
        case "tensor":
            return None
        case "channel":
            return (1, None)
        case "block":
            rows, columns = weights["block_structure"]
            return (rows, columns)
        case _:
            return (1, weights["group_size"])
