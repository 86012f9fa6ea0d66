"""Headers: the safetensors library is the judge, and we are never more lenient than it."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from eagle3_interop.convert.read import safetensors_file
from eagle3_interop.convert.read.safetensors_file import (
    decode,
    format_header,
    parse_header,
)
from eagle3_interop.convert.read.stored import ITEM_BITS
from eagle3_interop.schemas.findings import Refused


def read_header(path):
    """As a checkpoint reads it: by ranges of a file whose size is known."""
    data = path.read_bytes()
    return parse_header(lambda start, stop: data[start:stop], len(data), path)


def file_of(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(start: object, stop: object, shape: object = (2,), dtype: object = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


TWICE = b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
NAN = b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}'
DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
LONG = b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}'

FAULTY = {
    "an empty file": b"",
    "no room for the length": b"abc",
    "no header": file_of(b""),
    "a giant header length": file_of(b"{}", length=1 << 63),
    "a header longer than the file": file_of(b"{}", length=3),
    "not JSON": file_of(b"{a"),
    "not UTF-8": file_of(b'{"\xff":1}'),
    "a list": file_of([]),
    "a padding of zeros": file_of(json.dumps({"a": entry(0, 8)}).encode() + b"\0", bytes(8)),
    "nested without end": file_of(DEEP),
    "a truncated tensor": file_of({"a": entry(0, 8)}, bytes(7)),
    "bytes after the last tensor": file_of({"a": entry(0, 8)}, bytes(9)),
    "a hole before the first tensor": file_of({"a": entry(4, 12)}, bytes(12)),
    "a hole between tensors": file_of({"a": entry(0, 8), "b": entry(9, 17)}, bytes(17)),
    "overlapping tensors": file_of({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
    "one place for two tensors": file_of({"a": entry(0, 8), "b": entry(0, 8)}, bytes(8)),
    "an empty tensor inside another": file_of({"a": entry(4, 4, [0]), "b": entry(0, 8)}, bytes(8)),
    "offsets beyond the file": file_of({"a": entry(1 << 40, (1 << 40) + 8)}, bytes(8)),
    "negative offsets": file_of({"a": entry(-8, 0)}, bytes(8)),
    "offsets back to front": file_of({"a": entry(8, 0)}, bytes(8)),
    "offsets that are no numbers": file_of({"a": entry("0", "8")}, bytes(8)),
    "one offset": file_of({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8]}}, bytes(8)),
    "a size that is not the shape's": file_of({"a": entry(0, 8, [3])}, bytes(8)),
    "a negative shape": file_of({"a": entry(0, 8, [-1, -2])}, bytes(8)),
    "a boolean shape": file_of({"a": entry(0, 8, [True, 2])}, bytes(8)),
    "a fractional shape": file_of({"a": entry(0, 8, [2.0])}, bytes(8)),
    "a NaN shape": file_of(NAN, bytes(8)),
    "a shape of 5000 digits": file_of(LONG, bytes(8)),
    "a shape that overflows": file_of({"a": entry(0, 8, [1 << 62, 1 << 62])}, bytes(8)),
    "no shape": file_of({"a": entry(0, 8, None)}, bytes(8)),
    "an unknown dtype": file_of({"a": entry(0, 8, [2], "X32")}, bytes(8)),
    "a dtype that is a list": file_of({"a": entry(0, 8, [2], ["F32"])}, bytes(8)),
    "half a byte": file_of({"a": entry(0, 1, [3], "F4")}, bytes(1)),
    "an entry without offsets": file_of({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "an entry that is a number": file_of({"a": 1}),
    "a key given twice": file_of(TWICE, bytes(8)),
    "metadata that is a list": file_of({"__metadata__": ["a"]}),
    "metadata that is a number": file_of({"__metadata__": {"a": 1}}),
}

SOUND = {
    "nothing": file_of({}),
    "metadata alone": file_of({"__metadata__": {"format": "pt"}}),
    "null metadata": file_of({"__metadata__": None}),
    "a padded header": file_of(json.dumps({"a": entry(0, 8)}).encode() + b"   ", bytes(8)),
    "a scalar": file_of({"a": entry(0, 4, [])}, bytes(4)),
    "an empty tensor": file_of({"a": entry(0, 0, [0, 5]), "b": entry(0, 8)}, bytes(8)),
    "tensors in any order": file_of({"b": entry(8, 16), "a": entry(0, 8)}, bytes(16)),
    "four-bit floats": file_of({"a": entry(0, 2, [4], "F4")}, bytes(2)),
    "scales of eight bits": file_of({"a": entry(0, 8, [8], "F8_E8M0")}, bytes(8)),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_a_faulty_file_is_refused_here_as_in_the_library(fault, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(FAULTY[fault])
    with pytest.raises(SafetensorError), safe_open(path, "np"):
        pass
    with pytest.raises(Refused) as refused:
        read_header(path)
    (finding,) = refused.value.findings
    assert (finding.code, finding.where) == ("broken-file", str(path))


def test_a_tensor_given_twice_is_refused_where_the_library_takes_the_last(tmp_path):
    one = json.dumps(entry(0, 8))
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(f'{{"a":{one},"a":{one}}}'.encode(), bytes(8)))
    with pytest.raises(Refused, match="'a' is given twice"):
        read_header(path)


@pytest.mark.parametrize("form", SOUND)
def test_every_sound_form_is_read_as_the_library_reads_it(form, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(SOUND[form])
    header = read_header(path)
    with safe_open(path, "np") as judge:
        assert sorted(header.tensors) == sorted(judge.keys())
        for name, tensor in header.tensors.items():
            described = judge.get_slice(name)
            assert (tensor.dtype, list(tensor.shape)) == (
                described.get_dtype(),
                described.get_shape(),
            )


def test_every_dtype_of_the_library_is_known(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(FAULTY["an unknown dtype"])
    with pytest.raises(SafetensorError) as error, safe_open(path, "np"):
        pass
    _, _, known = str(error.value).partition("expected one of ")
    names = {word.strip("`, ") for word in known.partition(" at ")[0].split()}
    assert names == set(ITEM_BITS)


def test_the_bytes_of_a_tensor_are_where_its_header_says(tmp_path):
    tensors = {
        "half": np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3),
        "ids": np.arange(5),
        "seen": np.array([True, False, True]),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    for name, stored in read_header(path).tensors.items():
        values = decode(path.read_bytes()[stored.start : stored.stop], stored)
        assert values.dtype == tensors[name].dtype
        np.testing.assert_array_equal(values, tensors[name])


def test_any_byte_but_zero_is_true():
    header = parse(file_of({"t2d": entry(0, 3, [3], "BOOL")}, b"\0\1\2"))
    assert decode(b"\0\1\2", header.tensors["t2d"]).tolist() == [False, True, True]


def test_only_the_header_is_requested_over_a_network():
    content = file_of({"a": entry(0, 8)}, bytes(8))
    requested = []

    def read(start: int, stop: int) -> bytes:
        requested.append((start, stop))
        return content[start:stop]

    header = parse_header(read, len(content), Path("hub"))
    assert requested == [(0, 8), (8, header.data_start)]


def test_a_written_header_is_one_that_the_library_reads(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = [("größe", "F32", (2,)), ("scalar", "F32", ()), ("none", "BOOL", (0,))]
    header = format_header(tensors, {"format": "pt"})
    assert len(header) % 8 == 0
    path.write_bytes(header + np.array([1, 2, 3], np.float32).tobytes())
    loaded = load_file(path)
    assert {name: values.tolist() for name, values in loaded.items()} == {
        "größe": [1, 2],
        "scalar": 3,
        "none": [],
    }


def parse(content: bytes) -> safetensors_file.Header:
    return parse_header(lambda start, stop: content[start:stop], len(content), Path("file"))
