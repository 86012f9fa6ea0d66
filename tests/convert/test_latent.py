"""Drafts with latent attention (MLA), row by row of what SGLang's class and vLLM's make of a folder.

What they make of it was run in both classes (``tests/engines``); here it is arithmetic on configs and rows.
"""

import json
import math

import drafts
import latent_drafts as mla
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
from drafts import ABSENT, V, random
from latent_drafts import HEADS, KV_RANK, NOPE, ROPE, YARN

from eagle3_interop.convert.decide.inspection import engines
from eagle3_interop.schemas.draft import Mla, differences
from eagle3_interop.schemas.registry import library

IDS = "eagle_aux_hidden_state_layer_ids"
PLAIN = (NOPE + ROPE) ** -0.5


def m(factor, weight):
    """DeepSeek's yarn_get_mscale."""
    return 0.1 * weight * math.log(factor) + 1.0


# What is read.


def test_the_shapes_of_latent_attention_are_those_of_its_keys(tmp_path):
    found = described(mla.sglang(tmp_path / "draft"))
    assert found.layers.attention == Mla(
        heads=4,
        q_rank=20,
        kv_rank=28,
        nope_dim=6,
        rope_dim=8,
        v_dim=10,
        softmax_scale=0.267261241912,
    )


@pytest.mark.parametrize("layout", ["sglang", "vllm"])
@pytest.mark.parametrize(
    ("changes", "amplitude", "squared"),
    [
        ({}, 1.0, m(64, 1) ** 2),
        ({"mscale": ABSENT, "mscale_all_dim": ABSENT}, m(64, 1), 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 0}, m(64, 0.707), 1.0),
        ({"mscale": 0, "mscale_all_dim": 0}, 1.0, 1.0),
        ({"mscale": 1, "mscale_all_dim": 0.5}, m(64, 1) / m(64, 0.5), m(64, 0.5) ** 2),
    ],
)
def test_yarns_two_mscales_are_an_amplitude_and_a_factor_on_the_scores(
    layout, changes, amplitude, squared, tmp_path
):
    rope = {key: value for key, value in {**YARN, **changes}.items() if value is not ABSENT}
    found = described(getattr(mla, layout)(tmp_path / "draft", rope_scaling=rope))
    assert found.rope.parameters["attention_factor"] == pytest.approx(amplitude, rel=1e-11)
    assert found.layers.attention.softmax_scale == pytest.approx(PLAIN * squared, rel=1e-11)


def test_absent_betas_are_those_of_both_engines(tmp_path):
    rope = {key: value for key, value in YARN.items() if "beta" not in key}
    found = described(mla.sglang(tmp_path / "draft", rope_scaling=rope)).rope.parameters
    assert (found["beta_fast"], found["beta_slow"]) == (32, 1)


@pytest.mark.parametrize("key", ["apply_yarn_scaling", "apply_scale"])
def test_sglang_alone_can_be_told_to_leave_the_scores(key, tmp_path):
    rope = {**YARN, key: False}
    served = {
        layout: described(getattr(mla, layout)(tmp_path / layout, rope_scaling=rope))
        for layout in ("sglang", "vllm")
    }
    assert served["sglang"].layers.attention.softmax_scale == pytest.approx(PLAIN)
    assert served["vllm"].layers.attention.softmax_scale == pytest.approx(PLAIN * m(64, 1) ** 2)


def test_vllm_takes_an_attention_factor_of_one_for_a_rope_that_leaves_the_scores(tmp_path):
    rope = {**YARN, "attention_factor": 1.0}
    one = described(mla.vllm(tmp_path / "vllm", rope_scaling=rope))
    other = described(mla.sglang(tmp_path / "sglang", rope_scaling=rope))
    assert one.layers.attention.softmax_scale == pytest.approx(PLAIN)
    assert other.layers.attention.softmax_scale == pytest.approx(PLAIN * m(64, 1) ** 2)


def test_sglang_alone_multiplies_the_amplitude_by_attn_factor(tmp_path):
    rope = {**YARN, "attn_factor": 0.5}
    one = described(mla.sglang(tmp_path / "sglang", rope_scaling=rope)).rope.parameters
    other = described(mla.vllm(tmp_path / "vllm", rope_scaling=rope)).rope.parameters
    assert (one["attention_factor"], other["attention_factor"]) == (0.5, 1.0)


def test_frequencies_that_sglang_alone_sizes_otherwise_are_refused(tmp_path):
    source = mla.sglang(tmp_path / "draft", rope_scaling={**YARN, "extrapolation_factor": 0.5})
    assert refusal(loaded, source).code == "rope-differs"


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3"])
def test_a_scaled_rope_of_another_kind_is_asked_about_because_engines_compute_yarn(kind, tmp_path):
    source = mla.sglang(tmp_path / "draft", rope_scaling={**YARN, "type": kind})
    found = refusal(loaded, source)
    assert (found.code, found.settled_by) == ("latent-rope", "rope.scaling")
    assert described(source, sets={"rope.scaling": "yarn"}).rope.scaling == "yarn"


def test_deepseeks_own_name_of_yarn_is_yarn(tmp_path):
    source = mla.sglang(tmp_path / "draft", rope_scaling={**YARN, "type": "deepseek_yarn"})
    assert "latent-rope" not in codes(source)
    assert described(source).rope.scaling == "yarn"


@pytest.mark.parametrize("said", [ABSENT, True])
def test_pairs_are_neighbours_unless_a_config_says_otherwise(said, tmp_path):
    assert described(
        mla.sglang(tmp_path / "draft", rope_interleave=said)
    ).layers.attention.interleaved


@pytest.mark.parametrize("said", [False, None])
def test_sglang_rotates_halves_where_it_is_told_so(said, tmp_path):
    source = mla.sglang(tmp_path / "draft", rope_interleave=said)
    assert not described(source).layers.attention.interleaved


def test_vllm_rotates_neighbours_whatever_the_config_says_so_the_user_is_asked(tmp_path):
    found = refusal(loaded, mla.vllm(tmp_path / "draft", rope_interleave=False))
    assert (found.code, found.settled_by) == (
        "half-rotation-unread",
        "layers.attention.interleaved",
    )


def test_sglang_sizes_fc_by_ids_and_vllm_by_their_number(tmp_path):
    given = mla.tensors() | {"fc.weight": random((48, 2 * 48), 1)}
    nested = {"eagle_config": {IDS: [1, 4]}}
    right = mla.sglang(tmp_path / "right", given, **nested, num_aux_hidden_states=3)
    assert "fc-blocks" not in codes(right)
    by_top = mla.sglang(tmp_path / "top", given, eagle_config=ABSENT, **{IDS: [2, 5]})
    assert "fc-blocks" in codes(by_top, "vllm")  # it looks for num_aux_hidden_states


def test_an_absent_draft_vocabulary_is_the_targets_head_in_sglang_and_asked_about(tmp_path):
    given = mla.tensors() | {"lm_head.weight": random((V, 48), 3)}
    del given["d2t"], given["t2d"]
    source = mla.sglang(tmp_path / "draft", given, draft_vocab_size=ABSENT)
    assert refusals(loaded, source) == {"unused-head", "unused-tensor"}
    written = convert(source, "sglang", sets={"vocabulary.head": "own"})
    assert written.config["draft_vocab_size"] == V


def test_a_head_of_fewer_rows_says_the_size_that_the_config_forgot(tmp_path):
    source = mla.sglang(tmp_path / "draft", draft_vocab_size=ABSENT)
    assert "head-unread" in codes(source)
    assert engines(loaded(source))["sglang"]["as_is"] == "different"
    assert convert(source, "sglang").config["draft_vocab_size"] == 120


def test_a_prefix_that_both_classes_pass_over_or_fail_on_is_understood_and_taken_off(tmp_path):
    given = {
        name if name in ("lm_head.weight", "d2t", "t2d") else f"model.{name}": value
        for name, value in mla.tensors().items()
    }
    source = mla.sglang(tmp_path / "draft", given)
    assert "foreign-name-dropped" in codes(source)
    for destination in ("sglang", "vllm"):
        written = convert(source, destination, target=mla.target(tmp_path / f"t-{destination}"))
        assert not [name for name in written.tensors if name.startswith("model.")]


def test_a_nonzero_bias_is_none_that_a_class_knows(tmp_path):
    given = mla.tensors() | {"layers.0.self_attn.q_a_proj.bias": random((20,), 1)}
    assert refusals(loaded, mla.sglang(tmp_path / "draft", given)) == {"unknown-tensor"}


def test_keys_of_experts_are_carried_without_a_remark_because_the_mlp_is_dense(tmp_path):
    source = mla.vllm(tmp_path / "draft", n_routed_experts=384, first_k_dense_replace=1)
    assert "unknown-keys" not in codes(source)
    written = convert(source, "vllm").config
    assert (written["n_routed_experts"], written["first_k_dense_replace"]) == (384, 1)


def test_a_key_by_which_vllm_builds_an_indexer_is_refused(tmp_path):
    assert refusal(loaded, mla.vllm(tmp_path / "draft", index_topk=2048)).code == "unsupported-key"


# What is written.


@pytest.mark.parametrize("destination", ["sglang", "vllm", "universal"])
def test_ids_stand_in_all_three_places_each_in_its_own_convention(destination, tmp_path):
    target = mla.target(tmp_path / "target")
    written = convert(mla.vllm(tmp_path / "draft"), destination, target=target).config
    assert written[IDS] == written["eagle_config"]["layer_ids"] == [2, 4, 5]
    assert written["eagle_config"][IDS] == [1, 3, 4]
    assert written["num_aux_hidden_states"] == 3


def test_ids_of_a_kimi_target_that_do_not_begin_with_two_are_taps_in_sglang(tmp_path):
    target = mla.target(tmp_path / "target")
    written = convert(mla.vllm(tmp_path / "draft", **{IDS: [3, 4, 5]}), "sglang", target=target)
    assert written.config["eagle_config"][IDS] == [3, 4, 5]


@pytest.mark.parametrize("model_type", ["deepseek_v3", "kimi_k2", "deepseek_v2"])
def test_the_model_type_is_one_that_vllm_leaves_alone(model_type, tmp_path):
    source = mla.sglang(tmp_path / "draft", model_type=model_type)
    for destination in ("sglang", "vllm", "universal"):
        assert convert(source, destination).config["model_type"] == "kimi_k2"


def test_a_model_type_that_vllm_takes_for_mtp_does_not_start_there(tmp_path):
    source = mla.vllm(tmp_path / "draft", model_type="deepseek_v3")
    assert engines(loaded(source))["vllm"]["as_is"] == "does-not-load"
    assert engines(loaded(mla.vllm(tmp_path / "other")))["vllm"]["as_is"] == "same"


@pytest.mark.parametrize("destination", ["vllm", "universal"])
def test_rows_of_two_halves_become_neighbours_for_vllm(destination, tmp_path):
    given = mla.tensors()
    source = mla.sglang(tmp_path / "draft", given, rope_interleave=False)
    written = convert(source, destination)
    assert written.config["rope_interleave"] is True
    q, kv = "layers.0.self_attn.q_b_proj.weight", "layers.0.self_attn.kv_a_proj_with_mqa.weight"
    for head in range(HEADS):
        first = head * (NOPE + ROPE)
        np.testing.assert_array_equal(
            written.tensors[q][first : first + NOPE], given[q][first : first + NOPE]
        )
        rotated = slice(first + NOPE, first + NOPE + ROPE)
        np.testing.assert_array_equal(written.tensors[q][rotated], mla.paired(given[q][rotated]))
    np.testing.assert_array_equal(written.tensors[kv][:KV_RANK], given[kv][:KV_RANK])
    np.testing.assert_array_equal(written.tensors[kv][KV_RANK:], mla.paired(given[kv][KV_RANK:]))
    others = given.keys() - {q, kv}
    assert same_tensors({k: given[k] for k in others}, {k: written.tensors[k] for k in others})


def test_rotated_rows_give_the_scores_of_the_halves(tmp_path):
    given = mla.tensors()
    written = convert(mla.sglang(tmp_path / "draft", given, rope_interleave=False), "vllm").tensors
    angles = 7 * 50000.0 ** (-2 * np.arange(ROPE // 2) / ROPE)

    def halves(x):
        a, b = np.split(x, 2)
        return np.concatenate(
            [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
        )

    def pairs(x):
        a, b = x[0::2], x[1::2]
        return np.stack(
            [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], 1
        ).ravel()

    def scores(tensors, turn):
        q = tensors["layers.0.self_attn.q_b_proj.weight"][NOPE : NOPE + ROPE] @ random((20,), 8)
        k = tensors["layers.0.self_attn.kv_a_proj_with_mqa.weight"][KV_RANK:] @ random((96,), 9)
        return turn(q.astype(np.float64)) @ k

    assert scores(written, pairs) == pytest.approx(scores(given, halves), rel=1e-9)


def test_halves_stay_halves_for_sglang(tmp_path):
    given = mla.tensors()
    written = convert(mla.sglang(tmp_path / "draft", given, rope_interleave=False), "sglang")
    assert written.config["rope_interleave"] is False
    assert same_tensors(given, written.tensors)


@pytest.mark.parametrize(
    ("changes", "mscales"),
    [
        ({}, (1.0, 1.0)),
        ({"mscale": 0.707, "mscale_all_dim": 0.0}, (0.707, 0.0)),
        ({"mscale": ABSENT, "mscale_all_dim": ABSENT}, (1.0, 0.0)),
        ({"apply_scale": False}, (0.0, 0.0)),
        ({"attn_factor": 1 / m(64, 1)}, (0.0, 1.0)),
    ],
)
def test_mscales_are_written_that_give_what_was_served(changes, mscales, tmp_path):
    rope = {key: value for key, value in {**YARN, **changes}.items() if value is not ABSENT}
    source = mla.sglang(tmp_path / "draft", rope_scaling=rope)
    written = convert(source, "vllm")
    found = written.config["rope_parameters"]
    assert (found["mscale"], found["mscale_all_dim"]) == pytest.approx(mscales, abs=1e-9)
    assert written.config["rope_scaling"] == found
    assert not {"attention_factor", "attn_factor", "apply_scale"} & found.keys()
    meant, read = described(source, "sglang"), described(written.folder, "vllm")
    assert not differences(meant, read, tables=False)


@pytest.mark.parametrize("destination", ["sglang", "vllm", "universal"])
@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_a_conversion_keeps_every_tensor_and_the_network(layout, destination, tmp_path):
    given = mla.tensors()
    source = getattr(mla, layout)(tmp_path / "draft", given, rope_scaling=YARN)
    written = convert(source, destination)
    assert same_tensors(given, written.tensors)
    one, other = loaded(source), loaded(written.folder)
    assert not differences(one.reading.draft, other.reading.draft, tables=False)


def test_both_readers_find_the_network_of_a_universal_folder(tmp_path):
    target = mla.target(tmp_path / "target")
    source = mla.vllm(tmp_path / "draft", rope_scaling=YARN, fc_norm=False)
    written = convert(source, "universal", target=target)
    assert "universal-of-two" in written.codes
    read = [described(written.folder, layout, target=target) for layout in ("sglang", "vllm")]
    assert not differences(*read)


def test_a_draft_with_latent_attention_has_no_form_for_speculators(tmp_path):
    found = refusal(convert, mla.vllm(tmp_path / "draft"), "speculators")
    assert found.code == "mla-draft"
    assert "speculators" in found.message


def test_a_speculators_folder_with_latent_attention_is_refused_by_name(tmp_path):
    given = drafts.speculators_tensors() | mla.layer("layers.0.")
    assert refusal(loaded, drafts.speculators(tmp_path / "draft", given)).code == "mla-draft"


@pytest.mark.parametrize("destination", ["sglang", "vllm", "universal"])
def test_queries_without_a_latent_run_nowhere(destination, tmp_path):
    source = mla.vllm(tmp_path / "draft", mla.tensors(q_rank=None), q_lora_rank=None)
    assert refusals(convert, source, destination) == {"no-query-latent"}


def test_a_norm_over_what_fc_takes_runs_nowhere(tmp_path):
    given = mla.tensors() | {"input_norm.weight": random((144,), 3)}
    source = mla.vllm(tmp_path / "draft", given, norm_before_fc=True)
    assert refusals(loaded, source) == {"unused-tensor"}
    for destination in ("sglang", "vllm"):
        assert refusals(convert, source, destination, sets={"fc.input_norm": True}) == {
            "input-norm"
        }


def test_a_head_that_sglang_would_leave_random_is_the_targets_by_null(tmp_path):
    given = mla.tensors(embeddings=False)
    for name in ("lm_head.weight", "d2t", "t2d"):
        del given[name]
    source = mla.vllm(tmp_path / "draft", given, draft_vocab_size=V)
    written = convert(source, "sglang")
    assert written.config["draft_vocab_size"] is None
    assert "lm_head.weight" not in written.tensors


def test_a_map_of_the_full_vocabulary_that_vllm_fails_on_is_dropped(tmp_path):
    given = mla.tensors() | {
        "lm_head.weight": random((V, 48), 3),
        "d2t": np.zeros(V, np.int64),
        "t2d": np.ones(V, np.bool_),
    }
    source = mla.sglang(tmp_path / "draft", given, draft_vocab_size=V)
    assert not {"d2t", "t2d"} & convert(source, "vllm").tensors.keys()


def test_the_rotated_pair_survives_taps_in_another_order(tmp_path):
    given = mla.tensors()
    source = mla.sglang(tmp_path / "draft", given, rope_interleave=False)
    written = convert(source, "vllm", taps=(5, 2, 4))
    blocks = np.split(given["fc.weight"], 3, axis=1)
    np.testing.assert_array_equal(
        written.tensors["fc.weight"], np.concatenate([blocks[1], blocks[2], blocks[0]], axis=1)
    )


def test_pages_of_latent_attention_are_those_of_a_kimi_target(tmp_path):
    target = mla.target(tmp_path / "target")
    source = mla.vllm(tmp_path / "draft")
    assert "kv-shape" not in convert(source, "vllm", target=target).codes
    other = mla.target(tmp_path / "other", kv_lora_rank=512)
    assert "kv-shape" in convert(source, "vllm", target=other).codes


def test_tap_zero_of_a_kimi_target_is_refused_for_vllm_by_name(tmp_path):
    target = mla.target(tmp_path / "target")
    source = mla.vllm(tmp_path / "draft", **{IDS: [0, 3, 5]})
    assert refusals(convert, source, "vllm", target=target) == {"embedding-tap"}
    assert convert(source, "sglang", target=target).config["eagle_config"][IDS] == [0, 3, 5]


@pytest.mark.parametrize("said", [0, 3])
def test_sglangs_cache_has_a_layer_for_each_of_the_drafts(said, tmp_path):
    source = mla.sglang(tmp_path / "draft", num_nextn_predict_layers=said)
    assert convert(source, "sglang").config["num_nextn_predict_layers"] == 1
    two = mla.vllm(tmp_path / "two", mla.tensors(layers=2), num_hidden_layers=2)
    assert convert(two, "universal").config["num_nextn_predict_layers"] == 2


# With the plugin.

BEYOND_STOCK = {
    "residual": ({"norm_before_residual": True}, {}),
    "layers.count": ({"num_hidden_layers": 2}, {"layers": 2}),
}


@pytest.mark.parametrize("destination", ["sglang", "universal"])
@pytest.mark.parametrize("path", BEYOND_STOCK)
def test_what_sglangs_class_lacks_is_the_plugins_under_vllms_other_name(
    path, destination, tmp_path
):
    keys, made = BEYOND_STOCK[path]
    source = mla.vllm(tmp_path / "draft", mla.tensors(**made), **keys)
    written = convert(source, destination)
    assert written.config["architectures"] == ["Eagle3DeepseekV3ForCausalLM"]
    assert path in written.said("needs-sglang-plugin").message
    assert not differences(described(source), described(written.folder, "vllm"), tables=False)


@pytest.mark.parametrize("path", BEYOND_STOCK)
def test_stock_refuses_what_sglangs_class_lacks(path, tmp_path):
    keys, made = BEYOND_STOCK[path]
    source = mla.vllm(tmp_path / "draft", mla.tensors(**made), **keys)
    assert refusals(convert, source, "sglang", stock=True) <= {"residual-normed", "several-layers"}


def test_embeddings_of_its_own_are_the_plugins(tmp_path):
    given = mla.tensors() | {"embed_tokens.weight": random((V, 48), 99)}
    target = mla.target(tmp_path / "target")
    written = convert(mla.vllm(tmp_path / "draft", given), "sglang", target=target)
    assert written.config["architectures"] == ["Eagle3DeepseekV3ForCausalLM"]
    assert "vocabulary.embeddings" in written.said("needs-sglang-plugin").message


def test_what_sglangs_class_computes_stays_stock(tmp_path):
    for destination in ("sglang", "vllm", "universal"):
        written = convert(mla.vllm(tmp_path / destination), destination)
        assert written.config["architectures"] == ["Eagle3DeepseekV2ForCausalLM"]
        assert "needs-sglang-plugin" not in written.codes


def test_stock_sglang_refuses_loudly_what_vllm_gets_of_it(tmp_path):
    source = mla.vllm(tmp_path / "draft", norm_before_residual=True)
    written = convert(source, "vllm").config
    assert written["architectures"] == ["Eagle3DeepseekV3ForCausalLM"]  # unknown to stock SGLang


def test_halves_are_paired_for_the_plugin_too(tmp_path):
    source = mla.sglang(tmp_path / "draft", rope_interleave=False)
    written = convert(source, "sglang", sets={"residual": "normed"})
    assert written.config["architectures"] == ["Eagle3DeepseekV3ForCausalLM"]
    assert "rotation-paired" in written.codes


def test_the_launch_command_brings_the_plugin(tmp_path):
    source = mla.vllm(tmp_path / "draft", norm_before_residual=True)
    config = convert(source, "sglang").config
    assert "SGLANG_EXTERNAL_MODEL_PACKAGE=" in launch_line(config, "sglang", "d", "t", 3)


# Targets.


def kimi_k25(folder):
    """Kimi-K2.5: the language model inside the wrapper's config."""
    inner = json.loads((mla.target(folder.parent / "inner") / "config.json").read_text())
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": inner,
        "vision_config": {},
    }
    tables = {
        "language_model.model.embed_tokens.weight": random((V, 48), 4),
        "language_model.lm_head.weight": random((V, 48), 5),
    }
    return drafts.save(folder, config, tables)


def test_kimi_k25_is_read_through_its_wrapper(tmp_path):
    target = kimi_k25(tmp_path / "target")
    source = mla.vllm(tmp_path / "draft", **{IDS: [3, 4, 5]})
    written = convert(source, "sglang", target=target)
    assert written.draft.target.layers == 8
    assert written.config["eagle_config"][IDS] == [3, 4, 5]
    assert "embeddings-equal" in written.codes


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [
        ("DeepseekV2ForCausalLM", "deepseek_v2"),
        ("DeepseekV3ForCausalLM", "kimi_k2"),
        ("DeepseekV32ForCausalLM", "deepseek_v32"),
        ("GlmMoeDsaForCausalLM", "glm_moe_dsa"),
        ("Glm4MoeLiteForCausalLM", "glm4_moe_lite"),
        ("MistralLarge3ForCausalLM", "mistral3"),
    ],
)
@pytest.mark.parametrize(("taps", "ids"), [([2, 4, 5], [1, 3, 4]), ([3, 4, 5], [3, 4, 5])])
def test_the_familys_targets_count_ids_by_the_first(architecture, model_type, taps, ids, tmp_path):
    target = mla.target(tmp_path / "target", architectures=[architecture], model_type=model_type)
    source = mla.vllm(tmp_path / "draft", **{IDS: taps})
    assert convert(source, "sglang", target=target).config["eagle_config"][IDS] == ids


def test_the_same_ids_in_both_places_are_a_kimi_exporters(tmp_path):
    source = mla.vllm(tmp_path / "draft", eagle_config={IDS: [2, 4, 5]})
    assert described(source).taps == (2, 4, 5)
    assert "ids-disagree" not in codes(source)


def test_the_same_ids_in_both_places_of_a_llama_draft_are_asked_about(tmp_path):
    source = drafts.vllm(tmp_path / "draft", eagle_config={IDS: [1, 3, 5]})
    assert "ids-disagree" in refusals(loaded, source)


@pytest.mark.parametrize(("layout", "name"), [("universal", "vllm"), ("sglang", "sglang")])
def test_the_hub_lists_it_under_an_engine_that_loads_it(layout, name):
    assert library(layout, mla.VLLM_CONFIG) == name


def test_sglangs_plugin_rotates_no_halves(tmp_path):
    """The name of its class, which vLLM knows too, stands for neighbours."""
    changes = {"architectures": ["Eagle3DeepseekV3ForCausalLM"], "rope_interleave": False}
    source = mla.sglang(tmp_path / "draft", **changes)
    assert refusals(loaded, source, "sglang") == {"half-rotation"}
    settled = described(source, "sglang", sets={"layers.attention.interleaved": True})
    assert settled.layers.attention.interleaved
