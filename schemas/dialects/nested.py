"""Speculators' nested config, read by whoever reads it: one function, the readers' differences as data."""

from collections.abc import Mapping
from typing import Any, Literal

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts
from eagle3_interop.schemas.dialects.hf import (
    CONFIG,
    CONFIGS,
    DecoderConfig,
    parse,
    read_rope,
    read_windows,
    validated,
)
from eagle3_interop.schemas.dialects.keys import (
    IDS,
    LAYER,
    LAYER_READ,
    NESTED,
    SPECULATORS_READ,
    SpeculatorsKeys,
    carry,
)
from eagle3_interop.schemas.dialects.maps import resolve_map
from eagle3_interop.schemas.dialects.misplaced import misplaced
from eagle3_interop.schemas.dialects.reading import Reader, cannot, remarked, stops
from eagle3_interop.schemas.dialects.rules import NestedRules
from eagle3_interop.schemas.draft import (
    Draft,
    Fc,
    Gqa,
    Layers,
    Mlp,
    Rope,
    Target,
    Vocabulary,
)
from eagle3_interop.schemas.findings import Refused
from eagle3_interop.schemas.powers import Powers


def read_nested(source: Source, target: TargetFacts | None, rules: NestedRules) -> Reading:
    """Read a speculators folder as a framework's own loader does.

    Args:
        source: the checkpoint.
        target: the target's facts, where it was given.
        rules: the framework's.

    Raises:
        Refused: the config cannot be understood at all.
    """
    reader = Reader(source, rules, target)
    keys = validated(SpeculatorsKeys, source.config, CONFIG)
    model_type = _layer_type(reader, keys, rules)
    _refuse_latent(reader, rules)
    kind = CONFIGS[model_type] if rules.config_classes else rules.layer_config
    parsed = parse(keys.transformer_layer_config, kind, LAYER, reader.add)
    powers = rules.powers[model_type == "qwen3"]
    qk_norm = powers.qk_norm
    width = parsed.hidden_size
    target_width = keys.target_hidden_size or width
    blocks = reader.blocks(target_width, rules.sized_by(keys, qk_norm))
    ids = keys.eagle_aux_hidden_state_layer_ids if rules.reads_ids else None
    taps = reader.taps(ids, f"{CONFIG}: {IDS}", list, blocks)
    if not ids and blocks == 3:
        message = "no layer ids: every engine feeds the default triple (2, L // 2, L - 3)."
        reader.say("default-taps", f"{CONFIG}: {IDS}", message, settled_by="taps")
    for key, default in (("norm_before_fc", False), ("fc_norm", False), ("norm_output", False)):
        if key not in source.config:
            reader.say(
                "flag-default", f"{CONFIG}: {key}", f"absent: {str(default).lower()} counts."
            )
    vocabulary, maps = _vocabulary(reader, source.config, keys, parsed, rules)
    # In an incomplete rope dict transformers has put its own base before the class is asked.
    parsed = rules.rope(parsed)
    bare = not (parsed.rope_parameters or parsed.rope_scaling)
    rope_theta = rules.bare_qwen3_theta if qk_norm and bare else 10000.0
    rope = read_rope(parsed, LAYER, reader.add, rope_theta)
    if rules.library_rope:
        rope = _as_the_library_rotates(reader, rope)
    made_parallel = keys.speculators_model_type == "peagle"
    parallel = reader.parallel(keys.mask_token_id, parsed.vocab_size, fed=True)
    block_norms = _block_norms(reader, keys, rules, lost=made_parallel) and powers.block_norms
    tokens = [method.speculative_tokens for method in keys.settings.proposal_methods]
    draft = Draft(
        hidden_size=width,
        target=Target(
            name=keys.settings.verifier.name_or_path,
            hidden_size=target_width,
            architectures=tuple(keys.settings.verifier.architectures),
        ),
        taps=taps,
        fc=Fc(
            blocks=blocks,
            bias=reader.bias(("fc.bias",), used=False),
            input_norm=_handed_on(reader, keys, rules, "norm_before_fc") and powers.input_norm,
            block_norms=block_norms,
        ),
        layers=_layers(reader, parsed, model_type, rules, powers),
        residual=_residual(reader, source.config, keys, rules),
        feedback=reader.feedback(
            _handed_on(reader, keys, rules, "norm_output") and powers.post_norm, parallel
        ),
        rope=rope,
        max_position=reader.positions(parsed.max_position_embeddings, LAYER),
        vocabulary=vocabulary,
        parallel=parallel,
        quantisation=reader.quantisation,
        dtype=reader.dtype(),
        speculative_tokens=next(iter(tokens), None),
        trains_embeddings=keys.trains_embeddings,
    )
    extras = carry(source.config, rules.title, SPECULATORS_READ, reader.add)
    if rules.refuses_bare is not None:
        masks = rules.bare_masks if made_parallel else ()
        refused = {**rules.refuses_bare, **dict.fromkeys(masks, (None,))}
        _refuse_bare_keys(reader, keys, refused)
    reader.findings += cannot(draft, powers)
    reader.sections(draft)
    beside = {**extras, **reader.beside}
    read = {NESTED: frozenset[str](), LAYER: LAYER_READ | (rules.refuses_bare or {}).keys()}
    if "num_hidden_layers" not in source.config:  # else flat keys are there for other readers
        read[""] = SPECULATORS_READ
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


def _layer_type(reader: Reader, keys: SpeculatorsKeys, rules: NestedRules) -> str:
    model_type = keys.transformer_layer_config.get("model_type")
    if model_type is None:
        message = f"absent: {rules.title} takes {rules.default_type}."
        reader.say("layer-type-default", f"{LAYER}: model_type", message)
        return rules.default_type
    if model_type not in ("llama", "qwen3"):
        message = f"{rules.title} builds llama and qwen3 layers, not {model_type!r}."
        reader.say("layer-type", f"{LAYER}: model_type", message)
        raise Refused(reader.findings)
    return str(model_type)


def _refuse_latent(reader: Reader, rules: NestedRules) -> None:
    """Refuse layers with latent attention, which this form has no keys for."""
    found = [
        name for name in reader.names if ".kv_a_proj_with_mqa." in name or ".kv_b_proj." in name
    ]
    if found:
        message = (
            f"{rules.title} builds llama and qwen3 layers, which have no latent attention (MLA)."
        )
        reader.say("mla-draft", reader.names[sorted(found)[0]], message)
        raise Refused(reader.findings)


def _residual(
    reader: Reader, config: Mapping[str, Any], keys: SpeculatorsKeys, rules: NestedRules
) -> Literal["raw", "normed"]:
    if "norm_before_residual" in config:
        return "normed" if keys.norm_before_residual else "raw"
    if keys.speculators_model_type == "peagle":
        message = "absent: both speculators and vLLM add the raw hidden state of a P-EAGLE draft."
        reader.say("flag-default", f"{CONFIG}: norm_before_residual", message)
        return "raw"
    chosen: Literal["raw", "normed"] = "normed" if rules.absent_residual else "raw"
    message = f"absent: {rules.title} adds the {chosen} hidden state. speculators and vLLM disagree on it."
    reader.say(
        "residual-default", f"{CONFIG}: norm_before_residual", message, settled_by="residual"
    )
    return chosen


def _block_norms(reader: Reader, keys: SpeculatorsKeys, rules: NestedRules, *, lost: bool) -> bool:
    """``fc_norm``, also where the framework loses the key on its way to its class, and fails on the tensors."""
    if lost and "fc_norm" in rules.loses_parallel:
        handed_on = bool(keys.transformer_layer_config.get("fc_norm"))
        if keys.fc_norm and not handed_on:
            message = f"{reader.engine} does not hand it on for a P-EAGLE draft, and raises an error on its tensors."
            reader.say("fails-to-load", f"{CONFIG}: fc_norm", message)
    return _handed_on(reader, keys, rules, "fc_norm")


def _handed_on(reader: Reader, keys: SpeculatorsKeys, rules: NestedRules, key: str) -> bool:
    """A flag as it reaches the class: where the framework's reader loses it, that among the layers' keys counts."""
    said = bool(getattr(keys, key))
    if key not in rules.loses:
        return said
    return reader.flag(key, said, able=bool(keys.transformer_layer_config.get(key)))


def _layers(
    reader: Reader, parsed: DecoderConfig, model_type: str, rules: NestedRules, powers: Powers
) -> Layers:
    count = reader.layers(parsed.num_hidden_layers, several=powers.later_layers)
    qk_norm = powers.qk_norm
    # Where the keys are taken bare, no config class clears an unused sliding_window.
    windows = reader.windows(
        read_windows(parsed, count, model_type if rules.config_classes else ""), LAYER, powers
    )
    attends = parsed.attention_bias
    output = attends and (rules.qwen3_output_bias or not qk_norm)
    qkv = ("q_proj.bias", "k_proj.bias", "v_proj.bias")
    mlp = ("gate_proj.bias", "up_proj.bias", "down_proj.bias")
    return Layers(
        count=count,
        attention=Gqa(
            heads=parsed.num_attention_heads,
            kv_heads=parsed.kv_heads,
            head_dim=parsed.head_size,
            qk_norm=qk_norm,
            qkv_bias=reader.bias(qkv, attends and "qkv" in powers.attention_biases),
            output_bias=reader.bias(("o_proj.bias",), output),
        ),
        mlp=Mlp(
            width=parsed.intermediate_size,
            activation=reader.activation(parsed.hidden_act, LAYER),
            bias=reader.bias(mlp, parsed.mlp_bias and not qk_norm),
        ),
        norm_eps=parsed.rms_norm_eps,
        windows=windows,
    )


def _vocabulary(
    reader: Reader,
    config: Mapping[str, Any],
    keys: SpeculatorsKeys,
    parsed: DecoderConfig,
    rules: NestedRules,
) -> tuple[Vocabulary, dict[str, Any]]:
    size = keys.draft_vocab_size
    if "draft_vocab_size" not in config:
        size = parsed.vocab_size if rules.absent_vocabulary else size
        message = f"absent: {rules.title}'s own default {size} counts."
        reader.say("class-default", f"{CONFIG}: draft_vocab_size", message)
    mapped, maps = resolve_map(reader, size, parsed.vocab_size, trainer_sorts=rules.sorts_maps)
    head: Literal["own", "target"] = "own"
    if "lm_head.weight" not in reader.names and size == parsed.vocab_size:
        message = "absent: vLLM uses the target's head, speculators leaves its own uninitialised."
        reader.say("target-head-absent", "lm_head.weight", message)
        head = "target"
    own = "embed_tokens.weight" in reader.names
    if not own:
        message = "absent: vLLM uses the target's table, speculators leaves its own uninitialised."
        reader.say("target-embeddings", "embed_tokens.weight", message)
    vocabulary = Vocabulary(
        target_size=parsed.vocab_size,
        draft_size=size,
        mapped=mapped,
        head=head,
        embeddings="own" if own else "target",
    )
    return vocabulary, maps


def _as_the_library_rotates(reader: Reader, rope: Rope) -> Rope:
    """Rope without what transformers' llama and qwen3 layers never read.

    A plain rotation is of whole heads; a scaled one sizes its frequencies by ``partial_rotary_factor``.
    """
    scaled = rope.scaling is not None
    if rope.partial != 1.0 and not scaled:
        message = "speculators' llama and qwen3 layers rotate whole heads and never read this key."
        reader.say("partial-rotary-unread", f"{LAYER}: partial_rotary_factor", message)
    if rope.mrope_sections is not None:
        message = (
            "speculators' layers rotate by one position and never read this key; vLLM reads it."
        )
        reader.say("mrope-unread", f"{LAYER}: mrope_section", message)
        numbers = rope.parameters if rope.scaling else {}
        rope = rope.model_copy(update={"mrope_sections": None, "parameters": numbers})
    return rope if scaled else rope.model_copy(update={"partial": 1.0})


def _refuse_bare_keys(
    reader: Reader, keys: SpeculatorsKeys, refused: Mapping[str, tuple[object, ...]]
) -> None:
    """Keys that the framework finds in the decoder's own, and that change what it computes."""
    layer = keys.transformer_layer_config
    uncovered = [key for key in (IDS, "target_hidden_size") if not getattr(keys, key)]
    for key, neutral in {**refused, **dict.fromkeys(uncovered, (None,))}.items():
        if layer.get(key) not in neutral:
            message = f"{layer[key]!r}: {reader.engine} hands the decoder's keys on as they are, and reads this one."
            reader.say("unsupported-key", f"{LAYER}: {key}", message)
