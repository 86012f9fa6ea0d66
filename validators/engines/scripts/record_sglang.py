"""Record hidden states with SGLang (run by the Python of the user's SGLang).

``record_sglang.py REQUEST.json FOLDER``. One safetensors a text appears in the folder, whole or not at all.
Nothing of eagle3-interop is imported here.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer one request."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(sys.argv[2])
    sglang = import_module("sglang")
    arguments = import_module("sglang.srt.server_args").prepare_server_args(request["argv"])
    engine = sglang.Engine(server_args=arguments)
    for job in request["jobs"]:
        # Token ids of one text, not in a list of texts: memory for one answer at a time.
        answer = engine.generate(
            input_ids=job["input_ids"],
            sampling_params={
                "temperature": 0.0,
                "max_new_tokens": job["max_new_tokens"],
                "ignore_eos": True,
            },
            return_hidden_states=True,
            return_logprob=request["top"] > 0,
            top_logprobs_num=request["top"],
        )
        write(answer, folder, job["number"])
    engine.shutdown()


def write(answer: dict[str, Any], folder: Path, number: int) -> None:
    """Hidden states, new tokens and their likeliest alternatives, as tensors."""
    torch = import_module("torch")
    info = answer["meta_info"]
    rows = [list_of(row) for row in info["hidden_states"]]
    prompt = torch.tensor(rows[0], dtype=torch.float32)
    later = torch.tensor(rows[1:], dtype=torch.float32).view(-1, prompt.shape[-1])
    tensors = {
        "states": torch.cat([prompt, later]),
        "output_ids": torch.tensor(answer["output_ids"], dtype=torch.int64),
    }
    if top := info.get("output_top_logprobs"):
        tensors["top_logprobs"] = torch.tensor([[one[0] for one in place] for place in top])
        tensors["top_ids"] = torch.tensor([[one[1] for one in place] for place in top])
    hidden = folder / f".{number}.part"
    import_module("safetensors.torch").save_file(tensors, str(hidden))
    hidden.rename(folder / f"{number}.safetensors")


def list_of(row: Any) -> Any:  # noqa: ANN401
    """Numbers, whether they came as a list or as a tensor."""
    return row.tolist() if hasattr(row, "tolist") else row


if __name__ == "__main__":  # SGLang spawns processes that import this module again
    main()
