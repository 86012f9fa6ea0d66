"""The launch command for a draft, and a judgement of one that somebody already has.

The facts, and where they come from, are in `serve_sglang` and `serve_vllm`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from eagle3_interop.convert.read.target_tables import kv_shape
from eagle3_interop.convert.serve.names import judge_flags
from eagle3_interop.convert.serve.parse import Launch
from eagle3_interop.convert.serve.sglang import judge_sglang, sglang_command
from eagle3_interop.convert.serve.sglang_configs import PLUGIN_VARIABLE, needs_plugin
from eagle3_interop.convert.serve.vllm import judge_vllm, vllm_command
from eagle3_interop.schemas.dialects.keys import layer_config
from eagle3_interop.schemas.draft import MOST_DRAFTED
from eagle3_interop.schemas.findings import Finding, Usage, finding

__all__ = ["PLUGIN_VARIABLE", "Engine", "command", "judge", "needs_plugin"]

Engine = Literal["vllm", "sglang"]


def command(
    config: Mapping[str, Any],
    engine: Engine,
    checkpoint: str,
    target: str,
    num_draft_tokens: int,
    topk: int = 1,
    *,
    target_config: Mapping[str, Any] | None = None,
) -> str:
    """The exact command that serves a target with this draft.

    Args:
        config: the draft's config.json.
        engine: ``vllm`` or ``sglang``.
        checkpoint: the draft, as the engine shall find it.
        target: the target, likewise.
        num_draft_tokens: proposed tokens a step, K.
        topk: branches a draft step (SGLang's trees; 1 is a chain).
        target_config: the target's config.json (a multimodal one's text part), where it is at hand:
            SGLang runs the draft in the target's dtype only if it is told to.

    Raises:
        Usage: K or top-k out of range, or a tree for vLLM.
    """
    if not 1 <= num_draft_tokens <= MOST_DRAFTED or not 1 <= topk <= MOST_DRAFTED:
        raise Usage(f"--num-draft-tokens and --topk count from 1 to {MOST_DRAFTED}.")
    if engine == "sglang":
        return sglang_command(config, checkpoint, target, num_draft_tokens, topk, target_config)
    if topk > 1:
        raise Usage("vLLM drafts chains only: leave --topk at 1.")
    return vllm_command(checkpoint, target, num_draft_tokens)


def judge(
    arguments: str,
    engine: Engine,
    config: Mapping[str, Any],
    checkpoint: str,
    target_config: Mapping[str, Any] | None = None,
    target: str | None = None,
) -> list[Finding]:
    """Judge a launch command against the draft that it is to serve.

    Args:
        arguments: the command, or only its arguments; environment variables may stand before it.
        engine: whose command it is.
        config: the draft's config.json.
        checkpoint: the draft as the user names it.
        target_config: the target's config.json, where it is at hand.
        target: the target as the user names it, where that was said.

    Returns:
        What would go wrong, each as a finding; nothing, when the command is right.

    Raises:
        Usage: the command cannot be split, or a JSON in it not be read.
    """
    launch = Launch(engine, arguments, config, checkpoint, target_config, target)
    rules = judge_vllm if engine == "vllm" else judge_sglang
    try:
        return [
            *_judge_file(launch),
            *judge_flags(launch),
            *rules(launch),
            *_judge_shape(config, target_config),
        ]
    except RecursionError:
        raise Usage("--check: a JSON in it is nested too deeply.") from None


def _judge_file(launch: Launch) -> Iterator[Finding]:
    if "config" not in launch.flags:
        return
    if launch.takes_a_file:
        message = f"{launch.flags['config']} was not read: no flag is taken to be absent."
    else:
        message = "with = before its name the engines read no file: it counts for nothing."
    yield finding("serve-config-file", "--config", message)


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
