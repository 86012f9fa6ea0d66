"""Ask SGLang's draft class which modules it builds quantised, and what of a file reaches them (run by SGLang's Python).

Request: ``{"target", "cases": [{"draft", "output"?}], "dtype"?}``. With ``output`` the weights are loaded and the
class's parameters written there, as they are before any kernel's own order; without, nothing is loaded. The answer
has, for each module of the class that a quantisation is asked for: the name by which it asks, its class, and the
scheme, null for a plain one. SGLang's kernels are CUDA's, so that nothing runs here.
"""

from typing import Any

import draft_steps
import rig
import sglang
import sglang_draft_class
import torch
from safetensors.torch import save_file
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp4Config, ModelOptFp8Config
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.model_loader import loader
from sglang.srt.model_loader.loader import DefaultModelLoader

ASKED: dict[int, str] = {}
MODELS: list[torch.nn.Module] = []


def listen(config: type) -> None:
    """Note by which name each module asks."""
    ask = config.get_quant_method

    def asked(self: Any, layer: torch.nn.Module, prefix: str) -> Any:
        ASKED[id(layer)] = prefix
        return ask(self, layer, prefix)

    config.get_quant_method = asked


def answer(
    runner: sglang_draft_class.DraftRunner, case: dict[str, Any]
) -> dict[str, list[dict[str, str | None]]]:
    """Build one draft, and say what became of its modules."""
    ASKED.clear()
    MODELS.clear()

    def load(model: torch.nn.Module, weights: Any, *_: Any, **__: Any) -> None:
        MODELS.append(model)
        if "output" in case:
            model.load_weights(weights)

    DefaultModelLoader.load_weights_and_postprocess = staticmethod(load)
    try:
        runner.load(case["draft"])
    except Exception:
        if not MODELS or "output" in case:
            raise
    (model,) = MODELS
    if "output" in case:
        kept = {name: value.contiguous() for name, value in model.state_dict().items()}
        save_file({name: value.clone() for name, value in kept.items()}, case["output"])
    return {
        "modules": [
            {"name": ASKED[id(module)], "kind": type(module).__name__, "scheme": scheme_of(module)}
            for module in model.modules()
            if isinstance(module, (LinearBase, ParallelLMHead)) and id(module) in ASKED
        ]
    }


def scheme_of(module: torch.nn.Module) -> str | None:
    """What its weights are taken to be stored by."""
    scheme = getattr(module, "scheme", None)
    if scheme is not None:
        return type(scheme).__name__
    method = type(module.quant_method).__name__
    return None if method.startswith("Unquantized") else method


def main() -> None:
    """Answer one request."""
    request, output = rig.read_arguments()
    for config in (CompressedTensorsConfig, ModelOptFp8Config, ModelOptFp4Config):
        listen(config)
    # What a GPU would say: schemes ask for it, and the loader too.
    capability = (10, 0)
    torch.cuda.get_device_capability = lambda *_: capability
    loader.get_device_capability = lambda *_: capability
    runner = sglang_draft_class.DraftRunner(
        request["target"], request["cases"][0]["draft"], request.get("dtype", "bfloat16")
    )
    answers = draft_steps.answer_cases(request, lambda case: answer(runner, case))
    rig.write_result(output, {"engine": "sglang", "version": sglang.__version__, "cases": answers})


if __name__ == "__main__":
    main()
