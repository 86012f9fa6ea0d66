"""SpecForge: drafts of SGLang's own class. Its ``norm_output`` is not the servers'.

In its forward ``norm_output`` (true unless the config says otherwise) switches the final norm before the head,
and the next step is always fed the state before that norm; servers take the key for which of the two is fed
back, and always norm before the head. Its P-EAGLE drafts rotate without a scaling, whatever the config says. Source:
``specforge/modeling/draft/llama3_eagle.py`` and ``peagle.py``.
"""

from typing import Any

from eagle3_interop.schemas.dialects.base import Source
from eagle3_interop.schemas.dialects.keys import architecture
from eagle3_interop.schemas.dialects.recognition import STOCK
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.trainers.base import Deviation, Signature, Trainer, Uncarried

_KEY = "norm_output"
_PARALLEL = "PEagleDraftModel"


def _signs(source: Source) -> Signature | None:
    config, names = source.config, source.tensors
    if architecture(config) == _PARALLEL and "speculators_model_type" not in config:
        return Signature("certain", f"architecture {_PARALLEL} in a flat config")
    # Our own writer says the residual in every flat folder; SpecForge's EAGLE-3 drafts have no such key.
    if architecture(config) != STOCK or "norm_before_residual" in config:
        return None
    if "t2d" not in names or not any(name.startswith("midlayer.") for name in names):
        return None
    if _KEY in config:
        return Signature("likely", f"midlayer. with {_KEY}")
    if "rope_parameters" in config and "rope_theta" in config:
        return Signature("likely", "midlayer. and t2d with both rope_parameters and rope_theta")
    return None


def _feedback(source: Source, draft: Draft) -> Any:  # noqa: ANN401 - a value of the description
    if draft.parallel is not None:
        return draft.feedback
    return "pre-norm" if source.config.get(_KEY) else draft.feedback


def _scaling(_source: Source, draft: Draft) -> str | None:
    return None if draft.parallel is not None else draft.rope.scaling


def _without_norm(source: Source, draft: Draft) -> bool:
    return source.config.get(_KEY) is False and draft.parallel is None


SPECFORGE = Trainer(
    name="specforge",
    title="SpecForge",
    signs=_signs,
    deviations=(
        Deviation("feedback", "feedback", _feedback),
        Deviation("unread-scaling", "rope.scaling", _scaling),
    ),
    uncarried=(
        Uncarried(
            code="no-final-norm",
            path="head_norm",
            trained="off",
            served="on",
            message=f"{_KEY} is false, and there that is a draft without a final norm before its head.",
            holds=_without_norm,
        ),
    ),
    ids_option="model.aux_hidden_state_layer_ids",
)
