"""Folders that are something else than they seem: each is called by its name, in one sentence."""

import json

import drafts
import numpy as np
import pytest
from conversions import codes, convert, described, loaded, refusal, refusals
from drafts import ABSENT, HEAD_DIM, KV, H, V, random
from safetensors.numpy import save_file

from eagle3_interop.convert import api
from eagle3_interop.convert.decide import inspection
from eagle3_interop.convert.decide.overrides import parse_sets
from eagle3_interop.schemas.findings import Usage

LAYOUTS = ("sglang", "vllm", "speculators")

# Drafts of other kinds.

NAMED = {
    "EAGLE-1": {"architectures": ["EagleLlamaForCausalLM"]},
    "EAGLE-1 ": {"architectures": ["LlamaForCausalLMEagle"]},
    "DFlash": {"architectures": ["DFlashDraftModel"]},
    "DSpark": {"architectures": ["Qwen3DSparkModel"]},
    "MTP": {"architectures": ["DeepSeekMTPModel"]},
    "MTP ": {"model_type": "qwen3_next_mtp"},
    "Medusa": {"model_type": "medusa"},
    "parallel heads": {"eagle_config": {"parallel_draft_step": 4}},
    "MLP speculator": {"model_type": "mlp_speculator"},
}


@pytest.mark.parametrize("name", NAMED)
def test_a_draft_of_another_kind_is_called_by_its_name(name, tmp_path):
    found = refusal(loaded, drafts.vllm(tmp_path / "draft", **NAMED[name]))
    assert found.code == "other-heads"
    assert name.strip() in found.message


TYPES = {
    "dflash": "DFlash",
    "dspark": "DSpark",
    "eagle": "EAGLE-1",
    "mtp": "MTP",
    "medusa": "Medusa",
    "other": "'other'",
}


@pytest.mark.parametrize("kind", TYPES)
def test_what_speculators_calls_it_counts_before_its_class(kind, tmp_path):
    changes = {"speculators_model_type": kind, "architectures": ["DFlashDraftModel"]}
    found = refusal(loaded, drafts.speculators(tmp_path / "draft", **changes))
    assert TYPES[kind] in found.message


def first_eagle(folder, prefix="layers.0.", bias=True):
    """As SafeAILab's first EAGLE stores it: fc over [embedding, hidden], no norms before the layer."""
    rows = {"q": drafts.HEADS * HEAD_DIM, "k": KV * HEAD_DIM, "v": KV * HEAD_DIM}
    tensors = {"fc.weight": random((H, 2 * H), 1), "embed_tokens.weight": random((V, H), 2)}
    tensors |= {f"{prefix}self_attn.{p}_proj.weight": random((n, H), 3) for p, n in rows.items()}
    tensors |= {"fc.bias": random((H,), 4)} if bias else {}
    return drafts.save(
        folder, {**drafts.LAYER_CONFIG, "architectures": ["LlamaForCausalLM"]}, tensors
    )


@pytest.mark.parametrize("prefix", ["layers.0.", "model.layers.0."])
@pytest.mark.parametrize("bias", [True, False])
def test_a_first_eagle_is_known_by_its_shapes(prefix, bias, tmp_path):
    found = refusal(loaded, first_eagle(tmp_path / "draft", prefix, bias))
    assert "EAGLE-1" in found.message


def test_two_taps_are_no_first_eagle(tmp_path):
    tensors = drafts.flat_tensors() | {"fc.weight": random((H, 2 * H), 1)}
    source = drafts.vllm(
        tmp_path / "draft",
        tensors,
        eagle_aux_hidden_state_layer_ids=[1, 3],
        num_aux_hidden_states=2,
    )
    assert described(source).taps == (1, 3)


def test_the_norms_of_an_mtp_layer_name_it(tmp_path):
    names = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
    tensors = {f"model.layers.61.{name}.weight": random((H,), 1) for name in names}
    found = refusal(loaded, drafts.save(tmp_path / "draft", drafts.FLAT_CONFIG, tensors))
    assert "MTP" in found.message


def test_vllms_wrapper_of_a_first_eagle_is_one(tmp_path):
    wrapped = {"model_type": "eagle", "model": drafts.VLLM_CONFIG}
    source = drafts.save(tmp_path / "draft", wrapped, drafts.flat_tensors())
    assert "EAGLE-1" in refusal(loaded, source).message


# Formats of others.


def test_a_draft_that_mlx_quantised_is_named(tmp_path):
    tensors = drafts.flat_tensors()
    name = "midlayer.mlp.up_proj"
    rows, columns = tensors[f"{name}.weight"].shape
    tensors[f"{name}.weight"] = np.zeros((rows, columns // 8), np.uint32)
    tensors |= {f"{name}.{part}": random((rows, columns // 32), 1) for part in ("scales", "biases")}
    told = {"quantization": {"group_size": 32, "bits": 4}}
    for layout in LAYOUTS:
        found = refusal(loaded, getattr(drafts, layout)(tmp_path / layout, tensors, **told))
        assert found.code == "other-format"
        assert "MLX" in found.message


FILES = {
    "params.json": "Mistral",
    "consolidated.00.pth": "Meta",
    "draft.gguf": "GGUF",
    "adapter_config.json": "adapter",
    "__0_0.distcp": "training state",
    "model.onnx": "ONNX",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("config", [True, False])
def test_a_folder_without_readable_weights_is_called_by_what_it_holds(name, config, tmp_path):
    (tmp_path / name).write_text("{}")
    if config:
        (tmp_path / "config.json").write_text(json.dumps(drafts.VLLM_CONFIG))
    for act in (loaded, lambda folder: loaded(drafts.vllm(tmp_path / "d"), target=folder)):
        if act is not loaded and config:
            continue
        found = refusal(act, tmp_path)
        assert found.code == "other-format"
        assert FILES[name] in found.message


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 810440\n"
)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_pointer_of_git_lfs_is_named(name, tmp_path):
    source = drafts.vllm(tmp_path / "draft")
    (source / "model.safetensors").unlink()
    (source / name).write_bytes(POINTER)
    found = refusal(loaded, source)
    assert found.code == "lfs-pointer"
    assert "git lfs pull" in found.fix


def test_pointers_are_named_in_targets_and_in_maps_beside_the_weights(tmp_path):
    source, target = drafts.vllm(tmp_path / "draft"), drafts.target(tmp_path / "target")
    (target / "model.safetensors").write_bytes(POINTER)
    assert refusals(loaded, source, target=target) == {"lfs-pointer"}
    tensors = {n: x for n, x in drafts.flat_tensors().items() if n not in ("d2t", "t2d")}
    other = drafts.vllm(tmp_path / "other", tensors)
    (other / "eagle_meta.pt").write_bytes(POINTER)
    assert refusals(loaded, other) == {"lfs-pointer"}


def test_a_tokenizer_that_is_a_pointer_is_not_carried_along(tmp_path):
    source = drafts.vllm(tmp_path / "draft")
    (source / "tokenizer.json").write_bytes(POINTER)
    (source / "tokenizer_config.json").write_text("{}")
    output = convert(source, "sglang")
    assert output.said("pointer-left-out").where == "tokenizer.json"
    assert {path.name for path in output.folder.glob("tokenizer*")} == {"tokenizer_config.json"}


INDEX = "model.safetensors.index.json"
STALE = {
    "of other files": {"model.layers.0.mlp.up_proj.weight": "model-00001-of-00002.safetensors"},
    "of other tensors": {"model.layers.0.mlp.up_proj.weight": "model.safetensors"},
}


@pytest.mark.parametrize("kind", STALE)
def test_an_index_of_another_model_is_to_be_removed(kind, tmp_path):
    source = drafts.vllm(tmp_path / "draft")
    (source / INDEX).write_text(json.dumps({"weight_map": STALE[kind]}))
    found = refusal(loaded, source)
    assert "another model" in found.message
    assert "Remove" in found.fix
    (source / INDEX).unlink()
    assert loaded(source)


def test_an_index_of_which_one_file_is_missing_is_to_be_completed(tmp_path):
    source = drafts.vllm(tmp_path / "draft")
    listed = dict.fromkeys(drafts.flat_tensors(), "model.safetensors") | {
        "fc.weight": "gone.safetensors"
    }
    (source / INDEX).write_text(json.dumps({"weight_map": listed}))
    assert "Download the missing file" in refusal(loaded, source).fix


# Names that a trainer's wrapper left, and names that nobody knows.

WRAPPERS = ("draft_model.", "_orig_mod.", "module.", "module._orig_mod.", "model.model.")


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_prefix_of_a_wrapper_is_stripped_and_said(layout, wrapper, tmp_path):
    plain = drafts.speculators_tensors() if layout == "speculators" else drafts.flat_tensors()
    make = getattr(drafts, layout)
    source = make(tmp_path / "wrapped", {wrapper + name: x for name, x in plain.items()})
    for destination in LAYOUTS:
        output = convert(source, destination, canonical_names=True)
        other = make(tmp_path / f"bare-{destination}", plain)
        bare = convert(other, destination, canonical_names=True)
        foreign = {"foreign-name", "foreign-name-dropped"}
        assert output.codes - bare.codes - foreign == {"wrapper-prefix"}
        assert output.config == bare.config
        assert output.tensors.keys() == bare.tensors.keys()
        assert all(np.array_equal(x, bare.tensors[n]) for n, x in output.tensors.items())


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_around_all_but_head_and_maps_is_one_too(wrapper, tmp_path):
    outside = ("lm_head.weight", "d2t", "t2d")
    tensors = {
        name if name in outside else wrapper + name: x for name, x in drafts.flat_tensors().items()
    }
    output = convert(drafts.vllm(tmp_path / "draft", tensors), "vllm")
    assert output.tensors.keys() == drafts.flat_tensors().keys()


def test_no_engine_is_said_to_run_what_a_wrapper_named(tmp_path):
    tensors = {f"_orig_mod.{name}": x for name, x in drafts.flat_tensors().items()}
    facts = inspection.engines(loaded(drafts.sglang(tmp_path / "draft", tensors)))
    assert facts["vllm"]["as_is"] == "does-not-load"
    assert facts["sglang"]["as_is"] == "different"  # it drops such names without a word


def test_two_prefixes_are_none_that_a_wrapper_leaves(tmp_path):
    names = drafts.flat_tensors().items()
    tensors = {f"{'a' if 'mlp' in name else 'b'}.{name}": x for name, x in names}
    assert refusal(loaded, drafts.sglang(tmp_path / "draft", tensors)).code == "unknown-names"


def test_names_that_nobody_knows_are_one_sentence_and_get_no_advice_of_their_own(tmp_path):
    tensors = {
        name.replace("self_attn", "attention").replace("mlp", "ffn"): x
        for name, x in drafts.flat_tensors().items()
    }
    found = refusal(loaded, drafts.vllm(tmp_path / "draft", tensors))
    assert found.code == "unknown-names"
    assert "--set" not in found.fix


def test_a_tensor_too_many_is_still_called_by_its_name(tmp_path):
    tensors = drafts.flat_tensors() | {"midlayer.extra.weight": random((H,), 1)}
    found = refusal(loaded, drafts.vllm(tmp_path / "draft", tensors))
    assert (found.code, found.where) == ("unknown-tensor", "midlayer.extra.weight")


# A class that norms q and k, and no such norms.


@pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "Eagle3Qwen3ForCausalLM"])
def test_a_class_with_norms_that_the_file_has_not_is_a_question(name, tmp_path):
    source = drafts.vllm(tmp_path / "draft", architectures=[name], model_type="qwen3")
    found = refusal(loaded, source)
    assert found.code == "absent-qk-norms"
    assert "--set layers.attention.qk_norm=false" in found.fix
    told = {"layers.attention.qk_norm": False}
    for destination in (*LAYOUTS, "universal"):
        output = convert(source, destination, sets=told)
        assert not output.draft.layers.attention.qk_norm
        assert not any("_norm.weight" in name and "self_attn" in name for name in output.tensors)


def test_the_layers_of_a_speculators_folder_are_asked_as_well(tmp_path):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], "model_type": "qwen3"}
    source = drafts.speculators(tmp_path / "draft", transformer_layer_config=layer)
    assert refusal(loaded, source).code == "absent-qk-norms"
    assert convert(source, "vllm", sets={"layers.attention.qk_norm": False})


def test_one_norm_of_two_is_a_tensor_that_is_missing(tmp_path):
    tensors = drafts.flat_tensors() | {"midlayer.self_attn.q_norm.weight": random((HEAD_DIM,), 1)}
    source = drafts.vllm(
        tmp_path / "draft", tensors, architectures=["Eagle3Qwen3ForCausalLM"], model_type="qwen3"
    )
    found = refusal(loaded, source)
    assert (found.code, found.where) == ("missing-tensor", "layers.0.self_attn.k_norm.weight")


# A quantisation that is none.


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_quantisation_of_no_tensor_is_dropped_and_said(layout, tmp_path):
    told = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    source = getattr(drafts, layout)(tmp_path / "draft", quantization_config=told)
    for destination in LAYOUTS:
        output = convert(source, destination)
        assert output.said("quantisation-dropped").where == "config.json: quantization_config"
        assert "quantization_config" not in json.dumps(output.config)


# vLLM's wrapper form.


def wrapped(folder, inner=None, **beside):
    config = {"model_type": "eagle", "method": "eagle3", "truncated_vocab_size": drafts.D}
    config |= {"architectures": ["Eagle3LlamaForCausalLM"], "model": inner or drafts.VLLM_CONFIG}
    return drafts.save(folder, config | beside, drafts.flat_tensors())


def test_vllms_wrapper_form_is_read_as_what_it_wraps(tmp_path):
    source, bare = wrapped(tmp_path / "wrapped"), drafts.vllm(tmp_path / "bare")
    assert described(source) == described(bare)
    for destination in LAYOUTS:
        assert convert(source, destination).config == convert(bare, destination).config
    facts = inspection.engines(loaded(source))
    assert facts["vllm"]["as_is"] == "same"
    assert facts["sglang"]["as_is"] == facts["speculators"]["as_is"] == "does-not-load"


def test_a_key_beside_what_is_wrapped_counts_first(tmp_path):
    source = wrapped(tmp_path / "draft", eagle_aux_hidden_state_layer_ids=[2, 3, 5])
    assert described(source).taps == (2, 3, 5)


def test_the_wrapped_class_counts_and_not_the_wrappers(tmp_path):
    tensors = drafts.flat_tensors()
    norms = ("midlayer.self_attn.q_norm.weight", "midlayer.self_attn.k_norm.weight")
    tensors |= {name: random((HEAD_DIM,), 1) for name in norms}
    inner = {**drafts.VLLM_CONFIG, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    source = wrapped(tmp_path / "draft", inner)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert described(source).layers.attention.qk_norm


def test_a_config_of_nothing_is_refused_in_short_words(tmp_path):
    source = drafts.save(
        tmp_path / "draft",
        {"architectures": ["Eagle3LlamaForCausalLM"], "note": "x" * 5000},
        drafts.flat_tensors(),
    )
    with pytest.raises(Exception, match="Field required") as refused:
        loaded(source)
    assert all(len(item.message) < 200 for item in refused.value.findings)


# Heads and tables that the engine shares.


def without(*names):
    return {n: x for n, x in drafts.speculators_tensors().items() if n not in names}


def full(folder, *, embeddings=True):
    tensors = without(
        "lm_head.weight", "d2t", "t2d", *([] if embeddings else ["embed_tokens.weight"])
    )
    return drafts.speculators(folder, tensors, draft_vocab_size=V)


@pytest.mark.parametrize("embeddings", [True, False])
def test_an_absent_head_of_full_vocabulary_is_the_targets(embeddings, tmp_path):
    source = full(tmp_path / "draft", embeddings=embeddings)
    for layout in ("speculators", "vllm"):
        assert described(source, layout).vocabulary.head == "target"
    facts = inspection.engines(loaded(source))
    assert facts["vllm"]["as_is"] == "same"
    assert facts["speculators"]["as_is"] == "different"
    for destination in ("vllm", "sglang"):
        assert convert(source, destination).draft.vocabulary.head == "target"


def test_the_library_gets_the_targets_head_written_out(tmp_path):
    source, target = full(tmp_path / "draft"), drafts.target(tmp_path / "target")
    assert refusals(convert, source, "speculators") == {"head-needs-target"}
    output = convert(source, "speculators", target=target)
    assert np.array_equal(output.tensors["lm_head.weight"], random((V, H), 5))


def test_an_absent_head_of_a_reduced_vocabulary_is_nobodys(tmp_path):
    source = drafts.speculators(tmp_path / "draft", without("lm_head.weight"))
    assert refusals(loaded, source) == {"missing-head"}


# Ids and maps that were counted otherwise.


def test_the_default_ids_less_one_are_read_and_warned_of(tmp_path):
    source = drafts.speculators(tmp_path / "draft", eagle_aux_hidden_state_layer_ids=[1, 5, 8])
    read = loaded(source)
    assert read.reading.draft.taps == (1, 5, 8)
    (found,) = [item for item in read.reading.findings if item.code == "shifted-ids"]
    assert found.severity == "warning"
    assert "--taps 2,6,9" in found.fix
    assert "shifted-ids" not in codes(source, taps=(2, 6, 9))


def test_the_default_ids_of_vllm_in_sglangs_place_are_one_too_many(tmp_path):
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 6, 9], "use_aux_hidden_state": True}
    read = loaded(drafts.sglang(tmp_path / "draft", eagle_config=ids))
    assert read.reading.draft.taps == (3, 7, 10)
    assert "--taps 2,6,9" in next(
        item.fix for item in read.reading.findings if item.code == "shifted-ids"
    )


@pytest.mark.parametrize("ids", [[1, 3, 5], [2, 6, 9], [1, 4, 9], [1, 6, 8], [0, 4, 7], [1, 5]])
def test_other_ids_are_not_suspected(ids, tmp_path):
    blocks = len(ids)
    tensors = drafts.speculators_tensors() | {"fc.weight": random((H, blocks * H), 1)}
    changes = {"eagle_aux_hidden_state_layer_ids": ids}
    assert "shifted-ids" not in codes(drafts.speculators(tmp_path / "draft", tensors, **changes))


def test_a_known_depth_settles_whether_ids_are_the_default_ones_less_one(tmp_path):
    source = drafts.vllm(tmp_path / "draft", eagle_aux_hidden_state_layer_ids=[1, 5, 8])
    for layers, said in ((12, True), (13, False)):
        target = drafts.target(tmp_path / str(layers), num_hidden_layers=layers)
        assert ("shifted-ids" in codes(source, target=target)) is said


SPARSE = np.sort(np.random.default_rng(3).choice(V - drafts.D, drafts.D, replace=False))
"""Target ids that, read as offsets, stay inside the vocabulary."""


def mapped(folder, ids, layout="sglang", *, listed=True):
    tensors = drafts.flat_tensors() | {"d2t": ids.astype(np.int64)}
    if layout == "speculators":
        tensors = drafts.speculators_tensors() | {"d2t": ids.astype(np.int64)}
    tensors["t2d"] = np.isin(np.arange(V), ids)
    if not listed:
        del tensors["t2d"]
    return getattr(drafts, layout)(folder, tensors)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_map_of_target_ids_is_an_error_where_t2d_lists_just_these(layout, tmp_path):
    source = mapped(tmp_path / "draft", SPARSE, layout)
    found = refusal(loaded, source)
    assert found.code == "absolute-map"
    assert "--set vocabulary.map=ids" in found.fix
    for destination in LAYOUTS:
        output = convert(source, destination, sets={"vocabulary.map": "ids"})
        assert np.array_equal(output.tensors["d2t"], SPARSE - np.arange(drafts.D))
        assert not refusable(output.folder)


def refusable(folder):
    return {item.code for item in loaded(folder).reading.findings if item.severity == "error"}


def test_a_map_that_only_looks_like_target_ids_is_read_as_offsets_with_a_warning(tmp_path):
    source = mapped(tmp_path / "draft", SPARSE, listed=False)
    assert "map-looks-absolute" in codes(source)
    assert np.array_equal(convert(source, "vllm").tensors["d2t"], SPARSE)
    told = {"vocabulary.map": "ids"}
    assert "map-looks-absolute" not in codes(source, sets=told)
    assert inspection.engines(loaded(source, sets=told))["sglang"]["as_is"] == "different"
    assert "map-looks-absolute" not in codes(source, sets={"vocabulary.map": "offsets"})


def test_target_ids_that_leave_the_vocabulary_as_offsets_have_the_same_way_out(tmp_path):
    ids = np.arange(V - drafts.D, V)
    assert refusal(loaded, mapped(tmp_path / "draft", ids, listed=False)).code == "absolute-map"
    assert loaded(tmp_path / "draft", sets={"vocabulary.map": "ids"})


def test_offsets_of_a_vocabulary_with_neighbours_are_not_suspected(tmp_path):
    assert {"map-looks-absolute", "absolute-map"}.isdisjoint(codes(drafts.sglang(tmp_path / "d")))


def test_a_map_can_only_be_told_where_there_is_one(tmp_path):
    source = full(tmp_path / "draft")
    with pytest.raises(Usage, match="no d2t"):
        loaded(source, sets={"vocabulary.map": "ids"})


# Keys in places that their reader skips.

SKIPPED = {
    "norm_before_residual": (True, "residual"),
    "fc_norm": (True, "fc.block_norms"),
    "norm_output": (True, "feedback"),
    "rms_norm_eps": (1e-6, "layers.norm_eps"),
    "rope_theta": (5e5, "rope.theta"),
    "hidden_act": ("gelu", "layers.mlp.activation"),
    "rope_scaling": ({"rope_type": "linear", "factor": 2.0}, "rope.scaling"),
}


@pytest.mark.parametrize("key", SKIPPED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_key_among_the_eagle_keys_that_nobody_reads_there_is_a_question(layout, key, tmp_path):
    value, path = SKIPPED[key]
    own = getattr(drafts, f"{layout.upper()}_CONFIG").get("eagle_config", {})
    source = getattr(drafts, layout)(tmp_path / "draft", eagle_config={**own, key: value})
    found = refusal(loaded, source)
    assert (found.code, found.where) == ("misplaced-key", f"config.json: eagle_config.{key}")
    assert f"--set {path}=" in found.fix


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta", "hidden_act", "rope_scaling"])
def test_so_is_a_key_of_the_layers_at_the_top_of_a_speculators_folder(key, tmp_path):
    value, path = SKIPPED[key]
    source = drafts.speculators(tmp_path / "draft", **{key: value})
    for layout in ("speculators", "vllm"):
        assert refusal(loaded, source, layout).code == "misplaced-key"
        assert f"--set {path}=" in refusal(loaded, source, layout).fix


def test_so_is_a_key_of_the_draft_among_the_layers(tmp_path):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], "norm_before_residual": True}
    source = drafts.speculators(tmp_path / "draft", transformer_layer_config=layer)
    for layout in ("speculators", "vllm"):
        assert refusal(loaded, source, layout).code == "misplaced-key"


def test_a_key_that_says_what_is_computed_anyway_is_none(tmp_path):
    ids = drafts.SGLANG_CONFIG["eagle_config"]
    same = {**ids, "norm_before_residual": False, "rms_norm_eps": 1e-5, "rope_theta": 10000}
    assert "misplaced-key" not in codes(drafts.sglang(tmp_path / "draft", eagle_config=same))


def test_the_users_word_settles_it(tmp_path):
    config = {"norm_before_residual": True}
    source = drafts.vllm(tmp_path / "draft", eagle_config=config)
    assert convert(source, "vllm", sets={"residual": "normed"}).draft.residual == "normed"
    assert convert(source, "vllm", sets={"residual": "raw"}).draft.residual == "raw"


# Sections of a multimodal rope, and the part of a head that is rotated.

PARTIAL = {
    "rope_type": "default",
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "mrope_section": [2, 1, 1],
}


def test_each_engine_reads_the_factor_in_its_own_place(tmp_path):
    changes = {"rope_theta": ABSENT, "rope_parameters": PARTIAL}
    sglang = loaded(drafts.sglang(tmp_path / "sglang", **changes))
    assert sglang.reading.draft.rope.partial == 1.0
    assert sglang.reading.draft.rope.mrope_sections == (8, 4, 4)  # of 16 pairs, in the same shares
    vllm = described(drafts.vllm(tmp_path / "vllm", **changes))
    assert (vllm.rope.partial, vllm.rope.mrope_sections) == (0.25, (2, 1, 1))
    said = {item.code: item for item in sglang.reading.findings}
    assert (
        "--set rope.partial=0.25 --set rope.mrope_sections=[2,1,1]"
        in said["partial-rotary-unread"].fix
    )
    assert "sections-rescaled" in said


@pytest.mark.parametrize("destination", ["sglang", "vllm"])
def test_what_is_written_says_the_factor_where_its_engine_looks(destination, tmp_path):
    changes = {"rope_theta": ABSENT, "rope_parameters": PARTIAL}
    source = drafts.sglang(tmp_path / "sglang", **changes)
    whole = convert(source, destination)
    assert whole.config["rope_parameters"]["mrope_section"] == [8, 4, 4]
    told = {"rope.partial": 0.25, "rope.mrope_sections": [2, 1, 1]}
    part = convert(source, destination, sets=told)
    assert part.config["partial_rotary_factor"] == 0.25
    assert part.config["rope_parameters"]["mrope_section"] == [2, 1, 1]


@pytest.mark.parametrize("destination", ["sglang", "vllm", "universal"])
def test_sections_that_no_engine_could_build_are_never_written(destination, tmp_path):
    changes = {"rope_theta": ABSENT, "rope_parameters": PARTIAL}
    source = drafts.sglang(tmp_path / "draft", **changes)
    found = refusals(convert, source, destination, sets={"rope.partial": 0.25})
    assert "mrope-sections" in found


def test_vllm_fails_on_sections_that_sglang_rescales(tmp_path):
    rope = {**PARTIAL, "partial_rotary_factor": 1.0}
    changes = {"rope_theta": ABSENT, "rope_parameters": rope}
    source = drafts.vllm(tmp_path / "vllm", **changes)
    assert refusals(loaded, source) == {"mrope-sections"}
    facts = inspection.engines(loaded(drafts.sglang(tmp_path / "sglang", **changes)))
    assert facts["sglang"]["as_is"] == "same"
    assert facts["vllm"]["as_is"] == "does-not-load"


@pytest.mark.parametrize(
    ("sections", "made"),
    [
        ([24, 20, 20], (6, 5, 5)),
        ([11, 11, 10], (5, 5, 6)),  # rounded down, and the last takes the rest
        ([1, 1, 100], (1, 1, 14)),
        ([0, 0, 0], (6, 5, 5)),
    ],
)
def test_sections_are_rescaled_as_sglang_rounds_them(sections, made, tmp_path):
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}
    source = drafts.sglang(tmp_path / "draft", rope_theta=ABSENT, rope_parameters=rope)
    assert described(source).rope.mrope_sections == made


# What is copied from a target and what no description carries.


def test_the_keys_of_experts_are_left_out(tmp_path):
    keys = {"num_local_experts": 32, "num_experts_per_tok": 4, "router_aux_loss_coef": 0.9}
    output = convert(drafts.vllm(tmp_path / "draft", **keys), "vllm")
    assert "left-keys" in output.codes
    assert "unknown-keys" not in output.codes
    assert output.config.keys().isdisjoint(keys)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_key_that_cannot_be_carried_has_a_way_out(layout, tmp_path):
    source = getattr(drafts, layout)(tmp_path / "draft", final_logit_softcapping=30.0)
    found = refusal(loaded, source)
    assert (found.code, found.fix[-34:]) == (
        "unsupported-key",
        "--set final_logit_softcapping=none",
    )
    output = convert(source, "vllm", sets={"final_logit_softcapping": None})
    assert "final_logit_softcapping" not in output.config


def test_automodel_reads_neither_softcap_nor_window_and_computes_the_activation(tmp_path):
    source = drafts.vllm(
        tmp_path / "draft",
        architectures=["LlamaEagle3DraftModel"],
        final_logit_softcapping=30.0,
        hidden_act="gelu_pytorch_tanh",
        sliding_window=128,
        layer_types=["sliding_attention"],
    )
    draft = described(source)
    assert (draft.layers.windows, draft.layers.mlp.activation) == ((None,), "gelu_pytorch_tanh")
    assert convert(source, "speculators").draft.layers.mlp.activation == "gelu_pytorch_tanh"
    assert refusals(convert, source, "vllm") == {"activation"}
    assert "unsupported-key" in refusals(loaded, source, "vllm")


def test_a_neutral_value_alone_can_be_set():
    assert parse_sets(["final_logit_softcapping=none"]) == {"final_logit_softcapping": None}
    with pytest.raises(Usage, match="none alone"):
        parse_sets(["final_logit_softcapping=30.0"])
    with pytest.raises(Usage, match="ids, offsets"):
        parse_sets(["vocabulary.map=absolute"])
    assert api.Options(sets=parse_sets(["vocabulary.map=ids"])).sets == {"vocabulary.map": "ids"}
