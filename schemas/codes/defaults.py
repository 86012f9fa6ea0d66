"""Keys that are absent, unknown or read by others, and the defaults that were taken."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    "class-default": Code(
        "note", "A config key is absent. The default of the framework's own config class was used."
    ),
    "flag-default": Code(
        "note", "A flag is absent from the config. The framework's own default was used."
    ),
    "residual-default": Code(
        "warning",
        "The config has no norm_before_residual, and frameworks disagree on the default. The wrong one costs about a sixth of the accepted tokens.",
        "If it was trained otherwise: --set residual=raw or --set residual=normed.",
    ),
    "layer-type-default": Code(
        "warning",
        "The config does not name the kind of decoder layer, and frameworks assume different ones.",
        "Add transformer_layer_config.model_type to the source.",
    ),
    "layer-type": Code(
        "error",
        "The config names a kind of decoder layer that this framework does not build.",
        "Set transformer_layer_config.model_type to llama or qwen3, whichever the layer is; no other kind is carried.",
    ),
    "default-taps": Code(
        "note",
        "The config names no layer ids. Every framework then feeds the same three layers: 2, L // 2 and L - 3.",
        "If the draft was trained on other layers: --taps LIST.",
    ),
    "unknown-keys": Code(
        "note",
        "The config has keys that this tool does not know. They were kept unchanged.",
        lists_extras=True,
    ),
    "left-keys": Code(
        "note",
        "Keys of other kinds of models, which engines read all the same, were left out.",
    ),
    "unread-keys": Code(
        "note",
        "The config has keys of other frameworks, which this one does not read. They were left out, or written anew.",
    ),
    "read-as-sglang": Code(
        "warning",
        "Layer ids were found only under eagle_config and read as SGLang does (id k = output of layer k). vLLM's V1 "
        "runner would take them one layer early.",
        "If your trainer meant inputs (vLLM's convention), give the layers with --taps LIST.",
    ),
    "dtype-disagrees": Code(
        "warning",
        "The config names another dtype than the weights have. The output names the weights' dtype.",
        "--dtype casts the weights.",
    ),
    "unsupported-key": Code(
        "error",
        "A config key changes what the draft computes, and cannot be carried.",
        "Set the key to its neutral value if the draft was trained without it.",
    ),
    "unknown-architecture": Code(
        "warning",
        "The framework has no class of the name in architectures.",
        effect="does-not-load",
    ),
}
