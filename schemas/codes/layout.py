"""Which layout a folder is written in, and kinds of drafts that are recognised and not carried yet."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    # Which layout it is.
    "wrong-layout": Code(
        "error",
        "The folder is not written in the layout that the command names.",
        "Use the command named.",
    ),
    "not-recognised": Code(
        "error",
        "No sign of a layout that this tool knows.",
        "Name the layout: speculators-to-..., sglang-to-... or vllm-to-....",
    ),
    # Who trained it.
    "trained-otherwise": Code(
        "error",
        "The code that trained this draft computed another network than the engines do from its folder.",
        "--trainer NAME converts what was trained, --trainer none what is served.",
        answered_by_search=True,
    ),
    "read-as-trained": Code(
        "note",
        "The draft was read as the code that trained it computes it, which is not what engines make of its "
        "folder.",
    ),
    "served-otherwise": Code(
        "warning",
        "What was measured is the network that engines compute; the code that trained the draft computes another.",
        "as_trained in the report says what that costs. Convert it as it was trained (eagle3-convert auto-to-...).",
    ),
    "no-final-norm": Code(
        "error",
        "The draft was trained without the final norm before the head, which every engine applies.",
        "eagle3-validate measures what that costs; --allow no-final-norm converts it all the same, "
        "--trainer none takes it for another trainer's.",
        answered_by_search=True,
    ),
    "double-norm": Code(
        "error",
        "The draft was trained with two norms before layer 0's hidden half, and every engine applies one.",
        "eagle3-validate measures what that costs; --allow double-norm converts it all the same.",
        answered_by_search=True,
    ),
    "start-window": Code(
        "warning",
        "The draft was trained with a sliding window that stays at each draft's start; every engine moves it on.",
        "eagle3-validate measures what that costs.",
    ),
    "rope-base-untold": Code(
        "warning",
        "The base of the rope that was trained depends on what the trainer ran with, and its folder does not tell.",
        "--set rope.theta=10000 if it was trained with that; eagle3-diagnose measures both.",
    ),
    "ids-were-options": Code(
        "warning",
        "The trainer takes layer ids as an option of the run, and its exports do not carry them.",
        "If the run had such a list: --taps LIST. eagle3-diagnose finds out.",
    ),
    "trainer-keys": Code(
        "note", "Keys that name the trainer are left out: the output says itself what was trained."
    ),
    "recognised": Code("note", "The layout that auto found, and by which sign."),
    # Kinds of drafts that are recognised, and not carried yet.
    "quantised-draft": Code(
        "error",
        "A quantisation that this tool does not carry. It carries compressed-tensors' and ModelOpt's FP8 and NVFP4.",
        "Convert the plain draft and quantise it then.",
    ),
    "mla-draft": Code(
        "error",
        "A draft with multi-head latent attention (MLA), for which speculators has no form: neither the library nor "
        "vLLM's reader of its folders knows such layers.",
        "Convert it for SGLang or vLLM, or for both: auto-to-sglang, auto-to-vllm, auto-to-universal.",
    ),
    "parallel-draft": Code(
        "error",
        "The draft proposes all tokens in one pass (P-EAGLE), which SGLang does not know: it would run it token by "
        "token, without a word, and with fewer accepted tokens.",
        "Convert it for vLLM or speculators, and serve it with vLLM (parallel_drafting: true).",
    ),
    "no-mask-token": Code(
        "error",
        "A P-EAGLE draft without its mask token: vLLM fails on it, and no other token stands for it.",
        "--set parallel.mask_token_id=N, with the token that it was trained with.",
        effect="does-not-load",
    ),
    "idle-norm-output": Code(
        "note", "norm_output says what is fed back, and a P-EAGLE draft feeds nothing back."
    ),
    "other-heads": Code(
        "error",
        "A draft of another kind (EAGLE-1, DFlash, DSpark, MTP, Medusa heads), which this tool does not carry.",
        "Serve it with the engine that its trainer names.",
    ),
}
