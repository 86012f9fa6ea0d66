"""Ask vLLM's draft class which modules it builds quantised, from a folder's lists alone (run by vLLM's Python).

Request: ``{"target", "cases": [{"draft"}], "dtype"?}``. No weight is loaded. The answer has, for each module of the
class that a quantisation is asked for: the name by which it asks, its class, and the scheme, null for a plain one.
"""

from typing import Any

import draft_steps
import rig
import torch
import vllm
import vllm_draft_class
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from vllm.model_executor.layers.quantization.modelopt import ModelOptQuantConfigBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader import base_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

ASKED: dict[int, str] = {}
MODELS: list[torch.nn.Module] = []


def listen(config: type) -> None:
    """Note by which name each module asks."""
    ask = config.get_quant_method

    def asked(self: Any, layer: torch.nn.Module, prefix: str) -> Any:
        ASKED[id(layer)] = prefix
        return ask(self, layer, prefix)

    config.get_quant_method = asked


def modules(target: str, draft: str, dtype: str) -> list[dict[str, str | None]]:
    """Build one draft, and say what became of its modules."""
    ASKED.clear()
    MODELS.clear()
    try:
        vllm_draft_class.load(target, draft, dtype)
    except Exception:
        if not MODELS:
            raise
    return [
        {"name": ASKED[id(module)], "kind": type(module).__name__, "scheme": scheme_of(module)}
        for module in MODELS[0].modules()
        if isinstance(module, (LinearBase, ParallelLMHead)) and id(module) in ASKED
    ]


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
    listen(CompressedTensorsConfig)
    listen(ModelOptQuantConfigBase)
    build = vllm_draft_class.get_model

    def built(**options: Any) -> torch.nn.Module:
        MODELS.append(build(**options))
        return MODELS[-1]

    vllm_draft_class.get_model = built
    DefaultModelLoader.load_weights = lambda *_: None
    base_loader.process_weights_after_loading = lambda *_, **__: None
    answers = draft_steps.answer_cases(
        request,
        lambda case: {
            "modules": modules(request["target"], case["draft"], request.get("dtype", "bfloat16"))
        },
    )
    rig.write_result(output, {"engine": "vllm", "version": vllm.__version__, "cases": answers})


if __name__ == "__main__":
    main()
