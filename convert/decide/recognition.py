"""What a folder is: which layout, whether a draft at all, and what this tool left beside it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eagle3_interop.convert.read.checkpoint import Checkpoint
from eagle3_interop.convert.read.strict_json import MAX_JSON_BYTES, parse_object
from eagle3_interop.convert.write.earlier import PROVENANCE
from eagle3_interop.schemas.dialects.base import Reading
from eagle3_interop.schemas.dialects.keys import IDS, nested_keys
from eagle3_interop.schemas.dialects.kinds import other_format, other_kind
from eagle3_interop.schemas.dialects.recognition import OWN_KEYS, Sign
from eagle3_interop.schemas.draft import LARGEST
from eagle3_interop.schemas.findings import Finding, Refused, Unavailable, finding
from eagle3_interop.schemas.registry import DIALECTS, recognise

_SIGNS = re.compile(r"(^|\.)fc\.weight$|hidden_norm|midlayer\.")
"""Parts of tensor names, of which every EAGLE-3 draft has one."""


def refuse_other(checkpoint: Checkpoint) -> None:
    """Refuse what is no EAGLE-3 draft by its name; it would else be told tensor by tensor what it lacks.

    Raises:
        Refused: it is a draft of another kind or format, or none of its tensors is one that a draft has.
    """
    if other := [*other_format(checkpoint), *other_kind(checkpoint)]:
        raise Refused(other[:1])
    if checkpoint.tensors and not any(_SIGNS.search(name) for name in checkpoint.tensors):
        message = (
            "it has neither an fc nor a norm for hidden states: this is a whole model, not a draft."
        )
        raise Refused([finding("not-a-draft", checkpoint.path, message)])


def layout_of(
    checkpoint: Checkpoint, wanted: str, beside: Mapping[str, Any]
) -> tuple[str, list[Finding]]:
    """The layout that a folder is read in, and what there is to say of that.

    Args:
        checkpoint: the folder.
        wanted: the user's word, or ``auto``.
        beside: of `left_beside`.

    Raises:
        Refused: it is another layout, or none that is known.
    """
    found = recognise(checkpoint.config)
    if wanted == "auto":
        if found is None:
            message = "config.json has neither speculators' keys nor a class or layer ids of SGLang or vLLM."
            raise Refused([finding("not-recognised", "config.json", message)])
        layout, sign = _own_word(checkpoint, beside) or found
        said = [finding("recognised", "config.json", f"read in the {layout} layout: {sign.words}.")]
        if sign.guess:
            ids = nested_keys(checkpoint.config).get(IDS)
            message = f"layer ids {ids} were found only under eagle_config and read as SGLang does (id k = output of layer k)."
            where = f"config.json: eagle_config.{IDS}"
            said.append(finding("read-as-sglang", where, message, settled_by="taps"))
        return layout, said
    if wanted not in DIALECTS or DIALECTS[wanted].recognise(checkpoint.config) is not None:
        return wanted, []
    if found is None:
        # Nothing speaks for another layout, so the user's word counts.
        return wanted, []
    message = f"this is the {found[0]} layout ({found[1].words}), not {wanted}."
    fix = f"Use {found[0]}-to-... or auto-to-...."
    raise Refused([finding("wrong-layout", "config.json", message, fix=fix)])


def _own_word(checkpoint: Checkpoint, beside: Mapping[str, Any]) -> tuple[str, Sign] | None:
    """The layout that this tool itself wrote the folder in, by the file that it leaves beside it."""
    written = beside.get("output", {}).get("layout")
    if not isinstance(written, str) or written not in DIALECTS:
        return None
    if DIALECTS[written].recognise(checkpoint.config) is None:
        return None
    return written, Sign(OWN_KEYS, PROVENANCE)


def recall_tokens(reading: Reading, beside: Mapping[str, Any]) -> Reading:
    """The number of draft tokens, for which flat configs have no key, from the file beside them."""
    tokens = beside.get("draft", {}).get("speculative_tokens")
    if reading.draft.speculative_tokens is not None or not _counts(tokens):
        return reading
    return replace(reading, draft=reading.draft.model_copy(update={"speculative_tokens": tokens}))


def _counts(tokens: object) -> bool:
    return type(tokens) is int and 0 < tokens <= LARGEST


def left_beside(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """What this tool left beside the folder, empty where there is nothing that it wrote.

    Raises:
        Unavailable: the disk or the Hub failed.
    """
    size = checkpoint.folder.sizes.get(PROVENANCE, 0)
    try:
        raw = checkpoint.folder.read(PROVENANCE, 0, min(size, MAX_JSON_BYTES)) if size else b"{}"
        found = parse_object(raw, "broken-file", PROVENANCE)
    except Refused:
        return {}
    except OSError as error:
        raise Unavailable(f"{checkpoint.path}/{PROVENANCE}: {error.strerror or error}") from error
    return {key: found[key] for key in ("output", "draft") if isinstance(found.get(key), dict)}
