"""Files that trainers wrote: read as they are, and counted as an engine counts where they are the target's choice."""

import json
import os
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import DATA, NEW_TOKENS, TARGET, counters, draft, made, measured
from forms import TAPS, as_specforge, as_speculators

from eagle3_interop.convert import api
from eagle3_interop.convert.read.pickles import read_pickle
from eagle3_interop.schemas.findings import Refused, Usage
from eagle3_interop.validators.accept.acceptance import measure
from eagle3_interop.validators.accept.drafting import Shape
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import Text
from eagle3_interop.validators.target.writing import write_texts

K = 4
CHAIN = Shape.chain(K)


@pytest.fixture(scope="module")
def target():
    return Target.load(TARGET)


@pytest.fixture(scope="module")
def written(target):
    """Prompts, and texts that the target wrote, long enough for 48 scored tokens."""
    lines = (DATA / "prompts.jsonl").read_text().splitlines()[:8]
    prompts = [json.loads(line)["token_ids"] for line in lines]
    made = write_texts(target, prompts, NEW_TOKENS, K - 1).texts
    return prompts, [[*text.prompt, *text.completion] for text in made]


@pytest.fixture(scope="module")
def live(prompts):
    return measured("plain", prompts=prompts, new_tokens=NEW_TOKENS, shape=CHAIN)


def masks_of(prompts, rows):
    return [
        [int(i >= len(p)) for i in range(len(row))] for p, row in zip(prompts, rows, strict=True)
    ]


@pytest.mark.parametrize("packed", [False, True], ids=["ckpt", "ckpt.gz"])
def test_specforges_files_are_counted_as_live(packed, written, live, tmp_path):
    prompts, rows = written
    folder = as_specforge(tmp_path / "s", rows, masks_of(prompts, rows), packed=packed)
    found = measured("plain", streams=str(folder), stream_taps=TAPS, shape=CHAIN)
    assert counters(found) == counters(live)
    assert found.streams.counted_starts == found.streams.starts
    assert found.streams.last == "post-norm"


def test_speculators_files_are_counted_as_live(written, live, tmp_path, monkeypatch):
    """Their loss mask lies in a data set beside them, which the package datasets reads."""
    prompts, rows = written
    folder = as_speculators(tmp_path / "s", rows)
    (folder / "dataset_info.json").write_text("{}")
    masks = [{"loss_mask": torch.tensor(mask)} for mask in masks_of(prompts, rows)]

    class Rows(list):
        column_names = ("input_ids", "loss_mask")

    monkeypatch.setattr("eagle3_interop.validators.target.recordings.find_spec", lambda _: True)
    monkeypatch.setitem(
        sys.modules, "datasets", SimpleNamespace(load_from_disk=lambda _: Rows(masks))
    )
    found = measured("plain", streams=str(folder), stream_taps=TAPS, shape=CHAIN)
    assert counters(found) == counters(live)
    assert found.streams.final_norm == "LlamaRMSNorm of transformers"


WRITE = """
import json, sys, datasets
datasets.Dataset.from_dict(json.load(open(sys.argv[1]))).save_to_disk(sys.argv[2])
"""


@pytest.mark.speculators
def test_a_data_set_of_speculators_own_environment_gives_the_loss_mask(written, live, tmp_path):
    pytest.importorskip("datasets")
    prompts, rows = written
    folder = as_speculators(tmp_path / "s", rows)
    data = {
        "input_ids": rows,
        "loss_mask": masks_of(prompts, rows),
        "seq_len": list(map(len, rows)),
    }
    (tmp_path / "data.json").write_text(json.dumps(data))
    python = os.environ["EAGLE3_SPECULATORS_PYTHON"]
    words = [python, "-c", WRITE, str(tmp_path / "data.json"), str(folder)]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": ""})
    found = measured("plain", streams=str(folder), stream_taps=TAPS, shape=CHAIN)
    assert counters(found) == counters(live)


def test_without_a_data_set_every_token_counts_and_that_is_said(written, tmp_path):
    folder = as_speculators(tmp_path / "s", written[1])
    found = measured("plain", streams=str(folder), stream_taps=TAPS, shape=CHAIN)
    assert "no-loss-mask" in {item.code for item in found.findings}
    assert found.streams.starts > 8 * NEW_TOKENS


@pytest.fixture(scope="module")
def strayed(written):
    """Texts in which every twelfth token or so is not what the target would have said."""
    draw = random.Random(7)  # noqa: S311
    rows = [list(row) for row in written[1]]
    for row in rows:
        for place in range(50, len(row)):
            if draw.random() < 1 / 12:
                row[place] = draw.randrange(1024)
    return rows


def test_of_other_texts_the_stretches_that_the_target_chose_count_as_in_an_engine(
    strayed, target, tmp_path
):
    """Each stretch is what an engine would answer to all that is before it: so it is counted there, live."""
    folder = as_specforge(tmp_path / "s", strayed, [[1] * len(row) for row in strayed])
    found = measured("plain", streams=str(folder), stream_taps=TAPS, shape=CHAIN)
    texts = []
    for row in strayed:
        final = target.features(torch.tensor([row]), ()).final[0]
        follows = [False, *(target.greedy(final)[:-1] == torch.tensor(row[1:])).tolist()]
        place = 1
        while place < len(row):
            end = place
            while end < len(row) and follows[end]:
                end += 1
            if (scored := end - place - K + 1) >= 2:
                texts.append(Text(tuple(row[:place]), tuple(row[place:end]), scored))
            place = end + 1
    loaded = api.load(draft("plain"), "auto", api.Options(target=str(TARGET)))
    weights = Weights.read(loaded.reading, loaded.checkpoint, tables=target.tables)
    counted = measure(Network(loaded.reading.draft, weights), target, texts, [CHAIN])[CHAIN]
    assert (found.acceptance.drafts, found.acceptance.accepted) == (
        counted.drafts,
        counted.accepted,
    )
    assert found.acceptance.per_position == counted.per_position
    assert 0 < found.streams.counted_starts < found.streams.starts
    assert "not-all-greedy" in {item.code for item in found.findings}


def test_the_teacher_forced_accuracy_is_of_every_token_that_counts(strayed, target, tmp_path):
    """As trainers report it: the draft's token against the target's choice, at every position of the mask."""
    masks = [[int(i % 11 != 0) for i in range(len(row))] for row in strayed]
    folder = as_specforge(tmp_path / "s", strayed, masks)
    found = measured("plain", streams=str(folder), stream_taps=TAPS, shape=CHAIN)
    forced = found.streams.teacher_forced
    loaded = api.load(draft("plain"), "auto", api.Options(target=str(TARGET)))
    weights = Weights.read(loaded.reading, loaded.checkpoint, tables=target.tables)
    network = Network(loaded.reading.draft, weights)
    right = total = 0
    with torch.no_grad():
        for row, mask in zip(strayed, masks, strict=True):
            tokens = torch.tensor([row])
            features = target.features(tokens, TAPS)
            hidden = network.fuse(features)
            out, _ = network.begin(tokens[:, 1:], hidden[:, :-1])
            proposed = network.propose(out.normed[0])
            choice = target.greedy(features.final[0])[1:]
            for start in range(
                next(i for i in range(1, len(row)) if mask[i]) - 1, len(row) - K - 1
            ):
                if mask[start + 1]:
                    total += 1
                    right += int(proposed[start] == choice[start])
    assert forced.positions[0] == total
    assert forced.accuracy[0] == pytest.approx(right / total, abs=1e-12)


def test_a_wrong_token_is_not_the_targets_choice_for_the_counters_only(strayed, tmp_path):
    """The counters leave strays out; the accuracy has them."""
    folder = as_specforge(tmp_path / "s", strayed, [[1] * len(row) for row in strayed])
    streams = measured("plain", streams=str(folder), stream_taps=TAPS, shape=CHAIN).streams
    assert streams.teacher_forced.positions[0] == streams.starts > streams.counted_starts


# What is refused.


def test_layers_that_stand_nowhere_must_be_told(written, tmp_path):
    folder = as_speculators(tmp_path / "s", written[1])
    with pytest.raises(Usage, match=r"do not say which layers they hold\. Give --stream-taps"):
        measured("plain", streams=str(folder))


@pytest.mark.parametrize("taps", [(1, 3), (1, 2, 3, 5)])
def test_more_or_fewer_layers_than_the_files_hold_are_refused(taps, written, tmp_path):
    rows = written[1][:1]
    for folder in (
        as_speculators(tmp_path / "a", rows),
        as_specforge(tmp_path / "b", rows, [[1] * len(rows[0])]),
    ):
        with pytest.raises(Refused, match="was expected of this target and these taps"):
            measured("plain", streams=str(folder), stream_taps=taps)


def test_layers_that_the_target_does_not_have_are_wrong_usage(written, tmp_path):
    folder = as_speculators(tmp_path / "s", written[1][:1])
    with pytest.raises(Usage, match="this target has taps 0 to 6"):
        measured("plain", streams=str(folder), stream_taps=(1, 3, 7))


def test_code_in_a_checkpoint_is_not_run(written, tmp_path):
    class Trap:
        def __reduce__(self):
            return (print, ("run",))

    rows = written[1][:1]
    folder = as_specforge(tmp_path / "s", rows, [[1] * len(rows[0])])
    path = next(folder.rglob("*.ckpt"))
    data = torch.load(path, weights_only=True)
    torch.save({**data, "input_ids": Trap()}, path)
    with pytest.raises(Refused, match=r"asks to run builtins\.print|__builtin__"):
        measured("plain", streams=str(folder), stream_taps=TAPS)


@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_checkpoint_is_named(packed, written, tmp_path):
    rows = written[1][:1]
    folder = as_specforge(tmp_path / "s", rows, [[1] * len(rows[0])], packed=packed)
    path = next(folder.rglob("data_0*"))
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(Refused, match=r"data_0\.ckpt|0\.ckpt"):
        measured("plain", streams=str(folder), stream_taps=TAPS)


def test_texts_of_which_nothing_is_the_targets_choice_are_refused(tmp_path):
    draw = random.Random(3)  # noqa: S311
    rows = [[draw.randrange(1024) for _ in range(60)]]
    folder = as_specforge(tmp_path / "s", rows, [[1] * 60])
    with pytest.raises(Refused, match="no 4 tokens in a row are the target's own choice"):
        measured("plain", streams=str(folder), stream_taps=TAPS, shape=CHAIN)


def test_ids_beyond_the_vocabulary_are_refused(written, tmp_path):
    rows = written[1][:1]
    folder = as_specforge(tmp_path / "s", rows, [[1] * len(rows[0])])
    path = next(folder.rglob("*.ckpt"))
    data = torch.load(path, weights_only=True)
    data["input_ids"][3] = 5000
    torch.save(data, path)
    with pytest.raises(Refused, match="token 5000: the target has 1024"):
        measured("plain", streams=str(folder), stream_taps=TAPS)
    assert "input_ids" in read_pickle(path)


def test_stream_taps_alone_is_wrong_usage():
    with pytest.raises(Usage, match="give --streams DIR too"):
        Request(draft("plain"), str(TARGET), stream_taps=(1,)).check()


TRAIN = """
import json, sys, torch
from pathlib import Path
import datasets
from safetensors.torch import load_file
from speculators.train.data import ArrowDataset
folder = Path(sys.argv[1])
files = sorted((folder / "hidden_states").glob("hs_*.safetensors"), key=lambda p: int(p.stem[3:]))
rows = [load_file(path)["token_ids"].tolist() for path in files]
data = {"input_ids": rows, "loss_mask": [[1] * len(row) for row in rows], "seq_len": list(map(len, rows))}
made = datasets.Dataset.from_dict(data)
made.set_format("torch")
made.save_to_disk(str(folder))
found = ArrowDataset(4096, str(folder), on_missing="raise", hidden_states_dtype=torch.float32)
kept = load_file(files[2])["hidden_states"]
item = found[2]
assert torch.equal(item["hidden_states"], kept[:, :-1].flatten(1)), item
assert torch.equal(item["verifier_last_hidden_states"], kept[:, -1])
assert item["input_ids"].tolist() == rows[2]
print(len(found))
"""


@pytest.mark.speculators
def test_speculators_own_trainer_reads_what_was_recorded(prompts, tmp_path):
    """With the last state before the norm, and its data set beside the files."""
    manifest = made(tmp_path / "s" / "hidden_states", prompts, taps=TAPS)
    assert manifest.last == "pre-norm"
    words = [os.environ["EAGLE3_SPECULATORS_PYTHON"], "-c", TRAIN, str(tmp_path / "s")]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "8"
