"""What trainers compute of latent attention otherwise than engines do."""

from collections.abc import Callable, Mapping
from typing import Any

from eagle3_interop.schemas.dialects.base import Source
from eagle3_interop.schemas.dialects.latent import plain_scale
from eagle3_interop.schemas.draft import ROPE_NEEDS, Draft, Mla
from eagle3_interop.schemas.trainers.base import Deviation

Holds = Callable[[Source, Draft], bool]

_AMPLITUDE = "attention_factor"


def is_latent(draft: Draft) -> bool:
    """Whether its attention is latent."""
    return isinstance(draft.layers.attention, Mla)


def rope_dict(source: Source) -> Mapping[str, Any]:
    """The rope keys as a trainer finds them; empty where there are none."""
    rope = source.config.get("rope_scaling") or source.config.get("rope_parameters")
    return rope if isinstance(rope, Mapping) else {}


def own_kind(source: Source) -> str | None:
    """The kind of scaled rope that a config names, which engines take for yarn; None for a plain one."""
    rope = rope_dict(source)
    kind = rope.get("rope_type", rope.get("type"))
    return str(kind) if kind in ROPE_NEEDS else None


def scores_left(holds: Holds) -> Deviation:
    """Scores are not multiplied by yarn's ``mscale_all_dim``."""

    def trained(source: Source, draft: Draft) -> float | None:
        attention = draft.layers.attention
        if not isinstance(attention, Mla):
            return None
        return plain_scale(attention) if holds(source, draft) else attention.softmax_scale

    return Deviation("score-scale", "layers.attention.softmax_scale", trained)


def amplitude_left() -> Deviation:
    """Cosines and sines of a yarn are not multiplied by anything."""

    def trained(_source: Source, draft: Draft) -> object:
        numbers = draft.rope.parameters
        left = is_latent(draft) and draft.rope.scaling == "yarn"
        return 1.0 if left else numbers.get(_AMPLITUDE)

    return Deviation("rope-amplitude", f"rope.parameters.{_AMPLITUDE}", trained)
