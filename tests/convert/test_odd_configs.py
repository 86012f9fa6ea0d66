"""Whatever stands under a config key, a conversion is done, or refused by name: it never breaks."""

import json
import random
from itertools import product

import drafts
import pytest
from conversions import convert, described, loaded, refusals
from typer.testing import CliRunner

from eagle3_interop.convert import api
from eagle3_interop.convert.cli import app
from eagle3_interop.convert.decide.overrides import _paths
from eagle3_interop.schemas.findings import Refused, Usage

NONSENSE = [
    None, True, 0, -1, 3, 2**31, 10**30, 0.0, -1.5, 1e308, 4.0, "", "x", "true",
    [], [0], ["a"], [None], [[1]], [10**20, 1, 2], {}, {"a": 1},
    {"rope_type": ["x"]}, {"rope_type": "yarn", "factor": "x"}, {"rope_theta": "x"},
    {"rope_type": "yarn", "factor": 8.0, "attention_factor": "x"}, {"rope_theta": 0},
    {"mrope_section": "x"}, {"partial_rotary_factor": "a"}, {"full_attention": {"rope_theta": []}},
]  # fmt: skip
MORE_KEYS = (
    "rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor", "layer_types",
    "sliding_window", "use_sliding_window", "max_window_layers", "attention_bias",
    "original_max_position_embeddings", "target_hidden_size", "fc_norm", "norm_before_fc", "dtype",
    "logit_scale", "bias", "num_aux_layers", "quantization_config", "auto_map", "is_causal",
    "transformer_layer_config", "speculators_config", "eagle_config", "mask_token_id",
)  # fmt: skip
KINDS = {
    "sglang": (drafts.sglang, drafts.SGLANG_CONFIG),
    "vllm": (drafts.vllm, drafts.VLLM_CONFIG),
    "speculators": (drafts.speculators, drafts.SPECULATORS_CONFIG),
}


def places(config):
    """Dotted paths of a config's keys, two levels deep, and of keys that it could have."""
    for key, value in {**dict.fromkeys(MORE_KEYS), **config}.items():
        yield (key,)
        if isinstance(value, dict):
            inner = MORE_KEYS if key == "transformer_layer_config" else ("layer_ids",)
            yield from ((key, one) for one in (*value, *inner))


def changed(config, path, value):
    if len(path) == 1:
        return {**config, path[0]: value}
    return {**config, path[0]: {**config.get(path[0], {}), path[1]: value}}


def outcome(source, layout, destination, options):
    """Converted or refused; anything else that happens fails the test."""
    try:
        api.convert(api.load(str(source), layout, options), destination, options)
    except (Refused, Usage):
        return "refused"
    return "converted"


@pytest.mark.parametrize("layout", KINDS)
def test_any_value_of_any_key_is_converted_or_refused(tmp_path, layout):
    make, config = KINDS[layout]
    source = make(tmp_path / "draft")
    options = api.Options(target_name="org/target")
    every = list(product(places(config), NONSENSE))
    met = set()
    for path, value in random.Random(layout).sample(every, 400):  # noqa: S311 - no secret
        text = json.dumps(changed(config, path, value))
        (source / "config.json").write_text(text)
        met.add(outcome(source, layout, "universal", options))
    assert met == {"converted", "refused"}


@pytest.mark.parametrize("destination", ["speculators", "sglang", "vllm", "universal"])
def test_any_value_of_any_setting_is_obeyed_or_refused(tmp_path, destination):
    source = drafts.speculators(tmp_path / "draft")
    values = [None, True, 0, -1, 3, 2**31, 10**20, float("nan"), float("inf"), "x", [], [1], {}]
    every = list(product(sorted(_paths()), values))
    met = set()
    for path, value in random.Random(destination).sample(every, 120):  # noqa: S311 - no secret
        options = api.Options(target_name="org/target", sets={path: value})
        met.add(outcome(source, "auto", destination, options))
    assert met == {"converted", "refused"}


def test_a_huge_layer_count_costs_no_memory(tmp_path):
    """The tensors count: a config that claims two thousand million layers is read as theirs."""
    source = drafts.sglang(tmp_path / "draft", num_hidden_layers=2**27, sliding_window=4)
    assert described(source).layers.count == 1


def test_layers_are_counted_not_numbered(tmp_path):
    """One tensor of a layer 99999999 makes no hundred million layers."""
    tensors = drafts.flat_tensors()
    tensors["layers.99999999.self_attn.q_proj.weight"] = tensors["midlayer.mlp.up_proj.weight"]
    source = drafts.vllm(tmp_path / "draft", tensors, num_hidden_layers=10**8)
    assert "unknown-tensor" in refusals(loaded, source)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "draft_vocab_size", "head_dim"])
def test_sizes_that_cannot_be_meant_are_refused(tmp_path, key):
    source = drafts.sglang(tmp_path / "draft", **{key: 2**40})
    assert refusals(loaded, source) == {"bad-config"}


@pytest.mark.parametrize("destination", ["sglang", "vllm", "universal"])
def test_a_config_without_positions_gets_what_engines_take(tmp_path, destination):
    source = drafts.vllm(tmp_path / "draft", max_position_embeddings=None)
    result = convert(source, destination)
    assert result.config["max_position_embeddings"] == 2048
    assert any("max_position_embeddings" in item.where for item in result.findings)


@pytest.mark.parametrize(
    ("scaling", "parameters"),
    [
        ("yarn", {"factor": "x", "original_max_position_embeddings": 64}),
        ("yarn", {"factor": 8.0}),
        ("linear", {}),
        ("linear", {"factor": -2.0}),
        ("longrope", {"short_factor": ["x"], "long_factor": [1.0]}),
        (None, {"factor": 8.0}),
    ],
)
def test_a_rope_that_cannot_be_computed_is_not_set(tmp_path, scaling, parameters):
    source = drafts.sglang(tmp_path / "draft")
    sets = {"rope.scaling": scaling, "rope.parameters": parameters}
    with pytest.raises(Usage, match="rope"):
        loaded(source, sets=sets)


def test_what_would_not_read_back_is_refused(tmp_path):
    """``swish`` is transformers' name for silu and no engine's, so it is no name to write."""
    source = drafts.speculators(tmp_path / "draft")
    sets = {"layers.mlp.activation": "swish"}
    assert refusals(convert, source, "speculators", sets=sets) == {"not-read-back"}


@pytest.mark.parametrize("key", sorted(drafts.target_config()))
def test_any_value_of_any_key_of_a_target_is_read_or_refused(tmp_path, key):
    source, target = drafts.speculators(tmp_path / "draft"), drafts.target(tmp_path / "target")
    for value in (None, True, 0, -1, 3, 2**40, 1.5, "", "x", [], [1], {}, {"hidden_size": "x"}):
        (target / "config.json").write_text(json.dumps({**drafts.target_config(), key: value}))
        options = api.Options(target=str(target), target_name="org/target")
        assert outcome(source, "auto", "universal", options) in ("converted", "refused")


@pytest.mark.parametrize("inner", [None, True, 3, "x", [1], {"num_attention_heads": "x"}])
def test_serve_reads_a_flat_config_whatever_stands_beside_it(tmp_path, inner):
    source = drafts.sglang(tmp_path / "draft", transformer_layer_config=inner)
    command = ["serve", str(source), "--engine", "sglang", "--json", "--check", "--x 1"]
    result = CliRunner().invoke(app, [*command, "--target", str(drafts.target(tmp_path / "t"))])
    assert json.loads(result.stdout)["status"] == "wrong"
