"""What SGLang makes of the two configs under a launch command: rope, length, dtype, window.

Source of the facts: SGLang 0.5.23 ``srt/``, each rule's file beside it; ``serving_hook.py``,
``model_override_base.py`` and ``model_overrides/`` are in ``arg_groups/``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from eagle3_interop.convert.serve.parse import Launch
from eagle3_interop.schemas.dialects.keys import FLAT_READ, architecture
from eagle3_interop.schemas.dialects.latent import LATENT_KEYS
from eagle3_interop.schemas.dialects.recognition import LATENT_PLUGIN, PLUGIN, is_latent
from eagle3_interop.schemas.draft import STRETCHED
from eagle3_interop.schemas.engines.positions import context_of, rope_kind, rope_of
from eagle3_interop.schemas.findings import Finding, finding

_VARIABLE, _PACKAGE = "SGLANG_EXTERNAL_MODEL_PACKAGE", "eagle3_interop.sglang_plugin"
PLUGIN_VARIABLE = f"{_VARIABLE}={_PACKAGE}"

_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_DTYPES = {
    **{name: name for name in ("float16", "bfloat16", "float32")},
    **{f"torch.{name}": name for name in ("float16", "bfloat16", "float32")},
    "half": "float16",
    "float": "float32",
}
_ALWAYS_BFLOAT16 = frozenset(["MistralLarge3ForCausalLM", "PixtralForConditionalGeneration"])

_UNITS = {
    **{unit: 1000**n for n, unit in enumerate("kMGT", 1)},
    **{f"{unit}i": 1024**n for n, unit in enumerate("KMGT", 1)},
}
"""``utils/common.py`` ``human_readable_int``."""

_ROPE = ("rope_scaling", "rope_parameters")
_WINDOWS = frozenset(["layer_types", "sliding_window", "use_sliding_window", "max_window_layers"])
_TEXT_CONFIGS = frozenset(["text_config", "llm_config", "language_config", "thinker_config"])
_DECIDING = (FLAT_READ | _TEXT_CONFIGS | {"quantization_config"}) - {
    "max_position_embeddings",
    "model_type",
    "rope_theta",
}
"""Keys that make the draft another network. SGLang reads the base from the rope's own dictionary."""


def needs_plugin(config: Mapping[str, Any]) -> bool:
    """Whether SGLang runs this folder only with the plugin."""
    return architecture(config) in (*PLUGIN.values(), LATENT_PLUGIN)


def judge_configs(launch: Launch) -> Iterator[Finding]:
    """What goes wrong by what the configs say, and what the command makes of them."""
    yield from _judge_overrides(launch)
    yield from _judge_context(launch)
    yield from _judge_dtype(launch)
    yield from _judge_quantisation(launch)
    if needs_plugin(launch.config) and launch.variable(_VARIABLE) != _PACKAGE:
        message = f"{architecture(launch.config)} is not a class of SGLang's own."
        yield finding("serve-plugin", _VARIABLE, message)
    yield from _judge_window(launch)


# `configs/model_config.py` `from_server_args` hands --json-model-override-args and --dtype to both models.


def _overrides(launch: Launch) -> dict[str, Any]:
    return launch.table("json-model-override-args") or {}


def _overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`utils/hf_transformers/config.py` `get_config`: a rope is merged, any other key replaced."""
    result = dict(config)
    for key, value in overrides.items():
        if key in _ROPE and isinstance(value, Mapping):
            result.pop("rope_parameters", None)
            result["rope_scaling"] = {**rope_of(config), **value}
        else:
            result[key] = value
    return result


def _judge_overrides(launch: Launch) -> Iterator[Finding]:
    config, overrides = launch.config, _overrides(launch)
    after = _overridden(config, overrides)
    changed = {
        key
        for key, value in overrides.items()
        if (rope_of(after) != rope_of(config) if key in _ROPE else config.get(key) != value)
    }
    deciding = set(_DECIDING) - (set() if needs_plugin(config) else _WINDOWS)
    if is_latent(architecture(config), config.get("kv_lora_rank")):
        deciding |= LATENT_KEYS
    if rope_kind(config) in STRETCHED:
        deciding.add("max_position_embeddings")
    where = "--json-model-override-args"
    if wrong := sorted(changed & deciding):
        message = f"--json-model-override-args is also applied by SGLang to the draft and changes its architecture: {', '.join(wrong)}."
        yield finding("serve-overrides", where, message)
    if shared := sorted(changed - deciding):
        message = f"SGLang overrides the draft's config too: {', '.join(shared)}."
        yield finding("serve-overrides-shared", where, message)


def _judge_context(launch: Launch) -> Iterator[Finding]:
    """`configs/model_config.py` `_derive_context_length`; ``speculative/eagle_worker_v2.py`` hands it on."""
    overrides, where = _overrides(launch), "--context-length"
    asked, allowed = launch.number("context-length", units=_UNITS), launch.switched_on(_LONGER)
    if asked is None and launch.takes_a_file:
        return
    if asked is not None and asked < 1:
        yield finding("serve-context", where, f"{asked} positions: no request fits.", fix="")
        return
    reach = None if launch.target is None else context_of(_overridden(launch.target, overrides))
    if asked is not None and reach is not None and asked > reach and not allowed:
        message = f"{asked} positions, and the target reaches {reach}: SGLang does not start."
        yield finding("serve-context", where, message, fix="Shorten --context-length.")
    context = reach if asked is None else asked
    own = context_of(_overridden(launch.config, overrides))
    if context is None or own is None or context <= own:
        return
    if not allowed:
        message = f"{context} positions, and the draft reaches {own}: SGLang does not start."
        yield finding("serve-context", where, message)
    elif rope_kind(launch.config) == "dynamic":
        message = (
            f"SGLang declares {context} positions for the draft, whose dynamic rope goes by them."
        )
        yield finding("serve-context", _LONGER, message)


def _dtype(config: Mapping[str, Any]) -> str:
    """`configs/model_config.py` `_get_and_verify_dtype` for ``auto``; what it does not know is float32."""
    dtype = _DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")), "float32")
    if dtype != "float32":
        return dtype
    return "bfloat16" if str(config.get("model_type")).startswith("gemma") else "float16"


def _runs_in_bfloat16(target: Mapping[str, Any]) -> bool:
    """Targets for which SGLang sets --dtype, which is the draft's as well.

    ``model_override_base.py`` ``MODEL_OVERRIDES``, ``model_overrides/gpt_oss.py``.
    """
    name, quantised = architecture(target), target.get("quantization_config")
    mxfp4 = isinstance(quantised, Mapping) and quantised.get("quant_method") == "mxfp4"
    return name in _ALWAYS_BFLOAT16 or (name == "GptOssForCausalLM" and mxfp4)


def _dtypes(config: Mapping[str, Any], target: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """The draft's and the target's, where they differ."""
    if target is None or _runs_in_bfloat16(target):
        return None
    pair = _dtype(config), _dtype(target)
    return pair if pair[0] != pair[1] else None


def dtype_wanted(config: Mapping[str, Any], target: Mapping[str, Any] | None) -> str | None:
    """The target's dtype, where the draft runs in it only if SGLang is told to."""
    pair = _dtypes(config, target)
    return pair[1] if pair else None


def _judge_dtype(launch: Launch) -> Iterator[Finding]:
    """`models/llama_eagle3.py` feeds the target's hidden states to fc, a plain Linear, as they come."""
    if launch.flags.get("dtype", "auto") != "auto" or launch.takes_a_file:
        return
    overrides = _overrides(launch)
    target = None if launch.target is None else _overridden(launch.target, overrides)
    if pair := _dtypes(_overridden(launch.config, overrides), target):
        message = (
            f"the draft runs in {pair[0]}, the target in {pair[1]}: SGLang fails at the first step."
        )
        yield finding("serve-dtype", "--dtype", message, fix=f"--dtype {pair[1]}")


def _judge_quantisation(launch: Launch) -> Iterator[Finding]:
    """`serving_hook.py` `_handle_missing_default_values`: the flag is inherited, the config's key is not."""
    quantised = launch.flags.get("quantization", "unquant") != "unquant"
    own = launch.config.get("quantization_config")
    if quantised and not own and launch.absent("speculative-draft-model-quantization"):
        message = "the draft inherits the target's --quantization."
        yield finding("serve-quantisation", "--speculative-draft-model-quantization", message)


def _judge_window(launch: Launch) -> Iterator[Finding]:
    where = "--speculative-draft-window-size"
    if "speculative-draft-window-size" not in launch.flags:
        return
    kinds = launch.config.get("layer_types") or []
    if needs_plugin(launch.config) and "sliding_attention" in kinds:
        message = "the draft was trained with a window, and SGLang's plugin takes no other."
        yield finding("serve-window-given", where, message)
    else:
        message = "every draft layer slides by it, whatever the draft was trained with."
        yield finding("serve-window", where, message)
