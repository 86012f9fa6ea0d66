"""Drafts by NVIDIA ModelOpt: its own conversion of the target, its own training forward, its own exporter.

python modelopt_drafts.py OUT [VARIANT ...]
"""

import shutil
import tempfile
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import Any

import modelopt.torch.speculative as mtsp
import producing
import torch
from modelopt.torch.export import export_speculative_decoding
from modelopt.torch.speculative.config import eagle3_default_config

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 77000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
UNSCALED = {"eagle_export_rope_scaling": {}}

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "no_export_rope": ({}, UNSCALED),
    "llama3": ({"rope_scaling": LLAMA3, "rope_theta": 77000.0}, UNSCALED),
    "two_layers": ({"num_hidden_layers": 2}, UNSCALED),
    "biases": ({"attention_bias": True}, UNSCALED),
    "ids": ({"eagle_aux_hidden_state_layer_ids": [6, 0, 3]}, UNSCALED),
    "full_vocabulary": ({"draft_vocab_size": producing.VOCABULARY}, UNSCALED),
}
"""What each one's architecture and recipe have beside the defaults."""


def make(variant: str, folder: Path) -> None:
    """Export one variant, and run it."""
    own, recipe = VARIANTS[variant]
    sizes = {
        key: x for key, x in producing.SIZES.items() if key not in ("hidden_size", "vocab_size")
    }
    architecture = deepcopy(eagle3_default_config) | sizes
    architecture |= {
        "draft_vocab_size": producing.DRAFT_VOCABULARY,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    architecture |= own
    usual = {"eagle_ttt_steps": 2, "eagle_use_torch_compile": False}
    chosen = {**usual, "eagle_architecture_config": architecture, **recipe}
    model = producing.target()
    mtsp.convert(model, mode=[("eagle", chosen)])
    producing.randomise(model.eagle_module)
    # It keeps the most frequent tokens in the order of their frequency.
    ids = producing.vocabulary(architecture["draft_vocab_size"], ascending=False)
    if len(ids) < producing.VOCABULARY:
        producing.set_vocabulary(model.eagle_module, ids)
    with tempfile.TemporaryDirectory() as work, torch.inference_mode():
        export_speculative_decoding(model, export_dir=work)
        shutil.copytree(work, folder, dirs_exist_ok=True)
    about = f"PyPI nvidia-modelopt {version('nvidia-modelopt')}"
    producing.write(folder, about, {"d2t": ids, **unrolled(model)})


def unrolled(model: Any) -> dict[str, torch.Tensor]:
    """Its training forward, watched at each step's entry and exit."""
    tokens, entries, exits = producing.text(), [], []
    original: Callable[..., Any] = type(model)._eagle_forward

    def watched(self: Any, hidden: torch.Tensor, *rest: Any) -> Any:
        out = original(self, hidden, *rest)
        entries.append(hidden)
        exits.append((out[1], out[2]))
        return out

    type(model)._eagle_forward = watched
    try:
        model.train()
        with torch.no_grad():
            model(input_ids=tokens[None], loss_mask=torch.ones(1, len(tokens)))
    finally:
        type(model)._eagle_forward = original
    length = len(tokens) - 1
    found = {"x": tokens, "fused": entries[0][0, :length]}
    for depth, (stream, logits) in enumerate(exits):
        # Its step j at position p goes on with the draft that started at p - j.
        found[f"stream.{depth}"] = stream[0, depth:length]
        found[f"logits.{depth}"] = logits[0, depth:length]
    return found


if __name__ == "__main__":
    producing.main(VARIANTS, make)
