"""A quantised weight as the plain one that it stands for: a stored tensor that lies in several.

compressed-tensors' formats are decompressed by that library, ModelOpt's two and NVFP4 by their definition.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_interop.convert.read.stored import Stored, numpy_dtype
from eagle3_interop.schemas.findings import Unavailable, refusal
from eagle3_interop.schemas.quantisation import Scheme

Array = np.ndarray[Any, Any]

_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""What the sixteen codes stand for: the highest bit is the sign."""


@dataclass(frozen=True)
class Decoded(Stored):
    """A plain weight that lies in parts; ``file``, ``start`` and ``stop`` are those of its values.

    Attributes:
        parts: suffix to part.
        scheme: how it is stored.
    """

    parts: tuple[tuple[str, Stored], ...]
    scheme: Scheme

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that its parts lie in."""
        return tuple(dict.fromkeys(part.file for _, part in self.parts))


def values_of(tensor: Decoded, read: Callable[[Stored], Array]) -> Array:
    """The weight's values, rounded once to the dtype that it has as a plain one.

    Args:
        tensor: the weight.
        read: gives all values of a part.

    Raises:
        Unavailable: compressed-tensors is not installed.
        Refused: it does not take these parts, or a value does not fit the dtype.
    """
    parts = {name: read(part) for name, part in tensor.parts}
    scheme = tensor.scheme
    match scheme.format:
        case "FP8":
            values = _single(parts["weight"]) * _single(parts["weight_scale"])
        case "NVFP4":
            scales = _single(parts["weight_scale"]) * _single(parts["weight_scale_2"])
            values = _nvfp4(parts["weight"], scales)
        case "nvfp4-pack-quantized":  # the library rounds these to bfloat16 on the way
            scales = _single(parts["weight_scale"]) / _single(parts["weight_global_scale"])
            values = _nvfp4(parts["weight_packed"], scales)
        case _:
            values = _decompressed(parts, scheme)
    with np.errstate(over="ignore"):
        plain = values.reshape(tensor.shape).astype(numpy_dtype(tensor.dtype, tensor.name))
    if not np.isfinite(plain).all():
        message = f"stands for values that do not fit {tensor.dtype}"
        raise refusal("cast-overflow", tensor.name, message)
    return plain


def _single(part: Array) -> Array:
    return part.astype(np.float32)


def _nvfp4(packed: Array, scales: Array) -> Array:
    """Two codes in a byte, the low half first; sixteen in a row share a scale."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1, 16)
    values: Array = _FP4[codes] * scales[..., None]
    return values.reshape(len(packed), -1)


def _decompressed(parts: Mapping[str, Array], scheme: Scheme) -> Array:
    """By the library itself, one module alone."""
    try:
        import torch
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationScheme
    except ImportError as error:
        message = (
            f"{error.name or 'compressed-tensors'} is not installed, which decompresses this draft's "
            "weights: pip install 'eagle3-interop[dequantize]'"
        )
        raise Unavailable(message) from error
    known = QuantizationScheme.model_validate(
        {
            "targets": ["Linear"],
            "weights": scheme.weights,
            "input_activations": scheme.input_activations,
            "output_activations": scheme.output_activations,
        }
    )
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    tensors = {name: _tensor(torch, part) for name, part in parts.items()}
    try:
        plain = compressor.decompress(tensors, scheme=known)["weight"]
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        message = f"compressed-tensors does not decompress it: {error}"
        raise refusal("quantised-parts", scheme.format, message) from error
    values: Array = plain.to(torch.float32).numpy()
    return values


def _tensor(torch: Any, part: Array) -> Any:  # noqa: ANN401 - imported where it is needed
    """A part for torch; scales in float32, so that nothing is rounded on the way."""
    name = part.dtype.name
    if name.startswith("float8"):
        return torch.from_numpy(part.view(np.uint8).copy()).view(getattr(torch, name))
    if part.dtype.kind == "f" or name == "bfloat16":
        return torch.from_numpy(np.array(part, np.float32))
    return torch.from_numpy(np.array(part))
