"""Latent attention (MLA) against the classes that DeepSeek's and Kimi's targets run by in transformers."""

import math

import pytest
import torch
from torch import nn
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import (
    DeepseekV2Attention,
    DeepseekV2RotaryEmbedding,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)

from eagle3_interop.schemas.draft import Mla, Rope

T, H, HEADS, Q, KV, NOPE, ROPE, V = 24, 64, 4, 24, 32, 16, 8, 12
SCALE = (NOPE + ROPE) ** -0.5
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 16.0}


def latent(**changes):
    sizes = {
        "heads": HEADS,
        "q_rank": Q,
        "kv_rank": KV,
        "nope_dim": NOPE,
        "rope_dim": ROPE,
        "v_dim": V,
    }
    return Mla(**{**sizes, "softmax_scale": SCALE, **changes})


def growth(factor, mscale):
    """How much yarn lengthens what a longer text flattens, as DeepSeek counts it."""
    return 0.1 * mscale * math.log(factor) + 1


def config_of(kind, attention, rope):
    parameters = {"rope_type": "default", "rope_theta": 1e4, **rope}
    return kind(
        hidden_size=2 * H,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=attention.q_rank,
        kv_lora_rank=KV,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=V,
        rms_norm_eps=1e-5,
        rope_interleave=attention.interleaved,
        rope_parameters=parameters,
        attn_implementation="eager",
        max_position_embeddings=512,
    )


@torch.no_grad()
def transformers_attention(kind, draft, tensors, rope, entry):
    """What transformers' attention makes of layer 0's input, [T, 2H] to [T, H]."""
    config_class, attention, rotary = {
        "v2": (DeepseekV2Config, DeepseekV2Attention, DeepseekV2RotaryEmbedding),
        "v3": (DeepseekV3Config, DeepseekV3Attention, DeepseekV3RotaryEmbedding),
    }[kind]
    config = config_of(config_class, draft.layers.attention, rope)
    module = attention(config, 0)
    module.o_proj = nn.Linear(HEADS * V, H, bias=False)  # a draft's is as wide as its stream
    prefix = "layers.0.self_attn."
    stored = {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}
    module.load_state_dict(stored)
    for norm in (m for m in module.modules() if hasattr(m, "variance_epsilon")):
        norm.variance_epsilon = 1e-5
    mask = torch.full((T, T), float("-inf")).triu(1)[None, None]
    positions = rotary(config)(entry, torch.arange(T)[None])
    return module(entry[None], position_embeddings=positions, attention_mask=mask)[0][0]


CASES = {
    "neighbouring pairs": ("v3", {}, Rope(), {}),
    "half-split pairs": ("v3", {"interleaved": False}, Rope(), {}),
    "queries projected at once": ("v3", {"q_rank": None}, Rope(), {}),
    "as DeepSeek V2 rotates, by complex numbers": ("v2", {}, Rope(), {}),
    "V2 with queries projected at once": ("v2", {"q_rank": None}, Rope(), {}),
    "another base": ("v3", {}, Rope(theta=5e4), {"rope_theta": 5e4}),
    "yarn that lengthens scores alone": (
        "v3",
        {"softmax_scale": SCALE * growth(4, 1) ** 2},
        Rope(scaling="yarn", parameters={**YARN, "attention_factor": 1.0}),
        {"rope_type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "yarn that lengthens both": (
        "v3",
        {"softmax_scale": SCALE * growth(4, 0.5) ** 2},
        Rope(
            scaling="yarn",
            parameters={**YARN, "attention_factor": growth(4, 1) / growth(4, 0.5)},
        ),
        {"rope_type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    ),
    "yarn that lengthens the rotated part alone": (
        "v3",
        {},
        Rope(scaling="yarn", parameters={**YARN, "attention_factor": growth(4, 1)}),
        {"rope_type": "yarn", **YARN},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_transformers(drafts, name):
    kind, changes, rope, said = CASES[name]
    draft = drafts.make_draft(latent=latent(**changes), rope=rope)
    tensors = drafts.make_tensors(draft)
    trace = {}
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(1, T, H, generator=generator)
    tokens = torch.randint(128, (1, T), generator=generator)
    drafts.make_network(draft).begin(tokens, hidden, trace)
    entry, found = trace["layers.0.input"][0], trace["layers.0.attention"][0]
    wanted = transformers_attention(kind, draft, tensors, said, entry)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


def test_each_of_these_networks_is_another(drafts):
    """So that none of the equalities above holds for want of a difference."""
    tokens, hidden = torch.arange(T)[None], torch.randn(1, T, H)
    found = []
    for kind, changes, rope, _ in CASES.values():
        if kind == "v3" and "q_rank" not in changes:
            draft = drafts.make_draft(latent=latent(**changes), rope=rope)
            found.append(drafts.make_network(draft).begin(tokens, hidden)[0].normed)
    for i, one in enumerate(found):
        for other in found[:i]:
            assert not torch.allclose(one, other, atol=1e-3)


def test_a_later_step_equals_a_plain_causal_pass(drafts):
    """A draft's keys are expanded anew: what a chain sees is what one causal sequence would."""
    draft = drafts.make_draft(latent=latent(), count=2, residual="normed")
    network, tokens = drafts.make_network(draft), torch.arange(T)[None]
    hidden = torch.randn(1, T, H, generator=torch.Generator().manual_seed(5))
    out, cache = network.begin(tokens, hidden)
    rows = out.feedback
    chains = [out.normed]
    for step in range(1, 4):
        fed = torch.cat([tokens[:, step:], tokens[:, :step]], dim=1)
        out = network.step(fed, rows, cache)
        rows = out.feedback
        chains.append(out.normed)
    for start in (0, 4, 15):
        row = hidden[:, : start + 1]
        for step in range(4):
            whole, _ = network.begin(tokens[:, : start + 1 + step], row)
            assert torch.allclose(whole.normed[0, -1], chains[step][0, start], atol=1e-4)
            row = torch.cat([row, whole.feedback[:, -1:]], dim=1)
