"""Sliding windows: whose config class fills them in, and the target's, which vLLM hands on to a draft."""

import drafts
import pytest
from conversions import codes, convert, described, loaded, refusal, refusals
from drafts import ABSENT

from eagle3_interop.convert.decide import inspection

WIDE = 2**24
SLIDING = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
OWN = {
    "layer_types": ["sliding_attention"],
    "sliding_window": 64,
    "use_sliding_window": True,
}


def target(folder, **changes):
    return drafts.target(folder, **{**SLIDING, "sliding_window": 16, **changes})


def of(tmp_path, **changes):
    """The window of a target with this config."""
    source, model = drafts.vllm(tmp_path / "draft"), drafts.target(tmp_path / "target", **changes)
    return loaded(source, target=model).facts.window


@pytest.mark.parametrize("rule", ["qwen2", "qwen3"])
def test_absent_layer_types_are_filled_in_by_the_configs_class_and_not_the_drafts(rule, tmp_path):
    # Both engines load the config by its model_type, whatever class computes the draft.
    keys = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}
    source = drafts.vllm(tmp_path / "draft", model_type=rule, **keys)
    assert described(source, "vllm").layers.windows == (64,)


def test_a_window_that_no_context_reaches_is_none(tmp_path):
    source = drafts.vllm(tmp_path / "draft", **{**OWN, "sliding_window": WIDE})
    assert described(source).layers.windows == (None,)


# The rule of vLLM's engine/arg_utils.py: the window of a target whose layers all slide.


def test_a_target_that_slides_everywhere_has_a_window(tmp_path):
    assert of(tmp_path, **SLIDING, sliding_window=16) == 16


def test_mistrals_class_slides_where_nothing_is_said(tmp_path):
    assert of(tmp_path, **SLIDING) == 4096


def test_a_null_window_is_none(tmp_path):
    assert of(tmp_path, **SLIDING, sliding_window=None) is None


def test_a_target_with_layers_of_two_kinds_has_none(tmp_path):
    types = ["sliding_attention", "full_attention"] * 3
    assert of(tmp_path, sliding_window=16, layer_types=types) is None


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_nor_has_one_whose_class_mixes_them(kind, tmp_path):
    assert of(tmp_path, model_type=kind, sliding_window=16) is None


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, None),
        ({"use_sliding_window": False, "max_window_layers": 0}, None),
        ({"use_sliding_window": True}, None),
        ({"use_sliding_window": True, "max_window_layers": 0}, 16),
    ],
)
def test_qwen_switches_it_on_and_counts_layers(keys, found, tmp_path):
    assert of(tmp_path, model_type="qwen3", sliding_window=16, **keys) == found


# What vLLM makes of it: attention.py gives the target's window to every layer that has none.


@pytest.mark.parametrize("layout", ["speculators", "sglang"])
def test_vllm_gets_a_window_wider_than_any_context_instead(layout, tmp_path):
    source = getattr(drafts, layout)(tmp_path / "draft")
    result = convert(source, "vllm", target=target(tmp_path / "target"))
    assert result.config["layer_types"] == ["sliding_attention"]
    assert result.config["sliding_window"] == WIDE
    assert result.said("window-written").severity == "note"
    assert result.draft.layers.windows == (None,)


def test_so_does_a_folder_for_all_three_which_stock_sglang_still_runs(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    result = convert(source, "universal", target=target(tmp_path / "target"))
    assert result.config["sliding_window"] == WIDE
    assert result.config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert described(result.folder, "sglang").layers.windows == (None,)


def test_without_such_a_target_nothing_is_written(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    result = convert(source, "vllm", target=drafts.target(tmp_path / "target"))
    assert "sliding_window" not in result.config


def test_a_window_beyond_the_targets_positions_changes_nothing(tmp_path):
    model = target(tmp_path / "target", sliding_window=4096)
    result = convert(drafts.speculators(tmp_path / "draft"), "vllm", target=model)
    assert "sliding_window" not in result.config


def test_a_draft_that_slides_everywhere_keeps_its_own(tmp_path):
    source = drafts.vllm(tmp_path / "draft", **OWN)
    result = convert(source, "vllm", target=target(tmp_path / "target"))
    assert result.config["sliding_window"] == 64


def test_a_draft_with_layers_of_both_kinds_has_no_room_for_a_second_window(tmp_path):
    keys = {**OWN, "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2}
    tensors = drafts.flat_tensors(2, later_norm="input_layernorm")
    source = drafts.vllm(tmp_path / "draft", tensors, **keys)
    model = target(tmp_path / "target")
    assert refusals(convert, source, "vllm", target=model) == {"mixed-windows"}
    assert convert(source, "vllm", target=drafts.target(tmp_path / "other"))


@pytest.mark.parametrize("make", [drafts.vllm, drafts.speculators])
def test_a_folder_that_vllm_would_run_with_the_targets_window_is_said(make, tmp_path):
    source, model = make(tmp_path / "draft"), target(tmp_path / "target")
    assert "target-window" in codes(source, "vllm", target=model)
    assert "target-window" not in codes(source, "vllm")
    right = convert(source, "vllm", layout="vllm", target=model)
    assert "target-window" not in right.codes
    assert "target-window" not in codes(right.folder, "vllm", target=model)


def test_the_users_word_on_windows_settles_the_targets(tmp_path):
    source, model = drafts.vllm(tmp_path / "draft"), target(tmp_path / "target")
    assert "target-window" not in codes(source, "vllm", target=model, sets={"layers.windows": 8})


# Keys by which vLLM or SGLang would compute otherwise, and that no description carries.


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rotary_pct", 0.5),
        ("rotary_emb_fraction", 0.5),
        ("xdrope_section", [4, 6, 6]),
        ("mrope_section", [4, 6, 6]),
        ("dual_chunk_attention_config", {"chunk_size": 8}),
    ],
)
def test_keys_that_another_engine_would_heed_are_refused(key, value, tmp_path):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], key: value}
    source = drafts.speculators(tmp_path / "draft", transformer_layer_config=layer)
    assert refusals(convert, source, "vllm") == {"unsupported-key"}
    assert refusals(convert, drafts.vllm(tmp_path / "flat", **{key: value}), "sglang") == {
        "unsupported-key"
    }


@pytest.mark.parametrize(
    "key", ["model_max_length", "num_kv_heads", "target_layer_ids", "n_predict"]
)
def test_keys_of_other_kinds_of_models_are_left_out(key, tmp_path):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], key: 512}
    result = convert(drafts.speculators(tmp_path / "draft", transformer_layer_config=layer), "vllm")
    assert key not in result.config
    assert key in result.said("left-keys").message


@pytest.mark.parametrize(
    ("key", "value"),
    [("target_layer_ids", [0, 2, 4]), ("dflash_config", {"target_layer_ids": [0, 2, 4]})],
)
def test_ids_where_vllm_looks_for_other_drafts_are_a_question(key, value, tmp_path):
    absent = {"eagle_aux_hidden_state_layer_ids": ABSENT, key: value}
    source = drafts.vllm(tmp_path / "draft", **absent)
    assert "nested-ids" in codes(source, "vllm")
    assert "nested-ids" not in codes(source, "vllm", taps=(1, 3, 5))
    assert "nested-ids" not in codes(drafts.vllm(tmp_path / "listed", **{key: value}), "vllm")


@pytest.mark.parametrize(
    ("key", "value"), [("eagle_aux_hidden_state_layer_ids", [0, 2, 4]), ("target_hidden_size", 96)]
)
def test_vllm_finds_them_among_the_decoders_keys_where_speculators_has_none(key, value, tmp_path):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], key: value}
    keys = {"transformer_layer_config": layer, key: None}
    source = drafts.speculators(tmp_path / "draft", **keys)
    assert "unsupported-key" in refusals(loaded, source, "vllm")


# Classes whose defaults are not known here.


def test_a_strange_model_type_may_leave_nothing_to_its_class(tmp_path):
    source = drafts.sglang(tmp_path / "draft", model_type="smollm3")
    assert refusals(loaded, source) == {"class-defaults-unknown"}
    whole = drafts.sglang(tmp_path / "whole", model_type="smollm3", attention_bias=False)
    assert described(whole).layers.norm_eps == 1e-5


def test_sglang_sizes_the_mlp_of_a_llama_4_draft_by_another_key(tmp_path):
    keys = {"model_type": "llama4_text", "attention_bias": False, "intermediate_size": 999}
    source = drafts.sglang(tmp_path / "draft", intermediate_size_mlp=drafts.WIDTH, **keys)
    assert described(source).layers.mlp.width == drafts.WIDTH
    assert convert(source, "sglang").config["intermediate_size"] == drafts.WIDTH


def test_it_is_not_served_as_it_is(tmp_path):
    source, model = drafts.vllm(tmp_path / "draft"), target(tmp_path / "target")
    whole = loaded(source, target=model)
    assert inspection.engines(whole)["vllm"]["as_is"] == "different"
    finding = refusal(inspection.require_same, whole, "vllm")
    assert finding.code == "serve-folder"
    assert "window of 16" in finding.message
    assert inspection.engines(loaded(source))["vllm"]["as_is"] == "same"


# Positions, as SGLang counts a context: the factor of a linear rope times what is declared.

LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}


def test_positions_are_raised_to_what_a_target_with_a_linear_rope_reaches(tmp_path):
    model = drafts.target(tmp_path / "target", max_position_embeddings=2048, rope_parameters=LINEAR)
    result = convert(drafts.sglang(tmp_path / "draft"), "sglang", target=model)
    assert result.config["max_position_embeddings"] == 8192
    assert "position-raised" in result.codes


def test_a_draft_with_a_linear_rope_reaches_as_far_itself(tmp_path):
    source = drafts.sglang(tmp_path / "draft", rope_theta=ABSENT, rope_parameters=LINEAR)
    model = drafts.target(tmp_path / "target", max_position_embeddings=8192)
    result = convert(source, "sglang", target=model)
    assert result.config["max_position_embeddings"] == 2048


def test_a_null_in_a_nested_text_config_is_what_the_whole_model_says(tmp_path):
    inner = {"sliding_window": None, "max_position_embeddings": None, "model_type": "mistral"}
    model = drafts.target(tmp_path / "target", text_config=inner, max_position_embeddings=512)
    facts = loaded(drafts.vllm(tmp_path / "draft"), target=model).facts
    assert facts.max_position == 512
    assert facts.window is None  # null there, absent outside: no window, and not Mistral's default
