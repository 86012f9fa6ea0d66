"""Which target token each draft token is: d2t and t2d in every state, and the head's rows with them."""

import drafts
import numpy as np
import pytest
from conversions import codes, convert, described, loaded, refusals
from drafts import D, H, V, random

from eagle3_interop.convert import api
from eagle3_interop.convert.write import stream

UNSORTED = np.random.default_rng(7).permutation(drafts.draft_ids())


@pytest.mark.parametrize("destination", ["speculators", "universal"])
@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_an_unsorted_map_is_sorted_with_its_head_rows_for_speculators(
    layout, destination, tmp_path
):
    source = getattr(drafts, layout)(
        tmp_path / "draft", drafts.flat_tensors() | drafts.maps(UNSORTED)
    )
    result = convert(source, destination)
    ids = result.tensors["d2t"] + np.arange(D)
    assert np.array_equal(ids, np.sort(UNSORTED))
    before = dict(zip(UNSORTED, drafts.load(source)[1]["lm_head.weight"], strict=True))
    for token, row in zip(ids, result.tensors["lm_head.weight"], strict=True):
        assert np.array_equal(row, before[token])
    assert "map-sorted" in result.codes


@pytest.mark.parametrize("destination", ["sglang", "vllm"])
def test_an_unsorted_map_stays_where_order_is_free(destination, tmp_path):
    source = drafts.sglang(tmp_path / "draft", drafts.flat_tensors() | drafts.maps(UNSORTED))
    result = convert(source, destination)
    assert np.array_equal(result.tensors["d2t"] + np.arange(D), UNSORTED)


def test_an_unsorted_map_from_the_trainer_that_sorts_is_a_contradiction(tmp_path):
    tensors = drafts.speculators_tensors() | drafts.maps(UNSORTED)
    source = drafts.speculators(tmp_path / "draft", tensors)
    assert refusals(convert, source, "vllm", layout="speculators") == {"map-order"}


@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
def test_maps_that_name_different_tokens_are_somebodys_mistake(layout, tmp_path):
    tensors = drafts.speculators_tensors() if layout == "speculators" else drafts.flat_tensors()
    other = drafts.maps(drafts.draft_ids(seed=1))["t2d"]
    source = getattr(drafts, layout)(tmp_path / "draft", tensors | {"t2d": other})
    assert refusals(convert, source, "vllm", layout=layout) == {"map-disagrees"}


@pytest.mark.parametrize(
    "d2t",
    [
        np.zeros(D, dtype=np.int64) - 1,
        np.arange(D)[::-1] - 2 * np.arange(D),
        drafts.maps()["d2t"].astype(np.float32),
    ],
    ids=["before the first token", "repeats", "not integers"],
)
def test_a_map_that_is_no_offsets_is_refused(d2t, tmp_path):
    source = drafts.sglang(
        tmp_path / "draft", drafts.flat_tensors() | {"d2t": np.ascontiguousarray(d2t)}
    )
    assert refusals(convert, source, "vllm") == {"bad-map"}


def test_int32_offsets_become_what_speculators_registers(tmp_path):
    small = {"d2t": drafts.maps()["d2t"].astype(np.int32)}
    source = drafts.sglang(tmp_path / "draft", drafts.flat_tensors() | small)
    assert convert(source, "speculators").tensors["d2t"].dtype == np.int64


def test_t2d_of_numbers_becomes_bool_for_speculators(tmp_path):
    listed = {"t2d": drafts.maps()["t2d"].astype(np.uint8)}
    source = drafts.sglang(tmp_path / "draft", drafts.flat_tensors() | listed)
    result = convert(source, "speculators")
    assert np.array_equal(result.tensors["t2d"], drafts.maps()["t2d"])
    assert result.tensors["t2d"].dtype == np.bool_


def full(**maps):
    tensors = {k: v for k, v in drafts.flat_tensors().items() if k not in ("d2t", "t2d")}
    return tensors | {"lm_head.weight": random((V, H), 3)} | maps


IDENTITY = {"d2t": np.zeros(V, dtype=np.int64), "t2d": np.ones(V, dtype=np.bool_)}


@pytest.mark.parametrize("destination", ["vllm", "speculators", "universal"])
def test_identity_maps_are_dropped_where_loaders_fail_on_them(destination, tmp_path):
    source = drafts.sglang(tmp_path / "draft", full(**IDENTITY), draft_vocab_size=V)
    result = convert(source, destination)
    assert not {"d2t", "t2d"} & result.tensors.keys()
    assert "map-dropped" in result.codes


def test_identity_maps_stay_where_sglang_reads_them(tmp_path):
    source = drafts.sglang(tmp_path / "draft", full(**IDENTITY), draft_vocab_size=V)
    assert {"d2t", "t2d"} <= convert(source, "sglang").tensors.keys()


def test_a_full_vocabulary_whose_t2d_lists_fewer_tokens_is_refused(tmp_path):
    source = drafts.sglang(tmp_path / "draft", full(t2d=drafts.maps()["t2d"]), draft_vocab_size=V)
    assert refusals(convert, source, "vllm") == {"map-size"}


def test_a_draft_vocabulary_larger_than_the_targets_is_refused(tmp_path):
    tensors = full() | {"lm_head.weight": random((V + 8, H), 3)}
    source = drafts.sglang(tmp_path / "draft", tensors, draft_vocab_size=V + 8)
    assert refusals(convert, source, "vllm") == {"missing-map"}


# What else is said on reading and writing.


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "absent"])
def test_whose_embeddings_are_used_is_said(stored, tmp_path):
    tensors = drafts.flat_tensors(embeddings=stored)
    assert ("embeddings-replaced" in codes(drafts.sglang(tmp_path / "a", tensors))) == stored
    own = {k: v for k, v in drafts.speculators_tensors().items() if stored or "embed" not in k}
    source = drafts.speculators(tmp_path / "b", own)
    assert ("target-embeddings" in codes(source, "speculators")) != stored


def test_names_that_the_frameworks_own_loader_does_not_know_are_said(tmp_path):
    tensors = {
        f"model.{k}" if "." in k and "lm_head" not in k else k: v
        for k, v in drafts.flat_tensors().items()
    }
    assert "foreign-name" in codes(drafts.vllm(tmp_path / "vllm", tensors))
    assert "foreign-name" not in codes(drafts.sglang(tmp_path / "sglang", tensors))


def test_absent_flags_of_speculators_are_its_classs_defaults_and_said(tmp_path):
    changes = dict.fromkeys(("norm_before_fc", "fc_norm", "norm_output"), drafts.ABSENT)
    source = drafts.speculators(tmp_path / "draft", **changes)
    assert "flag-default" in codes(source)
    assert described(source).feedback == "pre-norm"


def test_readers_disagree_on_an_absent_kind_of_layer(tmp_path):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"]}
    del layer["model_type"]
    source = drafts.speculators(tmp_path / "draft", transformer_layer_config=layer)
    assert refusals(loaded, source, "speculators") == {"absent-qk-norms"}  # of a qwen3 layer
    assert "layer-type-default" in codes(source, "vllm")
    assert not described(source, "vllm").layers.attention.qk_norm


@pytest.mark.parametrize("layout", ["speculators", "vllm"])
def test_a_layer_that_is_neither_llama_nor_qwen3_is_refused(layout, tmp_path):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], "model_type": "mistral"}
    source = drafts.speculators(tmp_path / "draft", transformer_layer_config=layer)
    assert refusals(loaded, source, layout) == {"layer-type"}


def test_a_universal_folder_of_two_layers_has_both_names_of_the_later_norm(tmp_path):
    layer = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], "num_hidden_layers": 2}
    source = drafts.speculators(
        tmp_path / "draft", drafts.speculators_tensors(2), transformer_layer_config=layer
    )
    result = convert(source, "universal")
    one, other = (
        result.tensors[f"layers.1.{name}.weight"] for name in ("hidden_norm", "input_layernorm")
    )
    assert np.array_equal(one, other)
    assert "norm-twice" in result.codes


def test_a_cast_is_said(tmp_path):
    assert "cast" in convert_findings(drafts.vllm(tmp_path / "draft"), dtype="bfloat16")


def convert_findings(source, **options):
    chosen = api.Options(**options)
    conversion = api.convert(api.load(str(source), "auto", chosen), "vllm", chosen)
    return {item.code for item in conversion.fitted.findings}


def test_a_link_that_became_a_copy_is_said(tmp_path):
    result = stream.WriteResult(tmp_path, (), not_linked=("model.safetensors",))
    assert [item.code for item in api.said_of(result)] == ["link-copied"]


def test_a_head_fetched_from_the_target_is_sorted_with_an_unsorted_map(tmp_path):
    ids = np.random.default_rng(7).permutation(drafts.draft_ids())
    tensors = drafts.flat_tensors() | drafts.maps(ids)
    del tensors["lm_head.weight"]
    source = drafts.vllm(tmp_path / "draft", tensors)
    target = drafts.target(tmp_path / "target")
    _, theirs = drafts.load(target)
    result = convert(source, "speculators", target=target)
    assert np.array_equal(result.tensors["lm_head.weight"], theirs["lm_head.weight"][np.sort(ids)])
    assert np.array_equal(result.tensors["d2t"], np.sort(ids) - np.arange(drafts.D))
