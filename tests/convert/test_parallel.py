"""P-EAGLE: drafts that propose all tokens in one pass, in every form that trainers write and engines read."""

import json
from pathlib import Path

import drafts
import numpy as np
import pytest
from conversions import (
    codes,
    convert,
    described,
    launch_line,
    loaded,
    refusal,
    refusals,
    same_tensors,
)
from drafts import ABSENT, H, V, random

from eagle3_interop.convert.decide import inspection
from eagle3_interop.convert.serve import command
from eagle3_interop.schemas.draft import ParallelDrafting
from eagle3_interop.schemas.engines.releases import newest

MASK = {"mask_hidden": random((1, 1, 3 * H), 7)}
LAYER = drafts.SPECULATORS_CONFIG["transformer_layer_config"]
TRAINED = Path(__file__).parents[1] / "data" / "parallel" / "peagle"


def speculators(folder, tensors=None, **changes):
    keys = {"speculators_model_type": "peagle", "mask_token_id": 5, **changes}
    tensors = drafts.speculators_tensors() if tensors is None else tensors
    return drafts.speculators(folder, tensors | MASK, **keys)


def vllm(folder, mask=MASK, **changes):
    return drafts.vllm(
        folder, drafts.speculators_tensors() | mask, **{"ptd_token_id": 5, **changes}
    )


def as_vllm_reads(source):
    return newest("vllm").read(loaded(source).checkpoint, None)


# What is read.


@pytest.mark.parametrize("make", [speculators, vllm])
def test_its_mask_token_is_read(make, tmp_path):
    assert described(make(tmp_path / "draft")).parallel == ParallelDrafting(mask_token_id=5)


@pytest.mark.parametrize(
    "keys",
    [
        {"ptd_token_id": 5},
        {"pard_token": 5, "ptd_token_id": 6},
        {"dspark_noise_token_id": 5, "pard_token": 6},
        {"mask_token_id": 5, "dspark_noise_token_id": 6},
        {"mask_token_id": None, "ptd_token_id": 5},
        {"dflash_config": {"mask_token_id": 5}, "mask_token_id": 6},
    ],
)
def test_the_mask_token_of_a_flat_folder_is_the_first_of_vllms_places(keys, tmp_path):
    source = vllm(tmp_path / "draft", **{"ptd_token_id": ABSENT, **keys})
    assert described(source, "vllm").parallel == ParallelDrafting(mask_token_id=5)


def test_nulls_that_a_trainer_writes_into_every_config_make_no_parallel_draft(tmp_path):
    source = drafts.vllm(tmp_path / "draft", parallel_drafting=False, mask_token_id=None)
    assert described(source).parallel is None


@pytest.mark.parametrize("token", [ABSENT, None])
def test_without_a_mask_token_it_is_refused_and_the_users_word_settles_it(token, tmp_path):
    source = speculators(tmp_path / "draft", mask_token_id=token)
    error = refusal(convert, source, "vllm")
    assert (error.code, "--set parallel.mask_token_id" in error.fix) == ("no-mask-token", True)
    settled = convert(source, "vllm", sets={"parallel.mask_token_id": 9})
    assert settled.config["ptd_token_id"] == 9


@pytest.mark.parametrize("token", [-1, V])
def test_a_mask_token_outside_the_vocabulary_is_refused(token, tmp_path):
    source = speculators(tmp_path / "draft", mask_token_id=token)
    assert refusals(convert, source, "vllm") == {"no-mask-token"}


def test_without_its_mask_hidden_it_is_refused(tmp_path):
    source = vllm(tmp_path / "draft", mask={})
    assert refusal(convert, source, "vllm").where == "mask_hidden"


def test_a_mask_of_another_size_than_fcs_columns_is_refused(tmp_path):
    source = vllm(tmp_path / "draft", mask={"mask_hidden": random((1, 1, 2 * H), 1)})
    assert refusals(convert, source, "vllm") == {"shape-mismatch"}


def test_an_absent_norm_before_residual_is_false_in_vllm_too(tmp_path):
    source = speculators(tmp_path / "draft", norm_before_residual=ABSENT)
    assert described(source).residual == as_vllm_reads(source).draft.residual == "raw"
    assert "residual-default" not in codes(source)


def test_norm_output_changes_nothing_where_nothing_is_fed_back(tmp_path):
    source = speculators(tmp_path / "draft", norm_output=True)
    assert described(source).feedback == "pre-norm"
    assert "idle-norm-output" in codes(source)
    assert inspection.engines(loaded(source))["vllm"]["as_is"] == "same"


def test_vllm_loses_fc_norm_of_a_speculators_folder_and_runs_the_flat_one(tmp_path):
    norms = {f"fc_norm.{i}.weight": 1 + random((H,), 30 + i) for i in range(3)}
    tensors = drafts.speculators_tensors() | norms
    source = speculators(tmp_path / "draft", tensors, fc_norm=True)
    assert inspection.engines(loaded(source))["vllm"]["as_is"] == "does-not-load"
    flat = convert(source, "vllm").folder
    assert inspection.engines(loaded(flat))["vllm"]["as_is"] == "same"


@pytest.mark.parametrize("key", ["mask_token_id", "dspark_noise_token_id", "dflash_config"])
def test_a_mask_token_among_the_layers_keys_is_one_that_vllm_would_take(key, tmp_path):
    layer = {**LAYER, key: {"mask_token_id": 6} if key == "dflash_config" else 6}
    source = speculators(tmp_path / "draft", transformer_layer_config=layer)
    wrong = {item.code for item in as_vllm_reads(source).findings if item.severity == "error"}
    assert wrong == {"unsupported-key"}


# Conversions.


@pytest.mark.parametrize("make", [speculators, vllm])
@pytest.mark.parametrize("destination", ["speculators", "vllm"])
def test_a_conversion_is_the_same_network_as_both_engines_read_it(make, destination, tmp_path):
    source = make(tmp_path / "draft")
    result = convert(source, destination)
    assert inspection.compare(loaded(source), loaded(result.folder))["same"]
    assert inspection.engines(loaded(result.folder))["vllm"]["as_is"] == "same"
    assert same_tensors(result.tensors, drafts.load(source)[1])


def test_speculators_knows_it_by_its_own_names(tmp_path):
    config = convert(vllm(tmp_path / "draft"), "speculators").config
    assert config["architectures"] == ["PEagleDraftModel"]
    assert config["speculators_model_type"] == config["speculators_config"]["algorithm"] == "peagle"
    assert config["mask_token_id"] == 5


def test_its_trained_embeddings_are_kept_whatever_the_targets_are(tmp_path):
    target = drafts.target(tmp_path / "target", embeddings=random((V, H), 99))
    result = convert(speculators(tmp_path / "draft"), "vllm", target=target)
    assert np.array_equal(result.tensors["embed_tokens.weight"], random((V, H), 4))


def test_the_mask_follows_fcs_blocks_into_the_order_of_the_layers(tmp_path):
    result = convert(speculators(tmp_path / "draft"), "vllm", taps=(5, 1, 3))
    blocks = MASK["mask_hidden"].reshape(3, H)
    assert np.array_equal(result.tensors["mask_hidden"].reshape(3, H), blocks[[1, 2, 0]])


@pytest.mark.parametrize("destination", ["sglang", "universal"])
@pytest.mark.parametrize("make", [speculators, vllm])
def test_sglang_would_draft_token_by_token_and_is_refused(make, destination, tmp_path):
    source = make(tmp_path / "draft")
    assert "parallel-draft" in refusals(convert, source, destination)
    assert inspection.engines(loaded(source))["sglang"]["as_is"] != "same"


def test_a_folder_of_sglangs_own_class_is_another_network_there(tmp_path):
    source = vllm(tmp_path / "draft", architectures=["LlamaForCausalLMEagle3"])
    found = inspection.engines(loaded(source))["sglang"]
    assert found["as_is"] == "different"
    assert "parallel-draft" in {item["code"] for item in found["findings"]}


# Other trainers.


def test_specforges_class_is_one_that_vllm_refuses_and_is_renamed(tmp_path):
    source = vllm(
        tmp_path / "draft",
        architectures=["PEagleDraftModel"],
        eagle_aux_hidden_state_layer_ids=ABSENT,
    )
    assert inspection.engines(loaded(source))["vllm"]["as_is"] == "does-not-load"
    result = convert(source, "vllm")
    assert result.config["architectures"] == ["Eagle3LlamaForCausalLM"]
    assert inspection.engines(loaded(result.folder))["vllm"]["as_is"] == "same"


def test_specforges_export_without_its_mask_token_asks_for_it(tmp_path):
    source = vllm(tmp_path / "draft", architectures=["PEagleDraftModel"], ptd_token_id=ABSENT)
    assert refusals(convert, source, "vllm") == {"no-mask-token"}


def test_automodels_prefix_is_dropped_from_the_mask_too(tmp_path):
    tensors = drafts.speculators_tensors() | MASK
    own = ("lm_head.weight", "d2t", "t2d")
    renamed = {name if name in own else f"model.{name}": x for name, x in tensors.items()}
    source = drafts.vllm(
        tmp_path / "draft",
        renamed,
        architectures=["LlamaEagle3DraftModel"],
        parallel_drafting=True,
        mask_token_id=5,
    )
    result = convert(source, "vllm")
    assert np.array_equal(result.tensors["mask_hidden"], MASK["mask_hidden"])
    assert result.config["ptd_token_id"] == 5
    assert inspection.engines(loaded(result.folder))["vllm"]["as_is"] == "same"


@pytest.mark.parametrize(
    "changes",
    [
        {"eagle_config": {"parallel_draft_step": 4}},
        {"eagle_config": {"parallel_draft_heads_num_layers": 2}},
        {"architectures": ["DFlashDraftModel"]},
        {"architectures": ["MedusaModel"]},
    ],
)
def test_heads_of_another_kind_are_refused_by_name(changes, tmp_path):
    source = drafts.vllm(tmp_path / "draft", **changes)
    assert refusals(convert, source, "vllm", layout="vllm") == {"other-heads"}


def test_heads_of_another_kind_are_known_by_their_tensors(tmp_path):
    tensors = drafts.flat_tensors() | {"parallel_draft_heads.0.weight": random((H, H), 1)}
    source = drafts.vllm(tmp_path / "draft", tensors)
    assert refusals(convert, source, "vllm") == {"other-heads"}


@pytest.mark.parametrize("kind", ["dflash", "dspark", "mtp"])
def test_another_speculators_model_is_refused_by_name(kind, tmp_path):
    source = drafts.speculators(tmp_path / "draft", speculators_model_type=kind)
    assert refusals(convert, source, "vllm") == {"other-heads"}


# Serving.


def judged(arguments, config):
    return [item.code for item in command.judge(arguments, "vllm", config, "d")]


def flat_config():
    return {**drafts.VLLM_CONFIG, "ptd_token_id": 5}


def nested_config():
    return {
        **drafts.SPECULATORS_CONFIG,
        "speculators_model_type": "peagle",
        "mask_token_id": 5,
    }


@pytest.mark.parametrize("config", [flat_config(), nested_config()])
def test_the_command_sets_the_flag_that_the_folder_cannot(config):
    line = launch_line(config, "vllm", "d", "t", 4)
    assert '"parallel_drafting": true' in line
    assert judged(line, config) == []


@pytest.mark.parametrize("config", [flat_config(), nested_config()])
@pytest.mark.parametrize("flag", [{}, {"parallel_drafting": False}])
def test_a_command_without_the_flag_is_an_error(config, flag):
    settings = {"method": "eagle3", "model": "d", "num_speculative_tokens": 4, **flag}
    line = f"vllm serve t --speculative-config '{json.dumps(settings)}'"
    assert judged(line, config) == ["serve-parallel"]


def test_a_speculators_folder_that_is_served_itself_sets_it():
    assert judged("vllm serve d", nested_config()) == []


def test_vllms_second_runner_has_none():
    line = launch_line(flat_config(), "vllm", "d", "t", 4)
    assert judged(f"VLLM_USE_V2_MODEL_RUNNER=1 {line}", flat_config()) == ["serve-parallel"]


def test_what_speculators_own_class_wrote_is_read():
    draft = described(TRAINED)
    assert draft.parallel == ParallelDrafting(mask_token_id=4)
    assert draft.trains_embeddings
    assert inspection.engines(loaded(TRAINED))["vllm"]["as_is"] == "same"
