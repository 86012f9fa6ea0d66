"""Taps: which of the target's layers fc reads."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    "taps-unknown": Code(
        "error",
        "Nothing says which target layers fc's blocks were trained on.",
        "--taps LIST, in fc's own order.",
        answered_by_search=True,
        leaves_unwired=True,
    ),
    "taps-mismatch": Code(
        "error",
        "The number of layer ids is not the number of hidden states that fc takes.",
        "--taps LIST, in fc's own order.",
        effect="does-not-load",
        answered_by_search=True,
        leaves_unwired=True,
    ),
    "taps-out-of-range": Code(
        "error",
        "A tap lies outside the target: it is never captured, and engines fail on the missing hidden state.",
        "--taps LIST, or another --target.",
        effect="does-not-load",
        answered_by_search=True,
        leaves_unwired=True,
    ),
    "taps-reordered": Code(
        "warning",
        "Engines feed hidden states in the order of the layers, each once, whatever the list says.",
        "If the trainer concatenated in the listed order: --taps LIST.",
    ),
    "taps-permuted": Code(
        "note", "fc's column blocks were permuted to the order that engines feed (bit-exact)."
    ),
    "taps-merged": Code(
        "note", "Blocks of one tap were summed: exact in real numbers, rounded once."
    ),
    "taps-unmergeable": Code(
        "error",
        "Two blocks of fc read the same layer, and a norm runs over all blocks. Merging the two would change the norm's mean.",
        "Train without norm_before_fc, or give distinct taps.",
    ),
    "nested-ids": Code(
        "warning",
        "Layer ids stand only in a place that this framework ignores, or where it counts them differently.",
        "Use the command for the framework that wrote them, or --taps LIST.",
        answered_by_search=True,
    ),
    "shifted-ids": Code(
        "warning",
        "The layer ids are the default ones, but each one less or one more: a known mistake of conversions.",
        "If the draft was trained on the default layers: --taps with them.",
    ),
    "ids-unread": Code(
        "note",
        "Layer ids also stand in a place that this framework does not read. They agree with those that it reads.",
    ),
    "ids-empty": Code(
        "error",
        "The list of layer ids is empty: SGLang captures no hidden states and fails.",
        "--taps LIST, in fc's own order.",
    ),
    "ids-disagree": Code(
        "error",
        "Layer ids in two places of config.json name different layers.",
        "--taps LIST, in fc's own order.",
        answered_by_search=True,
        leaves_unwired=True,
    ),
    "plain-rule": Code(
        "warning",
        "Ids were read or written by SGLang's plain rule, as the target is not known.",
        "Give --target.",
    ),
    "target-rule": Code(
        "warning",
        "SGLang counts layer ids differently for this target's class. The ids in the output follow its rule.",
    ),
    "no-such-ids": Code(
        "error",
        "No list of ids makes this target capture these taps.",
        "Serve with vLLM, whose ids are the taps.",
    ),
    "end-tap": Code(
        "error",
        "The draft reads the last layer's output (tap L), and the engine's class of this target never captures it. The engine fails at the first token.",
        "Train without that tap.",
        effect="does-not-load",
    ),
    "embedding-tap": Code(
        "error",
        "The draft reads the embedding output (tap 0), and the engine's class of this target fails when asked for it.",
        "Train without it.",
        effect="does-not-load",
    ),
    "embedding-tap-depends": Code(
        "warning",
        "On some hardware this target cannot deliver the embedding output.",
        "Send one request: if it cannot, the engine fails at once.",
    ),
    "target-unnamed": Code(
        "warning",
        "Whether this release of the engine captures what the draft taps depends on the target's class, and nothing names the target.",
        "Give --target.",
        asks_for_target=True,
    ),
    "target-captures-nothing": Code(
        "error",
        "The target's class captures no hidden states, and no draft can be fed.",
        "Serve with another engine or version, whose class does.",
        effect="does-not-load",
    ),
    "target-captures-other": Code(
        "error",
        "The target's class captures something else than the residual stream: accept length 1.",
        "Serve with another version, whose class does.",
    ),
}
