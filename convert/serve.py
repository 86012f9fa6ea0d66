"""The launch command for a draft, and a judgement of one that somebody already has.

Source of the facts: SGLang 0.5.23 ``arg_groups/{speculative,serving}_hook.py``, vLLM 0.32
``config/speculative.py``.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from eagle3_interop.convert.target import kv_shape
from eagle3_interop.schemas.findings import Finding, Usage, finding
from eagle3_interop.schemas.keys import architecture, layer_config
from eagle3_interop.schemas.sglang import PLUGIN

Engine = Literal["vllm", "sglang"]

PLUGIN_VARIABLE = "SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3_interop.sglang_plugin"


def needs_plugin(config: Mapping[str, Any]) -> bool:
    """Whether SGLang runs this folder only with the plugin."""
    return architecture(config) in PLUGIN.values()


def command(
    config: Mapping[str, Any],
    engine: Engine,
    checkpoint: str,
    target: str,
    num_draft_tokens: int,
    topk: int = 1,
    *,
    target_quantised: bool = False,
) -> str:
    """The exact command that serves a target with this draft.

    Args:
        config: the draft's config.json.
        engine: ``vllm`` or ``sglang``.
        checkpoint: the draft, as the engine shall find it.
        target: the target, likewise.
        num_draft_tokens: proposed tokens a step, K.
        topk: branches a draft step (SGLang's trees; 1 is a chain).
        target_quantised: print the flag that keeps an unquantised draft from inheriting it.

    Raises:
        Usage: K or top-k out of range, or a tree for vLLM.
    """
    if num_draft_tokens < 1 or topk < 1:
        raise Usage("--num-draft-tokens and --topk count from 1.")
    if engine == "vllm":
        if topk > 1:
            raise Usage("vLLM drafts chains only: leave --topk at 1.")
        speculative = {
            "method": "eagle3",
            "model": checkpoint,
            "num_speculative_tokens": num_draft_tokens,
        }
        return f"vllm serve {shlex.quote(target)} --speculative-config {shlex.quote(json.dumps(speculative))}"
    # A chain of K needs K steps and K + 1 draft tokens: SGLang counts the root among them.
    tokens = num_draft_tokens + 1 if topk == 1 else 1 + topk + (num_draft_tokens - 1) * topk
    parts = [
        *([PLUGIN_VARIABLE] if needs_plugin(config) else []),
        "python -m sglang.launch_server",
        f"--model-path {shlex.quote(target)}",
        "--speculative-algorithm EAGLE3",
        f"--speculative-draft-model-path {shlex.quote(checkpoint)}",
        f"--speculative-num-steps {num_draft_tokens}",
        f"--speculative-eagle-topk {topk}",
        f"--speculative-num-draft-tokens {tokens}",
        *(["--speculative-draft-model-quantization unquant"] if target_quantised else []),
    ]
    return " ".join(parts)


def judge(
    arguments: str,
    engine: Engine,
    config: Mapping[str, Any],
    checkpoint: str,
    target_config: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Judge a launch command against the draft that it is to serve.

    Args:
        arguments: the command, or only its arguments; environment variables may stand before it.
        engine: whose command it is.
        config: the draft's config.json.
        checkpoint: the draft as the user names it.
        target_config: the target's config.json, where it is at hand.

    Returns:
        What would go wrong, each as a finding; nothing, when the command is right.

    Raises:
        Usage: the command cannot be split, or vLLM's JSON not be read.
    """
    try:
        words = shlex.split(arguments)
    except ValueError as error:
        raise Usage(f"--check: {error}") from None
    flags = _flags(words)
    rules = _judge_vllm if engine == "vllm" else _judge_sglang
    found = list(rules(flags, words, config, checkpoint, target_config))
    return [*found, *_judge_shape(config, target_config)]


def _flags(words: list[str]) -> dict[str, str]:
    """Flags and values; both ``--flag value`` and ``--flag=value``, with ``_`` as good as ``-``."""
    flags: dict[str, str] = {}
    for i, word in enumerate(words):
        if not word.startswith("-"):
            continue
        name, equals, value = word.partition("=")
        following = words[i + 1] if i + 1 < len(words) else ""
        if not equals and not following.startswith("--"):
            value = following
        flags[name.lstrip("-").replace("_", "-")] = value
    return flags


def _number(flags: Mapping[str, str], name: str) -> int | None:
    value = flags.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise Usage(f"--check: --{name} is {value!r}, not a number.") from None


def _positions(config: Mapping[str, Any]) -> int | None:
    value = layer_config(config).get("max_position_embeddings")
    return value if isinstance(value, int) else None


def _judge_sglang(
    flags: Mapping[str, str],
    words: list[str],
    config: Mapping[str, Any],
    checkpoint: str,
    target_config: Mapping[str, Any] | None,
) -> Iterator[Finding]:
    algorithm = flags.get("speculative-algorithm", flags.get("speculative-algo", ""))
    where = "--speculative-algorithm"
    if not algorithm:
        yield finding("serve-algorithm", where, "absent: nothing is drafted.")
    elif algorithm.upper() != "EAGLE3":
        message = (
            f"{algorithm}: the target hands over its last hidden state alone, and fc is skipped."
        )
        yield finding("serve-algorithm", where, message)
    draft = flags.get("speculative-draft-model-path", flags.get("speculative-draft-model"))
    if draft is None:
        message = f"absent: give --speculative-draft-model-path {checkpoint}."
        yield finding("serve-no-draft", "--speculative-draft-model-path", message)
    yield from _judge_counts(flags)
    context, positions = _number(flags, "context-length"), _positions(config)
    if context is None and target_config is not None:
        declared = target_config.get("max_position_embeddings")
        context = declared if isinstance(declared, int) else None
    if context is not None and positions is not None and context > positions:
        message = f"{context} positions, and the draft declares {positions}: SGLang does not start."
        yield finding("serve-context", "--context-length", message)
    quantised = "quantization" in flags or "quantization_config" in (target_config or {})
    own = config.get("quantization_config")
    if quantised and not own and "speculative-draft-model-quantization" not in flags:
        message = "the draft inherits the target's --quantization."
        yield finding("serve-quantisation", "--speculative-draft-model-quantization", message)
    if needs_plugin(config) and PLUGIN_VARIABLE not in words:
        message = f"{architecture(config)} is not a class of SGLang's own."
        yield finding("serve-plugin", "SGLANG_EXTERNAL_MODEL_PACKAGE", message)
    if "speculative-draft-window-size" in flags:
        message = "every draft layer slides by it, whatever the draft was trained with."
        yield finding("serve-window", "--speculative-draft-window-size", message)


def _judge_counts(flags: Mapping[str, str]) -> Iterator[Finding]:
    steps = _number(flags, "speculative-num-steps")
    topk = _number(flags, "speculative-eagle-topk")
    tokens = _number(flags, "speculative-num-draft-tokens")
    where = "--speculative-num-steps"
    if steps is None:
        if tokens is not None or topk is not None:
            message = "absent beside draft tokens or top-k: SGLang fails an assertion."
            yield finding("serve-counts", where, message)
        else:
            message = "none of the three counts is given: SGLang chooses by the target's class."
            yield finding("serve-counts-chosen", where, message)
        return
    topk = topk or 1
    if topk == 1 and tokens is not None and tokens != steps + 1:
        message = (
            f"with top-k 1, {steps} steps make {steps + 1} draft tokens, the root included, whatever "
            f"--speculative-num-draft-tokens {tokens} asks: {steps} proposed tokens a step."
        )
        yield finding("serve-steps-win", where, message)
    nodes = 1 + topk + (steps - 1) * topk * topk
    if topk > 1 and tokens is not None and tokens > nodes:
        message = f"{tokens} draft tokens, and a tree of {steps} steps by {topk} has {nodes} nodes."
        yield finding("serve-counts", "--speculative-num-draft-tokens", message)
    if topk > 1 and (_number(flags, "page-size") or 1) > 1:
        backend = flags.get("attention-backend", "")
        if backend not in ("flashinfer", "fa3", "triton"):
            message = (
                f"trees over pages need flashinfer, fa3 or triton, not {backend or 'the default'}."
            )
            yield finding("serve-pages", "--page-size", message)


def _judge_vllm(
    flags: Mapping[str, str],
    words: list[str],  # noqa: ARG001
    config: Mapping[str, Any],
    checkpoint: str,
    target_config: Mapping[str, Any] | None,
) -> Iterator[Finding]:
    settings = _vllm_settings(flags)
    where = "--speculative-config"
    if not settings and "speculators_model_type" not in config:
        yield finding("serve-no-draft", where, "absent: nothing is drafted.")
        return
    model = str(settings.get("model", checkpoint))
    method = settings.get("method")
    guess = (
        "eagle" if "eagle-" in model.lower() else "eagle3" if "eagle3" in model.lower() else None
    )
    if method is None and guess != "eagle3" and "speculators_model_type" not in config:
        message = f"no method, and from the name {model!r} vLLM takes {guess or 'a draft model'}."
        yield finding("serve-method", f"{where}: method", message)
    elif method is not None and method != "eagle3":
        yield finding(
            "serve-method", f"{where}: method", f"{method!r} is not how this draft drafts."
        )
    if "num_speculative_tokens" not in settings and "speculators_model_type" not in config:
        message = "absent, and the draft's config names none."
        yield finding("serve-counts", f"{where}: num_speculative_tokens", message)
    if settings.get("parallel_drafting"):
        message = "this draft was not trained to draft in parallel; vLLM wants its mask_hidden."
        yield finding("serve-method", f"{where}: parallel_drafting", message)
    theirs = (target_config or {}).get("quantization_config")
    if (theirs or "quantization" in flags) and not config.get("quantization_config"):
        message = "vLLM takes the draft's own config for it, so that this draft stays unquantised."
        yield finding("serve-quantised-target", "--quantization", message)


def _vllm_settings(flags: Mapping[str, str]) -> dict[str, Any]:
    raw = flags.get("speculative-config", flags.get("sc"))
    if raw is None:
        dotted = "speculative-config."
        return {
            name.removeprefix(dotted).replace("-", "_"): value
            for name, value in flags.items()
            if name.startswith(dotted)
        }
    try:
        settings = json.loads(raw)
    except json.JSONDecodeError as error:
        raise Usage(f"--check: --speculative-config is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise Usage("--check: --speculative-config is not a JSON object.")
    return settings


def _judge_shape(
    config: Mapping[str, Any], target_config: Mapping[str, Any] | None
) -> Iterator[Finding]:
    if target_config is None:
        return
    ours, theirs = kv_shape(layer_config(config)), kv_shape(target_config)
    if None not in (*ours, *theirs) and ours != theirs:
        message = (
            f"the draft has {ours[0]} KV heads of {ours[1]}, the target {theirs[0]} of {theirs[1]}."
        )
        yield finding("kv-shape", "config.json: head_dim", message)
