"""Config keys of every framework, as pydantic classes with that framework's own defaults.

`carry` decides what becomes of all the other keys: carried over and reported, left out, or refused.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from eagle3_interop.schemas.dialects.hf import CONFIG, DecoderConfig
from eagle3_interop.schemas.draft import Size
from eagle3_interop.schemas.findings import Finding, finding

IDS = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"
LAYER = "transformer_layer_config"

BOILERPLATE = frozenset(
    [
        "quantization_config",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "dtype",
        "embedding_multiplier",
        "id2label",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pretraining_tp",
        "problem_type",
        "quantization_config",
        "return_dict",
        "speculators_version",
        "torch_dtype",
        "transformers_version",
        "truncated_vocab_size",
        "unk_token_id",
    ]
)
"""Keys that decide nothing of what a draft computes, and are written anew or left out."""

_OF_THE_LAYERS = frozenset(
    ["bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "use_cache"]
)
"""Keys that are carried over beside the decoder's own keys, without a remark."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (None,),
    "compression_config": (None,),
    "dual_chunk_attention_config": (None,),
    "eh_proj_before_attn": (None, False),
    "final_logit_softcapping": (None,),
    "is_causal": (None, True),
    "mrope_section": (None,),
    "next_layer_regular": (None, True),
    "return_hidden_post_norm": (None, False),
    "rope_is_neox_style": (None, True),
    "rotary_emb_fraction": (None, 1, 1.0),
    "rotary_pct": (None, 1, 1.0),
    "use_input_layernorm_in_first_layer": (None, True),
    "use_last_layernorm": (None, True),
    "use_mtp_layernorm": (None, False),
    "xdrope_section": (None,),
}
"""Keys that change what a draft computes in some framework, which the description does not carry; and
the values that leave it as it is, one of which the user can set."""

NO_MODEL_TYPE = "no model_type, without which transformers' AutoConfig, and so the engine, fails."

MASK_TOKENS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""The keys under which vLLM looks for the mask token of a parallel draft."""

MASK_PLACES = ("dflash_config", *MASK_TOKENS)
"""Where the newest one looks, in its order; of ``dflash_config`` for its own ``mask_token_id``."""

OTHER_IDS = ("dflash_config", "dspark_target_layer_ids", "target_layer_ids")
"""Where vLLM looks for ids of other kinds of drafts when it finds none at the top level."""

_OF_OTHER_MODELS = frozenset(
    [
        *("max_sequence_length", "max_seq_len", "model_max_length", "seq_length"),
        *("moe_num_experts", "n_routed_experts", "num_experts", "num_experts_per_tok"),
        *("num_local_experts", "router_aux_loss_coef", "swiglu_limit"),
        *(
            "intermediate_size_mlp",
            "multi_query",
            "n_predict",
            "num_kv_heads",
            "text_config",
            "v_head_dim",
        ),
    ]
)
"""What SGLang or vLLM would size a context, a cache or a draft by, although this draft has no such part."""


class EagleConfig(BaseModel):
    """The nested ``eagle_config``."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    layer_ids: list[int] | None = None
    use_aux_hidden_state: bool = True
    norm_before_fc: bool | None = None


class FlatKeys(BaseModel):
    """EAGLE-3 keys of a flat config, with the defaults that SGLang 0.5.23 and vLLM 0.32 share."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    architectures: list[str] = []
    model_type: str | None = None
    draft_vocab_size: Size | None = None
    target_hidden_size: Size | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool | None = False
    use_aux_norm: bool | None = False
    norm_output: bool = False
    bias: bool = False
    logit_scale: float = Field(default=1.0, allow_inf_nan=False)
    num_aux_hidden_states: Size | None = None
    num_aux_layers: Size | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    eagle_config: EagleConfig | None = None
    parallel_drafting: bool | None = None
    mask_token_id: int | None = None
    dspark_noise_token_id: int | None = None
    pard_token: int | None = None
    ptd_token_id: int | None = None
    kv_lora_rank: int | None = None

    @property
    def nested(self) -> EagleConfig:
        """eagle_config, empty when absent or null."""
        return self.eagle_config or EagleConfig()

    @property
    def input_norm(self) -> bool:
        """``norm_before_fc``: a nested one wins, a nested null is false."""
        nested = "norm_before_fc" in self.nested.model_fields_set
        return bool(self.nested.norm_before_fc) if nested else self.norm_before_fc


class Verifier(BaseModel):
    """``speculators_config.verifier``."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name_or_path: str | None = None
    architectures: list[str] = []


class Proposal(BaseModel):
    """One of ``speculators_config.proposal_methods``."""

    model_config = ConfigDict(frozen=True, extra="allow")

    proposal_type: str = "greedy"
    speculative_tokens: Size | None = None


class SpeculatorsConfig(BaseModel):
    """``speculators_config``."""

    model_config = ConfigDict(frozen=True, extra="allow")

    algorithm: str = "eagle3"
    default_proposal_method: str = "greedy"
    proposal_methods: list[Proposal] = []
    verifier: Verifier = Verifier()


class SpeculatorsKeys(BaseModel):
    """Top-level keys, with the defaults of speculators' ``Eagle3SpeculatorConfig``."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    speculators_model_type: Literal["eagle3", "peagle"] = "eagle3"
    architectures: list[str] | None = None
    draft_vocab_size: Size = 32000
    norm_before_residual: bool = False
    target_hidden_size: Size | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    embed_requires_grad: bool = False
    mask_token_id: int | None = None
    speculators_config: SpeculatorsConfig | None = None
    transformer_layer_config: dict[str, Any]

    @property
    def trains_embeddings(self) -> bool:
        """``embed_requires_grad``, whose default each kind has of its own."""
        said = "embed_requires_grad" in self.model_fields_set
        return self.embed_requires_grad if said else self.speculators_model_type == "peagle"

    @property
    def settings(self) -> SpeculatorsConfig:
        """speculators_config, empty when absent or null."""
        return self.speculators_config or SpeculatorsConfig()


_FLAT = frozenset(FlatKeys.model_fields) - {"kv_lora_rank"}
_NESTED = frozenset(EagleConfig.model_fields)
_LAYER = frozenset(DecoderConfig.model_fields)
_BESIDE_THE_LAYERS = frozenset(
    {"fc_norm", "norm_before_fc", "norm_output", "num_aux_hidden_states"}
)
"""What some releases of vLLM read among the layers' keys alone."""

_SPECULATORS = frozenset(SpeculatorsKeys.model_fields)
_OF_THE_BASE_CLASS = (("tie_word_embeddings", False),)
"""What speculators itself writes at the top, through transformers' base class: nothing to remark."""

_LEFT = _OF_OTHER_MODELS | frozenset(OTHER_IDS)

FLAT_READ = _FLAT | _LAYER
"""Top-level keys of a flat config."""

NESTED_READ = _NESTED
"""Keys of ``eagle_config`` that readers of a flat config look at."""

LAYER_READ = _LAYER
"""Keys of the decoder layers."""

SPECULATORS_READ = _SPECULATORS
"""Top-level keys of a speculators config."""


def architecture(config: Mapping[str, Any]) -> str:
    """The class that a config names; empty where it names none."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    return first if isinstance(first, str) else ""


def parallel_signs(config: Mapping[str, Any]) -> list[str]:
    """The keys by which a config says that its draft proposes all tokens in one pass; none for any other draft.

    Nulls and false are what trainers write into every config.
    """
    keys = {**nested_keys(config), **config}
    signs = [key for key in MASK_TOKENS if keys.get(key) is not None]
    if keys.get("parallel_drafting"):
        signs.append("parallel_drafting")
    if keys.get("speculators_model_type") == "peagle":
        signs.append("speculators_model_type")
    if "peagle" in architecture(config).lower():
        signs.append("architectures")
    return signs


def mask_token(config: Mapping[str, Any], places: Iterable[str] = MASK_PLACES) -> object:
    """The mask token as vLLM finds it in a flat config; None where it finds none.

    Args:
        config: the keys.
        places: where it looks, in its order.
    """
    for key in places:
        found = config.get(key)
        if key == "dflash_config":
            if isinstance(found, Mapping) and "mask_token_id" in found:
                return found["mask_token_id"]
        elif found is not None or (key in config and key != MASK_TOKENS[0]):
            return found
    return None


def is_wrapped(config: Mapping[str, Any]) -> bool:
    """Whether it is vLLM's own wrapper form (``configs/eagle.py``): the draft's config under ``model``."""
    return config.get("model_type") == "eagle" and isinstance(config.get("model"), Mapping)


def layer_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of the decoder layers: speculators' own place for them, or a flat config itself."""
    inner = config.get(LAYER)
    return inner if isinstance(inner, Mapping) and "num_hidden_layers" not in config else config


def nested_keys(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """eagle_config as it stands; empty where there is none."""
    nested = config.get(NESTED)
    return nested if isinstance(nested, Mapping) else {}


def names_ids(config: Mapping[str, Any]) -> bool:
    """Whether layer ids stand anywhere in a flat config."""
    return bool(config.get(IDS) or nested_keys(config).get(IDS))


def carry(
    config: Mapping[str, Any],
    engine: str,
    read: frozenset[str],
    say: Callable[[Finding], None],
    *,
    idle: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """What becomes of the keys that a reader does not use.

    Keys that only another framework reads are left out (its own writer sets them anew), and so are those of
    other kinds of models; keys that nobody here knows are kept where they stand, and keys that would change the network are refused.

    Args:
        config: the raw config.
        engine: who reads it.
        read: the top-level keys that the reader uses.
        say: receives the remarks.
        idle: keys of the decoder that decide nothing of this draft, and are carried without a remark.

    Returns:
        The keys to write into the output: top-level ones, and those of ``eagle_config`` and of the
        decoder layers under ``eagle_config`` and ``transformer_layer_config``.
    """
    flat, beside = LAYER not in read, _OF_THE_LAYERS | idle
    layer = config if flat else config.get(LAYER) or {}
    places: dict[str, tuple[Mapping[str, Any], frozenset[str], frozenset[str]]] = {
        "": (config, read | BOILERPLATE, _FLAT | _LAYER | _SPECULATORS),
        NESTED: (nested_keys(config), _NESTED, _FLAT | _LAYER | _SPECULATORS),
        LAYER: ({} if flat else layer, _LAYER | BOILERPLATE | _BESIDE_THE_LAYERS, _FLAT),
    }
    kept: dict[str, dict[str, Any]] = {place: {} for place in places}
    unread: list[str] = []
    left: list[str] = []
    for place, (keys, used, elsewhere) in places.items():
        for key, value in keys.items():
            if key in NEUTRAL and value not in NEUTRAL[key]:
                where = f"{CONFIG}: {place and place + '.'}{key}"
                message = (
                    f"{value!r} changes what the draft computes, and this tool cannot convert it."
                )
                word = json.dumps(NEUTRAL[key][-1]).replace("null", "none")
                fix = f"If the draft was trained without it: --set {key}={word}"
                say(finding("unsupported-key", where, message, fix=fix, settled_by=key))
            elif key in used or key in beside:
                continue
            elif key in _LEFT and place != NESTED:
                left.append(key)
            elif key in elsewhere:
                if flat or (key, value) not in _OF_THE_BASE_CLASS:
                    unread.append(key)
            else:
                kept[place][key] = value
    if unread:
        message = (
            f"keys of another framework, which {engine} does not read: {', '.join(sorted(unread))}."
        )
        say(finding("unread-keys", CONFIG, message))
    if left:
        message = f"left out, because engines would size or feed something else by them: {', '.join(sorted(left))}."
        say(finding("left-keys", CONFIG, message))
    for item in _unknown(key for keys in kept.values() for key in keys):
        say(item)
    # A folder for all readers has the layers' idle keys at the top level alone.
    shared = config if "num_hidden_layers" in config else {}
    kept[LAYER] |= {key: value for key, value in {**shared, **layer}.items() if key in beside}
    top = kept.pop("")
    return {**top, **{place: keys for place, keys in kept.items() if keys}}


_UNKNOWN = "kept, although this tool does not know them: "


def _unknown(names: Iterable[str]) -> list[Finding]:
    listed = ", ".join(sorted(names))
    return [finding("unknown-keys", CONFIG, f"{_UNKNOWN}{listed}.")] if listed else []


def no_longer_kept(findings: Iterable[Finding], dropped: Collection[str]) -> list[Finding]:
    """The findings, of which none says any more that these keys are kept.

    Args:
        findings: of a reading.
        dropped: dotted paths of keys.
    """
    names = {path.rpartition(".")[2] for path in dropped}
    said: list[Finding] = []
    for item in findings:
        if not item.row.lists_extras:
            said.append(item)
            continue
        listed = item.message.removeprefix(_UNKNOWN).removesuffix(".").split(", ")
        said += _unknown(name for name in listed if name not in names)
    return said
