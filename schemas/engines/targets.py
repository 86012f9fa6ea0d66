"""What the engines' target classes make of ids, where they differ from the others of their engine.

SGLang 0.5.23: every registered class was asked, and its loop over the layers run
(``tests/engines/sglang_capture_rules.py``). vLLM 0.32.0: read, every registered class with ``SupportsEagle3``
in its bases and the loop of the model inside.
"""

from eagle3_interop.schemas.dialects.base import TargetFacts
from eagle3_interop.schemas.draft import LARGEST, Draft

SGLANG_IDS_AS_TAPS = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    }
)
"""Ids are taps, unless the first is 1: ``deepseek_v2.py``, its subclasses, and ``glm4_moe_lite.py``."""

SGLANG_GPT_OSS = "GptOssForCausalLM"
"""Ids are taps if the largest is the depth: ``gpt_oss.py``."""

SGLANG_LATE_DEFAULT = "MiniMaxM3SparseForConditionalGeneration"
"""The default triple is shifted as well: ``minimax_m3_vl.py``."""

SGLANG_CAPTURES_THE_END = frozenset(
    {
        SGLANG_GPT_OSS,
        SGLANG_LATE_DEFAULT,
        "MiniMaxM3SparseForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
    }
)
"""Tap L can be captured; in every other class it is one hidden state too few."""

SGLANG_WITHOUT_RESIDUAL = frozenset({"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"})
"""Layers hand on their MLP's output and the residual apart, and only the former is captured:
``gemma3_causal.py``."""

_DEEPSEEK_LOOP = frozenset(
    {
        "DeepseekForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    }
)
"""``models/deepseek_v2.py``: a stream plus None."""

_AFTER_LAYERS_ONLY = frozenset(
    {
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForConditionalGeneration",
        "DeepseekV41ForCausalLM",
    }
)
"""``vllm/models/deepseek_v4``, ``deepseek_v41``: one hidden state too few."""

_TRANSFORMERS_BACKEND = frozenset(
    {
        "ArceeForCausalLM",
        "CwmForCausalLM",
        "Emu3ForConditionalGeneration",
        "FlexOlmoForCausalLM",
        "GPTBigCodeForCausalLM",
        "GPTNeoXForCausalLM",
        "GlmForCausalLM",
        "HunYuanDenseV1ForCausalLM",
        "HunYuanMoEV1ForCausalLM",
        "HunYuanVLForConditionalGeneration",
        "Jais2ForCausalLM",
        "MellumForCausalLM",
        "NanbeigeForCausalLM",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "OlmoForCausalLM",
        "PhiForCausalLM",
        "SeedOssForCausalLM",
        "SmolLM3ForCausalLM",
        "Starcoder2ForCausalLM",
        "TransformersForCausalLM",
        "TransformersMoEForCausalLM",
        "TransformersMultiModalForCausalLM",
        "TransformersMultiModalMoEForCausalLM",
        "VaultGemmaForCausalLM",
        "VibeVoiceAsrForConditionalGeneration",
    }
)
"""``models/registry.py``; ``models/transformers/base.py`` looks for a layer -1."""

VLLM_NO_EMBEDDING = _DEEPSEEK_LOOP | _AFTER_LAYERS_ONLY | _TRANSFORMERS_BACKEND
"""A tap on the embeddings makes vLLM fail."""

VLLM_SPARSE = frozenset({"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"})
"""``vllm/models/deepseek_v32`` has a loop a platform: the embeddings are captured on CUDA alone, the end
everywhere but on CUDA and ROCm."""

VLLM_MAY_HOLD_DEEPSEEK = frozenset(
    {"Mistral3ForConditionalGeneration", "PixtralForConditionalGeneration"}
)
"""Their language model is whatever the text config names, Mistral Large 3 included."""

VLLM_CAPTURES_NOTHING = frozenset({"CohereCompassForConditionalGeneration", "MiMoForCausalLM"})
"""Classes that inherit the promise and not the capture: ``models/cohere_compass.py``, ``models/mimo.py``."""

_BY_MODEL_TYPE = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4": "Gemma4ForConditionalGeneration",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4_unified": "Gemma4UnifiedForConditionalGeneration",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "kimi_k25": "KimiK25ForConditionalGeneration",
    "mimo": "MiMoForCausalLM",
    "minimax_m3": "MiniMaxM3SparseForCausalLM",
    "minimax_m3_vl": "MiniMaxM3SparseForConditionalGeneration",
}

_SPECIAL = (
    SGLANG_IDS_AS_TAPS
    | SGLANG_CAPTURES_THE_END
    | VLLM_NO_EMBEDDING
    | VLLM_SPARSE
    | VLLM_MAY_HOLD_DEEPSEEK
    | VLLM_CAPTURES_NOTHING
)


def special_class(target: TargetFacts | None) -> str:
    """The target's class if it is one of this page's, else an empty string.

    Args:
        target: engines go by its architectures; its model type speaks where none of them is known here.
    """
    if target is None:
        return ""
    names = (*target.architectures, _BY_MODEL_TYPE.get(target.model_type, ""))
    return next((name for name in names if name in _SPECIAL), "")


def class_named(draft: Draft) -> TargetFacts | None:
    """What a draft's own config says of a target that is not at hand: its class, where it names one.

    Of the target only the class is known: no rule that asks for its depth applies.
    """
    if not draft.target.architectures:
        return None
    return TargetFacts(
        name=draft.target.name or "",
        hidden_size=draft.target.hidden_size,
        layers=LARGEST,
        vocab_size=draft.vocabulary.target_size,
        model_type="",
        architectures=draft.target.architectures,
    )


def facts_named(draft: Draft) -> TargetFacts | None:
    """`class_named`, where that class reads ids its own way."""
    facts = class_named(draft)
    return facts if special_class(facts) in SGLANG_IDS_AS_TAPS else None


def taps_of(draft: Draft, target: TargetFacts) -> tuple[int, ...]:
    """The taps that this target feeds; none where it is too shallow, which is refused by its own name."""
    try:
        return draft.fed_taps(target.layers)
    except ValueError:
        return ()
