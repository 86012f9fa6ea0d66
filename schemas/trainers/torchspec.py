"""TorchSpec: scaled rotations are built without the config's base, by kind and by transformers' generation.

Source: ``torchspec/models/draft/llama3_eagle.py``, ``_init_rope``. Linear ropes never get the base; with transformers 5,
which takes the base into ``rope_scaling``, yarn does not either.
"""

from collections.abc import Mapping

from eagle3_interop.schemas.dialects.base import Source
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.trainers.base import Signature, Trainer
from eagle3_interop.schemas.trainers.rope_base import unread_base

_KEY = "_torchspec_version"


def _signs(source: Source) -> Signature | None:
    return Signature("certain", _KEY) if _KEY in source.config else None


def _unread(source: Source, draft: Draft) -> bool:
    scaling = source.config.get("rope_scaling")
    newer = isinstance(scaling, Mapping) and "rope_theta" in scaling
    return draft.rope.scaling == "linear" or (newer and draft.rope.scaling == "yarn")


TORCHSPEC = Trainer(
    name="torchspec",
    title="TorchSpec",
    signs=_signs,
    deviations=(unread_base(_unread),),
    drops=(_KEY,),
)
