"""Whose embedding table a draft uses, and what becomes of a stored one."""

import drafts
import numpy as np
import pytest
from conversions import convert, refusals
from drafts import H, V, random

TABLE = "embed_tokens.weight"
OWN = random((V, H), 99)


@pytest.fixture
def target(tmp_path):
    return drafts.target(tmp_path / "target")


def sglang_with(folder, table):
    return drafts.sglang(folder, drafts.flat_tensors() | {TABLE: table})


def trained(folder, **changes):
    return drafts.speculators(folder, drafts.speculators_tensors() | {TABLE: OWN}, **changes)


@pytest.mark.parametrize("destination", ["vllm", "speculators"])
def test_sglang_to_others_keeps_a_table_equal_to_the_targets(destination, target, tmp_path):
    source = sglang_with(tmp_path / "draft", random((V, H), 4))
    result = convert(source, destination, target=target)
    assert np.array_equal(result.tensors[TABLE], random((V, H), 4))
    assert "embeddings-equal" in result.codes


def test_sglang_to_vllm_leaves_out_a_table_that_it_never_used(target, tmp_path):
    result = convert(sglang_with(tmp_path / "draft", OWN), "vllm", target=target)
    assert TABLE not in result.tensors
    assert "embeddings-left-out" in result.codes


def test_sglang_to_speculators_writes_the_targets_table_for_one_it_never_used(target, tmp_path):
    result = convert(sglang_with(tmp_path / "draft", OWN), "speculators", target=target)
    assert np.array_equal(result.tensors[TABLE], random((V, H), 4))
    assert {"embeddings-left-out", "embeddings-from-target"} <= result.codes


@pytest.mark.parametrize("destination", ["vllm", "speculators"])
def test_sglang_to_others_without_a_target_keeps_the_table_and_warns(destination, tmp_path):
    result = convert(sglang_with(tmp_path / "draft", OWN), destination)
    assert np.array_equal(result.tensors[TABLE], OWN)
    assert result.said("embeddings-unverified").severity == "warning"


def test_others_to_sglang_with_a_table_equal_to_the_targets_is_stock(target, tmp_path):
    result = convert(drafts.speculators(tmp_path / "draft"), "sglang", target=target, stock=True)
    assert result.config["architectures"] == ["LlamaForCausalLMEagle3"]


def test_others_to_sglang_with_another_table_needs_the_plugin(target, tmp_path):
    source = trained(tmp_path / "draft")
    result = convert(source, "sglang", target=target)
    assert result.config["architectures"] == ["Eagle3LlamaForCausalLM"]
    assert np.array_equal(result.tensors[TABLE], OWN)
    assert refusals(convert, source, "sglang", target=target, stock=True) == {"own-embeddings"}


def test_others_to_sglang_without_a_target_is_stock_with_a_warning(tmp_path):
    result = convert(trained(tmp_path / "draft"), "sglang")
    assert result.config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert result.said("embeddings-unverified").severity == "warning"


def test_a_trained_table_needs_the_plugin_also_without_a_target(tmp_path):
    result = convert(trained(tmp_path / "draft", embed_requires_grad=True), "sglang")
    assert result.config["architectures"] == ["Eagle3LlamaForCausalLM"]


def test_a_trained_flag_is_overruled_by_equal_tables(target, tmp_path):
    source = drafts.speculators(tmp_path / "draft", embed_requires_grad=True)
    assert convert(source, "sglang", target=target, stock=True)


@pytest.mark.parametrize("destination", ["sglang", "vllm"])
def test_an_absent_table_stays_absent_where_the_engine_shares_the_targets(
    destination, target, tmp_path
):
    source = drafts.vllm(tmp_path / "draft", drafts.flat_tensors(embeddings=False))
    assert TABLE not in convert(source, destination, target=target).tensors


@pytest.mark.parametrize("destination", ["speculators", "universal"])
def test_an_absent_table_is_written_out_for_the_library_that_leaves_it_uninitialised(
    destination, target, tmp_path
):
    source = drafts.vllm(tmp_path / "draft", drafts.flat_tensors(embeddings=False))
    result = convert(source, destination, target=target)
    assert np.array_equal(result.tensors[TABLE], random((V, H), 4))
    assert "embeddings-from-target" in result.codes


@pytest.mark.parametrize("destination", ["speculators", "universal"])
def test_an_absent_table_is_refused_for_the_library_without_a_target(destination, tmp_path):
    source = drafts.vllm(tmp_path / "draft", drafts.flat_tensors(embeddings=False))
    assert refusals(convert, source, destination) == {"embeddings-need-target"}


def test_tables_are_compared_as_numbers_whatever_their_dtypes(tmp_path):
    table = np.round(random((V, H), 4)).astype(np.float16)
    target = drafts.target(tmp_path / "target", embeddings=table.astype(np.float32))
    result = convert(sglang_with(tmp_path / "draft", table), "vllm", target=target)
    assert "embeddings-equal" in result.codes


def test_a_table_of_another_vocabulary_is_refused_also_where_it_is_never_used(tmp_path):
    source = sglang_with(tmp_path / "draft", random((V + 1, H), 4))
    assert refusals(convert, source, "sglang") == {"shape-mismatch"}


# A head tied to the embeddings is the target's table in SGLang.


def tied(folder, **changes):
    tensors = drafts.flat_tensors()
    for name in ("lm_head.weight", "d2t", "t2d"):
        del tensors[name]
    return drafts.sglang(folder, tensors, tie_word_embeddings=True, draft_vocab_size=V, **changes)


@pytest.mark.parametrize("destination", ["vllm", "speculators", "universal"])
def test_a_tied_head_is_written_out_as_the_targets_table(destination, target, tmp_path):
    result = convert(tied(tmp_path / "draft"), destination, target=target)
    assert np.array_equal(result.tensors["lm_head.weight"], random((V, H), 4))
    assert "head-from-embeddings" in result.codes


def test_a_tied_head_stays_tied_in_sglang(tmp_path):
    result = convert(tied(tmp_path / "draft"), "sglang")
    assert result.config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in result.tensors


def test_a_tied_head_needs_the_target_elsewhere(tmp_path):
    assert refusals(convert, tied(tmp_path / "draft"), "vllm") == {"head-needs-target"}


def test_a_tied_head_has_no_reduced_vocabulary(tmp_path):
    tensors = {k: v for k, v in drafts.flat_tensors().items() if k != "lm_head.weight"}
    source = drafts.sglang(tmp_path / "draft", tensors, tie_word_embeddings=True)
    assert "tied-head" in refusals(convert, source, "sglang")


def test_a_tied_head_beside_a_stored_one_is_a_question(tmp_path):
    source = drafts.sglang(tmp_path / "draft", tie_word_embeddings=True)
    assert "unused-head" in refusals(convert, source, "vllm")


def test_vllm_reads_no_tie(tmp_path):
    result = convert(drafts.vllm(tmp_path / "draft", tie_word_embeddings=True), "vllm")
    assert result.config["tie_word_embeddings"] is False
    assert "tie-unread" in result.codes
