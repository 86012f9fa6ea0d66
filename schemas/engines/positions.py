"""How many positions a config amounts to, as SGLang counts them, and as vLLM does.

Sources: SGLang 0.5.23 ``srt/utils/hf_transformers/common.py`` ``get_context_length``; vLLM 0.32
``transformers_utils/model_arch_config_convertor.py`` ``derive_max_model_len_and_key`` and
``config/model.py`` ``_get_and_verify_max_len``; both over a config as transformers 5.19 has read it
(``modeling_rope_utils.py`` ``standardize_rope_params``).
"""

from collections.abc import Mapping
from typing import Any

from eagle3_interop.schemas.dialects.hf import CONFIGS, LATENT_CONFIGS, OLD_KINDS

_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
_VLLM_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_OF_THE_ORIGINAL = ("yarn", "longrope", "llama3")
"""Scalings for which transformers fills in ``original_max_position_embeddings``, so that no factor counts."""
_VLLM_OF_THE_ORIGINAL = (*_OF_THE_ORIGINAL, "deepseek_yarn", "deepseek_llama_scaling")

_LARGEST = 2**53
"""Beyond it nothing is a number of positions: engines fail on it, too."""


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope keys: ``rope_scaling`` where it says something, else ``rope_parameters``."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if isinstance(rope, Mapping) and rope:
            return dict(rope)
    return {}


def rope_kind(config: Mapping[str, Any]) -> str:
    """The rope's type, an old name put into today's; ``default`` where none is named."""
    return _kind(rope_of(config))


def _kind(rope: Mapping[str, Any]) -> str:
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    return OLD_KINDS.get(kind, kind)


def rope_factor(config: Mapping[str, Any]) -> float:
    """By what SGLang multiplies the declared positions: the factor of a linear or dynamic rope."""
    rope = rope_of(config)
    factor = rope.get("factor", 1)
    named = rope.get("rope_type") or rope.get("type")  # SGLang knows no old names
    if named in _OF_THE_ORIGINAL or "original_max_position_embeddings" in rope:
        return 1
    return factor if isinstance(factor, int | float) else 1


def context_of(config: Mapping[str, Any]) -> int | None:
    """The positions that SGLang takes a config to reach, a draft's and a target's alike.

    Args:
        config: the keys of the decoder layers (of a target, its text config).

    Returns:
        Factor times the first of the keys that it knows, in its order; the config class's default where
        none is there; None, where that class is not known here, or it is no number of positions.
    """
    declared = next((config[key] for key in _KEYS if config.get(key) is not None), _default(config))
    return _positions(declared, rope_factor(config))


def vllm_context_of(config: Mapping[str, Any]) -> int | None:
    """The positions to which vLLM takes a model that is given no ``max_model_len``.

    Args:
        config: the keys of the decoder layers (of a target, its text config).

    Returns:
        ``model_max_length``, else the smallest of the keys that it knows, the config class's default
        among them, times the rope's factor; of a longrope, the original positions at the top level.
        None, where no key is there and the class is not known here, or it is no number of positions.
    """
    original = config.get("original_max_position_embeddings")
    if rope_kind(config) == "longrope" and isinstance(original, int):
        return original
    return _vllm_stretched(config)


def vllm_reach_of(config: Mapping[str, Any]) -> int | None:
    """The most positions that vLLM takes a model to reach, beyond which ``max_model_len`` may not go.

    Args:
        config: the keys of the decoder layers (of a target, its text config).

    Returns:
        As `vllm_context_of`, a longrope's included.
    """
    stretched = _vllm_stretched(config)
    named = config.get("model_max_length")
    return max(stretched, named) if isinstance(named, int) and stretched is not None else stretched


def _vllm_stretched(config: Mapping[str, Any]) -> int | None:
    keys = {"max_position_embeddings": _default(config), **config}
    found = [keys[key] for key in _VLLM_KEYS if isinstance(keys.get(key), int)]
    declared = config.get("model_max_length") or min(found, default=None)
    return _positions(declared, _vllm_factor(config))


def _vllm_factor(config: Mapping[str, Any]) -> float:
    """The last factor in the rope, or in the ropes of the kinds of attention."""
    if "gemma3" in str(config.get("model_type")):
        return 1
    rope = rope_of(config)
    nested = [value for value in rope.values() if isinstance(value, Mapping)]
    factors = [
        r["factor"]
        for r in nested or [rope]
        if "factor" in r and _kind(r) not in _VLLM_OF_THE_ORIGINAL
    ]
    return factors[-1] if factors and isinstance(factors[-1], int | float) else 1


def _positions(declared: object, factor: float) -> int | None:
    if not isinstance(declared, int) or not (abs(declared) < _LARGEST and abs(factor) < _LARGEST):
        return None
    return int(declared * factor)


def _default(config: Mapping[str, Any]) -> int | None:
    """The positions of a config class that says none itself."""
    known = {**CONFIGS, **LATENT_CONFIGS}.get(str(config.get("model_type")))
    default = known.model_fields["max_position_embeddings"].default if known else None
    return default if isinstance(default, int) else None
