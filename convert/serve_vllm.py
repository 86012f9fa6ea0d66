"""vLLM's launch command, and what vLLM makes of one.

Source of the facts: vLLM 0.32.0, each rule's file beside it.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle3_interop.convert.folders import pinned
from eagle3_interop.convert.launch import Launch
from eagle3_interop.schemas.context import context_of
from eagle3_interop.schemas.findings import Finding, finding
from eagle3_interop.schemas.keys import IDS, layer_config

_WHERE = "--speculative-config"
_DOTTED = "speculative-config."
_NO_COMPILATION = ("0", "none")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
_SIZES = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}


def vllm_command(checkpoint: str, target: str, num_draft_tokens: int) -> str:
    """The command; see `serve.command`."""
    (draft, revision), (model, its_revision) = pinned(checkpoint), pinned(target)
    speculative = {
        "method": "eagle3",
        "model": draft,
        **({"revision": revision} if revision else {}),
        "num_speculative_tokens": num_draft_tokens,
    }
    parts = [
        f"vllm serve {shlex.quote(model)}",
        *([f"--revision {its_revision}"] if its_revision else []),
        f"--speculative-config {shlex.quote(json.dumps(speculative))}",
    ]
    return " ".join(parts)


def judge_vllm(launch: Launch) -> Iterator[Finding]:
    """What would go wrong with this command."""
    settings = _settings(launch)
    itself = _serves_itself(launch)
    if not settings and not itself:
        yield finding("serve-no-draft", _WHERE, "absent: nothing is drafted.")
        return
    if not itself:
        yield from _judge_settings(launch, settings)
    if settings.get("parallel_drafting"):
        message = "this draft was not trained to draft in parallel; vLLM wants its mask_hidden."
        yield finding("serve-method", f"{_WHERE}: parallel_drafting", message)
    theirs = (launch.target or {}).get("quantization_config")
    if (theirs or "quantization" in launch.flags) and not launch.config.get("quantization_config"):
        message = "vLLM takes the draft's own config for it, so that this draft stays unquantised."
        yield finding("serve-quantised-target", "--quantization", message)
    yield from _judge_eager(launch)
    yield from _judge_context(launch, settings)


def _settings(launch: Launch) -> dict[str, Any]:
    name = "speculative-config" if "speculative-config" in launch.flags else "sc"
    settings = launch.table(name)
    if settings is not None:
        return settings
    return {
        name.removeprefix(_DOTTED).replace("-", "_"): value
        for name, value in launch.flags.items()
        if name.startswith(_DOTTED)
    }


def _serves_itself(launch: Launch) -> bool:
    """Whether the served model is this very speculators folder, which names its target and its tokens.

    ``transformers_utils/config.py`` ``maybe_override_with_speculators``: no other folder is looked at.
    """
    served = _served(launch)
    if served is None or not launch.config.get("speculators_config"):
        return False
    return served == launch.checkpoint or (
        Path(served).expanduser().resolve() == Path(launch.checkpoint).expanduser().resolve()
    )


def _served(launch: Launch) -> str | None:
    """The model after ``serve``, or of ``--model``."""
    words = launch.words
    after = words.index("serve") + 1 if "serve" in words else len(words)
    if after < len(words) and not words[after].startswith("-"):
        return words[after]
    return launch.flags.get("model")


def _judge_settings(launch: Launch, settings: dict[str, Any]) -> Iterator[Finding]:
    """``config/speculative.py`` ``__post_init__``."""
    model = str(settings.get("model", launch.checkpoint))
    method = settings.get("method")
    guess = (
        "eagle" if "eagle-" in model.lower() else "eagle3" if "eagle3" in model.lower() else None
    )
    if method is None and guess != "eagle3":
        message = f"no method, and from the name {model!r} vLLM takes {guess or 'a draft model'}."
        yield finding("serve-method", f"{_WHERE}: method", message)
    elif method is not None and method != "eagle3":
        message = f"{method!r} is not how this draft drafts."
        yield finding("serve-method", f"{_WHERE}: method", message)
    if "num_speculative_tokens" not in settings:
        message = "absent: vLLM asks a draft's config for it only where it serves that very folder."
        yield finding("serve-counts", f"{_WHERE}: num_speculative_tokens", message)


def _judge_eager(launch: Launch) -> Iterator[Finding]:
    """``model_executor/models/interfaces.py`` ``_maybe_add_hidden_state``, ``kernels/vllm_c.py``.

    Layer 0's input is kept without a copy; layer 0 goes on with it as ``residual``, which vLLM's own
    ``fused_add_rms_norm`` writes to. Compiled, ``platforms/cuda.py`` prefers the native one.
    """
    if 0 not in (launch.config.get(IDS) or []) or not _is_eager(launch):
        return
    message = (
        "by its code (read, not run on a GPU) vLLM without compilation writes the later stream over the "
        "embedding that tap 0 takes."
    )
    yield finding("serve-eager-embedding-tap", "--enforce-eager", message)


def _is_eager(launch: Launch) -> bool:
    """``config/vllm.py``: what makes the compilation mode NONE."""
    flags = launch.flags
    named = next((n for n in ("compilation-config", "cc") if flags.get(n, "")[:1] == "{"), None)
    table = launch.table(named) or {} if named else {}
    mode = table.get("mode", launch.first("cc.mode", "compilation-config.mode"))
    return (
        "enforce-eager" in flags
        or "O0" in flags
        or launch.first("optimization-level", "O") == "0"
        or (mode is not None and str(mode).lower() in _NO_COMPILATION)
        or launch.switched_on("TORCH_COMPILE_DISABLE")
    )


def _judge_context(launch: Launch, settings: dict[str, Any]) -> Iterator[Finding]:
    """``v1/worker/gpu_model_runner.py`` ``_input_fits_in_drafter``; the V2 runner, the default, goes on."""
    if not launch.switched_off("VLLM_USE_V2_MODEL_RUNNER"):
        return
    asked = _size(launch.flags.get("max-model-len"))
    if asked is None and launch.target is not None:
        asked = context_of(launch.target)
    own = settings.get("max_model_len") or context_of(layer_config(launch.config))
    if asked is not None and isinstance(own, int) and asked > own:
        message = f"{asked} positions, and the draft declares {own}: beyond them the V1 runner drafts nothing."
        yield finding("serve-context-stops", "--max-model-len", message)


def _size(value: str | None) -> int | None:
    """``utils/argparse_utils.py`` ``human_readable_int``; None for what leaves it to vLLM."""
    match = _SIZE.fullmatch(value or "")
    return int(float(match[1]) * _SIZES[match[2]]) if match else None
