"""SafeAILab/EAGLE: ``traineagle3`` builds its rotation without the config's base.

Source: ``eagle/traineagle3/cnets.py``, ``_init_rope``: plain and linear ropes alike take no base.
"""

from eagle3_interop.schemas.dialects.base import Source
from eagle3_interop.schemas.dialects.keys import architecture
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.trainers.base import Signature, Trainer
from eagle3_interop.schemas.trainers.rope_base import unread_base


def _signs(source: Source) -> Signature | None:
    names = source.tensors
    if architecture(source.config) != "LlamaForCausalLM" or "t2d" not in names:
        return None
    if "embed_tokens.weight" in names or not any(name.startswith("midlayer.") for name in names):
        return None
    return Signature("likely", "LlamaForCausalLM with midlayer., and no embedding table")


def _unread(_source: Source, draft: Draft) -> bool:
    return draft.rope.scaling in (None, "linear")


EAGLE = Trainer(
    name="eagle",
    title="EAGLE",
    signs=_signs,
    deviations=(unread_base(_unread),),
)
