"""The releases of speculators before the newest, each as what it did otherwise than the next: 0.3 to 0.6.

Read in the wheels: ``models/eagle3/{config,core,model_definitions}.py``. The library trains and resumes; it passes
over flags and tensors that it does not know.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eagle3_interop.schemas.engines.release import Form, Release
from eagle3_interop.schemas.engines.speculators import POWERS, RULES, SPECULATORS_0_9, refuses
from eagle3_interop.schemas.powers import Powers


def _older(
    following: Release,
    since: str,
    until: str,
    powers: Mapping[bool, Powers],
    *,
    parallel: bool = True,
    **changes: Any,  # noqa: ANN401 - of a release
) -> Release:
    rules = replace(RULES, powers=powers, sized_by=lambda _keys, _qk_norm: 3, parallel=parallel)
    forms = (Form(lambda _config: True, rules),)
    return replace(following, since=since, until=until, forms=forms, **changes)


def _no_parallel(config: Mapping[str, Any]) -> str:
    if config.get("speculators_model_type") == "peagle":
        return "speculators knew no drafts of the type 'peagle' before 0.6."
    return refuses(config)


def _llama_only(config: Mapping[str, Any]) -> str:
    layer = config.get("transformer_layer_config")
    if isinstance(layer, Mapping) and layer.get("model_type") == "qwen3":
        return "speculators built llama layers only before 0.4."
    return _no_parallel(config)


SPECULATORS_0_7 = replace(SPECULATORS_0_9, since="0.7")

_THREE = {
    name: replace(powers, block_norms=False, post_norm=False, other_blocks=False)
    for name, powers in POWERS.items()
}
SPECULATORS_0_6 = _older(SPECULATORS_0_7, "0.6", "0.6", _THREE)
"""Neither ``fc_norm`` nor ``norm_output``; an fc for three hidden states."""

_NO_PARALLEL = {name: replace(powers, parallel=False) for name, powers in _THREE.items()}
SPECULATORS_0_5 = _older(
    SPECULATORS_0_6, "0.5", "0.5", _NO_PARALLEL, parallel=False, refuses=_no_parallel
)
"""No P-EAGLE."""

_NO_NORM = {name: replace(powers, input_norm=False) for name, powers in _NO_PARALLEL.items()}
SPECULATORS_0_4 = _older(SPECULATORS_0_5, "0.4", "0.4", _NO_NORM, parallel=False)
"""No ``norm_before_fc``."""

SPECULATORS_0_3 = replace(SPECULATORS_0_4, since="0.3", until="0.3", refuses=_llama_only)
"""Llama layers only."""

SPECULATORS = (
    SPECULATORS_0_3,
    SPECULATORS_0_4,
    SPECULATORS_0_5,
    SPECULATORS_0_6,
    SPECULATORS_0_7,
)
"""Every release, oldest first."""
