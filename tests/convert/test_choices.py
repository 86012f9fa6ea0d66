"""Choices that are made once: which layout it is, absent flags, verifiers, unknown keys, overrides."""

from pathlib import Path

import drafts
import numpy as np
import pytest
from conversions import codes, convert, described, loaded, refusal, refusals
from drafts import ABSENT, HEAD_DIM, HEADS, KV, D, H, random

from eagle3_interop.convert.decide.overrides import parse_sets, parse_taps
from eagle3_interop.schemas.findings import Usage

# Which layout.


def test_a_source_of_another_layout_is_refused_with_the_right_command(tmp_path):
    finding = refusal(loaded, drafts.sglang(tmp_path / "draft"), "speculators")
    assert finding.code == "wrong-layout"
    assert "sglang-to-" in finding.fix


@pytest.mark.parametrize("layout", ["speculators", "sglang", "vllm"])
def test_auto_says_what_it_recognised_and_by_which_sign(layout, tmp_path):
    reading = loaded(getattr(drafts, layout)(tmp_path / "draft"))
    assert reading.layout == layout
    (said,) = [item for item in reading.reading.findings if item.code == "recognised"]
    assert layout in said.message


def test_a_folder_without_any_sign_is_refused(tmp_path):
    source = drafts.sglang(tmp_path / "draft", architectures=["BertModel"], eagle_config=None)
    assert refusals(loaded, source) == {"not-recognised"}


@pytest.mark.parametrize("architectures", [None, [], [None], [3], "LlamaForCausalLMEagle3"])
def test_odd_architectures_do_not_crash(architectures, tmp_path):
    source = drafts.sglang(tmp_path / "draft", architectures=architectures, eagle_config=None)
    assert refusals(loaded, source) & {"not-recognised", "bad-config"}


@pytest.mark.parametrize(
    ("architecture", "layout"),
    [
        ("LlamaForCausalLMEagle3", "sglang"),
        ("Eagle3LlamaForCausalLM", "vllm"),
        ("LlamaForCausalLM", "vllm"),
        ("LlamaEagle3DraftModel", "vllm"),
    ],
)
def test_without_ids_the_class_tells(architecture, layout, tmp_path):
    source = drafts.sglang(tmp_path / "draft", architectures=[architecture], eagle_config=ABSENT)
    assert loaded(source).layout == layout


def test_nemos_class_is_none_of_vllms(tmp_path):
    source = drafts.sglang(
        tmp_path / "draft", architectures=["LlamaEagle3DraftModel"], eagle_config=ABSENT
    )
    assert "unknown-architecture" in codes(source)
    assert convert(source, "vllm").config["architectures"] == ["Eagle3LlamaForCausalLM"]


# Draft and target in each other's place.


def test_a_model_given_as_a_draft_is_told_so_and_not_tensor_by_tensor(tmp_path):
    target = drafts.target(tmp_path / "target")
    for source, layout in ((target, "auto"), (target, "vllm")):
        finding = refusal(loaded, source, layout)
        assert finding.code == "not-a-draft"
        assert "--target" in finding.fix


@pytest.mark.parametrize("layout", ["speculators", "sglang", "vllm"])
def test_a_draft_given_as_a_target_is_told_so(layout, tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    other = getattr(drafts, layout)(tmp_path / "other")
    assert refusals(convert, source, "vllm", target=other) == {"not-a-target"}


# Absent norm_before_residual.


@pytest.mark.parametrize(
    ("make", "layout", "residual"),
    [
        (drafts.speculators, "speculators", "raw"),
        (drafts.speculators, "vllm", "normed"),
        (drafts.vllm, "vllm", "raw"),
        (drafts.sglang, "sglang", "raw"),
    ],
)
def test_an_absent_residual_flag_is_what_its_reader_takes_and_is_said(
    make, layout, residual, tmp_path
):
    source = make(tmp_path / "draft", norm_before_residual=ABSENT)
    assert described(source, layout).residual == residual
    assert "residual-default" in codes(source, layout)
    assert convert(source, "vllm", layout=layout).config["norm_before_residual"] is (
        residual == "normed"
    )


# The verifier.

PLACE = ("speculators_config", "verifier", "name_or_path")


def verifier(result):
    return result.config[PLACE[0]][PLACE[1]][PLACE[2]]


def test_the_verifier_is_what_target_name_says(tmp_path):
    result = convert(drafts.sglang(tmp_path / "draft"), "speculators", target_name="org/name")
    assert verifier(result) == "org/name"
    assert "verifier-name" not in result.codes


def test_else_it_is_the_target_as_given_with_a_warning_for_a_path(tmp_path):
    target = drafts.target(tmp_path / "target")
    result = convert(
        drafts.sglang(tmp_path / "draft"), "speculators", target=target, target_name=None
    )
    assert verifier(result) == str(target)
    assert result.said("verifier-name").severity == "warning"
    assert result.config["speculators_config"]["verifier"]["architectures"] == ["LlamaForCausalLM"]


def test_a_relative_folder_is_never_written_as_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drafts.target(tmp_path / "data" / "target")
    drafts.sglang(tmp_path / "data" / "draft")
    options = {"target": "data/target", "target_name": None}
    result = convert(Path("data/draft"), "speculators", **options)
    assert verifier(result) == "./data/target"
    assert result.said("verifier-name").severity == "warning"
    told = result.conversion.plan.provenance
    assert told["target"]["path"] == told["draft"]["target"]["name"] == "./data/target"
    assert told["source"]["path"] == "./data/draft"


def test_else_it_is_what_the_source_itself_named(tmp_path):
    result = convert(drafts.speculators(tmp_path / "draft"), "universal", target_name=None)
    assert verifier(result) == "org/target"
    assert "verifier-name" not in result.codes


def test_a_path_that_the_source_named_is_a_warning(tmp_path):
    settings = drafts.SPECULATORS_CONFIG["speculators_config"]
    named = {**settings, "verifier": {"name_or_path": "tests/data/target", "architectures": []}}
    source = drafts.speculators(tmp_path / "draft", speculators_config=named)
    assert "verifier-name" in convert(source, "speculators", target_name=None).codes


@pytest.mark.parametrize("destination", ["speculators", "universal"])
def test_without_any_name_it_is_refused(destination, tmp_path):
    source = drafts.sglang(tmp_path / "draft")
    assert refusals(convert, source, destination, target_name=None) == {"no-verifier"}


def test_speculative_tokens_are_carried_over_else_three_and_said(tmp_path):
    def tokens(result):
        return result.config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]

    kept = convert(drafts.speculators(tmp_path / "one"), "universal")
    assert tokens(kept) == 4
    assert "speculative-tokens" not in kept.codes
    chosen = convert(drafts.vllm(tmp_path / "two"), "speculators")
    assert tokens(chosen) == 3
    assert "speculative-tokens" in chosen.codes


# Keys that nobody here knows, and keys of others.


@pytest.mark.parametrize("destination", ["sglang", "vllm", "universal", "speculators"])
def test_unknown_keys_are_kept_where_they_stood_and_reported(destination, tmp_path):
    nested = {**drafts.SGLANG_CONFIG["eagle_config"], "trained_by": "someone"}
    source = drafts.sglang(tmp_path / "draft", training_run=7, eagle_config=nested)
    result = convert(source, destination)
    assert result.config["training_run"] == 7
    assert result.config["eagle_config"]["trained_by"] == "someone"
    assert {"training_run", "trained_by"} <= set(
        result.said("unknown-keys").message.replace(",", "").rstrip(".").split()
    )


def test_unknown_keys_of_the_layers_stay_with_the_layers(tmp_path):
    layer = {
        **drafts.SPECULATORS_CONFIG["transformer_layer_config"],
        "made_on": "a Tuesday",
        "bos_token_id": 1,
    }
    source = drafts.speculators(tmp_path / "draft", transformer_layer_config=layer)
    kept = convert(source, "speculators").config["transformer_layer_config"]
    assert (kept["made_on"], kept["bos_token_id"]) == ("a Tuesday", 1)
    flat = convert(source, "vllm").config
    assert (flat["made_on"], flat["bos_token_id"]) == ("a Tuesday", 1)
    assert "transformer_layer_config" not in flat


@pytest.mark.parametrize("layout", ["vllm", "sglang", "speculators"])
@pytest.mark.parametrize("destination", ["vllm", "sglang", "speculators"])
def test_a_universal_folder_becomes_one_layout_again(layout, destination, tmp_path):
    source = convert(drafts.speculators(tmp_path / "draft"), "universal").folder
    result = convert(source, destination, layout=layout)
    flat = "num_hidden_layers" in result.config
    own = "speculators_model_type" in result.config
    assert (flat, own) == ((False, True) if destination == "speculators" else (True, False))
    assert "unread-keys" in result.codes


def test_a_universal_folder_whose_halves_differ_is_refused(tmp_path):
    from eagle3_interop.schemas.engines import universal

    source = convert(drafts.speculators(tmp_path / "draft"), "universal").folder
    checkpoint = loaded(source).checkpoint
    checkpoint.config["norm_output"] = True
    assert universal.read(checkpoint, None).draft.feedback == "post-norm"
    checkpoint.config["rope_parameters"]["rope_theta"] = 5.0
    checkpoint.config["rope_theta"] = 5.0
    found = {item.code for item in universal.read(checkpoint, None).findings}
    assert "readers-disagree" in found


@pytest.mark.parametrize(
    ("key", "value"), [("logit_scale", 0.5), ("bias", True), ("qkv_bias", True)]
)
def test_vllm_reads_keys_of_the_layers_that_the_library_does_not(key, value, tmp_path):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], key: value}
    source = drafts.speculators(tmp_path / "draft", transformer_layer_config=layer)
    assert refusals(loaded, source, "vllm") == {"unsupported-key"}
    result = convert(source, "vllm", layout="speculators")
    assert result.config.get(key) in (None, False, *((True,) if key == "qkv_bias" else ()))


def test_a_dtype_that_the_weights_do_not_have_is_said(tmp_path):
    source = drafts.vllm(tmp_path / "draft", torch_dtype="bfloat16")
    result = convert(source, "vllm")
    assert result.config["dtype"] == "float32"
    assert result.said("dtype-disagrees").severity == "warning"


# Biases.


def biases(prefix, **rows):
    return {
        f"{prefix}self_attn.{part}_proj.bias": random((size,), 9) for part, size in rows.items()
    }


QKV = {"q": HEADS * HEAD_DIM, "k": KV * HEAD_DIM, "v": KV * HEAD_DIM}


@pytest.mark.parametrize("destination", ["speculators", "sglang", "vllm"])
def test_zero_biases_are_left_out(destination, tmp_path):
    zeros = {name: value * 0 for name, value in biases("midlayer.", **QKV).items()}
    zeros["fc.bias"] = random((H,), 1) * 0
    source = drafts.sglang(tmp_path / "draft", drafts.flat_tensors() | zeros, bias=True)
    result = convert(source, destination)
    assert not [
        name for name in result.tensors if name.endswith("bias") and result.tensors[name].any()
    ]
    assert {"zero-bias"} <= result.codes


def test_sglang_drops_q_k_v_biases_so_they_are_a_question(tmp_path):
    tensors = drafts.flat_tensors() | biases("midlayer.", **QKV)
    source = drafts.sglang(tmp_path / "draft", tensors, attention_bias=True)
    assert refusals(convert, source, "vllm") == {"unused-tensor"}
    result = convert(source, "vllm", sets={"layers.attention.qkv_bias": True})
    assert result.config["attention_bias"] is True
    assert not result.tensors["midlayer.self_attn.o_proj.bias"].any()
    assert "zero-bias-added" in result.codes


def test_some_of_a_group_of_biases_is_refused(tmp_path):
    tensors = drafts.flat_tensors() | biases("midlayer.", q=HEADS * HEAD_DIM)
    source = drafts.vllm(tmp_path / "draft", tensors, attention_bias=True)
    assert refusals(convert, source, "vllm") == {"missing-tensor"}


def test_biases_that_the_config_switches_on_and_the_file_lacks_are_said(tmp_path):
    assert "absent-bias" in codes(drafts.vllm(tmp_path / "draft", attention_bias=True))


def test_vllm_creates_biases_by_one_flag_so_absent_ones_are_written_as_zeros(tmp_path):
    tensors = drafts.flat_tensors() | biases("midlayer.", o=H)
    source = drafts.sglang(tmp_path / "draft", tensors, attention_bias=True)
    result = convert(source, "vllm")
    for part, rows in QKV.items():
        bias = result.tensors[f"midlayer.self_attn.{part}_proj.bias"]
        assert bias.shape == (rows,)
        assert not bias.any()


def test_a_universal_folder_holds_the_zeros_that_any_of_its_readers_needs(tmp_path):
    # attention_bias creates q, k, v and o in llama classes, o alone in SGLang's own.
    tensors = drafts.flat_tensors() | biases("midlayer.", o=H)
    source = drafts.sglang(tmp_path / "draft", tensors, attention_bias=True)
    result = convert(source, "universal")
    made = {f"layers.0.self_attn.{part}_proj.bias" for part in "qkv"}
    assert all(not result.tensors[name].any() for name in made)
    assert result.tensors["layers.0.self_attn.o_proj.bias"].any()


def test_swish_is_silu(tmp_path):
    assert (
        convert(drafts.vllm(tmp_path / "draft", hidden_act="swish"), "sglang").config["hidden_act"]
        == "silu"
    )


@pytest.mark.parametrize("changes", [{"norm_before_fc": True}, {"fc_norm": True}])
def test_a_flag_without_its_norm_is_refused(changes, tmp_path):
    assert refusals(convert, drafts.vllm(tmp_path / "draft", **changes), "vllm") == {
        "missing-tensor"
    }


@pytest.mark.parametrize(
    ("name", "path"),
    [("input_norm.weight", "fc.input_norm"), ("fc_norm.0.weight", "fc.block_norms")],
)
def test_a_norm_without_its_flag_is_a_question(name, path, tmp_path):
    tensors = drafts.flat_tensors() | {name: random((3 * H if "input" in name else H,), 1)}
    finding = refusal(convert, drafts.vllm(tmp_path / "draft", tensors), "vllm")
    assert finding.code == "unused-tensor"
    assert f"--set {path}=true" in finding.fix


def test_a_nested_null_flag_is_false_to_the_engines(tmp_path):
    nested = {**drafts.SGLANG_CONFIG["eagle_config"], "norm_before_fc": None}
    tensors = drafts.flat_tensors() | {"input_norm.weight": random((3 * H,), 1)}
    source = drafts.sglang(tmp_path / "draft", tensors, norm_before_fc=True, eagle_config=nested)
    assert refusals(convert, source, "vllm") == {"unused-tensor"}


def test_weights_of_an_odd_dtype_are_refused(tmp_path):
    tensors = {
        name: value.astype("float64") if value.dtype == "float32" else value
        for name, value in drafts.flat_tensors().items()
    }
    assert refusals(convert, drafts.sglang(tmp_path / "draft", tensors), "vllm") == {
        "unknown-dtype"
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["chunked_attention"]},
        {"layer_types": []},
        {"num_attention_heads": 5},
        {"hidden_size": "64"},
        {"rms_norm_eps": float("inf")},
        {"num_hidden_layers": 0},
        {"attention_bias": "true"},
        {"draft_vocab_size": -1},
    ],
)
def test_impossible_values_are_refused_by_their_key(changes, tmp_path):
    (key,) = changes
    source = drafts.vllm(tmp_path / "draft", **changes)
    if key == "rms_norm_eps":
        assert refusals(loaded, source, "vllm")
        return
    assert refusals(loaded, source, "vllm") == {"bad-config"}


# SGLang's own gaps, read as it reads them.


def test_a_window_that_sglang_does_not_read_is_a_question(tmp_path):
    slides = {"sliding_window": 64, "layer_types": ["sliding_attention"]}
    source = drafts.sglang(tmp_path / "draft", **slides)
    assert refusals(convert, source, "vllm") == {"window-unread"}
    assert convert(source, "vllm", sets={"layers.windows": None}).draft.layers.windows == (None,)
    assert convert(source, "vllm", sets={"layers.windows": 64}).config["sliding_window"] == 64


def test_a_logit_scale_that_sglang_does_not_read_is_said(tmp_path):
    source = drafts.sglang(tmp_path / "draft", logit_scale=0.5)
    assert "logit-scale-unread" in codes(source)
    assert described(source).vocabulary.logit_scale == 1.0
    assert convert(source, "vllm").config.get("logit_scale", 1.0) == 1.0


def test_an_absent_draft_vocabulary_is_taken_from_the_head(tmp_path):
    source = drafts.sglang(tmp_path / "draft", draft_vocab_size=ABSENT)
    assert described(source).vocabulary.draft_size == D
    assert "no-draft-vocabulary-size" in codes(source)


def test_vllms_qwen3_sizes_fc_by_another_key_than_its_llama(tmp_path):
    norms = {f"midlayer.self_attn.{part}_norm.weight": random((HEAD_DIM,), 1) for part in "qk"}
    changes = {"num_aux_hidden_states": 3, "num_aux_layers": 4}
    llama = drafts.vllm(tmp_path / "llama", **changes)
    assert "fc-blocks" not in codes(llama)
    qwen3 = drafts.vllm(
        tmp_path / "qwen3",
        drafts.flat_tensors() | norms,
        architectures=["Eagle3Qwen3ForCausalLM"],
        model_type="qwen3",
        **changes,
    )
    assert "fc-blocks" in codes(qwen3)


def test_an_absent_head_dim_is_each_classs_own(tmp_path):
    source = drafts.vllm(tmp_path / "qwen3", model_type="qwen3", head_dim=ABSENT)
    assert "shape-mismatch" in refusals(
        loaded, source, "vllm"
    )  # transformers' Qwen3Config says 128


# Overrides.


@pytest.mark.parametrize(("text", "taps"), [("31,0,3", (31, 0, 3)), ("embed, 3,31", (0, 3, 31))])
def test_taps_are_counts_of_layers_with_a_word_for_the_embedding(text, taps):
    assert parse_taps(text) == taps


@pytest.mark.parametrize("text", ["", "1,,2", "-1,2", "a,b", "1;2"])
def test_other_taps_are_wrong_usage(text):
    with pytest.raises(Usage):
        parse_taps(text)


def test_sets_are_json_or_words():
    items = ["rope.theta=1e6", "residual=normed", "fc.input_norm=true", "layers.windows=none"]
    assert parse_sets(items) == {
        "rope.theta": 1e6, "residual": "normed", "fc.input_norm": True, "layers.windows": None
    }  # fmt: skip


@pytest.mark.parametrize(
    "item", ["rope.theta", "rope.thetas=1", "hidden_size=3", "taps=[1]", "dtype=float32"]
)
def test_other_sets_are_wrong_usage(item):
    with pytest.raises(Usage):
        parse_sets([item])


def test_an_impossible_value_is_wrong_usage(tmp_path):
    with pytest.raises(Usage):
        loaded(drafts.vllm(tmp_path / "draft"), sets={"residual": "sideways"})


def test_an_override_is_recorded_in_the_output(tmp_path):
    result = convert(
        drafts.vllm(tmp_path / "draft"), "vllm", sets={"feedback": "post-norm"}, taps=(1, 2, 3)
    )
    assert result.config["norm_output"] is True
    said = [item.where for item in result.findings if item.code == "set-by-user"]
    assert said == ["feedback", "taps"]
    assert result.conversion.plan.provenance["options"]["set"] == {"feedback": "post-norm"}


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_one_bias_that_is_not_zero_keeps_its_whole_group(tmp_path, part):
    rows = {"q": drafts.HEADS, "k": drafts.KV, "v": drafts.KV}
    biases = {
        f"midlayer.self_attn.{one}_proj.bias": np.full(
            heads * drafts.HEAD_DIM, float(one == part), np.float32
        )
        for one, heads in rows.items()
    }
    source = drafts.vllm(tmp_path / "draft", drafts.flat_tensors() | biases, attention_bias=True)
    result = convert(source, "vllm")
    assert result.draft.layers.attention.qkv_bias
    assert biases.keys() <= result.tensors.keys()


@pytest.mark.parametrize("destination", ["sglang", "vllm", "speculators"])
def test_a_bias_on_o_proj_alone_stays_switched_on(tmp_path, destination):
    bias = {"midlayer.self_attn.o_proj.bias": np.ones(drafts.H, np.float32)}
    source = drafts.sglang(tmp_path / "draft", drafts.flat_tensors() | bias, attention_bias=True)
    result = convert(source, destination, target=drafts.target(tmp_path / "target"))
    layer = result.config.get("transformer_layer_config", result.config)
    assert layer["attention_bias"] is True
    assert any(
        name.endswith("o_proj.bias") and value.all() for name, value in result.tensors.items()
    )


@pytest.mark.parametrize("layout", ["sglang", "vllm", "universal"])
def test_speculative_tokens_survive_layouts_that_have_no_key_for_them(layout, tmp_path):
    first = convert(drafts.speculators(tmp_path / "one"), layout)
    assert described(first.folder).speculative_tokens == 4
    again = convert(first.folder, "speculators")
    assert "speculative-tokens" not in again.codes


@pytest.mark.parametrize(
    "written", ["[]", "{", '{"draft": []}', '{"draft": {"speculative_tokens": "4"}}']
)
def test_a_strange_provenance_file_says_nothing_about_tokens(written, tmp_path):
    folder = drafts.sglang(tmp_path / "draft")
    (folder / "eagle3_interop.json").write_text(written)
    assert described(folder).speculative_tokens is None
