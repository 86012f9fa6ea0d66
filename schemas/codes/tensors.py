"""Tensors that are absent, left over or of another shape, and flags that a framework does not read."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    "missing-tensor": Code(
        "error",
        "A tensor is missing. Engines run with its initial value and do not say so.",
        "Fetch the checkpoint again.",
    ),
    "missing-head": Code(
        "error",
        "The head is absent, and loaders fill it with random or wrong rows: accept length 1.",
        "Give --target, and it is taken from there.",
    ),
    "missing-norm": Code(
        "error",
        "The norm of a later layer has a name that this framework does not read.",
        "Use the command for the framework that wrote it.",
    ),
    "unknown-tensor": Code(
        "error",
        "No framework knows a tensor of this name. Most drop it silently.",
        "Remove it from the file.",
        left_over=True,
    ),
    "unknown-names": Code(
        "error",
        "Tensors of a draft are absent, and others bear names that no reader of EAGLE-3 drafts understands.",
        "Save them under the names of SGLang, vLLM or speculators; docs/frameworks.md lists these.",
    ),
    "absent-qk-norms": Code(
        "error",
        "The class that config.json names norms q and k, and the file holds no such norms.",
        "--set layers.attention.qk_norm=false if it was trained without them.",
        answered_by_search=True,
    ),
    "wrapper-prefix": Code(
        "warning",
        "A trainer's wrapper (torch.compile, DDP, a training class) left its prefix before the tensor names.",
    ),
    "unused-tensor": Code(
        "error",
        "The file holds a tensor that the framework does not use with this config.",
        "Switch its part on with --set if the draft was trained with it, or remove the tensor.",
        left_over=True,
        answered_by_search=True,
    ),
    "shape-mismatch": Code(
        "error",
        "A tensor's shape is not what the config implies.",
        "Correct the config, or fetch the file again.",
    ),
    "dropped-tensor": Code(
        "note", "This tensor was left out: every reader computes it, or takes it from the target."
    ),
    "foreign-name": Code(
        "warning",
        "The framework's own loader does not know this tensor name. This tool understood it.",
        effect="does-not-load",
    ),
    "foreign-name-dropped": Code(
        "warning",
        "The framework's own loader silently skips this tensor name and runs with initial values. This tool understood the name.",
        effect="computes-otherwise",
    ),
    "flag-unread": Code(
        "warning",
        "The config sets a flag that this framework's class does not read. It runs without what the flag asks for.",
        effect="computes-otherwise",
    ),
    "unused-norm": Code(
        "note",
        "The file holds a norm under a second name, which this framework never uses. It was left out.",
    ),
    "unused-head": Code(
        "error",
        "The file holds a head, and with this config another one is used.",
        "--set vocabulary.head=own if it was trained, or remove the tensor.",
    ),
    "unused-fc": Code(
        "note",
        "The file holds an fc, and with this config the draft runs without it. It was left out.",
    ),
    "absent-bias": Code(
        "warning",
        "The config switches on biases that the file does not hold. They are taken for zero.",
        "Fetch the checkpoint again if it was trained with them.",
    ),
    "zero-bias": Code("note", "All-zero biases were left out: not every framework has them."),
    "zero-bias-added": Code(
        "note",
        "Zero biases were written: the destination creates them, and would leave them uninitialised.",
    ),
    "layer-count": Code(
        "warning",
        "The config counts more layers than the file holds. The layers in the file were used.",
    ),
    "layer-count-short": Code(
        "error",
        "The config counts fewer layers than there are tensors; loaders drop the rest.",
        "Say which is right: --set layers.count=N.",
    ),
    "fc-width": Code(
        "error",
        "fc is not as wide as any number of the target's hidden states.",
        "Give the right target_hidden_size.",
    ),
    "fc-blocks": Code(
        "warning",
        "From this config the framework would build fc in the wrong size, and fail to load.",
        effect="does-not-load",
    ),
    "norm-twice": Code(
        "note", "Norms of later layers are written under both names that readers use."
    ),
    "window-unread": Code(
        "error",
        "The config has a sliding window, and this framework ignores it and attends to all positions.",
        "--set layers.windows=none if it was trained without one; else convert from the layout it was trained in.",
    ),
    "misplaced-key": Code(
        "error",
        "A config key stands in a place that this framework does not read, and says otherwise than what it computes.",
        "Say which was trained with --set.",
    ),
    "residual-unread": Code(
        "error",
        "norm_before_residual is true, and this framework never reads it.",
        "--set residual=normed if it was trained so, else --set residual=raw.",
        answered_by_search=True,
    ),
    "half-rotation-unread": Code(
        "error",
        "rope_interleave is false, and vLLM never reads it: it rotates neighbours, not halves.",
        "--set layers.attention.interleaved=false if it was trained so (converted, its rows change places), else "
        "=true.",
        answered_by_search=True,
    ),
    "norm-output-meaning": Code(
        "warning",
        "norm_output is true, which SpecForge's trainer understands otherwise than every server.",
        "If it was trained by SpecForge: --set feedback=pre-norm. eagle3-diagnose measures it.",
    ),
    "logit-scale-unread": Code(
        "warning", "The config sets logit_scale, and this framework does not read it."
    ),
    "partial-rotary-unread": Code(
        "warning", "partial_rotary_factor is set, and this framework does not read it."
    ),
    "mrope-unread": Code(
        "warning", "The config sets mrope_section, and this framework does not read it."
    ),
    "tie-unread": Code(
        "warning", "The config says tie_word_embeddings: true, and this framework does not read it."
    ),
    "null-target-width": Code(
        "warning", "target_hidden_size is null, which some loaders fail on; it is left out."
    ),
}
