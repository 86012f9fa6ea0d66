"""The sliding window that an engine takes for a whole target, which some hand on to the draft."""

from collections.abc import Mapping
from typing import Any

from eagle3_interop.schemas.draft import LARGEST

_SLIDING_BY_DEFAULT = ("ministral", "mistral")
"""Model types that slide where nothing is said (transformers 5.19)."""

_MIXED = frozenset(
    """
    afmoe cohere2 cohere2_moe cohere_compass_text cwm deepseek_v4 dots1 exaone4 exaone_moe gemma2
    gemma3_text gemma3n_text gemma4_text gpt_oss granite_swa granitemoe_swa laguna mellum
    mimo_v2_flash muse_glimmer_text neomme olmo3 qwen2_moe smollm3 vaultgemma
    """.split()  # noqa: SIM905
)
"""Model types that have layers without a window where none are listed (transformers 5.19)."""


def window_of(config: Mapping[str, Any]) -> int | None:
    """The sliding window that vLLM takes for a whole model: of a config whose layers all slide.

    Source: vLLM 0.32 ``engine/arg_utils.py``, over a config as transformers 5.19 fills it in.

    Args:
        config: of the language model.
    """
    kind, types = str(config.get("model_type")), config.get("layer_types")
    switched = kind.startswith(("qwen2", "qwen3"))
    if switched and not config.get("use_sliding_window"):
        return None
    if isinstance(types, list):
        slides = all(one == "sliding_attention" for one in types)
    elif switched and kind not in (*_MIXED, "qwen3_moe"):
        first = config.get("max_window_layers", 28)
        slides = isinstance(first, int) and first <= 0
    else:
        slides = kind not in _MIXED
    implied = {"sliding_window": 4096} if switched or kind in _SLIDING_BY_DEFAULT else {}
    found = {**implied, **config}.get("sliding_window")
    return found if slides and type(found) is int and 0 < found <= LARGEST else None
