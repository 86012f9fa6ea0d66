"""Strict loading: every tensor of the network, under any name that SGLang takes, and no other."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from eagle3_interop.sglang_plugin.tensors import (
    DraftCheckpointError,
    StrictTensors,
    feature_blocks,
    latent_name,
    latent_required,
    module_name,
    required,
)

CONFIG: dict[str, Any] = {
    "hidden_size": 8,
    "head_dim": 4,
    "vocab_size": 32,
    "draft_vocab_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
}


class Array(np.ndarray[Any, Any]):
    """numpy with torch's ``equal``."""

    def equal(self, other: Any) -> bool:
        return np.array_equal(self, other)


def config(**changes: Any) -> Any:
    return SimpleNamespace(**{**CONFIG, **changes})


def tensors(shapes: dict[str, Any]) -> dict[str, Array]:
    return {name: np.ones(shape).view(Array) for name, shape in shapes.items()}


def load(
    stored: dict[str, Array], shapes: dict[str, Any], optional: tuple[str, ...] = ()
) -> set[str]:
    strict = StrictTensors(shapes, optional)
    assert all(name in shapes for name, _ in strict.checked(stored.items()))
    return strict.seen


@pytest.fixture
def shapes() -> dict[str, Any]:
    return required(config(), qk_norm=False, output_bias=True)


@pytest.mark.parametrize(
    ("stored", "module"),
    [
        ("midlayer.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight"),
        ("model.midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("model.embed_tokens.weight", "embed_tokens.weight"),
        ("layers.0.input_layernorm.weight", "layers.0.input_layernorm.weight"),
        ("layers.1.input_layernorm.weight", "layers.1.hidden_norm.weight"),
        ("layers.12.input_layernorm.weight", "layers.12.hidden_norm.weight"),
        ("aux_norm_mid.weight", "fc_norm.1.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_names(stored: str, module: str) -> None:
    assert module_name(stored) == module


def test_the_whole_network_passes(shapes: dict[str, Any]) -> None:
    assert load(tensors(shapes), shapes) == set(shapes)


def test_first_layers_take_both_inputs(shapes: dict[str, Any]) -> None:
    assert shapes["layers.0.self_attn.q_proj.weight"] == (16, 16)
    assert shapes["layers.1.self_attn.q_proj.weight"] == (16, 8)
    assert shapes["fc.weight"] == (8, 24)


@pytest.mark.parametrize(
    ("changes", "options", "more"),
    [
        ({"attention_bias": True}, {}, {"layers.0.self_attn.o_proj.bias": (8,)}),
        ({"attention_bias": True}, {}, {"layers.1.self_attn.k_proj.bias": (8,)}),
        ({}, {"qk_norm": True}, {"layers.1.self_attn.q_norm.weight": (4,)}),
        ({"fc_norm": True}, {}, {"fc_norm.2.weight": (8,)}),
        ({"eagle_config": {"norm_before_fc": True}}, {}, {"input_norm.weight": (24,)}),
        ({"target_hidden_size": 10}, {}, {"fc.weight": (8, 30)}),
        ({"num_aux_hidden_states": 4}, {}, {"fc.weight": (8, 32)}),
    ],
)
def test_each_key_asks_for_its_tensors(
    changes: dict[str, Any], options: dict[str, bool], more: dict[str, Any]
) -> None:
    found = required(config(**changes), **{"qk_norm": False, "output_bias": True, **options})
    assert more.items() <= found.items()


def test_qwen3_has_no_output_bias() -> None:
    found = required(config(attention_bias=True), qk_norm=True, output_bias=False)
    assert "layers.0.self_attn.q_proj.bias" in found
    assert "layers.0.self_attn.o_proj.bias" not in found


def test_no_fc() -> None:
    bare = config(eagle_config={"use_aux_hidden_state": False})
    assert feature_blocks(bare) == 0
    assert "fc.weight" not in required(bare, qk_norm=False, output_bias=True)


def test_full_vocabulary_has_no_map() -> None:
    found = required(config(draft_vocab_size=32), qk_norm=False, output_bias=True)
    assert "d2t" not in found


def test_t2d_and_computed_tables_are_no_part_of_it(shapes: dict[str, Any]) -> None:
    more = tensors({"t2d": (32,), "midlayer.self_attn.rotary_emb.inv_freq": (2,)})
    assert load(tensors(shapes) | more, shapes) == set(shapes)


def test_a_zero_bias_on_o_proj_changes_nothing(shapes: dict[str, Any]) -> None:
    zeros = {"layers.0.self_attn.o_proj.bias": np.zeros(8).view(Array)}
    assert load(tensors(shapes) | zeros, shapes) == set(shapes)
    with pytest.raises(DraftCheckpointError, match=r"o_proj\.bias"):
        load(tensors(shapes) | tensors({"layers.0.self_attn.o_proj.bias": (8,)}), shapes)


def test_the_target_may_provide_a_table(shapes: dict[str, Any]) -> None:
    stored = tensors(shapes)
    del stored["embed_tokens.weight"]
    assert "embed_tokens.weight" not in load(stored, shapes, ("embed_tokens.weight",))


@pytest.mark.parametrize("name", ["fc.weight", "d2t", "layers.1.hidden_norm.weight"])
def test_a_missing_tensor_is_refused(name: str, shapes: dict[str, Any]) -> None:
    stored = tensors(shapes)
    del stored[name]
    with pytest.raises(DraftCheckpointError, match=name):
        load(stored, shapes, ("embed_tokens.weight",))


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.self_attn.q_proj.bias",
        "layers.0.self_attn.q_norm.weight",
        "layers.2.mlp.up_proj.weight",
        "fc.bias",
        "mask_hidden",
    ],
)
def test_an_unknown_tensor_is_refused(name: str, shapes: dict[str, Any]) -> None:
    with pytest.raises(DraftCheckpointError, match=name):
        load(tensors(shapes) | tensors({name: (4,)}), shapes)


def test_another_shape_is_refused(shapes: dict[str, Any]) -> None:
    stored = tensors(shapes) | tensors({"norm.weight": (7,)})
    with pytest.raises(DraftCheckpointError, match=r"norm.weight.*\[7\].*\[8\]"):
        load(stored, shapes)


def test_two_names_for_one_tensor_are_refused(shapes: dict[str, Any]) -> None:
    stored = tensors(shapes) | tensors({"midlayer.hidden_norm.weight": (8,)})
    with pytest.raises(DraftCheckpointError, match="twice"):
        load(stored, shapes)


@pytest.mark.parametrize("first", ["hidden_norm", "input_layernorm"])
def test_a_later_norm_may_stand_under_either_name_or_both(
    first: str, shapes: dict[str, Any]
) -> None:
    stored = tensors(shapes)
    norm = stored.pop("layers.1.hidden_norm.weight")
    one = {f"layers.1.{first}.weight": norm}
    assert load(stored | one, shapes) == set(shapes)
    both = {f"layers.1.{name}.weight": norm for name in ("hidden_norm", "input_layernorm")}
    assert load(stored | both, shapes) == set(shapes)


def test_a_later_norm_under_two_names_must_be_one(shapes: dict[str, Any]) -> None:
    stored = tensors(shapes)
    stored["layers.1.input_layernorm.weight"] = np.zeros(8).view(Array)
    with pytest.raises(DraftCheckpointError, match="different values"):
        load(stored, shapes)


# Latent attention.

LATENT: dict[str, Any] = {
    **CONFIG,
    "q_lora_rank": 6,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 5,
}


def test_tensors_of_latent_attention_are_those_of_its_ranks() -> None:
    shapes = latent_required(SimpleNamespace(**LATENT), 3)
    # Layer 0 takes [embedding, hidden], 2 x 8 wide; the second layer 8.
    assert shapes["layers.0.self_attn.q_a_proj.weight"] == (6, 16)
    assert shapes["layers.1.self_attn.kv_a_proj_with_mqa.weight"] == (10 + 2, 8)
    assert shapes["layers.1.self_attn.q_b_proj.weight"] == (4 * (3 + 2), 6)
    assert shapes["layers.0.self_attn.kv_b_proj.weight"] == (4 * (3 + 5), 10)
    assert "layers.1.hidden_norm.weight" not in shapes


def test_fc_of_latent_attention_has_a_block_for_each_id() -> None:
    assert latent_required(SimpleNamespace(**LATENT), 2)["fc.weight"] == (8, 2 * 8)


def test_a_draft_with_latent_attention_is_loaded_under_both_names_of_its_first_layer() -> None:
    shapes = latent_required(SimpleNamespace(**LATENT), 3)
    stored = {
        name.replace("layers.0.", "midlayer."): value for name, value in tensors(shapes).items()
    }
    strict = StrictTensors(shapes, (), latent_name)
    assert {name for name, _ in strict.checked(stored.items())} == shapes.keys()


def test_a_prefix_that_sglangs_latent_class_passes_over_is_refused() -> None:
    shapes = latent_required(SimpleNamespace(**LATENT), 3)
    stored = {f"model.{name}": value for name, value in tensors(shapes).items()}
    with pytest.raises(DraftCheckpointError, match="no such tensor"):
        list(StrictTensors(shapes, (), latent_name).checked(stored.items()))
