"""NeMo Automodel: the draft's config is the target's, and its attention has no window whatever that says.

Source: ``nemo_automodel/components/speculative/eagle/draft_llama.py``; the config is built by the recipe
``recipes/llm/train_eagle3.py``, which also takes the layer ids. Latent attention (``draft_deepseek.py``) scales its scores
without yarn's ``mscale_all_dim``, which engines take twice.
"""

from typing import Any

from eagle3_interop.schemas.dialects.base import Source
from eagle3_interop.schemas.dialects.keys import architecture
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.trainers.base import Deviation, Signature, Trainer

_CLASSES = ("LlamaEagle3DraftModel", "DeepseekV3Eagle3DraftModel")
_KEY = "parallel_drafting"


def _signs(source: Source) -> Signature | None:
    if (name := architecture(source.config)) in _CLASSES:
        return Signature("certain", f"architecture {name}")
    if _KEY in source.config and any(name.startswith("model.layers.") for name in source.tensors):
        return Signature("certain", f"{_KEY} with model.layers.")
    return None


def _without_windows(_source: Source, draft: Draft) -> tuple[None, ...]:
    return (None,) * draft.layers.count


def _plain_scale(_source: Source, draft: Draft) -> Any:  # noqa: ANN401 - a value of the description
    attention = draft.layers.attention
    if attention.kind != "mla":
        return None
    return float(f"{(attention.nope_dim + attention.rope_dim) ** -0.5:.12g}")


AUTOMODEL = Trainer(
    name="automodel",
    title="NeMo Automodel",
    signs=_signs,
    deviations=(
        Deviation("target-window", "layers.windows", _without_windows),
        Deviation("plain-scale", "layers.attention.softmax_scale", _plain_scale),
    ),
    drops=(_KEY,),
    ids_option="aux_layer_ids",
)
