"""What a validation met: its texts, and a real engine."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    # Texts of a validation.
    "given-texts": Code(
        "warning",
        "Completions from the prompts file are not the target's own greedy choice, so that the counters are "
        "of another text than the target would write.",
        "Generate them greedily with this very target, or leave completion_token_ids out.",
    ),
    # A report.
    "not-a-report": Code(
        "error",
        "The file is no report of eagle3-validate, or one of a later version of this tool.",
        "Give what eagle3-validate --json FILE wrote.",
    ),
    # A real engine.
    "engine-differs": Code(
        "warning",
        "The engine accepted other numbers of tokens than this checkpoint's network would. It computes another network.",
        "Convert the checkpoint for this engine; see the cause that the report names.",
    ),
    "release-differs": Code(
        "warning",
        "By what this tool knows of this release of the engine, it does not compute the checkpoint's network from "
        "this folder.",
        "eagle3-convert inspect names the releases that do, and --for ENGINE==VERSION converts for one.",
    ),
    "engine-on-a-cpu": Code(
        "note",
        "The engine found itself on a CPU, where latent attention (MLA) runs rightly with some settings alone. On a "
        "GPU it needs none of them.",
        "Serve on a GPU without these settings. Your own --engine-arg goes before them.",
    ),
    "speed-not-measured": Code(
        "note",
        "The engine did not run without the draft, so that no speed-up is stated.",
        "Read why it failed; --no-speed leaves the timing out.",
    ),
    "baseline-differs": Code(
        "warning",
        "The server without the draft serves another model by its name, or writes other texts: its speed may be that "
        "of another target.",
        "Give --baseline-server the same target, started with the same flags but those of the draft.",
    ),
    "engine-text": Code(
        "warning",
        "An engine wrote tokens that are not the target's own greedy choice; a few are ties that rounding "
        "decides.",
        "If they are many: serve this very target, unquantised, with the dtype that --dtype names.",
    ),
}
