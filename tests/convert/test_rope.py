"""Rotary embeddings: every form that configs have, and what frameworks compute differently."""

import math

import drafts
import pytest
from conversions import codes, convert, described, refusal, refusals
from drafts import ABSENT
from transformers import LlamaConfig

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 512,
    "truncate": False,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 16,
    "long_factor": [2.0] * 16,
    "original_max_position_embeddings": 512,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


def flat(folder, **changes):
    return drafts.vllm(folder, **changes)


def speculators(folder, **changes):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], **changes}
    return drafts.speculators(folder, transformer_layer_config=layer)


@pytest.mark.parametrize("destination", ["sglang", "vllm", "universal"])
def test_both_forms_are_written(destination, tmp_path):
    config = convert(flat(tmp_path / "draft", rope_theta=1e6), destination).config
    assert config["rope_theta"] == 1e6
    assert config["rope_scaling"] is None
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e6}


@pytest.mark.parametrize("scaling", [LLAMA3, YARN], ids=["llama3", "yarn"])
@pytest.mark.parametrize("destination", ["sglang", "vllm", "speculators", "universal"])
def test_a_scaling_survives_with_all_its_numbers(scaling, destination, tmp_path):
    result = convert(flat(tmp_path / "draft", rope_theta=5e5, rope_scaling=scaling), destination)
    keys = result.config.get("transformer_layer_config", result.config)
    assert keys["rope_parameters"] == {**scaling, "rope_theta": 5e5}
    assert keys["rope_scaling"] == keys["rope_parameters"]


@pytest.mark.parametrize("scaling", [None, LLAMA3, YARN], ids=["plain", "llama3", "yarn"])
def test_transformers_resolves_what_is_written_as_what_was_read(scaling, tmp_path):
    before = {**drafts.VLLM_CONFIG, "rope_theta": 5e5, "rope_scaling": scaling}
    source = flat(tmp_path / "draft", rope_theta=5e5, rope_scaling=scaling)
    after = convert(source, "vllm").config
    assert LlamaConfig(**after).rope_parameters == LlamaConfig(**before).rope_parameters


def test_a_named_default_is_none(tmp_path):
    source = flat(tmp_path / "draft", rope_scaling={"rope_type": "default"})
    assert described(source).rope.scaling is None


def test_an_old_type_key_is_read(tmp_path):
    source = flat(tmp_path / "draft", rope_scaling={"type": "linear", "factor": 4.0})
    assert described(source).rope.scaling == "linear"
    assert described(source).rope.parameters == {"factor": 4.0}


def test_theta_inside_rope_parameters_counts(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 1e6}
    source = flat(tmp_path / "draft", rope_theta=ABSENT, rope_parameters=rope)
    assert described(source).rope.theta == 1e6


@pytest.mark.parametrize("changes", [
    {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    {"rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
], ids=["two thetas", "two kinds"])  # fmt: skip
def test_two_forms_that_differ_are_said_and_resolved_as_transformers_does(changes, tmp_path):
    source = flat(tmp_path / "draft", **changes)
    assert "rope-disagrees" in codes(source)
    expected = LlamaConfig(**{**drafts.VLLM_CONFIG, **changes}).rope_parameters
    assert described(source).rope.theta == expected["rope_theta"]
    assert (described(source).rope.scaling or "default") == expected["rope_type"]


@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_no_theta_anywhere_is_transformers_default(layout, tmp_path):
    source = getattr(drafts, layout)(tmp_path / "draft", rope_theta=ABSENT)
    assert described(source, layout).rope.theta == 10000.0
    assert "class-default" in codes(source, layout)


def test_vllm_takes_another_default_base_for_a_speculators_qwen3(tmp_path):
    # vLLM hands speculators' layer keys over without a config class; its qwen3 then takes 1e6.
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], "model_type": "qwen3"}
    del layer["rope_parameters"]
    norms = {f"layers.0.self_attn.{part}_norm.weight": drafts.random((32,), 1) for part in "qk"}
    tensors = drafts.speculators_tensors() | norms
    source = drafts.speculators(tmp_path / "draft", tensors, transformer_layer_config=layer)
    assert described(source, "vllm").rope.theta == 1e6
    assert described(source, "speculators").rope.theta == 10000.0


@pytest.mark.parametrize(
    "rope", [{"rope_type": "default"}, {"rope_type": "linear", "factor": 8.0}], ids=str
)
def test_but_not_where_there_is_a_rope_dict_which_transformers_completes_first(rope, tmp_path):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], "model_type": "qwen3"}
    norms = {f"layers.0.self_attn.{part}_norm.weight": drafts.random((32,), 1) for part in "qk"}
    source = drafts.speculators(
        tmp_path / "draft",
        drafts.speculators_tensors() | norms,
        transformer_layer_config={**layer, "rope_parameters": rope},
    )
    assert described(source, "vllm").rope.theta == 10000.0


def test_the_user_can_say_the_base_that_was_trained(tmp_path):
    result = convert(flat(tmp_path / "draft", rope_theta=1e6), "sglang", sets={"rope.theta": 1e4})
    assert result.config["rope_parameters"]["rope_theta"] == 1e4
    assert "set-by-user" in result.codes


NESTED = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def test_rope_nested_by_attention_type_is_a_question_with_its_choices(tmp_path):
    source = speculators(tmp_path / "draft", rope_parameters=NESTED)
    finding = refusal(convert, source, "vllm")
    assert finding.code == "nested-rope"
    assert "1000000.0 for full_attention, 10000.0 for sliding_attention" in finding.message
    result = convert(source, "vllm", sets={"rope.theta": 1e4})
    assert result.config["rope_parameters"]["rope_theta"] == 1e4


def test_nested_ropes_that_differ_in_more_need_more_words(tmp_path):
    both = {**NESTED, "full_attention": {**LLAMA3, "rope_theta": 1e6}}
    source = speculators(tmp_path / "draft", rope_parameters=both)
    assert refusals(convert, source, "vllm", sets={"rope.theta": 1e4}) == {"nested-rope"}
    plain = {"rope.theta": 1e4, "rope.scaling": None, "rope.parameters": {}}
    assert convert(source, "vllm", sets=plain).config["rope_scaling"] is None


def test_nested_ropes_that_agree_are_one(tmp_path):
    rope = {key: {"rope_type": "default", "rope_theta": 1e6} for key in NESTED}
    assert described(speculators(tmp_path / "draft", rope_parameters=rope)).rope.theta == 1e6


def test_a_rope_for_full_attention_alone_is_not_what_the_library_takes(tmp_path):
    source = speculators(
        tmp_path / "draft", rope_parameters={"full_attention": NESTED["full_attention"]}
    )
    assert refusals(convert, source, "vllm") == {"nested-rope"}


def test_an_entry_that_is_a_dict_does_not_make_a_rope_nested(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 5e5, "extra": {"a": 1}}
    assert described(speculators(tmp_path / "draft", rope_parameters=rope)).rope.theta == 5e5


def test_an_unknown_kind_is_refused(tmp_path):
    source = flat(tmp_path / "draft", rope_scaling={"rope_type": "proportional", "factor": 2.0})
    assert refusals(convert, source, "vllm") == {"unknown-rope"}


@pytest.mark.parametrize("key", ["factor", "original_max_position_embeddings"])
def test_a_scaling_by_nothing_is_refused(key, tmp_path):
    source = flat(tmp_path / "draft", rope_scaling={**YARN, key: 0})
    assert refusals(convert, source, "vllm") == {"bad-config"}


def test_a_scaling_without_its_numbers_is_refused(tmp_path):
    source = flat(tmp_path / "draft", rope_scaling={"rope_type": "yarn"})
    assert refusals(convert, source, "vllm") == {"bad-config"}


@pytest.mark.parametrize("scaling", [DYNAMIC, LONG], ids=["dynamic", "longrope"])
@pytest.mark.parametrize("destination", ["sglang", "speculators", "universal"])
def test_scalings_that_follow_the_length_do_not_cross(scaling, destination, tmp_path):
    source = flat(tmp_path / "draft", rope_scaling=scaling)
    assert refusals(convert, source, destination) == {"rope-differs"}


@pytest.mark.parametrize("scaling", [DYNAMIC, LONG], ids=["dynamic", "longrope"])
def test_scalings_that_follow_the_length_keep_their_positions(scaling, tmp_path):
    target = drafts.target(tmp_path / "target", max_position_embeddings=8192)
    result = convert(flat(tmp_path / "draft", rope_scaling=scaling), "vllm", target=target)
    assert result.config["max_position_embeddings"] == 2048
    assert "position-kept" in result.codes


def test_the_trained_length_of_a_scaling_survives_raised_positions(tmp_path):
    scaling = {
        key: value for key, value in YARN.items() if key != "original_max_position_embeddings"
    }
    target = drafts.target(tmp_path / "target")
    result = convert(flat(tmp_path / "draft", rope_scaling=scaling), "vllm", target=target)
    assert result.config["max_position_embeddings"] == 4096
    assert result.config["rope_parameters"]["original_max_position_embeddings"] == 2048


@pytest.mark.parametrize("destination", ["sglang", "universal"])
def test_an_attention_factor_crosses_to_sglang_only_where_it_says_nothing_new(
    destination, tmp_path
):
    usual = {**YARN, "attention_factor": 0.1 * math.log(32.0) + 1.0}
    assert convert(flat(tmp_path / "usual", rope_scaling=usual), destination)
    odd = flat(tmp_path / "odd", rope_scaling={**YARN, "attention_factor": 1.0})
    assert refusals(convert, odd, destination) == {"rope-differs"}
    assert convert(odd, "speculators")


def test_an_attention_factor_beside_mscales_is_compared_with_what_they_make(tmp_path):
    log = math.log(32.0)
    scales = {"mscale": 1.0, "mscale_all_dim": 0.5}
    factor = (0.1 * log + 1) / (0.05 * log + 1)
    source = flat(tmp_path / "draft", rope_scaling={**YARN, **scales, "attention_factor": factor})
    assert convert(source, "sglang").draft.rope.parameters["mscale_all_dim"] == 0.5


def test_an_mscale_of_zero_is_a_number_to_sglang_alone(tmp_path):
    # factor 32: 0.1 * 0.7 * log 32 + 1 in SGLang, 0.1 * log 32 + 1 elsewhere.
    source = flat(tmp_path / "draft", rope_scaling={**YARN, "mscale": 0.7, "mscale_all_dim": 0})
    assert refusals(convert, source, "sglang") == {"rope-differs"}
    assert convert(source, "speculators")
    usual = flat(tmp_path / "usual", rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 0})
    assert convert(usual, "sglang")


def test_a_null_in_a_rope_dict_is_left_out_for_sglang_fails_on_it(tmp_path):
    source = flat(tmp_path / "draft", rope_scaling={**YARN, "beta_fast": None})
    assert convert(source, "sglang").config["rope_scaling"].keys() == {*YARN, "rope_theta"}


@pytest.mark.parametrize("key", ["rope_dim", "use_fope", "xdrope_section"])
def test_rotations_that_only_one_engine_has_are_refused(key, tmp_path):
    source = flat(tmp_path / "draft", rope_scaling={"rope_type": "default", key: 16})
    assert refusals(convert, source, "vllm") == {"unknown-rope"}


@pytest.mark.parametrize("key", ["attn_factor", "extrapolation_factor"])
def test_yarn_factors_that_sglang_alone_reads_do_not_cross(key, tmp_path):
    source = drafts.sglang(tmp_path / "draft", rope_scaling={**YARN, key: 2.0})
    assert refusals(convert, source, "vllm") == {"rope-differs"}
    assert convert(source, "sglang").config["rope_scaling"][key] == 2.0


def test_a_part_of_each_head_counts_at_the_top_level_alone_in_sglang(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    changes = {"rope_theta": ABSENT, "rope_parameters": rope}
    assert described(drafts.vllm(tmp_path / "vllm", **changes)).rope.partial == 0.5
    assert described(drafts.sglang(tmp_path / "sglang", **changes)).rope.partial == 1.0
    both = convert(drafts.vllm(tmp_path / "draft", **changes), "sglang").config
    assert both["partial_rotary_factor"] == both["rope_parameters"]["partial_rotary_factor"] == 0.5


def test_the_library_rotates_whole_heads_whatever_the_config_says(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    source = speculators(tmp_path / "draft", rope_parameters=rope)
    assert described(source, "speculators").rope.partial == 1.0
    assert described(source, "vllm").rope.partial == 0.5
    assert "partial-rotary-unread" in codes(source, "speculators")


def test_but_a_scaled_rotation_is_of_a_part_of_each_head_there_too(tmp_path):
    # transformers sizes the frequencies of every scaled rope by the factor, and the trainer rotates by them.
    source = speculators(tmp_path / "draft", rope_parameters={**YARN, "partial_rotary_factor": 0.5})
    assert refusals(convert, source, "vllm") == {"partial-rotary"}
    told = convert(source, "vllm", sets={"rope.partial": 0.5})
    assert told.draft.rope.partial == 0.5


MROPE = {
    "rope_type": "default",
    "rope_theta": 1e6,
    "mrope_section": [4, 6, 6],
    "mrope_interleaved": True,
}


@pytest.mark.parametrize("destination", ["sglang", "vllm"])
def test_multimodal_rope_goes_to_engines_whole(destination, tmp_path):
    source = flat(tmp_path / "draft", rope_theta=ABSENT, rope_scaling=MROPE)
    assert convert(source, destination).config["rope_scaling"] == MROPE


def test_sglang_forgets_a_scaling_beside_multimodal_rope(tmp_path):
    rope = {**YARN, "mrope_section": [4, 6, 6]}
    source = flat(tmp_path / "draft", rope_theta=ABSENT, rope_scaling=rope)
    assert refusals(convert, source, "sglang") == {"scaled-mrope"}
    assert convert(source, "sglang", sets={"rope.mrope_sections": None})
    assert convert(source, "vllm").config["rope_scaling"]["rope_type"] == "yarn"
    assert refusals(described, drafts.sglang(tmp_path / "other", rope_scaling=rope)) == {
        "scaled-mrope"
    }


def test_multimodal_rope_can_be_dropped_for_a_draft_of_text(tmp_path):
    source = flat(tmp_path / "draft", rope_theta=ABSENT, rope_scaling=MROPE)
    assert refusals(convert, source, "speculators") == {"mrope"}
    plain = {"rope.mrope_sections": None, "rope.parameters": {}}
    keys = convert(source, "speculators", sets=plain).config["transformer_layer_config"]
    assert keys["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e6}


def test_the_library_reads_no_multimodal_rope(tmp_path):
    source = speculators(tmp_path / "draft", rope_parameters=MROPE)
    assert described(source, "speculators").rope.mrope_sections is None
    assert described(source, "vllm").rope.mrope_sections == (4, 6, 6)
    assert "mrope-unread" in codes(source, "speculators")


def test_numbers_that_a_plain_rotation_does_not_use_are_left_out_and_said(tmp_path):
    source = flat(tmp_path / "draft", rope_scaling={"rope_type": "default", "factor": 1.0})
    assert "idle-rope-keys" in codes(source)
    assert described(source).rope.parameters == {}
