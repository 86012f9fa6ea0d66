"""Every default here is the one that the installed framework's own class has."""

import pytest
from transformers import (
    AutoConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from eagle3_interop.schemas.dialects import hf

THEIRS = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "phi3": Phi3Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
DERIVED = {"head_dim": "head_size", "num_key_value_heads": "kv_heads"}
NOT_THEIRS = {"rope_theta", "rope_scaling", "partial_rotary_factor"}
"""Old spellings that transformers 5 moves into rope_parameters."""
COMPUTED = {(kind, "rope_parameters") for kind in THEIRS} | {
    (kind, key) for kind in ("qwen2", "qwen3") for key in ("layer_types", "sliding_window")
}
"""Computed from other keys: the tests of rope and of windows compare what comes out."""


def test_every_class_is_judged():
    assert hf.CONFIGS.keys() == THEIRS.keys()


CASES = [
    pytest.param(kind, key, id=f"{kind}.{key}")
    for kind, ours in hf.CONFIGS.items()
    for key in sorted(set(ours.model_fields) - NOT_THEIRS)
    if (kind, key) not in COMPUTED
]


PRESENT = [one for one in CASES if hasattr(THEIRS[one.values[0]](), one.values[1])]
ABSENT = [one for one in CASES if one not in PRESENT]


@pytest.mark.parametrize(("kind", "key"), PRESENT)
def test_a_default_is_transformers_own(kind, key):
    mine = getattr(hf.CONFIGS[kind](), DERIVED.get(key, key))
    assert mine == getattr(THEIRS[kind](), key)


@pytest.mark.parametrize(("kind", "key"), ABSENT)
def test_a_key_that_transformers_class_lacks_is_off_by_default(kind, key):
    assert getattr(hf.CONFIGS[kind](), key) in (None, False)


LATENT = {"deepseek_v2": DeepseekV2Config, "deepseek_v3": DeepseekV3Config}


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (kind, key)
        for kind, theirs in LATENT.items()
        for key in sorted(hf.LATENT_CONFIGS[kind].model_fields)
        if hasattr(theirs(), key) and key not in (*NOT_THEIRS, "head_dim", "rope_parameters")
        if key != "num_key_value_heads"
    ],
)
def test_a_default_of_latent_attention_is_transformers_own(kind, key):
    assert getattr(hf.LATENT_CONFIGS[kind](), key) == getattr(LATENT[kind](), key)


def test_engines_take_other_model_types_of_latent_attention_for_deepseek_v3s():
    v3 = hf.LATENT_CONFIGS["deepseek_v3"]
    assert {k for k, v in hf.LATENT_CONFIGS.items() if v is v3} >= {"kimi_k2", "deepseek_v32"}


ROPES = [
    {},
    {"rope_theta": 5e5},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_theta": 1e4},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 7.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    },
]


@pytest.mark.parametrize(
    ("kind", "changes"),
    # Phi-3's own class takes longrope only.
    [(k, one) for k in THEIRS for one in ROPES if k != "phi3" or "rope_scaling" not in one],
)
def test_rope_is_resolved_as_transformers_does(kind, changes):
    theirs = THEIRS[kind](**changes).rope_parameters
    ours = hf.read_rope(hf.CONFIGS[kind](**changes), "config", lambda _: None)
    assert ours.theta == theirs["rope_theta"]
    assert (ours.scaling or "default") == theirs["rope_type"]
    rest = {key: value for key, value in theirs.items() if key not in hf._SPOKEN}
    assert ours.parameters == rest


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
        },
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
        {
            "use_sliding_window": False,
            "sliding_window": 8,
            "layer_types": ["sliding_attention"] * 32,
        },
        {
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["sliding_attention"] * 32,
        },
    ],
)
def test_windows_are_filled_in_as_transformers_does(kind, changes):
    theirs = THEIRS[kind](**changes)
    config = hf.CONFIGS[kind](**changes)
    ours = hf.read_windows(config, config.num_hidden_layers, kind)
    expected = tuple(
        theirs.sliding_window if kind_of == "sliding_attention" else None
        for kind_of in theirs.layer_types
    )
    assert ours == expected


def test_llama_heads_divide_the_width_as_transformers_demands():
    with pytest.raises(Exception, match="multiple"):
        LlamaConfig(hidden_size=10, num_attention_heads=3)
    with pytest.raises(ValueError, match="multiple"):
        hf.LlamaConfig(hidden_size=10, num_attention_heads=3)


def test_a_null_head_dim_is_no_qwen3():
    with pytest.raises(Exception, match="head_dim"):
        Qwen3Config(head_dim=None)
    with pytest.raises(ValueError, match="head_dim"):
        hf.Qwen3Config(head_dim=None)


@pytest.mark.parametrize("layout", ["sglang", "vllm", "universal"])
def test_transformers_loads_what_is_written_to_the_same_numbers(layout, tmp_path):
    import drafts
    from conversions import convert

    source = drafts.speculators(tmp_path / "draft")
    result = convert(source, layout)
    config = AutoConfig.from_pretrained(result.folder)
    written = result.draft
    assert config.head_dim == written.layers.attention.head_dim
    assert config.num_key_value_heads == written.layers.attention.kv_heads
    assert config.rope_parameters["rope_theta"] == written.rope.theta
    assert config.rms_norm_eps == written.layers.norm_eps
