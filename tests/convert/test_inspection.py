"""What each framework makes of a folder as it is: the verdict that inspect prints and serve trusts."""

import json

import drafts
import numpy as np
import pytest
from conversions import convert, described, loaded, refusal, refusals
from drafts import ABSENT, D, H, V, random

from eagle3_interop.convert import api
from eagle3_interop.convert.decide import inspection

SETTINGS = drafts.SPECULATORS_CONFIG["speculators_config"]
UNSORTED = np.random.default_rng(7).permutation(drafts.draft_ids())
STRAY = {
    "verifier_norm.weight": np.ones(H, dtype=np.float32),
    "verifier_lm_head.weight": random((D, H), 6),
}


def verdicts(source, layout="auto"):
    return {
        name: facts["as_is"] for name, facts in inspection.engines(loaded(source, layout)).items()
    }


def said(source, engine):
    """Code and place of everything said of a folder as one framework would read it."""
    facts = inspection.engines(loaded(source))[engine]
    return {(item["code"], item["where"]) for item in facts["findings"]}


def without(*names):
    return {k: v for k, v in drafts.speculators_tensors().items() if k not in names}


def prefixed(tensors, but=("lm_head.weight", "d2t", "t2d")):
    return {name if name in but else f"model.{name}": value for name, value in tensors.items()}


def full_vocabulary(**maps):
    tensors = {k: v for k, v in drafts.flat_tensors().items() if k not in ("d2t", "t2d")}
    return tensors | {"lm_head.weight": random((V, H), 3)} | maps


def test_a_whole_folder_is_the_same_to_speculators_and_vllm(tmp_path):
    found = verdicts(drafts.speculators(tmp_path / "draft"))
    assert (found["speculators"], found["vllm"]) == ("same", "same")


# Maps.


def test_vllm_takes_the_first_tokens_where_t2d_alone_is_stored(tmp_path):
    source = drafts.speculators(tmp_path / "draft", without("d2t"))
    assert verdicts(source)["vllm"] == "different"
    assert refusals(convert, source, "vllm", layout="vllm") == {"missing-map"}


def test_the_library_leaves_an_absent_d2t_uninitialised(tmp_path):
    source = drafts.speculators(tmp_path / "draft", without("d2t"))
    assert verdicts(source)["speculators"] == "different"
    assert ("map-derived", "d2t") in said(source, "speculators")
    assert np.array_equal(convert(source, "vllm").tensors["d2t"], drafts.maps()["d2t"])


def test_vllm_applies_an_unsorted_map_of_a_speculators_folder_as_it_is(tmp_path):
    tensors = drafts.speculators_tensors() | drafts.maps(UNSORTED)
    source = drafts.speculators(tmp_path / "draft", tensors)
    result = convert(source, "vllm", layout="vllm")
    assert np.array_equal(result.tensors["d2t"] + np.arange(D), UNSORTED)
    assert verdicts(source, "vllm")["vllm"] == "same"


def test_the_library_fails_without_t2d_which_a_conversion_rebuilds(tmp_path):
    source = drafts.speculators(tmp_path / "draft", without("t2d"))
    found = verdicts(source)
    assert (found["speculators"], found["vllm"]) == ("does-not-load", "same")
    assert ("fails-to-load", "t2d") in said(source, "speculators")
    assert np.array_equal(convert(source, "speculators").tensors["t2d"], drafts.maps()["t2d"])


def test_a_full_vocabulary_without_maps_loads_in_the_library(tmp_path):
    source = drafts.speculators(
        tmp_path / "draft", full_vocabulary_of_speculators(), draft_vocab_size=V
    )
    assert verdicts(source)["speculators"] == "same"


def full_vocabulary_of_speculators():
    return without("d2t", "t2d") | {"lm_head.weight": random((V, H), 3)}


def test_vllm_fails_on_a_map_of_the_full_vocabulary_which_a_conversion_drops(tmp_path):
    tensors = full_vocabulary(d2t=np.zeros(V, dtype=np.int64))
    source = drafts.vllm(tmp_path / "draft", tensors, draft_vocab_size=V)
    assert verdicts(source)["vllm"] == "does-not-load"
    assert ("fails-to-load", "d2t") in said(source, "vllm")
    assert "d2t" not in convert(source, "vllm").tensors


def test_sglang_applies_a_map_of_the_full_vocabulary(tmp_path):
    tensors = full_vocabulary(d2t=np.zeros(V, dtype=np.int64))
    source = drafts.sglang(tmp_path / "draft", tensors, draft_vocab_size=V)
    assert verdicts(source)["sglang"] == "same"


# Tensors that are absent or stray.


def test_the_library_leaves_absent_embeddings_uninitialised(tmp_path):
    source = drafts.speculators(tmp_path / "draft", without("embed_tokens.weight"))
    found = verdicts(source)
    assert (found["speculators"], found["vllm"]) == ("different", "same")


@pytest.mark.parametrize("name", STRAY)
def test_vllm_fails_on_the_verifiers_tensors_which_a_conversion_leaves_out(name, tmp_path):
    tensors = drafts.speculators_tensors() | {name: STRAY[name]}
    source = drafts.speculators(tmp_path / "draft", tensors)
    found = verdicts(source)
    assert (found["speculators"], found["vllm"]) == ("same", "does-not-load")
    assert ("fails-to-load", name) in said(source, "vllm")
    assert name not in convert(source, "vllm").tensors


@pytest.mark.parametrize(
    ("architecture", "state"),
    [("LlamaForCausalLMEagle3", "same"), ("Eagle3LlamaForCausalLM", "does-not-load")],
    ids=["stock", "plugin"],
)
def test_sglangs_own_class_drops_the_verifiers_tensors_and_the_plugin_refuses(
    architecture, state, tmp_path
):
    source = drafts.sglang(
        tmp_path / "draft", drafts.flat_tensors() | STRAY, architectures=[architecture]
    )
    assert verdicts(source, "sglang")["sglang"] == state


def test_a_table_of_frequencies_is_dropped_by_every_reader(tmp_path):
    stray = {"layers.0.self_attn.rotary_emb.inv_freq": np.ones(16, dtype=np.float32)}
    source = drafts.speculators(tmp_path / "draft", drafts.speculators_tensors() | stray)
    found = verdicts(source)
    assert (found["speculators"], found["vllm"]) == ("same", "same")


# Names.


@pytest.mark.parametrize("but", [("lm_head.weight", "d2t", "t2d"), ()], ids=["modules", "all"])
def test_the_library_strips_a_prefix_on_which_vllm_fails(but, tmp_path):
    source = drafts.speculators(tmp_path / "draft", prefixed(drafts.speculators_tensors(), but))
    found = verdicts(source)
    assert (found["speculators"], found["vllm"]) == ("same", "does-not-load")


def test_no_prefix_is_written_for_speculators(tmp_path):
    source = drafts.speculators(tmp_path / "draft", prefixed(drafts.speculators_tensors()))
    result = convert(source, "speculators")
    assert result.tensors.keys() == drafts.speculators_tensors().keys()


@pytest.mark.parametrize("name", ["d2t", "t2d"])
def test_sglang_knows_a_map_under_the_prefix_too(name, tmp_path):
    tensors = drafts.flat_tensors()
    tensors[f"model.{name}"] = tensors.pop(name)
    assert verdicts(drafts.sglang(tmp_path / "draft", tensors))["sglang"] == "same"


def test_sglang_drops_a_head_under_the_prefix(tmp_path):
    tensors = drafts.flat_tensors()
    tensors["model.lm_head.weight"] = tensors.pop("lm_head.weight")
    source = drafts.sglang(tmp_path / "draft", tensors)
    assert ("foreign-name-dropped", "model.lm_head.weight") in said(source, "sglang")


# Configs.


@pytest.mark.parametrize("value", [ABSENT, None], ids=["absent", "null"])
def test_nobody_starts_from_a_folder_without_speculators_config(value, tmp_path):
    source = drafts.speculators(tmp_path / "draft", speculators_config=value)
    found = verdicts(source)
    assert (found["speculators"], found["vllm"]) == ("does-not-load", "does-not-load")
    assert "speculators_config" in convert(source, "speculators").config


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": ABSENT},
        {"default_proposal_method": ABSENT},
        {"default_proposal_method": "sampled"},
        {"proposal_methods": []},
        {"proposal_methods": [{"proposal_type": "sampled"}]},
        {"verifier": ABSENT},
        {"verifier": {"name_or_path": None, "architectures": []}},
        {"verifier": {"name_or_path": "org/target"}},
    ],
    ids=str,
)
def test_the_library_wants_speculators_config_whole_and_vllm_only_its_presence(change, tmp_path):
    settings = {k: v for k, v in {**SETTINGS, **change}.items() if v is not ABSENT}
    source = drafts.speculators(tmp_path / "draft", speculators_config=settings)
    found = verdicts(source)
    assert (found["speculators"], found["vllm"]) == ("does-not-load", "same")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_no_engine_recognises_a_flat_folder_without_model_type(engine, tmp_path):
    source = getattr(drafts, engine)(tmp_path / "draft", model_type=ABSENT)
    assert verdicts(source)[engine] == "does-not-load"


# Files.


def test_the_library_finds_no_weights_under_another_name(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    (source / "model.safetensors").rename(source / "draft.safetensors")
    found = verdicts(source)
    assert (found["speculators"], found["vllm"]) == ("does-not-load", "same")
    assert ("fails-to-load", "draft.safetensors") in said(source, "speculators")


# serve.


def test_serve_refuses_a_folder_of_the_engines_own_layout_that_it_fails_on(tmp_path):
    source = drafts.vllm(tmp_path / "draft", drafts.flat_tensors() | STRAY)
    finding = refusal(inspection.require_same, loaded(source, "vllm"), "vllm")
    assert finding.code == "serve-folder"
    assert "verifier_lm_head.weight: vLLM has no such parameter" in finding.message


# What a target cannot hand over.

TARGETS = {
    "embedding-tap": ("vllm", {"model_type": "deepseek_v3"}, "DeepseekV3ForCausalLM", (0, 3, 5)),
    "target-captures-nothing": ("vllm", {"model_type": "mimo"}, "MiMoForCausalLM", (1, 3, 5)),
    "target-captures-other": (
        "sglang",
        {"model_type": "gemma3_text"},
        "Gemma3ForCausalLM",
        (1, 3, 5),
    ),
    "end-tap": ("sglang", {}, "LlamaForCausalLM", (2, 4, 6)),
}


@pytest.mark.parametrize("code", TARGETS)
def test_serve_and_inspect_know_what_convert_refuses(code, tmp_path):
    engine, keys, architecture, taps = TARGETS[code]
    ids = {"eagle_aux_hidden_state_layer_ids": list(taps)}
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in taps]}}
    source = (
        drafts.vllm(tmp_path / "draft", **ids)
        if engine == "vllm"
        else drafts.sglang(tmp_path / "draft", **nested)
    )
    model = drafts.target(tmp_path / "target", architectures=[architecture], **keys)
    whole = loaded(source, engine, target=model)
    assert refusals(convert, source, engine, layout=engine, target=model) == {code}
    assert refusals(inspection.require_same, whole, engine) == {code}
    state = "different" if code == "target-captures-other" else "does-not-load"
    assert inspection.engines(whole)[engine]["as_is"] == state


# Folders for all three.


@pytest.mark.parametrize(
    "edit",
    [
        lambda config: config["transformer_layer_config"].update(rms_norm_eps=1e-6),
        lambda config: config["eagle_config"].update(eagle_aux_hidden_state_layer_ids=[1, 2, 4]),
        lambda config: config.update(norm_before_residual=True),
    ],
)
def test_a_folder_in_which_readers_find_different_networks_is_no_ones(edit, tmp_path):
    folder = convert(drafts.speculators(tmp_path / "draft"), "universal").folder
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    (folder / "config.json").write_text(json.dumps(config))
    assert refusals(loaded, folder) & {"readers-disagree", "ids-disagree", "residual-unread"}
    assert loaded(folder, "speculators")


def test_of_a_folder_for_all_three_the_verifier_tells_how_sglang_reads_ids(tmp_path):
    model = drafts.target(
        tmp_path / "target", model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"]
    )
    folder = convert(drafts.speculators(tmp_path / "draft"), "universal", target=model).folder
    assert verdicts(folder) == {"speculators": "same", "sglang": "same", "vllm": "same"}
    assert convert(folder, "sglang", target=model).draft.taps == (1, 3, 5)


def test_readers_that_disagree_in_the_taps_alone_are_settled_by_the_users_taps(tmp_path):
    folder = convert(drafts.speculators(tmp_path / "draft"), "universal").folder
    config = json.loads((folder / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2]
    (folder / "config.json").write_text(json.dumps(config))
    assert "readers-disagree" in refusals(loaded, folder)
    assert described(folder, taps=(1, 3, 5)).taps == (1, 3, 5)


def test_inspect_says_of_such_a_folder_what_each_framework_finds(tmp_path):
    folder = convert(drafts.speculators(tmp_path / "draft"), "universal").folder
    config = json.loads((folder / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2]
    (folder / "config.json").write_text(json.dumps(config))
    whole = api.load(str(folder), weights=False, shared=False)
    found = {name: facts["as_is"] for name, facts in inspection.engines(whole).items()}
    assert found == {"speculators": "same", "sglang": "different", "vllm": "different"}


def test_silu_under_its_other_name_is_the_librarys_alone(tmp_path):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], "hidden_act": "swish"}
    source = drafts.speculators(tmp_path / "draft", transformer_layer_config=layer)
    found = verdicts(source)
    assert (found["speculators"], found["vllm"]) == ("same", "does-not-load")
    flat = drafts.sglang(tmp_path / "flat", hidden_act="swish")
    assert verdicts(flat)["sglang"] == "does-not-load"
    assert convert(flat, "sglang").config["hidden_act"] == "silu"
