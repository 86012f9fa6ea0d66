"""Safetensors headers, parsed and written: at least as strict as the safetensors library.

A file is an 8-byte little-endian length, a JSON header of that length, and the tensors' bytes
without holes. Only headers are read here; bytes are moved by `stream`.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from eagle3_interop.convert.read.stored import ITEM_BITS, Stored, numpy_dtype
from eagle3_interop.convert.read.strict_json import MAX_JSON_BYTES, parse_object
from eagle3_interop.schemas.findings import refusal

Read = Callable[[int, int], bytes]
"""Bytes [start, stop) of a file; fewer where it ends early."""

PAGE = 4096


@dataclass(frozen=True)
class Header:
    """What a safetensors file says of itself.

    Attributes:
        tensors: by name, in the order of their bytes.
        metadata: ``__metadata__``.
        data_start: where the tensors' bytes begin, counted from the beginning of the file.
        sha256: digest of everything before that.
    """

    tensors: dict[str, Stored]
    metadata: dict[str, str]
    data_start: int
    sha256: str


def parse_header(read: Read, size: int, file: Path) -> Header:
    """The header of a file that `read` reads, whether from a disk or over a network.

    Args:
        read: gives a range of the file's bytes.
        size: the file's size in bytes.
        file: what `Stored.file` will say.

    Raises:
        Refused: the file is not sound safetensors (code ``broken-file``).
    """
    prefix = read(0, 8)
    if len(prefix) < 8:
        raise _broken(file, f"{size} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", prefix)
    if length > MAX_JSON_BYTES or 8 + length > size:
        raise _broken(file, f"a header of {length} bytes cannot be in a file of {size} bytes")
    raw = read(8, 8 + length)
    if len(raw) < length:
        raise _broken(file, "ends within its header")
    if not raw.startswith(b"{"):
        raise _broken(file, "the header does not begin with '{'")
    entries = parse_object(raw, "broken-file", file)
    metadata = _metadata(entries.pop("__metadata__", None), file)
    start = 8 + length
    tensors = sorted(
        (_tensor(name, entry, start, file) for name, entry in entries.items()),
        key=lambda tensor: (tensor.start, tensor.stop),
    )
    _check_cover(tensors, start, size, file)
    digest = hashlib.sha256(prefix + raw).hexdigest()
    return Header({tensor.name: tensor for tensor in tensors}, metadata, start, digest)


def format_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]],
    metadata: Mapping[str, str],
    *,
    phase: int | None = None,
) -> bytes:
    """The length and the header of a file whose tensors lie in this order.

    Args:
        tensors: name, dtype and shape of each.
        metadata: becomes ``__metadata__``; left out when empty.
        phase: where in a page of `PAGE` bytes the first tensor shall begin, a multiple of 8; None
            is anywhere.

    Returns:
        The bytes before the first tensor, a multiple of 8.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, dtype, shape in tensors:
        stop = position + ITEM_BITS[dtype] * prod(shape) // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, stop]}
        position = stop
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8 if phase is None else (phase - 8 - len(text)) % PAGE)
    return struct.pack("<Q", len(text)) + text


def decode(raw: bytes, tensor: Stored) -> np.ndarray[Any, Any]:
    """A tensor's bytes as an array.

    Raises:
        Refused: numpy has no such dtype (code ``unknown-dtype``).
    """
    dtype = numpy_dtype(tensor.dtype, tensor.name)
    if tensor.dtype == "BOOL":  # any byte but 0 is true, as in torch; numpy relies on 0 and 1
        return np.not_equal(np.frombuffer(raw, np.uint8), 0).reshape(tensor.shape)
    values: np.ndarray[Any, Any] = np.frombuffer(raw, dtype)
    return values.reshape(tensor.shape)


def _tensor(name: str, entry: object, data_start: int, file: Path) -> Stored:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise _broken(file, f"the header entry of {name!r} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BITS:
        raise _broken(file, f"{name!r} has the unknown dtype {dtype!r}")
    if not _are_sizes(shape):
        raise _broken(file, f"{name!r} has the impossible shape {_short(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _broken(file, f"{name!r} has the impossible offsets {_short(offsets)}")
    start, stop = offsets
    if (stop - start) * 8 != ITEM_BITS[dtype] * prod(shape):
        raise _broken(
            file, f"{name!r} takes {stop - start} bytes, not those of {dtype} {_short(shape)}"
        )
    return Stored(file, name, dtype, tuple(shape), data_start + start, data_start + stop)


def _check_cover(tensors: list[Stored], start: int, size: int, file: Path) -> None:
    """The tensors must cover the file to its last byte, each byte once."""
    position = start
    for tensor in tensors:
        if tensor.start != position:
            fault = "overlaps the tensor before it" if tensor.start < position else "follows a hole"
            raise _broken(file, f"{tensor.name!r} {fault}")
        position = tensor.stop
    if position > size:
        raise _broken(file, f"is truncated: {size} bytes of {position}")
    if position < size:
        raise _broken(file, f"has {size - position} bytes that belong to no tensor")


def _metadata(value: object, file: Path) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _broken(file, "__metadata__ is not a map of strings")
    return value


def _are_sizes(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 2**63 for n in values)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _broken(file: Path, message: str) -> Exception:
    fix = "Download or export the file again."
    return refusal("broken-file", file, message, fix)
