"""The speculators library: ``Eagle3DraftModel`` and its nested config, read and written.

Source of the facts: ``speculators/models/eagle3/{config,core,model_definitions}.py``, ``speculators/model.py``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from eagle3_interop.schemas.dialects.base import TargetFacts, Wishes, Writing
from eagle3_interop.schemas.dialects.keys import IDS, LAYER, SpeculatorsKeys
from eagle3_interop.schemas.dialects.rules import NestedRules
from eagle3_interop.schemas.dialects.spelling import Spelling
from eagle3_interop.schemas.dialects.writing import layer_keys, mixed_windows, zero_biases
from eagle3_interop.schemas.draft import Draft, Gqa, Mla
from eagle3_interop.schemas.engines.loaders import Loader
from eagle3_interop.schemas.engines.naming import Asked, Naming, by_group, modules_of
from eagle3_interop.schemas.engines.release import Form, Release
from eagle3_interop.schemas.findings import Finding, finding
from eagle3_interop.schemas.hub import is_hub_id
from eagle3_interop.schemas.powers import Powers, lacks

SPELLING = Spelling(roots=("",), layer0=("layers.0.",), later_norm="input_layernorm")
_LIBRARY_SPELLING = replace(SPELLING, roots=("", "model."), head_roots=("", "model."))
"""transformers strips the base model's prefix; vLLM, which shall read what is written, does not."""
_LLAMA = Powers(
    engine="speculators' llama class",
    mlp_bias=True,
    any_activation=True,
    other_width=False,
    no_fc=False,
    both_fc_norms=False,
    partial_rotary=False,
    mrope=False,
    target_head=False,
    parallel=True,
)
POWERS = {
    False: _LLAMA,
    True: replace(_LLAMA, engine="speculators' qwen3 class", qk_norm=True, mlp_bias=False),
}


def refuses(config: Mapping[str, Any]) -> str:
    """The library starts with its own folders only (others it converts first, by its own rules).

    Its config class wants the keys of ``speculators_config``, and ``load_verifier_weights`` opens the
    verifier by name.
    """
    if "speculators_model_type" not in config:
        return "no speculators_model_type, by which speculators recognises its drafts."
    return "".join(f"speculators_config{what}." for what in _unsettled(config)[:1])


def _unsettled(config: Mapping[str, Any]) -> list[str]:
    """What ``speculators_config`` lacks of what the library's pydantic classes and its loader want."""
    settings = config.get("speculators_config")
    if not isinstance(settings, Mapping):
        return [" is absent"]
    verifier, methods = settings.get("verifier"), settings.get("proposal_methods")
    verifier = verifier if isinstance(verifier, Mapping) else {}
    methods = methods if isinstance(methods, list) else []
    greedy = [isinstance(x, Mapping) and x.get("proposal_type") == "greedy" for x in methods]
    wanted = {
        ".algorithm": isinstance(settings.get("algorithm"), str),
        ".default_proposal_method": settings.get("default_proposal_method") == "greedy",
        ".proposal_methods": bool(methods) and all(greedy),
        ".verifier.name_or_path": isinstance(verifier.get("name_or_path"), str),
        ".verifier.architectures": isinstance(verifier.get("architectures"), list),
    }
    return [f"{key} is not as the library wants it" for key, there in wanted.items() if not there]


def _captures(_name: str, _draft: Draft, _target: TargetFacts) -> Iterator[Finding]:
    """Nothing is missing: the library trains on what it captures itself, and serves nothing."""
    yield from ()


def _sized(keys: SpeculatorsKeys, _qk_norm: bool) -> int:
    ids = keys.eagle_aux_hidden_state_layer_ids
    return len(ids) if ids else 3


def _asks(draft: Draft, _first: int) -> Iterator[Asked]:
    """Transformers goes through the modules as they are: the file's own names, every one of class Linear."""
    yield from modules_of(draft, lambda module: (module, "Linear"), {})


NAMING = Naming(
    "speculators",
    asks=_asks,
    chosen=lambda asked, said: by_group(asked, said, suffixes=False, must_match=False),
    ignored=lambda _name, _entries: False,
    methods=frozenset({"compressed-tensors"}),
)

RULES = NestedRules(
    title="speculators",
    spelling=_LIBRARY_SPELLING,
    strict=lambda _config: False,
    knows_swish=True,
    needs_t2d=True,
    sorts_maps=True,
    powers=POWERS,
    default_type="qwen3",
    absent_residual=False,
    config_classes=True,
    sized_by=_sized,
    library_rope=True,
    parallel=True,
    remarks=(NAMING.remarks,),
)

SPECULATORS_0_9 = Release(
    engine="speculators",
    title="speculators",
    since="0.9",
    until="0.9",
    forms=(Form(lambda _config: True, RULES),),
    refuses=refuses,
    captures=_captures,
    naming=NAMING,
    loader=Loader(shares_embeddings=False, strict_maps=True, wants_format=True, shares_pages=False),
    serves=False,
    files_of_transformers=True,
)

CONFIG_VERSION = "0.9.0"
"""What a config of this release says in ``speculators_version``."""


def own_keys(draft: Draft, wishes: Wishes) -> tuple[dict[str, Any], list[Finding]]:
    """Speculators' own keys for a draft, and what had to be chosen for them."""
    findings = []
    target = wishes.target
    verifier = wishes.options.target_name or (target.name if target else draft.target.name)
    where = "speculators_config.verifier.name_or_path"
    if verifier is None:
        message = "speculators loads tables and widths from the verifier, and none is known."
        findings.append(finding("no-verifier", where, message))
    elif (target is not None and target.is_path) or not is_hub_id(verifier):
        message = (
            f"the verifier is named by a path, {verifier!r}, which exists on this machine only."
        )
        findings.append(finding("verifier-name", where, message))
    tokens = draft.speculative_tokens
    if tokens is None:
        tokens = 3
        message = "the source does not say how many draft tokens to propose: 3 was written."
        findings.append(
            finding(
                "speculative-tokens",
                "speculators_config.proposal_methods.speculative_tokens",
                message,
            )
        )
    layer = {**layer_keys(draft), "dtype": draft.dtype}
    if draft.fc is not None:
        # vLLM's llama class sizes fc from this key alone when it reads a speculators folder.
        layer["num_aux_hidden_states"] = draft.fc.blocks
    kind = "eagle3" if draft.parallel is None else "peagle"
    flags = {
        "norm_before_fc": draft.fc is not None and draft.fc.input_norm,
        "fc_norm": draft.fc is not None and draft.fc.block_norms,
        "norm_output": draft.feedback == "post-norm",
    }
    layer |= {key: on for key, on in flags.items() if on and key in wishes.forms.bare}
    written: dict[str, Any] = {
        "speculators_model_type": kind,
        "speculators_version": CONFIG_VERSION,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "verifier": {
                "name_or_path": verifier,
                "architectures": list(draft.target.architectures),
            },
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": draft.vocabulary.draft_size,
        "norm_before_residual": draft.residual == "normed",
        **flags,
        "embed_requires_grad": draft.trains_embeddings,
        "target_hidden_size": draft.target.hidden_size,
        IDS: None if draft.taps is None else list(draft.taps),
    }
    if draft.parallel is not None:
        written["mask_token_id"] = draft.parallel.mask_token_id
    return written, findings


def draft_class(draft: Draft, wishes: Wishes) -> Powers:  # noqa: ARG001
    """The class by the kind of decoder layer."""
    attention = draft.layers.attention
    return POWERS[isinstance(attention, Gqa) and attention.qk_norm]


def write(draft: Draft, wishes: Wishes) -> Writing:
    """Write speculators' own form."""
    powers = draft_class(draft, wishes)
    if isinstance(draft.layers.attention, Mla):
        return Writing(config={}, spelling=SPELLING, findings=tuple(lacks(draft, powers)))
    keys, said = own_keys(draft, wishes)
    keys[LAYER] = {**wishes.extras.get(LAYER, {}), **keys[LAYER]}
    beside = {key: value for key, value in wishes.extras.items() if key != LAYER}
    name = "Eagle3DraftModel" if draft.parallel is None else "PEagleDraftModel"
    config = {**beside, "architectures": [name], **keys, "dtype": draft.dtype}
    return Writing(
        config=config,
        spelling=SPELLING,
        findings=(*mixed_windows(draft), *lacks(draft, powers), *said),
        zeros=zero_biases(draft, powers),
    )
