"""What every layout's reader does alike: names, biases, vocabulary maps, and the check against a `Draft`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from eagle3_interop.schemas.draft import Draft, Dtype
from eagle3_interop.schemas.findings import Finding, Refused, finding
from eagle3_interop.schemas.layout import Reading, Source, TargetFacts, TensorHeader
from eagle3_interop.schemas.tensors import DROPPED, Spelling, shapes, understand

_DTYPES: dict[str, Dtype] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_QUANTISED = re.compile(r"(_scale|_scale_inv|_zero_point|weight_packed|qweight|qzeros|g_idx)$")
_MLA = re.compile(r"\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|kv_a_proj)\.")

_SETTLES = (
    ("fc.bias", "fc.bias"),
    ("input_norm.weight", "fc.input_norm"),
    ("fc_norm.", "fc.block_norms"),
    ("_norm.weight", "layers.attention.qk_norm"),
    ("o_proj.bias", "layers.attention.output_bias"),
    ("mlp.", "layers.mlp.bias"),
    ("_proj.bias", "layers.attention.qkv_bias"),
    ("lm_head.weight", "vocabulary.head"),
    ("d2t", "vocabulary.mapped"),
)


class Reader:
    """One reading of a source: its names under canonical form, and what was said on the way.

    Attributes:
        source: the checkpoint.
        engine: the framework whose loader is being followed, for messages.
        names: canonical to stored name; readers remove what the framework does not use.
        unused: stored names that are left out, each explained by a finding.
        findings: everything said so far.
    """

    def __init__(self, source: Source, spelling: Spelling, engine: str) -> None:
        """Understand every stored name; refuse what is quantised, MLA or parallel by name."""
        self.source = source
        self.engine = engine
        self.names: dict[str, str] = {}
        self.unused: list[str] = []
        self.findings: list[Finding] = []
        self._refuse_kinds()
        self._understand(spelling)

    def say(
        self, code: str, where: str, message: str, *, fix: str | None = None, settled_by: str = ""
    ) -> None:
        """Record a finding."""
        self.findings.append(finding(code, where, message, fix=fix, settled_by=settled_by))

    def add(self, item: Finding) -> None:
        """Record a finding made elsewhere."""
        self.findings.append(item)

    def header(self, canonical: str) -> TensorHeader | None:
        """Header of the tensor with this canonical name."""
        stored = self.names.get(canonical)
        return None if stored is None else self.source.tensors[stored]

    def leave_out(self, canonical: str) -> None:
        """Stop using a tensor (the caller says why)."""
        self.unused.append(self.names.pop(canonical))

    def _refuse_kinds(self) -> None:
        config, tensors = self.source.config, self.source.tensors
        quantised = sorted(
            name
            for name, header in tensors.items()
            if _QUANTISED.search(name) or header.dtype.startswith("F8")
        )
        if quantised or config.get("quantization_config"):
            where = quantised[0] if quantised else "config.json: quantization_config"
            message = "this draft is quantised; its scales and ignore lists cannot be carried yet."
            self.say("quantised-draft", where, message)
        if mla := sorted(name for name in tensors if _MLA.search(name)):
            message = "this draft uses multi-head latent attention, which is not carried yet."
            self.say("mla-draft", mla[0], message)
        masks = sorted(name for name in tensors if name.endswith("mask_hidden"))
        kind = config.get("speculators_model_type")
        if masks or kind == "peagle" or config.get("parallel_drafting"):
            where = masks[0] if masks else "config.json"
            message = (
                "this draft proposes all tokens in one pass (P-EAGLE), which is not carried yet."
            )
            self.say("parallel-draft", where, message)
        if self.findings:
            raise Refused(self.findings)

    def _understand(self, spelling: Spelling) -> None:
        foreign: list[str] = []
        later: list[str] = []
        for stored in sorted(self.source.tensors):
            if DROPPED.search(stored):
                self.unused.append(stored)
                self.say(
                    "dropped-tensor", stored, "computed or taken from the target by every reader."
                )
                continue
            canonical = understand(stored, spelling.later_norm).canonical
            if canonical is None:
                later.append(stored)
                continue
            if canonical in self.names:
                message = f"{self.names[canonical]} and {stored} are two spellings of one tensor."
                self.say("duplicate-tensor", stored, message)
                continue
            self.names[canonical] = stored
            if not spelling.accepts(stored, canonical):
                foreign.append(stored)
        if foreign:
            message = f"{self.engine}'s own loader does not know {len(foreign)} of these names."
            self.say("foreign-name", foreign[0], message)
        for stored in later:
            self._later_norm(stored, spelling)

    def _later_norm(self, stored: str, spelling: Spelling) -> None:
        layer = (
            understand(stored, "hidden_norm").canonical
            or understand(stored, "input_layernorm").canonical
        )
        if layer is not None and layer in self.names:
            self.unused.append(stored)
            message = f"{self.engine} reads {spelling.write(layer)} and never uses this one."
            self.say("unused-norm", stored, message)
            return
        message = (
            f"{self.engine} reads {layer and spelling.write(layer)} here, which is absent, and would run with "
            "an all-ones norm."
        )
        self.say("missing-norm", stored, message)

    def bias(self, parts: tuple[str, ...], used: bool) -> bool:
        """Whether a group of biases takes part in the network.

        All-zero biases are left out (said): they change nothing, and not every framework has them.

        Args:
            parts: endings of the canonical names, such as ``q_proj.bias``.
            used: the framework's loader reads these biases.
        """
        found = [name for name in self.names if name.endswith(parts)]
        if not found:
            return False
        if any(np.any(self.source.values(self.names[name])) for name in found):
            return used
        self.say("zero-bias", self.names[found[0]], f"all zero in {len(found)} tensors: left out.")
        for name in found:
            self.leave_out(name)
        return False

    def dtype(self) -> Dtype:
        """Dtype of the weights: fc's, else layer 0's query projection's."""
        for name in ("fc.weight", "layers.0.self_attn.q_proj.weight", "norm.weight"):
            if (header := self.header(name)) is not None and header.dtype in _DTYPES:
                return _DTYPES[header.dtype]
        return "bfloat16"

    def blocks(self, target_width: int, sized_by_engine: int | None) -> int:
        """Number of fc blocks, from fc.weight; what the engine would size is compared with it.

        Args:
            target_width: width of one block, T.
            sized_by_engine: blocks that the framework's loader takes from the config, if known.
        """
        header = self.header("fc.weight")
        if header is None or len(header.shape) != 2:
            return sized_by_engine or 3
        blocks, rest = divmod(header.shape[1], target_width)
        if rest or not blocks:
            message = (
                f"fc takes {header.shape[1]} features, which is no multiple of the target's width "
                f"{target_width}."
            )
            self.say("fc-width", self.names["fc.weight"], message)
            raise Refused(self.findings)
        if sized_by_engine is not None and sized_by_engine != blocks:
            message = (
                f"fc.weight holds {blocks} blocks, but from this config {self.engine} would build "
                f"{sized_by_engine} and fail to load."
            )
            self.say("fc-blocks", "config.json: num_aux_hidden_states", message)
        return blocks

    def layers(self, configured: int) -> int:
        """Number of layers: where the config claims more than there are tensors, the tensors count."""
        stored = {int(m[1]) for name in self.names if (m := re.match(r"layers\.(\d+)\.", name))}
        present = max(stored) + 1 if stored else configured
        if configured > present:
            message = (
                f"num_hidden_layers is {configured} but there are tensors for {present}; "
                f"{self.engine} would run the missing layers with initial values. The tensors count."
            )
            self.say("layer-count", "config.json: num_hidden_layers", message)
            return present
        if configured < present:
            message = (
                f"num_hidden_layers is {configured} but there are tensors for {present} layers; "
                f"{self.engine} would drop the rest."
            )
            self.say(
                "layer-count-short",
                "config.json: num_hidden_layers",
                message,
                settled_by="layers.count",
            )
        return configured

    def taps(
        self,
        ids: list[int] | None,
        where: str,
        translate: Callable[[list[int]], list[int]],
        blocks: int,
    ) -> tuple[int, ...] | None:
        """Configured ids as taps, in the order in which the engines feed them: ascending, once.

        Args:
            ids: the ids in the config, or None for the default triple.
            where: the key, for messages.
            translate: from this key's convention to taps.
            blocks: number of fc blocks.

        Returns:
            The taps; None for the default triple, or (after a finding that ``--taps`` settles) where
            the ids cannot be right.
        """
        if not ids:
            if blocks != 3:
                message = (
                    f"no ids, so every engine feeds the default three taps; fc has {blocks} blocks."
                )
                self.say("taps-unknown", where, message, settled_by="taps")
            return None
        taps = translate(ids)
        fed = sorted(set(taps))
        if fed != taps:
            message = f"ids {ids} are fed in the order of the layers and once each: taps {fed}."
            self.say("taps-reordered", where, message)
        if fed[0] < 0:
            message = f"ids {ids} name a layer before the embedding (taps {fed})."
            self.say("taps-out-of-range", where, message, settled_by="taps")
            return None
        if len(fed) != blocks:
            message = f"ids {ids} feed {len(fed)} hidden states; fc has {blocks} blocks."
            self.say("taps-mismatch", where, message, settled_by="taps")
            return None
        return tuple(fed)


def ints(value: object, where: str) -> list[int] | None:
    """A list of ids from a config.

    Raises:
        Refused: it is neither null nor a list of integers.
    """
    if value is None:
        return None
    if isinstance(value, list) and all(type(item) is int for item in value):
        return list(value)
    raise Refused([finding("bad-config", where, f"must be a list of integers, found {value!r}.")])


def resolve_map(
    reader: Reader, draft_size: int, target_size: int, *, trainer_sorts: bool
) -> tuple[bool, dict[str, np.ndarray[Any, Any]]]:
    """Which target token each draft token is: d2t and t2d in all the states they are found in.

    Args:
        reader: the reading in progress.
        draft_size: D.
        target_size: V.
        trainer_sorts: the framework's own trainer orders the draft vocabulary by target id, so that
            d2t follows from t2d.

    Returns:
        Whether a map takes part in the network, and maps that had to be derived.
    """
    d2t, t2d = reader.header("d2t"), reader.header("t2d")
    for name, header, size in (("d2t", d2t, draft_size), ("t2d", t2d, target_size)):
        if header is not None and header.shape != (size,):
            message = (
                f"has shape {list(header.shape)}, wanted [{size}]: a map of another vocabulary."
            )
            reader.say("map-size", reader.names[name], message)
            return draft_size < target_size, {}
    listed = None if t2d is None else np.flatnonzero(reader.source.values(reader.names["t2d"]))
    if d2t is None:
        return _without_d2t(reader, listed, draft_size, target_size, trainer_sorts=trainer_sorts)
    offsets = reader.source.values(reader.names["d2t"]).astype(np.int64)
    ids = offsets + np.arange(draft_size)
    where = reader.names["d2t"]
    if draft_size == target_size and not offsets.any():
        return False, {}
    if ids.min() < 0 or ids.max() >= target_size or len(np.unique(ids)) != draft_size:
        message = (
            "read as offsets (target id = draft id + d2t) the ids leave the vocabulary or repeat. "
            "Absolute ids, perhaps."
        )
        reader.say("bad-map", where, message)
    elif listed is not None and not np.array_equal(np.sort(ids), listed):
        message = f"d2t maps to other tokens than t2d lists ({len(listed)} of {target_size})."
        reader.say("map-disagrees", where, message)
    elif not offsets.any():
        code = "prefix-map" if listed is not None else "zero-map"
        message = f"the draft vocabulary is the first {draft_size} target tokens: a map that was never set?"
        reader.say(code, where, message)
    elif trainer_sorts and np.any(np.diff(ids) < 0):
        message = "d2t is not ascending, but this trainer takes head rows in ascending order."
        reader.say("map-order", where, message)
    return True, {}


def _without_d2t(
    reader: Reader,
    listed: np.ndarray[Any, Any] | None,
    draft_size: int,
    target_size: int,
    *,
    trainer_sorts: bool,
) -> tuple[bool, dict[str, np.ndarray[Any, Any]]]:
    if draft_size == target_size:
        return False, {}
    if listed is None:
        message = (
            f"the draft proposes {draft_size} of {target_size} tokens and nothing says which; "
            f"{reader.engine} would take the first {draft_size}."
        )
        reader.say("missing-map", "d2t", message)
        return True, {}
    if len(listed) != draft_size:
        message = f"t2d lists {len(listed)} tokens, the head has {draft_size} rows."
        reader.say("map-size", reader.names["t2d"], message)
        return True, {}
    if not trainer_sorts:
        message = (
            "d2t is absent and t2d does not tell in which order this trainer put the head's rows; "
            f"{reader.engine} would take the first {draft_size} tokens."
        )
        reader.say("missing-map", "d2t", message)
        return True, {}
    offsets = (listed - np.arange(draft_size)).astype(np.int64)
    reader.say(
        "map-derived",
        "d2t",
        "derived from t2d: this trainer orders the draft vocabulary by target id.",
    )
    return True, {"d2t": offsets}


def check(reading: Reading, tensors: Mapping[str, TensorHeader]) -> list[Finding]:
    """Compare the stored tensors with what the description implies, name by name and shape by shape.

    Args:
        reading: the reading, its draft with all overrides applied.
        tensors: headers by stored name.

    Returns:
        An error for each tensor that is missing, left over, or of another shape.
    """
    wanted = shapes(reading.draft)
    found: list[Finding] = []
    for name, shape in wanted.items():
        stored = reading.names.get(name)
        if stored is None:
            if name not in reading.maps:
                found.append(_missing(name, shape))
        elif tensors[stored].shape != shape:
            message = f"has shape {list(tensors[stored].shape)}; the config implies {list(shape)}."
            found.append(finding("shape-mismatch", stored, message))
    for name, stored in reading.names.items():
        if name not in wanted and name not in ("t2d", "embed_tokens.weight", "d2t"):
            found.append(_left_over(name, stored))
    return found


def _missing(name: str, shape: tuple[int, ...]) -> Finding:
    if name == "lm_head.weight":
        message = "the head is absent; a loader leaves it at random values, or takes the wrong rows of the target's."
        return finding("missing-head", name, message)
    if name == "d2t":
        return finding("missing-map", name, "the vocabulary map is absent.")
    message = f"absent (wanted shape {list(shape)}); loaders leave it at its initial value without a word."
    return finding("missing-tensor", name, message)


def _left_over(name: str, stored: str) -> Finding:
    path = next((path for part, path in _SETTLES if part in name), "")
    if not path:
        message = "no framework's loader knows this tensor; most drop it without a word."
        return finding("unknown-tensor", stored, message)
    message = "stored, but from this config the framework that reads it runs without it."
    fix = f"Say which is right: --set {path}=true if the draft was trained with it, or remove the tensor."
    if path == "vocabulary.head":
        fix = "--set vocabulary.head=own if the draft was trained with this head, or remove the tensor."
    return finding("unused-tensor", stored, message, fix=fix)


def check_target(draft: Draft, target: TargetFacts) -> list[Finding]:
    """Whether draft and target belong together, as far as sizes can tell."""
    found = []
    pairs = (
        ("width", draft.target.hidden_size, target.hidden_size),
        ("vocabulary", draft.vocabulary.target_size, target.vocab_size),
    )
    for what, ours, theirs in pairs:
        if ours != theirs:
            message = f"the draft was made for a target of {what} {ours}; this one's is {theirs}."
            found.append(finding("wrong-target", target.name, message))
    depth, taps = target.layers, draft.taps or ()
    if any(tap > depth for tap in taps):
        message = f"taps {list(taps)} reach beyond the target's {depth} layers."
        found.append(finding("taps-out-of-range", target.name, message))
    return found


def with_target(reading: Reading, target: TargetFacts) -> Reading:
    """The reading with what the target itself tells filled in."""
    facts = reading.draft.target.model_copy(
        update={
            "name": target.name or reading.draft.target.name,
            "layers": target.layers,
            "model_type": target.model_type,
            "architectures": target.architectures,
        }
    )
    taps = reading.draft.resolved_taps(target.layers)
    return replace(reading, draft=reading.draft.model_copy(update={"target": facts, "taps": taps}))
