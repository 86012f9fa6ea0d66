"""Record hidden states with vLLM (run by the Python of the user's vLLM).

``record_vllm.py REQUEST.json FOLDER``. vLLM's connector writes a file a request; of each, one safetensors as the
recorder wants it appears in the folder, whole or not at all. Nothing of eagle3-interop is imported here.
"""

import fcntl
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any


def build(argv: list[str]) -> Any:  # noqa: ANN401
    """The engine, from the flags of ``vllm serve``."""
    vllm = import_module("vllm")
    arguments = import_module("vllm.engine.arg_utils").EngineArgs
    parser = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    return vllm.LLM.from_engine_args(
        arguments.from_cli_args(arguments.add_cli_args(parser).parse_args(argv))
    )


def main() -> None:
    """Answer one request."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(sys.argv[2])
    # A file is written a step after its request has ended, which only an engine of its own process takes.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    engine = build(request["argv"])
    sampling = import_module("vllm").SamplingParams
    for job in request["jobs"]:
        wanted = sampling(
            temperature=0.0,
            max_tokens=job["max_new_tokens"],
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": {"include_output_tokens": True}},
        )
        # One text at a time: memory for one answer, and nothing that is computed twice is cached.
        answer = engine.generate([{"prompt_token_ids": job["input_ids"]}], wanted)[0]
        path = Path(answer.kv_transfer_params["hidden_states_path"])
        collect(path, list(answer.outputs[0].token_ids), folder, job["number"])


def collect(path: Path, output_ids: Sequence[int], folder: Path, number: int) -> None:
    """What the connector wrote, once it is whole, as the recorder wants it."""
    tensors = import_module("safetensors.torch")
    torch = import_module("torch")
    lock = path.with_name(f"{path.name}.lock")
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # until the writer lets go
        found = tensors.load_file(str(path))
    states = found["hidden_states"].flatten(1)
    result = {
        "states": states.contiguous(),
        "token_ids": found["token_ids"].to(torch.int64),
        "output_ids": torch.tensor(list(output_ids), dtype=torch.int64),
    }
    hidden = folder / f".{number}.part"
    tensors.save_file(result, str(hidden))
    hidden.rename(folder / f"{number}.safetensors")
    path.unlink()
    lock.unlink()


if __name__ == "__main__":  # vLLM spawns processes that import this module again
    main()
