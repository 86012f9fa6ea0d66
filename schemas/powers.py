"""What each framework's draft class computes, as data: one table for reading and for refusing.

Read from, and run against, the newest speculators, SGLang and vLLM (``docs/frameworks.md`` names the places) and
their older releases. A reader resolves a config by its class's powers; a writer refuses what the class lacks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from eagle3_interop.schemas.draft import Draft, Gqa, Mla
from eagle3_interop.schemas.findings import Finding, finding


@dataclass(frozen=True)
class Powers:
    """What one draft class computes. What it lacks it leaves out without a word, or fails on.

    Attributes:
        engine: framework and class, for messages.
        attentions: kinds of attention that its layers have.
        queries_at_once: latent attention can project queries without a latent of their own.
        half_rotation: latent attention rotates the two halves where it is told so, else neighbours alone.
        residual_normed: reads ``norm_before_residual``.
        qk_norm: has q/k norms (always, when it has them).
        attention_biases: the groups that ``attention_bias: true`` creates: ``qkv``, ``output``.
        mlp_bias: reads ``mlp_bias``.
        fc_bias: reads ``bias``.
        windows: slides by ``layer_types`` and ``sliding_window``.
        own_embeddings: uses the draft's own table when it differs from the target's.
        any_activation: takes any activation; otherwise silu only.
        other_width: the target may be wider or narrower than the draft.
        no_fc: runs without fc on the target's last hidden state.
        both_fc_norms: can have ``norm_before_fc`` and ``fc_norm`` together.
        one_equal_tap: applies fc even where its input is as wide as its output.
        logit_scale: reads ``logit_scale``.
        partial_rotary: rotates only a part of each head when told so.
        mrope: understands ``mrope_section``.
        scaled_mrope: and a scaling beside it.
        target_head: can take over the target's head for a draft of full vocabulary.
        tied_head: can take its embedding table for the head.
        full_map: a map may stand between two vocabularies of the same size.
        parallel: drafts all tokens in one pass (P-EAGLE).
        input_norm: reads ``norm_before_fc``.
        block_norms: reads ``fc_norm``.
        post_norm: reads ``norm_output``, and feeds the normed state back.
        later_layers: has more layers than the one that takes the target's hidden states.
        other_blocks: fc over another number of hidden states than three.
        own_whole_head: keeps a head of its own that is as large as the target's.
    """

    engine: str
    attentions: frozenset[str] = frozenset({"gqa"})
    queries_at_once: bool = True
    half_rotation: bool = True
    residual_normed: bool = True
    qk_norm: bool = False
    attention_biases: frozenset[str] = frozenset({"qkv", "output"})
    mlp_bias: bool = False
    fc_bias: bool = False
    windows: bool = True
    own_embeddings: bool = True
    any_activation: bool = False
    other_width: bool = True
    no_fc: bool = True
    both_fc_norms: bool = True
    one_equal_tap: bool = True
    logit_scale: bool = False
    partial_rotary: bool = True
    mrope: bool = True
    scaled_mrope: bool = True
    target_head: bool = True
    tied_head: bool = False
    full_map: bool = False
    parallel: bool = False
    input_norm: bool = True
    block_norms: bool = True
    post_norm: bool = True
    later_layers: bool = True
    other_blocks: bool = True
    own_whole_head: bool = True


def both(one: Powers, other: Powers) -> Powers:
    """What two classes both compute."""
    merged = {
        field.name: getattr(one, field.name) & getattr(other, field.name)
        for field in fields(Powers)
        if field.name != "engine"
    }
    return Powers(engine=f"{one.engine} and {other.engine}", **merged)


def lacks(draft: Draft, powers: Powers) -> list[Finding]:
    """An error for each thing in the network that a class does not compute.

    Args:
        draft: the network.
        powers: the class.
    """
    return [
        finding(code, where, message.format(engine=powers.engine))
        for able, needed, code, where, message in _needs(draft, powers)
        if needed and not able
    ]


def rotated_pairs(draft: Draft) -> int:
    """How many pairs of each head rotate."""
    attention = draft.layers.attention
    width = attention.head_dim if isinstance(attention, Gqa) else attention.rope_dim
    return int(width * draft.rope.partial) // 2


def fills(sections: tuple[int, ...] | None, pairs: int) -> bool:
    """Whether multimodal sections share out all pairs that rotate; none at all do."""
    return sections is None or (len(sections) == 3 and sum(sections) == pairs)


Need = tuple[bool, bool, str, str, str]
"""Whether the class is able, whether the network needs it, and the finding: code, path and message."""


def _needs(draft: Draft, powers: Powers) -> Iterator[Need]:
    layers, vocabulary = draft.layers, draft.vocabulary
    fc, rope = draft.fc, draft.rope
    if layers.attention.kind not in powers.attentions:
        message = "{engine} has no latent attention (MLA)."
        yield False, True, "mla-draft", "layers.attention", message
        return
    yield (
        powers.residual_normed,
        draft.residual == "normed",
        "residual-normed",
        "residual",
        "{engine} always adds the raw hidden state (norm_before_residual is not read).",
    )
    if isinstance(layers.attention, Gqa):
        yield from _grouped_needs(layers.attention, powers)
    else:
        yield from _latent_needs(draft, layers.attention, powers)
    yield (
        powers.mlp_bias,
        layers.mlp.bias,
        "mlp-bias",
        "layers.mlp.bias",
        "{engine} has no MLP biases; they would be dropped.",
    )
    yield (
        powers.fc_bias,
        fc is not None and fc.bias,
        "fc-bias",
        "fc.bias",
        "{engine} has no bias on fc; it would be dropped.",
    )
    yield (
        powers.windows,
        any(window is not None for window in layers.windows),
        "sliding-window",
        "layers.windows",
        "{engine} reads no sliding window from the config and would attend to everything.",
    )
    yield (
        powers.any_activation,
        layers.mlp.activation != "silu",
        "activation",
        "layers.mlp.activation",
        f"{{engine}} computes silu only, not {layers.mlp.activation}.",
    )
    yield (
        powers.other_width,
        draft.target.hidden_size != draft.hidden_size,
        "other-width",
        "target.hidden_size",
        f"{{engine}} wants draft and target equally wide, not {draft.hidden_size} and "
        f"{draft.target.hidden_size}.",
    )
    yield (
        powers.no_fc,
        fc is None,
        "no-fc",
        "fc",
        "{engine} always has an fc over tapped states; this draft reads the last hidden state itself.",
    )
    yield (
        powers.both_fc_norms,
        fc is not None and fc.input_norm and fc.block_norms,
        "both-fc-norms",
        "fc.input_norm",
        "{engine} refuses norm_before_fc and fc_norm together.",
    )
    yield (
        powers.one_equal_tap,
        fc is not None and fc.blocks * draft.target.hidden_size == draft.hidden_size,
        "one-equal-tap",
        "fc.blocks",
        "{engine} silently skips an fc whose input is as wide as the draft.",
    )
    yield (
        powers.logit_scale,
        vocabulary.logit_scale != 1.0,
        "logit-scale",
        "vocabulary.logit_scale",
        "{engine} does not scale the draft's logits.",
    )
    yield (
        powers.partial_rotary,
        rope.partial != 1.0,
        "partial-rotary",
        "rope.partial",
        "{engine} rotates whole heads only.",
    )
    yield (
        powers.mrope,
        rope.mrope_sections is not None,
        "mrope",
        "rope.mrope_sections",
        "{engine} knows no multimodal rope; image positions would be rotated otherwise.",
    )
    yield (
        powers.scaled_mrope,
        rope.mrope_sections is not None and rope.scaling is not None,
        "scaled-mrope",
        "rope.mrope_sections",
        f"{{engine}} rotates without {rope.scaling} where there is an mrope_section.",
    )
    yield (
        False,
        not fills(rope.mrope_sections, rotated_pairs(draft)),
        "mrope-sections",
        "rope.mrope_sections",
        f"{{engine}} wants three sections that add up to the {rotated_pairs(draft)} pairs of a head that rotate, "
        f"not {list(rope.mrope_sections or ())}.",
    )
    yield (
        powers.full_map,
        vocabulary.mapped and vocabulary.draft_size == vocabulary.target_size,
        "full-vocabulary-map",
        "vocabulary.mapped",
        "{engine} takes no map for a draft of full vocabulary.",
    )
    yield (
        powers.parallel,
        draft.parallel is not None,
        "parallel-draft",
        "parallel",
        "{engine} knows no parallel drafting (P-EAGLE): it would draft token by token, and not say so.",
    )


def _grouped_needs(attention: Gqa, powers: Powers) -> Iterator[Need]:
    yield (
        powers.qk_norm,
        attention.qk_norm,
        "qk-norm",
        "layers.attention.qk_norm",
        "{engine} has no q/k norms; q_norm and k_norm would be dropped or fail.",
    )
    yield (
        "qkv" in powers.attention_biases,
        attention.qkv_bias,
        "qkv-bias",
        "layers.attention.qkv_bias",
        "{engine} has no q/k/v biases; they would be dropped.",
    )
    yield (
        "output" in powers.attention_biases,
        attention.output_bias,
        "output-bias",
        "layers.attention.output_bias",
        "{engine} has no bias on o_proj; it would be dropped.",
    )


def _latent_needs(draft: Draft, attention: Mla, powers: Powers) -> Iterator[Need]:
    fc, rope, count = draft.fc, draft.rope, draft.layers.count
    yield (
        powers.later_layers,
        count > 1,
        "several-layers",
        "layers.count",
        f"{{engine}} has one layer and does not start with {count}.",
    )
    yield (
        powers.input_norm,
        fc is not None and fc.input_norm,
        "input-norm",
        "fc.input_norm",
        "{engine} has no norm over what fc takes.",
    )
    yield (
        powers.queries_at_once,
        attention.q_rank is None,
        "no-query-latent",
        "layers.attention.q_rank",
        "{engine} does not start without a latent of the queries (q_lora_rank).",
    )
    yield (
        powers.half_rotation,
        not attention.interleaved,
        "half-rotation",
        "layers.attention.interleaved",
        "{engine} rotates neighbours (2i, 2i + 1) alone, and this draft rotates its two halves.",
    )
    yield (
        False,
        rope.scaling not in (None, "yarn"),
        "latent-rope",
        "rope.scaling",
        f"{{engine}} computes every scaled rope of latent attention as yarn, and this one is {rope.scaling}.",
    )
