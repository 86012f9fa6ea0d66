"""How a loader goes about a folder, as data: a release of an engine is made of these.

A reader (`flat.read_flat`, `nested.read_nested`) is one function over such a value. Whatever two loaders do
otherwise is a field here, so that a new release is `dataclasses.replace` of an old one.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts
from eagle3_interop.schemas.dialects.hf import DecoderConfig
from eagle3_interop.schemas.dialects.keys import MASK_PLACES, FlatKeys, SpeculatorsKeys
from eagle3_interop.schemas.dialects.spelling import Spelling
from eagle3_interop.schemas.findings import Finding
from eagle3_interop.schemas.powers import Powers

Remarks = Callable[[Source, Reading, TargetFacts | None], Iterable[Finding]]
"""What there is to say of a folder beside what its reading said."""


@dataclass(frozen=True)
class Loading:
    """What a loader does with any folder.

    Attributes:
        title: the framework, for messages.
        spelling: how it spells tensors.
        strict: from config.json, whether it raises an error on a tensor that its class does not have.
        passes_over: of a canonical name, whether a strict loader passes over it all the same.
        full_map: has a map between two vocabularies of the same size, too.
        rope: the keys of the layers as its transformers hands the rope's on.
        knows_swish: takes ``swish`` for silu; else it does not start.
        needs_t2d: gathers the verifier's head by t2d, and raises an error without one.
        sorts_maps: rows of the head stand in ascending order of their target ids, so that t2d gives d2t.
        parallel: drafts all tokens in one pass where a folder is made for it (P-EAGLE).
        remarks: what else there is to say of a folder.
    """

    title: str
    spelling: Spelling
    strict: Callable[[Mapping[str, Any]], bool]
    passes_over: Callable[[str], bool] = lambda _name: False
    full_map: bool = False
    rope: Callable[[DecoderConfig], DecoderConfig] = lambda parsed: parsed
    knows_swish: bool = False
    needs_t2d: bool = False
    sorts_maps: bool = False
    parallel: bool = False
    remarks: tuple[Remarks, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LatentRules:
    """How a framework's class with latent attention reads a flat config, where engines differ.

    Attributes:
        halves: reads ``rope_interleave``; else it rotates neighbours whatever that says.
        unscaled: from the numbers of a scaled rope, whether scores are left without ``mscale_all_dim``.
        reads: numbers of a scaled rope that it reads beside those that all read.
        refuses: keys by which it would build other layers, and what they make of them.
        spelling: how it spells tensors, where its other classes accept more.
        absent_size_is_null: an absent ``draft_vocab_size`` means the target's head, as null does.
    """

    halves: bool
    unscaled: Callable[[Mapping[str, Any]], bool]
    reads: frozenset[str] = frozenset()
    refuses: Mapping[str, str] = field(default_factory=dict)
    spelling: Spelling | None = None
    absent_size_is_null: bool = False


@dataclass(frozen=True, kw_only=True)
class FlatRules(Loading):
    """How a framework reads a flat config.

    Attributes:
        powers: the draft class that a config selects.
        ids: from keys, to the ids it feeds by, the key they stand under, and their translation to taps.
        blocks: how many fc blocks its class would size from the keys.
        default_taps: the taps for no ids at all, where they are not the common triple.
        empty_ids_are_none: takes an empty list of ids for no list.
        partial_at_top: reads ``partial_rotary_factor`` at the top level alone, and not the rope's own.
        rescales_sections: of multimodal sections that do not fill the rotated part of a head it makes some that do.
        aux_norm_key: takes ``use_aux_norm`` for ``fc_norm``.
        mlp_width_keys: by model_type, the key of the MLP's width where it is another one, and its default.
        null_head: ``draft_vocab_size: null`` means the target's head, and an absent key is an error.
        ties_head: ``tie_word_embeddings`` gives the head the embedding table; else nobody reads it.
        shares_absent_head: a head that is absent, of full vocabulary, is the target's.
        nested_norm: reads ``norm_before_fc`` in ``eagle_config``, before the one at the top level.
        masks: where it looks for the mask token of a parallel draft, in its order.
        latent: how its class with latent attention reads, whose powers say so.
    """

    powers: Callable[[FlatKeys], Powers]
    ids: Callable[
        [FlatKeys, TargetFacts | None],
        tuple[list[int] | None, str, Callable[[list[int]], list[int]]],
    ]
    blocks: Callable[[FlatKeys, Powers], int]
    latent: LatentRules
    default_taps: Callable[[TargetFacts | None], tuple[int, ...] | None] = lambda _target: None
    empty_ids_are_none: bool = True
    partial_at_top: bool = False
    rescales_sections: bool = False
    aux_norm_key: bool = False
    mlp_width_keys: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    null_head: bool = False
    ties_head: bool = False
    shares_absent_head: bool = True
    nested_norm: bool = True
    masks: tuple[str, ...] = MASK_PLACES


@dataclass(frozen=True, kw_only=True)
class NestedRules(Loading):
    """How a framework reads speculators' nested config.

    Attributes:
        powers: the class, by whether the layers have q/k norms.
        default_type: the layers' ``model_type`` where the config names none.
        absent_residual: an absent ``norm_before_residual`` means the normed hidden state.
        config_classes: builds the layers' config by transformers' classes, whose defaults count; else the
            keys are taken bare, by `layer_config`.
        layer_config: the model of the bare keys.
        reads_ids: hands layer ids on; else the default triple is fed, whatever they say.
        sized_by: from keys and whether there are q/k norms, how many fc blocks the class would size.
        bare_qwen3_theta: rope base of q/k-normed layers whose config has no rope dict at all.
        qwen3_output_bias: q/k-normed layers have a bias on o_proj where ``attention_bias`` is true.
        absent_vocabulary: an absent ``draft_vocab_size`` means the whole vocabulary; else the class default.
        library_rope: rotates as transformers' llama and qwen3 layers, which never read partial factors of a
            plain rope, nor positions of several kinds.
        loses: keys that it does not hand on to its class.
        loses_parallel: and those that it does not hand on of a P-EAGLE folder.
        bare_masks: keys among the layers' own that it takes for the mask token before the folder's.
        refuses_bare: keys among the layers' own that it hands on and that change what is computed, with the
            values that mean nothing.
    """

    powers: Mapping[bool, Powers]
    default_type: str
    absent_residual: bool
    config_classes: bool
    layer_config: type[DecoderConfig] = DecoderConfig
    reads_ids: bool = True
    sized_by: Callable[[SpeculatorsKeys, bool], int]
    bare_qwen3_theta: float = 10000.0
    qwen3_output_bias: bool = True
    absent_vocabulary: bool = False
    library_rope: bool = False
    loses: tuple[str, ...] = ()
    loses_parallel: tuple[str, ...] = ()
    bare_masks: tuple[str, ...] = ()
    refuses_bare: Mapping[str, tuple[object, ...]] | None = None
