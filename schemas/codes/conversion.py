"""What a conversion chose."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    "set-by-user": Code("note", "The user's word counts."),
    "cast": Code("note", "The weights were cast."),
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
        "Head size or KV heads differ from the target's: some engines share pages by them.",
    ),
    "no-verifier": Code(
        "error", "The destination names its verifier, and none is known.", "--target-name ORG/NAME."
    ),
    "verifier-name": Code(
        "warning",
        "The verifier is named by a path, which its loader resolves on this machine only.",
        "--target-name ORG/NAME names it for everybody.",
    ),
    "speculative-tokens": Code("note", "The number of draft tokens is not known; 3 was written."),
    "link-copied": Code("note", "Files on another file system were copied, not linked."),
    "link-elsewhere": Code(
        "error",
        "A tokenizer, licence or generation config is a link out of its folder; copying it would carry along a "
        "file that is not the checkpoint's.",
        "Put the file itself in the place of the link if it belongs to the draft; else remove the link.",
    ),
    "code-left": Code("note", "Code files, and auto_map which names them, are never copied."),
}
