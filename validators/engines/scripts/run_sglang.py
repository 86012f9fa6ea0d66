"""Generate with SGLang and write down its own counters (run by the Python of the user's SGLang).

``run_sglang.py REQUEST.json RESULT.json``. Nothing of eagle3-interop is imported here.
"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path


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
    }
    Path(sys.argv[2]).write_text(json.dumps(result, default=str), encoding="utf-8")
    engine.shutdown()


if __name__ == "__main__":  # SGLang spawns processes that import this module again
    main()
