"""speculators: in training, every later draft step keeps the sliding window of its start.

Engines move it on with each step. Source: ``speculators/models/eagle3/core.py``, ``attention.py``: the mask is built once and
only extended by each step's own key.
"""

from collections.abc import Mapping

from eagle3_interop.schemas.dialects.base import Source
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.trainers.base import Signature, Trainer, Uncarried

_KEY = "speculators_model_type"


def _signs(source: Source) -> Signature | None:
    if _KEY not in source.config:
        return None
    # Its converter writes others' drafts, too, and this project writes its form without its code.
    code = source.config.get("auto_map")
    own = isinstance(code, Mapping) and any("SpeculatorConfig" in str(x) for x in code.values())
    return Signature("likely", f"{_KEY} with its own code beside") if own else None


def _slides(_source: Source, draft: Draft) -> bool:
    return draft.parallel is None and any(draft.layers.windows)


SPECULATORS = Trainer(
    name="speculators",
    title="speculators",
    signs=_signs,
    deviations=(),
    uncarried=(
        Uncarried(
            code="start-window",
            path="window_of",
            trained="start",
            served="step",
            message="its later draft steps keep the sliding window of their start, which engines move on.",
            holds=_slides,
        ),
    ),
)
