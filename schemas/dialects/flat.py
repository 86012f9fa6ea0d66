"""The flat config.json that SGLang and vLLM share: one page for both, their differences as data."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts, TensorHeader
from eagle3_interop.schemas.dialects.hf import (
    CONFIG,
    CONFIGS,
    LATENT_CONFIGS,
    DecoderConfig,
    LatentConfig,
    parse,
    read_rope,
    read_windows,
    validated,
)
from eagle3_interop.schemas.dialects.keys import (
    FLAT_READ,
    NESTED,
    NESTED_READ,
    FlatKeys,
    carry,
    mask_token,
)
from eagle3_interop.schemas.dialects.latent import LATENT_KEYS, read_latent
from eagle3_interop.schemas.dialects.maps import resolve_map
from eagle3_interop.schemas.dialects.misplaced import misplaced
from eagle3_interop.schemas.dialects.reading import Reader, cannot, remarked, stops
from eagle3_interop.schemas.dialects.rules import FlatRules
from eagle3_interop.schemas.draft import (
    Attention,
    Draft,
    Fc,
    Gqa,
    Layers,
    Mlp,
    Rope,
    Target,
    Vocabulary,
)
from eagle3_interop.schemas.powers import Powers

_EXPERTS = frozenset(
    """
    aux_loss_alpha ep_size first_k_dense_replace moe_intermediate_size moe_layer_freq n_group n_routed_experts n_shared_experts
    norm_topk_prob num_experts_per_tok num_nextn_predict_layers qk_head_dim routed_scaling_factor scoring_func
    seq_aux topk_group topk_method
    """.split()  # noqa: SIM905
)
"""Keys of a target's config that drafts with latent attention copy; their MLP is dense whatever these say."""

_FILLED = (
    "attention_bias",
    "head_dim",
    "hidden_act",
    "num_key_value_heads",
    "rms_norm_eps",
    "tie_word_embeddings",
)
"""Absent keys that transformers' classes fill in differently."""

_FILLED_LATENT = (
    *(key for key in _FILLED if key not in ("attention_bias", "head_dim", "num_key_value_heads")),
    "q_lora_rank",
    "rope_interleave",
)
"""The same, of latent attention."""


def read_flat(source: Source, target: TargetFacts | None, rules: FlatRules) -> Reading:
    """Read a flat checkpoint as its framework's own loader does.

    Args:
        source: the checkpoint.
        target: the target's facts, where it was given.
        rules: the framework's.

    Raises:
        Refused: the config cannot be understood at all.
    """
    reader = Reader(source, rules, target)
    keys = validated(FlatKeys, source.config, CONFIG)
    powers = rules.powers(keys)
    latent = "mla" in powers.attentions
    if latent and rules.latent.spelling is not None:
        reader = Reader(source, replace(rules, spelling=rules.latent.spelling), target)
    kinds: Mapping[str, type[DecoderConfig]] = LATENT_CONFIGS if latent else CONFIGS
    kind = kinds.get(keys.model_type or "", LatentConfig if latent else DecoderConfig)
    parsed = parse(source.config, kind, CONFIG, reader.add)
    _know_the_class(reader, source.config, keys.model_type, powers, kinds)
    extras = carry(
        source.config,
        rules.title,
        FLAT_READ | (LATENT_KEYS if latent else frozenset()),
        reader.add,
        idle=_EXPERTS if latent else frozenset(),
    )
    width = parsed.hidden_size
    target_width = _target_width(reader, source.config, keys, width)
    fc = _fc(reader, keys, powers, rules, width, target_width)
    taps = None
    if fc is not None:
        ids, where, translate = rules.ids(keys, target)
        taps = reader.taps(ids, where, translate, fc.blocks)
        if not ids and fc.blocks == 3:  # an empty list SGLang takes for one, and its reader says so
            taps = rules.default_taps(target)
            message = f"{reader.engine} finds no layer ids here and feeds the default triple (2, L // 2, L - 3)."
            if ids is None or rules.empty_ids_are_none:
                reader.say("default-taps", where, message, settled_by="taps")
    count = reader.layers(parsed.num_hidden_layers, several=powers.later_layers)
    windows = reader.windows(read_windows(parsed, count, keys.model_type or ""), CONFIG, powers)
    vocabulary, maps = _vocabulary(
        reader, source.config, parsed, keys, powers, rules, width == target_width
    )
    parallel = reader.parallel(
        mask_token(source.config, rules.masks), parsed.vocab_size, fc is not None
    )
    latently = _latent(reader, parsed, rules)
    draft = Draft(
        hidden_size=width,
        target=Target(hidden_size=target_width),
        taps=taps,
        fc=fc,
        layers=_layers(reader, parsed, keys, powers, rules, windows, latently),
        residual=_residual(reader, source.config, keys, powers),
        feedback=reader.feedback(
            reader.flag("norm_output", keys.norm_output, able=powers.post_norm), parallel
        ),
        rope=latently[1] if latently else _rope(reader, parsed, rules),
        max_position=reader.positions(parsed.max_position_embeddings, CONFIG),
        vocabulary=vocabulary,
        parallel=parallel,
        quantisation=reader.quantisation,
        dtype=reader.dtype(),
    )
    reader.findings += cannot(draft, powers)
    reader.sections(draft)
    beside = {**extras, **reader.beside}
    read = {"": FLAT_READ, NESTED: NESTED_READ}
    reader.findings += misplaced(source.config, rules.title, read, draft)
    reading = Reading(
        draft,
        reader.names,
        tuple(reader.unused),
        maps,
        tuple(reader.findings),
        beside,
        stops(draft, powers),
    )
    return remarked(reading, source, target, rules)


def _know_the_class(
    reader: Reader,
    config: Mapping[str, Any],
    model_type: str | None,
    powers: Powers,
    known: Collection[str],
) -> None:
    """An error for a model_type whose class would fill in what is absent, by numbers of its own."""
    if model_type is None or model_type in known:
        return
    filled = _FILLED_LATENT if "mla" in powers.attentions else _FILLED
    read = [key for key in filled if key != "tie_word_embeddings" or powers.tied_head]
    absent = [key for key in read if key not in config]
    if not any(config.get(key) for key in ("rope_theta", "rope_scaling", "rope_parameters")):
        absent.append("rope_parameters")
    if config.get("sliding_window") is not None and config.get("layer_types") is None:
        absent.append("layer_types")
    if absent:
        message = f"{', '.join(absent)}: transformers' {model_type} class fills them in."
        reader.say("class-defaults-unknown", f"{CONFIG}: model_type", message)


def _target_width(reader: Reader, config: Mapping[str, Any], keys: FlatKeys, width: int) -> int:
    if keys.target_hidden_size is None and "target_hidden_size" in config:
        message = f"null: {reader.engine} takes it for a width and fails. {width} was taken."
        reader.say("null-target-width", f"{CONFIG}: target_hidden_size", message)
    return keys.target_hidden_size or width


def _fc(
    reader: Reader,
    keys: FlatKeys,
    powers: Powers,
    rules: FlatRules,
    width: int,
    target_width: int,
) -> Fc | None:
    if not keys.nested.use_aux_hidden_state and powers.no_fc:
        for name in [
            name for name in reader.names if name.startswith(("fc.", "fc_norm.", "input_norm."))
        ]:
            reader.say("unused-fc", reader.names[name], "left out: use_aux_hidden_state is false.")
            reader.leave_out(name)
        if target_width != width:
            message = f"without fc the target's {target_width} features are no input for a draft of width {width}."
            reader.say("fc-width", f"{CONFIG}: eagle_config.use_aux_hidden_state", message)
        return None
    blocks = reader.blocks(target_width, rules.blocks(keys, powers))
    input_norm = keys.input_norm if rules.nested_norm else keys.norm_before_fc
    block_norms = bool(keys.fc_norm or (rules.aux_norm_key and keys.use_aux_norm))
    return Fc(
        blocks=blocks,
        bias=reader.bias(("fc.bias",), powers.fc_bias and keys.bias),
        input_norm=reader.flag("norm_before_fc", input_norm, able=powers.input_norm),
        block_norms=reader.flag("fc_norm", block_norms, able=powers.block_norms),
    )


def _rope(reader: Reader, parsed: DecoderConfig, rules: FlatRules) -> Rope:
    parsed = rules.rope(parsed)
    rope = read_rope(parsed, CONFIG, reader.add, partial_at_top=rules.partial_at_top)
    stored = (parsed.rope_scaling or parsed.rope_parameters or {}).get("partial_rotary_factor")
    sections = rope.mrope_sections
    if rules.partial_at_top and stored not in (None, rope.partial):
        message = (
            f"{stored}, where {reader.engine} does not look: it takes the factor from the top level alone, "
            f"and rotates {rope.partial:g} of each head."
        )
        fix = f"If it was trained with {stored}: --set rope.partial={stored}"
        if sections:
            fix += f" --set rope.mrope_sections=[{','.join(map(str, sections))}]"
        where = f"{CONFIG}: rope_parameters.partial_rotary_factor"
        reader.say("partial-rotary-unread", where, message, fix=fix, settled_by="rope.partial")
    if sections is None or not rules.rescales_sections:
        return rope
    filled = _filling(sections, int(parsed.head_size * rope.partial) // 2)
    if filled != sections:
        message = (
            f"{list(sections)} do not fill the rotated part of a head, and {reader.engine} makes "
            f"{list(filled)} of them."
        )
        where = f"{CONFIG}: rope_parameters.mrope_section"
        reader.say("sections-rescaled", where, message, settled_by="rope.mrope_sections")
    return rope.model_copy(update={"mrope_sections": filled})


def _filling(sections: tuple[int, ...], half: int) -> tuple[int, ...]:
    """Sections in the same proportions that add up to half of what is rotated, as SGLang rounds them."""
    total = sum(sections)
    if total == half:
        return sections
    if total <= 0:
        each, more = divmod(half, len(sections))
        return tuple(each + (number < more) for number in range(len(sections)))
    rounded = [max(1, int(section * (half / total))) for section in sections]
    rounded[-1] += half - sum(rounded)
    return tuple(rounded)


def _latent(
    reader: Reader, parsed: DecoderConfig, rules: FlatRules
) -> tuple[Attention, Rope] | None:
    """Latent attention and its rope; None for heads in groups."""
    handed = rules.rope(parsed)
    if not isinstance(handed, LatentConfig):
        return None
    reader.bias(("_proj.bias", "_proj_with_mqa.bias"), used=False)
    return read_latent(reader, handed, rules.latent)


def _grouped(reader: Reader, parsed: DecoderConfig, keys: FlatKeys, powers: Powers) -> Gqa:
    attends = parsed.attention_bias
    output = attends or keys.bias
    qkv = ("q_proj.bias", "k_proj.bias", "v_proj.bias")
    return Gqa(
        heads=parsed.num_attention_heads,
        kv_heads=parsed.kv_heads,
        head_dim=parsed.head_size,
        qk_norm=powers.qk_norm,
        qkv_bias=reader.bias(qkv, attends and "qkv" in powers.attention_biases),
        output_bias=reader.bias(("o_proj.bias",), output and "output" in powers.attention_biases),
    )


def _layers(
    reader: Reader,
    parsed: DecoderConfig,
    keys: FlatKeys,
    powers: Powers,
    rules: FlatRules,
    windows: tuple[int | None, ...],
    latently: tuple[Attention, Rope] | None,
) -> Layers:
    mlp = ("gate_proj.bias", "up_proj.bias", "down_proj.bias")
    return Layers(
        count=len(windows),
        attention=latently[0] if latently else _grouped(reader, parsed, keys, powers),
        mlp=Mlp(
            width=_mlp_width(rules, parsed, keys),
            activation=reader.activation(parsed.hidden_act, CONFIG),
            bias=reader.bias(mlp, parsed.mlp_bias and powers.mlp_bias),
        ),
        norm_eps=parsed.rms_norm_eps,
        windows=windows,
    )


def _mlp_width(rules: FlatRules, parsed: DecoderConfig, keys: FlatKeys) -> int:
    other = rules.mlp_width_keys.get(keys.model_type or "")
    if other is None:
        return parsed.intermediate_size
    width = (parsed.model_extra or {}).get(*other)
    return width if isinstance(width, int) else parsed.intermediate_size


def _residual(
    reader: Reader, config: Mapping[str, Any], keys: FlatKeys, powers: Powers
) -> Literal["raw", "normed"]:
    where = f"{CONFIG}: norm_before_residual"
    if "norm_before_residual" not in config:
        message = f"absent: {reader.engine} adds the raw hidden state."
        reader.say("residual-default", where, message, settled_by="residual")
        return "raw"
    if keys.norm_before_residual and not powers.residual_normed:
        message = (
            f"true, but {powers.engine} never reads it and adds the raw hidden state. Which was the draft "
            "trained with?"
        )
        reader.say("residual-unread", where, message, settled_by="residual")
        return "raw"
    return "normed" if keys.norm_before_residual else "raw"


def _reduced_head(reader: Reader, stored: TensorHeader | None, powers: Powers, size: int) -> bool:
    """A head of fewer rows than the vocabulary, of which the config of a latent draft says nothing."""
    if "mla" not in powers.attentions or stored is None or not stored.shape:
        return False
    if stored.shape[0] >= size:
        return False
    message = (
        f"absent, and the head has {stored.shape[0]} rows, which were taken: {reader.engine} takes all "
        f"{size} tokens, and not this head."
    )
    reader.say("head-unread", f"{CONFIG}: draft_vocab_size", message)
    return True


def _absent_is_null(powers: Powers, rules: FlatRules) -> bool:
    return "mla" in powers.attentions and rules.latent.absent_size_is_null


def _vocabulary(
    reader: Reader,
    config: Mapping[str, Any],
    parsed: DecoderConfig,
    keys: FlatKeys,
    powers: Powers,
    rules: FlatRules,
    same_width: bool,
) -> tuple[Vocabulary, dict[str, Any]]:
    size = parsed.vocab_size
    stored = reader.header("lm_head.weight")
    head: Literal["own", "tied", "target"] = "own"
    draft_size = keys.draft_vocab_size
    if draft_size is None and _reduced_head(reader, stored, powers, size):
        draft_size = stored.shape[0] if stored is not None else size
    elif rules.null_head:
        null = "draft_vocab_size" in config or _absent_is_null(powers, rules)
        if draft_size is None and not null:
            draft_size = stored.shape[0] if stored is not None else size
            message = f"absent: {rules.title} fails. {draft_size} was taken from the head's rows."
            reader.say("no-draft-vocabulary-size", f"{CONFIG}: draft_vocab_size", message)
        elif draft_size is None:
            head = "target"
    if rules.ties_head:
        if parsed.tie_word_embeddings:
            head = "tied"
            if draft_size not in (None, size):
                message = f"the tied head has {size} rows, and {rules.title} would take the first {draft_size} of them."
                where = f"{CONFIG}: tie_word_embeddings"
                reader.say("tied-head", where, message, settled_by="vocabulary.head")
        if head != "own" and stored is not None:
            message = f"{reader.engine} drops this tensor: with this config.json it takes the head from elsewhere."
            where = reader.place("lm_head.weight") or ""
            reader.say("unused-head", where, message, settled_by="vocabulary.head")
    draft_size = draft_size or size
    if not rules.ties_head and parsed.tie_word_embeddings:
        message = f"true, which {rules.title}'s draft classes do not read."
        reader.say("tie-unread", f"{CONFIG}: tie_word_embeddings", message)
    if rules.shares_absent_head and stored is None and draft_size == size:
        message = f"absent: {rules.title} shares the target's head."
        reader.say("target-head", "lm_head.weight", message)
        head = "target"
    if not powers.own_whole_head and head == "own" and draft_size == size:
        head = "target"
        if stored is not None:
            message = (
                f"{rules.title} puts the target's head in the place of this one, which is as large."
            )
            reader.say("head-replaced", reader.names["lm_head.weight"], message)
            reader.leave_out("lm_head.weight")
    mapped, maps = resolve_map(reader, draft_size, size, trainer_sorts=rules.sorts_maps)
    embeddings: Literal["own", "target"] = "own"
    table = reader.names.get("embed_tokens.weight")
    if not powers.own_embeddings and same_width:
        embeddings = "target"
        if table is not None:
            message = f"{rules.title} uses the target's embedding table instead of this one."
            reader.say("embeddings-replaced", table, message)
    elif table is None and same_width:
        embeddings = "target"
    logit_scale = keys.logit_scale
    if logit_scale != 1.0 and not powers.logit_scale:
        reader.say(
            "logit-scale-unread", f"{CONFIG}: logit_scale", f"{reader.engine} does not read it."
        )
        logit_scale = 1.0
    vocabulary = Vocabulary(
        target_size=size,
        draft_size=draft_size,
        mapped=mapped,
        head=head,
        embeddings=embeddings,
        logit_scale=logit_scale,
    )
    return vocabulary, maps
