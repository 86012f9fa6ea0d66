"""The vocabulary map, the head, the embedding table, and the target that they belong to."""

from eagle3_interop.schemas.codes.base import PLUGIN, Code

CODES: dict[str, Code] = {
    "head-replaced": Code(
        "warning",
        "The framework replaces the draft's own head by the target's, as both have the same size.",
    ),
    "repeated-head-rows": Code(
        "error",
        "The head repeats rows wherever its map repeats an offset, as no trained head does: nothing it proposes is right.",
        "Export the draft again without pruning its vocabulary.",
        answered_by_search=True,
    ),
    "map-size": Code(
        "error", "A vocabulary map belongs to another vocabulary.", "Fetch the matching map."
    ),
    "bad-map": Code(
        "error",
        "d2t, read as offsets, leaves the vocabulary or repeats tokens.",
        "Write target id minus draft id into d2t.",
        answered_by_search=True,
    ),
    "absolute-map": Code(
        "error",
        "d2t holds target ids, where every engine adds its values to draft ids: nothing that is proposed is meant.",
        "--set vocabulary.map=ids writes the offsets.",
        answered_by_search=True,
    ),
    "map-looks-absolute": Code(
        "warning",
        "d2t ascends at every step, as target ids would; it is read as offsets, as every engine reads it.",
        "If it holds target ids: --set vocabulary.map=ids",
    ),
    "map-disagrees": Code(
        "error",
        "d2t and t2d name different tokens, so one of them is wrong.",
        "Find out which is right, and remove or correct the other.",
        answered_by_search=True,
    ),
    "map-order": Code(
        "error",
        "d2t is not ascending, where the trainer sorts: head rows and map disagree.",
        "Find out in which order the head's rows stand.",
        answered_by_search=True,
    ),
    "zero-map": Code(
        "error",
        "d2t is all zero with a reduced vocabulary: it was never set.",
        "Fetch the map from the trainer.",
        answered_by_search=True,
    ),
    "prefix-map": Code(
        "warning",
        "The draft vocabulary is the first tokens of the target's: often a map that was never set.",
    ),
    "missing-map": Code(
        "error",
        "The draft has a reduced vocabulary and no map. Loaders take its rows for the first tokens of the target.",
        "Put d2t into the file, or eagle_meta.pt beside it.",
        answered_by_search=True,
    ),
    "map-derived": Code("note", "d2t was derived from t2d.", effect="computes-otherwise"),
    "map-rebuilt": Code("note", "t2d was rebuilt from d2t."),
    "halves-exchanged": Code(
        "note",
        "Columns for [hidden, embedding] were put into the order [embedding, hidden] (bit-exact).",
    ),
    "map-sorted": Code("note", "The map was sorted, and the head's rows with it."),
    "map-dropped": Code("note", "A map between two equal vocabularies was dropped."),
    "full-vocabulary-map": Code(
        "error",
        "The draft has the full vocabulary in another order, and a map for it.",
        "Only SGLang's own class applies it.",
    ),
    "no-draft-vocabulary-size": Code(
        "warning", "The config has no draft_vocab_size, and SGLang fails without it."
    ),
    "head-unread": Code(
        "warning",
        "draft_vocab_size is absent beside a head of fewer rows, which engines then do not use.",
        "Convert it: the output names the size.",
        effect="computes-otherwise",
    ),
    "target-head": Code("note", "The draft uses the target's head."),
    "target-head-absent": Code(
        "warning",
        "The head is absent from a draft of full vocabulary; readers disagree on what then counts.",
        "Convert with --target, which writes it out.",
        effect="computes-otherwise",
        effect_in="speculators",
    ),
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
        effect="computes-otherwise",
        effect_in="speculators",
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
        "note",
        "The stored embedding table differs from the target's and was left out: the framework it comes from only ever used the target's.",
    ),
    "embeddings-from-target": Code(
        "note",
        "The target's embedding table was written out, which the destination wants in the file.",
    ),
    "embeddings-need-target": Code(
        "error",
        "The embedding table is the target's, and the speculators library leaves an absent one "
        "uninitialised instead of loading the verifier's.",
        "Give --target, and the table is taken from there.",
    ),
    "own-embeddings": Code(
        "error", "The draft's own embedding table differs from the target's.", PLUGIN
    ),
    "wrong-target": Code(
        "error",
        "The draft does not fit this target: their sizes differ.",
        "Give the target it was trained for.",
    ),
    "other-tokenizer": Code(
        "warning",
        "The tokenizer in the draft's folder gives texts other token ids than the target's. Engines use the target's alone, so a draft "
        "that was trained with its own folder's knows other tokens under these ids.",
        "Find out which tokenizer the draft was trained with. If it is the target's, put the target's tokenizer files into the folder.",
    ),
    "tokenizer-added": Code(
        "note",
        "The tokenizers of draft and target differ in added tokens alone. Texts without these have the same ids.",
    ),
    "tokenizer-unread": Code(
        "note",
        "A tokenizer.json is not laid out as the tokenizers library does, and was not compared.",
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
        "The draft uses the target's embedding table or head, and no target was given.",
        "Give --target.",
    ),
    "non-finite-weights": Code(
        "error",
        "A tensor holds NaN or infinite values: every proposal would be noise.",
        "Export the checkpoint again from the trainer.",
    ),
}
