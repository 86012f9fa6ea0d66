"""Folders made to break a reader: each is refused by name, and nothing else happens."""

import json
import pickle
import random
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import drafts
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eagle3_interop.convert import api
from eagle3_interop.convert.read.checkpoint import open_checkpoint
from eagle3_interop.convert.read.folders import open_folder, pinned
from eagle3_interop.convert.read.target_tables import open_target
from eagle3_interop.convert.write import stream
from eagle3_interop.convert.write.output_folder import check_free, output_folder
from eagle3_interop.convert.write.plan import Copy, Output, Plan, Written
from eagle3_interop.schemas.findings import Refused, Unavailable, Usage

TENSORS = {"fc": np.arange(12, dtype=np.float32).reshape(3, 4), "d2t": np.arange(3)}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 4}')
    save_file(TENSORS, folder / "model.safetensors")
    return folder


def refused(folder):
    """The one finding that the folder is refused with."""
    before = contents(folder.parent)
    with pytest.raises(Refused) as raised:
        open_checkpoint(str(folder))
    assert contents(folder.parent) == before
    (finding,) = raised.value.findings
    assert finding.fix, "every refusal says what to do"
    return finding


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


DEEP = b"[" * 100_000

CONFIGS = {
    "an empty file": b"",
    "not JSON": b"hidden_size: 4",
    "a list": b"[]",
    "null": b"null",
    "a key given twice": b'{"hidden_size": 4, "hidden_size": 8}',
    "a key given twice further down": b'{"rope": {"theta": 1, "theta": 2}}',
    "a NaN size": b'{"hidden_size": NaN}',
    "an infinite size": b'{"hidden_size": Infinity}',
    "a size that overflows to infinity": b'{"hidden_size": 1e999}',
    "a size of 5000 digits": b'{"hidden_size": ' + b"9" * 5000 + b"}",
    "not UTF-8": b'{"a": "\xff"}',
    "a size of 400 digits, beyond any float": b'{"hidden_size": ' + b"9" * 400 + b"}",
    "nested without end": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested without end, and cut off": b'{"a":' + DEEP,
    "nested deeper than whoever walks it by recursion": b'{"a":' + b"[" * 900 + b"]" * 900 + b"}",
    "half of a character": b'{"a": "\\ud800"}',
    "half of a character further down": b'{"a": [{"b": ["\\uDFFF"]}]}',
    "half of a character in a key": b'{"a": {"\\ud800": 1}}',
}


@pytest.mark.parametrize("fault", CONFIGS)
def test_a_config_that_two_readers_could_read_differently_is_refused(folder, fault):
    (folder / "config.json").write_bytes(CONFIGS[fault])
    finding = refused(folder)
    assert (finding.code, finding.where) == ("broken-config", f"{folder}/config.json")


def test_half_of_a_character_is_refused_with_its_key(folder):
    (folder / "config.json").write_text(r'{"rope": {"note": ["\ud83d"]}}')
    assert "note holds half of a character" in refused(folder).message


def test_a_character_of_two_halves_is_one(folder):
    (folder / "config.json").write_text(r'{"note": "\ud83e\udd85"}')
    assert open_checkpoint(str(folder)).config == {"note": "\N{EAGLE}"}


@pytest.mark.parametrize("name", ["config.json", INDEX])
@pytest.mark.parametrize("fault", ["nested without end, and cut off", "half of a character"])
def test_every_json_of_a_target_is_read_as_strictly(folder, name, fault):
    (folder / name).write_bytes(CONFIGS[fault])
    with pytest.raises(Refused):
        open_target(str(folder))


def test_a_header_with_half_of_a_character_is_refused(folder):
    header = rb'{"a\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert refused(folder).code == "broken-file"


NOT_OURS = [
    DEEP,
    b"{",
    b"[]",
    b"null",
    b'{"output": 7}',
    b'{"output": {"layout": []}}',
    b"\xff",
    b"",
]


@pytest.mark.parametrize("content", NOT_OURS, ids=range(len(NOT_OURS)))
def test_a_record_of_a_conversion_that_is_none_is_passed_over(tmp_path, content):
    source = drafts.speculators(tmp_path / "draft")
    (source / stream.PROVENANCE).write_bytes(content)
    assert api.load(str(source)).layout == "speculators"


def test_a_folder_without_config_is_refused(folder):
    (folder / "config.json").unlink()
    assert refused(folder).code == "no-config"


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    assert refused(folder).code == "no-weights"


ESCAPES = [
    "../secret.safetensors",
    "/etc/passwd",
    "sub/model.safetensors",
    "..\\secret.safetensors",
    "C:\\secret.safetensors",
    "model.safetensors\0",
    "..",
    "",
    7,
    None,
    ["model.safetensors"],
]


@pytest.mark.parametrize("name", ESCAPES, ids=repr)
def test_an_index_entry_that_leaves_the_folder_is_refused(folder, name):
    save_file(TENSORS, folder.parent / "secret.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"fc": name}}))
    finding = refused(folder)
    assert (finding.code, finding.where) == ("broken-index", INDEX)


INDEXES = {
    "missing files": {"weight_map": {"fc": "model-2.safetensors"}},
    "tensors that the file has not": {"weight_map": {"head": "model.safetensors"}},
    "no weight_map": {"metadata": {}},
    "an empty weight_map": {"weight_map": {}},
    "a weight_map that is a list": {"weight_map": ["fc"]},
    "a list": [],
}


@pytest.mark.parametrize("fault", INDEXES)
def test_a_broken_index_is_refused(folder, fault):
    (folder / INDEX).write_text(json.dumps(INDEXES[fault]))
    assert refused(folder).code == "broken-index"


def test_a_broken_weight_file_is_named(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    finding = refused(folder)
    assert (finding.code, finding.where) == ("broken-file", str(path))


# Names of folders

LONG = "a" * 300
IMPOSSIBLE = [
    "",
    " ",
    "~nosuchuser/draft",
    LONG,
    f"absent/{LONG}",
    f"org/{LONG}/x",
    "a\0b",
    "\ud800",
]


@pytest.mark.parametrize("name", IMPOSSIBLE, ids=[f"{name!a:.20}" for name in IMPOSSIBLE])
@pytest.mark.parametrize("open_it", [open_folder, open_checkpoint, open_target])
def test_a_name_that_no_folder_can_have_is_wrong_usage(open_it, name):
    with pytest.raises(Usage):
        open_it(name)


@pytest.mark.parametrize("name", IMPOSSIBLE[1:], ids=[f"{name!a:.20}" for name in IMPOSSIBLE[1:]])
def test_but_engines_are_given_it_as_it_is(name):
    assert pinned(name) == (name, None)


def test_a_home_is_found_for_engines_too_which_do_not_look_for_it(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert pinned("~/draft") == (str(folder), None)
    assert open_checkpoint("~/draft").config == {"hidden_size": 4}


@pytest.mark.parametrize("place", [LONG, f"absent/{LONG}", "file/below", "file/below/further"])
def test_an_output_that_cannot_be_is_found_before_the_work(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(Usage):
        check_free(tmp_path / place, overwrite=False)


def test_an_output_where_nothing_may_be_written_is_found_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(Unavailable):
        check_free(tmp_path / "a" / "b", overwrite=False)


@pytest.mark.parametrize("letter", ["a", "\N{EAGLE}"])
def test_the_longest_name_is_written(tmp_path, letter):
    output = tmp_path / (letter * (255 // len(letter.encode())))
    with output_folder(output, overwrite=False) as hidden:
        (hidden / "config.json").touch()
    assert (output / "config.json").exists()


# Pickles

RAN = Path(__file__).with_name("ran")


class Code:
    """Unpickled by an ordinary loader, it would leave a file."""

    def __reduce__(self):
        return Path.touch, (RAN,)


def write_bin(folder, pickled, data=bytes(48), compression=zipfile.ZIP_STORED, order=b"little"):
    """A zip as torch.save writes it, around any pickle."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", compression) as archive:
        archive.writestr("draft/data.pkl", pickled)
        archive.writestr("draft/byteorder", order)
        archive.writestr("draft/data/0", data)


def tensor(shape="(K\x03K\x04t", stride="(K\x04K\x01t", offset="K\x00", storage="FloatStorage"):
    """The pickle of {"fc": a tensor}, with parts to be replaced."""
    reference = f"(X\x07\0\0\0storagectorch\n{storage}\nX\x01\0\0\x000X\x03\0\0\0cpuK\x0ct"
    build = f"ctorch._utils\n_rebuild_tensor_v2\n({reference}Q{offset}{shape}{stride}\x89}}tR"
    return f"\x80\x02}}X\x02\0\0\0fc{build}s.".encode("latin-1")


def test_the_hand_made_pickle_is_one_that_is_read(folder):
    write_bin(folder, tensor(), TENSORS["fc"].tobytes())
    np.testing.assert_array_equal(open_checkpoint(str(folder)).values("fc"), TENSORS["fc"])


@pytest.mark.parametrize(
    "pickled",
    [
        pickle.dumps({"fc": Code()}),
        b"cos\nsystem\n(X\x04\0\0\0truetR.",
        b"cbuiltins\neval\n(X\x01\0\0\x001tR.",
        b"ctorch.serialization\nload\n(X\x01\0\0\x00atR.",
        b"ccollections\nOrderedDict.fromkeys\n(tR.",
    ],
    ids=["reduce", "os.system", "eval", "torch.load", "attribute"],
)
def test_code_in_a_pickle_is_refused_and_not_run(folder, pickled):
    write_bin(folder, pickled)
    assert refused(folder).code == "code-in-pickle"
    assert not RAN.exists()


PICKLES = {
    "an empty pickle": b"",
    "a pickle that ends early": tensor()[:-2],
    "a memo of gigabytes": b"\x80\x02}r\xff\xff\xff\xff.",
    "a negative shape": tensor(shape="(J\xff\xff\xff\xffK\x04t"),
    "a boolean shape": tensor(shape="(\x88K\x0ct"),
    "a shape that is a string": tensor(shape="X\x01\0\0\0a"),
    "an offset beyond the storage": tensor(offset="K\x01"),
    "a negative offset": tensor(offset="J\xff\xff\xff\xff"),
    "more values than the storage": tensor(shape="(K\x04K\x04t"),
    "a storage that is no storage": b"\x80\x02X\x01\0\0\x00aQ.",
    "an integer called": b"\x80\x02K\x01)R.",
}


@pytest.mark.parametrize("fault", PICKLES)
def test_a_broken_pickle_is_refused(folder, fault):
    write_bin(folder, PICKLES[fault])
    finding = refused(folder)
    assert (finding.code, finding.where) == ("broken-file", str(folder / "pytorch_model.bin"))


def test_a_pickle_that_cannot_be_read_in_place_says_what_to_do(folder):
    unusual = {
        "transposed": {"pickled": tensor(stride="(K\x01K\x03t")},
        "compressed": {"pickled": tensor(), "compression": zipfile.ZIP_DEFLATED},
        "big-endian": {"pickled": tensor(), "order": b"big"},
        "no tensors": {"pickled": b"\x80\x02}."},
        "not a dictionary": {"pickled": b"\x80\x02]."},
    }
    for form in unusual.values():
        write_bin(folder, **form)
        finding = refused(folder)
        assert finding.code == "unreadable-pickle"
        assert "safetensors" in finding.fix
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    assert refused(folder).code == "unreadable-pickle"


# Fuzzing


def mutated(content: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, removed, doubled or cut off."""
    result = bytearray(content)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(result)) if result else 0
        kind = chance.randrange(5)
        if kind == 0:
            result[at : at + 1] = chance.choice([b'"', b"{", b"]", b"-", b"9", b"\0", b"\xff"])
        elif kind == 1:
            del result[at : at + chance.randrange(1, 9)]
        elif kind == 2:
            result[at:at] = result[at : at + chance.randrange(1, 30)]
        elif kind == 3:
            result[at : at + 1] = bytes([chance.randrange(256)])
        else:
            del result[at:]
    return bytes(result)


def mutate_header(folder, chance):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = mutated(content[8 : 8 + length], chance)
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


def mutate_file(folder, chance):
    path = folder / "model.safetensors"
    path.write_bytes(mutated(path.read_bytes(), chance))


def mutate_index(folder, chance):
    index = json.dumps({"weight_map": dict.fromkeys(TENSORS, "model.safetensors")})
    (folder / INDEX).write_bytes(mutated(index.encode(), chance))


def mutate_config(folder, chance):
    path = folder / "config.json"
    path.write_bytes(mutated(path.read_bytes(), chance))


def mutate_pickle(folder, chance):
    write_bin(folder, mutated(tensor(), chance))


def mutate_zip(folder, chance):
    write_bin(folder, tensor())
    path = folder / "pytorch_model.bin"
    path.write_bytes(mutated(path.read_bytes(), chance))


MUTATIONS = [
    mutate_header, mutate_file, mutate_index, mutate_config, mutate_pickle, mutate_zip,
]  # fmt: skip


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_mutated_checkpoint_is_refused_or_sound(folder, mutate):
    """Whatever is accepted is copied to a file that the safetensors library accepts, too."""
    original = contents(folder)
    for seed in range(50):
        mutate(folder, random.Random(seed))  # noqa: S311
        with suppress(Refused):
            copy_and_load(folder, folder.parent / f"output-{seed}")
        for path in contents(folder):
            path.unlink()
        for path, content in original.items():
            path.write_bytes(content)


def copy_and_load(folder, output):
    tensors = open_checkpoint(str(folder)).stored.values()
    outputs = tuple(Output(t.name, t.dtype, t.shape, Copy(t), "") for t in tensors)
    stream.write(Plan((Written("model.safetensors", outputs),), {"config.json": "{}"}), output)
    assert load_file(output / "model.safetensors").keys() == {t.name for t in tensors}
