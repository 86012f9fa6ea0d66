"""What goes wrong in public with EAGLE-3 drafts: each kind converted exactly, refused by name, or said."""

import drafts
import numpy as np
import pytest
import torch
from conversions import codes, convert, described, loaded, refusal, refusals, same_tensors
from drafts import ABSENT, HEAD_DIM, HEADS, KV, D, H, V, random


def without(tensors, *names):
    return {name: value for name, value in tensors.items() if name not in names}


def prefixed(tensors):
    return {
        name if name in ("lm_head.weight", "d2t", "t2d") else f"model.{name}": value
        for name, value in tensors.items()
    }


# What the nearest converter gets wrong.


@pytest.mark.parametrize("destination", ["speculators", "sglang", "vllm", "universal"])
def test_a_model_prefix_is_understood_and_every_value_arrives(destination, tmp_path):
    plain = convert(drafts.sglang(tmp_path / "plain"), destination)
    tensors = prefixed(drafts.flat_tensors())
    result = convert(drafts.sglang(tmp_path / "prefixed", tensors), destination)
    stripped = {name.removeprefix("model."): value for name, value in result.tensors.items()}
    assert same_tensors(stripped, plain.tensors)


def test_vllm_knows_no_model_prefix_so_it_is_dropped_for_it(tmp_path):
    source = drafts.sglang(tmp_path / "draft", prefixed(drafts.flat_tensors()))
    assert not [name for name in convert(source, "vllm").tensors if name.startswith("model.")]


def test_a_missing_head_is_refused_without_a_target(tmp_path):
    source = drafts.sglang(tmp_path / "draft", without(drafts.flat_tensors(), "lm_head.weight"))
    assert refusal(convert, source, "vllm").code == "missing-head"


@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
def test_a_missing_head_is_gathered_from_the_target_by_row(layout, tmp_path):
    make = getattr(drafts, layout)
    tensors = drafts.speculators_tensors() if layout == "speculators" else drafts.flat_tensors()
    source = make(tmp_path / "draft", without(tensors, "lm_head.weight"))
    target = drafts.target(tmp_path / "target")
    result = convert(source, "vllm", layout=layout, target=target)
    head = drafts.load(target)[1]["lm_head.weight"]
    assert np.array_equal(result.tensors["lm_head.weight"], head[drafts.draft_ids()])
    assert {"target-head", "head-from-target"} <= result.codes


@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
def test_t2d_is_rebuilt_from_d2t_as_modelopt_exports_it(layout, tmp_path):
    tensors = drafts.speculators_tensors() if layout == "speculators" else drafts.flat_tensors()
    source = getattr(drafts, layout)(tmp_path / "draft", without(tensors, "t2d"))
    result = convert(source, "speculators", layout=layout)
    assert np.array_equal(np.flatnonzero(result.tensors["t2d"]), drafts.draft_ids())
    assert result.tensors["t2d"].dtype == np.bool_
    assert "map-rebuilt" in result.codes


def test_d2t_is_derived_from_t2d_where_the_trainer_sorts(tmp_path):
    source = drafts.speculators(tmp_path / "draft", without(drafts.speculators_tensors(), "d2t"))
    result = convert(source, "vllm", layout="speculators")
    assert np.array_equal(result.tensors["d2t"], drafts.maps()["d2t"])
    assert "map-derived" in result.codes


@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_d2t_is_not_guessed_from_t2d_where_it_may_be_unsorted(layout, tmp_path):
    source = getattr(drafts, layout)(tmp_path / "draft", without(drafts.flat_tensors(), "d2t"))
    assert refusal(convert, source, "vllm", layout=layout).code == "missing-map"


@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
def test_a_reduced_vocabulary_without_any_map_is_refused(layout, tmp_path):
    tensors = drafts.speculators_tensors() if layout == "speculators" else drafts.flat_tensors()
    source = getattr(drafts, layout)(tmp_path / "draft", without(tensors, "d2t", "t2d"))
    assert refusal(convert, source, "universal", layout=layout).code == "missing-map"


def test_nested_ids_and_the_residual_flag_survive(tmp_path):
    source = drafts.sglang(tmp_path / "draft", norm_before_residual=False)
    result = convert(source, "speculators")
    assert result.config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert result.config["norm_before_residual"] is False


def test_a_residual_flag_that_sglang_ignores_is_a_question(tmp_path):
    source = drafts.sglang(tmp_path / "draft", norm_before_residual=True)
    assert refusal(convert, source, "speculators").code == "residual-unread"
    result = convert(source, "speculators", sets={"residual": "normed"})
    assert result.config["norm_before_residual"] is True


def test_transformers_5_rope_and_dtype_survive(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 1e6}
    source = drafts.sglang(
        tmp_path / "draft", rope_theta=ABSENT, rope_parameters=rope, dtype="float32"
    )
    result = convert(source, "speculators")
    assert result.config["transformer_layer_config"]["rope_parameters"]["rope_theta"] == 1e6
    assert result.config["dtype"] == "float32"
    assert result.tensors["fc.weight"].dtype == np.float32


def test_two_layers_stay_two_and_their_norms_get_the_name_that_is_read(tmp_path):
    source = drafts.sglang(tmp_path / "draft", drafts.flat_tensors(2), num_hidden_layers=2)
    result = convert(source, "speculators")
    before = drafts.load(source)[1]["layers.1.hidden_norm.weight"]
    assert np.array_equal(result.tensors["layers.1.input_layernorm.weight"], before)
    assert "layers.1.hidden_norm.weight" not in result.tensors
    assert result.config["transformer_layer_config"]["num_hidden_layers"] == 2
    assert result.tensors["layers.1.self_attn.q_proj.weight"].shape == (HEADS * HEAD_DIM, H)
    assert result.tensors["layers.0.self_attn.q_proj.weight"].shape == (HEADS * HEAD_DIM, 2 * H)


def test_no_bias_is_invented(tmp_path):
    biases = {
        f"midlayer.self_attn.{part}_proj.bias": random((rows,), 9)
        for part, rows in {"q": HEADS * HEAD_DIM, "k": KV * HEAD_DIM, "v": KV * HEAD_DIM}.items()
    }
    source = drafts.vllm(tmp_path / "draft", drafts.flat_tensors() | biases, attention_bias=True)
    result = convert(source, "sglang")
    assert not [
        name
        for name in result.tensors
        if name.endswith("o_proj.bias") and result.tensors[name].any()
    ]


def test_four_taps_are_four_blocks(tmp_path):
    tensors = drafts.flat_tensors() | drafts.common_tensors(4)
    nested = {"eagle_aux_hidden_state_layer_ids": [-1, 0, 2, 4]}
    result = convert(drafts.sglang(tmp_path / "draft", tensors, eagle_config=nested), "vllm")
    assert result.config["eagle_aux_hidden_state_layer_ids"] == [0, 1, 3, 5]
    assert result.config["num_aux_hidden_states"] == 4


def test_no_map_no_head_and_a_null_draft_vocabulary_mean_the_targets_head(tmp_path):
    tensors = without(drafts.flat_tensors(), "lm_head.weight", "d2t", "t2d")
    source = drafts.sglang(tmp_path / "draft", tensors, draft_vocab_size=None)
    target = drafts.target(tmp_path / "target")
    assert described(source).vocabulary.head == "target"
    for destination in ("sglang", "vllm"):
        result = convert(source, destination)
        assert result.config["draft_vocab_size"] is None
        assert "lm_head.weight" not in result.tensors
    result = convert(source, "speculators", target=target)
    head = drafts.load(target)[1]["lm_head.weight"]
    assert np.array_equal(result.tensors["lm_head.weight"], head)
    assert result.config["draft_vocab_size"] == V


# Names and tensors.


@pytest.mark.parametrize(
    "name",
    sorted(set(drafts.flat_tensors(embeddings=False)) - {"lm_head.weight", "t2d", "d2t"}),
)
def test_any_missing_tensor_is_refused_by_its_name(name, tmp_path):
    source = drafts.sglang(tmp_path / "draft", without(drafts.flat_tensors(), name))
    finding = refusal(convert, source, "vllm")
    assert finding.code == "missing-tensor"
    assert finding.where == name.replace("midlayer.", "layers.0.")


def test_a_tensor_that_no_loader_knows_is_refused(tmp_path):
    tensors = drafts.flat_tensors() | {"adapter.weight": random((H, H), 1)}
    finding = refusal(convert, drafts.sglang(tmp_path / "draft", tensors), "vllm")
    assert (finding.code, finding.where) == ("unknown-tensor", "adapter.weight")


def test_a_tensor_of_another_shape_is_refused(tmp_path):
    tensors = drafts.flat_tensors() | {"norm.weight": random((H + 1,), 1)}
    finding = refusal(convert, drafts.sglang(tmp_path / "draft", tensors), "vllm")
    assert (finding.code, finding.where) == ("shape-mismatch", "norm.weight")


def test_two_spellings_of_one_tensor_are_refused(tmp_path):
    tensors = drafts.flat_tensors()
    tensors["model.norm.weight"] = tensors["norm.weight"]
    assert refusals(convert, drafts.sglang(tmp_path / "draft", tensors), "vllm") == {
        "duplicate-tensor"
    }


def test_what_every_reader_computes_or_borrows_is_left_out(tmp_path):
    tensors = drafts.speculators_tensors() | {
        "verifier_norm.weight": random((H,), 1),
        "verifier_lm_head.weight": random((D, H), 1),
        "layers.0.self_attn.rotary_emb.inv_freq": random((16,), 1),
    }
    result = convert(drafts.speculators(tmp_path / "draft", tensors), "vllm")
    assert "dropped-tensor" in result.codes
    assert result.tensors.keys() == drafts.speculators_tensors().keys()


def test_block_norms_under_their_old_names_get_the_new_ones(tmp_path):
    old = {
        f"aux_norm_{name}.weight": 1 + random((H,), i)
        for i, name in enumerate(("low", "mid", "high"))
    }
    source = drafts.sglang(tmp_path / "draft", drafts.flat_tensors() | old, use_aux_norm=True)
    result = convert(source, "vllm")
    for block, name in enumerate(old):
        assert np.array_equal(result.tensors[f"fc_norm.{block}.weight"], old[name])
    assert result.config["fc_norm"] is True
    assert "use_aux_norm" not in result.config


def test_old_block_norm_names_stay_where_sglang_reads_them(tmp_path):
    old = {
        f"aux_norm_{name}.weight": 1 + random((H,), i)
        for i, name in enumerate(("low", "mid", "high"))
    }
    source = drafts.sglang(tmp_path / "draft", drafts.flat_tensors() | old, use_aux_norm=True)
    assert set(old) <= convert(source, "sglang").tensors.keys()


def test_the_number_of_layers_follows_the_tensors(tmp_path):
    source = drafts.sglang(tmp_path / "draft", num_hidden_layers=48)
    result = convert(source, "vllm")
    assert result.config["num_hidden_layers"] == 1
    assert "layer-count" in result.codes


def test_more_layers_than_the_config_counts_is_a_question(tmp_path):
    source = drafts.sglang(tmp_path / "draft", drafts.flat_tensors(2), num_hidden_layers=1)
    assert "layer-count-short" in refusals(convert, source, "vllm")
    assert convert(source, "vllm", sets={"layers.count": 2}).config["num_hidden_layers"] == 2


def test_the_norm_of_a_later_layer_under_the_name_that_is_not_read_is_refused(tmp_path):
    tensors = drafts.flat_tensors(2, later_norm="input_layernorm")
    source = drafts.sglang(tmp_path / "draft", tensors, num_hidden_layers=2)
    assert "missing-norm" in refusals(convert, source, "vllm")


def test_a_second_spelling_of_a_later_norm_is_left_out(tmp_path):
    tensors = drafts.flat_tensors(2) | {"layers.1.input_layernorm.weight": random((H,), 5)}
    source = drafts.sglang(tmp_path / "draft", tensors, num_hidden_layers=2)
    result = convert(source, "vllm")
    assert np.array_equal(
        result.tensors["layers.1.input_layernorm.weight"], tensors["layers.1.hidden_norm.weight"]
    )
    assert "unused-norm" in result.codes


def test_fc_of_no_whole_number_of_blocks_is_refused(tmp_path):
    tensors = drafts.flat_tensors() | {"fc.weight": random((H, 3 * H + 1), 1)}
    assert refusals(convert, drafts.sglang(tmp_path / "draft", tensors), "vllm") == {"fc-width"}


def test_a_wider_target_without_its_width_in_the_config_is_refused(tmp_path):
    tensors = drafts.flat_tensors() | drafts.common_tensors(3, 128)
    assert "taps-mismatch" in refusals(convert, drafts.sglang(tmp_path / "draft", tensors), "vllm")


def test_a_draft_of_another_width_keeps_its_own_embeddings(tmp_path):
    tensors = (
        drafts.flat_tensors()
        | drafts.common_tensors(3, 128)
        | {"embed_tokens.weight": random((V, H), 4)}
    )
    source = drafts.sglang(tmp_path / "draft", tensors, target_hidden_size=128)
    result = convert(source, "vllm")
    assert result.config["target_hidden_size"] == 128
    assert np.array_equal(result.tensors["embed_tokens.weight"], tensors["embed_tokens.weight"])
    assert result.draft.vocabulary.embeddings == "own"


# Heads, vocabularies, targets.


def test_a_map_of_another_vocabulary_is_refused(tmp_path):
    tensors = drafts.flat_tensors() | {"d2t": np.zeros(D - 1, dtype=np.int64)}
    assert refusals(convert, drafts.sglang(tmp_path / "draft", tensors), "vllm") == {"map-size"}


def test_a_zero_map_is_right_between_equal_vocabularies_and_wrong_otherwise(tmp_path):
    full = without(drafts.flat_tensors(), "t2d") | {
        "lm_head.weight": random((V, H), 3),
        "d2t": np.zeros(V, dtype=np.int64),
    }
    result = convert(drafts.sglang(tmp_path / "full", full, draft_vocab_size=V), "vllm")
    assert "d2t" not in result.tensors
    assert "map-dropped" in result.codes
    reduced = without(drafts.flat_tensors(), "t2d") | {"d2t": np.zeros(D, dtype=np.int64)}
    assert refusals(convert, drafts.sglang(tmp_path / "reduced", reduced), "vllm") == {"zero-map"}


def test_a_vocabulary_of_the_first_tokens_is_a_warning(tmp_path):
    tensors = drafts.flat_tensors() | drafts.maps(np.arange(D))
    result = convert(drafts.sglang(tmp_path / "draft", tensors), "vllm")
    assert result.said("prefix-map").severity == "warning"


def test_the_map_in_a_side_file_is_taken(tmp_path):
    source = drafts.sglang(tmp_path / "draft", without(drafts.flat_tensors(), "d2t", "t2d"))
    torch.save(
        {name: torch.from_numpy(value) for name, value in drafts.maps().items()},
        source / "eagle_meta.pt",
    )
    result = convert(source, "vllm")
    assert np.array_equal(result.tensors["d2t"], drafts.maps()["d2t"])
    assert "map-in-side-file" in result.codes


@pytest.mark.parametrize(
    "changes",
    [{"hidden_size": 96}, {"vocab_size": V + 8}],
    ids=["another width", "another vocabulary"],
)
def test_a_target_that_does_not_fit_is_refused(changes, tmp_path):
    width, vocabulary = changes.get("hidden_size", H), changes.get("vocab_size", V)
    target = drafts.target(
        tmp_path / "target", embeddings=random((vocabulary, width), 4), **changes
    )
    source = drafts.sglang(tmp_path / "draft")
    assert "wrong-target" in refusals(convert, source, "vllm", target=target)


def test_of_a_vision_language_target_the_text_config_counts(tmp_path):
    text = {
        "hidden_size": H,
        "vocab_size": V,
        "num_hidden_layers": 6,
        "model_type": "llama",
        "max_position_embeddings": 4096,
    }
    target = drafts.target(
        tmp_path / "target",
        audio_config={"vocab_size": 7},
        text_config=text,
        vocab_size=ABSENT,
        hidden_size=ABSENT,
    )
    result = convert(drafts.sglang(tmp_path / "draft"), "vllm", target=target)
    assert result.draft.target.layers == 6


def test_kv_heads_unlike_the_targets_are_a_warning(tmp_path):
    target = drafts.target(tmp_path / "target", num_key_value_heads=1)
    assert "kv-shape" in convert(drafts.sglang(tmp_path / "draft"), "vllm", target=target).codes
    same = drafts.target(tmp_path / "same")
    assert "kv-shape" not in convert(drafts.sglang(tmp_path / "draft2"), "vllm", target=same).codes


@pytest.mark.parametrize("destination", ["sglang", "vllm", "speculators"])
def test_positions_below_the_targets_are_raised_when_it_is_given(destination, tmp_path):
    target = drafts.target(tmp_path / "target")
    result = convert(drafts.sglang(tmp_path / "draft"), destination, target=target)
    keys = result.config.get("transformer_layer_config", result.config)
    assert keys["max_position_embeddings"] == 4096
    assert "position-raised" in result.codes


def test_positions_stay_without_a_target_and_above_the_targets(tmp_path):
    source = drafts.sglang(tmp_path / "draft", max_position_embeddings=8192)
    assert convert(source, "vllm").config["max_position_embeddings"] == 8192
    target = drafts.target(tmp_path / "target")
    assert convert(source, "vllm", target=target).config["max_position_embeddings"] == 8192


# Flags and keys.


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_input_layernorm_in_first_layer", False),
        ("use_mtp_layernorm", True),
        ("final_logit_softcapping", 30.0),
        ("rope_is_neox_style", False),
        ("is_causal", False),
        ("next_layer_regular", False),
    ],
)
@pytest.mark.parametrize("nested", [False, True], ids=["top level", "eagle_config"])
def test_a_flag_that_no_description_carries_is_refused(key, value, nested, tmp_path):
    changes = {key: value}
    if nested:
        changes = {"eagle_config": {**drafts.SGLANG_CONFIG["eagle_config"], key: value}}
    source = drafts.sglang(tmp_path / "draft", **changes)
    # One of these keys is ModelOpt's, whose second norm is another matter.
    finding = refusal(convert, source, "vllm", allow=("double-norm",))
    assert finding.code == "unsupported-key"
    assert key in finding.where


def test_a_flag_at_its_neutral_value_passes(tmp_path):
    source = drafts.sglang(tmp_path / "draft", use_input_layernorm_in_first_layer=True)
    assert "unsupported-key" not in convert(source, "vllm").codes


def test_norm_output_is_carried_and_said_to_mean_something_else_in_specforge(tmp_path):
    # A residual that is said is no sign of SpecForge, which asks (`test_trainers.py`).
    source = drafts.sglang(tmp_path / "draft", norm_output=True, norm_before_residual=False)
    result = convert(source, "vllm")
    assert result.config["norm_output"] is True
    assert result.said("norm-output-meaning").severity == "warning"


@pytest.mark.parametrize("destination", ["sglang", "vllm", "universal", "speculators"])
def test_every_flag_is_written_also_where_it_equals_a_default(destination, tmp_path):
    config = convert(drafts.sglang(tmp_path / "draft"), destination).config
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        assert config[flag] is False
    assert config["target_hidden_size"] == H
    assert config["draft_vocab_size"] == D


@pytest.mark.parametrize("name", ["lm_head.weight_packed", "fc.weight_scale", "fc.qweight"])
def test_quantised_tensors_are_refused_by_name(name, tmp_path):
    tensors = drafts.flat_tensors() | {name: random((4,), 1)}
    assert refusals(convert, drafts.sglang(tmp_path / "draft", tensors), "vllm") == {
        "quantised-draft"
    }


def test_parts_of_latent_attention_belong_to_no_llama_draft(tmp_path):
    tensors = drafts.flat_tensors() | {
        "midlayer.self_attn.kv_a_proj_with_mqa.weight": random((4, 4), 1)
    }
    source = drafts.sglang(tmp_path / "draft", tensors)
    found = refusal(convert, source, "vllm")
    assert found.code == "unknown-tensor"
    assert "class" in found.message


def test_ids_at_the_top_level_also_size_fc_for_vllms_llama_class(tmp_path):
    tensors = drafts.speculators_tensors() | drafts.common_tensors(4)
    source = drafts.speculators(
        tmp_path / "draft", tensors, eagle_aux_hidden_state_layer_ids=[0, 1, 3, 5]
    )
    result = convert(source, "speculators")
    assert result.config["transformer_layer_config"]["num_aux_hidden_states"] == 4
    assert "fc-blocks" in codes(source, "vllm")
    assert "fc-blocks" not in codes(result.folder, "vllm")


def test_ids_are_written_where_each_engine_looks(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    assert convert(source, "sglang").config["eagle_config"] == {
        "use_aux_hidden_state": True,
        "eagle_aux_hidden_state_layer_ids": [0, 2, 4],
    }
    vllm = convert(source, "vllm").config
    assert vllm["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert vllm["eagle_config"] == {"layer_ids": [1, 3, 5]}
    universal = convert(source, "universal").config
    assert universal["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert universal["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 4]
    assert universal["eagle_config"]["layer_ids"] == [1, 3, 5]


def test_a_null_target_width_is_left_out_of_what_sglang_reads(tmp_path):
    source = drafts.sglang(tmp_path / "draft", target_hidden_size=None)
    result = convert(source, "sglang")
    assert result.config["target_hidden_size"] == H
    assert "null-target-width" in result.codes


def test_no_fc_states_are_read_and_an_unused_fc_is_left_out(tmp_path):
    nested = {"use_aux_hidden_state": False}
    source = drafts.sglang(tmp_path / "draft", eagle_config=nested)
    result = convert(source, "vllm", layout="sglang")
    assert result.draft.fc is None
    assert "fc.weight" not in result.tensors
    assert result.config["eagle_config"]["use_aux_hidden_state"] is False
    assert {"unused-fc", "no-fc-runner"} <= result.codes


def test_without_fc_a_target_of_another_width_is_no_input(tmp_path):
    source = drafts.sglang(
        tmp_path / "draft", eagle_config={"use_aux_hidden_state": False}, target_hidden_size=128
    )
    assert "fc-width" in refusals(loaded, source, "sglang")


def test_tokenizer_files_come_along_and_code_does_not(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    (source / "tokenizer.json").write_text("{}")
    (source / "config.py").write_text("raise SystemExit")
    result = convert(source, "vllm")
    assert (result.folder / "tokenizer.json").exists()
    assert not (result.folder / "config.py").exists()
    assert "auto_map" not in result.config
    assert result.said("code-left").where == "config.py, config.json: auto_map"


@pytest.mark.parametrize(
    "name",
    ["layers.0.mlp.router.weight", "encoder_norm.weight", "layers.0.self_attn.sink_norm.weight"],
)
def test_a_tensor_of_no_network_is_not_explained_by_a_flag(name, tmp_path):
    """``--set layers.mlp.bias=true`` does not make a router part of a draft."""
    tensors = drafts.speculators_tensors() | {name: random((H,), 1)}
    source = drafts.speculators(tmp_path / "draft", tensors)
    assert refusals(convert, source, "vllm") == {"unknown-tensor"}
