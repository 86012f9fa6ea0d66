"""What SGLang takes a config to reach; each value is SGLang 0.5.23's `get_context_length` of that config."""

import pytest

from eagle3_interop.schemas.context import context_of

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
