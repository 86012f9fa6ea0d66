"""Run one vLLM release, old or new, around a draft: what it reads, captures, loads, shares and computes.

Request: ``{"target", "cases": [{"draft", "inputs", "output"}], "steps"?, "dtype"?}``. ``inputs`` holds
``token_ids`` [T] and ``streams`` [L + 1, T, hidden]: the target's residual stream before each layer and after
the last. Which of them feed the draft is settled by the release: its runner reads the draft's config, its
target class has the default and captures. Answers ``ids`` beside what `vllm_draft_class` answers. There are no
compiled parts: vLLM's own torch code computes in their place.
"""

import socket
from types import SimpleNamespace
from typing import Any
from unittest import mock

import draft_steps
import old_torch  # noqa: F401 - before vLLM asks
import rig
import torch
import vllm
from safetensors.torch import load_file
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.model_loader import get_model
from vllm.model_executor.models import (
    llama_eagle3,  # noqa: F401 - a registry that cannot import it calls it unknown
    registry,
)
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

try:
    from vllm.model_executor.layers.attention import Attention
except ImportError:
    from vllm.attention.layer import Attention
try:
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer as Proposer
except ImportError:
    from vllm.v1.spec_decode.eagle import EagleProposer as Proposer

registry._run_in_subprocess = lambda inspect: (
    inspect()
)  # which imports vLLM once more for each class
if not hasattr(torch.ops._C, "silu_and_mul"):
    torch.ops._C.silu_and_mul = None  # kept by a layer, never called
CustomOp.dispatch_forward = lambda self, *_, **__: self.forward_native
torch.accelerator.empty_cache = lambda: None  # the loader calls it; vLLM's CPU worker does this too


class Absent:
    """What a loader of drafts asks of its surroundings, and this rig has not: all of it false."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Loader(Absent, Proposer):
    """The release's proposer, of which only the loading is run."""

    def __init__(self, config: Any) -> None:
        self.vllm_config = config
        self.speculative_config = config.speculative_config
        self.draft_model_config = config.speculative_config.draft_model_config
        self.device = torch.device("cpu")
        self.method = "eagle3"


class Release:
    """The target, loaded once, and what the release makes of drafts beside it."""

    def __init__(self, target: str, dtype: str) -> None:
        self._target_folder, self._dtype = target, dtype
        self._target: Any = None

    def config(self, draft: str) -> Any:
        """The engine's own reading of target and draft."""
        return EngineArgs(
            model=self._target_folder,
            dtype=self._dtype,
            skip_tokenizer_init=True,
            max_model_len=512,
            enforce_eager=True,
            speculative_config={"method": "eagle3", "model": draft, "num_speculative_tokens": 4},
        ).create_engine_config()

    def target(self, config: Any) -> Any:
        """The target of the release's own class."""
        if self._target is None:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
            init_distributed_environment(1, 0, address, 0, backend="gloo")
            initialize_model_parallel(1)
            self._target = get_model(vllm_config=config)
        return self._target

    def ids(self, config: Any, target: Any) -> tuple[int, ...]:
        """What the runner makes the target capture."""
        read = getattr(GPUModelRunner, "_get_eagle3_aux_layers_from_config", None)
        runner = SimpleNamespace(speculative_config=config.speculative_config)
        default = getattr(target, "get_eagle3_default_aux_hidden_state_layers", None)
        if default is None:
            default = target.get_eagle3_aux_hidden_state_layers
        return tuple((read and read(runner)) or default())

    def streams(self, target: Any, ids: tuple[int, ...], streams: torch.Tensor) -> torch.Tensor:
        """What the target's own loop captures of given streams, side by side."""
        target.set_aux_hidden_state_layers(ids)
        positions = torch.arange(streams.shape[1])
        with draft_steps.given_streams(target.model.layers, streams):
            found = target.model(positions, positions, None, streams[0].clone())
        return torch.cat(found[1], dim=-1)

    def load(self, draft: str) -> tuple[Any, Any, tuple[int, ...] | None]:
        """A draft as the proposer loads it, its target, and the ids; None where the draft takes none."""
        config = self.config(draft)
        with set_current_vllm_config(config):
            target = self.target(config)
            loader = Loader(config)
            loader.load_model(target)
        return loader.model, target, self.ids(config, target)


@torch.no_grad()
def run(release: Release, case: dict[str, Any], steps: int) -> dict[str, Any]:
    """Load, capture, compute; write the logits."""
    inputs = load_file(case["inputs"])
    token_ids, streams = inputs["token_ids"].long(), inputs["streams"]
    model, target, ids = release.load(case["draft"])
    if getattr(model.model, "use_aux_hidden_state", True):
        features = release.streams(target, ids, streams)
    else:
        features, ids = target.model.norm(streams[-1]), None
    attention = draft_steps.DraftAttention()

    def attend(
        layer: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
    ) -> torch.Tensor:
        result = attention.attend(
            layer.layer_name,
            query.view(-1, layer.num_heads, layer.head_size),
            key.view(-1, layer.num_kv_heads, layer.head_size),
            value.view(-1, layer.num_kv_heads, layer.head_size),
            layer.impl.scale,
            layer.sliding_window or 0,
        )
        return result.flatten(1)

    def step(
        tokens: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> draft_steps.StepOutput:
        if positions[0] == 0:
            hidden = model.combine_hidden_states(hidden)
        after, feedback = model(tokens, positions, hidden)
        logits = model.logits_processor(model.lm_head, after)
        return draft_steps.StepOutput(logits, after, after, feedback)

    with mock.patch.object(Attention, "forward", attend):
        outputs = draft_steps.run_steps(step, token_ids, features, steps)
    outputs["target_ids"] = torch.arange(outputs["logits"].shape[-1])
    if model.draft_id_to_target_id is not None:
        outputs["target_ids"] += model.draft_id_to_target_id
    draft_steps.save_outputs(case, outputs)
    return {"class": type(model).__name__, "ids": ids if ids is None else list(ids)}


def main() -> None:
    """Answer one request."""
    request, output = rig.read_arguments()
    release = Release(request["target"], request.get("dtype", "float32"))
    answers = draft_steps.answer_cases(
        request, lambda case: run(release, case, request.get("steps", 1))
    )
    rig.write_result(output, {"engine": "vllm", "version": vllm.__version__, "cases": answers})


if __name__ == "__main__":
    main()
