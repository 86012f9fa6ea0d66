"""Small drafts with latent attention (MLA), written by hand as their engines and trainers spell them."""

from pathlib import Path
from typing import Any

import drafts
import numpy as np
from drafts import ABSENT, WIDTH, D, H, Tensors, V, random

HEADS, Q_RANK, KV_RANK, NOPE, ROPE, V_DIM = 4, 20, 28, 6, 8, 10

YARN = {
    "type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
"""As Kimi-K2's drafts have it."""

CONFIG = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "q_lora_rank": Q_RANK,
    "kv_lora_rank": KV_RANK,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": V_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "rope_theta": 50000.0,
    "draft_vocab_size": D,
    "torch_dtype": "float32",
}

SGLANG_CONFIG = {
    **CONFIG,
    "eagle_config": {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "use_aux_hidden_state": True,
    },
}

VLLM_CONFIG = {
    **CONFIG,
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "num_aux_hidden_states": 3,
    "norm_before_residual": False,
}


def layer(prefix: str, number: int = 0, q_rank: int | None = Q_RANK) -> Tensors:
    seed, inputs = 100 * number, H if number else 2 * H
    shapes = {
        "self_attn.kv_a_proj_with_mqa": (KV_RANK + ROPE, inputs),
        "self_attn.kv_b_proj": (HEADS * (NOPE + V_DIM), KV_RANK),
        "self_attn.o_proj": (H, HEADS * V_DIM),
        "mlp.gate_proj": (WIDTH, H),
        "mlp.up_proj": (WIDTH, H),
        "mlp.down_proj": (H, WIDTH),
    }
    if q_rank is None:
        shapes["self_attn.q_proj"] = (HEADS * (NOPE + ROPE), inputs)
    else:
        shapes["self_attn.q_a_proj"] = (q_rank, inputs)
        shapes["self_attn.q_b_proj"] = (HEADS * (NOPE + ROPE), q_rank)
    norms = {
        "input_layernorm": H,
        "post_attention_layernorm": H,
        "self_attn.kv_a_layernorm": KV_RANK,
    }
    if number == 0:
        norms["hidden_norm"] = H
    if q_rank is not None:
        norms["self_attn.q_a_layernorm"] = q_rank
    tensors = {
        f"{prefix}{k}.weight": random(s, seed + i) for i, (k, s) in enumerate(shapes.items())
    }
    return tensors | {
        f"{prefix}{k}.weight": 1 + random((n,), seed + 50 + i)
        for i, (k, n) in enumerate(norms.items())
    }


def tensors(
    layers: int = 1,
    prefix: str = "layers.0.",
    *,
    embeddings: bool = True,
    q_rank: int | None = Q_RANK,
) -> Tensors:
    found = drafts.common_tensors() | layer(prefix, q_rank=q_rank) | drafts.maps()
    if embeddings:
        found["embed_tokens.weight"] = random((V, H), 4)
    for number in range(1, layers):
        found |= layer(f"layers.{number}.", number, q_rank)
    return found


def sglang(folder: Path, given: Tensors | None = None, **changes: Any) -> Path:
    return _save(folder, SGLANG_CONFIG, given, changes)


def vllm(folder: Path, given: Tensors | None = None, **changes: Any) -> Path:
    return _save(folder, VLLM_CONFIG, given, changes)


def target(folder: Path, layers: int = 8, **changes: Any) -> Path:
    """Of Kimi-K2's kind: a config, an embedding table and a head (all that convert reads)."""
    config = {
        **{key: CONFIG[key] for key in CONFIG if key not in ("draft_vocab_size", "torch_dtype")},
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": layers,
        "n_routed_experts": 8,
        **changes,
    }
    tables = {
        "model.embed_tokens.weight": random((V, H), 4),
        "lm_head.weight": random((V, H), 5),
    }
    return drafts.save(folder, config, tables)


def _save(
    folder: Path, config: dict[str, Any], given: Tensors | None, changes: dict[str, Any]
) -> Path:
    merged = {**config, **changes}
    kept = {key: value for key, value in merged.items() if value is not ABSENT}
    return drafts.save(folder, kept, tensors() if given is None else given)


def paired(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows of two halves as neighbours, one by one: row 2i from the first half, row 2i + 1 from the second."""
    half = len(rows) // 2
    out = np.empty_like(rows)
    for i in range(half):
        out[2 * i], out[2 * i + 1] = rows[i], rows[i + half]
    return out
