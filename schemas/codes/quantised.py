"""Quantised drafts: what is carried, what is left out, and what engines would make of their lists."""

from eagle3_interop.schemas.codes.base import Code

_PLAIN = "--dequantize writes the plain draft."

CODES: dict[str, Code] = {
    "quantised-parts": Code(
        "error",
        "A part of a quantised weight is not what its scheme says.",
        "Ask whoever quantised it; a quantization_config of another run may lie beside these weights.",
    ),
    "quantised-names": Code(
        "warning",
        "An engine asks a quantised draft's lists by names of its own, and these lists miss some: it would compute "
        "with what was in memory, or with numbers whose scale it drops, and not say so.",
        "Convert the draft: the output's lists are written for the names that engines ask by.",
        effect="computes-otherwise",
        mended_by="quantised-names-written",
    ),
    "quantised-names-unsure": Code(
        "note",
        "The lists of a quantised draft number layers as vLLM does, after the target's own.",
        "--target says whether they are right for it.",
        mended_by="quantised-names-written",
    ),
    "quantised-names-written": Code(
        "note", "Ignore lists and targets were written for the names by which every engine asks."
    ),
    "quantised-unmatched": Code(
        "error",
        "No list makes this engine load the draft's quantised weights as what they are.",
        f"Convert it for another engine, or write it plain: {_PLAIN}",
    ),
    "quantised-cut": Code(
        "error",
        "A rewrite would cut through values that share a scale or an integer.",
        _PLAIN,
    ),
    "dequantised": Code(
        "note",
        "Quantised weights were taken as the plain numbers that they stand for. Against the original, this tells "
        "what storing them so costs; engines that round inputs as well lose a little more.",
    ),
    "quantisation-dropped": Code(
        "warning",
        "A quantization_config was left out, because nothing in the file is quantised: often the target's was "
        "copied into the draft's config. An engine would build modules for other weights than there are.",
        "Convert the draft: the output has no such key.",
        effect="computes-otherwise",
    ),
    "quantisation-beside": Code(
        "note", "The quantisation stands in ModelOpt's own file; the output has it in config.json."
    ),
    "idle-quantisation": Code(
        "note", "A quantization_config that quantises no weights was left out."
    ),
    "kv-scales-left": Code(
        "warning",
        "Scales of a quantised KV cache are left out: draft and target share its dtype, which the target's "
        "settings decide, and engines take a scale of one.",
        "Where the cache is 8 bits wide, measure acceptance with it.",
    ),
}
