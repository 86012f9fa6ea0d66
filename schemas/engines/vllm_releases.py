"""The releases of vLLM before the newest, each as what it did otherwise than the next: 0.11 to 0.29.

Read in the wheels, and run by their own classes (``docs/releases.md``): ``models/llama_eagle3.py``,
``models/qwen3_eagle3.py``, ``configs/speculators/{base,algos}.py``, ``v1/worker/gpu_model_runner.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from eagle3_interop.schemas.dialects.base import TargetFacts
from eagle3_interop.schemas.dialects.hf import (
    CONFIG,
    DecoderConfig,
    LatentConfig,
    with_theta_on_top,
    without_rope_dict,
)
from eagle3_interop.schemas.dialects.keys import IDS, FlatKeys, architecture
from eagle3_interop.schemas.dialects.recognition import (
    LATENT_CLASSES,
    LLAMA_CLASSES,
    STOCK,
    is_latent,
)
from eagle3_interop.schemas.dialects.rules import FlatRules, NestedRules
from eagle3_interop.schemas.engines.positions import rope_kind
from eagle3_interop.schemas.engines.release import Release
from eagle3_interop.schemas.engines.targets_since import LLAMA_LOOP, QWEN_LOOP
from eagle3_interop.schemas.engines.vllm import (
    LATENT_POWERS,
    NESTED_RULES,
    POWERS,
    RULES,
    VLLM_0_30,
    class_known,
    forms,
)
from eagle3_interop.schemas.powers import Powers

Ids = tuple[list[int] | None, str, Callable[[list[int]], list[int]]]
Refuses = Callable[[Mapping[str, Any]], str]


_LATENT = replace(LATENT_POWERS, full_map=True)
_MASKS = ("pard_token", "ptd_token_id")


@dataclass(frozen=True)
class _Readers:
    """How a release reads both kinds of folders.

    Attributes:
        flat: the flat ones.
        nested: speculators' own.
    """

    flat: FlatRules = RULES
    nested: NestedRules = NESTED_RULES

    def both(self, **changes: Any) -> "_Readers":  # noqa: ANN401 - of rules
        """With the same changes in both."""
        return _Readers(replace(self.flat, **changes), replace(self.nested, **changes))

    def of_flat(self, **changes: Any) -> "_Readers":  # noqa: ANN401
        """With changes in how flat folders are read."""
        return replace(self, flat=replace(self.flat, **changes))

    def of_nested(self, **changes: Any) -> "_Readers":  # noqa: ANN401
        """With changes in how speculators' folders are read."""
        return replace(self, nested=replace(self.nested, **changes))

    def classes(
        self, llama: Powers, qwen3: Powers | None = None, latent: Powers = _LATENT
    ) -> "_Readers":
        """With these classes; the llama one for drafts with q/k norms too, where there is no other."""
        by_norm = {False: llama, True: qwen3 or llama}

        def by_class(keys: FlatKeys) -> Powers:
            read = RULES.powers(keys)
            return latent if "mla" in read.attentions else by_norm[read.qk_norm]

        return self.of_flat(powers=by_class).of_nested(powers=by_norm)

    def release(
        self,
        since: str,
        until: str,
        following: Release,
        refuses: Refuses | None = None,
        **changes: Any,  # noqa: ANN401 - of a release
    ) -> Release:
        """The release that reads so, and does all else as the one that follows it."""
        return replace(
            following,
            **changes,
            since=since,
            until=until,
            forms=forms(self.nested, self.flat),
            refuses=refuses or following.refuses,
        )


def _ids_at_the_top(keys: FlatKeys, _target: TargetFacts | None) -> Ids:
    return keys.eagle_aux_hidden_state_layer_ids, f"{CONFIG}: {IDS}", list


def _ids_nowhere(_keys: FlatKeys, _target: TargetFacts | None) -> Ids:
    return None, f"{CONFIG}: {IDS}", list


def _three(_keys: object, _powers: object) -> int:
    """Fc is made for three hidden states, whatever the config says."""
    return 3


def _unused(name: str) -> bool:
    return name in ("input_norm.weight", "mask_hidden")


def _only_mask(name: str) -> bool:
    return name == "mask_hidden"


def _nothing(_name: str) -> bool:
    return False


def _is_latent(config: Mapping[str, Any]) -> bool:
    return is_latent(architecture(config), config.get("kv_lora_rank"))


def _scaled(refuses: Refuses) -> Refuses:
    """And no draft with latent attention over a plain rope: the class asks for the numbers of yarn."""

    def of(config: Mapping[str, Any]) -> str:
        if _is_latent(config) and rope_kind(config) == "default":
            return "vLLM's class with latent attention took every rope for yarn's, and fails on a plain one."
        return refuses(config)

    return of


# Until 0.29: a map even for a full vocabulary.
_FULL_MAPS = {name: replace(powers, full_map=True) for name, powers in POWERS.items()}
_LLAMA, _QWEN3 = _FULL_MAPS[False], _FULL_MAPS[True]
_0_28 = _Readers().both(full_map=True).classes(_LLAMA, _QWEN3)
VLLM_0_28 = _0_28.release("0.28", "0.29", VLLM_0_30)

# Until 0.27: a class with latent attention that takes every rope for one with yarn's numbers; no mask token under
# mask_token_id, but in dflash_config.
_0_26 = _0_28.of_flat(masks=("dflash_config", *_MASKS)).of_nested(bare_masks=("dflash_config",))
VLLM_0_26 = _0_26.release("0.26", "0.27", VLLM_0_28, _scaled(class_known()))

# Until 0.25: a qwen3 class without windows.
_0_25 = _0_26.classes(_LLAMA, replace(_QWEN3, windows=False))
VLLM_0_25 = _0_25.release("0.25", "0.25", VLLM_0_26)

# Until 0.24: a loader that fails on a bias that the class does not have (that of latent attention passes over
# whatever it does not know), and a reader of speculators' folders that hands neither fc_norm nor norm_output on.
_0_24 = (
    _0_25.both(passes_over=_unused)
    .of_flat(strict=lambda config: not _is_latent(config))
    .of_nested(loses=("fc_norm", "norm_output"))
)
VLLM_0_24 = _0_24.release("0.24", "0.24", VLLM_0_25)

# Until 0.23: no qwen3 class; speculators' folders of such layers get the llama one, too.
_0_23 = _0_24.classes(_LLAMA)
VLLM_0_23 = _0_23.release(
    "0.23", "0.23", VLLM_0_24, _scaled(class_known(LLAMA_CLASSES | LATENT_CLASSES))
)

# Until 0.22: a class with latent attention that loads fc_norm and does not apply it.
_0_22 = _0_23.classes(_LLAMA, latent=replace(_LATENT, block_norms=False))
VLLM_0_22 = _0_22.release("0.22", "0.22", VLLM_0_23)

# Until 0.21: neither fc_norm nor norm_output; an fc for three hidden states; of eagle_config only
# use_aux_hidden_state is read; no P-EAGLE folders of speculators.


def _single(powers: Powers) -> Powers:
    return replace(powers, block_norms=False, post_norm=False, other_blocks=False)


_SINGLE_FC, _SINGLE_LATENT = _single(_LLAMA), _single(_LATENT)
_0_20 = (
    _0_22.classes(_SINGLE_FC, latent=_SINGLE_LATENT)
    .of_flat(ids=_ids_at_the_top, blocks=_three, nested_norm=False)
    .of_nested(sized_by=_three)
)
_UNTIL_0_21 = LLAMA_CLASSES | LATENT_CLASSES
VLLM_0_20 = _0_20.release("0.20", "0.21", VLLM_0_22, _scaled(class_known(_UNTIL_0_21, ("eagle3",))))

# Until 0.19: no class named after MiniMax M2, which is the llama class under another name; nothing of dflash_config.
_BEFORE_MINIMAX = _UNTIL_0_21 - {"Eagle3MiniMaxM2ForCausalLM"}
_0_19_1 = _0_20.of_flat(masks=_MASKS)
VLLM_0_19_1 = _0_19_1.release(
    "0.19.1", "0.19", VLLM_0_20, _scaled(class_known(_BEFORE_MINIMAX, ("eagle3",)))
)

# Until 0.19.0: transformers 4, so that rope_parameters gives no base; the class with latent attention reads
# rope_scaling alone, and takes only that for yarn's.


def _rope_of_four(parsed: DecoderConfig) -> DecoderConfig:
    if not isinstance(parsed, LatentConfig):
        return with_theta_on_top(parsed)
    base = parsed.rope_theta if parsed.rope_scaling else None
    return without_rope_dict(parsed).model_copy(update={"rope_theta": base})


_0_19_0 = _0_19_1.of_flat(rope=_rope_of_four)
VLLM_0_19_0 = _0_19_0.release(
    "0.19.0", "0.19.0", VLLM_0_19_1, class_known(_BEFORE_MINIMAX, ("eagle3",))
)

# Until 0.18: a reader of speculators' folders that does not hand norm_before_fc on either.
_0_18 = _0_19_0.of_nested(loses=("fc_norm", "norm_output", "norm_before_fc"))
VLLM_0_18 = _0_18.release("0.18", "0.18", VLLM_0_19_0)

# Until 0.17: no norm_before_fc, and no class with latent attention; targets' loops that end at the last layer, and
# often fail before the first.
_NO_NORM = replace(_SINGLE_FC, input_norm=False)
_0_16 = _0_18.both(passes_over=_only_mask).classes(_NO_NORM)
VLLM_0_16 = _0_16.release(
    "0.16",
    "0.17",
    VLLM_0_18,
    class_known(_BEFORE_MINIMAX - LATENT_CLASSES, ("eagle3",)),
    no_embedding=LLAMA_LOOP | QWEN_LOOP,
    no_end=True,
)

# Until 0.15: no biases on q, k and v; no parallel drafting.
_NO_BIAS = replace(_NO_NORM, attention_biases=frozenset({"output"}), parallel=False)
_0_12 = _0_16.both(passes_over=_nothing, parallel=False).classes(_NO_BIAS)
VLLM_0_12 = _0_12.release("0.12", "0.15", VLLM_0_16)

# Until 0.11: nothing of eagle_config is read, nor is rope_parameters.
_WITH_FC = replace(_NO_BIAS, no_fc=False)
_0_11_1 = _0_12.both(rope=without_rope_dict).classes(_WITH_FC)
_CLASSES = frozenset({"Eagle3LlamaForCausalLM", STOCK})
VLLM_0_11_1 = _0_11_1.release(
    "0.11.1", "0.11", VLLM_0_12, class_known(_CLASSES | {"Eagle3Qwen2_5vlForCausalLM"}, ("eagle3",))
)

# In 0.11.0: one layer, the default triple whatever the ids say, and the target's tables wherever they are as large.
_ONE_LAYER = replace(_WITH_FC, later_layers=False, own_embeddings=False, own_whole_head=False)
_0_11_0 = _0_11_1.classes(_ONE_LAYER).of_flat(ids=_ids_nowhere).of_nested(reads_ids=False)
VLLM_0_11_0 = replace(
    _0_11_0.release("0.11.0", "0.11.0", VLLM_0_11_1, class_known(_CLASSES, ("eagle3",))),
    loader=replace(VLLM_0_30.loader, embeddings="replaced"),
)

VLLM = (
    VLLM_0_11_0,
    VLLM_0_11_1,
    VLLM_0_12,
    VLLM_0_16,
    VLLM_0_18,
    VLLM_0_19_0,
    VLLM_0_19_1,
    VLLM_0_20,
    VLLM_0_22,
    VLLM_0_23,
    VLLM_0_24,
    VLLM_0_25,
    VLLM_0_26,
    VLLM_0_28,
    VLLM_0_30,
)
"""Every release, oldest first."""
