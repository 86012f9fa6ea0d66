"""What every layout's reader does alike: names, biases, taps, and the check against a `Draft`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts, TensorHeader
from eagle3_interop.schemas.dialects.hf import CONFIG
from eagle3_interop.schemas.dialects.keys import (
    MASK_TOKENS,
    parallel_signs,
)
from eagle3_interop.schemas.dialects.quantised import (
    KEY,
    Listed,
    Unknown,
    known,
    kv_scales,
    listed,
    resolved,
    stated,
    stored_modules,
)
from eagle3_interop.schemas.dialects.rules import Loading
from eagle3_interop.schemas.dialects.spelling import DROPPED, Spelling, understand
from eagle3_interop.schemas.draft import (
    DEFAULT_POSITIONS,
    Draft,
    Dtype,
    Feedback,
    ParallelDrafting,
    default_taps,
)
from eagle3_interop.schemas.findings import Finding, Refused, errors, finding
from eagle3_interop.schemas.parameters import (
    MAPS,
    is_part,
    parameters,
    settled_by,
    shapes,
    storable,
)
from eagle3_interop.schemas.powers import Powers, fills, lacks, rotated_pairs
from eagle3_interop.schemas.quantisation import Quantisation

_DTYPES: dict[str, Dtype] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}

_QK_NORM = re.compile(r"\.self_attn\.[qk]_norm\.weight$")
_MASK = "mask_hidden"


class Reader:
    """One reading of a source: its names under canonical form, and what was said on the way.

    Attributes:
        source: the checkpoint.
        depth: of the target, where it is known.
        loading: what the loader does that is being followed.
        engine: its framework, for messages.
        strict: it raises an error on a tensor that it does not know.
        names: canonical to stored name; readers remove what the framework does not use.
        quantisation: which weights lie quantised in the file, and how; None where none does.
        beside: keys of its config that say nothing of the network, to be written again.
        unused: stored names that are left out, each explained by a finding.
        findings: everything said so far.
    """

    def __init__(self, source: Source, loading: Loading, target: TargetFacts | None = None) -> None:
        """Understand every stored name; refuse a quantisation that is not carried."""
        self.source = source
        self.depth = None if target is None else target.layers
        self.loading = loading
        self.engine = loading.title
        self.strict = loading.strict(source.config)
        self.names: dict[str, str] = {}
        self.unused: list[str] = []
        self.findings: list[Finding] = []
        self._understand(loading.spelling)
        self.beside: dict[str, Any] = {}
        self.quantisation = self._quantisation()

    def say(
        self, code: str, where: str, message: str, *, fix: str | None = None, settled_by: str = ""
    ) -> None:
        """Record a finding."""
        self.findings.append(finding(code, where, message, fix=fix, settled_by=settled_by))

    def add(self, item: Finding) -> None:
        """Record a finding made elsewhere."""
        self.findings.append(item)

    def header(self, canonical: str) -> TensorHeader | None:
        """Header of the tensor with this canonical name; of a quantised weight, that of what it stands for."""
        stored = self.place(canonical)
        if stored is None:
            return None
        header = self.source.tensors[stored]
        scheme = self.quantisation.scheme_of(canonical) if self.quantisation else None
        if scheme is None or len(header.shape) != 2:
            return header
        told = self.names.get(canonical.removesuffix("weight") + "weight_shape")
        if told is not None:
            return TensorHeader("", tuple(int(size) for size in self.source.values(told)))
        rows, columns = header.shape
        return TensorHeader("", (rows, columns * scheme.packed))

    def place(self, canonical: str) -> str | None:
        """Where the values of a tensor with this canonical name lie, whole or packed."""
        return self.names.get(canonical) or self.names.get(f"{canonical}_packed")

    def leave_out(self, canonical: str) -> None:
        """Stop using a tensor (the caller says why)."""
        self.unused.append(self.names.pop(canonical))

    def _quantisation(self) -> Quantisation | None:
        """What lies quantised in the file, by the scheme that its config tells."""
        raw, where = stated(self.source.config)
        for scale in (scales := kv_scales(self.names)):
            self.leave_out(scale)
        modules = stored_modules(self.names, self.source.tensors)
        try:
            said = None if raw is None or not (modules or known(raw)) else listed(raw)
            if scales or (said is not None and said.kv_cache):
                message = f"left out, with {len(scales)} scales."
                self.say("kv-scales-left", f"{where}.kv_cache_scheme", message)
            if not modules:
                self._drop_config(raw, said, where)
                return None
            found = resolved(said, modules, self.names)
        except Unknown as unknown:
            self.say("quantised-draft", where, f"this quantisation is not carried: {unknown}.")
            raise Refused(self.findings) from unknown
        self.beside = {KEY: dict(said.others)} if said is not None else {}
        return found

    def _drop_config(self, raw: object, said: Listed | None, where: str) -> None:
        """Say that nothing is quantised, whatever the config says, and what engines would make of that."""
        if said is not None and not said.groups:
            self.say("idle-quantisation", where, "left out: it quantises no weights.")
        elif raw is not None:
            message = f"left out: no weight of the file is quantised, and {self.engine} would build modules for weights that are."
            self.say("quantisation-dropped", where, message)

    def parallel(self, token: object, vocabulary: int, fed: bool) -> ParallelDrafting | None:
        """Whether, and with which mask token, all tokens are drafted in one pass.

        Args:
            token: the mask token as the framework finds it.
            vocabulary: rows of the table that it is looked up in.
            fed: the draft has an fc, through which ``mask_hidden`` goes.
        """
        mask, signs = self.names.get(_MASK), parallel_signs(self.source.config)
        if mask is None and not signs:
            return None
        where = f"{CONFIG}: {', '.join(signs)}" if signs else str(mask)
        if not self.loading.parallel:
            message = f"{self.engine} knows no parallel drafting (P-EAGLE): it drafts token by token, and does not say so."
            self.say("parallel-draft", where, message)
            if mask is not None:
                self.leave_out(_MASK)
                if self.strict:
                    message = f"{self.engine} has no such parameter, and raises an error."
                    self.say("fails-to-load", mask, message)
            return None
        if not fed:
            message = "without fc there is nothing that mask_hidden goes through; no trainer writes such a draft."
            self.say("parallel-draft", where, message)
        if type(token) is not int or not 0 <= token < vocabulary:
            found = (
                "absent" if token is None else f"{token!r}, which is none of {vocabulary} tokens"
            )
            message = (
                f"{found}: the token that stands for those not known yet; vLLM fails without it."
            )
            settles = "parallel.mask_token_id"
            self.say("no-mask-token", f"{CONFIG}: {MASK_TOKENS[0]}", message, settled_by=settles)
            token = None
        return ParallelDrafting(mask_token_id=token)

    def feedback(self, post_norm: bool, parallel: ParallelDrafting | None) -> Feedback:
        """What a step hands to the next; of a single pass nothing, whatever ``norm_output`` says."""
        if parallel is not None and post_norm:
            message = (
                "true, and without effect: all tokens come from one pass, and nothing is fed back."
            )
            self.say("idle-norm-output", f"{CONFIG}: norm_output", message)
        return "post-norm" if post_norm and parallel is None else "pre-norm"

    def _understand(self, spelling: Spelling) -> None:
        foreign: list[str] = []
        later: list[str] = []
        wrapper = wrapper_of(self.source.tensors)
        if wrapper:
            message = f"{wrapper!r} stands before tensor names, where a trainer's wrapper left it; it was stripped."
            self.say("wrapper-prefix", min(self.source.tensors), message)
        for stored in sorted(self.source.tensors):
            bare = stored.removeprefix(wrapper)
            if DROPPED.search(bare):
                self._drop(stored)
                continue
            canonical = understand(bare, spelling.later_norm).canonical
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
        strange = [stored for name, stored in self.names.items() if not _is_known(name)]
        if len(strange) * 2 > len(self.names):
            raise Refused([*self.findings, _not_understood(sorted(strange), len(self.names))])
        if foreign:
            message = f"{self.engine}'s loader does not know {len(foreign)} of the tensor names in this folder."
            code = "foreign-name" if self.strict else "foreign-name-dropped"
            self.say(code, foreign[0], message)
        for stored in later:
            self._later_norm(stored, spelling)

    def _drop(self, stored: str) -> None:
        self.unused.append(stored)
        self.say(
            "dropped-tensor",
            stored,
            "left out: no framework reads it; each computes it or takes it from the target.",
        )
        if self.strict and stored.startswith("verifier_"):
            message = f"{self.engine} has no such parameter and fails to load."
            self.say("fails-to-load", stored, message)

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
            if used:
                message = (
                    f"config.json switches these biases on, and the file does not hold them. {self.engine} "
                    "leaves them at zero or uninitialised."
                )
                self.say("absent-bias", parts[0], message)
            return False
        passed = not self.strict or used or self.loading.passes_over(found[0])
        if not passed:
            message = (
                f"{self.engine}'s class has no such parameter, and its loader raises an error."
            )
            self.say("fails-to-load", self.names[found[0]], message)
        if any(np.any(self.source.values(self.names[name])) for name in found):
            return used
        self.say("zero-bias", self.names[found[0]], f"left out: all {len(found)} tensors are zero.")
        for name in found:
            self.leave_out(name)
        return False

    def dtype(self) -> Dtype:
        """Dtype of the weights: fc's, else that of layer 0, compared with what the config says."""
        first = ("fc.weight", "layers.0.self_attn.q_proj.weight", "norm.weight")
        found = (header.dtype for name in first if (header := self.header(name)) is not None)
        stored = _DTYPES.get(next((dtype for dtype in found if dtype), ""), "bfloat16")
        config = self.source.config
        said = str(config.get("dtype") or config.get("torch_dtype") or stored).removeprefix(
            "torch."
        )
        if said != stored:
            message = (
                f"config.json says {said}, the weights are {stored}. The output says {stored}. A loader that "
                f"follows config.json would cast them."
            )
            self.say("dtype-disagrees", "config.json: dtype", message, settled_by="dtype")
        return stored

    def activation(self, name: str, where: str) -> str:
        """The MLP's activation; ``swish`` is transformers' other name of silu, which no engine knows."""
        if name != "swish":
            return name
        if not self.loading.knows_swish:
            message = (
                f"swish: {self.engine} knows this activation only as silu, and does not start."
            )
            self.say("fails-to-load", f"{where}: hidden_act", message)
        return "silu"

    def windows(
        self, windows: tuple[int | None, ...], where: str, powers: Powers
    ) -> tuple[int | None, ...]:
        """Each layer's window as the class slides; none, where it does not read the key."""
        if any(windows) and not powers.windows:
            message = (
                f"{self.engine} does not read it: this draft attends to everything there. If it was trained with "
                "the window, say so."
            )
            where = f"{where}: sliding_window"
            self.say("window-unread", where, message, settled_by="layers.windows")
            return (None,) * len(windows)
        return windows

    def sections(self, draft: Draft) -> None:
        """An error for multimodal sections that keep this framework from starting."""
        found, pairs = draft.rope.mrope_sections, rotated_pairs(draft)
        if not fills(found, pairs):
            message = (
                f"{list(found or ())}: {self.engine} wants three that add up to the {pairs} pairs of a head that "
                "rotate, and does not start."
            )
            path = "rope.mrope_sections"
            self.say("mrope-sections", f"{CONFIG}: mrope_section", message, settled_by=path)

    def positions(self, declared: int | None, where: str) -> int:
        """Positions that the draft is made for; what engines take where the config declares none."""
        if declared is not None:
            return declared
        message = f"absent: SGLang and vLLM take {DEFAULT_POSITIONS}."
        self.say("class-default", f"{where}: max_position_embeddings", message)
        return DEFAULT_POSITIONS

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
            self.say("fc-width", self.place("fc.weight") or "", message)
            raise Refused(self.findings)
        if sized_by_engine is not None and sized_by_engine != blocks:
            message = (
                f"fc.weight holds {blocks} blocks, but from this config {self.engine} would build "
                f"{sized_by_engine} and fail to load."
            )
            self.say("fc-blocks", "config.json: num_aux_hidden_states", message)
        return blocks

    def flag(self, key: str, said: bool, *, able: bool) -> bool:
        """A flag of the config, which a class that does not read it takes for false."""
        if said and not able:
            message = f"true, and {self.engine}'s class does not read it."
            self.say("flag-unread", f"{CONFIG}: {key}", message)
        return said and able

    def layers(self, configured: int, *, several: bool = True) -> int:
        """Number of layers: where the config claims more than there are tensors, the tensors count.

        Args:
            configured: by the config.
            several: the class has more than one layer.
        """
        if not several and configured > 1:
            message = f"{configured} layers, and {self.engine}'s class has one: it does not load."
            self.say("fails-to-load", f"{CONFIG}: num_hidden_layers", message)
        stored = {m[1] for name in self.names if (m := re.match(r"layers\.(\d+)\.", name))}
        present = len(stored) or configured
        if configured > present:
            message = (
                f"config.json says {configured} layers, the file holds {present}. {self.engine} would run "
                f"the missing ones with initial values. {present} was taken."
            )
            self.say("layer-count", "config.json: num_hidden_layers", message)
            return present
        if configured < present:
            message = (
                f"config.json says {configured} layers, the file holds {present}. {self.engine} would "
                f"drop the rest."
            )
            self.say(
                "layer-count-short",
                "config.json: num_hidden_layers",
                message,
                settled_by="layers.count",
            )
        return configured

    def _shifted(self, ids: list[int], taps: list[int], where: str) -> None:
        """Warn of ids that are the default ones in another place's convention: one less, or one more.

        Where the target's depth is not known, some depth always fits a few small numbers: then only one that
        real targets have counts.
        """
        by = taps[0] - 2
        depth = _depth_of_shifted(taps, by) if by in (-1, 1) else None
        if depth is None:
            return
        if depth == self.depth or (self.depth is None and depth >= _REAL_DEPTH):
            word = "less" if by < 0 else "more"
            message = (
                f"layer ids {ids} feed taps {taps}, each one {word} than the default ones of a target of {depth} layers: "
                "ids that were copied from a place where layers are counted otherwise look so."
            )
            default = ",".join(str(tap - by) for tap in taps)
            fix = f"If the draft was trained on the default layers: --taps {default}"
            self.say("shifted-ids", where, message, fix=fix, settled_by="taps")

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
                message = f"no layer ids, so every engine feeds the default three hidden states; fc takes {blocks}."
                self.say("taps-unknown", where, message, settled_by="taps")
            return None
        taps = translate(ids)
        fed = sorted(set(taps))
        if fed != taps:
            message = (
                f"layer ids {ids} are not in layer order or repeat. {self.engine} feeds taps {fed}."
            )
            self.say("taps-reordered", where, message, settled_by="taps")
        if fed[0] < 0:
            message = f"layer ids {ids} name a layer before the embedding (taps {fed})."
            self.say("taps-out-of-range", where, message, settled_by="taps")
            return None
        self._shifted(ids, fed, where)
        if len(fed) != blocks:
            message = f"layer ids {ids} feed {len(fed)} hidden states; fc takes {blocks}."
            self.say("taps-mismatch", where, message, settled_by="taps")
            return None
        return tuple(fed)


_REAL_DEPTH = 12
"""Layers that a target has at least, whose ids are no accident."""


def _depth_of_shifted(taps: list[int], by: int) -> int | None:
    """The depth of a target whose default triple is these taps, but for this shift; None for none."""
    depth = taps[-1] - by + 3
    return depth if [tap + by for tap in default_taps(depth) or ()] == taps else None


def wrapper_of(names: Iterable[str]) -> str:
    """The prefix that a trainer's wrapper left before names that would be understood without it; empty for none."""
    strange = [name for name in names if not _is_known(name)]
    if not strange:
        return ""
    parts = min(strange).split(".")
    prefixes = (".".join(parts[:count]) + "." for count in range(1, len(parts)))
    shared = (prefix for prefix in prefixes if all(name.startswith(prefix) for name in strange))

    def understood(prefix: str) -> int:
        return sum(_is_known(name.removeprefix(prefix)) for name in strange)

    best = max(shared, key=understood, default="")
    return best if understood(best) * 2 > len(strange) else ""


@lru_cache(maxsize=4096)
def _is_known(name: str) -> bool:
    """Whether some network owns a tensor that is spelled so, or every reader passes over it."""
    spelled = (understand(name, norm).canonical for norm in ("hidden_norm", "input_layernorm"))
    known = (canonical for canonical in spelled if canonical is not None)
    passed = DROPPED.search(name) is not None or is_part(name)
    return passed or any(settled_by(one) is not None for one in known)


def check(reading: Reading, tensors: Mapping[str, TensorHeader]) -> list[Finding]:
    """Compare the stored tensors with what the description implies, name by name and shape by shape.

    Args:
        reading: the reading, its draft with all overrides applied.
        tensors: headers by stored name.

    Returns:
        An error for each tensor that is missing, left over, or of another shape or kind.
    """
    wanted = shapes(reading.draft)
    known = storable(reading.draft, wanted)
    parts = {name: row.dtypes for name, row in parameters(reading.draft) if row.dtypes}
    refused = {item.where for item in errors(reading.findings)}
    absent = {
        name: shape
        for name, shape in wanted.items()
        if name not in reading.names and name not in reading.maps
        if name not in refused
    }
    strange = [stored for name, stored in reading.names.items() if not _is_known(name)]
    if strange and len(strange) >= len(absent) > 0:
        return [_not_understood(sorted(strange), len(tensors), sorted(absent))]
    found = []
    if norms := [name for name in absent if _QK_NORM.search(name)]:
        found.append(_without_norms(norms, reading.draft.layers.count))
        absent = {name: shape for name, shape in absent.items() if name not in norms}
    found += [_missing(name, shape) for name, shape in absent.items()]
    for name, stored in reading.names.items():
        shape = known.get(name)
        header = tensors[stored]
        if shape is None:
            found.append(_left_over(name, stored))
        elif header.shape != shape and not (name in parts and (header.shape or (1,)) == shape):
            if not (name in MAPS and stored in refused):
                message = f"has shape {list(header.shape)}; the config implies {list(shape)}."
                found.append(finding("shape-mismatch", stored, message))
        elif name in parts and header.dtype not in parts[name]:
            message = (
                f"holds {header.dtype} numbers; its scheme has {' or '.join(sorted(parts[name]))}."
            )
            found.append(finding("quantised-parts", stored, message))
        elif name not in MAPS and name not in parts and header.dtype not in _DTYPES:
            message = f"holds {header.dtype} numbers; weights are bfloat16, float16 or float32."
            found.append(finding("unknown-dtype", stored, message))
    return found


def _without_norms(norms: list[str], layers: int) -> Finding:
    """Of a class that always norms q and k: what the tensors say beside."""
    if len(norms) < 2 * layers:
        return _missing(norms[0], ())
    message = (
        "absent, and the class that config.json names norms q and k: vLLM's qwen3 class runs with norms of ones, "
        "which is another network than one without norms."
    )
    path = "layers.attention.qk_norm"
    fix = f"If the draft was trained without them, as a llama layer is: --set {path}=false"
    return finding("absent-qk-norms", norms[0], message, fix=fix, settled_by=path)


def _not_understood(strange: list[str], total: int, absent: Sequence[str] = ()) -> Finding:
    """One sentence for names of another making, where each would else be called left over, or absent."""
    message = f"{len(strange)} of {total} tensor names are none that this tool understands ({strange[0]} ...)."
    if absent:
        message += f" {len(absent)} tensors of a draft are absent ({absent[0]} ...); they may be the same under other names."
    return finding("unknown-names", strange[0], message)


def _missing(name: str, shape: tuple[int, ...]) -> Finding:
    if name == "lm_head.weight":
        message = "the head is absent. Engines leave it at random values or take the wrong rows of the target's."
        return finding("missing-head", name, message)
    if name == "d2t":
        return finding("missing-map", name, "the vocabulary map is absent.")
    if name == _MASK:
        message = f"absent (expected shape {list(shape)}): it stands for hidden states that are not known yet. vLLM raises an error."
        fix = "Fetch a complete copy; of a draft that proposes token by token, remove the mask token's key."
        return finding("missing-tensor", name, message, fix=fix)
    expected = f" (expected shape {list(shape)})" if shape else ""
    message = f"absent{expected}. Engines run with its initial value and do not say so."
    return finding("missing-tensor", name, message)


def _left_over(name: str, stored: str) -> Finding:
    path = settled_by(name)
    if not path:
        message = (
            "no framework knows this tensor. Most drop it silently."
            if path is None
            else "the class that config.json names has no such tensor, whatever its keys say."
        )
        return finding("unknown-tensor", stored, message)
    message = "this tensor is in the file, but with this config.json the framework that loads it does not use it."
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
            message = (
                f"the draft was trained for a target of {what} {ours}; this target's is {theirs}."
            )
            found.append(finding("wrong-target", target.name, message))
    depth = target.layers
    try:
        taps = draft.fed_taps(depth)
    except ValueError as error:
        found.append(finding("taps-unknown", target.name, f"no layer ids, and {error}."))
        return found
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
    draft = reading.draft.model_copy(update={"target": facts})
    return replace(reading, draft=draft.model_copy(update={"taps": draft.network.taps}))


def cannot(draft: Draft, powers: Powers) -> list[Finding]:
    """What the class that a config selects does not compute although the config asks for it.

    The counterpart of `powers.lacks` for a source: each is an error that the user's word settles. What a class
    does not even start with leaves nothing in doubt: see `stops`.
    """
    return [
        item.model_copy(
            update={
                "settled_by": item.where,
                "fix": f"If it was trained so: --set {item.where}=VALUE, with the value it was trained with.",
            }
        )
        for item in lacks(draft, powers)
        if item.row.effect != "does-not-load"
    ]


def stops(draft: Draft, powers: Powers) -> tuple[Finding, ...]:
    """What the class that a config selects does not start with."""
    return tuple(item for item in lacks(draft, powers) if item.row.effect == "does-not-load")


def remarked(
    reading: Reading, source: Source, target: TargetFacts | None, loading: Loading
) -> Reading:
    """The reading with what its loader has to say of the folder beside."""
    for remarks in loading.remarks:
        said = tuple(remarks(source, reading, target))
        reading = replace(reading, findings=(*reading.findings, *said))
    return reading
