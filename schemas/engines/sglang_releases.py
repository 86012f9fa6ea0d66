"""The releases of SGLang before the newest, each as what it did otherwise than the next: 0.5.3 to 0.5.21.

Read in the wheels, and run by their own classes (``docs/releases.md``): ``srt/models/llama_eagle3.py``,
``srt/models/llama.py``, ``srt/model_executor/model_runner.py``.
"""

from dataclasses import replace
from typing import Any

from eagle3_interop.schemas.dialects.hf import without_rope_dict, without_theta
from eagle3_interop.schemas.dialects.keys import FlatKeys
from eagle3_interop.schemas.dialects.rules import FlatRules
from eagle3_interop.schemas.dialects.spelling import Spelling
from eagle3_interop.schemas.engines import targets
from eagle3_interop.schemas.engines.release import Form, Release
from eagle3_interop.schemas.engines.sglang import (
    LATENT_POWERS,
    POWERS,
    RULES,
    SGLANG_0_5_22,
    ids_of,
    llama_class_only,
    stock_class_only,
)
from eagle3_interop.schemas.engines.targets_since import LLAMA_LOOP
from eagle3_interop.schemas.powers import Powers


def _stock(powers: Powers, latent: Powers = LATENT_POWERS, **changes: Any) -> tuple[Form, ...]:  # noqa: ANN401 - of rules
    """The stock classes alone, with what the llama one computes, and other rules."""

    def by_class(keys: FlatKeys) -> Powers:
        read = RULES.powers(keys)
        return latent if "mla" in read.attentions else powers

    rules: FlatRules = replace(RULES, powers=by_class, strict=lambda _config: False, **changes)
    return (Form(lambda _config: True, rules),)


def _older(release: Release, since: str, until: str, **changes: Any) -> Release:  # noqa: ANN401
    return replace(release, since=since, until=until, **changes)


SGLANG_0_5_21 = _older(SGLANG_0_5_22, "0.5.21", "0.5.21", no_embedding=LLAMA_LOOP)
"""The loop over a llama target fails on a tap before the first layer."""

SGLANG_0_5_17 = _older(
    SGLANG_0_5_21, "0.5.17", "0.5.20", forms=_stock(POWERS), refuses=stock_class_only
)
"""The plugin was not run with it."""

_BEFORE_0_5_17 = replace(POWERS, input_norm=False)

_NO_END_RULE = frozenset({targets.SGLANG_GPT_OSS})

SGLANG_0_5_13 = _older(
    SGLANG_0_5_17,
    "0.5.13",
    "0.5.16",
    forms=_stock(_BEFORE_0_5_17, ids=ids_of(_NO_END_RULE)),
    plain_targets=_NO_END_RULE,
)
"""No ``norm_before_fc``; ids of gpt_oss are counted as all others."""

_FIRST_LATENT = replace(LATENT_POWERS, block_norms=False, post_norm=False)

_NO_RULES = _NO_END_RULE | targets.SGLANG_IDS_AS_TAPS

SGLANG_0_5_12 = _older(
    SGLANG_0_5_13,
    "0.5.12",
    "0.5.12",
    forms=_stock(_BEFORE_0_5_17, _FIRST_LATENT, ids=ids_of(_NO_RULES)),
    plain_targets=_NO_RULES,
)
"""The class with latent attention has neither ``fc_norm`` nor ``norm_output``; ids of DeepSeek's and Kimi's classes
are counted as all others."""

_BEFORE_0_5_12 = replace(
    _BEFORE_0_5_17, block_norms=False, post_norm=False, later_layers=False, other_blocks=False
)
_MIDLAYER = Spelling(roots=("", "model."), layer0=("midlayer.",), later_norm="hidden_norm")
_SINGLE: dict[str, Any] = {
    "ids": ids_of(_NO_RULES),
    "spelling": _MIDLAYER,
    "aux_norm_key": False,
    "blocks": lambda _keys, _powers: 3,
}

SGLANG_0_5_10 = _older(
    SGLANG_0_5_12,
    "0.5.10",
    "0.5.11",
    forms=_stock(_BEFORE_0_5_12, **_SINGLE),
    refuses=llama_class_only,
)
"""One layer, called ``midlayer`` alone, over three hidden states; neither ``fc_norm`` nor ``norm_output``."""

SGLANG_0_5_8 = _older(
    SGLANG_0_5_10,
    "0.5.8",
    "0.5.9",
    forms=_stock(_BEFORE_0_5_12, **_SINGLE, rope=without_rope_dict),
)
"""transformers 4: ``rope_parameters`` is not read."""

_BEFORE_0_5_8 = replace(_BEFORE_0_5_12, no_fc=False)

SGLANG_0_5_6_POST2 = _older(
    SGLANG_0_5_8,
    "0.5.6.post2",
    "0.5.7",
    forms=_stock(_BEFORE_0_5_8, **_SINGLE, rope=without_rope_dict),
)
"""``use_aux_hidden_state`` is not read."""

SGLANG_0_5_6_POST1 = _older(
    SGLANG_0_5_6_POST2,
    "0.5.6.post1",
    "0.5.6.post1",
    forms=_stock(_BEFORE_0_5_8, **_SINGLE, rope=without_theta),
)
"""A first transformers 5, which takes ``rope_theta`` away from where this SGLang looks for it."""

SGLANG_0_5_3 = replace(SGLANG_0_5_6_POST2, since="0.5.3", until="0.5.6")

SGLANG = (
    SGLANG_0_5_3,
    SGLANG_0_5_6_POST1,
    SGLANG_0_5_6_POST2,
    SGLANG_0_5_8,
    SGLANG_0_5_10,
    SGLANG_0_5_12,
    SGLANG_0_5_13,
    SGLANG_0_5_17,
    SGLANG_0_5_21,
    SGLANG_0_5_22,
)
"""Every release, oldest first."""
