"""vLLM 0.32: the flat form of its llama and qwen3 classes, and speculators' folders as vLLM reads them.

Source of the facts: ``model_executor/models/{llama,qwen3}_eagle3.py``, ``v1/worker/gpu_model_runner.py``,
``transformers_utils/configs/{eagle.py,speculators/}``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eagle3_interop.schemas.dialects import speculators
from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts, Wishes, Writing
from eagle3_interop.schemas.dialects.flat import FlatDialect, read_flat
from eagle3_interop.schemas.dialects.hf import CONFIG, UNBOUNDED
from eagle3_interop.schemas.dialects.keys import (
    IDS,
    NESTED,
    NO_MODEL_TYPE,
    OTHER_IDS,
    FlatKeys,
    architecture,
    layer_config,
    nested_keys,
)
from eagle3_interop.schemas.dialects.reading import cannot
from eagle3_interop.schemas.dialects.sglang import ids_to_taps
from eagle3_interop.schemas.dialects.spelling import Spelling
from eagle3_interop.schemas.dialects.writing import (
    flat_config,
    mixed_windows,
    target_window,
    widen_windows,
    zero_biases,
)
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.engines import targets
from eagle3_interop.schemas.engines.powers import Powers, lacks
from eagle3_interop.schemas.findings import Finding, finding

ARCHITECTURES = {False: "Eagle3LlamaForCausalLM", True: "Eagle3Qwen3ForCausalLM"}
"""The class, by whether the draft has q/k norms."""

_LLAMA_CLASSES = frozenset(
    {
        "Eagle3LlamaForCausalLM",
        "Eagle3MiniMaxM2ForCausalLM",
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
        "LlamaForCausalLMEagle3",
    }
)
_KNOWN = _LLAMA_CLASSES | {ARCHITECTURES[True]}

SPELLING = Spelling(roots=("",), layer0=("midlayer.", "layers.0."), later_norm="input_layernorm")

POWERS = {
    False: Powers(engine="vLLM's llama class", mlp_bias=True, logit_scale=True),
    True: Powers(
        engine="vLLM's qwen3 class",
        qk_norm=True,
        attention_biases=frozenset({"qkv"}),
        logit_scale=True,
    ),
}


def vllm_class(name: str) -> str:
    """The class name after vLLM's own prefixing (``configs/eagle.py``)."""
    known = name.startswith("Eagle3") or name.endswith("Eagle3")
    return name if known else f"Eagle3{name}"


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
    name = vllm_class(keys.architectures[0]) if keys.architectures else ""
    return POWERS[name == ARCHITECTURES[True]]


DIALECT = FlatDialect(
    engine="vLLM",
    spelling=SPELLING,
    powers=_powers,
    ids=_ids,
    blocks=_blocks,
    default_taps=lambda _target: None,
    replaces_embeddings=False,
)


def recognise(config: Mapping[str, Any]) -> str | None:
    """A speculators folder, or a flat config with top-level ids or one of vLLM's classes and no ids."""
    if "speculators_model_type" in config:
        return "speculators_model_type, which vLLM reads too"
    name = architecture(config)
    if config.get(IDS):
        return f"top-level ids (architecture {name})"
    if nested_keys(config).get(IDS):
        return None
    if vllm_class(name) in _KNOWN:
        return f"architecture {name}"
    if name == "LlamaEagle3DraftModel":
        return f"architecture {name}, which no engine knows"
    return None


def refuses(config: Mapping[str, Any]) -> str:
    """VLLM starts with a speculators folder, which it knows by ``speculators_config``, and with its classes."""
    if config.get("model_type") is None:
        if "speculators_model_type" not in config:
            return NO_MODEL_TYPE
        known = config.get("speculators_config") is not None
        return "" if known else "no speculators_config, by which vLLM knows such a folder."
    name = architecture(config)
    return "" if vllm_class(name) in _KNOWN else f"architecture {name!r} is no draft class of vLLM."


def read(source: Source, target: TargetFacts | None) -> Reading:
    """Read as vLLM 0.32 does: a flat folder, or one in speculators' form (which has no model_type)."""
    config = source.config
    if "speculators_model_type" in config and "model_type" not in config:
        reading = speculators.read_as_vllm(source, target)
        unable = cannot(reading.draft, POWERS[reading.draft.layers.gqa.qk_norm])
        said = [*reading.findings, *unable, *_window_of_the_target(config, reading.draft, target)]
        return replace(reading, findings=tuple(said))
    reading = read_flat(source, target, DIALECT)
    said = [*reading.findings, *_window_of_the_target(config, reading.draft, target)]
    name = architecture(config)
    if vllm_class(name) not in _KNOWN:
        message = f"{name!r} is no draft class of vLLM; it is read as its llama class."
        said.append(finding("unknown-architecture", f"{CONFIG}: architectures", message))
    nested = nested_keys(config)
    said += _nested_ids(config.get(IDS), nested.get("layer_ids"), nested.get(IDS), target)
    if not config.get(IDS):
        message = "vLLM looks there for ids where eagle_aux_hidden_state_layer_ids names none."
        said += [
            finding("nested-ids", f"{CONFIG}: {key}", message, settled_by="taps")
            for key in OTHER_IDS
            if config.get(key)
        ]
    return replace(reading, findings=tuple(said))


def _window_of_the_target(
    config: Mapping[str, Any], draft: Draft, target: TargetFacts | None
) -> Iterator[Finding]:
    own = layer_config(config).get("sliding_window")
    written = isinstance(own, int) and own >= UNBOUNDED
    if (window := target_window(draft, target)) and not written:
        message = f"layers without a window slide by the target's {window} positions in vLLM; read without."
        where = "layers.windows"
        yield finding("target-window", where, message, settled_by=where)


def _nested_ids(
    top: Sequence[int] | None,
    second: Sequence[int] | None,
    third: Sequence[int] | None,
    target: TargetFacts | None,
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
        else:
            message += " SGLang would feed other taps."
            yield finding("ids-disagree", f"{nested}.{IDS}", message, settled_by="taps")


def draft_class(draft: Draft, wishes: Wishes) -> Powers:  # noqa: ARG001
    """The class by the kind of decoder layer."""
    return POWERS[draft.layers.gqa.qk_norm]


def write(draft: Draft, wishes: Wishes) -> Writing:
    """Write vLLM's flat form."""
    powers = draft_class(draft, wishes)
    config = flat_config(draft, ARCHITECTURES[powers.qk_norm], wishes.extras)
    findings = [
        *mixed_windows(draft),
        *lacks(draft, powers),
        *write_ids(config, draft, wishes.target),
        *widen_windows(config, draft, wishes.target),
    ]
    return Writing(
        config=config, spelling=SPELLING, findings=tuple(findings), zeros=zero_biases(draft, powers)
    )


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
        message = "vLLM's V2 model runner asks for aux states all the same: use its V1 runner."
        findings.append(finding("no-fc-runner", "eagle_config.use_aux_hidden_state", message))
        return findings
    config["num_aux_layers"] = draft.fc.blocks
    if draft.taps is not None:
        config[IDS] = list(draft.taps)
        config[NESTED] = {**config.get(NESTED, {}), "layer_ids": list(draft.taps)}
    if target is not None:
        findings += uncaptured(draft, target)
    return findings


def uncaptured(draft: Draft, target: TargetFacts) -> Iterator[Finding]:
    """What the target's class cannot capture, or on some platforms only."""
    if draft.fc is None:
        return
    taps = draft.resolved_taps(target.layers) or ()
    name, where = targets.special_class(target), f"{CONFIG}: {IDS}"
    if name in targets.VLLM_CAPTURES_NOTHING:
        message = f"vLLM 0.32's {name} says that it captures hidden states, and does not."
        yield finding("target-captures-nothing", where, message)
    if 0 in taps and name in targets.VLLM_NO_EMBEDDING:
        message = f"vLLM 0.32's {name} fails on a tap before its first layer."
        fix = "Serve with SGLang." if name in targets.SGLANG_IDS_AS_TAPS else None
        yield finding("embedding-tap", where, message, fix=fix)
    if 0 in taps and name in targets.VLLM_SPARSE:
        message = (
            f"vLLM 0.32's {name} fails on a tap before its first layer, unless it runs on CUDA."
        )
        yield finding("embedding-tap-depends", where, message, fix="Else serve with SGLang.")
    if 0 in taps and name in targets.VLLM_MAY_HOLD_DEEPSEEK:
        message = (
            f"vLLM 0.32's {name} fails on a tap before its first layer if it holds Mistral Large 3."
        )
        yield finding("embedding-tap-depends", where, message)
    if target.layers in taps and name in targets.VLLM_SPARSE:
        message = (
            f"tap {target.layers} lies after the last layer, which vLLM 0.32's {name} never captures on CUDA "
            "and ROCm."
        )
        yield finding("end-tap", where, message)
