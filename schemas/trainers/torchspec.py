"""TorchSpec: scaled rotations are built without the config's base, by kind and by transformers' generation.

Source: ``torchspec/models/draft/llama3_eagle.py`` and ``deepseek_eagle.py``, ``_init_rope``. Linear and dynamic ropes and
those with sections never get the base, with latent attention yarn does not either; with transformers 5, which takes
the base into ``rope_scaling``, nothing scaled does. Its export for vLLM (``tools/convert_to_hf.py``) adds one to the ids
of Kimi, those in ``eagle_config`` included, which then count inputs.
"""

from collections.abc import Mapping

from eagle3_interop.schemas.dialects.base import Source
from eagle3_interop.schemas.dialects.keys import IDS, nested_keys
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.trainers.base import Deviation, Signature, Trainer
from eagle3_interop.schemas.trainers.rope_base import unread_base

_KEY = "_torchspec_version"


def _signs(source: Source) -> Signature | None:
    return Signature("certain", _KEY) if _KEY in source.config else None


def _unread(source: Source, draft: Draft) -> bool:
    scaling = source.config.get("rope_scaling")
    newer = isinstance(scaling, Mapping) and "rope_theta" in scaling
    latent = draft.layers.attention.kind == "mla"
    if draft.rope.mrope_sections is not None or draft.rope.scaling in ("linear", "dynamic"):
        return True
    if latent:
        # One that says "default" hands the base on, where transformers leaves it at the top level.
        return newer or draft.rope.scaling == "yarn"
    return newer and draft.rope.scaling in ("yarn", "llama3")


def _taps(source: Source, draft: Draft) -> tuple[int, ...] | None:
    ids = nested_keys(source.config).get(IDS)
    exported = any(name.startswith("layers.0.") for name in source.tensors)
    if not ids or source.config.get("model_type") != "kimi_k2" or not exported:
        return draft.taps
    return tuple(sorted(ids))


TORCHSPEC = Trainer(
    name="torchspec",
    title="TorchSpec",
    signs=_signs,
    deviations=(unread_base(_unread), Deviation("ids-count-inputs", "taps", _taps)),
    drops=(_KEY,),
)
