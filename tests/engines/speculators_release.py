"""Load drafts with one speculators release, old or new, and run its class on the streams that it names.

Request and answers are those of `vllm_release`. Run by the Python of the speculators environment, the release before it.
"""

from importlib.metadata import version
from typing import Any

import draft_steps
import rig
import torch
from safetensors.torch import load_file
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig


def load(draft: str, target: str) -> Eagle3DraftModel:
    """A draft as the class loads it, set up for a CPU."""
    config = Eagle3SpeculatorConfig.from_pretrained(draft)
    config.transformer_layer_config._attn_implementation = "eager"  # the default is a CUDA kernel
    config.speculators_config.verifier.name_or_path = target
    model = Eagle3DraftModel.from_pretrained(draft, config=config, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def run(target: str, case: dict[str, Any], steps: int) -> dict[str, Any]:
    """Load, capture, compute; write the logits."""
    inputs = load_file(case["inputs"])
    tokens, streams = inputs["token_ids"].long(), inputs["streams"]
    model = load(case["draft"], target)
    ids = model.config.eagle_aux_hidden_state_layer_ids
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda *call: logits.append(call[2][0]))
    model(
        hidden_states=torch.cat([streams[tap] for tap in ids], dim=-1)[None],
        input_ids=tokens[None],
        document_ids=torch.zeros(1, len(tokens), dtype=torch.long),
        ttt_steps=steps,
    )
    target_ids = torch.arange(logits[0].shape[-1])
    if model.d2t is not None:
        target_ids += model.d2t
    draft_steps.save_outputs(case, {"logits": torch.stack(logits), "target_ids": target_ids})
    return {"class": type(model).__name__, "ids": list(ids)}


def main() -> None:
    """Answer one request."""
    request, output = rig.read_arguments()
    answers = draft_steps.answer_cases(
        request, lambda case: run(request["target"], case, request["steps"])
    )
    found = {"engine": "speculators", "version": version("speculators"), "cases": answers}
    rig.write_result(output, found)


if __name__ == "__main__":
    main()
