"""vLLM 0.32: the flat form of its llama and qwen3 classes, and speculators' folders as vLLM reads them.

Source of the facts: ``model_executor/models/{llama,qwen3}_eagle3.py``, ``v1/worker/gpu_model_runner.py``,
``transformers_utils/configs/{eagle.py,speculators/}``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eagle3_interop.schemas import speculators
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding, finding
from eagle3_interop.schemas.flat import (
    CONFIG,
    IDS,
    FlatDialect,
    FlatKeys,
    flat_config,
    mixed_windows,
    read_flat,
    zero_biases,
)
from eagle3_interop.schemas.layout import Reading, Source, TargetFacts, Wishes, Writing
from eagle3_interop.schemas.powers import Powers, lacks
from eagle3_interop.schemas.tensors import Spelling

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

_NO_EMBEDDING_TAP = frozenset({"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25"})


def vllm_class(architecture: str) -> str:
    """The class name after vLLM's own prefixing (``configs/eagle.py``)."""
    known = architecture.startswith("Eagle3") or architecture.endswith("Eagle3")
    return architecture if known else f"Eagle3{architecture}"


def _ids(
    keys: FlatKeys, _target: TargetFacts | None
) -> tuple[list[int] | None, str, Callable[[list[int]], list[int]]]:
    if keys.eagle_aux_hidden_state_layer_ids:
        return keys.eagle_aux_hidden_state_layer_ids, f"{CONFIG}: {IDS}", list
    nested = keys.nested.eagle_aux_hidden_state_layer_ids
    return nested, f"{CONFIG}: eagle_config.{IDS}" if nested else f"{CONFIG}: {IDS}", list


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


def recognise(config: Mapping[str, Any], names: Sequence[str]) -> str | None:  # noqa: ARG001
    """A speculators folder, or a flat config with top-level ids or one of vLLM's classes and no ids."""
    if "speculators_model_type" in config:
        return "speculators_model_type, which vLLM reads too"
    architecture = (config.get("architectures") or [""])[0]
    if config.get(IDS):
        return f"top-level ids (architecture {architecture})"
    nested = config.get("eagle_config")
    if isinstance(nested, Mapping) and nested.get(IDS):
        return None
    if vllm_class(architecture) in _KNOWN:
        return f"architecture {architecture}"
    if architecture == "LlamaEagle3DraftModel":
        return f"architecture {architecture}, which no engine knows"
    return None


def loads(config: Mapping[str, Any]) -> bool:
    """VLLM starts with a speculators folder and with the classes it registers."""
    if "speculators_model_type" in config and "model_type" not in config:
        return True
    return vllm_class((config.get("architectures") or [""])[0]) in _KNOWN


def read(source: Source, target: TargetFacts | None) -> Reading:
    """Read as vLLM 0.32 does: a flat folder, or one in speculators' form (which has no model_type)."""
    config = source.config
    if "speculators_model_type" in config and "model_type" not in config:
        return speculators.read_as_vllm(source, target)
    reading = read_flat(source, target, DIALECT)
    said = list(reading.findings)
    architecture = (config.get("architectures") or [""])[0]
    if vllm_class(architecture) not in _KNOWN:
        message = f"{architecture!r} is no draft class of vLLM; it is read as its llama class."
        said.append(finding("unknown-architecture", f"{CONFIG}: architectures", message))
    nested = (config.get("eagle_config") or {}).get(IDS)
    where = f"{CONFIG}: eagle_config.{IDS}"
    if nested and not config.get(IDS):
        message = (
            f"{nested} stand in eagle_config, where SGLang, SpecForge and ModelOpt count outputs. vLLM's "
            "V1 runner takes them as they are, one layer early by that count; its V2 runner ignores them."
        )
        said.append(finding("nested-ids", where, message, settled_by="taps"))
    elif nested and [value + 1 for value in nested] != config[IDS]:
        message = f"{nested} beside {config[IDS]} at the top level, which is what vLLM feeds."
        said.append(finding("ids-unread", where, message))
    return replace(reading, findings=tuple(said))


def write(draft: Draft, wishes: Wishes) -> Writing:
    """Write vLLM's flat form."""
    qk_norm = draft.layers.attention.qk_norm
    powers = POWERS[qk_norm]
    config = flat_config(draft, ARCHITECTURES[qk_norm], wishes.extras)
    findings = [
        *mixed_windows(draft),
        *lacks(draft, powers),
        *write_ids(config, draft, wishes.target),
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
        config["eagle_config"] = {**config.get("eagle_config", {}), "use_aux_hidden_state": False}
        message = "vLLM's V2 model runner asks for aux states all the same: use its V1 runner."
        findings.append(finding("no-fc-runner", "eagle_config.use_aux_hidden_state", message))
        return findings
    config["num_aux_layers"] = draft.fc.blocks
    if draft.taps is None:
        return findings
    config[IDS] = list(draft.taps)
    config["eagle_config"] = {**config.get("eagle_config", {}), "layer_ids": list(draft.taps)}
    if target is not None and target.model_type in _NO_EMBEDDING_TAP and draft.taps[0] == 0:
        message = f"a {target.model_type} target in vLLM fails on a tap before its first layer."
        findings.append(finding("embedding-tap", f"{CONFIG}: {IDS}", message))
    return findings
