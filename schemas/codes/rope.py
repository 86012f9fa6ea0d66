"""Rotary position embeddings."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    "nested-rope": Code(
        "error",
        "The config gives a rope for each attention type, and a draft has only one.",
        "Say which: --set rope.theta=VALUE.",
    ),
    "rope-disagrees": Code(
        "warning",
        "rope_parameters and rope_scaling (or rope_theta) in the config differ. Frameworks read one of them.",
        "If the other was trained: --set rope.theta=VALUE.",
    ),
    "idle-rope-keys": Code(
        "note", "Numbers in the rope config that a plain rotation does not use."
    ),
    "unknown-rope": Code(
        "error",
        "The config names a kind of rope scaling that cannot be converted.",
        "--set rope.scaling=none if it was trained with a plain rotation; else serve where it was trained for.",
    ),
    "sections-rescaled": Code(
        "warning",
        "SGLang rescales multimodal sections that do not fill the rotated part of a head, where vLLM fails on them.",
        "If others were trained: --set rope.mrope_sections=[T,H,W]. Texts are rotated alike by any.",
    ),
    "rope-differs": Code(
        "error",
        "Frameworks compute this kind of rope scaling differently, so the draft would rotate otherwise than it was trained.",
        "Train with another kind, or serve where it was trained for.",
    ),
}
