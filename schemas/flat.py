"""The flat config.json that SGLang and vLLM share: one page for both, their differences as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from eagle3_interop.schemas.draft import Attention, Draft, Fc, Layers, Mlp, Target, Vocabulary
from eagle3_interop.schemas.findings import Finding, Refused, finding
from eagle3_interop.schemas.hf import (
    CONFIGS,
    DecoderConfig,
    parse,
    read_rope,
    read_windows,
    write_rope,
)
from eagle3_interop.schemas.layout import Reading, Source, TargetFacts
from eagle3_interop.schemas.powers import Powers
from eagle3_interop.schemas.reading import Reader, resolve_map
from eagle3_interop.schemas.tensors import Spelling

CONFIG = "config.json"
IDS = "eagle_aux_hidden_state_layer_ids"

BOILERPLATE = frozenset(
    ["_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id", "dtype", "embedding_multiplier", "eos_token_id", "id2label", "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "model_type", "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp", "problem_type", "return_dict", "torch_dtype", "transformers_version", "truncated_vocab_size", "unk_token_id", "use_cache"]
)
"""Keys that decide nothing of what a draft computes."""

_CARRIED = ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "use_cache")

_DECIDING_ELSEWHERE: dict[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_input_layernorm_in_first_layer": (None, True),
    "use_mtp_layernorm": (None, False),
    "rope_is_neox_style": (None, True),
    "next_layer_regular": (None, True),
    "eh_proj_before_attn": (None, False),
    "return_hidden_post_norm": (None, False),
    "parallel_draft_step": (None, 1),
    "use_last_layernorm": (None, True),
}
"""Keys that change what a draft computes, which this description does not carry, and harmless values."""


class EagleConfig(BaseModel):
    """The nested ``eagle_config``."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    layer_ids: list[int] | None = None
    use_aux_hidden_state: bool = True
    norm_before_fc: bool | None = None


class FlatKeys(BaseModel):
    """EAGLE-3 keys of a flat config, with the defaults that SGLang 0.5.23 and vLLM 0.32 share."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    architectures: list[str] = []
    model_type: str | None = None
    draft_vocab_size: PositiveInt | None = None
    target_hidden_size: PositiveInt | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool | None = False
    use_aux_norm: bool | None = False
    norm_output: bool = False
    bias: bool = False
    logit_scale: float = 1.0
    num_aux_hidden_states: PositiveInt | None = None
    num_aux_layers: PositiveInt | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    eagle_config: EagleConfig | None = None

    @property
    def nested(self) -> EagleConfig:
        """eagle_config, empty when absent or null."""
        return self.eagle_config or EagleConfig()


@dataclass(frozen=True)
class FlatDialect:
    """How one framework reads a flat config.

    Attributes:
        engine: its name, for messages.
        spelling: how it spells tensors.
        powers: the draft class that a config selects.
        ids: from keys, to the ids it feeds by, the key they stand under, and their translation to taps.
        blocks: how many fc blocks its class would size from the keys.
        default_taps: the taps for no ids at all, where they are not the common triple.
        replaces_embeddings: puts the target's table in the place of the draft's when both are equally wide.
        guesses_head: how an absent head or draft_vocab_size is resolved (SGLang's way or vLLM's).
    """

    engine: Literal["SGLang", "vLLM"]
    spelling: Spelling
    powers: Callable[[FlatKeys], Powers]
    ids: Callable[
        [FlatKeys, TargetFacts | None],
        tuple[list[int] | None, str, Callable[[list[int]], list[int]]],
    ]
    blocks: Callable[[FlatKeys, Powers], int]
    default_taps: Callable[[TargetFacts | None], tuple[int, ...] | None]
    replaces_embeddings: bool


def read_keys(config: Mapping[str, Any]) -> FlatKeys:
    """The EAGLE-3 keys of a flat config.

    Raises:
        Refused: a key has an impossible value.
    """
    try:
        return FlatKeys.model_validate(dict(config))
    except ValidationError as error:
        raise Refused(
            finding(
                "bad-config",
                f"{CONFIG}: {'.'.join(str(part) for part in item['loc'])}",
                f"{item['msg']} (found {item.get('input')!r}).",
            )
            for item in error.errors(include_url=False)
        ) from None


def read_flat(source: Source, target: TargetFacts | None, dialect: FlatDialect) -> Reading:
    """Read a flat checkpoint as its framework's own loader does.

    Args:
        source: the checkpoint.
        target: the target's facts, where it was given.
        dialect: the framework's rules.

    Raises:
        Refused: the config cannot be understood at all.
    """
    reader = Reader(source, dialect.spelling, dialect.engine)
    keys = read_keys(source.config)
    powers = dialect.powers(keys)
    kind = CONFIGS.get(keys.model_type or "", DecoderConfig)
    parsed = parse(source.config, kind, CONFIG, reader.add)
    extras = read_extras(reader, source.config, CONFIG)
    width = parsed.hidden_size
    target_width = _target_width(reader, source.config, keys, width)
    fc = _fc(reader, keys, powers, dialect, target_width)
    taps = None
    if fc is not None:
        ids, where, translate = dialect.ids(keys, target)
        taps = reader.taps(ids, where, translate, fc.blocks)
        if not ids and fc.blocks == 3:
            taps = dialect.default_taps(target)
            message = (
                "no ids that this framework reads: the default triple (2, L // 2, L - 3) is fed."
            )
            reader.say("default-taps", where, message)
    windows = _windows(reader, parsed, keys, powers)
    vocabulary, maps = _vocabulary(
        reader, source.config, parsed, keys, powers, dialect, width == target_width
    )
    draft = Draft(
        hidden_size=width,
        target=Target(hidden_size=target_width),
        taps=taps,
        fc=fc,
        layers=_layers(reader, parsed, keys, powers, windows),
        residual=_residual(reader, source.config, keys, powers),
        feedback="post-norm" if keys.norm_output else "pre-norm",
        rope=read_rope(parsed, CONFIG, reader.add),
        max_position=parsed.max_position_embeddings,
        vocabulary=vocabulary,
        dtype=reader.dtype(),
    )
    return Reading(draft, reader.names, tuple(reader.unused), maps, tuple(reader.findings), extras)


def read_extras(reader: Reader, config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Keys that no schema here knows: carried over and reported, or refused where they decide something.

    Args:
        reader: the reading in progress.
        config: the raw config.
        where: its name in messages.

    Returns:
        The keys to write into the output as they are.
    """
    nested = config.get("eagle_config")
    known = set(FlatKeys.model_fields) | set(DecoderConfig.model_fields) | BOILERPLATE
    unknown = {key: value for key, value in config.items() if key not in known}
    inner = {}
    if isinstance(nested, Mapping):
        inner = {key: value for key, value in nested.items() if key not in EagleConfig.model_fields}
    for key, value in {**inner, **unknown}.items():
        if key in _DECIDING_ELSEWHERE and value not in _DECIDING_ELSEWHERE[key]:
            message = f"{value!r} changes what the draft computes, in a way that cannot be carried."
            reader.say("unsupported-key", f"{where}: {key}", message)
    if unknown or inner:
        listed = ", ".join(sorted({*unknown, *inner}))
        reader.say(
            "unknown-keys", where, f"keys that decide nothing known here, carried over: {listed}."
        )
    carried = {key: config[key] for key in _CARRIED if key in config}
    return {**carried, **unknown}


def _target_width(reader: Reader, config: Mapping[str, Any], keys: FlatKeys, width: int) -> int:
    if keys.target_hidden_size is None and "target_hidden_size" in config:
        message = f"null, which {reader.engine} takes for a width and fails on; {width} was meant."
        reader.say("null-target-width", f"{CONFIG}: target_hidden_size", message)
    return keys.target_hidden_size or width


def _fc(
    reader: Reader, keys: FlatKeys, powers: Powers, dialect: FlatDialect, target_width: int
) -> Fc | None:
    if not keys.nested.use_aux_hidden_state:
        for name in [
            name for name in reader.names if name.startswith(("fc.", "fc_norm.", "input_norm."))
        ]:
            reader.say("unused-fc", reader.names[name], "not used: use_aux_hidden_state is false.")
            reader.leave_out(name)
        return None
    nested = keys.nested.norm_before_fc
    blocks = reader.blocks(target_width, dialect.blocks(keys, powers))
    return Fc(
        blocks=blocks,
        bias=reader.bias(("fc.bias",), powers.fc_bias and keys.bias),
        input_norm=keys.norm_before_fc if nested is None else nested,
        block_norms=bool(keys.fc_norm or (dialect.engine == "SGLang" and keys.use_aux_norm)),
    )


def _windows(
    reader: Reader, parsed: DecoderConfig, keys: FlatKeys, powers: Powers
) -> tuple[int | None, ...]:
    windows = read_windows(
        parsed, keys.model_type or "", "transformers" if powers.qk_norm else "layer_types"
    )
    if any(windows) and not powers.windows:
        message = (
            f"{reader.engine} does not read it: this draft attends to everything there. If it was trained with "
            "the window, say so."
        )
        reader.say(
            "window-unread", f"{CONFIG}: sliding_window", message, settled_by="layers.windows"
        )
        return (None,) * parsed.num_hidden_layers
    return windows


def _layers(
    reader: Reader,
    parsed: DecoderConfig,
    keys: FlatKeys,
    powers: Powers,
    windows: tuple[int | None, ...],
) -> Layers:
    count = reader.layers(parsed.num_hidden_layers)
    attends = parsed.attention_bias
    output = attends or keys.bias
    qkv = ("q_proj.bias", "k_proj.bias", "v_proj.bias")
    mlp = ("gate_proj.bias", "up_proj.bias", "down_proj.bias")
    return Layers(
        count=count,
        attention=Attention(
            heads=parsed.num_attention_heads,
            kv_heads=parsed.kv_heads,
            head_dim=parsed.head_size,
            qk_norm=powers.qk_norm,
            qkv_bias=reader.bias(qkv, attends and "qkv" in powers.attention_biases),
            output_bias=reader.bias(
                ("o_proj.bias",), output and "output" in powers.attention_biases
            ),
        ),
        mlp=Mlp(
            width=parsed.intermediate_size,
            activation="silu" if parsed.hidden_act == "swish" else parsed.hidden_act,
            bias=reader.bias(mlp, parsed.mlp_bias and powers.mlp_bias),
        ),
        norm_eps=parsed.rms_norm_eps,
        windows=(windows + (None,) * count)[:count],
    )


def _residual(
    reader: Reader, config: Mapping[str, Any], keys: FlatKeys, powers: Powers
) -> Literal["raw", "normed"]:
    where = f"{CONFIG}: norm_before_residual"
    if "norm_before_residual" not in config:
        reader.say("residual-default", where, f"absent: {reader.engine} adds the raw hidden state.")
        return "raw"
    if keys.norm_before_residual and not powers.residual_normed:
        message = (
            f"true, but {powers.engine} never reads it and adds the raw hidden state. Which was the draft "
            "trained with?"
        )
        reader.say("residual-unread", where, message, settled_by="residual")
        return "raw"
    return "normed" if keys.norm_before_residual else "raw"


def _vocabulary(
    reader: Reader,
    config: Mapping[str, Any],
    parsed: DecoderConfig,
    keys: FlatKeys,
    powers: Powers,
    dialect: FlatDialect,
    same_width: bool,
) -> tuple[Vocabulary, dict[str, Any]]:
    size = parsed.vocab_size
    stored = reader.header("lm_head.weight")
    head: Literal["own", "tied", "target"] = "own"
    draft_size = keys.draft_vocab_size
    if dialect.engine == "SGLang":
        if draft_size is None and "draft_vocab_size" not in config:
            draft_size = stored.shape[0] if stored is not None else size
            message = f"absent, on which SGLang fails; {draft_size} is taken from the head's rows."
            reader.say("no-draft-vocabulary-size", f"{CONFIG}: draft_vocab_size", message)
        elif draft_size is None:
            head = "target"
        if parsed.tie_word_embeddings:
            head = "tied"
        if head != "own" and stored is not None:
            message = f"{reader.engine} takes the head from elsewhere by this config and drops this tensor."
            reader.say(
                "unused-head", reader.names["lm_head.weight"], message, settled_by="vocabulary.head"
            )
    draft_size = draft_size or size
    if dialect.engine == "vLLM" and stored is None and draft_size == size:
        reader.say("target-head", "lm_head.weight", "absent: vLLM shares the target's head.")
        head = "target"
    mapped, maps = resolve_map(reader, draft_size, size, trainer_sorts=False)
    embeddings: Literal["own", "target"] = "own"
    table = reader.names.get("embed_tokens.weight")
    if dialect.replaces_embeddings and powers.own_embeddings is False and same_width:
        embeddings = "target"
        if table is not None:
            message = "SGLang puts the target's table in the place of this one."
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


def layer_keys(draft: Draft) -> dict[str, Any]:
    """The keys that describe the decoder layers, shared by every config that we write."""
    layers, attention = draft.layers, draft.layers.attention
    written: dict[str, Any] = {
        "model_type": "qwen3" if attention.qk_norm else "llama",
        "vocab_size": draft.vocabulary.target_size,
        "hidden_size": draft.hidden_size,
        "intermediate_size": layers.mlp.width,
        "num_hidden_layers": layers.count,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": layers.mlp.activation,
        "rms_norm_eps": layers.norm_eps,
        "attention_bias": attention.qkv_bias or attention.output_bias,
        "mlp_bias": layers.mlp.bias,
        "tie_word_embeddings": False,
        **write_rope(draft.rope),
    }
    if draft.max_position is not None:
        written["max_position_embeddings"] = draft.max_position
    widths = sorted({window for window in layers.windows if window is not None})
    if attention.qk_norm or widths:
        written["use_sliding_window"] = bool(widths)
        written["sliding_window"] = widths[0] if widths else None
        written["max_window_layers"] = layers.count
        written["layer_types"] = [
            "full_attention" if window is None else "sliding_attention" for window in layers.windows
        ]
    return written


def zero_biases(draft: Draft, powers: Powers) -> tuple[str, ...]:
    """Biases that a class creates for this config although the network has none.

    ``attention_bias: true`` switches several groups at once, and a loader leaves what the file lacks
    uninitialised; zeros written out keep the network the same.
    """
    attention = draft.layers.attention
    have = {"qkv": attention.qkv_bias, "output": attention.output_bias}
    switched = powers.attention_biases if any(have.values()) else frozenset()
    if draft.fc is not None and draft.fc.bias:
        switched |= powers.attention_biases & {"output"}
    parts = {"qkv": ("q", "k", "v"), "output": ("o",)}
    return tuple(
        f"layers.{layer}.self_attn.{part}_proj.bias"
        for layer in range(draft.layers.count)
        for group in sorted(switched)
        if not have[group]
        for part in parts[group]
    )


def mixed_windows(draft: Draft) -> list[Finding]:
    """An error when layers slide by different widths: every config has room for one."""
    widths = {window for window in draft.layers.windows if window is not None}
    if len(widths) < 2:
        return []
    message = f"layers slide by {sorted(widths)} positions; a config holds one sliding_window."
    return [finding("mixed-windows", "layers.windows", message)]


def flat_config(draft: Draft, architecture: str, extras: Mapping[str, Any]) -> dict[str, Any]:
    """A flat config without ids: every flag written out, also where it equals a default.

    Args:
        draft: the network.
        architecture: the class that the framework shall run.
        extras: keys of the source that are carried over.
    """
    written = {**extras, "architectures": [architecture], **layer_keys(draft)}
    written |= {
        "draft_vocab_size": None
        if draft.vocabulary.head == "target"
        else draft.vocabulary.draft_size,
        "target_hidden_size": draft.target.hidden_size,
        "norm_before_residual": draft.residual == "normed",
        "norm_before_fc": draft.fc is not None and draft.fc.input_norm,
        "fc_norm": draft.fc is not None and draft.fc.block_norms,
        "norm_output": draft.feedback == "post-norm",
        "dtype": draft.dtype,
        "torch_dtype": draft.dtype,
    }
    if draft.vocabulary.logit_scale != 1.0:
        written["logit_scale"] = draft.vocabulary.logit_scale
    if draft.vocabulary.head == "tied":
        written["tie_word_embeddings"] = True
    if draft.fc is not None:
        written["num_aux_hidden_states"] = draft.fc.blocks
        written["bias"] = draft.fc.bias
    return written
