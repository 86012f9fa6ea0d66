"""Keys that are absent, unknown or read by others, and the defaults that were taken."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    "class-default": Code("note", "A key is absent and the framework's own class default counts."),
    "flag-default": Code("note", "A flag is absent and the framework's own default counts."),
    "residual-default": Code(
        "warning",
        "norm_before_residual is absent, and frameworks disagree on what that means. Wrong, it costs about a "
        "sixth of the accepted tokens.",
        "If it was trained otherwise: --set residual=raw or --set residual=normed.",
    ),
    "layer-type-default": Code(
        "warning",
        "The kind of decoder layer is absent, and readers disagree on it.",
        "Add transformer_layer_config.model_type to the source.",
    ),
    "layer-type": Code(
        "error",
        "A kind of decoder layer that this framework does not build.",
        "Set transformer_layer_config.model_type to llama or qwen3, whichever the layer is; no other kind is carried.",
    ),
    "default-taps": Code(
        "note",
        "No layer ids: every framework feeds the same default triple.",
        "If the draft was trained on other layers: --taps LIST.",
    ),
    "unknown-keys": Code("note", "Config keys that no schema here knows; kept as they are."),
    "left-keys": Code(
        "note",
        "Keys of other kinds of models, which engines read all the same, were left out.",
    ),
    "unread-keys": Code(
        "note", "Keys of other frameworks, which this one does not read; left out, or written anew."
    ),
    "read-as-sglang": Code(
        "warning",
        "Layer ids were found only under eagle_config and read as SGLang does (id k = output of layer k). vLLM's V1 "
        "runner would take them one layer early.",
        "If your trainer meant inputs (vLLM's convention), give the layers with --taps LIST.",
    ),
    "dtype-disagrees": Code(
        "warning",
        "The config names another dtype than the weights have; the weights' is written.",
        "--dtype casts the weights.",
    ),
    "unsupported-key": Code(
        "error",
        "A config key changes what the draft computes, and cannot be carried.",
        "Set the key to its neutral value if the draft was trained without it.",
    ),
    "unknown-architecture": Code(
        "warning", "The class name is none that the framework registers.", effect="does-not-load"
    ),
}
