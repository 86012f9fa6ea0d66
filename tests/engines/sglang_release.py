"""Run one SGLang release, old or new, around a draft: what it reads, captures, loads, shares and computes.

Request and answers are those of `vllm_release`. Which streams feed the draft is settled by the release: its
runner's own statement reads the draft's config, its target class has the rule of ids and captures.
"""

import ast
import inspect
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import draft_steps
import own_layers  # noqa: F401 - for releases that take some from vLLM
import rig
import sglang
import torch
from safetensors.torch import load_file
from sglang.srt import server_args as server_arguments
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor import model_runner
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.model_loader import get_model
from sglang.srt.models import llama_eagle3  # noqa: F401 - a registry that cannot import it calls it unknown
from sglang_run import CPU_ARGUMENTS

torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: (
    None
)  # called on any device by old ones

IDS = "eagle_aux_hidden_state_layer_ids"


def start(arguments: Any, config: Any) -> None:
    """Set up what a release's classes ask for: its arguments, and groups of one process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        from sglang.srt.distributed.bootstrap import init_parallel_runtime
        from sglang.srt.runtime_context import SpawnRanks, publish
    except ImportError:
        _start_old(arguments, config, f"tcp://127.0.0.1:{port}")
    else:
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
        init_parallel_runtime(server_args=arguments, device="cpu", dist_port=port)


def _start_old(arguments: Any, config: Any, address: str) -> None:
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.dp_attention import initialize_dp_attention

    try:
        from sglang.srt.runtime_context import publish
    except ImportError:
        if hasattr(server_arguments, "set_global_server_args_for_scheduler"):
            server_arguments.set_global_server_args_for_scheduler(arguments)
        else:
            from sglang.srt.managers.schedule_batch import (
                GLOBAL_SERVER_ARGS_KEYS,
                global_server_args_dict,
            )

            global_server_args_dict |= {
                key: getattr(arguments, key) for key in GLOBAL_SERVER_ARGS_KEYS
            }
    else:
        names = inspect.signature(publish).parameters
        ranks = {"ranks": None} if "ranks" in names else {}
        publish(arguments, role="scheduler", **ranks)
    init_distributed_environment(
        world_size=1, rank=0, local_rank=0, distributed_init_method=address, backend="gloo"
    )
    initialize_model_parallel(1)
    initialize_dp_attention(server_args=arguments, model_config=config)


def reading_statement() -> Any:
    """The runner's own statement that reads the ids from a draft's config, compiled."""
    modules = [model_runner]
    try:
        from sglang.srt.model_executor.model_runner_components import spec_aux_hidden_state

        modules.append(spec_aux_hidden_state)
    except ImportError:  # old ones read in the runner itself
        pass
    for module in modules:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Try) and f"eagle_config['{IDS}']" in ast.unparse(node.body[-1]):
                return compile(ast.Module([node], []), module.__file__, "exec")
    raise LookupError(f"nothing in SGLang {sglang.__version__}'s runner reads {IDS}")


class Release:
    """The target, loaded once, and what the release makes of drafts beside it."""

    def __init__(self, target: str, draft: str, dtype: str) -> None:
        self._folder = Path(target)
        known = inspect.signature(server_arguments.ServerArgs).parameters
        given = {
            **CPU_ARGUMENTS,
            "model_path": target,
            "dtype": dtype,
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": draft,
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 4,
        }
        self._arguments = server_arguments.ServerArgs(
            **{name: value for name, value in given.items() if name in known}
        )
        config = self._config(target, draft=False)
        start(self._arguments, config)
        self._reads = reading_statement()
        self._target = self._model(config)

    def _config(self, path: str, *, draft: bool) -> Any:
        return ModelConfig.from_server_args(self._arguments, model_path=path, is_draft_model=draft)

    def _model(self, config: Any) -> Any:
        return get_model(
            model_config=config,
            load_config=LoadConfig(load_format="auto"),
            device_config=DeviceConfig("cpu"),
        )

    def load(self, draft: str) -> tuple[Any, Any, bool]:
        """A draft with what it shares with the target, the ids as read, and whether it takes streams."""
        config = self._config(draft, draft=True)
        model = self._model(config)
        embeddings, head = self._target.get_embed_and_head()
        if getattr(model, "load_lm_head_from_target", False):
            model.set_embed_and_head(embeddings, head)
        else:
            model.set_embed(embeddings)
        told = SimpleNamespace(eagle_use_aux_hidden_state=True)
        names = {"draft_model_config": config, "self": told, "config": told}
        exec(self._reads, names)  # noqa: S102 - SGLang's own statement
        ids = names.get(IDS, getattr(told, IDS, None))
        return model, ids, told.eagle_use_aux_hidden_state

    def streams(
        self, ids: Any, streams: torch.Tensor, batch: Any
    ) -> tuple[torch.Tensor, list[int]]:
        """What the target's own loop captures of given streams, side by side, and before which layers."""
        self._target.set_eagle3_layers_to_capture(ids)
        model = self._target.model
        with draft_steps.given_streams(model.layers, streams):
            found = model(batch.input_ids, batch.positions, batch, streams[0].clone())
        return torch.cat(found[1], dim=-1), list(model.layers_to_capture)

    def normed(self, stream: torch.Tensor) -> torch.Tensor:
        """What a draft without fc gets."""
        return self._target.model.norm(stream.clone())


def batch_of(tokens: torch.Tensor, positions: torch.Tensor) -> Any:
    """One query a row, so that there are logits for every row."""
    batch = ForwardBatch(
        forward_mode=ForwardMode.DECODE,
        batch_size=len(tokens),
        input_ids=tokens,
        req_pool_indices=torch.arange(len(tokens)),
        seq_lens=positions + 1,
        out_cache_loc=positions,
        seq_lens_sum=int((positions + 1).sum()),
        capture_hidden_mode=CaptureHiddenMode.FULL,
    )
    batch.positions = positions
    return batch


@torch.no_grad()
def run(release: Release, case: dict[str, Any], steps: int) -> dict[str, Any]:
    """Load, capture, compute; write the logits."""
    inputs = load_file(case["inputs"])
    token_ids, streams = inputs["token_ids"].long(), inputs["streams"]
    model, ids, takes_streams = release.load(case["draft"])
    positions = torch.arange(len(token_ids))
    captured = None
    if takes_streams:
        features, captured = release.streams(ids, streams, batch_of(token_ids, positions))
    else:
        features = release.normed(streams[-1])
    attention = draft_steps.DraftAttention()

    def attend(
        layer: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        result = attention.attend(
            layer.layer_id,
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            k.view(-1, layer.tp_k_head_num, layer.qk_head_dim),
            v.view(-1, layer.tp_v_head_num, layer.v_head_dim),
            layer.scaling,
            layer.sliding_window_size
            + 1,  # SGLang counts the positions before the query; -1 is none
        )
        return result.flatten(1)

    def step(
        tokens: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> draft_steps.StepOutput:
        batch = batch_of(tokens, positions)
        batch.spec_info = SimpleNamespace(hidden_states=hidden)
        output = model(tokens, positions, batch)
        after = output.hidden_states
        return draft_steps.StepOutput(output.next_token_logits, after, after, after)

    with mock.patch.object(RadixAttention, "forward", attend):
        outputs = draft_steps.run_steps(step, token_ids, features, steps)
    outputs["target_ids"] = torch.arange(outputs["logits"].shape[-1])
    if model.hot_token_id is not None:
        outputs["target_ids"] = model.hot_token_id
    draft_steps.save_outputs(case, outputs)
    return {"class": type(model).__name__, "ids": captured}


def main() -> None:
    """Answer one request."""
    request, output = rig.read_arguments()
    release = Release(
        request["target"], request["cases"][0]["draft"], request.get("dtype", "float32")
    )
    answers = draft_steps.answer_cases(
        request, lambda case: run(release, case, request.get("steps", 1))
    )
    rig.write_result(output, {"engine": "sglang", "version": sglang.__version__, "cases": answers})


if __name__ == "__main__":
    main()
