"""NeMo Automodel: the draft's config is the target's, and its attention has no window whatever that says.

Source: ``nemo_automodel/components/speculative/eagle/draft_llama.py``; the config is built by the recipe
``recipes/llm/train_eagle3.py``, which also takes the layer ids.
"""

from eagle3_interop.schemas.dialects.base import Source
from eagle3_interop.schemas.dialects.keys import architecture
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.trainers.base import Deviation, Signature, Trainer

_CLASS = "LlamaEagle3DraftModel"
_KEY = "parallel_drafting"


def _signs(source: Source) -> Signature | None:
    if architecture(source.config) == _CLASS:
        return Signature("certain", f"architecture {_CLASS}")
    if _KEY in source.config and any(name.startswith("model.layers.") for name in source.tensors):
        return Signature("certain", f"{_KEY} with model.layers.")
    return None


def _without_windows(_source: Source, draft: Draft) -> tuple[None, ...]:
    return (None,) * draft.layers.count


AUTOMODEL = Trainer(
    name="automodel",
    title="NeMo Automodel",
    signs=_signs,
    deviations=(Deviation("target-window", "layers.windows", _without_windows),),
    drops=(_KEY,),
    ids_option="aux_layer_ids",
)
