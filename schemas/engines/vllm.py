"""vLLM 0.30 to 0.33: the flat form of its llama and qwen3 classes, and speculators' folders as vLLM reads them.

Source of the facts: ``model_executor/models/{llama,qwen3}_eagle3.py``, ``v1/worker/gpu_model_runner.py``,
``transformers_utils/configs/{eagle.py,speculators/}``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts, Wishes, Writing
from eagle3_interop.schemas.dialects.hf import CONFIG, UNBOUNDED, DecoderConfig
from eagle3_interop.schemas.dialects.keys import (
    IDS,
    MASK_TOKENS,
    NESTED,
    NO_MODEL_TYPE,
    OTHER_IDS,
    FlatKeys,
    SpeculatorsKeys,
    architecture,
    is_wrapped,
    layer_config,
    nested_keys,
)
from eagle3_interop.schemas.dialects.recognition import (
    KNOWN_TO_VLLM,
    LATENT_PLUGIN,
    LATENT_STOCK,
    PLUGIN,
    is_latent,
    vllm_class,
)
from eagle3_interop.schemas.dialects.rules import FlatRules, LatentRules, NestedRules
from eagle3_interop.schemas.dialects.spelling import Spelling
from eagle3_interop.schemas.dialects.writing import (
    flat_config,
    mixed_windows,
    target_window,
    widen_windows,
    zero_biases,
)
from eagle3_interop.schemas.draft import LARGEST, Draft, Mla, Size
from eagle3_interop.schemas.engines import targets
from eagle3_interop.schemas.engines.capturing import without_capture
from eagle3_interop.schemas.engines.naming import (
    KINDS,
    Asked,
    Naming,
    by_group,
    modules_of,
    only,
    wildcards,
)
from eagle3_interop.schemas.engines.release import Form, Release
from eagle3_interop.schemas.engines.sglang import LATENT_POWERS as SGLANG_LATENT
from eagle3_interop.schemas.engines.sglang import eagle_config, ids_to_taps
from eagle3_interop.schemas.engines.targets_since import vllm_first
from eagle3_interop.schemas.findings import Finding, finding
from eagle3_interop.schemas.powers import Powers, lacks

SPELLING = Spelling(roots=("",), layer0=("midlayer.", "layers.0."), later_norm="input_layernorm")

POWERS = {
    False: Powers(engine="vLLM's llama class", mlp_bias=True, logit_scale=True, parallel=True),
    True: Powers(
        engine="vLLM's qwen3 class",
        qk_norm=True,
        attention_biases=frozenset({"qkv"}),
        logit_scale=True,
        parallel=True,
    ),
}

LATENT_POWERS = Powers(
    engine="vLLM's deepseek class",
    attentions=frozenset({"mla"}),
    queries_at_once=False,
    half_rotation=False,
    input_norm=False,
    attention_biases=frozenset(),
    windows=False,
    no_fc=False,
    logit_scale=True,
    partial_rotary=False,
    mrope=False,
)


def _ids(
    keys: FlatKeys, _target: TargetFacts | None
) -> tuple[list[int] | None, str, Callable[[list[int]], list[int]]]:
    nested = keys.nested
    places = {
        IDS: keys.eagle_aux_hidden_state_layer_ids,
        f"{NESTED}.layer_ids": nested.layer_ids,
        f"{NESTED}.{IDS}": nested.eagle_aux_hidden_state_layer_ids,
    }
    place = next((key for key, ids in places.items() if ids), IDS)
    return places[place], f"{CONFIG}: {place}", list


def _blocks(keys: FlatKeys, powers: Powers) -> int:
    nested = keys.nested.eagle_aux_hidden_state_layer_ids
    if powers.qk_norm:
        ids = keys.eagle_aux_hidden_state_layer_ids or nested
        return keys.num_aux_layers or keys.num_aux_hidden_states or (len(ids) if ids else 3)
    return keys.num_aux_hidden_states or (len(nested) if nested else 3)


def _powers(keys: FlatKeys) -> Powers:
    name = keys.architectures[0] if keys.architectures else ""
    if is_latent(name, keys.kv_lora_rank):
        return LATENT_POWERS
    return POWERS[vllm_class(name) == PLUGIN[True]]


def unwrapped(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What vLLM makes of its wrapper form: the keys under ``model``, those beside it before them.

    Source: ``transformers_utils/configs/eagle.py``. The class is the inner one's, and ``truncated_vocab_size`` is
    none that an EAGLE-3 class reads.
    """
    if not is_wrapped(config):
        return config
    of_the_wrapper = ("architectures", "method", "model", "model_type", "truncated_vocab_size")
    beside = {key: value for key, value in config.items() if key not in of_the_wrapper}
    return {**config["model"], **beside}


def class_known(
    classes: frozenset[str] = KNOWN_TO_VLLM, kinds: tuple[str, ...] = ("eagle3", "peagle")
) -> Callable[[Mapping[str, Any]], str]:
    """Why a vLLM with these classes would not start; it knows a speculators folder by ``speculators_config``.

    Args:
        classes: of drafts, as `vllm_class` calls them.
        kinds: of speculators' folders.
    """

    def refuses(config: Mapping[str, Any]) -> str:
        config = unwrapped(config)
        if config.get("model_type") is not None:
            name = vllm_class(architecture(config))
            if name not in classes:
                return f"vLLM has no draft class {architecture(config)!r}."
            return _of_mtp(config)
        kind = config.get("speculators_model_type")
        if kind is None:
            return NO_MODEL_TYPE
        if config.get("speculators_config") is None:
            return "no speculators_config, without which vLLM does not recognise this folder."
        return "" if kind in kinds else f"vLLM knows no speculators folder of the type {kind!r}."

    return refuses


refuses = class_known()

_MTP_TYPES = frozenset({"deepseek_v3", "deepseek_v32", "glm_moe_dsa"})
"""Model types for which ``config/speculative.py`` puts the class of multi-token prediction in the draft's place."""


def _of_mtp(config: Mapping[str, Any]) -> str:
    """Why this model_type keeps a draft from starting; empty where it does not."""
    kind = config.get("model_type")
    if kind not in _MTP_TYPES:
        return ""
    return f"vLLM takes a draft of model_type {kind} for one of multi-token prediction (MTP), and fails."


def _mtp_type(source: Source, _reading: Reading, _target: TargetFacts | None) -> Iterator[Finding]:
    if why := _of_mtp(source.config):
        yield finding("fails-to-load", f"{CONFIG}: model_type", why)


def _unknown_class(
    source: Source, _reading: Reading, _target: TargetFacts | None
) -> Iterator[Finding]:
    name = architecture(source.config)
    if vllm_class(name) not in KNOWN_TO_VLLM:
        latent = is_latent(name, source.config.get("kv_lora_rank"))
        read = "deepseek" if latent else "llama"
        message = f"vLLM has no draft class {name!r}; this tool read it as vLLM's {read} class."
        yield finding("unknown-architecture", f"{CONFIG}: architectures", message)


def _ids_of_the_folder(
    source: Source, reading: Reading, target: TargetFacts | None
) -> Iterator[Finding]:
    """What there is to say of the places of ids."""
    config, nested = source.config, nested_keys(source.config)
    ids = config.get(IDS), nested.get("layer_ids"), nested.get(IDS)
    latent = isinstance(reading.draft.layers.attention, Mla)
    yield from _nested_ids(*ids, target, latent=latent)
    if not config.get(IDS):
        message = "vLLM looks there for ids where eagle_aux_hidden_state_layer_ids names none."
        for key in OTHER_IDS:
            if config.get(key):
                yield finding("nested-ids", f"{CONFIG}: {key}", message, settled_by="taps")


def _window_of_the_target(
    source: Source, reading: Reading, target: TargetFacts | None
) -> Iterator[Finding]:
    own = layer_config(source.config).get("sliding_window")
    written = isinstance(own, int) and own >= UNBOUNDED
    if (window := target_window(reading.draft, target)) and not written:
        message = (
            f"vLLM applies the target's window of {window} to the draft layers, which have none."
        )
        where = "layers.windows"
        yield finding("target-window", where, message, settled_by=where)


_A_DEEPSEEK = TargetFacts(
    name="", hidden_size=1, layers=LARGEST, vocab_size=1, model_type="deepseek_v3"
)


def _nested_ids(
    top: Sequence[int] | None,
    second: Sequence[int] | None,
    third: Sequence[int] | None,
    target: TargetFacts | None,
    *,
    latent: bool,
) -> Iterator[Finding]:
    """What there is to say of ids in eagle_config: ``layer_ids``, and those in SGLang's place."""
    nested = f"{CONFIG}: {NESTED}"
    if second and not top:
        message = (
            f"{list(second)} are read by vLLM's V2 runner only; its V1 runner feeds other taps."
        )
        yield finding("nested-ids", f"{nested}.layer_ids", message, settled_by="taps")
    elif third and not top:
        message = (
            f"{list(third)} stand where SGLang, SpecForge and ModelOpt count outputs. vLLM's V1 runner "
            "takes them as they are, one layer early by that count; its V2 runner ignores them."
        )
        yield finding("nested-ids", f"{nested}.{IDS}", message, settled_by="taps")
    used = list(top or second or ())
    if top and second and list(second) != used:
        message = f"{list(second)} beside {used} at the top level, which is what vLLM feeds."
        yield finding("ids-disagree", f"{nested}.layer_ids", message, settled_by="taps")
    if used and third:
        agree = sorted(ids_to_taps(list(third), target)) == sorted(used)
        message = f"{list(third)} beside {used}, which is what vLLM feeds."
        if agree:
            yield finding("ids-unread", f"{nested}.{IDS}", f"{message} SGLang feeds the same taps.")
        elif target is None and latent and ids_to_taps(list(third), _A_DEEPSEEK) == used:
            # Most drafts with latent attention are Kimi's or DeepSeek's, and some exporters write both places alike.
            message += (
                " SGLang feeds the same taps of a DeepSeek or Kimi target; of another it would not."
            )
            yield finding("ids-unread", f"{nested}.{IDS}", message)
        else:
            message += " SGLang would feed other taps."
            yield finding("ids-disagree", f"{nested}.{IDS}", message, settled_by="taps")


def draft_class(draft: Draft, wishes: Wishes) -> Powers:  # noqa: ARG001
    """The class by the kind of decoder layer."""
    if isinstance(draft.layers.attention, Mla):
        return LATENT_POWERS
    return POWERS[draft.layers.gqa.qk_norm]


def write(draft: Draft, wishes: Wishes) -> Writing:
    """Write vLLM's flat form."""
    if isinstance(draft.layers.attention, Mla):
        return _write_latent(draft, wishes)
    powers = draft_class(draft, wishes)
    config = flat_config(draft, PLUGIN[powers.qk_norm], wishes.extras)
    if draft.parallel is not None:
        config["ptd_token_id"] = draft.parallel.mask_token_id
    findings = [
        *mixed_windows(draft),
        *lacks(draft, powers),
        *write_ids(config, draft, wishes.target),
        *widen_windows(config, draft, wishes.target),
    ]
    return Writing(
        config=config, spelling=SPELLING, findings=tuple(findings), zeros=zero_biases(draft, powers)
    )


def _write_latent(draft: Draft, wishes: Wishes) -> Writing:
    """Write a draft with latent attention: SGLang knows the class too, so its ids stand beside."""
    # Of the two names of vLLM's class, SGLang's own class has the one; what it would compute otherwise has the other.
    name = LATENT_PLUGIN if lacks(draft, SGLANG_LATENT) else LATENT_STOCK
    config = flat_config(draft, name, wishes.extras)
    nested, said = eagle_config(draft, wishes.target, captured=False)
    config[NESTED] = {**config.get(NESTED, {}), **nested}
    findings = [*lacks(draft, LATENT_POWERS), *said, *write_ids(config, draft, wishes.target)]
    return Writing(config=config, spelling=SPELLING, findings=tuple(findings))


def write_ids(config: dict[str, Any], draft: Draft, target: TargetFacts | None) -> list[Finding]:
    """Put the taps where some version of vLLM looks, and say what vLLM cannot capture.

    Args:
        config: the flat config that is being written.
        draft: the network, its taps ascending.
        target: the target's facts, where known.
    """
    findings = []
    if draft.fc is None:
        config[NESTED] = {**config.get(NESTED, {}), "use_aux_hidden_state": False}
        message = "vLLM's V2 model runner asks for hidden states that this draft does not take; its V1 runner does not."
        findings.append(finding("no-fc-runner", "eagle_config.use_aux_hidden_state", message))
        return findings
    config["num_aux_layers"] = draft.fc.blocks
    if draft.taps is not None:
        config[IDS] = list(draft.taps)
        config[NESTED] = {**config.get(NESTED, {}), "layer_ids": list(draft.taps)}
    if (classed := target or targets.class_named(draft)) is not None:
        findings += VLLM_0_30.uncaptured(draft, classed)
    return findings


def _captures(release: str, draft: Draft, target: TargetFacts) -> Iterator[Finding]:
    """What the target's class cannot capture, or on some platforms only."""
    if draft.fc is None:
        return
    taps = targets.taps_of(draft, target)
    name, where = targets.special_class(target), f"{CONFIG}: {IDS}"
    yield from without_capture("vllm", release, target, where)
    if name in targets.VLLM_CAPTURES_NOTHING:
        message = f"{release}'s {name} says that it captures hidden states, and does not."
        yield finding("target-captures-nothing", where, message)
    if 0 in taps and name in targets.VLLM_NO_EMBEDDING:
        message = f"{release}'s {name} fails on a tap before its first layer."
        fix = "Serve with SGLang." if name in targets.SGLANG_IDS_AS_TAPS else None
        yield finding("embedding-tap", where, message, fix=fix)
    if 0 in taps and name in targets.VLLM_SPARSE:
        message = (
            f"{release}'s {name} fails on a tap before its first layer, unless it runs on CUDA."
        )
        yield finding("embedding-tap-depends", where, message, fix="Else serve with SGLang.")
    if 0 in taps and name in targets.VLLM_MAY_HOLD_DEEPSEEK:
        message = (
            f"{release}'s {name} fails on a tap before its first layer if it holds Mistral Large 3."
        )
        yield finding("embedding-tap-depends", where, message)
    if target.layers in taps and name in targets.VLLM_SPARSE:
        message = (
            f"tap {target.layers} lies after the last layer, which {release}'s {name} never captures on CUDA "
            "and ROCm."
        )
        yield finding("end-tap", where, message)


def passes_over(name: str) -> bool:
    """What vLLM's loaders skip: biases that a class does not have, and what a flag that is off leaves unused."""
    return name.endswith(".bias") or name in ("input_norm.weight", "mask_hidden")


def _asks(draft: Draft, first: int) -> Iterator[Asked]:
    """By ``model.layers.`` and a number that follows the target's layers; the head of MLA drafts is always plain."""
    mla = draft.layers.attention.kind == "mla"

    def name(module: str) -> tuple[str, str]:
        if module == "lm_head":
            return module, KINDS[module]
        _, _, rest = module.partition(".")
        layer, _, rest = rest.partition(".")
        kind = KINDS[module.rpartition(".")[2]]
        return (f"model.layers.{first + int(layer)}.{rest}" if rest else f"model.{module}"), kind

    plain = "vLLM's class takes no quantised head"
    for asked in modules_of(draft, name, only(("qkv_proj", "gate_up_proj", "fused_qkv_a_proj"))):
        yield replace(asked, plain=plain) if mla and asked.name == "lm_head" else asked


NAMING = Naming(
    "vLLM",
    asks=_asks,
    chosen=lambda asked, said: by_group(asked, said, suffixes=False, must_match=False),
    ignored=wildcards,
    numbers=True,
)

RULES = FlatRules(
    title="vLLM",
    spelling=SPELLING,
    strict=lambda _config: True,
    passes_over=passes_over,
    powers=_powers,
    ids=_ids,
    blocks=_blocks,
    latent=LatentRules(
        halves=False,
        # deepseek_v2.py takes this number for a sign of deepseek_llama_scaling.
        unscaled=lambda numbers: numbers.get("attention_factor") == 1.0,
        reads=frozenset({"attention_factor"}),
        refuses={
            "index_topk": "vLLM's class would build an indexer, whose weights no draft has.",
        },
    ),
    parallel=True,
    remarks=(_window_of_the_target, _unknown_class, _mtp_type, _ids_of_the_folder, NAMING.remarks),
)


class BareLayerConfig(DecoderConfig):
    """``transformer_layer_config`` as vLLM sees it: bare attributes, with its model code's own defaults."""

    hidden_act: str
    rms_norm_eps: float = Field(gt=0, allow_inf_nan=False)
    max_position_embeddings: Size | None = 8192


def _sized(keys: SpeculatorsKeys, qk_norm: bool) -> int:
    ids = keys.eagle_aux_hidden_state_layer_ids
    extra = keys.transformer_layer_config.get("num_aux_hidden_states")
    return extra if isinstance(extra, int) else len(ids) if ids and qk_norm else 3


NESTED_RULES = NestedRules(
    title="vLLM",
    spelling=replace(SPELLING, layer0=("layers.0.", "midlayer.")),
    strict=lambda _config: True,
    passes_over=passes_over,
    powers=POWERS,
    default_type="llama",
    absent_residual=True,
    config_classes=False,
    layer_config=BareLayerConfig,
    sized_by=_sized,
    bare_qwen3_theta=1e6,
    qwen3_output_bias=False,
    absent_vocabulary=True,
    parallel=True,
    loses_parallel=("fc_norm",),
    bare_masks=("dflash_config", *MASK_TOKENS[:2]),
    refuses_bare={
        "bias": (None, False),
        "eagle_config": (None,),
        "logit_scale": (None, 1.0),
        "num_aux_layers": (None,),
        "qkv_bias": (None,),
    },
    remarks=(_window_of_the_target, NAMING.remarks),
)


def is_nested(config: Mapping[str, Any]) -> bool:
    """A folder in speculators' form has no model_type."""
    return "speculators_model_type" in config and "model_type" not in config


def forms(nested: NestedRules, flat: FlatRules) -> tuple[Form, ...]:
    """Speculators' folders, vLLM's own wrapper, and flat ones."""
    return (
        Form(is_nested, nested),
        Form(is_wrapped, flat, unwrapped),
        Form(lambda _config: True, flat),
    )


VLLM_0_30 = Release(
    engine="vllm",
    title="vLLM",
    since="0.30",
    until="0.33",
    forms=forms(NESTED_RULES, RULES),
    refuses=refuses,
    captures=_captures,
    naming=NAMING,
    hands_out=vllm_first,
    consolidated_first=True,
    joined_flags=("-O",),
)
