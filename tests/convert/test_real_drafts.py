"""Published drafts, as public threads give their configs; every size scaled down, every rule kept."""

import math

import drafts
import latent_drafts
import numpy as np
import pytest
from conversions import convert, described, refusals
from drafts import ABSENT, D, H, V, random

IDS = "eagle_aux_hidden_state_layer_ids"
LAYER = drafts.SPECULATORS_CONFIG["transformer_layer_config"]


def speculators(folder, layer=None, tensors=None, **changes):
    merged = {
        key: value for key, value in {**LAYER, **(layer or {})}.items() if value is not ABSENT
    }
    return drafts.speculators(folder, tensors, transformer_layer_config=merged, **changes)


def flat(folder, tensors=None, **changes):
    changes = {"eagle_config": ABSENT, **changes}
    return drafts.sglang(folder, tensors, **changes)


def without(tensors, *names):
    return {name: value for name, value in tensors.items() if name not in names}


def test_gemma_with_ids_and_normed_residual(tmp_path):
    source = speculators(
        tmp_path / "draft",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000}},
        norm_before_residual=True,
        norm_before_fc=False,
        **{IDS: [2, 30, 57]},
    )
    vllm = convert(source, "vllm")
    assert (vllm.config["norm_before_residual"], vllm.config[IDS]) == (True, [2, 30, 57])
    sglang = convert(source, "sglang")
    assert sglang.config["eagle_config"][IDS] == [1, 29, 56]
    assert sglang.config["architectures"] == ["Eagle3LlamaForCausalLM"]


@pytest.mark.parametrize("ids", [ABSENT, None])
def test_qwen3_targets_without_ids(ids, tmp_path):
    layer = {"rope_theta": 1e6, "rope_parameters": ABSENT}
    changes = {"architectures": ["Eagle3Speculator"], "norm_before_residual": True, IDS: ids}
    source = speculators(tmp_path / "draft", layer, **changes)
    assert described(source).taps is None
    assert convert(source, "vllm").config["rope_parameters"]["rope_theta"] == 1e6
    target = drafts.target(tmp_path / "target", num_hidden_layers=36)
    assert convert(source, "sglang", target=target).config["eagle_config"][IDS] == [1, 17, 32]


def test_gpt_oss_20b_normed_before_fc(tmp_path):
    tensors = drafts.speculators_tensors() | {"input_norm.weight": 1 + random((3 * H,), 8)}
    flags = {"norm_before_fc": True, "norm_before_residual": True, IDS: None}
    result = convert(speculators(tmp_path / "draft", tensors=tensors, **flags), "vllm")
    assert result.config["norm_before_fc"] is True
    assert np.array_equal(result.tensors["input_norm.weight"], tensors["input_norm.weight"])


@pytest.mark.parametrize("destination", ["speculators", "vllm"])
def test_nebius_gpt_oss_with_yarn_that_is_not_truncated(destination, tmp_path):
    yarn = {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 512, "truncate": False,
    }  # fmt: skip
    changes = {"truncated_vocab_size": D, "rope_theta": 150000, "rope_scaling": yarn}
    source = flat(tmp_path / "draft", architectures=["LlamaForCausalLM"], **changes)
    result = convert(source, destination)
    keys = result.config.get("transformer_layer_config", result.config)
    assert keys["rope_parameters"] == {**yarn, "rope_theta": 150000.0}


def test_a_llama_head_made_by_the_librarys_own_converter(tmp_path):
    changes = {
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "dtype": ABSENT,
        "torch_dtype": "float32",
    }
    result = convert(
        speculators(tmp_path / "draft", {"max_position_embeddings": 131072}, **changes), "sglang"
    )
    assert "auto_map" not in result.config
    assert result.config["max_position_embeddings"] == 131072


def test_yuhuilis_llama_head(tmp_path):
    # hidden 48, 4 heads: head_dim 12 where no key says it.
    tensors = drafts.flat_tensors()
    for part, heads in {"q": 4, "k": 2, "v": 2}.items():
        tensors[f"midlayer.self_attn.{part}_proj.weight"] = random((heads * 12, 2 * H), 7)
    tensors["midlayer.self_attn.o_proj.weight"] = random((H, 48), 7)
    half = {k: v.astype(np.float16) if v.dtype == np.float32 else v for k, v in tensors.items()}
    source = flat(
        tmp_path / "draft",
        half,
        architectures=["LlamaForCausalLM"],
        rope_theta=ABSENT,
        head_dim=ABSENT,
        torch_dtype="float16",
    )
    result = convert(source, "speculators")
    assert result.config["transformer_layer_config"]["head_dim"] == 12
    assert result.config["transformer_layer_config"]["rope_parameters"]["rope_theta"] == 10000.0
    assert result.config["dtype"] == "float16"
    assert refusals(convert, source, "vllm", layout="sglang") == {"wrong-layout"}


def test_nvidias_gpt_oss_borrows_the_targets_head(tmp_path):
    tensors = without(drafts.flat_tensors(), "lm_head.weight", "d2t", "t2d")
    source = flat(
        tmp_path / "draft", tensors, draft_vocab_size=None, eagle_config={IDS: [1, 17, 32]}
    )
    target = drafts.target(tmp_path / "target", num_hidden_layers=36, model_type="gpt_oss")
    assert described(source, target=target).taps == (2, 18, 33)
    assert refusals(convert, source, "speculators") == {"head-needs-target"}
    assert convert(source, "speculators", target=target).tensors["lm_head.weight"].shape == (V, H)


def test_nvidias_second_gpt_oss_has_no_fc(tmp_path):
    tensors = without(drafts.flat_tensors(), "fc.weight")
    source = flat(tmp_path / "draft", tensors, eagle_config={"use_aux_hidden_state": False})
    assert convert(source, "vllm", layout="sglang").draft.fc is None
    assert refusals(convert, source, "speculators") == {"no-fc"}


def test_nvidias_third_gpt_oss_reads_the_final_stream(tmp_path):
    tensors = drafts.flat_tensors() | {"input_norm.weight": 1 + random((3 * H,), 8)}
    nested = {IDS: [24, 30, 36], "norm_before_fc": True}
    source = flat(tmp_path / "draft", tensors, eagle_config=nested)
    target = drafts.target(tmp_path / "target", num_hidden_layers=36, model_type="gpt_oss")
    assert convert(source, "vllm", target=target).config[IDS] == [24, 30, 36]
    assert convert(source, "sglang", target=target).config["eagle_config"][IDS] == [24, 30, 36]
    other = drafts.target(tmp_path / "other", num_hidden_layers=36)
    assert "taps-out-of-range" in refusals(convert, source, "vllm", target=other)


def test_kimis_mla_head(tmp_path):
    norms = {f"fc_norm.{i}.weight": 1 + random((H,), 30 + i) for i in range(3)}
    changes = {"fc_norm": True, "norm_output": True, "rope_scaling": latent_drafts.YARN}
    source = latent_drafts.sglang(tmp_path / "draft", latent_drafts.tensors() | norms, **changes)
    target = latent_drafts.target(tmp_path / "target")
    written = convert(source, "vllm", target=target).config
    assert (written["fc_norm"], written["norm_output"], written[IDS]) == (True, True, [2, 4, 5])
    assert refusals(convert, source, "speculators") == {"mla-draft"}


@pytest.mark.parametrize(
    ("ids", "changes"),
    [
        ([1, 46, 90], {}),
        ([1, 17, 33], {"rope_theta": ABSENT}),
        ([1, 29, 57], {"model_type": "phi3"}),
        (
            [1, 31, 59],
            {"model_type": "qwen2", "use_sliding_window": False, "max_window_layers": 64},
        ),
    ],
    ids=["qwen3-235B", "gpt-oss-120B", "phi4", "qwq"],
)
@pytest.mark.parametrize("destination", ["speculators", "vllm", "universal"])
def test_specforge_templates(ids, changes, destination, tmp_path):
    result = convert(flat(tmp_path / "draft", eagle_config={IDS: ids}, **changes), destination)
    assert result.config[IDS] == [value + 1 for value in ids]
    assert result.draft.rope.theta == 10000.0
    assert result.config.get("transformer_layer_config", result.config)["model_type"] == "llama"


def test_specforges_eagle_3_1_template(tmp_path):
    norms = {f"fc_norm.{i}.weight": 1 + random((H,), i) for i in range(3)}
    source = flat(tmp_path / "draft", drafts.flat_tensors() | norms, fc_norm=True, norm_output=True)
    assert refusals(convert, source, "vllm") == {"trained-otherwise"}
    result = convert(source, "vllm", trainer="specforge")
    assert (result.config["fc_norm"], result.config["norm_output"]) == (True, False)


def test_angelslim_writes_vllms_class_and_no_ids(tmp_path):
    source = flat(tmp_path / "draft", architectures=["Eagle3LlamaForCausalLM"])
    assert convert(source, "vllm").draft.taps is None
    assert convert(source, "sglang").config["architectures"] == ["LlamaForCausalLMEagle3"]


@pytest.mark.parametrize("destination", ["sglang", "vllm", "speculators"])
def test_nvidias_maverick_of_the_full_vocabulary_with_ids_by_hand(destination, tmp_path):
    tensors = without(drafts.flat_tensors(), "d2t", "t2d") | {"lm_head.weight": random((V, H), 3)}
    source = flat(tmp_path / "draft", tensors, draft_vocab_size=V)
    result = convert(source, destination, taps=(2, 24, 45))
    assert result.draft.taps == (2, 24, 45)
    assert "d2t" not in result.tensors
    assert math.prod(result.tensors["lm_head.weight"].shape) == V * H
