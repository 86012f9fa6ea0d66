"""The neutral description of an EAGLE-3 draft: one network, whatever dialect it was written in.

A release of an engine (``engines/``) reads a folder's config and tensor headers into a `Draft`, and a destination
writes a `Draft` back out. Two checkpoints hold the same network when
``a.network == b.network`` and their tensors, under canonical names, are equal bit for bit.

Which tensors a network owns, and their shapes, stands in `parameters`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from eagle3_interop.schemas.quantisation import Quantisation

Dtype = Literal["bfloat16", "float16", "float32"]

Feedback = Literal["pre-norm", "post-norm"]

LARGEST = 2**27
Size = Annotated[int, Field(gt=0, le=LARGEST)]
"""A number of rows, columns, heads or positions that could be meant; more is a broken config."""

MOST_DRAFTED = 1024
"""Tokens a step that any engine is asked to draft; engines draft a few."""


DEFAULT_POSITIONS = 2048
"""Positions of a draft whose config declares none: what SGLang and vLLM take then."""


class Part(BaseModel):
    """A frozen piece of the description; a key that is not known here is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Target(Part):
    """What is known of the target (verifier), from the draft's config or from the target itself."""

    name: str | None = None
    hidden_size: Size
    layers: Size | None = None
    model_type: str | None = None
    architectures: tuple[str, ...] = ()


class Fc(Part):
    """The projection from the concatenated taps to the draft's width.

    Attributes:
        blocks: number of tapped hidden states that are concatenated.
        bias: ``fc.bias`` exists (SGLang's ``bias: true`` only).
        input_norm: one RMS norm over the whole concatenation (``norm_before_fc``).
        block_norms: one RMS norm for each block (``fc_norm``).
    """

    blocks: Size
    bias: bool = False
    input_norm: bool = False
    block_norms: bool = False


class Rope(Part):
    """Rotary position embedding, half-split ("neox") pairs as in every safetensors framework.

    Latent attention says itself which pairs it rotates. Its yarn has all its numbers written out, and what its two
    mscales come to stands in ``attention_factor`` here and in `Mla.softmax_scale`.

    Attributes:
        theta: base.
        partial: fraction of each head that is rotated.
        scaling: transformers' ``rope_type``; ``None`` is the plain rotation.
        parameters: the scaling's own numbers under transformers' names (``factor``,
            ``original_max_position_embeddings``, ``low_freq_factor`` ...), without theta and type.
        mrope_sections: how a head is shared between time, height and width positions; equal to the
            plain rotation wherever the three are equal, as for text.
    """

    theta: float = Field(default=10000.0, gt=0, strict=True)
    partial: float = Field(default=1.0, gt=0, le=1, strict=True)
    scaling: Literal["linear", "dynamic", "yarn", "llama3", "longrope"] | None = None
    parameters: dict[str, Any] = {}
    mrope_sections: tuple[int, ...] | None = None

    @model_validator(mode="after")
    def _parameters_of_its_kind(self) -> Self:
        if self.scaling is None and set(self.parameters) - PLAIN_PARAMETERS:
            raise ValueError(f"a plain rotation has no parameters {sorted(self.parameters)}")
        for key in ROPE_NEEDS.get(self.scaling or "", ()):
            if self.parameters.get(key) is None:
                raise ValueError(f"{self.scaling} rope needs {key} among its parameters")
            if self.parameters[key] == 0:
                raise ValueError(f"{key} of rope cannot be 0")
        for key, value in self.parameters.items():
            numbers = value if key in _LISTS and isinstance(value, list) else [value]
            if key in _NUMBERS | _LISTS and not all(_is_size(number) for number in numbers):
                raise ValueError(f"{key} of rope cannot be {value!r}")
        return self


PLAIN_PARAMETERS = frozenset({"mrope_interleaved"})
"""What a rotation without scaling can still have."""

ROPE_NEEDS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
"""The kinds of scaled rope, and the numbers that each cannot do without."""

_LISTS = frozenset({"short_factor", "long_factor"})
_NUMBERS = frozenset(
    {
        *(key for needs in ROPE_NEEDS.values() for key in needs if key not in _LISTS),
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
    }
)


def _is_size(value: object) -> bool:
    """A number that a rotation can be computed with; null stands for the kind's own default."""
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


class Gqa(Part):
    """Grouped-query attention: heads share their keys and values in groups."""

    kind: Literal["gqa"] = "gqa"
    heads: Size
    kv_heads: Size
    head_dim: Size
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False


class Mla(Part):
    """Multi-head latent attention: keys and values are expanded from one latent vector a position.

    Attributes:
        heads: each with keys and values of its own.
        q_rank: width of the latent that queries are expanded from; None: they are projected at once.
        kv_rank: width of the latent that keys and values are expanded from.
        nope_dim: part of each query and key head that is not rotated; it comes first.
        rope_dim: part that is rotated; that of the keys is one for all heads.
        v_dim: width of each value head.
        interleaved: rotated pairs are neighbours (2i, 2i + 1), and not the two halves.
        softmax_scale: factor on the scores, all told: what yarn's ``mscale_all_dim`` adds is in it.
    """

    kind: Literal["mla"] = "mla"
    heads: Size
    q_rank: Size | None
    kv_rank: Size
    nope_dim: Size
    rope_dim: Size
    v_dim: Size
    interleaved: bool = True
    softmax_scale: float = Field(gt=0)


Attention = Annotated[Gqa | Mla, Field(discriminator="kind")]
"""Attention of every draft layer."""


class Mlp(Part):
    """The gated MLP of every draft layer: ``down(act(gate(x)) * up(x))``."""

    width: Size
    activation: str = "silu"
    bias: bool = False


class Layers(Part):
    """The decoder layers. Layer 0 takes [norm(embedding), norm(hidden)]; the others are plain.

    Attributes:
        count: number of layers.
        windows: for each layer its sliding window in positions (the current one included), or None.
    """

    count: Size
    attention: Attention
    mlp: Mlp
    norm_eps: float = Field(gt=0)
    windows: tuple[Size | None, ...]

    @model_validator(mode="after")
    def _one_window_a_layer(self) -> Self:
        if len(self.windows) != self.count:
            raise ValueError(f"{len(self.windows)} windows for {self.count} layers")
        return self

    @property
    def gqa(self) -> Gqa:
        """The attention, for code that knows this kind alone and is never handed the other.

        Raises:
            TypeError: it is the other.
        """
        if not isinstance(self.attention, Gqa):
            raise TypeError(
                f"grouped-query attention was expected, and this is {self.attention.kind}"
            )
        return self.attention


class Vocabulary(Part):
    """Which tokens the draft can propose, and whose tables it uses.

    Attributes:
        target_size: rows of the target's vocabulary, V.
        draft_size: rows of the draft's head, D.
        mapped: a d2t map stands between the two; without one draft ids are target ids.
        head: ``own`` (``lm_head.weight``), ``tied`` (the embedding table), or the ``target``'s.
        embeddings: the table that is really used: ``own`` or the ``target``'s.
        logit_scale: factor on the logits (no effect on a greedy draft).
    """

    target_size: Size
    draft_size: Size
    mapped: bool
    head: Literal["own", "tied", "target"] = "own"
    embeddings: Literal["own", "target"] = "own"
    logit_scale: float = 1.0


class ParallelDrafting(Part):
    """P-EAGLE: all draft tokens in one pass; a mask token and ``mask_hidden`` stand for inputs not known yet.

    Attributes:
        mask_token_id: the token whose embedding, of the draft's own table, each later position takes; None
            where a config forgot it, which no engine runs.
    """

    mask_token_id: int | None = None


@dataclass(frozen=True)
class GivenTaps:
    """The taps are known.

    Attributes:
        at: of each block of fc, the number of target layers that its stream has passed.
    """

    at: tuple[int, ...]

    def of(self, _depth: int) -> tuple[int, ...]:
        """The taps of a target of any depth."""
        return self.at


@dataclass(frozen=True)
class DefaultTaps:
    """No taps are named: the triple that every framework takes from the target's depth."""

    def of(self, depth: int) -> tuple[int, ...]:
        """The taps of a target of this depth.

        Raises:
            ValueError: the target is too shallow for three different streams.
        """
        triple = default_taps(depth)
        if triple is None:
            raise ValueError(f"{depth} layers are too few for the default triple")
        return triple


@dataclass(frozen=True)
class NoTaps:
    """There is no fc: the draft reads the target's last hidden state itself."""

    def of(self, _depth: int) -> tuple[int, ...]:
        """None at all."""
        return ()


Tapping = GivenTaps | DefaultTaps | NoTaps
"""Which streams of the target feed the draft: three things, each of its own kind."""


class Network(Part):
    """What a draft computes. Two checkpoints hold the same network when these are equal, and their tensors.

    Attributes:
        hidden_size: the draft's width, H.
        target: of the target its width.
        taps: for each block of fc's input, in fc's own order, how many target decoder layers its
            residual stream has passed: 0 is the embedding output, k the stream entering layer k,
            L the stream after the last layer and before the final norm. None: the default triple
            ``(2, L // 2, L - 3)``, which every framework resolves from the target's depth L alike,
            or no taps at all where there is no fc (`Draft.tapping` tells them apart).
        fc: the projection; None for drafts that read the target's last hidden state directly
            (``use_aux_hidden_state: false``).
        residual: what layer 0 adds attention's output to: the ``raw`` hidden state or the ``normed`` one.
        feedback: the hidden state a draft step hands to the next: before or after the final norm; without
            meaning where all tokens come from one pass.
        quantisation: which weights are stored quantised, and how; None where none is.
        max_position: positions that the rope is stretched by; None for all other ropes.
    """

    hidden_size: Size
    target: Target
    taps: tuple[int, ...] | None
    fc: Fc | None
    layers: Layers
    residual: Literal["raw", "normed"] = "raw"
    feedback: Feedback = "pre-norm"
    rope: Rope = Rope()
    max_position: Size | None = None
    vocabulary: Vocabulary
    parallel: ParallelDrafting | None = None
    quantisation: Quantisation | None = None
    dtype: Dtype = "bfloat16"


class Draft(Network):
    """One EAGLE-3 draft: its network, and what is only told about it.

    Attributes:
        target: what is known of the target; its width alone belongs to the network.
        max_position: positions that the draft's config declares, whatever the rope.
        speculative_tokens: proposed tokens a step that the trainer recommends.
        trains_embeddings: the embedding table was trained (so it differs from the target's).
    """

    max_position: Size = DEFAULT_POSITIONS
    speculative_tokens: Size | None = None
    trains_embeddings: bool = False

    @model_validator(mode="after")
    def _taps_match_blocks(self) -> Self:
        if self.taps is not None:
            if self.fc is None:
                raise ValueError("a draft without fc has no taps")
            if len(self.taps) != self.fc.blocks:
                raise ValueError(f"{len(self.taps)} taps for {self.fc.blocks} fc blocks")
            if any(tap < 0 for tap in self.taps):
                raise ValueError(f"taps count passed layers and cannot be negative: {self.taps}")
        return self

    @property
    def network(self) -> Network:
        """What is computed, and nothing that is only told; the default triple is filled in where it is known."""
        computed = {name: getattr(self, name) for name in Network.model_fields}
        computed["target"] = Target(hidden_size=self.target.hidden_size)
        if self.parallel is not None:
            computed["feedback"] = "pre-norm"
        computed["max_position"] = self.max_position if self.rope.scaling in STRETCHED else None
        if self.tapping == DefaultTaps() and self.target.layers is not None:
            computed["taps"] = default_taps(self.target.layers)
        return Network(**computed)

    @property
    def tapping(self) -> Tapping:
        """Whether the taps are given, the default ones, or none."""
        if self.fc is None:
            return NoTaps()
        return DefaultTaps() if self.taps is None else GivenTaps(self.taps)

    def fed_taps(self, depth: int) -> tuple[int, ...]:
        """The taps that a target of this depth feeds; none without fc.

        Raises:
            ValueError: the default triple of a target that is too shallow for it.
        """
        return self.tapping.of(depth)


def differences(one: Draft, other: Draft, *, tables: bool = True) -> dict[str, tuple[Any, Any]]:
    """Dotted paths at which two networks differ, with both values; empty where they are the same.

    Args:
        one: a draft.
        other: another.
        tables: whose embedding table it is counts; False where the tables themselves are compared.
    """
    left, right = (dict(_leaves(draft.network.model_dump(mode="json"))) for draft in (one, other))
    ignored = set() if tables else {"vocabulary.embeddings"}
    return {
        path: (left.get(path), right.get(path))
        for path in sorted({*left, *right} - ignored)
        if left.get(path) != right.get(path)
    }


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping) and prefix + key != "rope.parameters":
            yield from _leaves(item, f"{prefix}{key}.")
        else:
            yield prefix + key, item


STRETCHED = ("dynamic", "longrope")
"""Kinds of rope that compute by the positions that a config declares."""


def default_taps(target_layers: int) -> tuple[int, ...] | None:
    """The triple that vLLM, SGLang, speculators and SpecForge all use when no ids are given.

    In the order in which they feed it, ascending; None for a target so shallow that the three are
    not three different streams.

    Source: vLLM's ``interfaces.py`` and speculators' ``utils.py``: (2, L // 2, L - 3) entering layer k; SGLang
    and SpecForge count outputs: (1, L // 2 - 1, L - 4), the same streams.
    """
    triple = sorted({2, target_layers // 2, target_layers - 3})
    return tuple(triple) if len(triple) == 3 and triple[0] >= 0 else None
