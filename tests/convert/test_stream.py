"""Plans turned into folders: exact bytes, and all or nothing."""

import errno
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eagle3_interop.convert.read.checkpoint import open_checkpoint
from eagle3_interop.convert.read.safetensors_file import format_header
from eagle3_interop.convert.write import kernel, stream
from eagle3_interop.convert.write.output_folder import remove_leftovers
from eagle3_interop.convert.write.plan import (
    Copy,
    Make,
    Output,
    Plan,
    Rewrite,
    Stored,
    Taken,
    Written,
)
from eagle3_interop.schemas.findings import Refused, Unavailable, Usage

RANDOM = np.random.default_rng(0)
TENSORS = {
    "fc": RANDOM.standard_normal((700, 12)).astype(ml_dtypes.bfloat16),
    "head": RANDOM.standard_normal((9, 4)).astype(np.float32),
    "ids": np.arange(5),
    "norm": RANDOM.standard_normal(12).astype(ml_dtypes.bfloat16),
    "seen": np.array([True, False, True]),
}
CONFIG = {"config.json": "{}"}
OURS = {"tool": {"name": "eagle3-interop", "version": "0.1.0"}}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("tokens")
    save_file(TENSORS, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def stored(source):
    return open_checkpoint(str(source)).stored


@pytest.fixture
def output(tmp_path):
    return tmp_path / "output"


def taken(source):
    sides = (Taken("tokenizer.json", source / "tokenizer.json"),)
    weights = (Taken("model.safetensors", source / "model.safetensors"),)
    return Plan(weights, CONFIG, sides, OURS)


def copied(tensor, name=None):
    return Output(name or tensor.name, tensor.dtype, tensor.shape, Copy(tensor), "renamed")


def written(*tensors):
    return Plan((Written("model.safetensors", tensors),), CONFIG, provenance=OURS)


def rewritten(tensor, shape=None, **steps):
    op = Rewrite(tensor, **steps)
    return Output("out", op.dtype or tensor.dtype, shape or tensor.shape, op, "rewritten")


def result_of(tensor, output):
    stream.write(written(tensor), output)
    return load_file(output / "model.safetensors")[tensor.name]


def same_bytes(one, other):
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def everything_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Exact bytes


def test_a_file_taken_over_is_byte_identical(source, output):
    stream.write(taken(source), output)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (output / name).read_bytes() == (source / name).read_bytes()


def test_renamed_tensors_keep_their_bytes(stored, output):
    stream.write(written(*(copied(stored[name], f"model.{name}") for name in stored)), output)
    loaded = load_file(output / "model.safetensors")
    assert loaded.keys() == {f"model.{name}" for name in TENSORS}
    assert all(same_bytes(loaded[f"model.{name}"], TENSORS[name]) for name in TENSORS)


def test_wide_dtypes_come_first_so_that_every_tensor_is_aligned(stored, output):
    stream.write(written(*(copied(stored[name]) for name in ("seen", "norm", "ids"))), output)
    tensors = open_checkpoint(str(output)).stored
    assert list(tensors) == ["ids", "norm", "seen"]
    assert all(tensor.start % 8 == 0 for tensor in tensors.values())


def test_bytes_go_through_this_process_where_the_kernel_cannot_copy(stored, output, monkeypatch):
    def fails(*_arguments):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", fails)
    stream.write(written(*(copied(tensor) for tensor in stored.values())), output)
    loaded = load_file(output / "model.safetensors")
    assert all(same_bytes(loaded[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize("name", ["fc", "norm"])
def test_permuted_blocks_are_exact(stored, output, name):
    result = result_of(rewritten(stored[name], blocks=((2,), (0,), (1,))), output)
    first, second, third = np.split(TENSORS[name], 3, axis=-1)
    assert same_bytes(result, np.concatenate([third, first, second], axis=-1))


def test_a_permutation_keeps_nan_payloads(source, output):
    bits = np.array([[0x7FC1, 0xFF81, 0x7F80, 0x8000]], np.uint16)
    save_file({"fc": bits.view(ml_dtypes.bfloat16)}, source / "model.safetensors")
    fc = open_checkpoint(str(source)).stored["fc"]
    result = result_of(rewritten(fc, blocks=((1,), (0,))), output)
    assert result.view(np.uint16).tolist() == [[0x7F80, 0x8000, 0x7FC1, 0xFF81]]


def test_repeated_blocks_are_summed_in_float32_and_rounded_once(stored, output):
    fc = stored["fc"]
    result = result_of(rewritten(fc, shape=(700, 8), blocks=((0, 2), (1,))), output)
    first, second, third = np.split(TENSORS["fc"].astype(np.float32), 3, axis=1)
    expected = np.concatenate([first + third, second], axis=1)
    assert same_bytes(result, expected.astype(ml_dtypes.bfloat16))


def test_columns_are_scaled_in_float32(stored, output):
    scale = RANDOM.standard_normal(12).astype(np.float32)
    result = result_of(rewritten(stored["fc"], scale=scale), output)
    expected = TENSORS["fc"].astype(np.float32) * scale
    assert same_bytes(result, expected.astype(ml_dtypes.bfloat16))


def test_rows_are_gathered_in_the_order_given(stored, output):
    rows = np.array([3, 4, 5, 0, 0, 8, 7])
    result = result_of(rewritten(stored["head"], shape=(7, 4), rows=rows), output)
    assert same_bytes(result, TENSORS["head"][rows])


def test_elements_of_a_vector_are_gathered_as_rows(stored, output):
    rows = np.array([4, 0, 1])
    result = result_of(rewritten(stored["ids"], shape=(3,), rows=rows), output)
    assert result.tolist() == [4, 0, 1]


def test_rows_beyond_the_source_are_never_read(stored, output):
    with pytest.raises(ValueError, match="rows beyond the 9 of head"):
        result_of(rewritten(stored["head"], shape=(1, 4), rows=np.array([9])), output)
    assert not output.exists()


def test_slabs_make_no_difference(stored, output, monkeypatch):
    monkeypatch.setattr("eagle3_interop.convert.write.rewrite.SLAB_BYTES", 100)
    result = result_of(rewritten(stored["fc"], blocks=((2,), (1,), (0,))), output)
    assert same_bytes(result, np.concatenate(np.split(TENSORS["fc"], 3, axis=1)[::-1], axis=1))


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_a_cast_rounds_as_torch_does(stored, output, dtype):
    torch = pytest.importorskip("torch")
    result = result_of(rewritten(stored["head"], dtype=dtype), output)
    wanted = {"BF16": torch.bfloat16, "F16": torch.float16}[dtype]
    expected = torch.from_numpy(TENSORS["head"]).to(wanted).view(torch.uint8).numpy()
    assert result.tobytes() == expected.tobytes()


def test_a_cast_that_would_make_infinity_is_refused(source, output):
    save_file({"fc": np.array([[1.0, 7e4]], np.float32)}, source / "model.safetensors")
    fc = open_checkpoint(str(source)).stored["fc"]
    with pytest.raises(Refused, match="1 finite values do not fit float16") as refused:
        result_of(rewritten(fc, dtype="F16"), output)
    assert [item.code for item in refused.value.findings] == ["cast-overflow"]
    assert names_in(output.parent) == ["source"]


def test_infinity_that_is_there_already_is_kept(source, output):
    save_file({"fc": np.array([[np.inf, np.nan]], np.float32)}, source / "model.safetensors")
    fc = open_checkpoint(str(source)).stored["fc"]
    result = result_of(rewritten(fc, dtype="F16"), output)
    np.testing.assert_array_equal(result, [[np.inf, np.nan]])


def test_made_values_are_written(output):
    made = Output("d2t", "I64", (3,), Make(np.array([1, 2, 3], np.int32), "I64"), "made")
    result = result_of(made, output)
    assert (result.dtype, result.tolist()) == (np.int64, [1, 2, 3])


def test_an_operation_that_gives_another_size_than_announced_writes_nothing(stored, output):
    wrong = replace(copied(stored["head"]), shape=(9, 5))
    with pytest.raises(ValueError, match="were planned"):
        stream.write(written(wrong), output)
    assert not output.exists()


# What is said


def test_provenance_names_every_file_with_its_size_and_digest(source, output):
    plan = replace(taken(source), provenance={"tool": "eagle3-interop"})
    result = stream.write(plan, output, digest=True)
    said = json.loads((output / "eagle3_interop.json").read_text())
    assert said["tool"] == "eagle3-interop"
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        content = (output / name).read_bytes()
        assert said["files"][name]["bytes"] == len(content)
        assert said["files"][name]["sha256"] == hashlib.sha256(content).hexdigest()
    assert sorted(file.name for file in result.files) == names_in(output)


def test_progress_adds_up_to_the_planned_bytes(source, stored, output):
    plan = replace(taken(source), weights=written(*map(copied, stored.values())).weights)
    counts = []
    stream.write(plan, output, progress=counts.append)
    assert sum(counts) == stream.planned_bytes(plan)


# Links


def test_linked_weights_are_the_same_file(source, output):
    result = stream.write(taken(source), output, link=True)
    assert (output / "model.safetensors").samefile(source / "model.safetensors")
    assert not (output / "tokenizer.json").samefile(source / "tokenizer.json")
    assert [file.how for file in result.files[:2]] == ["linked", "copied"]
    assert result.not_linked == ()


def test_a_symlink_of_a_cache_is_linked_to_what_it_points_at(source, output):
    blob = source.parent / "blob"
    (source / "model.safetensors").rename(blob)
    (source / "model.safetensors").symlink_to(blob)
    stream.write(taken(source), output, link=True)
    assert not (output / "model.safetensors").is_symlink()
    assert (output / "model.safetensors").samefile(blob)


def test_where_linking_fails_the_file_is_copied_and_said(source, output, monkeypatch):
    def fails(*_arguments):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", fails)
    result = stream.write(taken(source), output, link=True)
    assert result.not_linked == ("model.safetensors",)
    assert not (output / "model.safetensors").samefile(source / "model.safetensors")


# All or nothing


def test_an_existing_output_is_refused(source, output):
    output.mkdir()
    with pytest.raises(Usage, match="--overwrite"):
        stream.write(taken(source), output)


@pytest.mark.parametrize("swaps", [True, False])
def test_an_earlier_output_is_replaced_when_asked(source, stored, output, monkeypatch, swaps):
    if not swaps:
        monkeypatch.setattr(kernel, "exchange", lambda _one, _other: False)
    stream.write(taken(source), output)
    stream.write(written(copied(stored["fc"])), output, overwrite=True)
    assert names_in(output) == ["config.json", "eagle3_interop.json", "model.safetensors"]
    assert open_checkpoint(str(output)).stored.keys() == {"fc"}
    assert names_in(output.parent) == ["output", "source"]


def test_a_failed_overwrite_leaves_the_old_output(source, stored, output):
    stream.write(taken(source), output)
    before = everything_in(output)
    wide = rewritten(stored["head"], rows=np.array([99]), shape=(1, 4))
    with pytest.raises(ValueError, match="rows beyond"):
        stream.write(written(wide), output, overwrite=True)
    assert everything_in(output) == before


@pytest.mark.parametrize("place", ["source", "source/converted", "."])
def test_an_output_in_on_or_around_its_source_is_refused(source, place):
    before = everything_in(source)
    (source.parent / "config.json").write_text("{}")
    with pytest.raises(Usage, match="in one another"):
        stream.write(taken(source), source.parent / place, overwrite=True)
    assert everything_in(source) == before


def test_too_little_space_is_said_before_anything_is_written(source, output, monkeypatch):
    usage = shutil.disk_usage(source)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(Unavailable, match="bytes are needed, and 10 are free"):
        stream.write(taken(source), output)
    assert names_in(output.parent) == ["source"]


@contextmanager
def small_disk():
    """No file of this process can grow beyond 4096 bytes: not the test runner's own log either."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("reserves", [True, False])
def test_a_full_disk_leaves_nothing(source, output, monkeypatch, reserves):
    if not reserves:
        monkeypatch.setattr(kernel, "reserve", lambda _file, _length: None)
    before = everything_in(source)
    with pytest.raises(Unavailable, match="nothing was written"), small_disk():
        stream.write(taken(source), output)
    assert names_in(output.parent) == ["source"]
    assert everything_in(source) == before


def test_a_source_truncated_after_planning_leaves_nothing(source, stored, output):
    plan = written(copied(stored["fc"]), copied(stored["seen"]))
    os.truncate(source / "model.safetensors", stored["fc"].stop - 1)
    with pytest.raises(Refused, match="ends 1 bytes early"):
        stream.write(plan, output)
    assert names_in(output.parent) == ["source"]


def test_a_source_truncated_under_a_rewrite_leaves_nothing(source, stored, output):
    os.truncate(source / "model.safetensors", stored["fc"].stop - 1)
    with pytest.raises(Refused, match="ends within 'fc'"):
        result_of(rewritten(stored["fc"], blocks=((2,), (0,), (1,))), output)
    assert names_in(output.parent) == ["source"]


SLOW_CONVERSION = """
import signal, sys, time
from pathlib import Path
from eagle3_interop.convert.write import stream
from eagle3_interop.convert.read.checkpoint import open_checkpoint
from eagle3_interop.convert.write.output_folder import remove_leftovers
from eagle3_interop.convert.write.plan import Output, Plan, Rewrite, Written

# A test run that was started in the background ignores it, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

def progress(count):
    print(count, flush=True)
    time.sleep(0.005)

tensors = open_checkpoint(sys.argv[1]).stored.values()
outputs = [Output(t.name, t.dtype, t.shape, Rewrite(t), "") for t in tensors]
files = tuple(Written(f"{number}.safetensors", tuple(outputs)) for number in range(10))
stream.write(Plan(files, {"config.json": "{}"}), Path(sys.argv[2]), progress=progress)
"""


def interrupted(source: Path, output: Path, number: signal.Signals, steps: int) -> int:
    """Interrupt a conversion after some of its 60 steps; how it ended."""
    command = [sys.executable, "-c", SLOW_CONVERSION, str(source), str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for _ in range(steps):
            process.stdout.readline()
        process.send_signal(number)
        process.communicate()
    return process.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_conversion_leaves_nothing(source, output, number):
    before = everything_in(source)
    assert interrupted(source, output, number, 17) != 0
    assert names_in(output.parent) == ["source"]
    assert everything_in(source) == before


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_conversion_leaves_no_output_and_the_next_one_cleans_up(source, output, seed):
    before = everything_in(source)
    steps = random.Random(seed).randrange(1, 50)  # noqa: S311
    assert interrupted(source, output, signal.SIGKILL, steps) == -signal.SIGKILL
    (hidden, *others) = names_in(output.parent)
    assert (hidden[:16], others) == (".output.partial-", ["source"])
    assert not (output.parent / hidden / "config.json").exists()
    assert everything_in(source) == before
    stream.write(taken(source), output)
    assert names_in(output.parent) == ["output", "source"]


def test_a_conversion_in_progress_is_not_taken_for_a_killed_one(source, output):
    def second_run(_count):
        remove_leftovers(output)

    stream.write(taken(source), output, progress=second_run)
    assert (output / "config.json").exists()


def test_the_output_folder_has_the_usual_permissions(source, output):
    stream.write(taken(source), output)
    usual = output.parent / "usual"
    usual.mkdir()
    assert output.stat().st_mode == usual.stat().st_mode


def test_a_file_name_of_the_source_cannot_be_written_twice(source, output):
    plan = taken(source)
    with pytest.raises(Unavailable, match="exists"):
        stream.write(replace(plan, weights=plan.weights * 2), output)
    assert not output.exists()


def test_a_vanished_source_is_said(source, output):
    gone = Stored(source / "gone", "a", "F32", (1,), 0, 4)
    with pytest.raises(Unavailable, match="gone"):
        stream.write(written(copied(gone)), output)


@pytest.mark.parametrize("dtype", ["F8_E8M0", "F4"])
def test_a_dtype_without_numbers_here_is_copied_and_never_computed_with(source, output, dtype):
    count = 6 if dtype == "F8_E8M0" else 12
    header = format_header([("scales", dtype, (1, count))], {})
    (source / "model.safetensors").write_bytes(header + b"scales")
    scales = open_checkpoint(str(source)).stored["scales"]
    stream.write(written(copied(scales)), output)
    assert (output / "model.safetensors").read_bytes().endswith(b"scales")
    with pytest.raises(Refused, match=dtype):
        stream.write(written(rewritten(scales, dtype="F32")), output, overwrite=True)


def test_the_longest_run_keeps_its_place_in_the_page(stored, output):
    stream.write(written(*(copied(stored[name], f"a.longer.{name}") for name in stored)), output)
    for tensor in open_checkpoint(str(output)).stored.values():
        assert tensor.start % 4096 == stored[tensor.name.removeprefix("a.longer.")].start % 4096
