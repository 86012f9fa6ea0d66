"""A diagnosis of drafts whose trainer is known, and of what trainers are known to do to a folder."""

import json
from math import log

import pytest
import torch
from conversions import convert
from exports import DATA, TARGET, equal, forward, network_distance, target
from safetensors.torch import load_file, save_file

from eagle3_interop.convert import api
from eagle3_interop.schemas.draft import Rope
from eagle3_interop.validators.diagnose.rewire import write_wiring
from eagle3_interop.validators.diagnose.scoring import Evaluator, order_texts
from eagle3_interop.validators.diagnose.suspect import subject_of
from eagle3_interop.validators.diagnose.verdict import diagnose
from eagle3_interop.validators.diagnose.wiring import PRUNED, candidate_ropes
from eagle3_interop.validators.network.switched import Switched
from eagle3_interop.validators.target.captured import capture
from eagle3_interop.validators.target.prompts import read_prompts
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import encode
from eagle3_interop.validators.target.writing import write_texts

PAIR = DATA.parent


def subject(folder, chosen=None, model=None, **options):
    options = api.Options(target=str(chosen or TARGET), **options)
    loaded = api.load(str(folder), "auto", options, diagnosing=True)
    return subject_of(loaded, model or target(), device=torch.device("cpu"), dtype=torch.float32)


# A diagnosis starts from what a known trainer trained.


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("modelopt/default", {"hidden_norms": "two", "rope": "theta 10000"}),
        ("specforge/no_norm_output", {"head_norm": "off"}),
        ("angelslim/theta", {"rope": "theta 10000"}),
        ("automodel/sliding_target", {"window": "none"}),
    ],
)
def test_a_diagnosis_starts_from_what_a_known_trainer_computes(name, flags):
    found = subject(DATA / name)
    assert {flag: found.configured.flag(flag) for flag in flags} == flags
    assert all(found.usual.get(flag, value) == value for flag, value in flags.items())


def test_where_it_starts_is_the_trainers_own_forward():
    found = subject(DATA / "modelopt/default")
    wired = found.network(found.configured)
    trained = Switched(wired.draft, wired.weights, dict(found.configured.flags))
    assert equal(network_distance(trained, forward("modelopt/default")))


def test_by_the_users_word_it_starts_from_what_engines_compute():
    found = subject(DATA / "modelopt/default", trainer="none")
    assert found.configured.flag("hidden_norms") == "one"
    assert found.configured.flag("rope").startswith("theta 10000 yarn")


def test_a_wiring_that_keeps_the_trainers_second_norm_is_written_only_if_its_loss_is_allowed(
    tmp_path,
):
    folder, found = DATA / "modelopt/default", subject(DATA / "modelopt/default")
    wiring = found.configured.with_flag("feedback", "post-norm")
    refused = write_wiring(str(folder), str(TARGET), found, wiring, tmp_path / "one")
    assert refused.output is None
    assert "two norms" in refused.findings[0].message
    allow = ("double-norm",)
    accepted = subject(folder, allow=allow)
    done = write_wiring(str(folder), str(TARGET), accepted, wiring, tmp_path / "two", allow=allow)
    draft = api.load(str(done.output)).reading.draft
    assert (draft.feedback, draft.rope.scaling) == ("post-norm", None)


def test_a_wiring_is_written_with_the_rope_that_the_user_said_was_trained(tmp_path):
    folder = DATA / "eagle/theta"
    found = subject(folder, trainer="eagle")
    wiring = found.configured.with_flag("residual", "normed")
    done = write_wiring(str(folder), str(TARGET), found, wiring, tmp_path / "out", trainer="eagle")
    assert api.load(str(done.output)).reading.draft.rope.theta == 10000


# What trainers do to a folder, found in trained weights.


@pytest.fixture(scope="module")
def pair():
    chosen = Target.load(PAIR / "target")
    prompts = encode(read_prompts(PAIR / "prompts.jsonl"), None, chosen.vocabulary_size)[:6]
    texts, sieve = order_texts(write_texts(chosen, prompts, 40, 5).texts)
    return chosen, capture(chosen, texts), sieve


@pytest.fixture
def folder(tmp_path):
    """The trained draft as vLLM has it."""
    source = tmp_path / "plain"
    source.symlink_to(PAIR / "drafts/plain")
    return convert(source, "vllm", target=PAIR / "target").folder


def evaluator(folder, pair):
    return Evaluator(subject(folder, PAIR / "target", pair[0]), *pair)


def changed(folder, **keys):
    config = json.loads((folder / "config.json").read_text()) | keys
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_window_that_was_copied_from_the_target_is_found_and_taken_out(folder, pair, tmp_path):
    changed(folder, sliding_window=8, use_sliding_window=True, layer_types=["sliding_attention"])
    found = evaluator(folder, pair)
    assert found.subject.configured.flag("window") == "8"
    best = diagnose(found).best.wiring
    assert best.changes(found.subject.configured) == ["window none instead of 8"]
    done = write_wiring(
        str(folder), str(PAIR / "target"), found.subject, best, tmp_path / "written"
    )
    assert api.load(str(done.output)).reading.draft.layers.windows == (None,)


def test_a_draft_without_windows_has_one_candidate_for_them(folder, pair):
    assert evaluator(folder, pair).subject.options["window"] == ("none",)


def test_a_head_that_was_pruned_by_offsets_is_read_by_what_its_rows_are(folder, pair):
    rows = _pruned_by_offsets(folder)
    found = evaluator(folder, pair)
    best = diagnose(found).best
    assert best.wiring.flag("map") == PRUNED
    assert best.accept_length > 1.1
    assert torch.equal(found.subject.maps[PRUNED], rows)


def test_a_head_that_was_pruned_by_offsets_is_not_written(folder, pair, tmp_path):
    _pruned_by_offsets(folder)
    found = evaluator(folder, pair).subject
    done = write_wiring(
        str(folder), str(PAIR / "target"), found, found.configured, tmp_path / "out"
    )
    assert done.output is None
    assert "rows of its tokens are lost" in done.findings[0].message


def _pruned_by_offsets(folder):
    """Do to a head what TorchSpec's export does: row i is the full head's row d2t[i], an offset."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    ids = (tensors["d2t"] + torch.arange(len(tensors["d2t"]))).tolist()
    place = {token: row for row, token in enumerate(ids)}
    kept: list[int] = []
    for token in ids:  # those whose offset is a token that this head has a row for
        if token - len(kept) in place:
            kept.append(token)
    offsets = torch.tensor(kept) - torch.arange(len(kept))
    head = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = head[[place[int(one)] for one in offsets]].clone()
    tensors["d2t"] = offsets
    if "t2d" in tensors:
        tensors["t2d"] = torch.zeros_like(tensors["t2d"])
        tensors["t2d"][torch.tensor(kept)] = True
    save_file(tensors, path, metadata={"format": "pt"})
    changed(folder, draft_vocab_size=len(kept))
    return offsets


# The length of yarn's cosines.


def test_yarn_is_tried_without_mscale_and_at_length_one():
    numbers = {"factor": 4.0, "original_max_position_embeddings": 128}
    yarn = Rope(
        theta=1e4, scaling="yarn", parameters={**numbers, "mscale": 2.0, "mscale_all_dim": 1.0}
    )
    tried = [rope.parameters for rope in candidate_ropes(yarn, None).values()]
    assert numbers in tried
    assert {**numbers, "attention_factor": 1.0} in tried


def test_a_length_that_the_config_already_has_is_not_tried_again():
    usual = 0.1 * log(4.0) + 1
    for numbers in ({"attention_factor": usual}, {"mscale": 1.0, "mscale_all_dim": 1.0}):
        parameters = {"factor": 4.0, "original_max_position_embeddings": 128, **numbers}
        yarn = Rope(theta=1e4, scaling="yarn", parameters=parameters)
        scaled = [one for one in candidate_ropes(yarn, None).values() if one.scaling == "yarn"]
        assert len(scaled) == 2
