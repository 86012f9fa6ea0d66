"""What is wrong with a launch command."""

from eagle3_interop.schemas.codes.base import WITH_PLUGIN, Code

CODES: dict[str, Code] = {
    "serve-releases": Code(
        "error",
        "No launch command is right in all releases that were named with --for.",
        "Name one release, and serve each with its own command.",
    ),
    "serve-folder": Code(
        "error",
        "The folder is of another layout, which this engine does not load, or reads as another network.",
        "Convert it for this engine, and serve the output.",
    ),
    "serve-algorithm": Code(
        "error",
        "The algorithm is not EAGLE3. SGLang then captures only the last hidden state and silently skips fc.",
        "--speculative-algorithm EAGLE3",
    ),
    "serve-no-draft": Code(
        "error", "The command names no draft, so the engine would not speculate.", "Name the draft."
    ),
    "serve-other-draft": Code(
        "warning",
        "The command names another draft than the one that it was judged for.",
        "Name the draft that was given, or check the command with the draft that it names.",
    ),
    "serve-other-target": Code(
        "warning",
        "The command names another target than the one that was given with --target.",
        "Name the target that was given, or give --target as the command names it.",
    ),
    "serve-unknown-flag": Code(
        "error",
        "The engine's own parser does not take this flag, so that it does not start.",
        "Leave it out.",
    ),
    "serve-unknown-setting": Code(
        "error",
        "vLLM's speculative config does not have this key, so that vLLM does not start.",
        "Leave it out.",
    ),
    "serve-multi-layer": Code(
        "error",
        "SGLang's multi-layer EAGLE drafts each position with another model; an EAGLE-3 draft feeds itself.",
        "Leave --enable-multi-layer-eagle out.",
    ),
    "serve-config-file": Code(
        "warning",
        "The command names a file of more flags, which --check does not read.",
        "Give the flags themselves.",
    ),
    "serve-underscores": Code(
        "error",
        "SGLang's flags have dashes; it takes no underscores for them, as vLLM does.",
        "Write --speculative-num-steps, not --speculative_num_steps.",
    ),
    "serve-given-twice": Code(
        "error",
        "vLLM takes a speculative setting from one place only, and does not start.",
        "Leave the --spec-* flag out.",
    ),
    "serve-steps-win": Code(
        "error",
        "With top-k 1 the number of steps decides; the number of draft tokens that was asked is overridden.",
        "Give --speculative-num-draft-tokens as steps + 1.",
    ),
    "serve-counts": Code(
        "error",
        "The counts do not fit each other, or one is absent or too small.",
        "Use the command that serve prints.",
    ),
    "serve-counts-chosen": Code(
        "note",
        "SGLang chooses steps, top-k and draft tokens itself.",
        "eagle3-validate --sweep measures them.",
    ),
    "serve-context": Code(
        "error",
        "The context is empty, or longer than what the engine takes the draft or the target to reach.",
        "Convert with --target, which raises the draft's positions, or shorten --context-length.",
    ),
    "serve-context-stops": Code(
        "warning",
        "vLLM's V1 runner drafts nothing beyond the positions that the draft declares.",
        "Convert with --target, which raises them, or leave VLLM_USE_V2_MODEL_RUNNER out.",
    ),
    "serve-dtype": Code(
        "error",
        "SGLang settles each model's dtype by its own config, and the draft's fc takes no other.",
        "Give --dtype, which holds for both.",
    ),
    "serve-overrides": Code(
        "error",
        "SGLang's --json-model-override-args holds for the draft too, and makes it another network.",
        "Write the keys into the target's own config.json instead.",
    ),
    "serve-overrides-shared": Code(
        "warning",
        "SGLang's --json-model-override-args holds for the draft too.",
        "Write the keys into the target's own config.json instead.",
    ),
    "serve-mistral-name": Code(
        "error",
        "SGLang takes the folder for Mistral's own format, by words anywhere in its path, and fails.",
        "Give a link whose path holds none of them: ln -s FOLDER eagle3-draft.",
    ),
    "serve-mistral-target": Code(
        "warning",
        "By words in its path SGLang takes the target for Mistral's own format.",
        "--model-config-parser hf",
    ),
    "serve-quantisation": Code(
        "error",
        "The unquantised draft would be loaded with the target's quantisation.",
        "--speculative-draft-model-quantization unquant",
    ),
    "serve-quantised-target": Code("note", "The target is quantised, the draft is not."),
    "serve-plugin": Code(
        "error",
        "SGLang's own classes do not include this draft's.",
        WITH_PLUGIN,
    ),
    "serve-window": Code(
        "warning",
        "The window given on the command line replaces the one that the draft was trained with.",
    ),
    "serve-window-given": Code(
        "error",
        "The draft has a window of its own, and the plugin refuses another.",
        "Leave it out.",
    ),
    "serve-tree": Code(
        "error",
        "This backend, or this way of sampling, drafts chains only.",
        "--speculative-eagle-topk 1",
    ),
    "serve-sampling": Code(
        "error",
        "SGLang's rejection sampling needs a draft of the whole vocabulary.",
        "Leave it out.",
    ),
    "serve-pages": Code(
        "error", "SGLang cannot draft trees with pages of this size.", "--page-size 1"
    ),
    "serve-pages-chosen": Code(
        "warning",
        "Trees over pages need a backend that can do them, and SGLang chooses it by the GPU.",
        "Name one: --attention-backend flashinfer, fa3 or triton.",
    ),
    "serve-backend": Code(
        "error",
        "The backend does not compute the draft's kind of attention, and SGLang does not start.",
        "Give the draft a backend of its own: --speculative-draft-attention-backend triton.",
    ),
    "serve-backend-chosen": Code(
        "warning",
        "Draft and target attend in different ways (MLA, grouped heads), and the draft takes the target's backend.",
        "Give the draft a backend of its own: --speculative-draft-attention-backend triton.",
    ),
    "serve-eager-embedding-tap": Code(
        "warning",
        "Without compilation vLLM overwrites the embedding that the draft taps.",
        "Leave compilation on, or serve with SGLang.",
    ),
    "serve-parallel": Code(
        "error",
        "vLLM would not draft all tokens of a P-EAGLE draft in one pass.",
        '"parallel_drafting": true',
    ),
    "serve-method": Code("error", "vLLM would not draft as EAGLE-3.", '"method": "eagle3"'),
}
