"""The config keys that every writer writes: the decoder layers, and the flat form of SGLang and vLLM."""

from collections.abc import Iterator, Mapping
from typing import Any

from eagle3_interop.schemas.dialects.base import TargetFacts
from eagle3_interop.schemas.dialects.hf import CONFIG, UNBOUNDED, write_rope
from eagle3_interop.schemas.dialects.keys import LAYER
from eagle3_interop.schemas.dialects.latent import latent_keys, spelled_rope
from eagle3_interop.schemas.draft import Draft, Mla
from eagle3_interop.schemas.findings import Finding, finding
from eagle3_interop.schemas.powers import Powers

LATENT_TYPE = "kimi_k2"
"""The model_type of drafts with latent attention: SGLang and vLLM know it, and neither puts another class in its place."""


def layer_keys(draft: Draft) -> dict[str, Any]:
    """The keys that describe the decoder layers, shared by every config that we write."""
    if isinstance(draft.layers.attention, Mla):
        return _latent_layer_keys(draft, draft.layers.attention)
    layers, attention = draft.layers, draft.layers.gqa
    written: dict[str, Any] = {
        "model_type": "qwen3" if attention.qk_norm else "llama",
        "vocab_size": draft.vocabulary.target_size,
        "hidden_size": draft.hidden_size,
        "intermediate_size": layers.mlp.width,
        "num_hidden_layers": layers.count,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": layers.mlp.activation,
        "max_position_embeddings": draft.max_position,
        "rms_norm_eps": layers.norm_eps,
        "attention_bias": attention.qkv_bias or attention.output_bias,
        "mlp_bias": layers.mlp.bias,
        "tie_word_embeddings": False,
        **write_rope(draft.rope),
    }
    widths = sorted({window for window in layers.windows if window is not None})
    if attention.qk_norm or widths:
        written["use_sliding_window"] = bool(widths)
        written["sliding_window"] = widths[0] if widths else None
        written["max_window_layers"] = layers.count
        written["layer_types"] = [
            "full_attention" if window is None else "sliding_attention" for window in layers.windows
        ]
    return written


def _latent_layer_keys(draft: Draft, attention: Mla) -> dict[str, Any]:
    layers = draft.layers
    return {
        "model_type": LATENT_TYPE,
        "vocab_size": draft.vocabulary.target_size,
        "hidden_size": draft.hidden_size,
        "intermediate_size": layers.mlp.width,
        "num_hidden_layers": layers.count,
        # SGLang sizes a draft's cache by it, and transformers' class says one where it is absent.
        "num_nextn_predict_layers": layers.count,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.heads,
        **latent_keys(attention),
        "hidden_act": layers.mlp.activation,
        "max_position_embeddings": draft.max_position,
        "rms_norm_eps": layers.norm_eps,
        "attention_bias": False,
        "tie_word_embeddings": False,
        **write_rope(spelled_rope(draft)),
    }


def zero_biases(draft: Draft, powers: Powers) -> tuple[str, ...]:
    """Biases that a class creates for this config although the network has none.

    ``attention_bias: true`` switches several groups at once, and a loader leaves what the file lacks
    uninitialised; zeros written out keep the network the same.
    """
    attention = draft.layers.attention
    if isinstance(attention, Mla):
        return ()
    have = {"qkv": attention.qkv_bias, "output": attention.output_bias}
    switched = powers.attention_biases if any(have.values()) else frozenset()
    if draft.fc is not None and draft.fc.bias:
        switched |= powers.attention_biases & {"output"}
    parts = {"qkv": ("q", "k", "v"), "output": ("o",)}
    return tuple(
        f"layers.{layer}.self_attn.{part}_proj.bias"
        for layer in range(draft.layers.count)
        for group in sorted(switched)
        if not have[group]
        for part in parts[group]
    )


def mixed_windows(draft: Draft) -> list[Finding]:
    """An error when layers slide by different widths: every config has room for one."""
    widths = {window for window in draft.layers.windows if window is not None}
    if len(widths) < 2:
        return []
    message = (
        f"the layers' windows are {sorted(widths)}; config.json holds one sliding_window only."
    )
    return [finding("mixed-windows", "layers.windows", message)]


def flat_config(draft: Draft, architecture: str, extras: Mapping[str, Any]) -> dict[str, Any]:
    """A flat config without ids: every flag written out, also where it equals a default.

    Args:
        draft: the network.
        architecture: the class that the framework shall run.
        extras: keys of the source that are carried over.
    """
    beside = {key: value for key, value in extras.items() if key != LAYER}
    written = {
        **beside,
        **extras.get(LAYER, {}),
        "architectures": [architecture],
        **layer_keys(draft),
    }
    written |= {
        "draft_vocab_size": None
        if draft.vocabulary.head == "target"
        else draft.vocabulary.draft_size,
        "target_hidden_size": draft.target.hidden_size,
        "norm_before_residual": draft.residual == "normed",
        "norm_before_fc": draft.fc is not None and draft.fc.input_norm,
        "fc_norm": draft.fc is not None and draft.fc.block_norms,
        "norm_output": draft.feedback == "post-norm",
        "dtype": draft.dtype,
        "torch_dtype": draft.dtype,
    }
    if draft.vocabulary.logit_scale != 1.0:
        written["logit_scale"] = draft.vocabulary.logit_scale
    if draft.vocabulary.head == "tied":
        written["tie_word_embeddings"] = True
    if draft.fc is not None:
        written["num_aux_hidden_states"] = draft.fc.blocks
        written["bias"] = draft.fc.bias
    return written


def target_window(draft: Draft, target: TargetFacts | None) -> int | None:
    """The window that vLLM would give the draft's layers without one: the target's, where all of it slides.

    Source: vLLM 0.32 ``engine/arg_utils.py`` (``CacheConfig.sliding_window``) and ``attention.py``, which takes
    it wherever a layer has none; run against vLLM.
    """
    if target is None or target.window is None or None not in draft.layers.windows:
        return None
    return target.window if target.window < (target.max_position or UNBOUNDED) else None


def widen_windows(
    config: dict[str, Any], draft: Draft, target: TargetFacts | None
) -> Iterator[Finding]:
    """Give vLLM a window of the draft's own, where it would take the target's.

    Args:
        config: the flat config that is being written.
        draft: the network.
        target: the target's facts, where known.
    """
    window = target_window(draft, target)
    if window is None:
        return
    where = f"{CONFIG}: sliding_window"
    if any(draft.layers.windows):
        message = f"vLLM applies the target's window of {window} to layers without one, and config.json holds one window only."
        yield finding("mixed-windows", where, message)
        return
    config |= {
        "layer_types": ["sliding_attention"] * draft.layers.count,
        "sliding_window": UNBOUNDED,
        "use_sliding_window": True,
        "max_window_layers": 0,
    }
    yield finding(
        "window-written",
        where,
        f"wrote {UNBOUNDED}, so that vLLM does not apply the target's window of {window} to the draft.",
    )
