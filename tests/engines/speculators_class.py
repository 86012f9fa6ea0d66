"""Load drafts with the real speculators class, say what it loaded, and run it.

Run by the Python of the speculators environment.

Request: ``{"cases": [{"draft", "inputs"?, "output"?}], "target"?, "steps"?}``. ``target`` stands in
for the verifier that a checkpoint names. A case without ``inputs`` is only loaded.
"""

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import draft_steps
import rig
import torch
from safetensors import safe_open
from speculators import SpeculatorModel
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig


def load_config(draft: str, target: str | None) -> Eagle3SpeculatorConfig:
    """Read a checkpoint's config as the class does, set up for a CPU."""
    config = Eagle3SpeculatorConfig.from_pretrained(draft)
    config.transformer_layer_config._attn_implementation = "eager"  # the default is a CUDA kernel
    if target:
        config.speculators_config.verifier.name_or_path = target
    return config


def loading_report(draft: str, target: str | None) -> dict[str, Any]:
    """Say what from_pretrained found in the files and what it made of them.

    The class's own override cannot return transformers' loading info, its parent's method can; that
    one leaves out what the verifier provides. Tensors that the class has and the files lack are
    named, not described: nothing has set them yet.
    """
    load = super(SpeculatorModel, Eagle3DraftModel).from_pretrained
    model, info = load(draft, config=load_config(draft, target), output_loading_info=True)
    stored = stored_names(Path(draft))
    state = model.state_dict()
    return {
        "missing_keys": sorted(info["missing_keys"]),
        "unexpected_keys": sorted(info["unexpected_keys"]),
        "mismatched_keys": sorted(str(key) for key in info["mismatched_keys"]),
        "not_in_files": sorted(state.keys() - stored),
        "tensors": {name: describe(state[name]) for name in sorted(state.keys() & stored)},
    }


def stored_names(draft: Path) -> set[str]:
    """Return the names of the tensors in a checkpoint's safetensors files."""
    names: set[str] = set()
    for path in draft.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names.update(file.keys())
    return names


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """Return a tensor's dtype, shape and the sha256 of its bytes."""
    data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


@torch.no_grad()
def run(draft: str, target: str | None, case: dict[str, Any], steps: int) -> dict[str, Any]:
    """Run the whole class, its attention included; write what passes its norm and head."""
    model = Eagle3DraftModel.from_pretrained(
        draft, config=load_config(draft, target), dtype=torch.float32
    )
    model.eval()
    token_ids, features = draft_steps.load_inputs(case)
    before, after, logits = [], [], []
    model.norm.register_forward_hook(lambda *call: before.append(call[1][0][0]))
    model.norm.register_forward_hook(lambda *call: after.append(call[2][0]))
    model.lm_head.register_forward_hook(lambda *call: logits.append(call[2][0]))
    model(
        hidden_states=features.unsqueeze(0),
        input_ids=token_ids.unsqueeze(0),
        document_ids=torch.zeros(1, len(token_ids), dtype=torch.long),
        ttt_steps=steps,
    )
    target_ids = torch.arange(model.draft_vocab_size)
    if model.d2t is not None:
        target_ids = target_ids + model.d2t
    draft_steps.save_outputs(
        case,
        {
            "logits": torch.stack(logits),
            "hidden_before_norm": torch.stack(before),
            "hidden_after_norm": torch.stack(after),
            "feedback": torch.stack(after if model.config.norm_output else before),
            "target_ids": target_ids,
        },
    )
    return {"aux_layers": list(model.target_layer_ids)}


def main() -> None:
    """Answer one request."""
    request, output = rig.read_arguments()
    target, steps = request.get("target"), request.get("steps", 1)

    def answer(case: dict[str, Any]) -> dict[str, Any]:
        report = loading_report(case["draft"], target)
        if "inputs" in case:
            report |= run(case["draft"], target, case, steps)
        return report

    rig.write_result(
        output,
        {
            "engine": "speculators",
            "version": version("speculators"),
            "cases": draft_steps.answer_cases(request, answer),
        },
    )


if __name__ == "__main__":
    main()
