"""The registry of finding codes: what each means for acceptance, and what to do."""

from typing import Literal, NamedTuple

Severity = Literal["error", "warning", "note"]


class Code(NamedTuple):
    """One entry: its severity, what it means, and the way out."""

    severity: Severity
    meaning: str
    fix: str = ""


_PLUGIN = "Serve with the SGLang plugin, or with vLLM, which compute it."
_ELSEWHERE = "Convert it for a framework that computes it, which eagle3-convert inspect names."

CODES: dict[str, Code] = {
    # What a folder contains.
    "broken-file": Code(
        "error", "A weight file is damaged or not what its name says.", "Fetch the file again."
    ),
    "broken-config": Code(
        "error",
        "config.json cannot be read as one JSON object.",
        "Fetch config.json again, or correct it.",
    ),
    "broken-index": Code(
        "error",
        "The index names files or tensors that are elsewhere, missing or unsafe.",
        "Fetch the index again.",
    ),
    "no-config": Code("error", "The folder holds no config.json.", "Give a model's folder."),
    "no-weights": Code(
        "error", "The folder holds no weight files.", "Give the folder that holds them."
    ),
    "unreadable-pickle": Code(
        "error",
        "A .bin file holds more than tensors. Code in pickles is never run.",
        "Save the weights as safetensors in the trainer.",
    ),
    "code-in-pickle": Code(
        "error",
        "A .bin file would run code when loaded; it was not.",
        "Save the weights as safetensors in the trainer.",
    ),
    "unknown-dtype": Code(
        "error",
        "A tensor's dtype is one that cannot be computed with here.",
        "Save the weights as bfloat16, float16 or float32.",
    ),
    "ambiguous-weights": Code(
        "error",
        "Frameworks load different weight files from this folder.",
        "Keep one set of weight files, and with shards the index that names them.",
    ),
    "fails-to-load": Code(
        "warning",
        "The framework itself raises an error on this folder; it was understood all the same.",
        "Convert it: the output loads.",
    ),
    "outside-index": Code("warning", "The index leaves something out that lies in the folder."),
    "map-in-side-file": Code(
        "note", "The vocabulary map was taken from a side file of the trainer."
    ),
    "duplicate-tensor": Code(
        "error",
        "Two entries are the same tensor; which one a loader ends with is a matter of order.",
        "Keep the one that is meant.",
    ),
    "bad-config": Code(
        "error", "A config key has a value that no framework accepts.", "Correct the value."
    ),
    "cast-overflow": Code(
        "error", "The new dtype cannot hold the values.", "Choose --dtype bfloat16 or float32."
    ),
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
    "recognised": Code("note", "The layout that auto found, and by which sign."),
    # Kinds of drafts that are recognised, and not carried yet.
    "quantised-draft": Code(
        "error",
        "Scales and ignore lists of a quantised draft are not carried yet.",
        "Convert the unquantised draft and quantise in the serving framework.",
    ),
    "mla-draft": Code(
        "error",
        "Drafts with multi-head latent attention are not carried yet.",
        "SGLang and vLLM both read this layout's own folder.",
    ),
    "parallel-draft": Code(
        "error",
        "Parallel drafting (P-EAGLE) is not carried yet; SGLang would run it as plain "
        "autoregression.",
        "Serve the folder with vLLM as it is.",
    ),
    # Defaults that were taken.
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
        "No ids: every framework feeds the same default triple.",
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
        "Ids stand in eagle_config only, where SGLang, SpecForge and ModelOpt count outputs. vLLM's V1 runner "
        "would take them one layer early.",
        "If they count inputs: --taps LIST.",
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
    "unknown-architecture": Code("warning", "The class name is none that the framework registers."),
    # Taps.
    "taps-unknown": Code(
        "error",
        "Nothing says which target layers fc's blocks were trained on.",
        "--taps LIST, in fc's own order.",
    ),
    "taps-mismatch": Code(
        "error", "The ids do not fit the number of fc blocks.", "--taps LIST, in fc's own order."
    ),
    "taps-out-of-range": Code(
        "error", "A tap lies outside the target.", "--taps LIST, or another --target."
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
        "A tap is repeated under a norm over the whole concatenation, whose mean would change.",
        "Train without norm_before_fc, or give distinct taps.",
    ),
    "nested-ids": Code(
        "warning",
        "Ids stand only where this framework either ignores them or counts them otherwise.",
        "Use the command for the framework that wrote them, or --taps LIST.",
    ),
    "ids-unread": Code(
        "note", "Ids stand in a place that this framework does not read; they agree."
    ),
    "ids-empty": Code(
        "error",
        "The list of ids is empty, and nothing would be captured.",
        "--taps LIST, in fc's own order.",
    ),
    "ids-disagree": Code(
        "error", "Ids in two places name different taps.", "--taps LIST, in fc's own order."
    ),
    "plain-rule": Code(
        "warning",
        "Ids were read or written by SGLang's plain rule, as the target is not known.",
        "Give --target.",
    ),
    "target-rule": Code(
        "warning", "Ids were written by the rule of this target's own class in SGLang."
    ),
    "no-such-ids": Code(
        "error",
        "No list of ids makes this target capture these taps.",
        "Serve with vLLM, whose ids are the taps.",
    ),
    "end-tap": Code(
        "error",
        "A tap after the last layer is one that this target never captures.",
        "Train without that tap.",
    ),
    "embedding-tap": Code(
        "error", "A tap on the embeddings is one that this target fails on.", "Train without it."
    ),
    "embedding-tap-depends": Code(
        "warning",
        "Whether this target fails on a tap on the embeddings depends on what it runs on, or holds.",
        "Try it once: it fails at the first token.",
    ),
    "target-captures-nothing": Code(
        "error",
        "The target's class captures no hidden states, and no draft can be fed.",
        "Serve with another engine or version, whose class does.",
    ),
    "target-captures-other": Code(
        "error",
        "The target's class captures something else than the residual stream: accept length 1.",
        "Serve with another version, whose class does.",
    ),
    # Tensors.
    "missing-tensor": Code(
        "error",
        "A tensor is absent; loaders leave it at its initial value.",
        "Fetch the checkpoint again.",
    ),
    "missing-head": Code(
        "error",
        "The head is absent, and loaders fill it with random or wrong rows: accept length 1.",
        "Give --target, and it is taken from there.",
    ),
    "missing-norm": Code(
        "error",
        "The norm of a later layer stands under a name that this framework does not read.",
        "Use the command for the framework that wrote it.",
    ),
    "unknown-tensor": Code(
        "error",
        "A tensor that no loader knows, and most drop without a word.",
        "Remove it from the file.",
    ),
    "unused-tensor": Code(
        "error",
        "A tensor is stored that the framework, by this config, runs without.",
        "Switch its part on with --set if the draft was trained with it, or remove the tensor.",
    ),
    "shape-mismatch": Code(
        "error",
        "A tensor's shape is not what the config implies.",
        "Correct the config, or fetch the file again.",
    ),
    "dropped-tensor": Code(
        "note", "A tensor that every reader computes or takes from the target; left out."
    ),
    "foreign-name": Code(
        "warning", "The framework's own loader does not know this spelling; it was understood."
    ),
    "unused-norm": Code(
        "note", "A second spelling of a norm that this framework never uses; left out."
    ),
    "unused-head": Code(
        "error",
        "A head is stored that this config replaces.",
        "--set vocabulary.head=own if it was trained, or remove the tensor.",
    ),
    "unused-fc": Code("note", "fc is stored, and this config runs without it; left out."),
    "absent-bias": Code(
        "warning",
        "The config switches biases on that the file does not hold; they are taken for zero.",
        "Fetch the checkpoint again if it was trained with them.",
    ),
    "zero-bias": Code("note", "All-zero biases were left out: not every framework has them."),
    "zero-bias-added": Code(
        "note",
        "Zero biases were written: the destination creates them, and would leave them uninitialised.",
    ),
    "layer-count": Code(
        "warning", "The config counts more layers than there are tensors; the tensors count."
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
        "warning", "The framework would size fc wrongly from this config, and fail to load."
    ),
    "norm-twice": Code(
        "note", "Norms of later layers are written under both names that readers use."
    ),
    "window-unread": Code(
        "error",
        "A sliding window stands in the config, and this framework attends to everything.",
        "--set layers.windows=none if it was trained without one; else convert from the layout it was trained in.",
    ),
    "residual-unread": Code(
        "error",
        "norm_before_residual is true, and this framework never reads it.",
        "--set residual=normed if it was trained so, else --set residual=raw.",
    ),
    "norm-output-meaning": Code(
        "warning",
        "norm_output is true, which SpecForge's trainer understands otherwise than every server.",
        "If it was trained by SpecForge: --set feedback=pre-norm. eagle3-diagnose measures it.",
    ),
    "logit-scale-unread": Code(
        "warning", "logit_scale is set, and this framework does not read it."
    ),
    "partial-rotary-unread": Code(
        "warning", "partial_rotary_factor is set, and this framework does not read it."
    ),
    "mrope-unread": Code("warning", "mrope_section is set, and this framework does not read it."),
    "tie-unread": Code(
        "warning", "tie_word_embeddings is true, and this framework does not read it."
    ),
    "null-target-width": Code(
        "warning", "target_hidden_size is null, which some loaders fail on; it is left out."
    ),
    # Vocabulary.
    "map-size": Code(
        "error", "A vocabulary map belongs to another vocabulary.", "Fetch the matching map."
    ),
    "bad-map": Code(
        "error",
        "d2t, read as offsets, leaves the vocabulary or repeats tokens.",
        "Write target id minus draft id into d2t.",
    ),
    "map-disagrees": Code(
        "error",
        "d2t and t2d name different tokens: somebody's mistake.",
        "Find out which is right, and remove or correct the other.",
    ),
    "map-order": Code(
        "error",
        "d2t is not ascending, where the trainer sorts: head rows and map disagree.",
        "Find out in which order the head's rows stand.",
    ),
    "zero-map": Code(
        "error",
        "d2t is all zero with a reduced vocabulary: it was never set.",
        "Fetch the map from the trainer.",
    ),
    "prefix-map": Code(
        "warning",
        "The draft vocabulary is the first tokens of the target's: often a map that was never set.",
    ),
    "missing-map": Code(
        "error",
        "A reduced vocabulary without a map; loaders take the first tokens.",
        "Put d2t into the file, or eagle_meta.pt beside it.",
    ),
    "map-derived": Code("note", "d2t was derived from t2d."),
    "map-rebuilt": Code("note", "t2d was rebuilt from d2t."),
    "halves-exchanged": Code(
        "note",
        "Columns for [hidden, embedding] were put into the order [embedding, hidden] (bit-exact).",
    ),
    "map-sorted": Code("note", "The map was sorted, and the head's rows with it."),
    "map-dropped": Code("note", "A map between two equal vocabularies was dropped."),
    "full-vocabulary-map": Code(
        "error", "A map that permutes the full vocabulary.", "Only SGLang's own class applies it."
    ),
    "no-draft-vocabulary-size": Code(
        "warning", "draft_vocab_size is absent, on which SGLang fails."
    ),
    "target-head": Code("note", "The head is the target's."),
    "head-from-target": Code("note", "The head was gathered from the target, row by row."),
    "head-needs-target": Code(
        "error",
        "The destination needs the head's own table, which the target owns.",
        "Give --target.",
    ),
    "head-from-embeddings": Code(
        "note", "The head is tied to an embedding table, which was written out as the head."
    ),
    "tied-head": Code(
        "error",
        "A head tied to the embeddings has a row for every target token, not for a reduced vocabulary.",
        "--set vocabulary.head=own if there is a head in the file.",
    ),
    "target-embeddings": Code(
        "warning",
        "The embedding table is absent; readers disagree on what then counts.",
        "Convert with --target, which writes it out.",
    ),
    "embeddings-replaced": Code(
        "note", "SGLang uses the target's embedding table, not the stored one."
    ),
    "embeddings-unverified": Code(
        "warning",
        "The stored embedding table may differ from the target's; frameworks then use different ones.",
        "Give --target, and the two are compared.",
    ),
    "embeddings-equal": Code("note", "The stored embedding table equals the target's."),
    "embeddings-left-out": Code(
        "note", "The stored table differs from the target's, which alone was ever used; left out."
    ),
    "embeddings-from-target": Code(
        "note",
        "The target's embedding table was written out, which the destination wants in the file.",
    ),
    "embeddings-need-target": Code(
        "error",
        "The embedding table is the target's, and speculators 0.9 on transformers 5 leaves an absent one "
        "uninitialised instead of loading the verifier's.",
        "Give --target, and the table is taken from there.",
    ),
    "own-embeddings": Code(
        "error", "The draft's own embedding table differs from the target's.", _PLUGIN
    ),
    "wrong-target": Code(
        "error", "Draft and target do not belong together.", "Give the target it was trained for."
    ),
    "not-a-draft": Code(
        "error",
        "The folder holds a whole model.",
        "Give the draft first, and the model that it drafts for with --target.",
    ),
    "not-a-target": Code(
        "error",
        "This is no causal language model that a draft could propose tokens for.",
        "Give the model that the draft proposes tokens for.",
    ),
    "needs-target": Code(
        "error",
        "The draft uses a table of the target's, and no target was given.",
        "Give --target.",
    ),
    "non-finite-weights": Code(
        "error",
        "A tensor holds NaN or infinite values: every proposal would be noise.",
        "Export the checkpoint again from the trainer.",
    ),
    # Rope.
    "nested-rope": Code(
        "error",
        "rope is given for each attention type; a draft has one.",
        "Say which: --set rope.theta=VALUE.",
    ),
    "rope-disagrees": Code(
        "warning",
        "The two forms of rope in the config differ.",
        "If the other was trained: --set rope.theta=VALUE.",
    ),
    "idle-rope-keys": Code(
        "note", "Numbers in the rope config that a plain rotation does not use."
    ),
    "unknown-rope": Code(
        "error",
        "A kind of rope scaling that cannot be carried.",
        "--set rope.scaling=none if it was trained with a plain rotation; else serve where it was trained for.",
    ),
    "rope-differs": Code(
        "error",
        "Frameworks compute this kind of rope scaling differently.",
        "Train with another kind, or serve where it was trained for.",
    ),
    # What a destination lacks.
    "residual-normed": Code("error", "The residual is the normed hidden state.", _PLUGIN),
    "qk-norm": Code("error", "q and k are normed.", _PLUGIN),
    "qkv-bias": Code("error", "q, k and v have biases.", _PLUGIN),
    "output-bias": Code("error", "o_proj has a bias.", _ELSEWHERE),
    "mlp-bias": Code("error", "The MLP has biases.", _ELSEWHERE),
    "fc-bias": Code(
        "error", "fc has a bias that is not zero.", "Only SGLang's own class computes it."
    ),
    "sliding-window": Code("error", "Attention slides.", _PLUGIN),
    "mixed-windows": Code(
        "error",
        "Layers slide by different widths.",
        "--set layers.windows=N if they were trained with one; no framework's config holds more.",
    ),
    "activation": Code(
        "error", "The MLP's activation is not silu.", "Only speculators computes it."
    ),
    "other-width": Code("error", "Draft and target are not equally wide.", _ELSEWHERE),
    "no-fc": Code(
        "error", "The draft reads the target's last hidden state without an fc.", _ELSEWHERE
    ),
    "no-fc-runner": Code("warning", "Drafts without fc run in vLLM's V1 model runner only."),
    "both-fc-norms": Code("error", "norm_before_fc and fc_norm together.", _ELSEWHERE),
    "one-equal-tap": Code(
        "error", "fc is as wide as the draft, and would be skipped.", "Serve with vLLM."
    ),
    "logit-scale": Code("error", "The draft's logits are scaled.", "Only vLLM computes it."),
    "partial-rotary": Code(
        "error",
        "Only a part of each head is rotated.",
        "--set rope.partial=1 if whole heads were; else serve with a framework that computes it.",
    ),
    "mrope": Code(
        "error", "Multimodal rope.", "--set rope.mrope_sections=none for a text-only draft."
    ),
    "scaled-mrope": Code(
        "error",
        "Multimodal rope with a scaling, of which the class computes the first only.",
        "--set rope.mrope_sections=none for a text-only draft.",
    ),
    "class-defaults-unknown": Code(
        "error",
        "Keys are absent whose defaults this model_type's own class sets, and which are not known here.",
        "Write them into config.json as that class has them.",
    ),
    "target-window": Code(
        "warning",
        "vLLM gives draft layers without a window of their own the target's.",
        "eagle3-convert auto-to-vllm --target writes a window that vLLM heeds, wider than any context.",
    ),
    "window-written": Code(
        "note", "A window wider than any context keeps vLLM from taking the target's."
    ),
    "readers-disagree": Code(
        "error",
        "A folder made for several frameworks holds another network for each of them.",
        "Convert by the name of the layout whose keys are right: speculators-to-..., sglang-to-... or vllm-to-....",
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
        "Start SGLang with SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3_interop.sglang_plugin.",
    ),
    # Choices of a conversion.
    "set-by-user": Code("note", "The user's word counts."),
    "cast": Code("note", "The weights were cast."),
    "position-raised": Code("note", "max_position_embeddings was raised to the target's."),
    "position-kept": Code(
        "warning",
        "The draft declares fewer positions than its target; its rope is stretched by that number, which stays.",
        "Serve with a context no longer than the draft's, or override the check of the engine.",
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
    "code-left": Code("note", "Code files are never carried along."),
    # Texts of a validation.
    "given-texts": Code(
        "warning",
        "Completions from the prompts file are not the target's own greedy choice, so that the counters are "
        "of another text than the target would write.",
        "Generate them greedily with this very target, or leave completion_token_ids out.",
    ),
    # A real engine.
    "engine-differs": Code(
        "warning",
        "A real engine counts other accepted tokens than the network of the checkpoint would: it computes "
        "another one.",
        "Convert the checkpoint for this engine; see the cause that the report names.",
    ),
    "engine-text": Code(
        "warning",
        "An engine wrote tokens that are not the target's own greedy choice; a few are ties that rounding "
        "decides.",
        "If they are many: serve this very target, unquantised, with the dtype that --dtype names.",
    ),
    # A push.
    "local-path": Code(
        "error",
        "A path of this machine stands in a config that is to be published.",
        "Convert with --target-name ORG/NAME.",
    ),
    "other-weights": Code(
        "error",
        "The repository already holds weight files of another set.",
        "Push into a repository of its own.",
    ),
    "broken-card": Code("error", "The model card cannot be understood.", "Correct README.md."),
    # A launch command.
    "serve-folder": Code(
        "error",
        "The folder is of another layout, which this engine does not load, or reads as another network.",
        "Convert it for this engine, and serve the output.",
    ),
    "serve-algorithm": Code(
        "error",
        "Not EAGLE3: without it SGLang hands over the last hidden state alone and skips fc without a word.",
        "--speculative-algorithm EAGLE3",
    ),
    "serve-no-draft": Code("error", "The command names no draft.", "Name the draft."),
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
        "The context is empty, or longer than what SGLang takes the draft or the target to reach.",
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
        "Start with SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3_interop.sglang_plugin.",
    ),
    "serve-window": Code(
        "warning", "A window on the command line replaces what the draft was trained with."
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
        "error", "Trees and pages of this size do not go together.", "--page-size 1"
    ),
    "serve-pages-chosen": Code(
        "warning",
        "Trees over pages need a backend that can do them, and SGLang chooses it by the GPU.",
        "Name one: --attention-backend flashinfer, fa3 or triton.",
    ),
    "serve-eager-embedding-tap": Code(
        "warning",
        "Without compilation vLLM overwrites the embedding that the draft taps.",
        "Leave compilation on, or serve with SGLang.",
    ),
    "serve-method": Code("error", "vLLM would not draft as EAGLE-3.", '"method": "eagle3"'),
    # A diagnosis.
    "wiring-differs": Code(
        "warning",
        "The weights fit another wiring than the configured one, so many drafted tokens are lost.",
        "--write OUTPUT writes a checkpoint that says the better one.",
    ),
    "wiring-none": Code(
        "warning",
        "No wiring makes these weights draft for this target.",
        "Give the target that the draft was trained for; look for wrong or untrained weights.",
    ),
    "wiring-equivalent": Code(
        "note", "Wirings that these texts cannot tell apart: equal in effect, or nearly."
    ),
    "wiring-not-configured": Code(
        "warning", "The config names no wiring that can be run; the search began from a guess."
    ),
    "wiring-not-written": Code("warning", "No checkpoint can be written that says this wiring."),
    "search-cut-short": Code(
        "warning",
        "The budget ended before the search did; a better wiring may be left.",
        "Give a larger --budget.",
    ),
    "streams-on-disk": Code(
        "note", "The target's streams did not fit in memory and lay in a temporary folder."
    ),
    # Recorded hidden states.
    "broken-streams": Code(
        "error",
        "A file of recorded hidden states is damaged, missing or not the one that was recorded.",
        "Copy it again, or record again with eagle3-record.",
    ),
    "wrong-streams": Code(
        "error",
        "The recorded hidden states are of another target, or of other layers than was said.",
        "Give the target that was recorded; of a trainer's files, the layers that it recorded: --stream-taps.",
    ),
    "streams-not-finite": Code(
        "error",
        "Recorded hidden states hold NaN or infinite values, so that nothing can be measured on them.",
        "Record this text again; float16 overflows where bfloat16 does not.",
    ),
    "taps-not-recorded": Code(
        "error",
        "The draft reads layers of the target that were not recorded.",
        "Record them: eagle3-record TARGET --taps LIST --out DIR.",
    ),
    "streams-not-greedy": Code(
        "error",
        "No recorded text follows the target's own greedy choice long enough for a draft to be counted.",
        "Record texts that the target writes itself: eagle3-record.",
    ),
    "not-all-greedy": Code(
        "note",
        "Recorded texts are not all the target's own greedy choice. Start positions whose next tokens are "
        "count as an engine would count them; the teacher-forced accuracy is of all.",
    ),
    "no-loss-mask": Code(
        "note",
        "Which tokens a trainer learned from is not known, so that prompts count like answers.",
    ),
    "layers-not-tried": Code(
        "note",
        "Layers of the target that were not recorded could not be tried.",
        "Record more of them: eagle3-record TARGET --taps all --out DIR.",
    ),
    "streams-in-part": Code(
        "note", "A diagnosis reads as many of the recorded texts as it can hold."
    ),
}
