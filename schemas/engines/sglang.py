"""SGLang 0.5.23: ``LlamaForCausalLMEagle3``, and the two names under which our plugin registers.

Source of the facts: ``srt/models/llama_eagle3.py``, ``srt/models/llama.py`` and each target's
``set_eagle3_layers_to_capture``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts, Wishes, Writing
from eagle3_interop.schemas.dialects.hf import CONFIG
from eagle3_interop.schemas.dialects.keys import (
    IDS,
    NESTED,
    NO_MODEL_TYPE,
    FlatKeys,
    architecture,
    is_wrapped,
    nested_keys,
)
from eagle3_interop.schemas.dialects.recognition import (
    LATENT_PLUGIN,
    LATENT_STOCK,
    PLUGIN,
    STOCK,
    is_latent,
)
from eagle3_interop.schemas.dialects.rules import FlatRules, LatentRules
from eagle3_interop.schemas.dialects.spelling import Spelling
from eagle3_interop.schemas.dialects.writing import flat_config, mixed_windows, zero_biases
from eagle3_interop.schemas.draft import Draft, Mla
from eagle3_interop.schemas.engines import targets
from eagle3_interop.schemas.engines.capturing import known_targets, without_capture
from eagle3_interop.schemas.engines.loaders import Loader
from eagle3_interop.schemas.engines.naming import (
    KINDS,
    Asked,
    Naming,
    by_group,
    modules_of,
    only,
    wildcards_by_part,
)
from eagle3_interop.schemas.engines.release import Form, Release
from eagle3_interop.schemas.engines.targets_since import sglang_first
from eagle3_interop.schemas.findings import Finding, finding
from eagle3_interop.schemas.powers import Powers, lacks

SPELLING = Spelling(
    roots=("", "model."),
    layer0=("midlayer.", "layers.0."),
    later_norm="hidden_norm",
    legacy_norms=True,
)

LATENT_SPELLING = Spelling(
    roots=("",), layer0=("layers.0.", "midlayer."), later_norm="input_layernorm"
)
"""``kimi_k25_eagle3.py`` puts ``model.`` before every name, and passes over those that have it."""

POWERS = Powers(
    engine="SGLang's LlamaForCausalLMEagle3",
    residual_normed=False,
    attention_biases=frozenset({"output"}),
    fc_bias=True,
    windows=False,
    own_embeddings=False,
    one_equal_tap=False,
    scaled_mrope=False,
    tied_head=True,
    full_map=True,
)
PLUGIN_POWERS = {
    False: replace(
        POWERS,
        engine="SGLang with the plugin",
        residual_normed=True,
        attention_biases=frozenset({"qkv", "output"}),
        windows=True,
        own_embeddings=True,
        fc_bias=False,
        tied_head=False,
        full_map=False,
    )
}
PLUGIN_POWERS[True] = replace(
    PLUGIN_POWERS[False], qk_norm=True, attention_biases=frozenset({"qkv"})
)

LATENT_POWERS = Powers(
    engine="SGLang's Eagle3DeepseekV2ForCausalLM",
    attentions=frozenset({"mla"}),
    queries_at_once=False,
    later_layers=False,
    input_norm=False,
    residual_normed=False,
    attention_biases=frozenset(),
    fc_bias=True,
    windows=False,
    own_embeddings=False,
    no_fc=False,
    one_equal_tap=False,
    partial_rotary=False,
    mrope=False,
    tied_head=True,
    full_map=True,
)

LATENT_PLUGIN_POWERS = replace(
    LATENT_POWERS,
    engine="SGLang with the plugin",
    half_rotation=False,
    later_layers=True,
    residual_normed=True,
    own_embeddings=True,
    fc_bias=False,
    tied_head=False,
    full_map=False,
)

_OTHER_RULES = (
    "DeepSeek, Kimi, GLM-5, GLM-4.7-Flash, Mistral Large 3 and gpt_oss have rules of their own"
)


def ids_to_taps(ids: list[int], target: TargetFacts | None) -> list[int]:
    """What a list in ``eagle_config`` makes a target capture.

    Args:
        ids: the list.
        target: whose class has the rule; None takes the plain one, id + 1.
    """
    name = targets.special_class(target)
    if name in targets.SGLANG_IDS_AS_TAPS and ids[0] != 1:
        return list(ids)
    if name == targets.SGLANG_GPT_OSS and target is not None and max(ids) == target.layers:
        return list(ids)
    return [value + 1 for value in ids]


def taps_to_ids(
    taps: Sequence[int],
    target: TargetFacts | None,
    plain_targets: frozenset[str] = frozenset(),
) -> list[int]:
    """The list that makes a target capture these taps: the inverse of `ids_to_taps`.

    Args:
        taps: ascending, each once.
        target: whose class has the rule; None takes the plain one, tap - 1 (so -1 for the embedding).
        plain_targets: classes that have the plain rule all the same.
    """
    name = targets.special_class(target)
    name = "" if name in plain_targets else name
    plain = [tap - 1 for tap in taps]
    if name in targets.SGLANG_IDS_AS_TAPS:
        if taps[0] == 2:
            return plain
        # A list beginning with 1 would be shifted, and SGLang captures in layer order anyway.
        return list(taps) if taps[0] != 1 else [*taps[1:], 1]
    if name == targets.SGLANG_GPT_OSS and target is not None and max(taps) == target.layers:
        return list(taps)
    return plain


Ids = tuple[list[int] | None, str, Callable[[list[int]], list[int]]]


def ids_of(
    plain_targets: frozenset[str],
) -> Callable[[FlatKeys, TargetFacts | None], Ids]:
    """How ids are found and read where these target classes have the plain rule, whatever the newest have."""

    def of(keys: FlatKeys, target: TargetFacts | None) -> Ids:
        special = None if targets.special_class(target) in plain_targets else target
        nested = keys.nested.eagle_aux_hidden_state_layer_ids
        return nested, f"{CONFIG}: eagle_config.{IDS}", lambda ids: ids_to_taps(ids, special)

    return of


def _blocks(keys: FlatKeys, powers: Powers) -> int:
    ids = keys.nested.eagle_aux_hidden_state_layer_ids
    if "mla" in powers.attentions:
        if ids is None:
            ids = keys.eagle_aux_hidden_state_layer_ids
        return 3 if ids is None else len(ids)
    return keys.num_aux_hidden_states or (len(ids) if ids else 3)


def _default_taps(target: TargetFacts | None) -> tuple[int, ...] | None:
    if target is not None and targets.special_class(target) == targets.SGLANG_LATE_DEFAULT:
        return (3, target.layers // 2 + 1, target.layers - 2)
    return None


def _powers(keys: FlatKeys) -> Powers:
    name = keys.architectures[0] if keys.architectures else ""
    if is_latent(name, keys.kv_lora_rank):
        return LATENT_PLUGIN_POWERS if name == LATENT_PLUGIN else LATENT_POWERS
    plugin = {architecture: qk_norm for qk_norm, architecture in PLUGIN.items()}
    return PLUGIN_POWERS[plugin[name]] if name in plugin else POWERS


_PLUGIN_CLASSES = (*PLUGIN.values(), LATENT_PLUGIN)


def refuses(config: Mapping[str, Any]) -> str:
    """SGLang starts with its own class and with the plugin's; any other name is refused or a target's."""
    if is_wrapped(config):
        return "model_type 'eagle' is vLLM's wrapper form, which SGLang does not know."
    if (name := architecture(config)) not in (STOCK, LATENT_STOCK, *_PLUGIN_CLASSES):
        if name in known_targets("sglang"):
            return f"SGLang takes {name!r} for a target's class, and fails on a draft's tensors."
        return f"SGLang has no draft class {name!r}, nor has the plugin."
    return "" if config.get("model_type") is not None else NO_MODEL_TYPE


def stock_class_only(config: Mapping[str, Any]) -> str:
    """Of a release that the plugin was not run with, and refuses to work in."""
    if (name := architecture(config)) in _PLUGIN_CLASSES:
        return f"{name!r} is the class of this package's plugin, which was not run with this SGLang and refuses it."
    return refuses(config)


def llama_class_only(config: Mapping[str, Any]) -> str:
    """Of a release before there was a class with latent attention."""
    if architecture(config) == LATENT_STOCK:
        return f"SGLang had no draft class {LATENT_STOCK!r} before 0.5.12."
    return stock_class_only(config)


def _ids_of_the_folder(
    source: Source, reading: Reading, target: TargetFacts | None
) -> Iterator[Finding]:
    """What there is to say of the two places of ids."""
    nested, top = nested_keys(source.config).get(IDS), source.config.get(IDS)
    if nested == [] and reading.draft.fc is not None:
        message = "the list of layer ids is empty: SGLang captures no hidden states and fails."
        yield finding("ids-empty", f"{CONFIG}: {NESTED}.{IDS}", message, settled_by="taps")
    if nested and target is None:
        message = f"{nested} were read by SGLang's plain rule (tap = id + 1); {_OTHER_RULES}."
        yield finding("plain-rule", f"{CONFIG}: {NESTED}.{IDS}", message)
    if top:
        yield _beside(top, reading.draft, target)


def _norm_output(
    _source: Source, reading: Reading, _target: TargetFacts | None
) -> Iterator[Finding]:
    """The key means something else in another trainer's configs."""
    if reading.draft.feedback == "post-norm":
        message = "SGLang and vLLM feed the normed state back; SpecForge, where this key is true by default, does not."
        yield finding(
            "norm-output-meaning", f"{CONFIG}: norm_output", message, settled_by="feedback"
        )


def _beside(top: Sequence[int], draft: Draft, target: TargetFacts | None) -> Finding:
    """What there is to say of top-level ids, which SGLang never reads."""
    where, message = f"{CONFIG}: {IDS}", f"top-level ids {list(top)} are not read by SGLang."
    if target is not None:
        draft = draft.model_copy(
            update={"target": draft.target.model_copy(update={"layers": target.layers})}
        )
    taps = draft.network.taps
    if taps is not None and taps == tuple(sorted(set(top))):
        return finding("ids-unread", where, f"{message} They name the layers that SGLang feeds.")
    fed = "the default triple" if taps is None else list(taps)
    message = f"{message} SGLang feeds {fed}; vLLM and speculators would feed these."
    return finding("ids-disagree", where, message, settled_by="taps")


def draft_class(draft: Draft, wishes: Wishes) -> Powers:
    """Stock SGLang's class, or the plugin's where that one alone computes the network."""
    if isinstance(draft.layers.attention, Mla):
        return _latent_class(draft, wishes)
    plugin = PLUGIN_POWERS[draft.layers.gqa.qk_norm]
    if wishes.options.stock or not _stock_lacks(draft, wishes) or lacks(draft, plugin):
        return POWERS
    return plugin


def _stock_lacks(draft: Draft, wishes: Wishes) -> list[Finding]:
    return [*lacks(draft, POWERS), *_own_embeddings(draft, wishes)]


def _own_embeddings(draft: Draft, wishes: Wishes) -> list[Finding]:
    if not wishes.own_embeddings or draft.hidden_size != draft.target.hidden_size:
        return []
    message = "SGLang puts the target's embedding table in the place of the draft's own."
    return [finding("own-embeddings", "vocabulary.embeddings", message)]


def write(draft: Draft, wishes: Wishes) -> Writing:
    """Write for SGLang: its stock class where that computes the network, else the plugin's."""
    if isinstance(draft.layers.attention, Mla):
        return _write_latent(draft, wishes)
    qk_norm = draft.layers.gqa.qk_norm
    powers, needs = draft_class(draft, wishes), _stock_lacks(draft, wishes)
    plugin = powers is not POWERS
    findings: list[Finding] = [*mixed_windows(draft)]
    if plugin:
        findings.append(_needs_plugin(needs))
    elif needs:
        findings += needs if wishes.options.stock else lacks(draft, PLUGIN_POWERS[qk_norm])
    architecture = PLUGIN[qk_norm] if plugin else STOCK
    config = flat_config(draft, architecture, wishes.extras)
    nested, said = eagle_config(draft, wishes.target, plain_targets=wishes.forms.plain_targets)
    config[NESTED] = {**config.get(NESTED, {}), **nested}
    return Writing(
        config=config,
        spelling=SPELLING,
        findings=(*findings, *said),
        zeros=zero_biases(draft, powers),
        plugin=plugin,
    )


def _write_latent(draft: Draft, wishes: Wishes) -> Writing:
    """Write a draft with latent attention, with ids where vLLM looks for them too: it knows the class as well."""
    powers, needs = _latent_class(draft, wishes), _latent_lacks(draft, wishes)
    plugin = powers is LATENT_PLUGIN_POWERS
    config = flat_config(draft, LATENT_PLUGIN if plugin else LATENT_STOCK, wishes.extras)
    nested, said = eagle_config(draft, wishes.target, plain_targets=wishes.forms.plain_targets)
    config[NESTED] = {**config.get(NESTED, {}), **nested}
    if draft.taps is not None:
        config[IDS] = list(draft.taps)
        config[NESTED]["layer_ids"] = list(draft.taps)
    if plugin:
        findings = [_needs_plugin(needs)]
    else:
        findings = (
            needs if wishes.options.stock else lacks(draft, LATENT_PLUGIN_POWERS) if needs else []
        )
    return Writing(
        config=config, spelling=LATENT_SPELLING, findings=(*findings, *said), plugin=plugin
    )


def _latent_class(draft: Draft, wishes: Wishes) -> Powers:
    stock = not _latent_lacks(draft, wishes) or lacks(_paired(draft), LATENT_PLUGIN_POWERS)
    return LATENT_POWERS if wishes.options.stock or stock else LATENT_PLUGIN_POWERS


def _paired(draft: Draft) -> Draft:
    """The draft with neighbours rotated, which a conversion makes of halves."""
    attention = draft.layers.attention.model_copy(update={"interleaved": True})
    layers = draft.layers.model_copy(update={"attention": attention})
    return draft.model_copy(update={"layers": layers})


def _latent_lacks(draft: Draft, wishes: Wishes) -> list[Finding]:
    return [*lacks(draft, LATENT_POWERS), *_own_embeddings(draft, wishes)]


def _needs_plugin(needs: Sequence[Finding]) -> Finding:
    features = ", ".join(item.where for item in needs)
    message = (
        f"SGLang's own class does not compute {features}; the folder names the plugin's class."
    )
    return finding("needs-sglang-plugin", f"{CONFIG}: architectures", message)


def eagle_config(
    draft: Draft,
    target: TargetFacts | None,
    *,
    captured: bool = True,
    plain_targets: frozenset[str] = frozenset(),
) -> tuple[dict[str, Any], list[Finding]]:
    """The nested keys, ids in SGLang's convention, and what had to be said about them.

    Args:
        draft: the network, its taps ascending.
        target: the target's facts; without them the plain rule is used, and said.
        captured: say what SGLang cannot capture of it.
        plain_targets: classes that have the plain rule in a release that the user named.
    """
    if draft.fc is None:
        return {"use_aux_hidden_state": False}, []
    written: dict[str, Any] = {"use_aux_hidden_state": True}
    where = f"{CONFIG}: eagle_config.{IDS}"
    findings: list[Finding] = []
    if captured and (classed := target or targets.class_named(draft)) is not None:
        findings += SGLANG_0_5_22.uncaptured(draft, classed)
    taps = draft.taps
    if taps is None:
        return written, findings
    ids = taps_to_ids(taps, target, plain_targets)
    written[IDS] = ids
    kind = targets.special_class(target)
    if kind in plain_targets:
        message = (
            f"ids {ids} by the plain rule (id = tap - 1), which the named release has for {kind}."
        )
        findings.append(finding("target-rule", where, message))
        return written, findings
    if sorted(ids_to_taps(ids, target)) != list(taps):
        message = f"no list of ids makes {kind or 'a target'} capture taps {list(taps)} in {SGLANG_0_5_22.name}."
        findings.append(finding("no-such-ids", where, message))
    if target is None:
        message = f"ids {ids} were written by SGLang's plain rule (id = tap - 1); {_OTHER_RULES}."
        findings.append(finding("plain-rule", where, message))
    elif ids != [tap - 1 for tap in taps]:
        message = f"ids {ids} by the rule of {SGLANG_0_5_22.name}'s {kind}; versions with the plain rule read id + 1."
        findings.append(finding("target-rule", where, message))
    return written, findings


def _captures(name: str, draft: Draft, target: TargetFacts) -> Iterator[Finding]:
    """What the target's class cannot capture, or captures as something else than its residual stream."""
    if draft.fc is None:
        return
    kind, where = targets.special_class(target), f"{CONFIG}: eagle_config.{IDS}"
    taps = targets.taps_of(draft, target)
    if lacking := list(without_capture("sglang", name, target, where)):
        yield from lacking
        return
    if kind in targets.SGLANG_WITHOUT_RESIDUAL and draft.taps != (0,):
        message = f"{name}'s Gemma 3 captures what a layer's MLP adds, without the residual that it is added to."
        yield finding("target-captures-other", where, message)
    if target.layers in taps and kind not in targets.SGLANG_CAPTURES_THE_END:
        kind_name = next(iter(target.architectures), target.model_type)
        message = f"tap {target.layers} lies after the last layer, which {name}'s {kind_name} never captures."
        fix = None if kind in targets.VLLM_SPARSE else "Serve with vLLM, or train without that tap."
        yield finding("end-tap", where, message, fix=fix)


def _asks(draft: Draft, _first: int) -> Iterator[Asked]:
    """By names without a number, and without what holds the module but for ``self_attn.o_proj``.

    The class of MLA drafts names whole paths. It takes no quantised ``kv_b_proj`` (``post_load_weights``), puts
    ModelOpt's NVFP4 aside, and joins ``q_a_proj`` and ``kv_a_proj_with_mqa`` by the rows of each of their tensors.
    """
    mla = draft.layers.attention.kind == "mla"

    def name(module: str) -> tuple[str, str]:
        leaf = module.rpartition(".")[2]
        within = module.split(".", 2)[-1] if mla or leaf == "o_proj" else leaf
        kind = "ColumnParallelLinear" if mla and leaf == "fc" else KINDS[leaf]
        return ("lm_head" if leaf == "lm_head" else f"model.{within}"), kind

    fused = ("qkv_proj", "gate_up_proj", "fused_qkv_a_proj_with_mqa")
    schemes = draft.quantisation.modules if draft.quantisation is not None else {}
    fp4 = any(scheme.format == "NVFP4" for scheme in schemes.values())
    for asked in modules_of(draft, name, only(fused)):
        plain = ""
        scheme = schemes.get(asked.holds[0])
        undivided = scheme and [each.suffix for each in scheme.pieces if each.per is None]
        if mla and fp4:
            plain = "SGLang's MLA class loads every weight plain where the scheme is NVFP4"
        elif mla and asked.name.endswith("kv_b_proj"):
            plain = "SGLang's MLA class needs this matrix plain"
        elif mla and asked.name.endswith("fused_qkv_a_proj_with_mqa") and undivided:
            plain = f"SGLang's MLA class joins its two parts by rows, and fails on {undivided[0]}, which has none"
        elif asked.name == "model.fc" and not mla:
            plain = "SGLang's llama class takes the numbers as they are and drops the scale"
        yield replace(asked, plain=plain)


NAMING = Naming(
    "SGLang",
    asks=_asks,
    chosen=lambda asked, said: by_group(asked, said, suffixes=True, must_match=True),
    ignored=wildcards_by_part,
)

RULES = FlatRules(
    title="SGLang",
    spelling=SPELLING,
    # The stock class passes over what it does not know, the plugin's does not.
    strict=lambda config: architecture(config) in _PLUGIN_CLASSES,
    powers=_powers,
    ids=ids_of(frozenset()),
    blocks=_blocks,
    default_taps=_default_taps,
    empty_ids_are_none=False,
    partial_at_top=True,
    rescales_sections=True,
    aux_norm_key=True,
    # llama_eagle3.py takes another key for drafts of Llama 4.
    mlp_width_keys={"llama4_text": ("intermediate_size_mlp", 16384)},
    null_head=True,
    ties_head=True,
    shares_absent_head=False,
    latent=LatentRules(
        halves=True,
        unscaled=lambda numbers: (
            not all(numbers.get(key, True) for key in ("apply_yarn_scaling", "apply_scale"))
        ),
        reads=frozenset(
            {"apply_scale", "apply_yarn_scaling", "attn_factor", "extrapolation_factor"}
        ),
        absent_size_is_null=True,
        spelling=LATENT_SPELLING,
    ),
    remarks=(_ids_of_the_folder, _norm_output, NAMING.remarks),
)

SGLANG_0_5_22 = Release(
    engine="sglang",
    title="SGLang",
    since="0.5.22",
    until="0.5.23",
    forms=(Form(lambda _config: True, RULES),),
    refuses=refuses,
    captures=_captures,
    naming=NAMING,
    trees=True,
    hands_out=sglang_first,
    loader=Loader(embeddings="replaced", attention_factor=False),
)
