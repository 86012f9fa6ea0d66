"""speculators 0.9: ``Eagle3DraftModel`` and its nested config; and the same folder as vLLM 0.32 reads it.

Source of the facts: ``speculators/models/eagle3/{config,core,model_definitions}.py``, ``speculators/model.py``;
for vLLM ``transformers_utils/configs/speculators/{base,algos}.py``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts, Wishes, Writing
from eagle3_interop.schemas.dialects.hf import (
    CONFIG,
    CONFIGS,
    DecoderConfig,
    parse,
    read_rope,
    read_windows,
    validated,
)
from eagle3_interop.schemas.dialects.keys import (
    IDS,
    LAYER,
    SPECULATORS_READ,
    SpeculatorsKeys,
    carry,
)
from eagle3_interop.schemas.dialects.maps import resolve_map
from eagle3_interop.schemas.dialects.reading import Reader, cannot
from eagle3_interop.schemas.dialects.spelling import Spelling
from eagle3_interop.schemas.dialects.writing import layer_keys, mixed_windows, zero_biases
from eagle3_interop.schemas.draft import (
    Draft,
    Fc,
    Gqa,
    Layers,
    Mlp,
    Rope,
    Size,
    Target,
    Vocabulary,
)
from eagle3_interop.schemas.engines.powers import Powers, lacks
from eagle3_interop.schemas.findings import Finding, Refused, finding
from eagle3_interop.schemas.hub import is_hub_id

SPELLING = Spelling(roots=("",), layer0=("layers.0.",), later_norm="input_layernorm")
_LIBRARY_SPELLING = replace(SPELLING, roots=("", "model."), head_roots=("", "model."))
"""transformers strips the base model's prefix; vLLM, which shall read what is written, does not."""
_VLLM_SPELLING = Spelling(
    roots=("",), layer0=("layers.0.", "midlayer."), later_norm="input_layernorm"
)

POWERS = {
    False: Powers(
        engine="speculators' llama class",
        mlp_bias=True,
        any_activation=True,
        other_width=False,
        no_fc=False,
        both_fc_norms=False,
        partial_rotary=False,
        mrope=False,
        target_head=False,
    ),
    True: Powers(
        engine="speculators' qwen3 class",
        qk_norm=True,
        any_activation=True,
        other_width=False,
        no_fc=False,
        both_fc_norms=False,
        partial_rotary=False,
        mrope=False,
        target_head=False,
    ),
}


_BARE_KEYS: dict[str, tuple[object, ...]] = {
    "bias": (None, False),
    "eagle_config": (None,),
    "logit_scale": (None, 1.0),
    "num_aux_layers": (None,),
    "qkv_bias": (None,),
}


class VllmLayerConfig(DecoderConfig):
    """``transformer_layer_config`` as vLLM sees it: bare attributes, with its model code's own defaults."""

    hidden_act: str
    rms_norm_eps: float = Field(gt=0, allow_inf_nan=False)
    max_position_embeddings: Size | None = 8192


@dataclass(frozen=True)
class _Reader:
    """Who reads a speculators folder: the library itself, or vLLM."""

    engine: Literal["speculators", "vLLM"]
    spelling: Spelling
    default_type: str
    absent_residual: bool


_LIBRARY = _Reader("speculators", _LIBRARY_SPELLING, "qwen3", absent_residual=False)
_VLLM = _Reader("vLLM", _VLLM_SPELLING, "llama", absent_residual=True)


def recognise(config: Mapping[str, Any]) -> str | None:
    """Its own ``speculators_model_type``."""
    kind = config.get("speculators_model_type")
    return None if kind is None else f"speculators_model_type {kind}"


def refuses(config: Mapping[str, Any]) -> str:
    """The library starts with its own folders only (others it converts first, by its own rules).

    Its config class wants the keys of ``speculators_config``, and ``load_verifier_weights`` opens the
    verifier by name.
    """
    if "speculators_model_type" not in config:
        return "no speculators_model_type."
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


def read(source: Source, target: TargetFacts | None) -> Reading:
    """Read as speculators 0.9 does."""
    return _read(source, target, _LIBRARY)


def read_as_vllm(source: Source, target: TargetFacts | None) -> Reading:
    """Read a speculators folder as vLLM 0.32 does: other defaults, no config classes."""
    return _read(source, target, _VLLM)


def _read(source: Source, target: TargetFacts | None, who: _Reader) -> Reading:  # noqa: ARG001
    reader = Reader(source, who.spelling, who.engine)
    keys = validated(SpeculatorsKeys, source.config, CONFIG)
    model_type = _layer_type(reader, keys, who)
    kind = VllmLayerConfig if who.engine == "vLLM" else CONFIGS[model_type]
    parsed = parse(keys.transformer_layer_config, kind, LAYER, reader.add)
    qk_norm = model_type == "qwen3"
    width = parsed.hidden_size
    target_width = keys.target_hidden_size or width
    blocks = reader.blocks(target_width, _sized(keys, qk_norm, who))
    ids = keys.eagle_aux_hidden_state_layer_ids
    taps = reader.taps(ids, f"{CONFIG}: {IDS}", list, blocks)
    if not ids and blocks == 3:
        message = "no ids: the default triple (2, L // 2, L - 3) is fed."
        reader.say("default-taps", f"{CONFIG}: {IDS}", message)
    for key, default in (("norm_before_fc", False), ("fc_norm", False), ("norm_output", False)):
        if key not in source.config:
            reader.say(
                "flag-default", f"{CONFIG}: {key}", f"absent: {str(default).lower()} counts."
            )
    vocabulary, maps = _vocabulary(reader, source.config, keys, parsed, who)
    # vLLM's qwen3 class has a base of its own where there is no rope dict at all; in an incomplete one
    # transformers has put its own before.
    bare = not (parsed.rope_parameters or parsed.rope_scaling)
    rope_theta = 1e6 if who.engine == "vLLM" and qk_norm and bare else 10000.0
    rope = read_rope(parsed, LAYER, reader.add, rope_theta)
    if who.engine == "speculators":
        rope = _as_the_library_rotates(reader, rope)
    tokens = [method.speculative_tokens for method in keys.settings.proposal_methods]
    draft = Draft(
        hidden_size=width,
        target=Target(
            name=keys.settings.verifier.name_or_path,
            hidden_size=target_width,
            architectures=tuple(keys.settings.verifier.architectures),
        ),
        taps=taps,
        fc=Fc(
            blocks=blocks,
            bias=reader.bias(("fc.bias",), used=False),
            input_norm=keys.norm_before_fc,
            block_norms=keys.fc_norm,
        ),
        layers=_layers(reader, parsed, model_type, who),
        residual=_residual(reader, source.config, keys, who),
        feedback="post-norm" if keys.norm_output else "pre-norm",
        rope=rope,
        max_position=reader.positions(parsed.max_position_embeddings, LAYER),
        vocabulary=vocabulary,
        dtype=reader.dtype(),
        speculative_tokens=next(iter(tokens), None),
        trains_embeddings=keys.embed_requires_grad,
    )
    extras = carry(source.config, who.engine, SPECULATORS_READ, reader.add)
    if who.engine == "vLLM":
        _refuse_bare_keys(reader, keys)
    else:
        reader.findings += cannot(draft, POWERS[qk_norm])
    return Reading(draft, reader.names, tuple(reader.unused), maps, tuple(reader.findings), extras)


def _layer_type(reader: Reader, keys: SpeculatorsKeys, who: _Reader) -> str:
    model_type = keys.transformer_layer_config.get("model_type")
    if model_type is None:
        message = f"absent: {who.engine} takes {who.default_type}."
        reader.say("layer-type-default", f"{LAYER}: model_type", message)
        return who.default_type
    if model_type not in ("llama", "qwen3"):
        message = f"{who.engine} builds llama and qwen3 layers, not {model_type!r}."
        reader.say("layer-type", f"{LAYER}: model_type", message)
        raise Refused(reader.findings)
    return str(model_type)


def _sized(keys: SpeculatorsKeys, qk_norm: bool, who: _Reader) -> int:
    ids = keys.eagle_aux_hidden_state_layer_ids
    listed = len(ids) if ids else 3
    if who.engine == "vLLM":
        extra = keys.transformer_layer_config.get("num_aux_hidden_states")
        return extra if isinstance(extra, int) else listed if qk_norm else 3
    return listed


def _residual(
    reader: Reader, config: Mapping[str, Any], keys: SpeculatorsKeys, who: _Reader
) -> Literal["raw", "normed"]:
    if "norm_before_residual" in config:
        return "normed" if keys.norm_before_residual else "raw"
    chosen, other = ("normed", "raw") if who.absent_residual else ("raw", "normed")
    message = (
        f"absent: {who.engine} adds the {chosen} hidden state, its counterpart the {other} one."
    )
    reader.say("residual-default", f"{CONFIG}: norm_before_residual", message)
    return "normed" if who.absent_residual else "raw"


def _layers(reader: Reader, parsed: DecoderConfig, model_type: str, who: _Reader) -> Layers:
    count = reader.layers(parsed.num_hidden_layers)
    qk_norm = model_type == "qwen3"
    # vLLM hands the keys over bare: no config class clears an unused sliding_window there.
    windows = read_windows(
        parsed,
        count,
        model_type if who.engine == "speculators" else "",
    )
    attends = parsed.attention_bias
    output = attends and not (who.engine == "vLLM" and qk_norm)
    qkv = ("q_proj.bias", "k_proj.bias", "v_proj.bias")
    mlp = ("gate_proj.bias", "up_proj.bias", "down_proj.bias")
    return Layers(
        count=count,
        attention=Gqa(
            heads=parsed.num_attention_heads,
            kv_heads=parsed.kv_heads,
            head_dim=parsed.head_size,
            qk_norm=qk_norm,
            qkv_bias=reader.bias(qkv, attends),
            output_bias=reader.bias(("o_proj.bias",), output),
        ),
        mlp=Mlp(
            width=parsed.intermediate_size,
            activation=reader.activation(parsed.hidden_act, LAYER),
            bias=reader.bias(mlp, parsed.mlp_bias and not qk_norm),
        ),
        norm_eps=parsed.rms_norm_eps,
        windows=windows,
    )


def _vocabulary(
    reader: Reader,
    config: Mapping[str, Any],
    keys: SpeculatorsKeys,
    parsed: DecoderConfig,
    who: _Reader,
) -> tuple[Vocabulary, dict[str, Any]]:
    size = keys.draft_vocab_size
    if "draft_vocab_size" not in config:
        size = parsed.vocab_size if who.engine == "vLLM" else size
        message = f"absent: {who.engine}'s own default {size} counts."
        reader.say("class-default", f"{CONFIG}: draft_vocab_size", message)
    mapped, maps = resolve_map(
        reader, size, parsed.vocab_size, trainer_sorts=who.engine == "speculators"
    )
    own = "embed_tokens.weight" in reader.names
    if not own:
        message = "absent: vLLM shares the target's table, the library leaves it uninitialised."
        reader.say("target-embeddings", "embed_tokens.weight", message)
    vocabulary = Vocabulary(
        target_size=parsed.vocab_size,
        draft_size=size,
        mapped=mapped,
        embeddings="own" if own else "target",
    )
    return vocabulary, maps


def _as_the_library_rotates(reader: Reader, rope: Rope) -> Rope:
    """Rope without what transformers' llama and qwen3 layers never read.

    A plain rotation is of whole heads; a scaled one sizes its frequencies by ``partial_rotary_factor``.
    """
    scaled = rope.scaling is not None
    if rope.partial != 1.0 and not scaled:
        message = "the library's llama and qwen3 layers rotate whole heads and never read it."
        reader.say("partial-rotary-unread", f"{LAYER}: partial_rotary_factor", message)
    if rope.mrope_sections is not None:
        message = "the library's layers rotate by one position and never read it; vLLM does."
        reader.say("mrope-unread", f"{LAYER}: mrope_section", message)
        numbers = rope.parameters if rope.scaling else {}
        rope = rope.model_copy(update={"mrope_sections": None, "parameters": numbers})
    return rope if scaled else rope.model_copy(update={"partial": 1.0})


def _refuse_bare_keys(reader: Reader, keys: SpeculatorsKeys) -> None:
    """Keys that vLLM finds in the decoder's own, and that change what it computes."""
    layer = keys.transformer_layer_config
    uncovered = [key for key in (IDS, "target_hidden_size") if not getattr(keys, key)]
    for key, neutral in {**_BARE_KEYS, **dict.fromkeys(uncovered, (None,))}.items():
        if layer.get(key) not in neutral:
            message = (
                f"{layer[key]!r}: vLLM hands the decoder's keys on as they are, and reads this one."
            )
            reader.say("unsupported-key", f"{LAYER}: {key}", message)


def uncaptured(draft: Draft, target: TargetFacts) -> Iterator[Finding]:  # noqa: ARG001
    """Nothing: the library trains on what it captures itself, and serves nothing."""
    yield from ()


def own_keys(draft: Draft, wishes: Wishes) -> tuple[dict[str, Any], list[Finding]]:
    """Speculators' own keys for a draft, and what had to be chosen for them."""
    findings = []
    target = wishes.target
    verifier = wishes.options.target_name or (target.name if target else draft.target.name)
    where = "speculators_config.verifier.name_or_path"
    if verifier is None:
        message = "speculators' loader takes tables and widths from the verifier; none is known."
        findings.append(finding("no-verifier", where, message))
    elif (target is not None and target.is_path) or not is_hub_id(verifier):
        message = (
            f"the verifier is named by a path, {verifier!r}, which exists on this machine only."
        )
        findings.append(finding("verifier-name", where, message))
    tokens = draft.speculative_tokens
    if tokens is None:
        tokens = 3
        message = "not known from the source: 3 is written."
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
    written: dict[str, Any] = {
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
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
        "norm_before_fc": draft.fc is not None and draft.fc.input_norm,
        "fc_norm": draft.fc is not None and draft.fc.block_norms,
        "norm_output": draft.feedback == "post-norm",
        "embed_requires_grad": draft.trains_embeddings,
        "target_hidden_size": draft.target.hidden_size,
        IDS: None if draft.taps is None else list(draft.taps),
    }
    return written, findings


def draft_class(draft: Draft, wishes: Wishes) -> Powers:  # noqa: ARG001
    """The class by the kind of decoder layer."""
    return POWERS[draft.layers.gqa.qk_norm]


def write(draft: Draft, wishes: Wishes) -> Writing:
    """Write speculators' own form."""
    powers = draft_class(draft, wishes)
    keys, said = own_keys(draft, wishes)
    keys[LAYER] = {**wishes.extras.get(LAYER, {}), **keys[LAYER]}
    beside = {key: value for key, value in wishes.extras.items() if key != LAYER}
    config = {**beside, "architectures": ["Eagle3DraftModel"], **keys, "dtype": draft.dtype}
    return Writing(
        config=config,
        spelling=SPELLING,
        findings=(*mixed_windows(draft), *lacks(draft, powers), *said),
        zeros=zero_biases(draft, powers),
    )
