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
from eagle3_interop.schemas.trainers.base import Deviation, Doubt, Signature, Trainer
from eagle3_interop.schemas.trainers.latent import is_latent, own_kind, scores_left
from eagle3_interop.schemas.trainers.rope_base import DEFAULT, unread_base

_KEY = "_torchspec_version"


def _signs(source: Source) -> Signature | None:
    return Signature("certain", _KEY) if _KEY in source.config else None


def _unread(source: Source, draft: Draft) -> bool:
    scaling = source.config.get("rope_scaling")
    newer = isinstance(scaling, Mapping) and "rope_theta" in scaling
    if draft.rope.mrope_sections is not None or draft.rope.scaling in ("linear", "dynamic"):
        return True
    if is_latent(draft):
        # One that says "default" hands the base on, where transformers leaves it at the top level.
        return newer or draft.rope.scaling == "yarn"
    return newer and draft.rope.scaling in ("yarn", "llama3")


def _kind(source: Source, draft: Draft) -> str | None:
    return own_kind(source) if is_latent(draft) else draft.rope.scaling


def _untold(source: Source, draft: Draft) -> bool:
    """With transformers 5 a plain rope of latent attention lost its base, and exports look alike."""
    plain = own_kind(source) is None and not _unread(source, draft)
    return is_latent(draft) and plain and draft.rope.theta != DEFAULT


def _no_yarn(_source: Source, draft: Draft) -> bool:
    return draft.rope.scaling != "yarn"


def _counted(source: Source, draft: Draft) -> tuple[int, ...] | None:
    """Nested ids of an export for vLLM count inputs, as vLLM's own do."""
    config, nested = source.config, nested_keys(source.config).get(IDS)
    exported = config.get("model_type") == "kimi_k2" and any(
        name.startswith("layers.0.") for name in source.tensors
    )
    if (
        not exported
        or config.get(IDS)
        or not isinstance(nested, list)
        or len(nested) != _blocks(draft)
    ):
        return draft.taps
    return tuple(sorted(nested))


def _blocks(draft: Draft) -> int:
    return 0 if draft.fc is None else draft.fc.blocks


TORCHSPEC = Trainer(
    name="torchspec",
    title="TorchSpec",
    signs=_signs,
    deviations=(
        Deviation("rope-kind", "rope.scaling", _kind),
        unread_base(_unread),
        scores_left(_no_yarn),
        Deviation("ids-count-inputs", "taps", _counted),
    ),
    drops=(_KEY,),
    doubts=(
        Doubt(
            "rope-base-untold",
            "rope.theta",
            f"with transformers 4 it trained this plain rope with its own base, with transformers 5 with {DEFAULT:g}.",
            _untold,
        ),
    ),
)
