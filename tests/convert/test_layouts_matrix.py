"""The support matrix: each feature, from a framework that has it, into each of the three.

``stock``: SGLang's own class computes it; ``plugin``: only with the plugin (and refused under
``stock=True``); ``yes``: converted and read back; any other word is the code of the refusal.
"""

import drafts
import numpy as np
import pytest
from conversions import convert, described, refusals
from drafts import HEAD_DIM, HEADS, KV, WIDTH, D, H, V, random

LAYER = drafts.LAYER_CONFIG


def speculators(folder, tensors=None, *, layer=None, **changes):
    config = {**drafts.SPECULATORS_CONFIG["transformer_layer_config"], **(layer or {})}
    return drafts.speculators(folder, tensors, transformer_layer_config=config, **changes)


def more(*tensors):
    merged = drafts.speculators_tensors()
    for item in tensors:
        merged |= item
    return merged


def bias(part, rows, seed=50):
    return {f"layers.0.{part}.bias": random((rows,), seed)}


QKV = (
    bias("self_attn.q_proj", HEADS * HEAD_DIM)
    | bias("self_attn.k_proj", KV * HEAD_DIM)
    | bias("self_attn.v_proj", KV * HEAD_DIM)
)
O_PROJ = bias("self_attn.o_proj", H)
MLP = bias("mlp.gate_proj", WIDTH) | bias("mlp.up_proj", WIDTH) | bias("mlp.down_proj", H)
QK_NORMS = {
    f"layers.0.self_attn.{part}_norm.weight": 1 + random((HEAD_DIM,), 60) for part in ("q", "k")
}
BLOCK_NORMS = {f"fc_norm.{i}.weight": 1 + random((H,), 70 + i) for i in range(3)}
QWEN3 = {"model_type": "qwen3", "use_sliding_window": False, "sliding_window": None}


def wide(folder):
    """A target wider than its draft, as vLLM and SGLang alone allow."""
    tensors = drafts.flat_tensors() | drafts.common_tensors(3, 128)
    return drafts.vllm(
        folder, tensors | {"embed_tokens.weight": random((V, H), 4)}, target_hidden_size=128
    )


def no_fc(folder):
    tensors = drafts.flat_tensors()
    del tensors["fc.weight"]
    changes = {"eagle_config": {"use_aux_hidden_state": False}}
    return drafts.vllm(
        folder,
        tensors,
        **changes,
        eagle_aux_hidden_state_layer_ids=drafts.ABSENT,
        num_aux_hidden_states=drafts.ABSENT,
    )


FEATURES = {
    "plain": lambda f: speculators(f),
    "normed residual": lambda f: speculators(f, norm_before_residual=True),
    "q/k norms": lambda f: speculators(f, more(QK_NORMS), layer=QWEN3),
    "q/k/v biases": lambda f: speculators(
        f,
        more(QKV, {k: np.zeros_like(v) for k, v in O_PROJ.items()}),
        layer={"attention_bias": True},
    ),
    "q/k/v/o biases": lambda f: speculators(f, more(QKV, O_PROJ), layer={"attention_bias": True}),
    "q/k/v biases, q/k norms": lambda f: speculators(
        f,
        more(QK_NORMS, QKV, {k: np.zeros_like(v) for k, v in O_PROJ.items()}),
        layer={**QWEN3, "attention_bias": True},
    ),
    "MLP biases": lambda f: speculators(f, more(MLP), layer={"mlp_bias": True}),
    "sliding window": lambda f: speculators(
        f, layer={"sliding_window": 64, "layer_types": ["sliding_attention"]}
    ),
    "norm before fc": lambda f: speculators(
        f, more({"input_norm.weight": 1 + random((3 * H,), 80)}), norm_before_fc=True
    ),
    "block norms": lambda f: speculators(f, more(BLOCK_NORMS), fc_norm=True),
    "post-norm feedback": lambda f: speculators(f, norm_output=True),
    "two layers": lambda f: speculators(
        f, drafts.speculators_tensors(2), layer={"num_hidden_layers": 2}
    ),
    "four taps": lambda f: speculators(
        f, more(drafts.common_tensors(4)), eagle_aux_hidden_state_layer_ids=[0, 1, 3, 5]
    ),
    "two taps": lambda f: speculators(
        f, more(drafts.common_tensors(2)), eagle_aux_hidden_state_layer_ids=[1, 5]
    ),
    "one tap": lambda f: speculators(
        f, more(drafts.common_tensors(1)), eagle_aux_hidden_state_layer_ids=[3]
    ),
    "embedding tap": lambda f: speculators(f, eagle_aux_hidden_state_layer_ids=[0, 3, 5]),
    "trained embeddings": lambda f: speculators(f, embed_requires_grad=True),
    "gelu": lambda f: speculators(f, layer={"hidden_act": "gelu"}),
    "target of another width": wide,
    "no fc": no_fc,
    "fc bias": lambda f: drafts.sglang(
        f,
        drafts.flat_tensors()
        | {"fc.bias": random((H,), 81), "midlayer.self_attn.o_proj.bias": random((H,), 82)},
        bias=True,
    ),
    "logit scale": lambda f: drafts.vllm(f, logit_scale=0.5),
    "both fc norms": lambda f: drafts.vllm(
        f,
        drafts.flat_tensors() | BLOCK_NORMS | {"input_norm.weight": 1 + random((3 * H,), 80)},
        norm_before_fc=True,
        fc_norm=True,
    ),
    "part of each head rotated": lambda f: drafts.vllm(f, partial_rotary_factor=0.5),
    "multimodal rope": lambda f: drafts.vllm(
        f, rope_scaling={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    ),
    "a map over the full vocabulary": lambda f: drafts.sglang(
        f,
        drafts.flat_tensors()
        | {"lm_head.weight": random((V, H), 3)}
        | drafts.maps(np.random.default_rng(1).permutation(V)),
        draft_vocab_size=V,
    ),
    "the target's head": lambda f: drafts.sglang(
        f, without(drafts.flat_tensors(), "lm_head.weight", "d2t", "t2d"), draft_vocab_size=None
    ),
    "the full vocabulary": lambda f: drafts.sglang(
        f,
        without(drafts.flat_tensors(), "d2t", "t2d") | {"lm_head.weight": random((V, H), 3)},
        draft_vocab_size=V,
    ),
}


def without(tensors, *names):
    return {name: value for name, value in tensors.items() if name not in names}


MATRIX = [
    # feature                          speculators        SGLang               vLLM
    ("plain", "yes", "stock", "yes"),
    ("normed residual", "yes", "plugin", "yes"),
    ("q/k norms", "yes", "plugin", "yes"),
    ("q/k/v biases", "yes", "plugin", "yes"),
    ("q/k/v/o biases", "yes", "plugin", "yes"),
    ("q/k/v biases, q/k norms", "yes", "plugin", "yes"),
    ("MLP biases", "yes", "mlp-bias", "yes"),
    ("sliding window", "yes", "plugin", "yes"),
    ("norm before fc", "yes", "stock", "yes"),
    ("block norms", "yes", "stock", "yes"),
    ("post-norm feedback", "yes", "stock", "yes"),
    ("two layers", "yes", "stock", "yes"),
    ("four taps", "yes", "stock", "yes"),
    ("two taps", "yes", "stock", "yes"),
    ("one tap", "yes", "one-equal-tap", "yes"),
    ("embedding tap", "yes", "stock", "yes"),
    ("trained embeddings", "yes", "plugin", "yes"),
    ("gelu", "yes", "activation", "activation"),
    ("target of another width", "other-width", "stock", "yes"),
    ("no fc", "no-fc", "stock", "yes"),
    ("fc bias", "fc-bias", "stock", "fc-bias"),
    ("logit scale", "logit-scale", "logit-scale", "yes"),
    ("both fc norms", "both-fc-norms", "stock", "yes"),
    ("part of each head rotated", "partial-rotary", "stock", "yes"),
    ("multimodal rope", "mrope", "stock", "yes"),
    (
        "a map over the full vocabulary",
        "full-vocabulary-map",
        "stock",
        "full-vocabulary-map",
    ),
    ("the target's head", "head-needs-target", "stock", "yes"),
    ("the full vocabulary", "yes", "stock", "yes"),
]
CELLS = [
    pytest.param(feature, destination, outcome, id=f"{feature}: {destination} {outcome}")
    for feature, *outcomes in MATRIX
    for destination, outcome in zip(("speculators", "sglang", "vllm"), outcomes, strict=True)
]


def network(draft):
    """What is computed, without what is told about it, and without whose table of embeddings it is.

    SGLang's stock class always takes the target's table, where it is as wide as the draft: that choice has
    tests of its own (test_embeddings.py).
    """
    facts = draft.model_dump()
    for told in ("speculative_tokens", "trains_embeddings", "max_position"):
        del facts[told]
    facts["target"] = draft.target.hidden_size
    del facts["vocabulary"]["embeddings"]
    return facts


TOLD = {"plain", "trained embeddings"}
"""Rows whose network is the plain one."""


@pytest.mark.parametrize("feature", [row[0] for row in MATRIX if row[0] not in TOLD])
def test_a_feature_is_a_part_of_the_network(feature, tmp_path):
    plain, other = FEATURES["plain"](tmp_path / "plain"), FEATURES[feature](tmp_path / "other")
    assert network(described(plain)) != network(described(other))


@pytest.mark.parametrize(("feature", "destination", "outcome"), CELLS)
def test_a_feature_is_converted_or_refused_by_name(feature, destination, outcome, tmp_path):
    source = FEATURES[feature](tmp_path / "draft")
    if outcome not in ("yes", "stock", "plugin"):
        assert refusals(convert, source, destination) == {outcome}
        return
    result = convert(source, destination)
    assert network(described(result.folder, destination)) == network(described(source))
    assert ("needs-sglang-plugin" in result.codes) == (outcome == "plugin")
    if destination == "sglang":
        stock = result.config["architectures"] == ["LlamaForCausalLMEagle3"]
        assert stock == (outcome == "stock")


@pytest.mark.parametrize(
    ("feature", "code"),
    [
        ("normed residual", "residual-normed"),
        ("q/k norms", "qk-norm"),
        ("q/k/v biases", "qkv-bias"),
        ("sliding window", "sliding-window"),
        ("trained embeddings", "own-embeddings"),
    ],
)
def test_stock_refuses_what_needs_the_plugin(feature, code, tmp_path):
    source = FEATURES[feature](tmp_path / "draft")
    assert refusals(convert, source, "sglang", stock=True) == {code}
    assert code in refusals(convert, source, "universal", stock=True)


def test_sglang_with_q_k_norms_has_no_bias_on_o_proj(tmp_path):
    tensors = more(QK_NORMS, QKV, O_PROJ)
    source = speculators(tmp_path / "draft", tensors, layer={**QWEN3, "attention_bias": True})
    assert refusals(convert, source, "vllm") == {"output-bias"}
    assert "output-bias" in refusals(convert, source, "sglang")


@pytest.mark.parametrize(
    ("feature", "engine"),
    [("norm before fc", "input_norm.weight"), ("block norms", "fc_norm.0.weight")],
)
@pytest.mark.parametrize("destination", ["sglang", "vllm", "universal"])
def test_a_norm_before_fc_keeps_its_bytes_and_gets_its_flag(feature, engine, destination, tmp_path):
    source = FEATURES[feature](tmp_path / "draft")
    result = convert(source, destination)
    flag = {"input_norm.weight": "norm_before_fc", "fc_norm.0.weight": "fc_norm"}[engine]
    assert result.config[flag] is True
    assert np.array_equal(result.tensors[engine], drafts.load(source)[1][engine])


def test_a_window_counts_the_current_position_in_every_framework(tmp_path):
    # speculators: key > query - 64; vLLM: 63 positions to the left of the current one.
    source = FEATURES["sliding window"](tmp_path / "draft")
    assert described(source, "speculators").layers.windows == (64,)
    assert described(source, "vllm").layers.windows == (64,)
    assert convert(source, "vllm").config["sliding_window"] == 64


def test_layers_that_slide_by_different_widths_have_no_config(tmp_path):
    source = speculators(
        tmp_path / "draft", drafts.speculators_tensors(2), layer={"num_hidden_layers": 2}
    )
    assert refusals(convert, source, "vllm", sets={"layers.windows": [8, 16]}) == {"mixed-windows"}


def test_an_fc_as_wide_as_the_draft_is_skipped_by_sglang_and_so_refused_as_its_source(tmp_path):
    nested = {"eagle_aux_hidden_state_layer_ids": [2]}
    tensors = drafts.flat_tensors() | drafts.common_tensors(1)
    source = drafts.sglang(tmp_path / "draft", tensors, eagle_config=nested)
    assert refusals(convert, source, "vllm") == {"one-equal-tap"}


def test_a_reduced_vocabulary_has_as_many_head_rows_as_d(tmp_path):
    assert described(drafts.vllm(tmp_path / "draft")).vocabulary.draft_size == D
