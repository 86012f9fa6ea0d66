"""The launch command for a draft, and a judgement of one that somebody already has.

The facts, and where they come from, are in `serve.sglang` and `serve.vllm`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from eagle3_interop.convert.read.target_tables import kv_shape
from eagle3_interop.convert.serve.launch import Command, Engine, Serving
from eagle3_interop.convert.serve.names import judge_flags
from eagle3_interop.convert.serve.parse import Launch
from eagle3_interop.convert.serve.sglang import judge_sglang, sglang_command
from eagle3_interop.convert.serve.sglang_configs import PLUGIN_VARIABLE, needs_plugin
from eagle3_interop.convert.serve.vllm import judge_vllm, vllm_command
from eagle3_interop.schemas.dialects.keys import layer_config
from eagle3_interop.schemas.findings import Finding, Usage, finding

__all__ = ["PLUGIN_VARIABLE", "Command", "Engine", "Serving", "command", "judge", "needs_plugin"]

_COMMANDS: dict[Engine, Callable[[Serving], Command]] = {
    "vllm": vllm_command,
    "sglang": sglang_command,
}
_RULES = {"vllm": judge_vllm, "sglang": judge_sglang}


def command(serving: Serving) -> Command:
    """The exact command that serves a target with this draft.

    Raises:
        Usage: K or top-k out of range, or a tree for vLLM.
    """
    return _COMMANDS[serving.engine](serving.checked())


def judge(
    arguments: str,
    engine: Engine,
    config: Mapping[str, Any],
    checkpoint: str,
    target_config: Mapping[str, Any] | None = None,
    target: str | None = None,
    version: str | None = None,
) -> list[Finding]:
    """Judge a launch command against the draft that it is to serve.

    Args:
        arguments: the command, or only its arguments; environment variables may stand before it.
        engine: whose command it is.
        config: the draft's config.json.
        checkpoint: the draft as the user names it.
        target_config: the target's config.json, where it is at hand.
        target: the target as the user names it, where that was said.
        version: of the engine, whose flags count; the newest that was asked, where that was not said.

    Returns:
        What would go wrong, each as a finding; nothing, when the command is right.

    Raises:
        Usage: the command cannot be split, or a JSON in it not be read.
    """
    launch = Launch(engine, arguments, config, checkpoint, target_config, target, version)
    rules = _RULES[engine]
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
        message = f"{launch.flags['config']} was not read, so checks for missing flags are skipped."
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
