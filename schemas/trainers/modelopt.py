"""NVIDIA ModelOpt: layer 0 norms the hidden state twice, and the exported rope is not the trained one.

Its layer is transformers' decoder layer, whose ``input_layernorm`` norms the hidden state before a hook of
ModelOpt's norms it by ``hidden_norm``; engines norm once. Its default recipe trains with a plain rope and writes
``eagle_export_rope_scaling`` into the export. Its layers may have biases on q, k and v, and the norm before attention
of its later layers is ``input_layernorm``: SGLang, whose ids it writes, reads past both. Source:
``modelopt/torch/speculative/plugins/``, ``config.py``.
"""

import re
from dataclasses import replace

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts
from eagle3_interop.schemas.dialects.flat import read_flat
from eagle3_interop.schemas.dialects.keys import NESTED, FlatKeys, nested_keys
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.engines.sglang import RULES
from eagle3_interop.schemas.powers import Powers
from eagle3_interop.schemas.trainers.base import Deviation, Signature, Trainer, Uncarried
from eagle3_interop.schemas.trainers.latent import is_latent, rope_dict, scores_left

_KEYS = ("next_layer_regular", "parallel_draft_step")
_EXPORTED = {"factor": 32.0, "original_max_position_embeddings": 2048}
"""The numbers of the yarn that the default recipe writes, and never trains with."""


def _signs(source: Source) -> Signature | None:
    found = [key for key in _KEYS if key in nested_keys(source.config)]
    return Signature("certain", f"{NESTED}.{found[0]}") if found else None


def _scaling(source: Source, draft: Draft) -> str | None:
    rope = draft.rope
    numbers = rope.parameters
    if is_latent(draft):
        # The description of latent attention writes out what the config leaves to the engines.
        named = {"rope_type", "type", "rope_theta"}
        numbers = {key: value for key, value in rope_dict(source).items() if key not in named}
    exported = rope.scaling == "yarn" and numbers == _EXPORTED
    return None if exported else rope.scaling


def _head(source: Source, draft: Draft) -> str:
    """Its template of Kimi's kind has no ``draft_vocab_size``, and SGLang then passes over the head in the file."""
    own = is_latent(draft) and "lm_head.weight" in source.tensors
    return "own" if own else draft.vocabulary.head


def _through_fc(_source: Source, draft: Draft) -> bool:
    return draft.fc is not None


_UNREAD = re.compile(r"layers\.[1-9]\d*\.input_layernorm\.|\.[qkv]_proj\.bias$")


def _powers(keys: FlatKeys) -> Powers:
    powers = RULES.powers(keys)
    return replace(powers, engine="ModelOpt", attention_biases=powers.attention_biases | {"qkv"})


_RULES = replace(
    RULES,
    title="ModelOpt",
    spelling=replace(RULES.spelling, later_norm="input_layernorm"),
    powers=_powers,
)


def _reads(source: Source, target: TargetFacts | None) -> Reading | None:
    unread = any(_UNREAD.search(name) for name in source.tensors)
    return read_flat(source, target, _RULES) if unread else None


MODELOPT = Trainer(
    name="modelopt",
    title="ModelOpt",
    signs=_signs,
    deviations=(
        Deviation("export-rope", "rope.scaling", _scaling),
        scores_left(lambda _source, draft: draft.rope.scaling is None),
        Deviation("unread-head", "vocabulary.head", _head),
    ),
    uncarried=(
        Uncarried(
            code="double-norm",
            path="hidden_norms",
            trained="two",
            served="one",
            message="its layer 0 norms the hidden state by input_layernorm and then by hidden_norm.",
            holds=_through_fc,
        ),
    ),
    reads=_reads,
    drops=tuple(f"{NESTED}.{key}" for key in _KEYS),
)
