"""Quantised drafts: their parts travel bit for bit, and their lists name what engines ask for."""

import json

import drafts
import numpy as np
import pytest
import quantised
from conversions import codes, convert, described, loaded, refusal, refusals, same_tensors
from drafts import D, H, V
from quantised import MATRICES, SCHEMES, folder, written

from eagle3_interop.convert.decide.inspection import engines
from eagle3_interop.schemas.findings import Refused, errors

KINDS = list(SCHEMES)
COMPRESSED = [kind for kind in KINDS if not kind.startswith("modelopt")]


@pytest.mark.parametrize("destination", ["vllm", "sglang", "speculators", "universal"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["vllm", "sglang", "speculators"])
def test_every_part_travels_bit_for_bit_under_the_destinations_name(
    layout, kind, destination, tmp_path
):
    source = folder(tmp_path, kind, layout)
    if kind.startswith("modelopt") and destination in ("speculators", "universal"):
        assert refusals(written, source, destination) == {"quantised-unmatched"}
        return
    before = quantised.load(source)
    _, after, conversion = written(source, destination)
    renamed = {name.replace("midlayer.", "layers.0."): part for name, part in before.items()}
    assert {name.replace("midlayer.", "layers.0."): part for name, part in after.items()} == renamed
    assert described(source).quantisation == conversion.fitted.draft.quantisation
    assert described(source.parent / f"draft-to-{destination}").quantisation == (
        conversion.fitted.draft.quantisation
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_converted_again_has_the_same_bytes(kind, tmp_path):
    first = written(folder(tmp_path, kind), "sglang")
    again = written(tmp_path / "draft-to-sglang", "sglang")
    assert (first[0], first[1]) == (again[0], again[1])


def test_lists_name_the_ends_of_names_which_every_engine_has_alike(tmp_path):
    config, _, _ = written(folder(tmp_path, "int8", "sglang"), "vllm")
    said = config["quantization_config"]
    assert said["ignore"] == ["re:.*fc$", "re:.*lm_head$"]
    assert said["config_groups"]["group_0"]["targets"] == ["Linear"]


def test_modelopts_lists_have_wildcards(tmp_path):
    config, _, _ = written(folder(tmp_path, "modelopt fp8", "sglang"), "vllm")
    assert config["quantization_config"]["ignore"] == ["*fc", "*lm_head"]


def test_what_engines_put_into_one_matrix_is_listed_with_its_name_there(tmp_path):
    leaves = ("gate_proj", "up_proj", "down_proj")
    source = folder(tmp_path, "int8", leaves=leaves, ignore=("re:.*_proj", "re:.*fc", "lm_head"))
    config, _, _ = written(source, "sglang")
    assert "re:.*qkv_proj$" in config["quantization_config"]["ignore"]
    assert "re:.*o_proj$" in config["quantization_config"]["ignore"]


def test_a_quantised_head_is_named_because_no_class_stands_for_it(tmp_path):
    source = folder(tmp_path, "int8", leaves=(*MATRICES, "lm_head"), ignore=("re:.*fc",))
    for destination in ("vllm", "sglang"):
        config, _, _ = written(source, destination)
        targets = config["quantization_config"]["config_groups"]["group_0"]["targets"]
        assert targets == ["Linear", "re:.*lm_head$"]


def test_two_groups_are_told_apart_by_names_alone(tmp_path):
    tensors = drafts.flat_tensors(prefix="layers.0.")
    attention, mlp = MATRICES[:4], MATRICES[4:]
    half, _ = quantised.quantise(tensors, "int8", attention)
    stored, _ = quantised.quantise(half, "w4a16", mlp)
    groups = {
        "group_0": {
            **SCHEMES["int8"][1]["config_groups"]["group_0"],
            "targets": ["re:.*self_attn.*"],
            "format": "int-quantized",
        },
        "group_1": {
            **SCHEMES["w4a16"][1]["config_groups"]["group_0"],
            "targets": ["Linear"],
            "format": "pack-quantized",
        },
    }
    said = quantised.quantisation_config("int8", config_groups=groups, format="mixed-precision")
    config = {**drafts.VLLM_CONFIG, "quantization_config": said}
    source = quantised.save(tmp_path / "draft", config, stored)
    config, _, conversion = written(source, "sglang")
    first, second = conversion.fitted.draft.quantisation.groups
    assert {module.rpartition(".")[2] for module in first.modules} == set(attention)
    assert {module.rpartition(".")[2] for module in second.modules} == set(mlp)
    written_groups = config["quantization_config"]["config_groups"]
    assert "re:.*qkv_proj$" in written_groups["group_0"]["targets"]
    assert "Linear" not in written_groups["group_1"]["targets"]


MISSES = {
    "vllm": ["fc", "lm_head"],
    "sglang": ["lm_head", "model.layers.0.mlp.down_proj"],
}


@pytest.mark.parametrize("layout", ["vllm", "sglang"])
def test_a_list_that_its_own_engine_misses_is_said_and_mended(layout, tmp_path):
    leaves = MATRICES if layout == "vllm" else MATRICES[:-1]
    source = folder(tmp_path, "int8", layout, leaves, ignore=tuple(MISSES[layout]))
    said = next(item for item in loaded(source).reading.findings if item.code == "quantised-names")
    assert {"vllm": "model.fc", "sglang": "model.down_proj"}[layout] in said.message
    assert engines(loaded(source))[layout]["as_is"] == "different"
    _, _, conversion = written(source, layout)
    assert "quantised-names" not in {item.code for item in conversion.fitted.findings}


def test_lists_that_number_vllms_layers_are_judged_with_the_target_alone(tmp_path):
    target = drafts.target(tmp_path / "target")
    entry = "model.layers.6.mlp.down_proj"
    source = folder(tmp_path, "int8", leaves=MATRICES[:-1], ignore=("model.fc", entry))
    assert "quantised-names-unsure" in codes(source)
    assert not {"quantised-names", "quantised-names-unsure"} & codes(source, target=target)


def test_a_list_of_shards_is_missed_by_vllm_whose_drafts_have_one_matrix_for_them(tmp_path):
    target = drafts.target(tmp_path / "target")
    shards = tuple(f"model.layers.6.self_attn.{part}_proj" for part in "qkv")
    source = folder(tmp_path, "int8", leaves=MATRICES[3:], ignore=("model.fc", "lm_head", *shards))
    assert "quantised-names" in codes(source, target=target)


def test_a_quantised_fc_is_refused_for_sglangs_llama_class(tmp_path):
    source = folder(tmp_path, "int8", leaves=(*MATRICES, "fc"), ignore=("lm_head",))
    said = refusal(written, source, "sglang")
    assert said.code == "quantised-unmatched"
    assert "model.fc" in said.message
    assert "drops the scale" in said.message
    config, _, _ = written(source, "vllm")
    assert config["quantization_config"]["ignore"] == ["re:.*lm_head$"]


def test_sglangs_plugin_takes_no_quantised_draft(tmp_path):
    source = folder(tmp_path, "int8", norm_before_residual=True)
    said = refusal(written, source, "sglang")
    assert (said.code, "plugin" in said.message) == ("quantised-unmatched", True)


@pytest.mark.parametrize("destination", ["vllm", "sglang", "universal"])
def test_a_leaf_quantised_in_one_layer_alone_is_refused(destination, tmp_path):
    tensors = drafts.flat_tensors(2, "layers.0.", "input_layernorm")
    first = {name: value for name, value in tensors.items() if not name.startswith("layers.1.")}
    stored, _ = quantised.quantise(first, "int8")
    config = {
        **drafts.VLLM_CONFIG,
        "num_hidden_layers": 2,
        "quantization_config": quantised.quantisation_config("int8"),
    }
    later = {name: value for name, value in tensors.items() if name.startswith("layers.1.")}
    source = quantised.save(tmp_path / "draft", config, {**later, **stored})
    assert refusals(written, source, destination) == {"quantised-unmatched"}


def test_shards_of_several_schemes_are_refused(tmp_path):
    source = folder(tmp_path, "int8", leaves=("q_proj", "o_proj"))
    assert refusals(written, source, "vllm") == {"quantised-unmatched"}


# What a rewrite does to parts.

ORDERED = ["int8", "fp8", "fp8 blocks", "w4a16", "w4a16 uneven", "nvfp4", "modelopt nvfp4"]


@pytest.mark.parametrize("kind", ORDERED)
def test_scales_move_with_the_blocks_of_fc(kind, tmp_path):
    """Quantised, then put in order, is put in order, then quantised: no group reaches over two blocks."""
    tensors = drafts.flat_tensors(prefix="layers.0.")
    source = folder(tmp_path, kind, leaves=("fc",), ignore=("re:.*_proj", "lm_head"))
    _, after, _ = written(source, "vllm", taps=(5, 1, 3))
    blocks = np.split(tensors["fc.weight"], 3, axis=1)
    ordered = {**tensors, "fc.weight": np.concatenate([blocks[i] for i in (1, 2, 0)], axis=1)}
    wanted, _ = quantised.quantise(ordered, kind, ("fc",))
    assert {name: after[name] for name in wanted if name.startswith("fc.")} == {
        name: part for name, part in quantised.raw(wanted).items() if name.startswith("fc.")
    }


def test_groups_that_reach_over_two_blocks_are_not_cut(tmp_path, monkeypatch):
    """fc takes three blocks of 48; groups of 36 columns lie across their edges."""
    said = quantised._compressed("pack-quantized", quantised._weights(4, "group", group_size=36))
    monkeypatch.setitem(SCHEMES, "w4a16", (quantised._grouped(4, 36), said))
    source = folder(tmp_path, "w4a16", leaves=("fc",), ignore=("re:.*_proj", "lm_head"))
    assert refusals(written, source, "vllm", taps=(5, 1, 3)) == {"quantised-cut"}
    written(source, "vllm", taps=(1, 3, 5))


def test_quantised_blocks_are_not_added_up(tmp_path):
    source = folder(tmp_path, "int8", leaves=("fc",), ignore=("re:.*_proj", "lm_head"))
    assert refusals(written, source, "vllm", taps=(1, 1, 3)) == {"quantised-cut"}


def test_scales_move_with_the_rows_of_a_sorted_head(tmp_path):
    ids = drafts.draft_ids()[::-1]
    tensors = drafts.flat_tensors(prefix="layers.0.") | drafts.maps(ids)
    source = folder(
        tmp_path, "int8", leaves=("lm_head",), ignore=("re:.*_proj", "re:.*fc"), tensors=tensors
    )
    _, after, _ = written(source, "speculators")
    order = np.argsort(ids)
    parts, _ = SCHEMES["int8"][0](tensors["lm_head.weight"][order])
    wanted = quantised.raw({f"lm_head.{name}": part for name, part in parts.items()})
    assert {name: after[name] for name in wanted} == wanted


def test_zero_points_of_several_rows_in_an_integer_are_not_cut(tmp_path):
    ids = drafts.draft_ids()[::-1]
    tensors = drafts.flat_tensors(prefix="layers.0.") | drafts.maps(ids)
    source = folder(
        tmp_path,
        "w4a16 uneven",
        leaves=("lm_head",),
        ignore=("re:.*_proj", "re:.*fc"),
        tensors=tensors,
    )
    assert refusals(written, source, "speculators") == {"quantised-cut"}


def test_a_cast_leaves_scales_and_values_as_they_are(tmp_path):
    source = folder(tmp_path, "fp8 static")
    before = quantised.load(source)
    _, after, _ = written(source, "vllm", dtype="bfloat16")
    assert after["fc.weight"][0] == "BF16"
    parts = [name for name in before if ".self_attn." in name or ".mlp." in name]
    assert {name: after[name] for name in parts} == {name: before[name] for name in parts}


# What is not quantised, or not as its config says.


@pytest.mark.parametrize(
    "said",
    [
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
        {"quant_method": "fp8", "activation_scheme": "dynamic"},
        SCHEMES["int8"][1],
    ],
)
def test_a_config_with_nothing_quantised_is_dropped_and_said(said, tmp_path):
    plain = convert(drafts.vllm(tmp_path / "plain"), "vllm")
    output = convert(drafts.vllm(tmp_path / "draft", quantization_config=said), "vllm")
    assert output.config == plain.config
    assert same_tensors(output.tensors, plain.tensors)
    assert "quantisation-dropped" in output.codes
    assert output.draft.quantisation is None


def test_scales_of_the_kv_cache_alone_are_left_out_and_said(tmp_path):
    said = {
        "quant_method": "compressed-tensors",
        "config_groups": {},
        "format": "dense",
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }
    tensors = drafts.flat_tensors() | {
        f"midlayer.self_attn.{part}_scale": np.ones(1, np.float32) for part in "kv"
    }
    output = convert(drafts.sglang(tmp_path / "draft", tensors, quantization_config=said), "vllm")
    assert {"kv-scales-left", "idle-quantisation"} <= output.codes
    assert not [name for name in output.tensors if name.endswith("_scale")]
    assert "quantization_config" not in output.config


def test_scales_of_the_kv_cache_beside_quantised_weights_are_left_out_too(tmp_path):
    tensors = drafts.flat_tensors(prefix="layers.0.") | {
        f"layers.0.self_attn.{part}_proj.{part}_scale": np.ones(1, np.float32) for part in "kv"
    }
    source = folder(tmp_path, "modelopt fp8", tensors=tensors, more={"kv_cache_quant_algo": "FP8"})
    config, after, conversion = written(source, "vllm")
    assert "kv-scales-left" in {item.code for item in conversion.fitted.findings}
    assert not [name for name in after if name.endswith(("k_scale", "v_scale"))]
    assert "kv_cache_quant_algo" not in config["quantization_config"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"quant_method": "gptq"}, "gptq"),
        ({"quant_method": None}, "absent"),
        ({"format": "marlin-24"}, "marlin-24"),
        ({"sparsity_config": {"format": "dense"}}, "sparsity_config"),
        ({"transform_config": {"config_groups": {}}}, "transform_config"),
    ],
)
def test_another_quantisation_is_refused_by_name(change, word, tmp_path):
    said = refusal(described, folder(tmp_path, "int8", more=change))
    assert (said.code, word in said.message) == ("quantised-draft", True)


@pytest.mark.parametrize("order", ["group", "dynamic"])
def test_columns_in_the_order_of_activations_are_refused(order, tmp_path):
    group = SCHEMES["w4a16"][1]["config_groups"]["group_0"]
    groups = {"group_0": {**group, "weights": {**group["weights"], "actorder": order}}}
    source = folder(tmp_path, "w4a16", more={"config_groups": groups})
    assert refusals(described, source) == {"quantised-draft"}


@pytest.mark.parametrize("algorithm", ["MIXED_PRECISION", "W4A8_AWQ", "FP8_PB_WO"])
def test_modelopts_other_algorithms_are_refused(algorithm, tmp_path):
    source = folder(tmp_path, "modelopt fp8", more={"quant_algo": algorithm})
    said = refusal(described, source)
    assert (said.code, algorithm in said.message) == ("quantised-draft", True)


def test_quantised_weights_without_a_config_are_refused(tmp_path):
    assert refusals(described, folder(tmp_path, "int8", quantization_config=None)) == {
        "quantised-draft"
    }


def test_a_quantised_embedding_table_is_refused(tmp_path):
    source = folder(tmp_path, "int8", leaves=(*MATRICES, "embed_tokens"))
    assert refusals(described, source) == {"quantised-draft"}


@pytest.mark.parametrize(
    ("part", "value", "code"),
    [
        ("weight_scale", np.ones((H, 2), np.float32), "shape-mismatch"),
        ("weight_scale", np.ones((H, 1), np.int8), "quantised-parts"),
        ("weight", np.ones((H, 128), np.uint8), "quantised-parts"),
        ("weight_zero_point", np.ones((H, 1), np.int8), "unknown-tensor"),
    ],
)
def test_parts_that_do_not_fit_the_scheme_are_refused(part, value, code, tmp_path):
    stored, _ = quantised.quantise(drafts.flat_tensors(prefix="layers.0."), "int8")
    stored[f"layers.0.self_attn.o_proj.{part}"] = value
    config = {**drafts.VLLM_CONFIG, "quantization_config": quantised.quantisation_config("int8")}
    assert code in refusals(described, quantised.save(tmp_path / "draft", config, stored))


def test_a_missing_part_is_refused(tmp_path):
    stored, _ = quantised.quantise(drafts.flat_tensors(prefix="layers.0."), "fp8 static")
    del stored["layers.0.mlp.up_proj.input_scale"]
    config = {
        **drafts.VLLM_CONFIG,
        "quantization_config": quantised.quantisation_config("fp8 static"),
    }
    source = quantised.save(tmp_path / "draft", config, stored)
    assert refusals(described, source) == {"missing-tensor"}


def test_modelopts_own_file_is_read_where_config_json_is_silent(tmp_path):
    source = folder(tmp_path, "modelopt nvfp4", quantization_config=None)
    inner = {
        "quant_algo": "NVFP4",
        "group_size": 16,
        "exclude_modules": ["lm_head", "model.fc"],
        "kv_cache_quant_algo": None,
    }
    beside = {"producer": {"name": "modelopt", "version": "0.40"}, "quantization": inner}
    (source / "hf_quant_config.json").write_text(json.dumps(beside))
    assert "quantisation-beside" in codes(source)
    config, _, _ = written(source, "vllm")
    said = config["quantization_config"]
    assert (said["quant_algo"], said["ignore"]) == ("NVFP4", ["*fc", "*lm_head"])
    assert said["producer"]["version"] == "0.40"


def test_modelopts_file_without_an_algorithm_says_nothing(tmp_path):
    source = drafts.sglang(tmp_path / "draft")
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None}}
    (source / "hf_quant_config.json").write_text(json.dumps(beside))
    output = convert(source, "sglang")
    assert "idle-quantisation" in output.codes
    assert "quantization_config" not in output.config


def test_speculators_layers_may_have_the_config(tmp_path):
    layer = {
        **drafts.SPECULATORS_CONFIG["transformer_layer_config"],
        "quantization_config": quantised.quantisation_config("int8"),
    }
    source = folder(
        tmp_path, "int8", "speculators", quantization_config=None, transformer_layer_config=layer
    )
    config, _, _ = written(source, "speculators")
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert "quantization_config" not in config["transformer_layer_config"]


def test_a_quantised_head_is_not_taken_for_an_absent_one(tmp_path):
    """Packed, it has no tensor of the plain head's name."""
    source = folder(tmp_path, "w4a16", leaves=(*MATRICES, "lm_head"), ignore=("re:.*fc",))
    target = drafts.target(tmp_path / "target")
    assert described(source, target=target).vocabulary.head == "own"
    assert described(source).vocabulary.draft_size == D
    assert described(source).vocabulary.target_size == V


def test_findings_name_what_to_do(tmp_path):
    with pytest.raises(Refused) as refused:
        written(folder(tmp_path, "int8", leaves=(*MATRICES, "fc")), "sglang")
    assert all("--dequantize" in item.fix for item in errors(refused.value.findings))
