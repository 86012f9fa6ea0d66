"""Drafts of any mixture of features, typed out in each framework's own spelling."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import drafts
import numpy as np
from drafts import HEAD_DIM, HEADS, KV, D, H, V, random

IDS = "eagle_aux_hidden_state_layer_ids"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


@dataclass(frozen=True)
class Features:
    """One network, whatever it is written in."""

    layers: int = 1
    taps: tuple[int, ...] = (1, 3, 5)
    fc: Literal["plain", "input norm", "block norms"] = "plain"
    normed_residual: bool = False
    norm_output: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    window: int | None = None
    theta: float = 10000.0
    llama3: bool = False
    eps: float = 1e-5
    full_vocabulary: bool = False
    sorted_map: bool = True
    embeddings: bool = True
    prefix: Literal["midlayer.", "layers.0."] = "layers.0."

    @property
    def plugin(self) -> bool:
        return self.normed_residual or self.qk_norm or self.qkv_bias or self.window is not None


def tensors(features: Features, later_norm: str, prefix: str, output_bias: bool) -> drafts.Tensors:
    found = drafts.common_tensors(len(features.taps)) | drafts.layer_tensors(prefix)
    for layer in range(1, features.layers):
        found |= drafts.layer_tensors(f"layers.{layer}.", layer, later_norm)
    if features.full_vocabulary:
        found["lm_head.weight"] = random((V, H), 3)
    else:
        ids = drafts.draft_ids()
        ids = ids if features.sorted_map else np.random.default_rng(3).permutation(ids)
        found |= drafts.maps(ids)
    if features.embeddings:
        found["embed_tokens.weight"] = random((V, H), 4)
    if features.fc == "input norm":
        found["input_norm.weight"] = 1 + random((len(features.taps) * H,), 5)
    if features.fc == "block norms":
        for i in range(len(features.taps)):
            found[f"fc_norm.{i}.weight"] = 1 + random((H,), 30 + i)
    for layer in range(features.layers):
        start = f"layers.{layer}." if layer else prefix
        if features.qk_norm:
            for i, part in enumerate("qk"):
                name = f"{start}self_attn.{part}_norm.weight"
                found[name] = 1 + random((HEAD_DIM,), 40 + i + layer)
        if features.qkv_bias:
            for i, (part, heads) in enumerate({"q": HEADS, "k": KV, "v": KV}.items()):
                found[f"{start}self_attn.{part}_proj.bias"] = random((heads * HEAD_DIM,), 50 + i)
            if output_bias:
                found[f"{start}self_attn.o_proj.bias"] = random((H,), 60 + layer)
    return found


def layer_config(features: Features) -> dict[str, Any]:
    rope = {
        "rope_theta": features.theta,
        **(LLAMA3 if features.llama3 else {"rope_type": "default"}),
    }
    config = {
        **drafts.LAYER_CONFIG,
        "model_type": "qwen3" if features.qk_norm else "llama",
        "num_hidden_layers": features.layers,
        "rms_norm_eps": features.eps,
        "attention_bias": features.qkv_bias,
        "rope_parameters": rope,
    }
    if features.window is not None or features.qk_norm:
        kind = "full_attention" if features.window is None else "sliding_attention"
        config |= {
            "use_sliding_window": features.window is not None,
            "sliding_window": features.window,
            "layer_types": [kind] * features.layers,
        }
    return config


def write(folder: Path, layout: str, features: Features) -> Path:
    """The network in a framework's own spelling (SGLang's with the plugin, where it needs it)."""
    flags = {
        "draft_vocab_size": V if features.full_vocabulary else D,
        "norm_before_residual": features.normed_residual,
        "norm_before_fc": features.fc == "input norm",
        "fc_norm": features.fc == "block norms",
        "norm_output": features.norm_output,
    }
    later = "hidden_norm" if layout == "sglang" else "input_layernorm"
    # qwen3 has no bias on o_proj in vLLM; llama creates it by the same flag as q, k and v.
    output_bias = features.qkv_bias and not features.qk_norm
    if layout == "speculators":
        found = tensors(features, later, "layers.0.", output_bias)
        if features.qkv_bias and features.qk_norm:
            for layer in range(features.layers):
                found[f"layers.{layer}.self_attn.o_proj.bias"] = np.zeros(H, dtype=np.float32)
        settings = {
            **drafts.SPECULATORS_CONFIG["speculators_config"],
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        }
        config = {
            **drafts.SPECULATORS_CONFIG,
            **flags,
            IDS: list(features.taps),
            "speculators_config": settings,
            "transformer_layer_config": layer_config(features),
        }
        return drafts.save(folder, config, found)
    found = tensors(features, later, features.prefix, output_bias)
    kind = "Eagle3Qwen3ForCausalLM" if features.qk_norm else "Eagle3LlamaForCausalLM"
    if layout == "sglang" and not features.plugin:
        kind = "LlamaForCausalLMEagle3"
    config = {**layer_config(features), **flags, "architectures": [kind], "torch_dtype": "float32"}
    if layout == "sglang":
        config["eagle_config"] = {IDS: [tap - 1 for tap in features.taps]}
    else:
        config |= {IDS: list(features.taps), "num_aux_hidden_states": len(features.taps)}
    return drafts.save(folder, config, found)
