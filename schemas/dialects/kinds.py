"""Drafts of other kinds than EAGLE-3 and P-EAGLE, each by its name: what speaks for it in a config and in tensors."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eagle3_interop.schemas.codes.folder import UNQUANTISED
from eagle3_interop.schemas.dialects.base import Source, TensorHeader
from eagle3_interop.schemas.dialects.hf import CONFIG
from eagle3_interop.schemas.dialects.keys import architecture, is_wrapped, nested_keys
from eagle3_interop.schemas.findings import Finding, finding


@dataclass(frozen=True)
class Kind:
    """A kind of draft.

    Attributes:
        title: what it is, after "this is".
        types: its ``speculators_model_type``, ``model_type``, or ``method`` in vLLM's wrapper.
        classes: in the name of its class.
        keys: of the config; no other draft has them with a value that says anything.
        tensors: in the names of its tensors.
    """

    title: str
    types: re.Pattern[str]
    classes: re.Pattern[str] | None = None
    keys: tuple[str, ...] = ()
    tensors: re.Pattern[str] | None = None


def _any(words: str) -> re.Pattern[str]:
    return re.compile(words, re.IGNORECASE)


_NEVER = re.compile("(?!)")

PARALLEL_HEADS = Kind(
    "an EAGLE draft with parallel heads, as ModelOpt trains them",
    _NEVER,
    keys=("parallel_draft_heads_num_layers", "parallel_draft_step"),
    tensors=_any(r"(^|\.)parallel_draft_heads\."),
)
FIRST_EAGLE = Kind("an EAGLE-1 draft", _any("eagle"), re.compile("^Eagle(?=[A-Z])|LMEagle$"))
KINDS = (
    Kind("a DSpark draft", _any("dspark"), _any("dspark"), tensors=_any(r"(^|\.)markov_head\.")),
    Kind("a DFlash draft", _any("dflash2?"), _any("dflash")),
    Kind("a Medusa draft", _any("medusa"), _any("medusa"), tensors=_any(r"(^|\.)medusa_heads?\.")),
    PARALLEL_HEADS,
    Kind("an MTP draft", _any("mtp|.*_mtp|.*_nextn"), re.compile("M[Tt][Pp]|NextN")),
    Kind("an MLP speculator", _any("mlp_speculator"), _any("mlpspeculator")),
    FIRST_EAGLE,
)
"""In this order: a DSpark draft is a DFlash one with more."""

_MTP_NORMS = re.compile(r"(^|\.)(enorm|hnorm|pre_fc_norm_hidden)\.weight$")
_NEUTRAL = (None, 0, 1)
"""ModelOpt writes steps and heads into every export, of no such heads too."""


def other_kind(source: Source) -> Iterator[Finding]:
    """An error that names a draft of another kind; nothing for EAGLE-3 and P-EAGLE."""
    found = next(_signs(source), None)
    if found is not None:
        title, where = found
        message = f"this is {title}, and neither EAGLE-3 nor P-EAGLE."
        yield finding("other-heads", where, message)


def _signs(source: Source) -> Iterator[tuple[str, str]]:
    """What it is, and the place that says so; certain ones first."""
    config, names = source.config, sorted(source.tensors)
    said, keys = config.get("speculators_model_type"), {**nested_keys(config), **config}
    types = {"speculators_model_type": said, "model_type": config.get("model_type")}
    if is_wrapped(config):
        types = {"method": config.get("method", "eagle")}
    for key, value in types.items():
        yield from (
            (kind.title, f"{CONFIG}: {key}") for kind in KINDS if kind.types.fullmatch(str(value))
        )
    if said not in (None, "eagle3", "peagle"):
        yield f"a draft of the kind {said!r}", f"{CONFIG}: speculators_model_type"
    for kind in KINDS:
        if kind.tensors is not None:
            yield from ((kind.title, name) for name in names if kind.tensors.search(name))
        if kind.classes is not None and kind.classes.search(architecture(config)):
            yield kind.title, f"{CONFIG}: architectures"
        yield from (
            (kind.title, f"{CONFIG}: {key}") for key in kind.keys if keys.get(key) not in _NEUTRAL
        )
    if not any("hidden_norm" in name for name in names):
        for name in names:
            if _MTP_NORMS.search(name):
                yield "an MTP draft", name
        if fc := _first_eagle(source.tensors):
            yield FIRST_EAGLE.title, fc


def _first_eagle(tensors: Mapping[str, TensorHeader]) -> str | None:
    """The fc of an EAGLE-1 draft: it takes [embedding, hidden], and layer 0 its output alone."""
    fc, q = (
        next((name for name in tensors if name == end or name.endswith(f".{end}")), None)
        for end in ("fc.weight", "layers.0.self_attn.q_proj.weight")
    )
    if fc is None or q is None:
        return None
    shapes = tensors[fc].shape, tensors[q].shape
    if any(len(shape) != 2 for shape in shapes):
        return None
    (width, taken), (_, entered) = shapes
    return fc if entered == width and taken == 2 * width else None


def other_format(source: Source) -> Iterator[Finding]:
    """An error for a file format that keeps other tensors under EAGLE-3's names."""
    told = source.config.get("quantization")
    scales = [name for name in sorted(source.tensors) if name.endswith(".scales")]
    if isinstance(told, Mapping) and "group_size" in told and scales:
        message = f"this draft was quantised by MLX to {told.get('bits')} bits, which no other framework reads."
        yield finding("other-format", scales[0], message, fix=UNQUANTISED)
