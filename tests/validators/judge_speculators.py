"""Runs the real speculators class on drafts given as files, without anything of this project.

    python judge_speculators.py FOLDER

FOLDER/cases.json is {name: {"config", "layer", "model_type", "steps", "partial"}}.
FOLDER/NAME.in.safetensors holds the weights under canonical names, ``inputs.tokens`` [T] and
``inputs.features`` [T, n*H]. FOLDER/NAME.out.safetensors receives ``fused`` and, for each step,
``logits.J`` and ``stream.J`` (the hidden state before the final norm).
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig, rotary_partial
from transformers import AutoConfig


def build(case, weights):
    layer = AutoConfig.for_model(case["model_type"], **case["layer"])
    layer._attn_implementation = "eager"
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(transformer_layer_config=layer, **case["config"])
    )
    result = model.load_state_dict(weights, strict=False)
    assert not result.unexpected_keys, result.unexpected_keys
    assert {key.split(".")[0] for key in result.missing_keys} <= {
        "verifier_norm",
        "verifier_lm_head",
    }, result
    return model.eval()


def run(case, tensors):
    tokens, features = tensors.pop("inputs.tokens"), tensors.pop("inputs.features")
    model, out = build(case, tensors), {}

    def keep(name):
        def hook(_module, inputs, output):
            found = sum(key.startswith(name) for key in out)
            key = "fused" if name == "fused" else f"{name}.{found}"
            out[key] = (inputs[0] if name == "stream" else output)[0].clone()

        return hook

    model.fc.register_forward_hook(keep("fused"))
    model.norm.register_forward_hook(keep("stream"))
    model.lm_head.register_forward_hook(keep("logits"))
    with torch.no_grad():
        model(
            hidden_states=features[None],
            input_ids=tokens[None],
            document_ids=torch.zeros(1, len(tokens), dtype=torch.long),
            position_ids=torch.arange(len(tokens))[None],
            ttt_steps=case["steps"],
        )
    return out


def main():
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for name, case in json.loads((folder / "cases.json").read_text()).items():
        if case["partial"]:
            rotary_partial.install_partial_neox_rotary()
        else:
            rotary_partial.uninstall_partial_neox_rotary()
        tensors = load_file(folder / f"{name}.in.safetensors")
        save_file(run(case, tensors), folder / f"{name}.out.safetensors")


if __name__ == "__main__":
    main()
