"""What a conversion chose."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    # Releases of the engines.
    "release-unknown": Code(
        "warning",
        "This version of the engine came out after the releases that this tool knows; the newest one's rules were used.",
        "Measure what it does: eagle3-validate --engine.",
    ),
    "release-too-old": Code(
        "error",
        "This version of the engine is older than the releases that this tool knows.",
        "Serve with a newer one.",
    ),
    "read-since": Code(
        "note", "The first release of the engine since which this output is read right."
    ),
    "older-differs": Code(
        "warning",
        "A release of the last six months computes another network from this output, and does not say so.",
        "Serve with a later release; --for ENGINE==VERSION looks for a form that the older one reads right.",
    ),
    "not-for-release": Code(
        "error",
        "A release that was named with --for does not read the output as the network that is meant.",
        "Serve with a release that does, or leave --for out.",
    ),
    "set-by-user": Code(
        "note", "A value was set with --set or --taps and replaces what the checkpoint says."
    ),
    "cast": Code("note", "The weights were cast to another dtype, as --dtype asks."),
    "position-raised": Code("note", "max_position_embeddings was raised to the target's."),
    "position-kept": Code(
        "warning",
        "max_position_embeddings is below the target's and was not raised: this draft's rope scaling depends on it.",
        "Serve with a context no longer than the draft's, or override the check of the engine.",
    ),
    "universal-of-two": Code(
        "note",
        "The folder is for vLLM and SGLang alone: speculators has no form for latent attention.",
    ),
    "rotation-paired": Code(
        "note",
        "Rows of latent attention were put in the order in which the engine rotates them; exact.",
    ),
    "kv-shape": Code(
        "warning",
        "Head size or number of KV heads differ from the target's. Some engines need them equal to share the KV cache.",
    ),
    "no-verifier": Code(
        "error",
        "The output has to name its target (verifier), and none is known.",
        "--target-name ORG/NAME.",
    ),
    "verifier-name": Code(
        "warning",
        "The output names its verifier by a path, which exists on this machine only.",
        "--target-name ORG/NAME names it for everybody.",
    ),
    "speculative-tokens": Code(
        "note", "The checkpoint does not say how many tokens to draft. The output says 3."
    ),
    "link-copied": Code(
        "note", "--link could not link files on another file system. They were copied."
    ),
    "link-elsewhere": Code(
        "error",
        "A tokenizer, licence or generation config is a link out of its folder; copying it would carry along a "
        "file that is not the checkpoint's.",
        "Put the file itself in the place of the link if it belongs to the draft; else remove the link.",
    ),
    "code-left": Code(
        "note",
        "Code files, and the key auto_map that names them, were not copied. Code is never copied.",
    ),
}
