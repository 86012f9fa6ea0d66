"""Run vLLM's draft class alone: its config, its loader, its forward (run by vLLM's Python).

Request: ``{"target", "cases": [{"draft", "inputs", "output"}], "steps"?, "dtype"?}``. One process
serves many drafts. As in the engine, a draft without a table or head of its own gets the target's. Latent
attention is expanded by the class's own ``kv_b_proj``.
"""

import socket
from pathlib import Path
from typing import Any

import draft_steps
import rig
import torch
import vllm
from safetensors import safe_open
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.model_executor.model_loader import get_model
from vllm_run import ONE_KERNEL, PLAIN_ROPE, is_latent

torch.accelerator.empty_cache = lambda: None  # the loader calls it; vLLM's CPU worker does this too


def load(target: str, draft: str, dtype: str) -> torch.nn.Module:
    """Load a draft as vLLM's proposer does and give it what it shares with the target."""
    config = EngineArgs(
        model=target,
        dtype=dtype,
        skip_tokenizer_init=True,
        max_model_len=512,
        enforce_eager=True,
        speculative_config={"method": "eagle3", "model": draft, "num_speculative_tokens": 4},
        **(ONE_KERNEL | PLAIN_ROPE if is_latent(target) or is_latent(draft) else {}),
    ).create_engine_config()
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
            init_distributed_environment(1, 0, address, 0, backend="gloo")
            initialize_model_parallel(1)
        model = get_model(
            vllm_config=config, model_config=config.speculative_config.draft_model_config
        )
    embeddings = target_tensor(target, "model.embed_tokens.weight")
    if not model.has_own_embed_tokens:
        model.model.embed_tokens.weight.data.copy_(embeddings)
    if not model.has_own_lm_head:
        head = target_tensor(target, "lm_head.weight")
        model.lm_head.weight.data = (embeddings if head is None else head).float()
        # On a CPU the loader packs weights; the engine shares the target's packed head.
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
    return model


def target_tensor(target: str, name: str) -> torch.Tensor | None:
    """Read one tensor of the target, None where it has none of that name."""
    for path in Path(target).glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            if name in set(file.keys()):
                return file.get_tensor(name)
    return None


@torch.no_grad()
def run(model: torch.nn.Module, case: dict[str, Any], steps: int) -> dict[str, Any]:
    """Run the class's forward and write the results."""
    token_ids, features = draft_steps.load_inputs(case)
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

    def expand(
        layer: MLAAttention,
        query: torch.Tensor,
        latent: torch.Tensor,
        rotated: torch.Tensor,
        **_: Any,
    ) -> torch.Tensor:
        sizes = [layer.qk_nope_head_dim, layer.v_head_dim]
        expanded = layer.kv_b_proj(latent)[0].view(-1, layer.num_heads, sum(sizes))
        plain, value = expanded.split(sizes, dim=-1)
        key = torch.cat([plain, rotated.expand(-1, layer.num_heads, -1)], dim=-1)
        return attention.attend(layer.layer_name, query, key, value, layer.impl.scale, 0).flatten(1)

    Attention.forward, MLAAttention.forward = attend, expand
    normed: list[tuple[torch.Tensor, torch.Tensor]] = []
    model.model.norm.register_forward_hook(lambda *call: normed.append(call[-1]))

    def step(
        tokens: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> draft_steps.StepOutput:
        if positions[0] == 0:
            hidden = model.combine_hidden_states(hidden)
        after, feedback = model(tokens, positions, hidden)
        logits = model.logits_processor(model.lm_head, after)
        normed_after, before = normed.pop()
        return draft_steps.StepOutput(logits, before.clone(), normed_after.clone(), feedback)

    outputs = draft_steps.run_steps(step, token_ids, features, steps)
    outputs["target_ids"] = torch.arange(outputs["logits"].shape[-1])
    if model.draft_id_to_target_id is not None:
        outputs["target_ids"] += model.draft_id_to_target_id
    draft_steps.save_outputs(case, outputs)
    return {"class": type(model).__name__}


def main() -> None:
    """Answer one request."""
    request, output = rig.read_arguments()
    target, dtype = request["target"], request.get("dtype", "float32")
    rig.write_result(
        output,
        {
            "engine": "vllm",
            "version": vllm.__version__,
            "cases": draft_steps.answer_cases(
                request,
                lambda case: run(load(target, case["draft"], dtype), case, request.get("steps", 1)),
            ),
        },
    )


if __name__ == "__main__":
    main()
