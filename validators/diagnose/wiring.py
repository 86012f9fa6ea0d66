"""A wiring: one way to feed a draft's weights and to read them. Hypotheses, as data.

A `Wiring` names, for each block of fc, which layer's stream it reads and what of it, and a value for
every flag in `FLAGS`. `Subject` holds the weights and knows which values make sense for them;
`Subject.network` gives the network that a wiring means. Nothing is copied: a wiring is a view of the weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from eagle3_interop.schemas.draft import Attention, Draft, Mla, Rope
from eagle3_interop.schemas.parameters import ENTRY, along, settled_by, shapes
from eagle3_interop.validators.network.reference import Features, Trace
from eagle3_interop.validators.network.switched import Switched
from eagle3_interop.validators.network.weights import Weights

STREAM, SUBLAYER, NORMED, RESCALED = "stream", "sublayer", "normed", "rescaled"

READS = {
    STREAM: "the residual stream",
    SUBLAYER: "the last sub-layer's output without the residual",
    NORMED: "the stream after the next norm",
    RESCALED: "the embedding with the target's scale taken off, or put on",
}
"""What a block of fc can read at its depth."""

FLAGS = {
    "residual": "what layer 0 adds attention's output to",
    "feedback": "the hidden state handed to the next step: before or after the final norm",
    "input_norm": "one norm over the whole concatenation before fc",
    "block_norms": "a norm on each block of fc's input",
    "head_norm": "the final norm before the head",
    "embedding_scale": "factor on the token embedding",
    "order": "halves of layer 0's input",
    "shift": "position of the features against their token",
    "rope": "rotary base and scaling",
    "pairs": "which dimensions of a latent head are rotated together: neighbours, or its two halves",
    "scores": "factor on a latent head's scores, with or without yarn's mscale",
    "window": "how far back each layer's attention sees",
    "window_of": "whose window a later step keeps: its own, or that of its start",
    "map": "how the head's rows stand for target tokens",
    "embeddings": "whose embedding table",
    "hidden_norms": "norms before layer 0's hidden half: hidden_norm, or input_layernorm and then it",
    "entry_norms": "which norm of layer 0 is the embedding's, which the hidden state's",
    "later_norms": "the norms of layers >= 1",
    "qk_norm": "norms on q and k",
}
"""Every flag, and what it says."""

USUAL = {
    "head_norm": "on",
    "embedding_scale": "raw",
    "order": "embedding-hidden",
    "shift": "0",
    "map": "offset",
    "hidden_norms": "one",
    "entry_norms": "as-named",
    "later_norms": "as-named",
    "window_of": "step",
}
"""What every engine computes; other values are some trainer's."""

Windows = tuple[int | None, ...]
"""Positions that each layer sees, itself included; None sees all."""

PRUNED = "offset-as-id"
"""The reading of a map whose head was pruned by offsets in the place of ids: rows repeat, the others are lost."""

NEIGHBOURS, HALVES = "neighbours", "halves"

STORED = {
    "input_norm": "input_norm.weight",
    "block_norms": "fc_norm.0.weight",
    "qk_norm": "layers.0.self_attn.q_norm.weight",
}
"""Norms that are on where the file holds their weights; it would be odd to store what is not used."""


@dataclass(frozen=True)
class Wiring:
    """One hypothesis.

    Attributes:
        taps: of each block of fc, as `Draft.taps` counts them; empty without fc.
        reads: what each block reads there, a key of `READS`.
        flags: (name, value) in the order of `FLAGS`.
    """

    taps: tuple[int, ...]
    reads: tuple[str, ...]
    flags: tuple[tuple[str, str], ...]

    def flag(self, name: str) -> str:
        """The value of a flag."""
        return dict(self.flags)[name]

    def with_flag(self, name: str, value: str) -> "Wiring":
        """The same wiring with one flag changed."""
        return replace(self, flags=tuple((k, value if k == name else v) for k, v in self.flags))

    def with_block(self, block: int, tap: int, read: str) -> "Wiring":
        """The same wiring with one block moved."""
        taps, reads = list(self.taps), list(self.reads)
        taps[block], reads[block] = tap, read
        return replace(self, taps=tuple(taps), reads=tuple(reads))

    def permuted(self, order: tuple[int, ...]) -> "Wiring":
        """The same streams given to other blocks."""
        taps = tuple(self.taps[i] for i in order)
        return replace(self, taps=taps, reads=tuple(self.reads[i] for i in order))

    def changes(self, other: "Wiring") -> list[str]:
        """What differs from another wiring, a line each: ``taps [0, 3, 5] instead of [1, 3, 5]``."""
        found = []
        if self.taps != other.taps:
            found.append(f"taps {list(self.taps)} instead of {list(other.taps)}")
        if self.reads != other.reads:
            found.append(f"reads {list(self.reads)} instead of {list(other.reads)}")
        before = dict(other.flags)
        found += [f"{k} {v} instead of {before[k]}" for k, v in self.flags if v != before[k]]
        return found

    def report(self) -> dict[str, Any]:
        """Taps and flags as the JSON has them; ``reads`` stands among the flags."""
        return {"taps": list(self.taps), "flags": {**dict(self.flags), "reads": list(self.reads)}}


def distance(one: Wiring, other: Wiring) -> int:
    """Blocks and flags in which two wirings differ."""
    places = zip(one.taps, one.reads, other.taps, other.reads, strict=True)
    blocks = sum((a, b) != (c, d) for a, b, c, d in places)
    return blocks + sum(a != b for a, b in zip(one.flags, other.flags, strict=True))


def cost(wiring: Wiring, configured: Wiring, usual: Mapping[str, str] = USUAL) -> int:
    """How much a wiring asks to be believed: its changes, and what is unusual about it.

    Other taps are one change, however many blocks they move: who counts layers otherwise is wrong in all.
    """
    reads = sum(a != b for a, b in zip(wiring.reads, configured.reads, strict=True))
    flags = sum(a != b for a, b in zip(wiring.flags, configured.flags, strict=True))
    odd = sum(read != STREAM for read in wiring.reads)
    odd += sum(value != usual.get(name, value) for name, value in wiring.flags)
    return (wiring.taps != configured.taps) + reads + flags + odd


@dataclass(frozen=True)
class Subject:
    """The weights whose wiring is sought, and what is known of them.

    Attributes:
        draft: as configured, with its taps resolved.
        weights: of `draft`.
        configured: the wiring that `draft` says.
        options: of each flag, every value that makes sense, the configured one first.
        ropes: by the value of the flag ``rope``.
        maps: by the value of the flag ``map``: target id of each row of the head, or None where they
            are the same.
        tables: by the value of the flag ``embeddings``.
        names: canonical names of the tensors that there are; an absent norm before fc has unit weights.
        other_norms: canonical name of a later layer's norm to its weight under the spelling not in use.
        other_names: the same, to its stored name.
        known: the draft's own config says `configured`; else it is a guess to start from.
        windows: by the value of the flag ``window``.
        trained: flags of a trainer that is known to have trained these weights, which are usual there.
        allowed: those of them that the user accepts to lose.
        scores: by the value of the flag ``scores``.
    """

    draft: Draft
    weights: Weights
    configured: Wiring
    options: Mapping[str, tuple[str, ...]]
    ropes: Mapping[str, Rope]
    maps: Mapping[str, Tensor | None]
    tables: Mapping[str, Tensor]
    names: frozenset[str]
    other_norms: Mapping[str, Tensor] = field(default_factory=dict)
    other_names: Mapping[str, str] = field(default_factory=dict)
    known: bool = True
    windows: Mapping[str, Windows] = field(default_factory=dict)
    trained: Mapping[str, str] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    scores: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def usual(self) -> dict[str, str]:
        """What one would expect of these weights, as far as there is anything to expect."""
        stored = {flag: "on" if name in self.names else "off" for flag, name in STORED.items()}
        return {**USUAL, **stored, **self.trained}

    def network(self, wiring: Wiring) -> "Wired":
        """The network that a wiring means; its features are what `fuse` shall return."""
        flags = dict(wiring.flags)
        fc = self.draft.fc and self.draft.fc.model_copy(
            update={
                "input_norm": flags["input_norm"] == "on",
                "block_norms": flags["block_norms"] == "on",
            }
        )
        layers = self.draft.layers
        attention: Attention
        if isinstance(layers.attention, Mla):
            said = {
                "interleaved": flags["pairs"] == NEIGHBOURS,
                "softmax_scale": self.scores[flags["scores"]],
            }
            attention = layers.attention.model_copy(update=said)
        else:
            attention = layers.attention.model_copy(update={"qk_norm": flags["qk_norm"] == "on"})
        windows = self.windows.get(flags["window"], layers.windows)
        draft = self.draft.model_copy(
            update={
                "fc": fc,
                "residual": flags["residual"],
                "feedback": flags["feedback"],
                "rope": self.ropes[flags["rope"]],
                "layers": layers.model_copy(update={"attention": attention, "windows": windows}),
            }
        )
        return Wired(draft, WiredWeights(self, flags), flags)


class WiredWeights(Weights):
    """The weights as a wiring takes them: other tables, other halves, made when first used."""

    def __init__(self, subject: Subject, flags: Mapping[str, str]) -> None:
        """Look up what the flags mean."""
        base = subject.weights
        super().__init__(subject.draft, base.__getitem__, device=base.device, dtype=base.dtype)
        self._base = base
        self._ids = subject.maps[flags["map"]]
        self._plain_table = subject.tables[flags["embeddings"]]
        self._scaled = flags["embedding_scale"] == "scaled"
        self._own: dict[str, Callable[[], Tensor]] = dict(_unit_norms(subject))
        if flags["order"] == "hidden-embedding":
            for name, halves in along(subject.draft, ENTRY).items():
                width = base[name].shape[halves] // 2
                self._own[name] = partial(torch.roll, base[name], width, halves)
        if flags["entry_norms"] == "swapped":
            self._swap("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight")
        if flags["later_norms"] == "other-name":
            for name, weight in subject.other_norms.items():
                self._own[name] = partial(torch.clone, weight)
        elif flags["later_norms"] == "swapped":
            for layer in range(1, subject.draft.layers.count):
                stem = f"layers.{layer}"
                self._swap(
                    f"{stem}.input_layernorm.weight", f"{stem}.post_attention_layernorm.weight"
                )

    def _swap(self, one: str, other: str) -> None:
        self._own[one] = partial(self._base.__getitem__, other)
        self._own[other] = partial(self._base.__getitem__, one)

    def __getitem__(self, name: str) -> Tensor:
        """The tensor under this canonical name."""
        if name not in self._own:
            return self._base[name]
        if name not in self._kept:
            self._kept[name] = self._own[name]()
        return self._kept[name]

    @cached_property
    def _table(self) -> Tensor:
        table = self._plain_table
        return table * table.shape[-1] ** 0.5 if self._scaled else table

    @property
    def embeddings(self) -> Tensor:
        """The table of the wiring."""
        return self._table

    def embedded(self, tokens: Tensor) -> Tensor:
        """Its rows."""
        return F.embedding(tokens, self._table)

    @property
    def head(self) -> Tensor:
        """The head is the same in every wiring; only what its rows mean is in doubt."""
        return self._base.head

    @property
    def target_ids(self) -> Tensor | None:
        """What they mean in this one."""
        return self._ids


def _unit_norms(subject: Subject) -> dict[str, Callable[[], Tensor]]:
    """Norms before fc that a config may ask for and the file does not hold: engines start them at one."""
    draft, weights = subject.draft, subject.weights
    if draft.fc is None:
        return {}
    normed = draft.fc.model_copy(update={"input_norm": True, "block_norms": True})
    sizes = shapes(draft.model_copy(update={"fc": normed}))
    return {
        name: partial(torch.ones, size, device=weights.device, dtype=weights.dtype)
        for name, size in sizes.items()
        if name not in subject.names and settled_by(name) in ("fc.input_norm", "fc.block_norms")
    }


class Wired(Switched):
    """A network whose fc output is given, and whose flags may be some trainer's."""

    def fuse(self, features: Features, trace: Trace | None = None) -> Tensor:  # noqa: ARG002
        """What was fused already (`streams.Fusion`)."""
        return self._cast(features.final)


def configured_flags(draft: Draft) -> dict[str, str]:
    """The flags as a description says them."""
    fc, attention = draft.fc, draft.layers.attention
    flags = {
        "residual": draft.residual,
        "feedback": draft.feedback,
        "input_norm": "on" if fc is not None and fc.input_norm else "off",
        "block_norms": "on" if fc is not None and fc.block_norms else "off",
        "head_norm": "on",
        "embedding_scale": "raw",
        "order": "embedding-hidden",
        "shift": "0",
        "rope": rope_label(draft.rope),
        "window": window_label(draft.layers.windows),
        "window_of": "step",
        "map": "offset" if draft.vocabulary.mapped else "absent",
        "embeddings": draft.vocabulary.embeddings,
        "hidden_norms": "one",
        "entry_norms": "as-named",
        "later_norms": "as-named",
    }
    if isinstance(attention, Mla):
        pairs = NEIGHBOURS if attention.interleaved else HALVES
        return {**flags, "pairs": pairs, "scores": score_label(attention.softmax_scale)}
    return {**flags, "qk_norm": "on" if attention.qk_norm else "off"}


def score_label(scale: float) -> str:
    """A factor on scores in a few digits."""
    return f"{scale:.6g}"


def candidate_scores(attention: Mla, rope: Rope, target: Rope | None) -> dict[str, float]:
    """The configured factor, the plain one, and those with an mscale of 1 of the draft's yarn and the target's."""
    plain = (attention.nope_dim + attention.rope_dim) ** -0.5
    yarns = [one for one in (rope, target) if one is not None and one.scaling == "yarn"]
    grown = [plain * growth(float(one.parameters["factor"])) ** 2 for one in yarns]
    # To the digits that a reading has: what is written is read back equal.
    found = (float(f"{scale:.12g}") for scale in (attention.softmax_scale, plain, *grown))
    return {score_label(scale): scale for scale in found}


def growth(factor: float, mscale: float = 1.0) -> float:
    """By how much yarn makes up for a text that it stretched, as DeepSeek counts it."""
    return 0.1 * mscale * log(factor) + 1.0 if factor > 1 else 1.0


def window_label(windows: Windows) -> str:
    """Windows in a few words: one for all layers, or each layer's."""
    words = ["none" if one is None else str(one) for one in windows]
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def candidate_windows(configured: Windows, target: int | None) -> dict[str, Windows]:
    """The configured windows, none (a trainer may have copied them from the target), and the target's."""
    found: list[Windows] = [configured, (None,) * len(configured)]
    if target is not None:
        found.append((target,) * len(configured))
    return {window_label(one): one for one in found}


def rope_label(rope: Rope) -> str:
    """A rope in a few words."""
    parts = [f"theta {rope.theta:g}"]
    if rope.scaling:
        numbers = ", ".join(f"{key} {value}" for key, value in sorted(rope.parameters.items()))
        parts.append(f"{rope.scaling} ({numbers})" if numbers else rope.scaling)
    if rope.partial != 1:
        parts.append(f"partial {rope.partial:g}")
    return " ".join(parts)


def candidate_ropes(configured: Rope, target: Rope | None) -> dict[str, Rope]:
    """The configured rope, the target's, and the bases that configs and class defaults carry."""
    ropes = [configured]
    if target is not None:
        ropes.append(configured.model_copy(update={"theta": target.theta}))
        if target.scaling:
            scaled = {"scaling": target.scaling, "parameters": target.parameters}
            ropes.append(configured.model_copy(update={"theta": target.theta, **scaled}))
    if configured.scaling == "yarn":
        ropes += _other_amplitudes(configured)
    plain = configured.model_copy(update={"scaling": None, "parameters": {}})
    ropes.append(plain)
    ropes += [plain.model_copy(update={"theta": theta}) for theta in (1e4, 5e5, 1e6)]
    return {rope_label(rope): rope for rope in ropes}


_AMPLITUDE = ("attention_factor", "mscale", "mscale_all_dim")


def _other_amplitudes(yarn: Rope) -> list[Rope]:
    """The same frequencies under the length of cosines that a trainer takes who reads no mscale, or scales none."""
    shared = {key: value for key, value in yarn.parameters.items() if key not in _AMPLITUDE}
    own = _amplitude(yarn)
    others = [
        yarn.model_copy(update={"parameters": parameters})
        for parameters in (shared, {**shared, "attention_factor": 1.0})
    ]
    return [one for one in others if abs(_amplitude(one) - own) > 1e-6]


_YARN = ("factor", "original_max_position_embeddings")
_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}


def for_latent_attention(ropes: Mapping[str, Rope]) -> dict[str, Rope]:
    """The ropes as a description of latent attention has them: a yarn names its amplitude in the place of mscales."""
    found: list[Rope] = []
    for rope in ropes.values():
        if rope.scaling == "yarn":
            numbers = {key: rope.parameters[key] for key in _YARN}
            numbers |= {key: rope.parameters.get(key, usual) for key, usual in _BETAS.items()}
            numbers["attention_factor"] = _amplitude(rope)
            rope = rope.model_copy(update={"parameters": numbers})
        if rope not in found:
            found.append(rope)
    return {rope_label(rope): rope for rope in found}


def _amplitude(yarn: Rope) -> float:
    """By what cosines and sines are multiplied, as transformers reads yarn's numbers."""
    numbers = yarn.parameters
    given = numbers.get("attention_factor")
    if isinstance(given, int | float):
        return float(given)
    factor = float(numbers.get("factor") or 1.0)
    one, other = numbers.get("mscale"), numbers.get("mscale_all_dim")
    if one and other:
        return growth(factor, float(one)) / growth(factor, float(other))
    return growth(factor)


def candidate_maps(
    stored: Tensor | None, listed: Tensor | None, vocabulary: int, size: int
) -> dict[str, Tensor | None]:
    """What the rows of the head can stand for; readings that leave the vocabulary are no candidates.

    Args:
        stored: d2t, as it is stored.
        listed: t2d.
        vocabulary: of the target.
        size: of the draft.
    """
    rows = torch.arange(size)
    found: dict[str, Tensor] = {}
    if stored is not None and stored.numel() == size:
        values = stored.cpu().long()
        found = {"offset": rows + values, "absolute": values, "inverted": rows - values}
        found["sorted"] = found["offset"].sort().values
    if listed is not None and int(listed.sum()) == size:
        found["t2d-order"] = listed.cpu().bool().nonzero().flatten()
    valid: dict[str, Tensor | None] = {}
    for name, ids in found.items():
        inside = int(ids.min()) >= 0 and int(ids.max()) < vocabulary
        known = any(torch.equal(ids, other) for other in valid.values() if other is not None)
        if inside and len(set(ids.tolist())) == size and not known:
            valid[name] = ids
    return {**valid, "absent": None}
