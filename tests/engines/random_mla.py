"""Random drafts with latent attention (MLA), one feature each, spelled by hand: see `random_drafts`."""

from typing import Any

from random_drafts import ABSENT, Spec, V

LATENT: dict[str, Any] = {
    "q_lora_rank": 48,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
}
YARN: dict[str, Any] = {
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 16.0,
    "beta_slow": 1.0,
}
BOTH = ("sglang", "vllm")


def spec(
    layouts: tuple[str, ...] = BOTH, latent: dict[str, Any] | None = None, **fields: Any
) -> Spec:
    """A draft for a target of DeepSeek's loop, whose first tap both engines can say."""
    fields.setdefault("taps", (2, 3, 5))
    return Spec(layouts, latent={**LATENT, **(latent or {})}, **fields)


def yarn(**numbers: Any) -> dict[str, Any]:
    """Decoder keys of a yarn rope."""
    return {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, **YARN, **numbers}}


PUBLISHED = {
    "rope_parameters": ABSENT,
    "max_position_embeddings": ABSENT,
    "rope_theta": 50000.0,
    "rope_scaling": {"type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
}
"""As published drafts of Kimi spell their rope."""

GRID = {
    "MLA": spec(),
    "MLA, norm_before_residual": spec(("vllm",), flags={"norm_before_residual": True}),
    "MLA, fc_norm and norm_output": spec(flags={"fc_norm": True, "norm_output": True}),
    "MLA, two layers": spec(("vllm",), layers=2),
    # Not with yarn: SGLang's own plain forward of that rope fails on half-split pairs. A GPU takes its kernel.
    "MLA, half-split rope": spec(("sglang",), flat={"rope_interleave": False}),
    "MLA, rope theta of a million": spec(
        decoder={"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    ),
    "MLA, yarn": spec(decoder=yarn()),
    "MLA, yarn, mscale 1 and 1": spec(decoder=yarn(mscale=1.0, mscale_all_dim=1.0)),
    "MLA, yarn, mscale .707 and 0": spec(decoder=yarn(mscale=0.707, mscale_all_dim=0)),
    "MLA, yarn, mscale 0 and 0": spec(decoder=yarn(mscale=0, mscale_all_dim=0)),
    "MLA, yarn, mscale 1 and .5": spec(decoder=yarn(mscale=1.0, mscale_all_dim=0.5)),
    "MLA, rope as published": spec(flat=PUBLISHED),
    "MLA, sizes of Kimi's latents": spec(
        latent={"kv_lora_rank": 512, "qk_rope_head_dim": 64, "q_lora_rank": 64, "v_head_dim": 32}
    ),
    "MLA, two taps": spec(taps=(2, 5)),
    "MLA, own embeddings": spec(("vllm",), own_embeddings=True),
    "MLA, full vocabulary": spec(draft_vocab=V),
    "MLA, fc bias": spec(("sglang",), flat={"bias": True}, biases=("fc",)),
    "MLA, model type deepseek_v2": spec(flat={"model_type": "deepseek_v2"}),
    "MLA, model type deepseek_v3": spec(("sglang",), flat={"model_type": "deepseek_v3"}),
}
