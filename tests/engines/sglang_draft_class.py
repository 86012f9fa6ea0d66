"""Run SGLang's draft class alone: its config, its loader, its forward (run by SGLang's Python).

Request: ``{"target", "cases": [{"draft", "inputs", "output"}], "steps"?, "dtype"?}``. One process
serves many drafts. As in the engine, the target's embeddings (and head, where the class asks for
it) are handed to the class after loading.
"""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import draft_steps
import rig
import sglang
import torch
from safetensors import safe_open
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed.bootstrap import init_parallel_runtime
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.model_loader import get_model
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs
from sglang_run import CPU_ARGUMENTS


class AttentionBackend:
    """SGLang's attention backend interface on top of `draft_steps.DraftAttention`.

    Rows are those of a decode, so that latent attention comes in its absorbed form: one head of keys as wide as
    latent and rotated part, and values that are the latents.
    """

    # None: as the server's arguments say.
    prefill_attention_backend_str = decode_attention_backend_str = None

    def __init__(self) -> None:
        self._attention = draft_steps.DraftAttention()

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor:
        """Attend as one layer asks."""
        result = self._attention.attend(
            layer.layer_id,
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            k.view(-1, layer.tp_k_head_num, layer.qk_head_dim),
            v.view(-1, layer.tp_v_head_num, layer.v_head_dim),
            layer.scaling,
            layer.sliding_window_size
            + 1,  # SGLang counts the positions before the query; -1 is none
        )
        return result.flatten(1)


class DraftRunner:
    """Loads drafts for one target as SGLang's EAGLE worker does."""

    def __init__(self, target: str, draft: str, dtype: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._target = Path(target)
        self._arguments = ServerArgs(
            model_path=target,
            dtype=dtype,
            **CPU_ARGUMENTS,
            speculative_algorithm="EAGLE3",
            speculative_draft_model_path=draft,
            speculative_num_steps=3,
            speculative_eagle_topk=1,
            speculative_num_draft_tokens=4,
        )
        publish(self._arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
        init_parallel_runtime(server_args=self._arguments, device="cpu", dist_port=port)

    def load(self, draft: str) -> torch.nn.Module:
        """Load a draft and give it what it shares with the target."""
        config = ModelConfig.from_server_args(
            self._arguments, model_path=draft, is_draft_model=True
        )
        model = get_model(
            model_config=config,
            load_config=LoadConfig(load_format="auto"),
            device_config=DeviceConfig("cpu"),
        )
        embeddings = self._target_parameter("model.embed_tokens.weight")
        if getattr(model, "load_lm_head_from_target", False):
            head = self._target_parameter("lm_head.weight")
            model.set_embed_and_head(embeddings, embeddings if head is None else head)
        else:
            model.set_embed(embeddings)
        return model

    def _target_parameter(self, name: str) -> torch.nn.Parameter | None:
        """Read one tensor of the target, None where it has none of that name."""
        for path in self._target.glob("*.safetensors"):
            with safe_open(path, framework="pt") as file:
                if name in set(file.keys()):
                    tensor = file.get_tensor(name).to(torch.float32)
                    return torch.nn.Parameter(tensor, requires_grad=False)
        return None


@torch.no_grad()
def run(model: torch.nn.Module, case: dict[str, Any], steps: int) -> dict[str, Any]:
    """Run the class's whole forward, its logits processor included, and write the results."""
    token_ids, features = draft_steps.load_inputs(case)
    backend = AttentionBackend()
    normed: list[tuple[torch.Tensor, torch.Tensor]] = []
    handle = model.model.norm.register_forward_hook(lambda *call: normed.append(call[-1]))

    def step(
        tokens: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> draft_steps.StepOutput:
        batch = ForwardBatch(
            forward_mode=ForwardMode.DECODE,  # one query a row: logits for every row
            batch_size=len(tokens),
            input_ids=tokens,
            req_pool_indices=torch.arange(len(tokens)),
            seq_lens=positions + 1,
            out_cache_loc=positions,
            seq_lens_sum=int((positions + 1).sum()),
            capture_hidden_mode=CaptureHiddenMode.FULL,
        )
        batch.positions = positions
        batch.mrope_positions = positions.expand(3, -1)  # as of a text
        batch.spec_info = SimpleNamespace(hidden_states=hidden)
        with forward_context(ForwardContext(attn_backend=backend)):
            output = model(tokens, positions, batch)
        after, before = normed.pop()
        return draft_steps.StepOutput(
            output.next_token_logits, before.clone(), after.clone(), output.hidden_states
        )

    try:
        outputs = draft_steps.run_steps(step, token_ids, features, steps)
    finally:
        handle.remove()
    outputs["target_ids"] = torch.arange(outputs["logits"].shape[-1])
    if model.hot_token_id is not None:
        outputs["target_ids"] = model.hot_token_id
    draft_steps.save_outputs(case, outputs)
    return {"class": type(model).__name__}


def main() -> None:
    """Answer one request."""
    request, output = rig.read_arguments()
    runner = DraftRunner(
        request["target"], request["cases"][0]["draft"], request.get("dtype", "float32")
    )
    rig.write_result(
        output,
        {
            "engine": "sglang",
            "version": sglang.__version__,
            "cases": draft_steps.answer_cases(
                request,
                lambda case: run(runner.load(case["draft"]), case, request.get("steps", 1)),
            ),
        },
    )


if __name__ == "__main__":
    main()
