"""What a destination does not compute, or computes otherwise."""

from eagle3_interop.schemas.codes.base import ELSEWHERE, PLUGIN, WITH_PLUGIN, Code

CODES: dict[str, Code] = {
    "residual-normed": Code(
        "error",
        "Layer 0 adds attention to the normed hidden state (norm_before_residual: true). SGLang's own class adds it to the raw one.",
        PLUGIN,
    ),
    "qk-norm": Code(
        "error",
        "The draft norms q and k in attention, which SGLang's own class does not compute.",
        PLUGIN,
    ),
    "qkv-bias": Code(
        "error",
        "The draft's q, k and v projections have biases, which SGLang's own class drops.",
        PLUGIN,
    ),
    "output-bias": Code(
        "error",
        "The draft's o_proj has a bias, and the destination does not compute it.",
        ELSEWHERE,
    ),
    "mlp-bias": Code(
        "error", "The draft's MLP has biases, and the destination cannot compute them.", ELSEWHERE
    ),
    "fc-bias": Code(
        "error", "fc has a bias that is not zero.", "Only SGLang's own class computes it."
    ),
    "sliding-window": Code(
        "error",
        "The draft attends with a sliding window, which SGLang's own class ignores.",
        PLUGIN,
    ),
    "mixed-windows": Code(
        "error",
        "The draft's layers have sliding windows of different widths.",
        "--set layers.windows=N if they were trained with one; no framework's config holds more.",
    ),
    "activation": Code(
        "error",
        "The MLP's activation is not silu, and the engines' draft classes compute silu alone.",
        "Only speculators computes it.",
        effect="does-not-load",
    ),
    "other-width": Code("error", "Draft and target are not equally wide.", ELSEWHERE),
    "no-fc": Code(
        "error", "The draft reads the target's last hidden state without an fc.", ELSEWHERE
    ),
    "no-fc-runner": Code("warning", "Drafts without fc run in vLLM's V1 model runner only."),
    "both-fc-norms": Code(
        "error",
        "The draft has both norms before fc (norm_before_fc and fc_norm), and the destination computes one of them.",
        ELSEWHERE,
    ),
    "one-equal-tap": Code(
        "error", "fc is as wide as the draft, and would be skipped.", "Serve with vLLM."
    ),
    "logit-scale": Code("error", "The draft's logits are scaled.", "Only vLLM computes it."),
    "partial-rotary": Code(
        "error",
        "Only a part of each head is rotated, and the destination rotates whole heads.",
        "--set rope.partial=1 if whole heads were; else serve with a framework that computes it.",
    ),
    "several-layers": Code(
        "error",
        "The draft has more than one layer, and SGLang's own class builds one.",
        PLUGIN,
        effect="does-not-load",
    ),
    "input-norm": Code(
        "error",
        "The draft norms the concatenation of all hidden states before fc (norm_before_fc), and the destination cannot compute that.",
        ELSEWHERE,
    ),
    "no-query-latent": Code(
        "error",
        "Latent attention that projects its queries at once (q_lora_rank: null), which no engine runs: vLLM fails "
        "to load it, SGLang does not start.",
        "Train it with a q_lora_rank.",
        effect="does-not-load",
    ),
    "half-rotation": Code(
        "error",
        "Latent attention rotates the two halves of each head, and the class rotates neighbours.",
        "--set layers.attention.interleaved=true if it was trained so.",
    ),
    "latent-rope": Code(
        "error",
        "A scaled rope of latent attention that is not yarn: SGLang and vLLM compute yarn with its numbers.",
        "--set rope.scaling=yarn for what they compute; a draft that was trained otherwise runs in neither.",
    ),
    "mrope": Code(
        "error",
        "The draft has a multimodal rope (mrope), which the destination does not compute as it was trained.",
        "--set rope.mrope_sections=none for a text-only draft.",
    ),
    "scaled-mrope": Code(
        "error",
        "Multimodal rope with a scaling, of which the class computes the first only.",
        "--set rope.mrope_sections=none for a text-only draft.",
    ),
    "mrope-sections": Code(
        "error",
        "Multimodal sections that do not fill the rotated part of a head: no engine can build such a rotation.",
        "--set rope.mrope_sections=[T,H,W] with sections that fill it, or =none for a draft of text.",
        effect="does-not-load",
    ),
    "class-defaults-unknown": Code(
        "error",
        "config.json omits keys for which this model_type has defaults that this tool does not know.",
        "Write them into config.json with the values that the class of this model_type has.",
    ),
    "target-window": Code(
        "warning",
        "vLLM gives draft layers without a window of their own the target's.",
        "eagle3-convert auto-to-vllm --target writes a window that vLLM heeds, wider than any context.",
        effect="computes-otherwise",
        mended_by="window-written",
    ),
    "window-written": Code(
        "note",
        "A window wider than any context was written, so that vLLM does not apply the target's window to the draft.",
    ),
    "readers-disagree": Code(
        "error",
        "A folder made for several frameworks holds another network for each of them.",
        "Convert by the name of the layout whose keys are right: speculators-to-..., sglang-to-... or vllm-to-....",
        answered_by_search=True,
        leaves_unwired=True,
    ),
    "not-read-back": Code(
        "error",
        "The destination's reader would find another network in the output than the one that is meant.",
        "Correct what was set; where nothing was, report it as a fault of this tool.",
    ),
    "needs-sglang-plugin": Code(
        "warning",
        "SGLang's own class does not compute this network; with our plugin it does. Without the plugin SGLang "
        "refuses the folder.",
        WITH_PLUGIN,
        tells_of_plugin=True,
    ),
}
