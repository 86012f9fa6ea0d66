"""Rotary position embeddings."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    "nested-rope": Code(
        "error",
        "rope is given for each attention type; a draft has one.",
        "Say which: --set rope.theta=VALUE.",
    ),
    "rope-disagrees": Code(
        "warning",
        "The two forms of rope in the config differ.",
        "If the other was trained: --set rope.theta=VALUE.",
    ),
    "idle-rope-keys": Code(
        "note", "Numbers in the rope config that a plain rotation does not use."
    ),
    "unknown-rope": Code(
        "error",
        "A kind of rope scaling that cannot be carried.",
        "--set rope.scaling=none if it was trained with a plain rotation; else serve where it was trained for.",
    ),
    "sections-rescaled": Code(
        "warning",
        "SGLang rescales multimodal sections that do not fill the rotated part of a head, where vLLM fails on them.",
        "If others were trained: --set rope.mrope_sections=[T,H,W]. Texts are rotated alike by any.",
    ),
    "rope-differs": Code(
        "error",
        "Frameworks compute this kind of rope scaling differently.",
        "Train with another kind, or serve where it was trained for.",
    ),
}
