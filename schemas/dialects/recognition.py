"""By which signs a folder is taken for a dialect, and how much each of them says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_interop.schemas.dialects.keys import (
    IDS,
    architecture,
    is_wrapped,
    nested_keys,
    parallel_signs,
)

STOCK = "LlamaForCausalLMEagle3"
"""SGLang's own draft class, and the name that SpecForge and ModelOpt write."""

PLUGIN = {False: "Eagle3LlamaForCausalLM", True: "Eagle3Qwen3ForCausalLM"}
"""The class of vLLM and of our plugin, by whether the draft has q/k norms."""

LATENT_STOCK = "Eagle3DeepseekV2ForCausalLM"
"""The class of SGLang and vLLM with latent attention (MLA)."""

LATENT_PLUGIN = "Eagle3DeepseekV3ForCausalLM"
"""vLLM's other name for its class, which stock SGLang does not know."""

LATENT_CLASSES = frozenset({LATENT_STOCK, LATENT_PLUGIN})

LLAMA_CLASSES = frozenset(
    {
        "Eagle3LlamaForCausalLM",
        "Eagle3MiniMaxM2ForCausalLM",
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
        "LlamaForCausalLMEagle3",
    }
)
"""Classes that vLLM runs as its llama class."""

KNOWN_TO_VLLM = LLAMA_CLASSES | LATENT_CLASSES | {PLUGIN[True]}


def is_latent(name: str, kv_rank: object) -> bool:
    """Whether a flat config is of a draft with latent attention.

    Args:
        name: its class.
        kv_rank: its ``kv_lora_rank``, which tells where nobody knows the class.
    """
    known = vllm_class(name)
    return known in LATENT_CLASSES or (known not in KNOWN_TO_VLLM and kv_rank is not None)


@dataclass(frozen=True)
class Sign:
    """What speaks for a dialect.

    Attributes:
        strength: of several dialects' signs the strongest counts.
        words: it, for people.
        guess: the ids were taken to count outputs only because of the place where they stand.
    """

    strength: int
    words: str
    guess: bool = False


OWN_KEYS, TOP_IDS, NESTED_IDS, STOCK_CLASS, KNOWN_CLASS, OTHER_CLASS = 60, 50, 40, 30, 20, 10
"""Strengths: keys that nobody else writes, ids in each place, and class names."""


def vllm_class(name: str) -> str:
    """The class name after vLLM's own prefixing (``configs/eagle.py``)."""
    known = name.startswith("Eagle3") or name.endswith("Eagle3")
    return name if known else f"Eagle3{name}"


def speculators(config: Mapping[str, Any]) -> Sign | None:
    """Its own ``speculators_model_type``."""
    kind = config.get("speculators_model_type")
    return None if kind is None else Sign(OWN_KEYS, f"speculators_model_type {kind}")


def sglang(config: Mapping[str, Any]) -> Sign | None:
    """A flat config with ids in ``eagle_config``, or SGLang's own class and no ids at all.

    A flat file with ids only in ``eagle_config`` counts as SGLang's: SpecForge, ModelOpt and SGLang all put
    them there, and count outputs.
    """
    if "speculators_model_type" in config and "num_hidden_layers" not in config:
        return None
    if parallel_signs(config) or is_wrapped(config):
        return None  # it knows no such draft, whoever wrote the folder
    name = architecture(config)
    if nested_keys(config).get(IDS):
        return Sign(NESTED_IDS, f"ids in eagle_config (architecture {name})", guess=True)
    if name in (STOCK, *PLUGIN.values(), *LATENT_CLASSES) and not config.get(IDS):
        strength = STOCK_CLASS if name == STOCK else OTHER_CLASS
        return Sign(strength, f"architecture {name}, no ids")
    return None


def vllm(config: Mapping[str, Any]) -> Sign | None:
    """A speculators folder, or a flat config: of a parallel draft, with top-level ids, or one of vLLM's classes."""
    if "speculators_model_type" in config:
        return Sign(OTHER_CLASS, "speculators_model_type, which vLLM reads too")
    if is_wrapped(config):
        return Sign(OWN_KEYS, "model_type eagle, its wrapper form")
    name = architecture(config)
    if signs := parallel_signs(config):
        return Sign(OWN_KEYS, f"parallel drafting ({', '.join(signs)})")
    if config.get(IDS):
        return Sign(TOP_IDS, f"top-level ids (architecture {name})")
    if nested_keys(config).get(IDS):
        return None
    if vllm_class(name) in KNOWN_TO_VLLM:
        return Sign(KNOWN_CLASS, f"architecture {name}")
    if name in ("LlamaEagle3DraftModel", "DeepseekV3Eagle3DraftModel"):
        return Sign(OTHER_CLASS, f"architecture {name}, which no engine knows")
    return None
