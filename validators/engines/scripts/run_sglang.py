"""Generate with SGLang and write down its own counters (run by the Python of the user's SGLang).

``run_sglang.py REQUEST.json RESULT.json``. Nothing of eagle3-interop is imported here.
"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any


def timed(engine: Any, run: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """What a run takes."""
    settings = {"temperature": 0.0, "max_new_tokens": run["new_tokens"], "ignore_eos": True}
    began = time.perf_counter()
    answers = engine.generate(input_ids=run["prompts"], sampling_params=settings)
    seconds = time.perf_counter() - began
    steps = max(answer["meta_info"].get("spec_verify_ct") or 0 for answer in answers)
    return {
        "seconds": seconds,
        "outputs": [answer["output_ids"] for answer in answers],
        "steps": steps or None,
    }


def main() -> None:
    """Answer one request."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sglang = import_module("sglang")
    arguments = import_module("sglang.srt.server_args").prepare_server_args(
        [*request["argv"], *request["given"]]
    )
    started = time.monotonic()
    engine = sglang.Engine(server_args=arguments)
    loaded = time.monotonic()
    stops = request["stop_ids"]
    answers = engine.generate(
        input_ids=request["prompts"],
        sampling_params={
            "temperature": 0.0,
            "max_new_tokens": request["max_new_tokens"],
            "ignore_eos": not stops,
            "stop_token_ids": stops,
        },
    )
    result = {
        "version": sglang.__version__,
        "answers": [
            {"output_ids": answer["output_ids"], "meta_info": answer["meta_info"]}
            for answer in answers
        ],
        "load_seconds": loaded - started,
        "seconds": time.monotonic() - loaded,
        "ran": [],
    }
    result["ran"] = [timed(engine, run) for run in request["runs"]]
    Path(sys.argv[2]).write_text(json.dumps(result, default=str), encoding="utf-8")
    engine.shutdown()


if __name__ == "__main__":  # SGLang spawns processes that import this module again
    main()
