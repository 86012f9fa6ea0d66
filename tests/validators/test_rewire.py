"""`eagle3-diagnose --write`: a checkpoint with another wiring, in the layout that it came in."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_interop.convert import api
from eagle3_interop.validators.diagnose.rewire import write_wiring
from eagle3_interop.validators.diagnose.suspect import subject_of
from eagle3_interop.validators.target.running import Target

DATA = Path(__file__).resolve().parents[1] / "data"
TARGET, DRAFTS = DATA / "target", DATA / "drafts"
ENTRY = [f"layers.0.self_attn.{part}_proj.weight" for part in "qkv"]


@pytest.fixture(scope="module")
def target():
    return Target.load(TARGET)


@pytest.fixture
def subject_in(target):
    def of(folder):
        loaded = api.load(str(folder), "auto", api.Options(target=str(TARGET)), diagnosing=True)
        return subject_of(loaded, target, device=torch.device("cpu"), dtype=torch.float32)

    return of


def read(folder):
    return api.load(str(folder), options=api.Options(target=str(TARGET))).reading


def converted(folder, layout, source=DRAFTS / "plain"):
    options = api.Options(target=str(TARGET))
    loaded = api.load(str(source), "auto", options)
    api.write(api.convert(loaded, layout, options), folder)
    return folder


def rewritten(folder, subject, wiring, output):
    done = write_wiring(str(folder), str(TARGET), subject, wiring, output)
    assert done.output == output, done.findings
    return output


@pytest.mark.parametrize("layout", ["sglang", "vllm", "universal"])
def test_other_taps_are_written_in_the_layout_of_the_source(tmp_path, subject_in, layout):
    folder = converted(tmp_path / "draft", layout)
    subject = subject_in(folder)
    wiring = replace(subject.configured, taps=(0, 1, 3))
    output = rewritten(folder, subject, wiring, tmp_path / "right")
    before, after = read(folder), read(output)
    assert after.draft.taps == (0, 1, 3)
    assert after.draft.model_copy(update={"taps": before.draft.taps}) == before.draft
    written = json.loads((output / "eagle3_interop.json").read_text())
    assert written["output"]["layout"] == layout


@pytest.mark.parametrize("layout", ["sglang", "vllm", "universal"])
@pytest.mark.parametrize(
    ("flag", "value"), [("feedback", "post-norm"), ("residual", "normed"), ("rope", "theta 1e+06")]
)
def test_other_flags_are_written_in_the_layout_of_the_source(
    tmp_path, subject_in, layout, flag, value
):
    folder = converted(tmp_path / "draft", layout)
    subject = subject_in(folder)
    wiring = subject.configured.with_flag(flag, value)
    output = rewritten(folder, subject, wiring, tmp_path / "right")
    assert subject_in(output).configured == wiring


@pytest.mark.parametrize("layout", ["speculators", "sglang", "vllm"])
def test_exchanged_halves_of_q_k_and_v_are_put_right_bit_by_bit(tmp_path, subject_in, layout):
    right = converted(tmp_path / "trained", layout)
    names = read(right).names
    wrong = tmp_path / "draft"
    shutil.copytree(right, wrong)
    tensors = load_file(right / "model.safetensors")
    for name in ENTRY:
        stored = tensors[names[name]]
        tensors[names[name]] = stored.roll(stored.shape[1] // 2, dims=1).contiguous()
    save_file(tensors, wrong / "model.safetensors", metadata={"format": "pt"})
    subject = subject_in(wrong)
    wiring = subject.configured.with_flag("order", "hidden-embedding")
    done = write_wiring(str(wrong), str(TARGET), subject, wiring, tmp_path / "right")
    assert [item.code for item in done.findings].count("halves-exchanged") == 3
    output = tmp_path / "right"
    found, wanted = (load_file(one / "model.safetensors") for one in (output, right))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_draft_without_fc_is_written_with_another_flag(tmp_path, subject_in):
    folder = converted(tmp_path / "draft", "vllm")
    tensors = load_file(folder / "model.safetensors")
    del tensors["fc.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in config.items() if "aux" not in key}
    kept["eagle_config"] = {"use_aux_hidden_state": False}
    (folder / "config.json").write_text(json.dumps(kept))
    subject = subject_in(folder)
    assert subject.configured.taps == ()
    wiring = subject.configured.with_flag("feedback", "post-norm")
    output = rewritten(folder, subject, wiring, tmp_path / "right")
    assert subject_in(output).configured == wiring


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("head_norm", "off", "before the final norm"),
        ("shift", "1", "one position apart"),
        ("hidden_norms", "two", "two norms"),
        ("reads", "sublayer", "residual stream"),
    ],
)
def test_what_no_framework_computes_is_not_written(tmp_path, subject_in, flag, value, said):
    subject = subject_in(DRAFTS / "plain")
    wiring = (
        subject.configured.with_block(0, 1, value)
        if flag == "reads"
        else subject.configured.with_flag(flag, value)
    )
    done = write_wiring(str(DRAFTS / "plain"), str(TARGET), subject, wiring, tmp_path / "right")
    assert done.output is None
    assert [item.code for item in done.findings] == ["wiring-not-written"]
    assert said in done.findings[0].message
    assert "neither vLLM nor SGLang nor speculators" in done.findings[0].message or flag == "reads"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_readers_disagree_is_a_question_that_a_wiring_answers(tmp_path, subject_in):
    folder = converted(tmp_path / "draft", "universal")
    config = json.loads((folder / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2]
    (folder / "config.json").write_text(json.dumps(config))
    subject = subject_in(folder)
    assert not subject.known
    output = rewritten(folder, subject, subject.configured, tmp_path / "right")
    assert read(output).draft.taps == (1, 3, 5)
