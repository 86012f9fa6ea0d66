"""Small checkpoints written by hand, spelled as each framework itself spells them.

Nothing here uses the product's own writers: configs and tensor names are typed out, values are random.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

H, HEADS, KV, HEAD_DIM, WIDTH, V, D, BLOCKS = 48, 4, 2, 32, 96, 512, 120, 3
Tensors = dict[str, np.ndarray[Any, Any]]


def random(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def draft_ids(seed: int = 0) -> np.ndarray[Any, Any]:
    """D distinct target ids, ascending."""
    return np.sort(np.random.default_rng(seed).choice(V, D, replace=False))


def maps(ids: np.ndarray[Any, Any] | None = None) -> Tensors:
    ids = draft_ids() if ids is None else ids
    listed = np.zeros(V, dtype=np.bool_)
    listed[ids] = True
    return {"d2t": (ids - np.arange(len(ids))).astype(np.int64), "t2d": listed}


def layer_tensors(prefix: str, layer: int = 0, later_norm: str = "input_layernorm") -> Tensors:
    seed, inputs = 100 * layer, H if layer else 2 * H
    norms = {"input_layernorm", "hidden_norm"} if layer == 0 else {later_norm}
    tensors = {
        f"{prefix}{name}.weight": 1 + random((H,), seed + i) for i, name in enumerate(sorted(norms))
    }
    rows = {"q": HEADS * HEAD_DIM, "k": KV * HEAD_DIM, "v": KV * HEAD_DIM}
    for i, (part, size) in enumerate(rows.items()):
        tensors[f"{prefix}self_attn.{part}_proj.weight"] = random((size, inputs), seed + 10 + i)
    tensors[f"{prefix}self_attn.o_proj.weight"] = random((H, rows["q"]), seed + 20)
    tensors[f"{prefix}post_attention_layernorm.weight"] = 1 + random((H,), seed + 21)
    tensors[f"{prefix}mlp.gate_proj.weight"] = random((WIDTH, H), seed + 22)
    tensors[f"{prefix}mlp.up_proj.weight"] = random((WIDTH, H), seed + 23)
    tensors[f"{prefix}mlp.down_proj.weight"] = random((H, WIDTH), seed + 24)
    return tensors


def common_tensors(blocks: int = BLOCKS, target_width: int = H) -> Tensors:
    return {
        "fc.weight": random((H, blocks * target_width), 1),
        "norm.weight": 1 + random((H,), 2),
        "lm_head.weight": random((D, H), 3),
    }


def flat_tensors(
    layers: int = 1,
    prefix: str = "midlayer.",
    later_norm: str = "hidden_norm",
    *,
    embeddings: bool = True,
) -> Tensors:
    tensors = common_tensors() | layer_tensors(prefix) | maps()
    if embeddings:
        tensors["embed_tokens.weight"] = random((V, H), 4)
    for layer in range(1, layers):
        tensors |= layer_tensors(f"layers.{layer}.", layer, later_norm)
    return tensors


def speculators_tensors(layers: int = 1) -> Tensors:
    return flat_tensors(layers, "layers.0.", "input_layernorm")


LAYER_CONFIG = {
    "model_type": "llama",
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
}

FLAT_CONFIG = {
    **LAYER_CONFIG,
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": D,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
}

SGLANG_CONFIG = {
    **FLAT_CONFIG,
    "eagle_config": {
        "eagle_aux_hidden_state_layer_ids": [0, 2, 4],
        "use_aux_hidden_state": True,
    },
}

VLLM_CONFIG = {
    **FLAT_CONFIG,
    "architectures": ["Eagle3LlamaForCausalLM"],
    "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
    "num_aux_hidden_states": 3,
    "norm_before_residual": False,
}

SPECULATORS_CONFIG = {
    "architectures": ["Eagle3DraftModel"],
    "auto_map": {"": "config.Eagle3SpeculatorConfig"},
    "draft_vocab_size": D,
    "dtype": "float32",
    "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
    "embed_requires_grad": False,
    "fc_norm": False,
    "norm_before_fc": False,
    "norm_before_residual": False,
    "norm_output": False,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
        "verifier": {"name_or_path": "org/target", "architectures": ["LlamaForCausalLM"]},
    },
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "target_hidden_size": None,
    "transformer_layer_config": {
        **LAYER_CONFIG,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}


def save(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    """Write a folder with a config and one safetensors file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def sglang(folder: Path, tensors: Tensors | None = None, **changes: Any) -> Path:
    return save(
        folder, _changed(SGLANG_CONFIG, changes), flat_tensors() if tensors is None else tensors
    )


def vllm(folder: Path, tensors: Tensors | None = None, **changes: Any) -> Path:
    return save(
        folder, _changed(VLLM_CONFIG, changes), flat_tensors() if tensors is None else tensors
    )


def speculators(folder: Path, tensors: Tensors | None = None, **changes: Any) -> Path:
    default = speculators_tensors()
    return save(
        folder, _changed(SPECULATORS_CONFIG, changes), default if tensors is None else tensors
    )


def target_config() -> dict[str, Any]:
    """Of a llama target of six layers."""
    return {
        **LAYER_CONFIG,
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 6,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
    }


def target(folder: Path, *, embeddings: np.ndarray[Any, Any] | None = None, **changes: Any) -> Path:
    """A llama target of six layers: a config, an embedding table and a head (all that convert reads)."""
    tensors = {
        "model.embed_tokens.weight": random((V, H), 4) if embeddings is None else embeddings,
        "lm_head.weight": random((V, H), 5),
    }
    return save(folder, _changed(target_config(), changes), tensors)


def load(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """Config and tensors of a folder, read by the real safetensors library."""
    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return json.loads((folder / "config.json").read_text()), tensors


ABSENT = object()
"""A key to be left out of a config."""


def _changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**config, **changes}
    return {key: value for key, value in merged.items() if value is not ABSENT}
