"""Positions and rope: what is raised, and what frameworks compute differently."""

import math

from eagle3_interop.convert.decide.rewrites.work import Work
from eagle3_interop.schemas.dialects.hf import write_rope
from eagle3_interop.schemas.draft import STRETCHED, Mla, Rope
from eagle3_interop.schemas.engines.positions import rope_factor
from eagle3_interop.schemas.registry import DESTINATIONS


def raise_positions(work: Work) -> Work:
    """Declare at least as many positions as the target, which SGLang demands and vLLM assumes."""
    facts, declared, rope = work.loaded.facts, work.draft.max_position, work.draft.rope
    wanted = facts.max_position if facts else None
    if wanted is None or declared * rope_factor(write_rope(rope)) >= wanted:
        return work
    where = "max_position_embeddings"
    if rope.scaling in STRETCHED:
        return work.say(
            "position-kept",
            where,
            f"{declared} was kept, below the target's {wanted}: the rope scaling depends on it.",
        )
    work = work.say("position-raised", where, f"{declared} became the target's {wanted}.")
    return work.describe(max_position=wanted)


def check_rope(work: Work) -> Work:
    """Refuse scalings that frameworks compute differently."""
    rope = work.draft.rope
    latent = isinstance(work.draft.layers.attention, Mla)
    if work.loaded.layout == work.destination or latent:
        return work  # of latent attention every engine computes the same yarn
    if rope.scaling in STRETCHED:
        message = (
            f"{rope.scaling}: speculators follows the length of each sequence, SGLang and vLLM fix "
            "it at start, each from another number."
        )
        return work.say("rope-differs", "rope.scaling", message)
    if rope.scaling != "yarn":
        return work
    given = rope.parameters.get("attention_factor")
    both_read_it = (
        work.loader.attention_factor and DESTINATIONS[work.loaded.layout].loader.attention_factor
    )
    elsewhere = _yarn_scale(rope, zero_counts=False) if given is None else given
    if not both_read_it and not math.isclose(elsewhere, _yarn_scale(rope, zero_counts=True)):
        message = (
            "SGLang takes an mscale of zero for a number, others for none."
            if given is None
            else "SGLang reads no attention_factor."
        )
        work = work.say("rope-differs", "rope.parameters", message)
    if odd := sorted({"attn_factor", "extrapolation_factor"} & set(rope.parameters)):
        message = f"SGLang alone reads {', '.join(odd)}."
        work = work.say("rope-differs", "rope.parameters", message)
    return work


def _yarn_scale(rope: Rope, *, zero_counts: bool) -> float:
    """What frameworks scale q and k by when no attention_factor says it.

    Args:
        rope: of type yarn.
        zero_counts: an mscale of zero is a number (SGLang), or as good as absent (transformers, vLLM).
    """
    factor = float(rope.parameters.get("factor") or 1.0)
    if factor <= 1:
        return 1.0
    above, below = (rope.parameters.get(key) for key in ("mscale", "mscale_all_dim"))
    if above is None or below is None or not (zero_counts or (above and below)):
        above, below = 1.0, 0.0
    return float((0.1 * above * math.log(factor) + 1.0) / (0.1 * below * math.log(factor) + 1.0))
