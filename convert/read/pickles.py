"""PyTorch's zip files (``.bin``, ``.pt``) read as headers: without torch, and without running them.

``torch.save`` writes an uncompressed zip: one pickle that describes the tensors, and one member for
each storage. The pickle is read by an unpickler that knows the constructors which PyTorch emits for
tensors, replaced by ones that only take notes, and refuses every other name. What comes out says
where each tensor's bytes lie, as a safetensors header does.
"""

import errno
import os
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

from eagle3_interop.convert.read.stored import ITEM_BYTES, Stored
from eagle3_interop.convert.read.strict_json import MAX_JSON_BYTES
from eagle3_interop.schemas.findings import Refused, refusal

_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL", "UntypedStorage": "U8",
}  # fmt: skip
_DTYPES = {
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "uint16": "U16", "uint32": "U32", "uint64": "U64",
}  # fmt: skip
_ZIP_ERRORS = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError,
    struct.error,
)  # fmt: skip
RESAVE = "Load it with torch.load(..., weights_only=True), and save the tensors as safetensors."

_Sizes = tuple[int, ...]


class _Storage(NamedTuple):
    dtype: str
    key: str


class _Tensor(NamedTuple):
    storage: _Storage
    dtype: str
    offset: int
    shape: _Sizes
    stride: _Sizes


class _Notes(pickle.Unpickler):
    """Unpickles tensors into notes on where they lie; every other name in the pickle is refused."""

    def __init__(self, raw: bytes, path: Path) -> None:
        super().__init__(BytesIO(raw))
        self.path = path

    def find_class(self, module: str, name: str) -> object:
        known: object
        if module in ("torch", "torch.storage"):
            known = _STORAGES.get(name) or _DTYPES.get(name)
        else:
            known = {
                ("collections", "OrderedDict"): OrderedDict,
                ("torch._utils", "_rebuild_tensor_v2"): self.tensor,
                ("torch._utils", "_rebuild_tensor_v3"): self.typed_tensor,
                ("torch._utils", "_rebuild_parameter"): self.parameter,
            }.get((module, name))
        if known is None:
            raise refusal(
                "code-in-pickle",
                self.path,
                f"asks to run {module}.{name}, which is code and not a tensor",
                "Don't load this file with anything. Ask for safetensors.",
            )
        return known

    def persistent_load(self, pid: object) -> _Storage:
        match pid:
            case ("storage", str(dtype), str(key), _, _):
                return _Storage(dtype, key)
        raise pickle.UnpicklingError("an unknown kind of reference")

    def tensor(
        self, storage: _Storage, offset: int, shape: _Sizes, stride: _Sizes, *_: object
    ) -> _Tensor:
        return _Tensor(storage, storage.dtype, offset, shape, stride)

    def typed_tensor(
        self, storage: _Storage, offset: int, shape: _Sizes, stride: _Sizes, *rest: object
    ) -> _Tensor:
        return _Tensor(storage, str(rest[2]), offset, shape, stride)

    def parameter(self, data: _Tensor, *_: object) -> _Tensor:
        return data


def read_pickle(path: Path) -> dict[str, Stored]:
    """Where the tensors of a ``torch.save``d dictionary lie in the file.

    Values that are not tensors are passed over.

    Raises:
        Refused: code in the pickle (``code-in-pickle``), a damaged file (``broken-file``), or a
            form that cannot be read in place (``unreadable-pickle``).
        OSError: the file cannot be read.
    """
    with path.open("rb") as file, _faults_refused(path), zipfile.ZipFile(file) as archive:
        members = {_key(info.filename): info for info in archive.infolist()}
        _check_members(archive, members, path)
        notes = _unpickle(archive.read(members["data.pkl"]), path)
        return {
            name: _locate(name, note, members, file, path)
            for name, note in notes.items()
            if isinstance(note, _Tensor) and isinstance(name, str)
        }


@contextmanager
def _faults_refused(path: Path) -> Iterator[None]:
    """Refuse what zipfile raises for damaged files: seeking to places that cannot be, for one."""
    try:
        yield
    except _ZIP_ERRORS as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        message = f"not a zip file as torch.save writes it: {error}"
        raise refusal("unreadable-pickle", path, message, RESAVE) from error


def _key(member: str) -> str:
    return member.partition("/")[2]


def _check_members(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], path: Path
) -> None:
    if len(members) < len(archive.infolist()):
        raise refusal("broken-file", path, "a member of the zip file is given twice")
    pickled = members.get("data.pkl")
    if pickled is None or pickled.file_size > MAX_JSON_BYTES:
        raise refusal("broken-file", path, "holds no data.pkl, or one too large to be meant")
    if any(info.compress_type != zipfile.ZIP_STORED for info in members.values()):
        raise refusal("unreadable-pickle", path, "its members are compressed", RESAVE)
    if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
        raise refusal("unreadable-pickle", path, "its numbers are not little-endian", RESAVE)


def _unpickle(raw: bytes, path: Path) -> Mapping[Any, Any]:
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            _check_memo(opcode.name, argument, len(raw))
        value = _Notes(raw, path).load()
    except Refused:
        raise
    except Exception as error:  # a hostile pickle can make the unpickler raise anything
        raise refusal("broken-file", path, f"its pickle is damaged: {error}") from error
    if not isinstance(value, dict):
        raise refusal("unreadable-pickle", path, "does not hold a dictionary of tensors", RESAVE)
    return value


def _check_memo(opcode: str, argument: object, size: int) -> None:
    """The C unpickler allocates its memo up to the largest index, however short the pickle is."""
    if "PUT" in opcode and isinstance(argument, int) and argument > size:
        raise pickle.UnpicklingError("an index beyond the pickle's end")


def _locate(
    name: str, note: _Tensor, members: Mapping[str, zipfile.ZipInfo], file: IO[bytes], path: Path
) -> Stored:
    sizes = (note.offset, *_sizes(note.shape), *_sizes(note.stride))
    if not isinstance(note.storage, _Storage) or not all(type(n) is int and n >= 0 for n in sizes):
        raise refusal("broken-file", path, f"{name!r} has an impossible shape or place")
    if note.dtype not in ITEM_BYTES:
        raise refusal("broken-file", path, f"{name!r} has an unknown dtype")
    if not _is_contiguous(note.shape, note.stride):
        raise refusal("unreadable-pickle", path, f"{name!r} is stored transposed", RESAVE)
    member = members.get(f"data/{note.storage.key}")
    item = ITEM_BYTES[note.dtype]
    first, length = note.offset * item, prod(note.shape) * item
    if member is None or first + length > member.file_size:
        raise refusal("broken-file", path, f"{name!r} lies outside its storage")
    start = _data_start(member, file) + first
    if start + length > os.fstat(file.fileno()).st_size:
        raise refusal("broken-file", path, f"is truncated: {name!r} lies beyond its end")
    return Stored(path, name, note.dtype, note.shape, start, start + length)


def _sizes(values: object) -> tuple[object, ...]:
    return values if isinstance(values, tuple) else (None,)


def _is_contiguous(shape: _Sizes, stride: _Sizes) -> bool:
    if len(shape) != len(stride):
        return False
    expected = 1
    for length, step in zip(reversed(shape), reversed(stride), strict=True):
        if length > 1 and step != expected:
            return False
        expected *= length
    return True


def _data_start(member: zipfile.ZipInfo, file: IO[bytes]) -> int:
    """Where a member's bytes begin: after a local header of its own length."""
    file.seek(member.header_offset)
    local = file.read(30)
    if len(local) < 30 or not local.startswith(b"PK\x03\x04"):
        raise refusal("broken-file", file.name, "a local header of the zip file is damaged")
    name_length, extra_length = struct.unpack("<HH", local[26:30])
    return int(member.header_offset + 30 + name_length + extra_length)
