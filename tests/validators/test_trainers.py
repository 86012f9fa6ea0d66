"""Exports of real trainers: their own forward, at both depths, against the network that is read from the folder.

The folders and what the trainer's own code computed of them stand in ``data/trainers`` (its README says by
which code). Each was made with random weights, large enough that every norm, rotation and residual shows.
"""

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from conversions import convert, loaded, refusal
from safetensors.torch import load_file

from eagle3_interop.validators.diagnose.wiring import Wired, configured_flags
from eagle3_interop.validators.network.reference import Features, Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.target.running import Target

DATA = Path(__file__).parents[1] / "data/trainers"
ROUNDING = 2e-6
"""Of logits, by the largest of them: sums of float32 in another order."""


@cache
def target():
    return Target.load(str(DATA / "target"))


@cache
def forward(name):
    return load_file(DATA / f"{name}.forward.safetensors")


def read(name, **options):
    return loaded(DATA / name, target=DATA / "target", **options)


def off(name, flags=None, **options):
    """How far our network's logits are from the trainer's at each depth; ``flags`` that no description has."""
    return distance(read(name, **options), forward(name), flags)


@torch.no_grad()
def distance(read_draft, theirs, flags=None):
    draft = read_draft.reading.draft
    weights = Weights.read(read_draft.reading, read_draft.checkpoint, tables=target().tables)
    network = Network(draft, weights)
    tokens = theirs["x"].long()[None]
    count = len(theirs["logits.0"])
    features = target().features(tokens[:, :count], draft.fed_taps(8), final=True)
    hidden = network.fuse(features)
    if flags:
        network = Wired(draft, weights, configured_flags(draft) | flags)
        hidden = network.fuse(Features(features.taps, hidden))
    out, cache = network.begin(tokens[:, 1 : count + 1], hidden)
    second = network.step(
        torch.nn.functional.pad(tokens[:, 2 : count + 1], (0, 1)), out.feedback, cache
    )
    found = []
    for depth, ours in enumerate((out, second)):
        logits = theirs[f"logits.{depth}"]
        got = network.logits(ours.normed)[0, : len(logits)]
        found.append(float((got - logits).abs().max() / logits.abs().max()))
    return found


def equal(distances):
    return max(distances) < ROUNDING


def written_as(result):
    """A conversion's output, read back without its provenance file."""
    (result.folder / "eagle3_interop.json").unlink()
    return loaded(result.folder, target=DATA / "target")


def copied(name, folder):
    return Path(shutil.copytree(DATA / name, folder))


def edited(name, folder, **keys):
    """A trainer's folder with other keys in its config."""
    made = copied(name, folder)
    config = json.loads((made / "config.json").read_text()) | keys
    (made / "config.json").write_text(json.dumps(config))
    return made


# SpecForge.


@pytest.mark.parametrize("variant", ["plain", "yarn"])
def test_a_plain_draft_of_specforge_is_its_own_forward(variant):
    assert equal(off(f"specforge/{variant}"))


@pytest.mark.parametrize("variant", ["plain", "yarn"])
def test_a_plain_draft_of_specforge_is_converted_without_a_question(variant, tmp_path):
    result = convert(copied(f"specforge/{variant}", tmp_path / "draft"), "vllm")
    assert result.conversion.report("")["trainer"]["deviations"] == []


def test_specforge_feeds_the_state_before_the_norm_back_whatever_norm_output_says():
    assert equal(off("specforge/norm_output", trainer="specforge"))
    first, second = off("specforge/norm_output", trainer="none")
    assert first < ROUNDING
    assert second > 0.1


def test_a_likely_draft_of_specforge_with_norm_output_asks():
    finding = refusal(read, "specforge/norm_output")
    assert finding.code == "trained-otherwise"
    assert "feedback 'pre-norm' (served: 'post-norm')" in finding.message


def test_the_answer_may_also_be_given_by_the_path_that_differs():
    assert equal(off("specforge/norm_output", sets={"feedback": "pre-norm"}))


@pytest.mark.parametrize("destination", ["sglang", "vllm", "speculators", "universal"])
def test_what_specforge_trained_is_written_and_read_back_the_same(destination, tmp_path):
    source = copied("specforge/norm_output", tmp_path / "draft")
    result = convert(source, destination, trainer="specforge", target=DATA / "target")
    assert result.config["norm_output"] is False
    again = written_as(result)
    assert again.trainer is None
    assert equal(distance(again, forward("specforge/norm_output")))


def test_a_draft_without_a_final_norm_is_refused_by_name():
    finding = refusal(read, "specforge/no_norm_output")
    assert finding.code == "no-final-norm"
    assert "--allow no-final-norm" in finding.fix


def test_no_final_norm_is_what_specforge_computes_and_no_engine_does():
    options = {"allow": ("no-final-norm",)}
    assert equal(off("specforge/no_norm_output", {"head_norm": "off"}, **options))
    assert min(off("specforge/no_norm_output", **options)) > 0.1


def test_a_loss_that_is_allowed_is_still_said():
    said = {
        x.code: x
        for x in read("specforge/no_norm_output", allow=("no-final-norm",)).reading.findings
    }
    assert said["no-final-norm"].severity == "warning"


def test_ids_that_were_a_run_option_are_asked_for_by_its_name():
    said = {x.code: x for x in read("specforge/ids_as_option").reading.findings}
    assert "model.aux_hidden_state_layer_ids" in said["ids-were-options"].message
    assert min(off("specforge/ids_as_option")) > 0.1
    assert equal(off("specforge/ids_as_option", taps=(1, 4, 7)))


def test_ids_that_the_user_gives_are_not_asked_for():
    said = {x.code for x in read("specforge/ids_as_option", taps=(1, 4, 7)).reading.findings}
    assert "ids-were-options" not in said
