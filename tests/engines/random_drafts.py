"""Drafts with random weights, one feature each, spelled by hand as each framework itself spells them.

None of the product's writers are used: config keys and tensor names are typed out.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

TARGET_WIDTH, V, D, HEADS, KV, MIDDLE = 128, 1024, 256, 4, 2, 192
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
ALL = ("speculators", "sglang", "vllm")
ABSENT = object()
"""The value of a key of a flat config that is left out."""

Tensors = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Spec:
    """One draft.

    Attributes:
        layouts: the frameworks whose own class computes it, so that it can be a source there.
        kind: ``llama`` or ``qwen3``.
        layers: number of layers.
        width: the draft's hidden size.
        head_dim: size of a head.
        taps: streams that fc takes; empty without fc.
        draft_vocab: rows of the head.
        decoder: keys of the decoder's config.
        flags: keys of the draft's config.
        flat: keys of a flat config alone.
        biases: projections with a bias.
        own_embeddings: its table differs from the target's.
        latent: sizes of latent attention (MLA), under the names of its config; empty for grouped-query attention.
    """

    layouts: tuple[str, ...] = ALL
    kind: str = "llama"
    layers: int = 1
    width: int = TARGET_WIDTH
    head_dim: int = 32
    taps: tuple[int, ...] = (1, 3, 5)
    draft_vocab: int = D
    decoder: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    flat: dict[str, Any] = field(default_factory=dict)
    biases: tuple[str, ...] = ()
    own_embeddings: bool = False
    latent: dict[str, Any] = field(default_factory=dict)

    @property
    def windowed(self) -> bool:
        """Some layer slides."""
        return "sliding_attention" in self.decoder.get("layer_types", ())


QKV = ("q_proj", "k_proj", "v_proj")
NO_SGLANG = ("speculators", "vllm")
SLIDING = {"layer_types": ["sliding_attention"], "sliding_window": 6, "use_sliding_window": True}

GRID = {
    "one llama layer": Spec(),
    "two layers": Spec(layers=2),
    "three layers": Spec(layers=3),
    "norm_before_residual": Spec(NO_SGLANG, flags={"norm_before_residual": True}),
    "norm_before_fc": Spec(flags={"norm_before_fc": True}),
    "fc_norm": Spec(flags={"fc_norm": True}),
    "both fc norms": Spec(("sglang", "vllm"), flags={"fc_norm": True, "norm_before_fc": True}),
    "norm_output": Spec(flags={"norm_output": True}),
    "tap on the embeddings": Spec(taps=(0, 3, 5)),
    "two taps": Spec(taps=(2, 5)),
    "four taps": Spec(taps=(1, 2, 4, 5)),
    "one tap": Spec(NO_SGLANG, taps=(5,)),
    "qwen3 layer": Spec(NO_SGLANG, kind="qwen3"),
    "two qwen3 layers, residual after the norm": Spec(
        NO_SGLANG, kind="qwen3", layers=2, flags={"norm_before_residual": True}
    ),
    "llama, q/k/v/o biases": Spec(
        NO_SGLANG, decoder={"attention_bias": True}, biases=(*QKV, "o_proj")
    ),
    "llama, o bias alone": Spec(("sglang",), decoder={"attention_bias": True}, biases=("o_proj",)),
    "qwen3, q/k/v/o biases": Spec(
        ("speculators",), "qwen3", decoder={"attention_bias": True}, biases=(*QKV, "o_proj")
    ),
    "qwen3, q/k/v biases": Spec(("vllm",), "qwen3", decoder={"attention_bias": True}, biases=QKV),
    "llama, MLP biases": Spec(
        NO_SGLANG, decoder={"mlp_bias": True}, biases=("gate_proj", "up_proj", "down_proj")
    ),
    "fc bias": Spec(("sglang",), flat={"bias": True}, biases=("fc", "o_proj")),
    "llama, sliding window": Spec(NO_SGLANG, decoder=SLIDING),
    "qwen3, sliding window": Spec(NO_SGLANG, kind="qwen3", decoder=SLIDING),
    "window on the first of two layers": Spec(
        NO_SGLANG,
        layers=2,
        decoder={**SLIDING, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gelu": Spec(("speculators",), decoder={"hidden_act": "gelu"}),
    "own embeddings": Spec(NO_SGLANG, own_embeddings=True),
    "narrower than its target": Spec(("sglang", "vllm"), width=64, own_embeddings=True),
    "full vocabulary": Spec(draft_vocab=V),
    "tied head": Spec(("sglang",), draft_vocab=V, flat={"tie_word_embeddings": True}),
    "the target's head": Spec(("sglang",), draft_vocab=V, flat={"draft_vocab_size": None}),
    "no fc": Spec(("sglang", "vllm"), taps=()),
    "logit_scale": Spec(("vllm",), flat={"logit_scale": 0.5}),
    "heads of 64": Spec(head_dim=64),
    "rope theta of a million": Spec(
        decoder={"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    ),
    "llama3 rope": Spec(decoder={"rope_parameters": LLAMA3}),
    "linear rope": Spec(
        decoder={"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}
    ),
    "yarn rope": Spec(
        decoder={
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 512,
            }
        }
    ),
    "half of each head rotated": Spec(
        ("sglang", "vllm"),
        decoder={
            "partial_rotary_factor": 0.5,
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
        },
    ),
}


def write(spec: Spec, layout: str, folder: Path, target: Path) -> Path:
    """Write a draft as one framework's own trainers and users would."""
    folder.mkdir(parents=True)
    config = {"speculators": _nested, "sglang": _sglang, "vllm": _vllm}[layout](spec)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = _tensors(spec, target)
    if layout != "speculators":
        tensors = {_flat_name(name, layout): value for name, value in tensors.items()}
        if spec.draft_vocab == V:
            tensors = {name: value for name, value in tensors.items() if name not in ("d2t", "t2d")}
    elif spec.draft_vocab == V:
        tensors |= {"d2t": np.zeros(V, np.int64), "t2d": np.ones(V, np.bool_)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _flat_name(name: str, layout: str) -> str:
    if layout == "sglang":
        if name.startswith("layers.0."):
            return name.replace("layers.0.", "midlayer.")
        if name.startswith("layers."):
            return name.replace("input_layernorm", "hidden_norm")
    return name


def _decoder(spec: Spec) -> dict[str, Any]:
    decoder = {
        "model_type": spec.kind,
        "vocab_size": V,
        "hidden_size": spec.width,
        "intermediate_size": MIDDLE,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "rope_parameters": ROPE,
    }
    if spec.latent:
        del decoder["head_dim"]
        decoder |= {"model_type": "kimi_k2", "num_key_value_heads": HEADS, **spec.latent}
    return decoder | spec.decoder


def _nested(spec: Spec) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": spec.draft_vocab,
        "dtype": "float32",
        "eagle_aux_hidden_state_layer_ids": list(spec.taps),
        "embed_requires_grad": spec.own_embeddings,
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
        "transformer_layer_config": _decoder(spec),
        **spec.flags,
    }


def _flat(spec: Spec, architecture: str) -> dict[str, Any]:
    config = {
        **_decoder(spec),
        "architectures": [architecture],
        "draft_vocab_size": spec.draft_vocab,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        **spec.flags,
        **spec.flat,
    }
    if spec.taps:
        config["num_aux_hidden_states"] = len(spec.taps)
    if spec.width != TARGET_WIDTH:
        config["target_hidden_size"] = TARGET_WIDTH
    if spec.latent:
        config["architectures"] = ["Eagle3DeepseekV2ForCausalLM"]
    return {key: value for key, value in config.items() if value is not ABSENT}


def _sglang(spec: Spec) -> dict[str, Any]:
    eagle: dict[str, Any] = {"use_aux_hidden_state": bool(spec.taps)}
    if spec.taps:
        # In front of DeepSeek's loop only a list that begins with 1 counts so; those drafts' first tap is 2.
        eagle["eagle_aux_hidden_state_layer_ids"] = [tap - 1 for tap in spec.taps]
    return {**_flat(spec, "LlamaForCausalLMEagle3"), "eagle_config": eagle}


def _vllm(spec: Spec) -> dict[str, Any]:
    name = "Eagle3Qwen3ForCausalLM" if spec.kind == "qwen3" else "Eagle3LlamaForCausalLM"
    config = _flat(spec, name)
    if spec.taps:
        return {**config, "eagle_aux_hidden_state_layer_ids": list(spec.taps)}
    return {**config, "eagle_config": {"use_aux_hidden_state": False}}


def _tensors(spec: Spec, target: Path) -> Tensors:
    """Under speculators' names."""
    rng = np.random.default_rng(0)
    width, blocks = spec.width, len(spec.taps)

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    def norm(size: int) -> np.ndarray[Any, Any]:
        return (1 + 0.3 * rng.standard_normal(size)).astype(np.float32)

    tensors: Tensors = {"norm.weight": norm(width)}
    if spec.own_embeddings:
        tensors["embed_tokens.weight"] = rng.standard_normal((V, width)).astype(np.float32)
    else:
        table = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
        tensors["embed_tokens.weight"] = table.astype(np.float32)
    if spec.flat.get("draft_vocab_size", 1) is not None and not spec.flat.get(
        "tie_word_embeddings"
    ):
        tensors["lm_head.weight"] = 2 * matrix(spec.draft_vocab, width)
    if spec.draft_vocab != V:
        ids = np.sort(rng.choice(V, spec.draft_vocab, replace=False))
        listed = np.zeros(V, np.bool_)
        listed[ids] = True
        tensors |= {"d2t": ids - np.arange(len(ids)), "t2d": listed}
    if blocks:
        tensors["fc.weight"] = matrix(width, blocks * TARGET_WIDTH)
    if "fc" in spec.biases:
        tensors["fc.bias"] = matrix(1, width)[0]
    if spec.flags.get("norm_before_fc"):
        tensors["input_norm.weight"] = norm(blocks * TARGET_WIDTH)
    if spec.flags.get("fc_norm"):
        tensors |= {f"fc_norm.{block}.weight": norm(TARGET_WIDTH) for block in range(blocks)}
    for layer in range(spec.layers):
        at, entry = f"layers.{layer}.", width * (1 if layer else 2)
        shapes = _latent_shapes(spec, entry) if spec.latent else _grouped_shapes(spec, entry)
        shapes |= {
            "mlp.gate_proj": (MIDDLE, width),
            "mlp.up_proj": (MIDDLE, width),
            "mlp.down_proj": (width, MIDDLE),
        }
        for name, shape in shapes.items():
            tensors[f"{at}{name}.weight"] = matrix(*shape)
            if name.partition(".")[2] in spec.biases:
                tensors[f"{at}{name}.bias"] = 0.5 * norm(shape[0])
        tensors[f"{at}input_layernorm.weight"] = norm(width)
        tensors[f"{at}post_attention_layernorm.weight"] = norm(width)
        if layer == 0:
            tensors[f"{at}hidden_norm.weight"] = norm(width)
        if spec.latent:
            tensors[f"{at}self_attn.kv_a_layernorm.weight"] = norm(spec.latent["kv_lora_rank"])
        if spec.latent.get("q_lora_rank"):
            tensors[f"{at}self_attn.q_a_layernorm.weight"] = norm(spec.latent["q_lora_rank"])
        if spec.kind == "qwen3":
            tensors |= {f"{at}self_attn.{part}_norm.weight": norm(spec.head_dim) for part in "qk"}
    return tensors


def _grouped_shapes(spec: Spec, entry: int) -> dict[str, tuple[int, int]]:
    rows = {"q": HEADS * spec.head_dim, "k": KV * spec.head_dim, "v": KV * spec.head_dim}
    shapes = {f"self_attn.{part}_proj": (count, entry) for part, count in rows.items()}
    return {**shapes, "self_attn.o_proj": (spec.width, rows["q"])}


def _latent_shapes(spec: Spec, entry: int) -> dict[str, tuple[int, int]]:
    """Queries from a latent of their own or at once; keys and values from a shared one, head by head."""
    sizes = spec.latent
    plain, turned, value = (sizes[f"{part}_head_dim"] for part in ("qk_nope", "qk_rope", "v"))
    queries, latent = HEADS * (plain + turned), sizes["kv_lora_rank"]
    shapes = {"self_attn.q_proj": (queries, entry)}
    if sizes["q_lora_rank"]:
        shapes = {
            "self_attn.q_a_proj": (sizes["q_lora_rank"], entry),
            "self_attn.q_b_proj": (queries, sizes["q_lora_rank"]),
        }
    return {
        **shapes,
        "self_attn.kv_a_proj_with_mqa": (latent + turned, entry),
        "self_attn.kv_b_proj": (HEADS * (plain + value), latent),
        "self_attn.o_proj": (spec.width, HEADS * value),
    }
