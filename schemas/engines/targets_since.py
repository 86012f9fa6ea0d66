"""Since which release a target's class hands hidden states out, where it did not from the oldest known one on.

Read in the wheels: classes whose bases promise ``SupportsEagle3`` (vLLM), classes that have or inherit
``set_eagle3_layers_to_capture`` (SGLang). Classes that are not named here are not known, or were always able.
"""

from eagle3_interop.schemas.dialects.base import TargetFacts
from eagle3_interop.schemas.engines.versions import numbers

_VLLM = {
    "0.11.1": "Llama4ForConditionalGeneration Qwen2_5_VLForConditionalGeneration Qwen3MoeForCausalLM",
    "0.12": """OpenCUAForConditionalGeneration Qwen3VLForConditionalGeneration
        Qwen3VLMoeForConditionalGeneration""",
    "0.14": "IQuestCoderForCausalLM",
    "0.15": "LlavaForConditionalGeneration",
    "0.16": """AfmoeForCausalLM HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM
        HunYuanVLForConditionalGeneration InternS1ProForConditionalGeneration LightOnOCRForConditionalGeneration
        Mistral3ForConditionalGeneration""",
    "0.17": "Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration",
    "0.18": """ApertusForCausalLM ArceeForCausalLM DeepseekForCausalLM DeepseekV2ForCausalLM
        DeepseekV32ForCausalLM DeepseekV3ForCausalLM GlmMoeDsaForCausalLM KimiK25ForConditionalGeneration
        MistralLarge3ForCausalLM Step1ForCausalLM""",
    "0.19": "PixtralForConditionalGeneration",
    "0.19.1": "Gemma4ForCausalLM Gemma4ForConditionalGeneration",
    "0.20": """Exaone4_5_ForConditionalGeneration MiniMaxM2ForCausalLM Ministral3ForCausalLM
        TeleChat3ForCausalLM""",
    "0.21": "LagunaForCausalLM",
    "0.22": "InternS2PreviewForConditionalGeneration NemotronHForCausalLM NemotronHPuzzleForCausalLM",
    "0.22.1": "MellumForCausalLM",
    "0.23": "Cosmos3ForConditionalGeneration Gemma4UnifiedForConditionalGeneration",
    "0.24": "Qwen3NextForCausalLM",
    "0.25": "MiMoV2FlashForCausalLM MiMoV2ForCausalLM",
    "0.27": "Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM",
    "0.28": """InternS2MobiusForConditionalGeneration MuseGlimmerForCausalLM
        MuseGlimmerForConditionalGeneration""",
    "0.29": "Plamo3ForCausalLM Qwen3OmniMoeForConditionalGeneration",
}
_SGLANG = {
    "0.5.5": "DeepseekV2ForCausalLM DeepseekV32ForCausalLM DeepseekV3ForCausalLM Glm4MoeForCausalLM",
    "0.5.6": "LongcatFlashForCausalLM MiniMaxM2ForCausalLM TeleFLMForCausalLM",
    "0.5.7": "Ministral3ForCausalLM MistralLarge3ForCausalLM",
    "0.5.8": "Glm4MoeLiteForCausalLM IQuestCoderForCausalLM",
    "0.5.9": """BailingMoEForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM ExaoneMoEForCausalLM
        GlmMoeDsaForCausalLM Qwen3NextForCausalLM""",
    "0.5.10": "KimiK25ForConditionalGeneration SarvamMoEForCausalLM",
    "0.5.11": """InternS1ProForConditionalGeneration Qwen3VLForConditionalGeneration
        Qwen3VLMoeForConditionalGeneration Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration""",
    "0.5.12": """Gemma3ForCausalLM Gemma3ForConditionalGeneration Gemma4ForCausalLM
        Gemma4ForConditionalGeneration InternS2PreviewForConditionalGeneration""",
    "0.5.13": "Gemma4UnifiedForConditionalGeneration",
    "0.5.16": "MellumForCausalLM MiniMaxM3SparseForCausalLM",
    "0.5.18": "InternS2MobiusForConditionalGeneration MiniMaxM3SparseForConditionalGeneration",
    "0.5.20": """Cosmos3ForConditionalGeneration Glm5NextForConditionalGeneration
        Qwen4ExpForConditionalGeneration""",
    "0.5.22": "ExaoneMoeForCausalLM Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM",
}


def _by_class(by_version: dict[str, str]) -> dict[str, str]:
    return {name: version for version, names in by_version.items() for name in names.split()}


VLLM_SINCE = _by_class(_VLLM)
SGLANG_SINCE = _by_class(_SGLANG)

LLAMA_LOOP = frozenset(
    """
    InternLM3ForCausalLM IQuestCoderForCausalLM LlamaForCausalLM MistralForCausalLM Phi3ForCausalLM
    TeleFLMForCausalLM
    """.split()  # noqa: SIM905
)
"""Classes with the loop of ``models/llama.py``, which added a residual that is None before the first layer."""

QWEN_LOOP = frozenset({"Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Classes with the loop of vLLM's ``models/qwen2.py``, which did likewise."""

_TYPES = {
    "0.11": ("llama", "qwen", "minicpm", "gpt_oss"),
    "0.16": ("hunyuan_vl", "hunyuan_v1_dense", "afmoe"),
    "0.17": ("nemotron_h",),
    "0.18": ("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"),
    "0.19.1": ("minimax_m2", "gemma4"),
    "0.21": ("laguna",),
    "0.22": ("",),
}
"""One of which vLLM's ``config/speculative.py`` looked for in a target's model_type; since 0.22 it takes any."""


def vllm_first(target: TargetFacts) -> str | None:
    """The first vLLM that takes hidden states from this target; None, where nothing is known or every one does."""
    name = next(iter(target.architectures), "")
    by_class = VLLM_SINCE.get(name)
    text = name.endswith("ForCausalLM") and target.model_type
    if not text:
        return by_class
    by_type = next(since for since, words in _TYPES.items() if any(x in text for x in words))
    first = max((by_class or "0.11", by_type), key=numbers)
    return None if first == "0.11" else first


def sglang_first(target: TargetFacts) -> str | None:
    """The first SGLang that takes hidden states from this target; None, where nothing is known or every one does."""
    return SGLANG_SINCE.get(next(iter(target.architectures), ""))
