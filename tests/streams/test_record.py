"""A recording is whole or not there, goes on after an interruption, and says what it will take."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import DATA, NEW_TOKENS, TARGET, counters, made, measured
from safetensors.torch import load_file

from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.validators.record import store as stores
from eagle3_interop.validators.record.library import Library
from eagle3_interop.validators.record.record import record, wanted_taps
from eagle3_interop.validators.record.wish import Wish
from eagle3_interop.validators.target.running import Target


def same(one, other):
    """Every file of two recordings holds the same."""
    names = {path.name for path in one.iterdir()}
    assert names == {path.name for path in other.iterdir()}
    for name in sorted(names - {"streams.json"}):
        left, right = load_file(one / name), load_file(other / name)
        assert torch.equal(left["token_ids"], right["token_ids"])
        assert torch.allclose(left["hidden_states"], right["hidden_states"], atol=2e-5)


class Interrupted(Library):
    """A recorder that is killed before its third text."""

    def texts(self, plan, skip, held, progress):
        for number, text in enumerate(super().texts(plan, skip, held, progress)):
            if skip + number == 3:
                raise KeyboardInterrupt
            yield text


def wish_for(out, prompts, **options):
    return Wish(str(TARGET), out, prompts, new_tokens=NEW_TOKENS, device="cpu", **options)


@pytest.fixture
def interrupted(tmp_path, prompts):
    """Three of eight texts."""
    wish = wish_for(tmp_path / "s", prompts)
    with pytest.raises(KeyboardInterrupt):
        record(wish, Interrupted(wish), say=lambda _: None)
    return tmp_path / "s"


def test_an_interrupted_recording_does_not_read_as_a_whole_one(interrupted):
    assert not (interrupted / "streams.json").exists()
    with pytest.raises(Usage, match="this recording is not finished"):
        measured("plain", streams=str(interrupted))


def test_it_goes_on_where_it_stopped(interrupted, prompts, recorded):
    before = (interrupted / "hs_1.safetensors").stat().st_mtime_ns
    said = []
    wish = wish_for(interrupted, prompts)
    record(wish, Library(wish), say=said.append)
    assert "3 texts are there from an interrupted run." in said
    assert (interrupted / "hs_1.safetensors").stat().st_mtime_ns == before
    same(interrupted, recorded)
    assert counters(measured("plain", streams=str(interrupted))) == counters(
        measured("plain", streams=str(recorded))
    )


def test_a_file_that_was_damaged_meanwhile_is_recorded_anew(interrupted, prompts, recorded):
    path = interrupted / "hs_1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    wish = wish_for(interrupted, prompts)
    record(wish, Library(wish), say=lambda _: None)
    same(interrupted, recorded)


def test_another_recording_does_not_go_on_there(interrupted, prompts):
    wish = replace(wish_for(interrupted, prompts), lookahead=5)
    with pytest.raises(
        Usage, match=r"unfinished recording of something else \(lookahead differs\)"
    ):
        record(wish, Library(wish))


def test_a_disk_that_fails_leaves_no_half_file(tmp_path, prompts, monkeypatch):
    def full(_tensors, path):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores, "save_file", full)
    with pytest.raises(Unavailable, match="No space left"):
        made(tmp_path / "s", prompts)
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["streams.partial.json"]


def test_the_size_to_come_is_told_and_true(tmp_path, prompts):
    said = []
    wish = wish_for(tmp_path / "s", prompts)
    manifest = record(wish, Library(wish), say=said.append)
    tokens = sum(text.tokens for text in manifest.texts)
    assert f"8 texts, {tokens} tokens x 6 hidden states" in said[0]
    held = sum(text.bytes for text in manifest.texts)
    assert tokens * 6 * 128 * 4 < held < tokens * 6 * 128 * 4 * 1.01


def test_a_disk_without_room_is_named_before_the_work(tmp_path, prompts, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(Unavailable, match="MB are still to be written and 1 bytes are free"):
        made(tmp_path / "s", prompts)


@pytest.mark.parametrize("name", ["streams.json", "other"])
def test_a_place_that_is_taken_is_wrong_usage(name, tmp_path, prompts):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / name).write_text("{}")
    with pytest.raises(Usage, match="holds"):
        made(tmp_path / "s", prompts)


def test_prompts_that_bring_their_continuation_are_wrong_usage(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"token_ids": [1, 2], "completion_token_ids": [3]}))
    with pytest.raises(Usage, match="completion_token_ids"):
        made(tmp_path / "s", path)


def test_a_text_beyond_the_targets_positions_is_wrong_usage(tmp_path, prompts):
    with pytest.raises(Usage, match="positions"):
        made(tmp_path / "s", prompts, new_tokens=5000)


# Which layers.


@pytest.mark.parametrize(
    ("depth", "taps"),
    [
        (6, tuple(range(7))),
        (12, tuple(range(13))),
        (61, (0, 1, 2, 3, 29, 30, 31, 57, 58, 59, 61)),
    ],
)
def test_the_usual_taps_are_all_or_the_default_triple_and_around_it(depth, taps):
    assert wanted_taps(Wish("t", Path("o")), depth) == taps


def test_a_tap_that_the_target_does_not_have_is_wrong_usage(tmp_path, prompts):
    with pytest.raises(Usage, match="this target has taps 0 to 6"):
        made(tmp_path / "s", prompts, taps=(1, 7))


def test_only_the_asked_taps_are_written(tmp_path, prompts):
    manifest = made(tmp_path / "s", prompts, taps=(5, 1))
    assert manifest.taps == (1, 5)
    file = load_file(tmp_path / "s" / "hs_0.safetensors")
    features = Target.load(TARGET).features(file["token_ids"][None], (1, 5, 6))
    for slice_, tap in enumerate((1, 5, 6)):
        assert torch.allclose(file["hidden_states"][:, slice_], features.taps[tap][0], atol=2e-5)


# Memory.

PROBE = """
import resource, sys, torch
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.prove.validate import validate
torch.set_num_threads(1)
validate(Request(sys.argv[1], sys.argv[2], streams=sys.argv[3], device="cpu"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def copies(folder, out, count):
    """A recording of the same texts, many times over."""
    out.mkdir()
    told = json.loads((folder / "streams.json").read_text())
    texts = []
    for number in range(count):
        text = dict(told["texts"][number % len(told["texts"])])
        name = f"hs_{number}.safetensors"
        shutil.copyfile(folder / text["file"], out / name)
        texts.append({**text, "file": name})
    (out / "streams.json").write_text(json.dumps({**told, "texts": texts}))
    return out


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures on Linux")
def test_memory_does_not_grow_with_the_recording(recorded, tmp_path):
    """Once a batch is full, five times the texts are megabytes on the disk and not in memory."""
    peaks, sizes = [], []
    for count in (64, 320):
        folder = copies(recorded, tmp_path / str(count), count)
        words = [str(DATA / "drafts" / "plain"), str(TARGET), str(folder)]
        done = subprocess.run(
            [sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        peaks.append(int(done.stdout) * 1024)
        sizes.append(sum(path.stat().st_size for path in folder.iterdir()))
    assert sizes[1] - sizes[0] > 80e6
    assert (
        peaks[1] - peaks[0] < (sizes[1] - sizes[0]) / 3
    )  # token ids and digests, not hidden states
