"""transformers' config classes as the frameworks use them: their defaults for absent keys, and rope.

Each class states what transformers 5.19 itself fills in when a key is absent (a test compares every
default with the installed class). Only keys that decide what a draft computes are named; all others
are kept in `model_extra` and reported by the layouts.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from eagle3_interop.schemas.draft import ROPE_NEEDS, Rope, Size
from eagle3_interop.schemas.findings import Finding, Refused, finding

CONFIG = "config.json"

_LONGEST = 80
"""Characters of a wrong value that are shown."""

UNBOUNDED = 2**24
"""A sliding window that no context reaches: attention to everything."""


class DecoderConfig(BaseModel):
    """Keys shared by the decoder configs that a draft's layers are described with."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    max_position_embeddings: Size | None = None
    rope_theta: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | None = Field(default=None, gt=0, le=1)
    original_max_position_embeddings: Size | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    layer_types: list[str] | None = None
    sliding_window: Size | None = None
    use_sliding_window: bool | None = None
    max_window_layers: int | None = None

    @property
    def kv_heads(self) -> int:
        """Key/value heads; as many as query heads when null."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Width of one head; ``hidden_size // num_attention_heads`` when null."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


class LlamaConfig(DecoderConfig):
    """transformers' LlamaConfig."""

    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    max_position_embeddings: Size | None = 2048

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("hidden_size must be a multiple of num_attention_heads")
        return self


class Qwen2Config(DecoderConfig):
    """transformers' Qwen2Config."""

    vocab_size: Size = 151936
    hidden_size: Size = 4096
    intermediate_size: Size = 22016
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 32
    max_position_embeddings: Size | None = 32768
    use_sliding_window: bool | None = False
    sliding_window: Size | None = 4096
    max_window_layers: int | None = 28


class Qwen3Config(Qwen2Config):
    """transformers' Qwen3Config, which knows no null head_dim."""

    head_dim: Size = 128


class MistralConfig(DecoderConfig):
    """transformers' MistralConfig."""

    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 14336
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 8
    max_position_embeddings: Size | None = 131072
    sliding_window: Size | None = 4096


class Phi3Config(DecoderConfig):
    """transformers' Phi3Config."""

    vocab_size: Size = 32064
    hidden_size: Size = 3072
    intermediate_size: Size = 8192
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    rms_norm_eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    max_position_embeddings: Size | None = 4096
    original_max_position_embeddings: Size | None = 4096


class LatentConfig(DecoderConfig):
    """A config of layers with latent attention, of a model type without defaults that are known here."""

    q_lora_rank: Size | None = None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    rope_interleave: bool | None = True


class DeepseekV3Config(LatentConfig):
    """transformers' DeepseekV3Config, which SGLang and vLLM take for kimi_k2 too."""

    vocab_size: Size = 129280
    hidden_size: Size = 7168
    intermediate_size: Size = 18432
    num_hidden_layers: Size = 61
    num_attention_heads: Size = 128
    num_key_value_heads: Size | None = 128
    max_position_embeddings: Size | None = 4096
    q_lora_rank: Size | None = 1536
    kv_lora_rank: Size = 512
    qk_nope_head_dim: Size = 128
    qk_rope_head_dim: Size = 64
    v_head_dim: Size = 128


class DeepseekV2Config(LatentConfig):
    """transformers' DeepseekV2Config."""

    vocab_size: Size = 102400
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    max_position_embeddings: Size | None = 2048
    q_lora_rank: Size | None = 1536
    kv_lora_rank: Size = 512
    qk_nope_head_dim: Size = 128
    qk_rope_head_dim: Size = 64
    v_head_dim: Size = 128

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("hidden_size must be a multiple of num_attention_heads")
        return self


LATENT_CONFIGS: dict[str, type[LatentConfig]] = {
    "deepseek_v2": DeepseekV2Config,
    "deepseek_v3": DeepseekV3Config,
    "deepseek_v32": DeepseekV3Config,
    "kimi_k2": DeepseekV3Config,
}
"""Model types of drafts with latent attention, by the classes that the engines take for them."""

CONFIGS: dict[str, type[DecoderConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "phi3": Phi3Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}

_DECIDING = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
)
"""Keys whose default, when it is used, is said: a wrong one changes the network."""


_LATENT_DECIDING = (
    *(key for key in _DECIDING if key not in ("head_dim", "num_key_value_heads")),
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)

Model = TypeVar("Model", bound=BaseModel)
Decoder = TypeVar("Decoder", bound="DecoderConfig")
Say = Callable[[Finding], None]


def validated(model: type[Model], config: Mapping[str, Any], where: str) -> Model:
    """A config as a class of keys.

    Raises:
        Refused: a key is missing without a default, or has an impossible value.
    """
    try:
        return model.model_validate(dict(config))
    except ValidationError as error:
        raise Refused(
            finding(
                "bad-config",
                f"{where}: {'.'.join(str(part) for part in item['loc'])}",
                item["msg"] + ("." if item["type"] == "missing" else f" (found {_short(item)})."),
            )
            for item in error.errors(include_url=False)
        ) from None


def _short(item: Mapping[str, Any]) -> str:
    found = repr(item.get("input"))
    return found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."


def parse(config: Mapping[str, Any], kind: type[Decoder], where: str, say: Say) -> Decoder:
    """Validate a config against a class and say which deciding defaults were taken.

    Args:
        config: the raw keys.
        kind: the class whose defaults its framework would use.
        where: prefix of key names in messages (``config.json`` or ``transformer_layer_config``).
        say: receives a ``class-default`` note for each deciding key that is absent.

    Raises:
        Refused: a key is missing without a default, or has an impossible value.
    """
    parsed = validated(kind, config, where)
    for key in _LATENT_DECIDING if isinstance(parsed, LatentConfig) else _DECIDING:
        default = getattr(parsed, key)
        if key not in config and default is not None:
            message = f"absent: {kind.__name__}'s own default {default!r} counts."
            say(finding("class-default", f"{where}: {key}", message))
    return parsed


OLD_KINDS = {"su": "longrope", "mrope": "default"}
_SPOKEN = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section"}
_OF_MROPE = {"mrope_interleaved"}
_UNCARRIED = ("mrope_interleaved_glm", "rope_dim", "use_fope", "video_rope", "xdrope_section")
"""Entries of a rope dict by which SGLang or vLLM would rotate in a way that is not carried."""

_ATTENTION_TYPES = frozenset(
    ["chunked_attention", "full_attention", "linear_attention", "sliding_attention"]
)
"""Keys of a rope dict that holds a rope for each type of attention (transformers' own list)."""
_NEED_ORIGINAL = frozenset(
    kind for kind, needs in ROPE_NEEDS.items() if "original_max_position_embeddings" in needs
)


def read_rope(
    parsed: DecoderConfig,
    where: str,
    say: Say,
    default_theta: float = 10000.0,
    *,
    partial_at_top: bool = False,
) -> Rope:
    """Resolve rope as transformers 5 does (``RotaryEmbeddingConfigMixin``).

    ``rope_scaling``, when it holds anything, stands before ``rope_parameters``; theta comes from the
    chosen dict, else from the top-level ``rope_theta``, else from the class's default.

    Args:
        parsed: the decoder config.
        where: prefix of key names in messages.
        say: receives findings: disagreement of the two forms, a nested form, an unknown type.
        default_theta: the class's default base.
        partial_at_top: ``partial_rotary_factor`` counts at the top level alone (SGLang).
    """
    old, new = parsed.rope_scaling or {}, parsed.rope_parameters or {}
    chosen = {key: value for key, value in (old or new).items() if value is not None}
    if chosen and _ATTENTION_TYPES.issuperset(chosen):
        nested = {key: value for key, value in chosen.items() if isinstance(value, Mapping)}
        return _of_the_choices(nested, parsed, where, say, default_theta)
    if partial_at_top:
        chosen["partial_rotary_factor"] = parsed.partial_rotary_factor
    theta = _theta(chosen, parsed, where, default_theta)
    if parsed.rope_theta is not None and theta != parsed.rope_theta:
        message = (
            f"rope_theta says {parsed.rope_theta:g}, the rope dict says {theta:g}; the dict counts."
        )
        say(finding("rope-disagrees", f"{where}: rope_theta", message, settled_by="rope.theta"))
    if parsed.rope_theta is None and "rope_theta" not in chosen:
        message = f"no rope_theta anywhere: the class's own default {default_theta:g} counts."
        say(finding("class-default", f"{where}: rope_theta", message))
    if old and new and _plain(old, theta) != _plain(new, theta):
        message = "rope_scaling and rope_parameters differ; transformers 5 takes rope_scaling."
        say(finding("rope-disagrees", f"{where}: rope_parameters", message, settled_by="rope"))
    return _one_rope(chosen, parsed, where, say, default_theta)


def without_rope_dict(parsed: DecoderConfig) -> DecoderConfig:
    """The keys as code reads them that knows ``rope_theta`` and ``rope_scaling`` alone."""
    return parsed.model_copy(update={"rope_parameters": None})


def with_theta_on_top(parsed: DecoderConfig) -> DecoderConfig:
    """The keys as code reads them that puts transformers 4's ``rope_theta``, or its default, into the dict."""
    return _with_theta(parsed, parsed.rope_theta or 10000.0)


def without_theta(parsed: DecoderConfig) -> DecoderConfig:
    """The keys as code reads them that looks for ``rope_theta`` where its transformers has taken it away."""
    return _with_theta(parsed, 10000.0)


def _with_theta(parsed: DecoderConfig, theta: float) -> DecoderConfig:
    dicts = {"rope_scaling": parsed.rope_scaling, "rope_parameters": parsed.rope_parameters}
    named = {key: rope and {**rope, "rope_theta": theta} for key, rope in dicts.items()}
    return parsed.model_copy(update={"rope_theta": theta, **named})


def _of_the_choices(
    nested: Mapping[str, Mapping[str, Any]],
    parsed: DecoderConfig,
    where: str,
    say: Say,
    default_theta: float,
) -> Rope:
    """One rope of several, with an error for each piece in which they differ."""
    ropes = {
        key: _one_rope(value, parsed, f"{where}: {key}", say, default_theta)
        for key, value in sorted(nested.items())
    }
    if "sliding_attention" not in ropes:
        message = "for sliding attention none is given, and it is the one that speculators takes."
        say(finding("nested-rope", f"{where}: rope_parameters", message, settled_by="rope.scaling"))
    for field in Rope.model_fields:
        values = {key: getattr(rope, field) for key, rope in ropes.items()}
        if any(value != next(iter(values.values())) for value in values.values()):
            listed = ", ".join(f"{value} for {key}" for key, value in values.items())
            message = (
                f"{listed}: rope is given for each attention type, a draft's layers share one, and "
                "each engine picks another of them."
            )
            place = f"{where}: rope_parameters"
            say(finding("nested-rope", place, message, settled_by=f"rope.{field}"))
    return next(iter(ropes.values()), Rope(theta=default_theta))


def _theta(
    chosen: Mapping[str, Any], parsed: DecoderConfig, where: str, default_theta: float
) -> float:
    theta = chosen.get("rope_theta")
    if theta is None:
        return parsed.rope_theta if parsed.rope_theta is not None else default_theta
    return validated(Rope, {"theta": theta}, where).theta


def _one_rope(
    chosen: Mapping[str, Any], parsed: DecoderConfig, where: str, say: Say, default_theta: float
) -> Rope:
    kind = str(chosen.get("rope_type") or chosen.get("type") or "default")
    kind = OLD_KINDS.get(kind, kind)
    if kind not in ("default", *ROPE_NEEDS):
        message = f"rope type {kind!r} is not one that this tool can carry exactly."
        say(finding("unknown-rope", f"{where}: rope_type", message, settled_by="rope.scaling"))
        kind = "default"
    if odd := [key for key in _UNCARRIED if chosen.get(key)]:
        message = f"{', '.join(odd)}: a rotation that this tool cannot carry exactly."
        say(
            finding("unknown-rope", f"{where}: rope_parameters", message, settled_by="rope.scaling")
        )
    sections = chosen.get("mrope_section")
    # A null stands for the kind's own default; SGLang fails on one.
    unnamed = _SPOKEN | {*_UNCARRIED}
    numbers = {k: value for k, value in chosen.items() if k not in unnamed and value is not None}
    if kind == "default":
        idle = sorted(set(numbers) - (_OF_MROPE if sections else set()))
        if idle:
            message = f"without effect on a plain rotation, and left out: {', '.join(idle)}."
            say(finding("idle-rope-keys", f"{where}: rope_parameters", message))
        numbers = {key: value for key, value in numbers.items() if key not in idle}
    if kind in _NEED_ORIGINAL and parsed.original_max_position_embeddings is not None:
        numbers["original_max_position_embeddings"] = parsed.original_max_position_embeddings
    if kind in _NEED_ORIGINAL and parsed.max_position_embeddings is not None:
        numbers.setdefault("original_max_position_embeddings", parsed.max_position_embeddings)
    partial = chosen.get("partial_rotary_factor", parsed.partial_rotary_factor)
    rope = {
        "theta": _theta(chosen, parsed, where, default_theta),
        "partial": 1.0 if partial is None else partial,
        "scaling": None if kind == "default" else kind,
        "parameters": numbers,
        "mrope_sections": sections or None,
    }
    return validated(Rope, rope, where)


def _plain(rope: Mapping[str, Any], theta: float) -> dict[str, Any]:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    rest = {key: value for key, value in rope.items() if key not in ("rope_type", "type")}
    return {"rope_theta": theta, **rest, "kind": kind}


def write_rope(rope: Rope) -> dict[str, Any]:
    """Both forms of the same rope: transformers 5's ``rope_parameters`` and transformers 4's pair.

    Returns:
        ``rope_parameters``, ``rope_theta`` and ``rope_scaling`` (null for the plain rotation).
    """
    kind = rope.scaling or "default"
    numbers: dict[str, Any] = dict(rope.parameters)
    if rope.partial != 1.0:
        numbers["partial_rotary_factor"] = rope.partial
    if rope.mrope_sections:
        numbers["mrope_section"] = list(rope.mrope_sections)
    written: dict[str, Any] = {
        "rope_parameters": {"rope_type": kind, "rope_theta": rope.theta, **numbers},
        "rope_theta": rope.theta,
        "rope_scaling": None,
    }
    if rope.scaling or rope.mrope_sections:
        # transformers 5 lets rope_scaling replace rope_parameters, so it must say everything.
        written["rope_scaling"] = {"rope_type": kind, "rope_theta": rope.theta, **numbers}
    if rope.partial != 1.0:
        written["partial_rotary_factor"] = rope.partial
    return written


def read_windows(parsed: DecoderConfig, layers: int, model_type: str) -> tuple[int | None, ...]:
    """Each layer's sliding window in positions, or None: what ``layer_types`` lists, or the class fills in.

    Args:
        parsed: the decoder config.
        layers: how many there are (`parsed` may claim more).
        model_type: the config's class; empty where a framework uses none.
    """
    types, window = parsed.layer_types, parsed.sliding_window
    if window is not None and window >= UNBOUNDED:
        window = None
    if types is not None:
        _check_types(types, parsed.num_hidden_layers, model_type)
    if model_type in ("qwen2", "qwen3"):
        window = window if parsed.use_sliding_window else None
        if types is None:
            first = parsed.max_window_layers or 0
            return tuple(window if i >= first else None for i in range(layers))
    types = types or []
    return tuple(
        window if i < len(types) and types[i] == "sliding_attention" else None
        for i in range(layers)
    )


def _check_types(types: list[str], layers: int, model_type: str) -> None:
    """Every layer has a kind of attention that engines know.

    Raises:
        Refused: otherwise (transformers and vLLM both fail on such a config).
    """
    known = {"full_attention", "sliding_attention"}
    if model_type == "llama4_text":
        known.add("chunked_attention")
    fits = len(types) == layers or (len(types) > layers and not model_type)
    if not fits or not known.issuperset(types):
        message = f"must name {layers} layers, each one of {sorted(known)}; found {types!r}."
        raise Refused([finding("bad-config", f"{CONFIG}: layer_types", message)])
