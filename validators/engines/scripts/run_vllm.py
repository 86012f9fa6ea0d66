"""Generate with vLLM and write down its own counters (run by the Python of the user's vLLM).

``run_vllm.py REQUEST.json RESULT.json``. Nothing of eagle3-interop is imported here.
"""

import json
import os
import sys
import time
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

DRAFTS = "vllm:spec_decode_num_drafts"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos"
PER_REQUEST = "per_request_spec_decode_metrics"


def build(argv: list[str], *, drafting: bool) -> Any:  # noqa: ANN401
    """The engine, from the flags of ``vllm serve``."""
    vllm = import_module("vllm")
    arguments = import_module("vllm.engine.arg_utils").EngineArgs
    parser = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    parsed = arguments.from_cli_args(arguments.add_cli_args(parser).parse_args(argv))
    parsed.disable_log_stats = False  # the counters are statistics
    if drafting and PER_REQUEST in {field.name for field in fields(arguments)}:
        setattr(parsed, PER_REQUEST, "summary")
    return vllm.LLM.from_engine_args(parsed)


def told_on_a_cpu(settings: dict[str, Any]) -> list[str]:
    """What goes before the user's own flags on this machine; variables that it needs are set, unless the user did."""
    if not import_module("vllm.platforms").current_platform.is_cpu():
        return []
    missing = {k: v for k, v in settings["variables"].items() if k not in os.environ}
    os.environ.update(missing)
    return [*settings["argv"], *(f"{name}={value}" for name, value in missing.items())]


def counters(engine: Any) -> dict[str, list[int]]:  # noqa: ANN401
    """The engine's counters so far, as lists: one number, or one for each position."""
    found: dict[str, list[int]] = {DRAFTS: [0], ACCEPTED: [0], ACCEPTED_AT: []}
    for metric in engine.get_metrics():
        if metric.name in (DRAFTS, ACCEPTED):
            found[metric.name][0] += int(metric.value)
        elif metric.name == ACCEPTED_AT:
            sums = found[ACCEPTED_AT] or [0] * len(metric.values)
            found[ACCEPTED_AT] = [a + int(b) for a, b in zip(sums, metric.values, strict=True)]
    return found


def of_prompt(answer: Any) -> list[int] | None:  # noqa: ANN401
    """Steps and accepted tokens of one prompt, where this version says them."""
    metrics = getattr(answer.outputs[0], "spec_decode_metrics", None)
    if metrics is None:
        return None
    histogram = metrics.histogram
    return [sum(histogram), sum(i * count for i, count in enumerate(histogram))]


def timed(vllm: Any, engine: Any, run: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """What a run takes."""
    sampling = vllm.SamplingParams(
        temperature=0.0, max_tokens=run["new_tokens"], ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in run["prompts"]]
    before = counters(engine)[DRAFTS][0]
    began = time.perf_counter()
    answers = engine.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - began
    drafts = counters(engine)[DRAFTS][0] - before
    each = [of_prompt(answer) for answer in answers]
    steps = [pair[0] for pair in each if pair] or [-(-drafts // len(prompts))]
    return {
        "seconds": seconds,
        "outputs": [list(answer.outputs[0].token_ids) for answer in answers],
        "steps": max(steps) if drafts else None,
    }


def main() -> None:
    """Answer one request."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    vllm = import_module("vllm")
    started = time.monotonic()
    told = told_on_a_cpu(request["on_a_cpu"])
    flags = [one for one in told if one.startswith("--")]
    argv = [*request["argv"], *flags, *request["given"]]
    engine = build(argv, drafting=request["drafting"])
    loaded = time.monotonic()
    before = counters(engine)
    sampling = vllm.SamplingParams(
        temperature=0.0,
        max_tokens=request["max_new_tokens"],
        ignore_eos=not request["stop_ids"],
        stop_token_ids=request["stop_ids"],
        detokenize=False,
    )
    began = time.monotonic()
    answers = engine.generate(
        [{"prompt_token_ids": prompt} for prompt in request["prompts"]], sampling
    )
    seconds = time.monotonic() - began
    after = counters(engine)
    moved = {
        name: [a - b for a, b in zip(values, before[name] or [0] * len(values), strict=True)]
        for name, values in after.items()
    }
    each = [of_prompt(answer) for answer in answers]
    result = {
        "version": vllm.__version__,
        "outputs": [list(answer.outputs[0].token_ids) for answer in answers],
        "drafts": moved[DRAFTS][0],
        "accepted": moved[ACCEPTED][0],
        "per_position": moved[ACCEPTED_AT],
        "prompts": None if None in each else each,
        "told": told,
        "load_seconds": loaded - started,
        "seconds": seconds,
        "ran": [timed(vllm, engine, run) for run in request["runs"]],
    }
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":  # vLLM spawns processes that import this module again
    main()
