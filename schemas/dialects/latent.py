"""Latent attention in a flat config: its own keys, and yarn's two mscales, which engines multiply into two numbers.

The description has the two numbers: what cos and sin are multiplied by (``attention_factor`` of the rope) and the
factor on the scores (``softmax_scale``). Which mscales give them is spelling.
"""

import math
from collections.abc import Mapping
from typing import Any

from eagle3_interop.schemas.dialects.hf import CONFIG, OLD_KINDS, LatentConfig, read_rope
from eagle3_interop.schemas.dialects.reading import Reader
from eagle3_interop.schemas.dialects.rules import LatentRules
from eagle3_interop.schemas.draft import Draft, Mla, Rope

LATENT_KEYS = frozenset(
    {
        "kv_lora_rank",
        "q_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "rope_interleave",
        "v_head_dim",
    }
)
"""Keys of a flat config that describe latent attention."""

YARN = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor")
"""The numbers of a yarn of latent attention, all of which its description has."""

_BETAS = {"beta_fast": 32, "beta_slow": 1}
_MSCALES = {"mscale": 1.0, "mscale_all_dim": 0.0}
"""What both engines take for absent numbers."""

_DIGITS = 12
"""Significant digits of the two numbers: float64 arithmetic carries them, and engines go on in float32."""

_PLAIN_KINDS = ("yarn", "deepseek_yarn")


def read_latent(reader: Reader, parsed: LatentConfig, rules: LatentRules) -> tuple[Mla, Rope]:
    """Attention and rope as an engine's class computes them.

    Args:
        reader: the reading in progress.
        parsed: the config.
        rules: the engine's.
    """
    rope, numbers = _rope(reader, parsed, rules)
    scale = _plain(parsed.qk_nope_head_dim, parsed.qk_rope_head_dim)
    if rope.scaling is not None and not rules.unscaled(numbers):
        scale *= _mscale(rope.parameters["factor"], numbers, "mscale_all_dim") ** 2
    if parsed.q_lora_rank is None:
        message = f"null: {reader.engine}'s class wants a latent of the queries, and does not load."
        reader.say("fails-to-load", f"{CONFIG}: q_lora_rank", message)
    for key, why in rules.refuses.items():
        if reader.source.config.get(key) is not None:
            reader.say("unsupported-key", f"{CONFIG}: {key}", why)
    attention = Mla(
        heads=parsed.num_attention_heads,
        q_rank=parsed.q_lora_rank,
        kv_rank=parsed.kv_lora_rank,
        nope_dim=parsed.qk_nope_head_dim,
        rope_dim=parsed.qk_rope_head_dim,
        v_dim=parsed.v_head_dim,
        interleaved=_interleaved(reader, parsed, rules),
        softmax_scale=_short(scale),
    )
    return attention, rope


def _interleaved(reader: Reader, parsed: LatentConfig, rules: LatentRules) -> bool:
    halves = not parsed.rope_interleave
    if halves and not rules.halves:
        message = f"false, and {reader.engine} never reads it: it rotates neighbours (2i, 2i + 1)."
        settles = "layers.attention.interleaved"
        reader.say(
            "half-rotation-unread", f"{CONFIG}: rope_interleave", message, settled_by=settles
        )
        return True
    return not halves


def _rope(
    reader: Reader, parsed: LatentConfig, rules: LatentRules
) -> tuple[Rope, Mapping[str, Any]]:
    """The rope, and the numbers that its config names beside those of the description."""
    kind = _kind(parsed)
    rope = read_rope(_as_yarn(parsed), CONFIG, reader.add)
    if rope.scaling is None:
        return rope, {}
    if kind not in _PLAIN_KINDS:
        message = f"{kind}: {reader.engine} computes every scaled rope of latent attention as yarn, this one too."
        reader.say("latent-rope", f"{CONFIG}: rope_type", message, settled_by="rope.scaling")
    numbers = rope.parameters
    if numbers.get("extrapolation_factor", 1) != 1 and "extrapolation_factor" in rules.reads:
        message = f"extrapolation_factor: {reader.engine} alone reads it, and sizes other frequencies by it."
        reader.say("rope-differs", "rope.parameters", message)
    factor = numbers["factor"]
    amplitude = _mscale(factor, numbers, "mscale") / _mscale(factor, numbers, "mscale_all_dim")
    if "attn_factor" in rules.reads:
        amplitude *= numbers.get("attn_factor", 1)
    used = {*YARN[:4], *_MSCALES, *rules.reads}
    if idle := sorted(set(numbers) - used):
        message = f"without effect in {reader.engine}'s class, and left out: {', '.join(idle)}."
        reader.say("idle-rope-keys", f"{CONFIG}: rope_parameters", message)
    wanted = {key: numbers[key] for key in YARN[:2]}
    wanted |= {key: numbers.get(key, default) for key, default in _BETAS.items()}
    wanted["attention_factor"] = _short(amplitude)
    return rope.model_copy(update={"parameters": wanted}), numbers


def _kind(parsed: LatentConfig) -> str:
    rope = parsed.rope_scaling or parsed.rope_parameters or {}
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    return OLD_KINDS.get(kind, kind)


def _as_yarn(parsed: LatentConfig) -> LatentConfig:
    """The config with every scaled rope called what engines make of it."""
    if _kind(parsed) == "default":
        return parsed
    ropes = {
        key: {**{k: v for k, v in rope.items() if k != "type"}, "rope_type": "yarn"}
        for key in ("rope_scaling", "rope_parameters")
        if (rope := getattr(parsed, key))
    }
    return parsed.model_copy(update=ropes)


def _plain(nope_dim: int, rope_dim: int) -> float:
    return float((nope_dim + rope_dim) ** -0.5)


def plain_scale(attention: Mla) -> float:
    """The factor on the scores without any mscale."""
    return _short(_plain(attention.nope_dim, attention.rope_dim))


def _mscale(factor: float, numbers: Mapping[str, Any], key: str) -> float:
    """DeepSeek's yarn: by what a factor stretches, weighted."""
    weight = float(numbers.get(key, _MSCALES[key]))
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def latent_keys(attention: Mla) -> dict[str, Any]:
    """The keys that describe latent attention."""
    return {
        "q_lora_rank": attention.q_rank,
        "kv_lora_rank": attention.kv_rank,
        "qk_nope_head_dim": attention.nope_dim,
        "qk_rope_head_dim": attention.rope_dim,
        "v_head_dim": attention.v_dim,
        "rope_interleave": attention.interleaved,
    }


def spelled_rope(draft: Draft) -> Rope:
    """The rope with the two mscales that give its amplitude and the factor on the scores.

    Args:
        draft: with latent attention. Where no mscales give them (a plain rope with a factor of its own on the
            scores), those that come nearest stand there, and reading back finds another network.
    """
    rope, attention = draft.rope, draft.layers.attention
    if rope.scaling is None or not isinstance(attention, Mla):
        return rope
    numbers = dict(rope.parameters)
    amplitude = float(numbers.pop("attention_factor", 1.0))
    factor = float(numbers.get("factor", 1.0))
    weight = 0.1 * math.log(factor) if factor > 1 else 0.0
    below = math.sqrt(attention.softmax_scale / _plain(attention.nope_dim, attention.rope_dim))
    for key, size in (("mscale", amplitude * below), ("mscale_all_dim", below)):
        numbers[key] = _tidy((size - 1) / weight) if weight else _MSCALES[key]
    return rope.model_copy(update={"parameters": numbers})


def _tidy(number: float) -> float:
    """The number that was meant, where digits beyond the carried ones are noise."""
    near = round(number, 9)
    return near if math.isclose(number, near, rel_tol=1e-9, abs_tol=1e-10) else number
