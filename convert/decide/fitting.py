"""Every exact rewrite of a draft, decided from headers: the network stays the same, and each is said."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eagle3_interop.convert.read.checkpoint import Checkpoint
from eagle3_interop.convert.read.target_tables import TargetCheckpoint, kv_shape
from eagle3_interop.convert.write.plan import Copy, Make, Rewrite, Stored
from eagle3_interop.schemas.dialects.base import Reading, TargetFacts, Writing
from eagle3_interop.schemas.dialects.hf import write_rope
from eagle3_interop.schemas.dialects.spelling import shapes
from eagle3_interop.schemas.draft import Rope
from eagle3_interop.schemas.engines.positions import STRETCHED, rope_factor
from eagle3_interop.schemas.findings import Refused, finding

_SAFE = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_FLOATS = frozenset(_SAFE.values())


@dataclass(frozen=True)
class Loaded:
    """A source read by its own framework's rules, the user's word put in.

    Attributes:
        checkpoint: the folder.
        layout: which layout it was read as.
        reading: the network and where its tensors lie.
        target: the target, where it was given.
        facts: what the target's config says.
        own_embeddings: True, the stored table differs from the target's; False, it is the target's
            (or there is none); None, nobody knows.
        exchanged: canonical names of tensors whose two halves of columns stand in the file in the other
            order than every framework feeds them (`eagle3-diagnose --write` finds out).
    """

    checkpoint: Checkpoint
    layout: str
    reading: Reading
    target: TargetCheckpoint | None = None
    facts: TargetFacts | None = None
    own_embeddings: bool | None = None
    exchanged: tuple[str, ...] = ()

    def stored(self, canonical: str) -> Stored:
        """Where a tensor lies."""
        return self.checkpoint.stored[self.reading.names[canonical]]


@dataclass(frozen=True)
class Choices:
    """What the user may choose of the output.

    Attributes:
        verifier: ``--target-name``, else ``--target``.
        verifier_is_path: it names a folder of this machine.
        stock: refuse what needs the SGLang plugin.
        dtype: cast floating-point tensors to it; None keeps them.
        canonical_names: rename also what the destination would accept.
    """

    verifier: str | None = None
    verifier_is_path: bool = False
    stock: bool = False
    dtype: str | None = None
    canonical_names: bool = False


class Fit:
    """One conversion being decided: the draft, the operation on each tensor, and what was said."""

    def __init__(self, loaded: Loaded, destination: str, choices: Choices) -> None:
        """Start from the source as it is: every tensor copied."""
        self.loaded = loaded
        self.destination = destination
        self.choices = choices
        self.draft = loaded.reading.draft
        self.findings = list(loaded.reading.findings)
        self.ops: dict[str, tuple[Copy | Rewrite | Make, str]] = {
            name: (Copy(loaded.checkpoint.stored[stored]), "")
            for name, stored in sorted(
                loaded.reading.names.items(),
                key=lambda item: _place(loaded.checkpoint.stored[item[1]]),
            )
        }
        for name, values in loaded.reading.maps.items():
            self.ops[name] = (Make(values, "I64"), "derived")
        for name in loaded.exchanged:
            halves = Rewrite(loaded.stored(name), blocks=((1,), (0,)))
            self.ops[name] = (halves, "halves exchanged")
            self.say("halves-exchanged", name, "its halves of columns changed places.")

    def say(self, code: str, where: str, message: str) -> None:
        """Record a finding."""
        self.findings.append(finding(code, where, message))

    def update(self, **changes: object) -> None:
        """Change the draft's description."""
        self.draft = self.draft.model_copy(update=changes)

    def set_vocabulary(self, **changes: object) -> None:
        """Change what the description says of the vocabulary."""
        self.update(vocabulary=self.draft.vocabulary.model_copy(update=changes))

    # Each rewrite below keeps the network the same and says what it did.

    def order_taps(self) -> None:
        """Bring fc's blocks into the order that engines feed: ascending, each tap once."""
        taps, fc = self.draft.taps, self.draft.fc
        if taps is None or fc is None or list(taps) == sorted(set(taps)):
            return
        fed = sorted(set(taps))
        groups = tuple(tuple(i for i, tap in enumerate(taps) if tap == one) for one in fed)
        merged = len(fed) < len(taps)
        if merged and fc.input_norm:
            message = f"taps {list(taps)} repeat one under norm_before_fc."
            self.findings.append(finding("taps-unmergeable", "taps", message))
            raise Refused(self.findings)
        scale = self._block_scales(groups) if merged and fc.block_norms else None
        note = f"blocks {', '.join('+'.join(map(str, group)) for group in groups)}"
        for name in ("fc.weight", "input_norm.weight"):
            if name in self.ops:
                source = self.loaded.stored(name)
                self.ops[name] = (
                    Rewrite(source, scale=scale if name == "fc.weight" else None, blocks=groups),
                    note,
                )
        if fc.block_norms:
            self._order_block_norms(groups, folded=merged)
        message = f"from taps {list(taps)} to {fed}: {note}."
        self.say("taps-merged" if merged else "taps-permuted", "fc.weight", message)
        self.update(taps=tuple(fed), fc=fc.model_copy(update={"blocks": len(fed)}))

    def _block_scales(self, groups: tuple[tuple[int, ...], ...]) -> np.ndarray[Any, Any]:
        """Norm weights of every block that is merged, as factors on fc's columns; ones elsewhere."""
        width = self.draft.target.hidden_size
        scale = np.ones(width * sum(map(len, groups)), dtype=np.float32)
        for block in (block for group in groups if len(group) > 1 for block in group):
            values = self.loaded.checkpoint.values(
                self.loaded.reading.names[f"fc_norm.{block}.weight"]
            )
            scale[block * width : (block + 1) * width] = values.astype(np.float32)
        return scale

    def _order_block_norms(self, groups: tuple[tuple[int, ...], ...], *, folded: bool) -> None:
        old = {
            block: self.ops.pop(f"fc_norm.{block}.weight") for group in groups for block in group
        }
        for new, group in enumerate(groups):
            name = f"fc_norm.{new}.weight"
            op, note = old[group[0]]
            if len(group) > 1 and folded:
                source = self.loaded.stored(f"fc_norm.{group[0]}.weight")
                ones = np.ones(self.draft.target.hidden_size, dtype=np.float32)
                self.ops[name] = (Make(ones, source.dtype), "folded into fc")
            else:
                self.ops[name] = (op, note if group[0] == new else f"was block {group[0]}")

    def raise_positions(self) -> None:
        """Declare at least as many positions as the target, which SGLang demands and vLLM assumes."""
        facts, declared, rope = self.loaded.facts, self.draft.max_position, self.draft.rope
        wanted = facts.max_position if facts else None
        reached = declared * rope_factor(write_rope(rope))
        if wanted is None or reached >= wanted:
            return
        where = "max_position_embeddings"
        if self.draft.rope.scaling in STRETCHED:
            self.say("position-kept", where, f"{declared}; the target's is {wanted}.")
            return
        self.say("position-raised", where, f"{declared} became the target's {wanted}.")
        self.update(max_position=wanted)

    def check_rope(self) -> None:
        """Refuse scalings that frameworks compute differently."""
        rope, source, destination = self.draft.rope, self.loaded.layout, self.destination
        if source == destination:
            return
        if rope.scaling in STRETCHED:
            message = (
                f"{rope.scaling}: speculators follows the length of each sequence, SGLang and vLLM fix "
                "it at start, each from another number."
            )
            self.say("rope-differs", "rope.scaling", message)
        if rope.scaling != "yarn":
            return
        given = rope.parameters.get("attention_factor")
        reads_none = "sglang" in (source, destination) or destination == "universal"
        elsewhere = _yarn_scale(rope, zero_counts=False) if given is None else given
        if reads_none and not math.isclose(elsewhere, _yarn_scale(rope, zero_counts=True)):
            message = (
                "SGLang takes an mscale of zero for a number, others for none."
                if given is None
                else "SGLang reads no attention_factor."
            )
            self.say("rope-differs", "rope.parameters", message)
        if odd := sorted({"attn_factor", "extrapolation_factor"} & set(rope.parameters)):
            message = f"SGLang alone reads {', '.join(odd)}."
            self.say("rope-differs", "rope.parameters", message)

    def resolve_head(self, writing: Writing) -> None:
        """Give the destination the head it needs: its own table, where sharing is not understood."""
        vocabulary = self.draft.vocabulary
        if vocabulary.head == "target" and (vocabulary.mapped or not writing.target_head):
            self._head_from_target()
        elif vocabulary.head == "tied" and not writing.tied_head:
            self._head_from_embeddings()

    def _head_from_target(self) -> None:
        target = self.loaded.target
        if target is None or target.head is None:
            message = "the head is the target's; the destination wants it in the file."
            self.say("head-needs-target", "lm_head.weight", message)
            raise Refused(self.findings)
        rows = self._map_ids() if self.draft.vocabulary.mapped else None
        dtype = _SAFE[self.draft.dtype]
        self.ops["lm_head.weight"] = (Rewrite(target.head, rows=rows, dtype=dtype), "target's rows")
        self.say("head-from-target", "lm_head.weight", f"{self.draft.vocabulary.draft_size} rows.")
        self.set_vocabulary(head="own")

    def _head_from_embeddings(self) -> None:
        """A tied head is the table that SGLang really uses: the target's, where both are equally wide."""
        target = self.loaded.target
        if self.loaded.reading.draft.vocabulary.embeddings == "own":
            source = self.loaded.stored("embed_tokens.weight")
        elif target is not None and target.embedding is not None:
            source = target.embedding
        else:
            message = "the head is tied to the target's embedding table."
            self.say("head-needs-target", "lm_head.weight", message)
            raise Refused(self.findings)
        op = Rewrite(source, dtype=_SAFE[self.draft.dtype])
        self.ops["lm_head.weight"] = (op, "the embedding table")
        self.say("head-from-embeddings", "lm_head.weight", f"copied from {source.name}.")
        self.set_vocabulary(head="own")

    def settle_embeddings(self) -> None:
        """Keep, leave out or fetch the embedding table, by whose it is and what the destination needs."""
        name = "embed_tokens.weight"
        same_width = self.draft.hidden_size == self.draft.target.hidden_size
        replaced = self.draft.vocabulary.embeddings == "target"
        if name in self.ops and replaced and self.loaded.own_embeddings:
            del self.ops[name]
            self.say("embeddings-left-out", name, "the target's counts, before and after.")
        elif name in self.ops and same_width and self.loaded.own_embeddings is None:
            crosses = replaced != (self.destination in ("sglang", "universal"))
            if crosses and not self.draft.trains_embeddings:
                message = "kept; whether it equals the target's is not known."
                self.say("embeddings-unverified", name, message)
            if replaced and self.destination != "sglang":
                self.set_vocabulary(embeddings="own")
        if name not in self.ops and self.destination in ("speculators", "universal"):
            self._embeddings_from_target(name)

    def _embeddings_from_target(self, name: str) -> None:
        """Write the target's table out: the library leaves an absent one uninitialised."""
        target = self.loaded.target
        if target is None or target.embedding is None:
            message = "the table is the target's; speculators wants it in the file."
            self.say("embeddings-need-target", name, message)
            raise Refused(self.findings)
        op = Rewrite(target.embedding, dtype=_SAFE[self.draft.dtype])
        self.ops[name] = (op, "the target's table")
        self.say("embeddings-from-target", name, f"copied from {target.embedding.name}.")

    def settle_maps(self, writing: Writing) -> None:
        """Bring d2t and t2d into the state that the destination's loader wants."""
        vocabulary = self.draft.vocabulary
        if vocabulary.draft_size == vocabulary.target_size and not vocabulary.mapped:
            present = [name for name in ("d2t", "t2d") if name in self.ops]
            if present and writing.full_map == "drop":
                for name in present:
                    del self.ops[name]
                message = "between two equal vocabularies; loaders fail on it, or expect none."
                self.say("map-dropped", ", ".join(present), message)
            return
        if not writing.strict_maps:
            return
        ids = self._map_ids()
        order = np.argsort(ids, kind="stable")
        if not np.array_equal(order, np.arange(len(ids))):
            ids = ids[order]
            self.ops["d2t"] = (Make(ids - np.arange(len(ids)), "I64"), "sorted")
            self._sort_head(order)
            self.say("map-sorted", "d2t", "sorted by target id, the head's rows with it.")
        elif isinstance(op := self.ops["d2t"][0], Copy) and op.source.dtype != "I64":
            self.ops["d2t"] = (Make(ids - np.arange(len(ids)), "I64"), "as int64")
        self._rebuild_t2d(ids)

    def _sort_head(self, order: np.ndarray[Any, Any]) -> None:
        op, note = self.ops["lm_head.weight"]
        if isinstance(op, Make):
            raise TypeError("a head is never made from nothing")
        before = getattr(op, "rows", None)
        rows = order if before is None else before[order]
        dtype = getattr(op, "dtype", None)
        self.ops["lm_head.weight"] = (
            Rewrite(op.source, rows=rows, dtype=dtype),
            note or "rows sorted",
        )

    def _rebuild_t2d(self, ids: np.ndarray[Any, Any]) -> None:
        stored = self.ops.get("t2d")
        if stored is not None and isinstance(stored[0], Copy) and stored[0].source.dtype == "BOOL":
            return
        listed = np.zeros(self.draft.vocabulary.target_size, dtype=np.bool_)
        listed[ids] = True
        self.ops["t2d"] = (Make(listed, "BOOL"), "rebuilt from d2t")
        self.say("map-rebuilt", "t2d", f"{len(ids)} of {len(listed)} tokens.")

    def _map_ids(self) -> np.ndarray[Any, Any]:
        """Target id of each draft id."""
        op = self.ops["d2t"][0]
        offsets = (
            op.values if isinstance(op, Make) else self.loaded.checkpoint.values(op.source.name)
        )
        return offsets.astype(np.int64) + np.arange(len(offsets))

    def add_zeros(self, writing: Writing) -> None:
        """Write out the zero biases that the destination creates and would leave uninitialised."""
        layers = self.draft.layers
        biased = layers.attention.model_copy(update={"qkv_bias": True, "output_bias": True})
        layers = layers.model_copy(update={"attention": biased})
        wanted = shapes(self.draft.model_copy(update={"layers": layers}))
        for name in writing.zeros:
            zeros = np.zeros(wanted[name], dtype=np.float32)
            self.ops[name] = (Make(zeros, _SAFE[self.draft.dtype]), "zeros")
        if writing.zeros:
            self.say("zero-bias-added", writing.zeros[0], f"{len(writing.zeros)} tensors.")

    def cast(self) -> None:
        """Cast every floating-point tensor to the dtype that the user chose."""
        if self.choices.dtype is None:
            return
        wanted = _SAFE[self.choices.dtype]
        changed = 0
        for name, (op, note) in self.ops.items():
            if name in ("d2t", "t2d") or op_dtype(op) == wanted or op_dtype(op) not in _FLOATS:
                continue
            changed += 1
            said = f"{note}, {wanted}" if note else f"cast to {wanted}"
            if isinstance(op, Copy):
                self.ops[name] = (Rewrite(op.source, dtype=wanted), said)
            else:
                self.ops[name] = (replace(op, dtype=wanted), said)
        if changed:
            self.say("cast", "weights", f"{changed} tensors to {self.choices.dtype}.")

    def warn_of_kv_shape(self) -> None:
        """Say when head size or KV heads differ from the target's (engines share pages by them)."""
        target = self.loaded.target
        if target is None or self.destination == "speculators":
            return
        theirs = kv_shape(target.text_config)
        ours = (self.draft.layers.attention.kv_heads, self.draft.layers.attention.head_dim)
        if None not in theirs and ours != theirs:
            message = f"{ours[0]} KV heads of {ours[1]}; the target has {theirs[0]} of {theirs[1]}."
            self.say("kv-shape", "layers.attention", message)


def _yarn_scale(rope: Rope, *, zero_counts: bool) -> float:
    """What frameworks scale q and k by when no attention_factor says it.

    Args:
        rope: of type yarn.
        zero_counts: an mscale of zero is a number (SGLang), or as good as absent (transformers, vLLM).
    """
    factor = float(rope.parameters.get("factor") or 1.0)
    if factor <= 1:
        return 1.0
    above, below = (rope.parameters.get(key) for key in ("mscale", "mscale_all_dim"))
    if above is None or below is None or not (zero_counts or (above and below)):
        above, below = 1.0, 0.0
    return float((0.1 * above * math.log(factor) + 1.0) / (0.1 * below * math.log(factor) + 1.0))


def _place(stored: Stored) -> tuple[str, int]:
    return str(stored.file), stored.start


def op_dtype(op: Copy | Rewrite | Make) -> str:
    """The dtype of what an operation yields."""
    if isinstance(op, Copy):
        return op.source.dtype
    return op.dtype or (op.source.dtype if isinstance(op, Rewrite) else "")
