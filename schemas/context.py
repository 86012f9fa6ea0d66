"""How many positions a config amounts to, as SGLang counts them.

Source: SGLang 0.5.23 ``srt/utils/hf_transformers/common.py`` ``get_context_length``, over a config as
transformers 5.19 has read it (``modeling_rope_utils.py`` ``standardize_rope_params``).
"""

from collections.abc import Mapping
from typing import Any

from eagle3_interop.schemas.hf import CONFIGS

_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
_OF_THE_ORIGINAL = ("yarn", "longrope", "llama3")
"""Scalings for which transformers fills in ``original_max_position_embeddings``, so that no factor counts."""


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope keys: ``rope_scaling`` where it says something, else ``rope_parameters``."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if isinstance(rope, Mapping) and rope:
            return dict(rope)
    return {}


def rope_kind(config: Mapping[str, Any]) -> str:
    """The rope's type; ``default`` where none is named."""
    rope = rope_of(config)
    return str(rope.get("rope_type") or rope.get("type") or "default")


def rope_factor(config: Mapping[str, Any]) -> float:
    """By what SGLang multiplies the declared positions: the factor of a linear or dynamic rope."""
    rope = rope_of(config)
    factor = rope.get("factor", 1)
    if rope_kind(config) in _OF_THE_ORIGINAL or "original_max_position_embeddings" in rope:
        return 1
    return factor if isinstance(factor, int | float) else 1


def context_of(config: Mapping[str, Any]) -> int | None:
    """The positions that SGLang takes a config to reach, a draft's and a target's alike.

    Args:
        config: the keys of the decoder layers (of a target, its text config).

    Returns:
        Factor times the first of the keys that it knows, in its order; the config class's default where
        none is there; None, where that class is not known here.
    """
    known = CONFIGS.get(str(config.get("model_type")))
    default = known.model_fields["max_position_embeddings"].default if known else None
    declared = next((config[key] for key in _KEYS if config.get(key) is not None), default)
    return int(rope_factor(config) * declared) if isinstance(declared, int) else None
