"""Quantised drafts by the definitions of their formats: what lies in a file, and what it stands for.

None of the formats comes from the product, compressed-tensors or ModelOpt. ``SCHEMES`` maps a kind to its parts and its config;
`quantise` gives the parts of a matrix, and the matrix that they stand for.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import drafts
import ml_dtypes
import numpy as np
from safetensors import deserialize

from eagle3_interop.convert import api

Array = np.ndarray[Any, Any]
Parts = dict[str, Array]

FP8 = ml_dtypes.float8_e4m3fn
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
GROUP, BLOCK = 16, 8

MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _int8(w: Array) -> tuple[Parts, Array]:
    scale = np.abs(w).max(1, keepdims=True) / 127
    q = np.rint(w / scale).astype(np.int8)
    return {"weight": q, "weight_scale": scale}, q.astype(np.float32) * scale


def _int8_uneven(w: Array) -> tuple[Parts, Array]:
    low, high = w.min(1, keepdims=True), w.max(1, keepdims=True)
    scale = ((high - low) / 255).astype(np.float32)
    zero = np.rint(-128 - low / scale).clip(-128, 127)
    q = (np.rint(w / scale) + zero).clip(-128, 127)
    parts = {
        "weight": q.astype(np.int8),
        "weight_scale": scale,
        "weight_zero_point": zero.astype(np.int8),
    }
    return parts, ((q - zero) * scale).astype(np.float32)


def _fp8(w: Array) -> tuple[Parts, Array]:
    scale = np.abs(w).max(1, keepdims=True) / 448
    q = (w / scale).astype(FP8)
    return {"weight": q, "weight_scale": scale}, q.astype(np.float32) * scale


def _fp8_tensor(w: Array) -> tuple[Parts, Array]:
    scale = np.abs(w).max().reshape(1) / 448
    q = (w / scale).astype(FP8)
    parts = {"weight": q, "weight_scale": scale, "input_scale": np.full(1, 0.05, np.float32)}
    return parts, q.astype(np.float32) * scale


def _fp8_blocks(w: Array) -> tuple[Parts, Array]:
    rows, columns = w.shape
    blocks = w.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scale = np.abs(blocks).max((1, 3)) / 448
    full = scale.repeat(BLOCK, 0).repeat(BLOCK, 1)
    q = (w / full).astype(FP8)
    return {"weight": q, "weight_scale": scale}, q.astype(np.float32) * full


def _packed(q: Array, bits: int) -> Array:
    """Integers from zero, the first in the lowest bits of each int32; along the last axis."""
    per = 32 // bits
    q = np.pad(q, ((0, 0), (0, -q.shape[1] % per))).astype(np.uint32)
    words = q.reshape(len(q), -1, per)
    return np.bitwise_or.reduce(words << (bits * np.arange(per, dtype=np.uint32)), axis=2).view(
        np.int32
    )


def _grouped(bits: int, group: int | None, *, even: bool = True) -> Callable[[Array], Any]:
    def quantised(w: Array) -> tuple[Parts, Array]:
        half, groups = 1 << (bits - 1), w.reshape(len(w), -1, group or w.shape[1])
        if even:
            scale = np.abs(groups).max(2) / (half - 1)
            zero = np.zeros_like(scale)
        else:
            low, high = groups.min(2), groups.max(2)
            scale = (high - low) / (2 * half - 1)
            zero = np.rint(-half - low / scale).clip(-half, half - 1)
        q = (np.rint(groups / scale[..., None]) + zero[..., None]).clip(-half, half - 1)
        parts = {
            "weight_packed": _packed(q.reshape(w.shape) + half, bits),
            "weight_scale": scale.astype(np.float32),
            "weight_shape": np.array(w.shape, np.int64),
        }
        if not even:
            parts["weight_zero_point"] = np.ascontiguousarray(_packed(zero.T + half, bits).T)
        values = (q - zero[..., None]) * scale[..., None].astype(np.float32)
        return parts, values.reshape(w.shape).astype(np.float32)

    return quantised


def _nibbles(w: Array, scale: Array, whole: Array) -> tuple[Array, Array]:
    """fp4 codes, two in a byte, the first in the low half; and what they stand for."""
    groups = w.reshape(len(w), -1, 16)
    x = groups / (scale.astype(np.float32) * whole)[..., None]
    code = np.abs(np.abs(x)[..., None] - FP4).argmin(-1)
    values = FP4[code] * np.sign(x) * (scale.astype(np.float32) * whole)[..., None]
    code = (code + 8 * (x < 0)).reshape(w.shape).astype(np.uint8)
    return code[:, 0::2] | (code[:, 1::2] << 4), values.reshape(w.shape).astype(np.float32)


def _nvfp4(w: Array) -> tuple[Parts, Array]:
    """ModelOpt's: the whole's scale is multiplied."""
    whole = (np.abs(w).max() / (6 * 448)).astype(np.float32)
    scale = (np.abs(w.reshape(len(w), -1, 16)).max(2) / 6 / whole).astype(FP8)
    code, values = _nibbles(w, scale, whole)
    parts = {
        "weight": code,
        "weight_scale": scale,
        "weight_scale_2": whole,
        "input_scale": np.float32(0.001),
    }
    return {name: np.asarray(part) for name, part in parts.items()}, values


def _nvfp4_pack(w: Array) -> tuple[Parts, Array]:
    """compressed-tensors': the whole's scale is divided by."""
    whole = (6 * 448 / np.abs(w).max()).reshape(1).astype(np.float32)
    scale = (np.abs(w.reshape(len(w), -1, 16)).max(2) / 6 * whole).astype(FP8)
    code, values = _nibbles(w, scale, 1 / whole)
    parts = {
        "weight_packed": code,
        "weight_scale": scale,
        "weight_global_scale": whole,
        "input_global_scale": np.full(1, 20, np.float32),
    }
    return parts, values


def _powers(w: Array, largest: float) -> tuple[Array, Array]:
    """Scales that are powers of two, one for each 32 columns: their exponents from 127, and themselves."""
    peaks = np.abs(w.reshape(len(w), -1, 32)).max(2)
    exponent = np.ceil(np.log2(peaks / largest)) + 127
    return exponent.astype(np.uint8), np.exp2(exponent - 127).astype(np.float32)


def _mxfp4(w: Array) -> tuple[Parts, Array]:
    exponent, scale = _powers(w, 6)
    code, values = _nibbles(w, scale.repeat(2, 1), np.float32(1))
    return {"weight_packed": code, "weight_scale": exponent}, values


def _mxfp8(w: Array) -> tuple[Parts, Array]:
    exponent, scale = _powers(w, 448)
    q = (w / scale.repeat(32, 1)).astype(FP8)
    return {"weight": q, "weight_scale": exponent}, q.astype(np.float32) * scale.repeat(32, 1)


def _modelopt_fp8(w: Array) -> tuple[Parts, Array]:
    parts, values = _fp8_tensor(w)
    return {
        name: part if part.size > 1 else part.reshape(()) for name, part in parts.items()
    }, values


def _weights(bits: int, strategy: str, kind: str = "int", **more: Any) -> dict[str, Any]:
    said = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": strategy}
    return {**said, "dynamic": False, "group_size": None, "observer": "minmax", **more}


def _inputs(
    bits: int, kind: str, strategy: str = "token", *, dynamic: Any = True
) -> dict[str, Any]:
    said = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": strategy}
    return {**said, "dynamic": dynamic}


def _compressed(form: str, weights: dict[str, Any], inputs: Any = None) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "kv_cache_scheme": None,
    }


SCHEMES: dict[str, tuple[Callable[[Array], tuple[Parts, Array]], dict[str, Any]]] = {
    "int8": (
        _int8,
        _compressed("int-quantized", _weights(8, "channel"), _inputs(8, "int")),
    ),
    "int8 uneven": (
        _int8_uneven,
        _compressed("int-quantized", _weights(8, "channel", symmetric=False), _inputs(8, "int")),
    ),
    "fp8": (
        _fp8,
        _compressed("float-quantized", _weights(8, "channel", "float"), _inputs(8, "float")),
    ),
    "fp8 static": (
        _fp8_tensor,
        _compressed(
            "float-quantized",
            _weights(8, "tensor", "float"),
            _inputs(8, "float", "tensor", dynamic=False),
        ),
    ),
    "fp8 blocks": (
        _fp8_blocks,
        _compressed(
            "float-quantized",
            _weights(8, "block", "float", block_structure=[BLOCK, BLOCK]),
            _inputs(8, "float", "group") | {"group_size": BLOCK},
        ),
    ),
    "w4a16": (
        _grouped(4, GROUP),
        _compressed("pack-quantized", _weights(4, "group", group_size=GROUP)),
    ),
    "w4a16 uneven": (
        _grouped(4, GROUP, even=False),
        _compressed("pack-quantized", _weights(4, "group", group_size=GROUP, symmetric=False)),
    ),
    "w8a16": (
        _grouped(8, None),
        _compressed("pack-quantized", _weights(8, "channel")),
    ),
    "nvfp4": (
        _nvfp4_pack,
        _compressed(
            "nvfp4-pack-quantized",
            _weights(4, "tensor_group", "float", group_size=16),
            _inputs(4, "float", "tensor_group", dynamic="local") | {"group_size": 16},
        ),
    ),
    "mxfp4": (
        _mxfp4,
        _compressed(
            "mxfp4-pack-quantized",
            _weights(4, "group", "float", group_size=32, scale_dtype="torch.uint8"),
            _inputs(4, "float", "group") | {"group_size": 32, "scale_dtype": "torch.uint8"},
        ),
    ),
    "mxfp8": (
        _mxfp8,
        _compressed(
            "mxfp8-quantized",
            _weights(8, "group", "float", group_size=32, scale_dtype="torch.uint8"),
            _inputs(8, "float", "group") | {"group_size": 32, "scale_dtype": "torch.uint8"},
        ),
    ),
    "modelopt fp8": (
        _modelopt_fp8,
        {"quant_method": "modelopt", "quant_algo": "FP8", "producer": {"name": "modelopt"}},
    ),
    "modelopt nvfp4": (
        _nvfp4,
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "group_size": 16,
            "producer": {"name": "modelopt"},
        },
    ),
}


def quantise(tensors: Parts, kind: str, leaves: Collection[str] = MATRICES) -> tuple[Parts, Parts]:
    """The file of a draft whose modules of these last names are quantised, and the plain file that it stands for."""
    stored: Parts = {}
    plain: Parts = {}
    for name, value in tensors.items():
        module = name.removesuffix(".weight")
        whole = value.ndim == 2 and not (kind.startswith("mx") and value.shape[1] % 32)
        if module.rpartition(".")[2] in leaves and whole:
            parts, values = SCHEMES[kind][0](value.astype(np.float32))
            stored |= {f"{module}.{part}": each for part, each in parts.items()}
            plain[name] = values
        else:
            stored[name] = plain[name] = value
    return stored, plain


def quantisation_config(
    kind: str, ignore: Iterable[str] = ("re:.*fc", "lm_head"), **more: Any
) -> dict[str, Any]:
    """Its ``quantization_config``."""
    if kind.startswith("modelopt"):
        ignore = [entry.replace("re:.*", "*") for entry in ignore]
    return {**SCHEMES[kind][1], "ignore": list(ignore), **more}


_NAMES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "int8": "I8", "uint8": "U8", "int32": "I32", "int64": "I64", "bool": "BOOL",
}  # fmt: skip


def save(folder: Path, config: Mapping[str, Any], tensors: Parts) -> Path:
    """Write a folder; safetensors' numpy writer has no float8."""
    header, data, start = {}, [], 0
    for name, value in tensors.items():
        raw = np.ascontiguousarray(value).tobytes()
        header[name] = {
            "dtype": _NAMES[value.dtype.name],
            "shape": list(value.shape),
            "data_offsets": [start, start + len(raw)],
        }
        data.append(raw)
        start += len(raw)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    content = len(text).to_bytes(8, "little") + text + b"".join(data)
    (folder / "model.safetensors").write_bytes(content)
    return folder


def load(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name to dtype, shape and bytes, as the real library reads them."""
    found = deserialize((folder / "model.safetensors").read_bytes())
    return {name: (it["dtype"], tuple(it["shape"]), bytes(it["data"])) for name, it in found}


def raw(tensors: Parts) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The same of tensors in memory."""
    return {
        name: (_NAMES[value.dtype.name], value.shape, np.ascontiguousarray(value).tobytes())
        for name, value in tensors.items()
    }


def folder(
    tmp_path: Path,
    kind: str,
    layout: str = "vllm",
    leaves: tuple[str, ...] = MATRICES,
    *,
    layers: int = 1,
    ignore: tuple[str, ...] = ("re:.*fc", "lm_head"),
    tensors: Parts | None = None,
    more: dict[str, object] | None = None,
    **changes: object,
) -> Path:
    """A quantised draft as its framework spells it."""
    if tensors is None:
        names = {
            "vllm": ("layers.0.", "input_layernorm"),
            "sglang": ("midlayer.", "hidden_norm"),
            "speculators": ("layers.0.", "input_layernorm"),
        }
        tensors = drafts.flat_tensors(layers, *names[layout])
    stored, _ = quantise(tensors, kind, leaves)
    config = {
        "vllm": drafts.VLLM_CONFIG,
        "sglang": drafts.SGLANG_CONFIG,
        "speculators": drafts.SPECULATORS_CONFIG,
    }[layout]
    config = {**config, "quantization_config": quantisation_config(kind, ignore, **(more or {}))}
    if layers > 1:
        config["num_hidden_layers"] = layers
    return save(tmp_path / "draft", {**config, **changes}, stored)


def written(source: Path, destination: str, **options: object) -> tuple[dict, dict, object]:
    """Config and bytes of a conversion, and what was decided."""
    chosen = api.Options(**{"target_name": "org/target", **options})
    conversion = api.convert(api.load(str(source), "auto", chosen), destination, chosen)
    output = source.parent / f"{source.name}-to-{destination}"
    with mock.patch("os.fsync"):
        api.write(conversion, output, overwrite=True)
    return json.loads((output / "config.json").read_text()), load(output), conversion
