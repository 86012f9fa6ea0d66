"""What engines take a config to reach.

Each value is that of SGLang 0.5.23's `get_context_length`, or of vLLM 0.32's `_get_and_verify_max_len`.
"""

import pytest

from eagle3_interop.schemas.engines.positions import context_of, rope_kind, vllm_context_of

ORIGINAL = {"original_max_position_embeddings": 500}


@pytest.mark.parametrize(
    ("changes", "positions"),
    [
        ({}, 1000),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 4000),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 2000),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.5}}, 2500),
        ({"rope_scaling": {"factor": 2.0}}, 2000),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0, **ORIGINAL}}, 1000),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 1000),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, **ORIGINAL}}, 1000),
        ({"rope_scaling": {"type": "su", "factor": 4.0}}, 4000),
        ({"seq_length": 77}, 77),
    ],
)
def test_a_factor_counts_for_the_scalings_that_have_no_original_length(changes, positions):
    config = {"model_type": "llama", "max_position_embeddings": 1000, **changes}
    assert context_of(config) == positions


@pytest.mark.parametrize(("model_type", "positions"), [("llama", 2048), ("qwen3", 32768)])
def test_a_config_without_positions_has_its_classes_default(model_type, positions):
    assert context_of({"model_type": model_type}) == positions


def test_a_class_that_is_not_known_leaves_it_open():
    assert context_of({"model_type": "of-tomorrow"}) is None
    assert vllm_context_of({"model_type": "of-tomorrow"}) is None


@pytest.mark.parametrize(
    ("changes", "positions"),
    [
        ({}, 1000),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 4000),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 2000),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.5, **ORIGINAL}}, 2500),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0, **ORIGINAL}}, 4000),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 1000),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, **ORIGINAL}}, 1000),
        ({"rope_scaling": {"type": "su", "factor": 4.0, **ORIGINAL}}, 1000),
        ({"rope_scaling": {"type": "su", "factor": 4.0}, **ORIGINAL}, 500),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}, **ORIGINAL}, 500),
        ({"rope_scaling": {"type": "mrope", "factor": 2.0}}, 2000),
        ({"seq_length": 77}, 77),
        ({"max_seq_len": 5000}, 1000),
        ({"model_max_length": 4096}, 4096),
    ],
)
def test_vllm_goes_by_the_smallest_key_and_by_other_factors(changes, positions):
    config = {"model_type": "llama", "max_position_embeddings": 1000, **changes}
    assert vllm_context_of(config) == positions


def test_vllm_takes_gemma3s_positions_as_scaled_already():
    linear = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    config = {"model_type": "gemma3_text", "max_position_embeddings": 1000, **linear}
    assert vllm_context_of(config) == 1000


@pytest.mark.parametrize(("model_type", "positions"), [("llama", 2048), ("qwen3", 32768)])
def test_vllm_too_gives_a_config_without_positions_its_classes_default(model_type, positions):
    assert vllm_context_of({"model_type": model_type}) == positions


@pytest.mark.parametrize(("old", "new"), [("su", "longrope"), ("mrope", "default")])
def test_an_old_name_of_a_rope_is_todays(old, new):
    assert rope_kind({"rope_scaling": {"type": old}}) == new


@pytest.mark.parametrize("count", [context_of, vllm_context_of])
@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"type": "linear", "factor": 1e308}},
        {"rope_scaling": {"type": "linear", "factor": float("nan")}},
        {"rope_scaling": {"type": "linear", "factor": float("inf")}},
        {"rope_scaling": {"type": "linear", "factor": 10**400}},
        {"max_position_embeddings": 10**400},
        {"max_position_embeddings": 10**400, "rope_scaling": {"type": "linear", "factor": 1.5}},
        {"max_position_embeddings": None, "model_max_length": "many"},
    ],
)
def test_what_is_no_number_of_positions_leaves_it_open(count, changes):
    assert count({"max_position_embeddings": 1000, **changes}) is None
