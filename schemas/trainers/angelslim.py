"""AngelSlim: its rotation is built without the config's base, but for those with sections.

Source: ``angelslim/compressor/speculative/train/models/draft/llama_eagle3.py``, ``_init_rope``.
"""

from collections.abc import Mapping

from eagle3_interop.schemas.dialects.base import Source
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.trainers.base import Signature, Trainer
from eagle3_interop.schemas.trainers.rope_base import unread_base

_KEY = "target_model_type"


def _signs(source: Source) -> Signature | None:
    return Signature("certain", _KEY) if _KEY in source.config else None


def _unread(source: Source, draft: Draft) -> bool:
    rope = source.config.get("rope_parameters") or source.config.get("rope_scaling")
    scaling = rope if isinstance(rope, Mapping) else {}
    sections = scaling.get("type", scaling.get("rope_type")) == "mrope"
    if sections or scaling.get("mrope_interleaved"):
        return False
    return draft.rope.scaling in (None, "linear")


ANGELSLIM = Trainer(
    name="angelslim",
    title="AngelSlim",
    signs=_signs,
    deviations=(unread_base(_unread),),
    drops=(_KEY,),
)
