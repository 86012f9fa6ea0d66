"""NeMo Automodel: the draft's config is the target's, and its attention has no window whatever that says.

Latent attention (``draft_deepseek.py``) multiplies neither cosines nor scores by an mscale, and takes a rope for yarn
only where all its numbers stand there and the config declares more positions than the original ones.
Its forward knows no softcap, and takes whatever activation the config names. Source:
``nemo_automodel/components/speculative/eagle/draft_llama.py``; the config is built by the recipe
``recipes/llm/train_eagle3.py``, which also takes the layer ids.
"""

from eagle3_interop.schemas.dialects.base import Source
from eagle3_interop.schemas.dialects.keys import architecture
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.trainers.base import Deviation, Signature, Trainer
from eagle3_interop.schemas.trainers.latent import (
    amplitude_left,
    is_latent,
    rope_dict,
    scores_left,
)

_CLASSES = ("LlamaEagle3DraftModel", "DeepseekV3Eagle3DraftModel")
_YARN = ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings")
_KEY = "parallel_drafting"


def _signs(source: Source) -> Signature | None:
    if (name := architecture(source.config)) in _CLASSES:
        return Signature("certain", f"architecture {name}")
    if _KEY in source.config and any(name.startswith("model.layers.") for name in source.tensors):
        return Signature("certain", f"{_KEY} with model.layers.")
    return None


def _without_windows(_source: Source, draft: Draft) -> tuple[None, ...]:
    return (None,) * draft.layers.count


def _kind(source: Source, draft: Draft) -> str | None:
    rope = rope_dict(source)
    if not is_latent(draft):
        return draft.rope.scaling
    numbers = [rope.get(key) for key in _YARN]
    whole = all(number is not None for number in numbers)
    original = draft.rope.parameters.get(_YARN[-1], draft.max_position)
    return "yarn" if whole and draft.max_position > original else None


AUTOMODEL = Trainer(
    name="automodel",
    title="NeMo Automodel",
    signs=_signs,
    deviations=(
        Deviation("target-window", "layers.windows", _without_windows),
        Deviation("rope-kind", "rope.scaling", _kind),
        amplitude_left(),
        scores_left(lambda _source, _draft: True),
    ),
    drops=(_KEY,),
    settles=("attn_logit_softcapping", "final_logit_softcapping", "layers.mlp.activation"),
    ids_option="aux_layer_ids",
)
