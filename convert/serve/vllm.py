"""vLLM's launch command, and what vLLM makes of one.

Source of the facts: vLLM 0.32.0, each rule's file beside it.
"""

import json
import re
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

from eagle3_interop.convert.serve.launch import Command, Serving
from eagle3_interop.convert.serve.names import judge_models, judge_settings
from eagle3_interop.convert.serve.parse import Launch, home, named, same_place, size
from eagle3_interop.schemas.dialects.keys import IDS, layer_config, nested_keys, parallel_signs
from eagle3_interop.schemas.engines.positions import vllm_context_of, vllm_reach_of
from eagle3_interop.schemas.findings import Finding, finding

_WHERE = "--speculative-config"
_SHORT = {
    "spec-method": "method",
    "spec-model": "model",
    "spec-tokens": "num_speculative_tokens",
}
_OTHER_FOLDERS = ("hf-config-path", "served-model-name", "spec-model", "tokenizer")
"""Flags whose value may be the draft's folder, which it then does not serve."""
_COUNT = re.compile(r"\s*\+?0*[1-9]\d*(\.0+)?\s*")
_NO_COMPILATION = ("0", "none")
_UNITS = {
    **{unit: 1000**n for n, unit in enumerate("kmgt", 1)},
    **{unit: 1024**n for n, unit in enumerate("KMGT", 1)},
}
"""``utils/argparse_utils.py`` ``human_readable_int``."""


def vllm_command(serving: Serving) -> Command:
    """The command; see `serve.command`."""
    (draft, revision), (model, its_revision) = named(serving.checkpoint), named(serving.target)
    speculative = {
        "method": "eagle3",
        "model": draft,
        **({"revision": revision} if revision else {}),
        "num_speculative_tokens": serving.num_draft_tokens,
        **({"parallel_drafting": True} if parallel_signs(serving.config) else {}),
    }
    flags = [("--speculative-config", json.dumps(speculative))]
    if its_revision:
        flags.insert(0, ("--revision", its_revision))
    return Command("vllm", model, tuple(flags))


def judge_vllm(launch: Launch) -> Iterator[Finding]:
    """What would go wrong with this command."""
    table = _table(launch, "speculative-config", "sc")
    short = {
        key: _value(launch.flags[flag]) for flag, key in _SHORT.items() if flag in launch.flags
    }
    settings = {**table, **short}
    itself = _serves_itself(launch)
    if not settings and not itself and not launch.takes_a_file:
        yield finding("serve-no-draft", _WHERE, "absent: nothing is drafted.")
        return
    yield from judge_settings(launch, settings)
    yield from _judge_twice(launch, _SHORT.values() if itself else table)
    if not itself:
        yield from _judge_settings(launch, settings)
    yield from _judge_numbers(settings)
    yield from _judge_parallel(launch, settings, itself=itself)
    theirs = (launch.target or {}).get("quantization_config")
    if (theirs or launch.last("quantization", "q")) and not launch.config.get(
        "quantization_config"
    ):
        message = "vLLM takes the draft's own config for it, so that this draft stays unquantised."
        yield finding("serve-quantised-target", "--quantization", message)
    yield from _judge_eager(launch)
    yield from _judge_lengths(launch, settings)
    yield from _judge_context(launch, settings)
    yield from _judge_names(launch, settings, itself=itself)


def _judge_parallel(launch: Launch, settings: dict[str, Any], *, itself: bool) -> Iterator[Finding]:
    """``configs/speculators/base.py``, ``llama_eagle3.py`` and ``config/vllm.py``: the flag is the user's."""
    where, given = f"{_WHERE}: parallel_drafting", settings.get("parallel_drafting")
    if not parallel_signs(launch.config):
        if given:
            message = "this draft was not trained to draft in parallel; vLLM wants its mask_hidden."
            yield finding("serve-method", where, message)
        return
    if not given and not (itself and given is None) and not launch.takes_a_file:
        state = "absent" if given is None else "false"
        message = f"{state}: vLLM drops mask_hidden with a warning, and drafts token by token."
        yield finding("serve-parallel", where, message)
    if launch.switched_on("VLLM_USE_V2_MODEL_RUNNER"):
        message = "its V2 runner has no parallel drafting, and vLLM does not start."
        yield finding("serve-parallel", "VLLM_USE_V2_MODEL_RUNNER", message, fix="Leave it out.")


def _judge_names(launch: Launch, settings: dict[str, Any], *, itself: bool) -> Iterator[Finding]:
    """A folder that serves itself names its target inside; any other command names both."""
    if itself:
        return
    draft, revision = settings.get("model"), settings.get("revision")
    draft = draft if isinstance(draft, str) else None
    served = launch.last("model") or next(iter(launch.parsed[1]), None)
    yield from judge_models(launch, draft, revision, served, launch.last("revision"))


def _table(launch: Launch, *names: str) -> dict[str, Any]:
    """A JSON flag, also one given key by key.

    ``utils/argparse_utils.py`` ``parse_args``: the keys under one name make one object, which replaces the
    JSON, and that of a name that comes later.
    """
    apart: dict[str, dict[str, Any]] = {}
    for flag, value in launch.given:
        name, dot, key = flag.partition(".")
        if dot and name in names:
            apart.setdefault(name, {})[key] = _value(value)
    if apart:
        table = list(apart.values())[-1]
    elif launch.last(*names) in (None, "", "None"):
        table = {}
    else:
        table = launch.table(*names) or {}
    return {key.replace("-", "_"): value for key, value in table.items()}


def _value(raw: str) -> Any:  # noqa: ANN401
    """JSON, else a number with a unit, else text."""
    try:
        return json.loads(raw)
    except ValueError:
        number = size(raw, _UNITS)
        return raw if number is None else number


def _judge_twice(launch: Launch, taken: Collection[str]) -> Iterator[Finding]:
    """``engine/arg_utils.py`` ``create_speculative_config``; a folder that serves itself has named all."""
    for flag, key in _SHORT.items():
        if flag in launch.flags and key in taken:
            message = f"{key} is also in --speculative-config, or in the folder that is served."
            yield finding("serve-given-twice", f"--{flag}", message)


def _serves_itself(launch: Launch) -> bool:
    """Whether the served model is this very speculators folder, which names its target and its tokens.

    ``transformers_utils/config.py`` ``maybe_override_with_speculators``: no other folder is looked at.
    """
    if not launch.config.get("speculators_config"):
        return False
    draft = named(launch.checkpoint)[0]
    return any(home(word) == draft or same_place(word, draft) for word in _served(launch))


def _served(launch: Launch) -> list[str]:
    """Words that may be the model: ``--model``'s, else the first after ``serve``, else any behind a flag."""
    words = launch.own
    if "model" in launch.flags:
        return [launch.flags["model"]]
    after = words[words.index("serve") :] if "serve" in words else []
    if len(after) > 1 and not after[1].startswith("-"):
        return after[1:2]
    return [
        word
        for before, word in pairwise(after)
        if not word.startswith("-") and not _names_another(before)
    ]


def _names_another(word: str) -> bool:
    name = word.lstrip("-").replace("_", "-")
    return word.startswith("-") and (name in _OTHER_FOLDERS or name.endswith(".model"))


def _judge_settings(launch: Launch, settings: dict[str, Any]) -> Iterator[Finding]:
    """``config/speculative.py`` ``__post_init__``."""
    complete = not launch.takes_a_file
    model, method = settings.get("model"), settings.get("method")
    name = str(model).lower()
    guess = "eagle" if "eagle-" in name else "eagle3" if "eagle3" in name else None
    if model is None and complete:
        message = "absent, which only methods without a draft model do without."
        yield finding("serve-no-draft", f"{_WHERE}: model", message)
    if method is None and guess != "eagle3" and model is not None and complete:
        message = f"no method, and from the name {model!r} vLLM takes {guess or 'a draft model'}."
        yield finding("serve-method", f"{_WHERE}: method", message)
    elif method is not None and method != "eagle3":
        message = f"{method!r} is not how this draft drafts."
        yield finding("serve-method", f"{_WHERE}: method", message)
    if settings.get("num_speculative_tokens") is None and complete:
        message = "absent: vLLM asks a draft's config for it only where it serves that very folder."
        yield finding("serve-counts", f"{_WHERE}: num_speculative_tokens", message)


def _judge_numbers(settings: dict[str, Any]) -> Iterator[Finding]:
    """``config/speculative.py``: ``Field(gt=0)`` and ``Field(ge=1)``, as pydantic reads a number."""
    for key in ("num_speculative_tokens", "max_model_len"):
        value = settings.get(key)
        if value is not None and not _counts(value):
            message = f"{value!r}: vLLM takes whole numbers from 1 on, and does not start."
            yield finding("serve-counts", f"{_WHERE}: {key}", message)


def _counts(value: object) -> bool:
    if isinstance(value, str):
        return _COUNT.fullmatch(value) is not None
    return isinstance(value, int | float) and value >= 1 and value % 1 == 0


def _judge_eager(launch: Launch) -> Iterator[Finding]:
    """``model_executor/models/interfaces.py`` ``_maybe_add_hidden_state``, ``kernels/vllm_c.py``.

    Layer 0's input is kept without a copy; layer 0 goes on with it as ``residual``, which vLLM's own
    ``fused_add_rms_norm`` writes to. Compiled, ``platforms/cuda.py`` prefers the native one.
    """
    if 0 not in _ids(launch) or not _is_eager(launch):
        return
    message = (
        "by its code (read, not run on a GPU) vLLM without compilation writes the later stream over the "
        "embedding that tap 0 takes."
    )
    yield finding("serve-eager-embedding-tap", "--enforce-eager", message)


def _ids(launch: Launch) -> list[int]:
    """Top-level ids, else the nested ones that this runner reads."""
    nested = IDS if _runs_v1(launch) else "layer_ids"
    return launch.config.get(IDS) or nested_keys(launch.config).get(nested) or []


def _runs_v1(launch: Launch) -> bool:
    return bool(parallel_signs(launch.config)) or launch.switched_off("VLLM_USE_V2_MODEL_RUNNER")


def _is_eager(launch: Launch) -> bool:
    """``config/vllm.py``: what makes the compilation mode NONE."""
    names = [name for name, _ in launch.given]
    switches = [name for name in names if name in ("enforce-eager", "no-enforce-eager")]
    levels = [
        value if name in ("optimization-level", "O") else name[1:]
        for name, value in launch.given
        if name == "optimization-level" or name.startswith("O")
    ]
    mode = _table(launch, "compilation-config", "cc").get("mode")
    return (
        switches[-1:] == ["enforce-eager"]
        or levels[-1:] == ["0"]
        or (mode is not None and str(mode).lower() in _NO_COMPILATION)
        or launch.switched_on("TORCH_COMPILE_DISABLE")
    )


def _judge_lengths(launch: Launch, settings: dict[str, Any]) -> Iterator[Finding]:
    """``config/model.py`` ``_get_and_verify_max_len``, ``config/speculative.py`` ``_maybe_override_draft_max_model_len``."""
    reach = None if launch.target is None else vllm_reach_of(launch.target)
    given = launch.last("max-model-len")
    asked = launch.number("max-model-len", units=_UNITS) if _is_a_length(given) else None
    allowed = launch.switched_on("VLLM_ALLOW_LONG_MAX_MODEL_LEN")
    if asked is not None and reach is not None and asked > reach and not allowed:
        message = f"{asked} positions, and the target reaches {reach}: vLLM does not start."
        yield finding("serve-context", "--max-model-len", message, fix="Shorten --max-model-len.")
    drafted, where = settings.get("max_model_len"), f"{_WHERE}: max_model_len"
    if not isinstance(drafted, int):
        return
    target = reach if asked is None else asked
    own = _declared(launch)
    if own is not None and drafted > own and not allowed:
        message = f"{drafted} positions, and the draft reaches {own}: vLLM does not start."
        yield finding("serve-context", where, message, fix="Leave it out.")
    elif target is not None and drafted > target:
        message = f"{drafted} positions, and the target has {target}: vLLM does not start."
        yield finding("serve-context", where, message, fix="Leave it out.")


def _is_a_length(given: str | None) -> bool:
    return given is not None and given.strip().lower() not in ("auto", "-1")


def _judge_context(launch: Launch, settings: dict[str, Any]) -> Iterator[Finding]:
    """``v1/worker/gpu_model_runner.py`` ``_input_fits_in_drafter``; the V2 runner, the default, goes on."""
    given = launch.last("max-model-len")
    asked = launch.number("max-model-len", units=_UNITS) if _is_a_length(given) else None
    if asked is not None and asked < 1:
        message = f"{asked} positions: vLLM does not start."
        yield finding("serve-counts", "--max-model-len", message, fix="")
        return
    if not _runs_v1(launch):
        return
    if asked is None and launch.target is not None and not launch.takes_a_file:
        asked = vllm_context_of(launch.target)
    own = settings.get("max_model_len") or _declared(launch)
    if asked is not None and isinstance(own, int) and asked > own:
        message = f"{asked} positions, and the draft declares {own}: beyond them the V1 runner drafts nothing."
        yield finding("serve-context-stops", "--max-model-len", message)


def _declared(launch: Launch) -> int | None:
    """The draft's own positions; ``configs/speculators/base.py`` has no class with a default."""
    layers = layer_config(launch.config)
    if "speculators_config" in launch.config:
        layers = {key: value for key, value in layers.items() if key != "model_type"}
    return vllm_context_of(layers)
