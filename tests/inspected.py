"""What ``inspect`` prints of many folders, kept under ``convert/golden`` to be read as a stranger would.

``python tests/inspected.py`` writes the texts anew: read the difference before you commit it.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import drafts
import numpy as np
from drafts import ABSENT, D, H
from typer.testing import CliRunner

from eagle3_interop.convert.cli import app

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).with_name("convert") / "golden"
TRAINED = sorted(path.relative_to(ROOT) for path in (ROOT / "tests" / "data" / "drafts").iterdir())
LAYER = drafts.SPECULATORS_CONFIG["transformer_layer_config"]
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
}


def layer(**changes: object) -> dict[str, object]:
    return {"transformer_layer_config": {**LAYER, **changes}}


def without(tensors: drafts.Tensors, *names: str) -> drafts.Tensors:
    return {name: value for name, value in tensors.items() if name not in names}


def biased() -> drafts.Tensors:
    rows = {"q": drafts.HEADS, "k": drafts.KV, "v": drafts.KV}
    return drafts.speculators_tensors() | {
        f"layers.0.self_attn.{part}_proj.bias": drafts.random((heads * drafts.HEAD_DIM,), 40)
        for part, heads in rows.items()
    }


def misfit() -> list[str]:
    """A target that is too shallow, beside the draft."""
    drafts.target(Path("target"), num_hidden_layers=4)
    return ["--target", "target"]


TROUBLED: dict[str, Callable[[Path], list[str] | Path]] = {
    "ids_of_sglang": drafts.sglang,
    "normed_residual_and_biases": lambda folder: drafts.speculators(
        folder, biased(), norm_before_residual=True, **layer(attention_bias=True)
    ),
    "windows_and_yarn": lambda folder: drafts.speculators(
        folder,
        drafts.speculators_tensors(2),
        **layer(
            num_hidden_layers=2,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=64,
            use_sliding_window=True,
            rope_parameters=YARN,
        ),
    ),
    "two_ids_for_three_blocks": lambda folder: drafts.speculators(
        folder, eagle_aux_hidden_state_layer_ids=[1, 3]
    ),
    "ids_in_another_order": lambda folder: drafts.vllm(
        folder, eagle_aux_hidden_state_layer_ids=[5, 1, 3]
    ),
    "residual_not_said": lambda folder: drafts.vllm(folder, norm_before_residual=ABSENT),
    "no_map": lambda folder: drafts.speculators(
        folder, without(drafts.speculators_tensors(), "d2t", "t2d")
    ),
    "a_tensor_is_missing": lambda folder: drafts.speculators(
        folder,
        without(drafts.speculators_tensors(), "layers.0.self_attn.q_proj.weight"),
    ),
    "more_layers_than_said": lambda folder: drafts.sglang(folder, drafts.flat_tensors(2)),
    "tensors_of_the_verifier": lambda folder: drafts.speculators(
        folder,
        drafts.speculators_tensors()
        | {
            "verifier_norm.weight": np.ones(H, dtype=np.float32),
            "verifier_lm_head.weight": drafts.random((D, H), 6),
        },
    ),
    "no_model_type": lambda folder: drafts.vllm(folder, model_type=ABSENT),
    "another_target": lambda folder: (drafts.speculators(folder), misfit())[1],
}
"""Folders that something is wrong with; a list of words stands behind the folder on the command line."""


def text(*words: str) -> str:
    """What the command prints, with its exit code, 110 columns wide."""
    with mock.patch.dict(os.environ, {"COLUMNS": "110", "NO_COLOR": "1"}):
        ran = CliRunner().invoke(app, ["inspect", *words])
    return (
        f"$ eagle3-convert inspect {' '.join(words)}\n{ran.stdout}"
        f"\n(stderr)\n{ran.stderr}\n(exit code {ran.exit_code})\n"
    )


def text_of_trained(place: Path) -> str:
    """Of a draft that the real library trained."""
    with contextlib.chdir(ROOT):
        return text(str(place))


def text_of_troubled(name: str, beside: Path) -> str:
    """Of a folder made on the spot."""
    with contextlib.chdir(beside):
        made = TROUBLED[name](Path(name))
        return text(name, *(made if isinstance(made, list) else []))


def texts() -> Iterator[tuple[str, str]]:
    """Every file's name and content."""
    for place in TRAINED:
        yield f"{place.name}.txt", text_of_trained(place)
    for name in TROUBLED:
        with tempfile.TemporaryDirectory() as beside:
            yield f"{name}.txt", text_of_troubled(name, Path(beside))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for file in GOLDEN.glob("*.txt"):
        file.unlink()
    for name, content in texts():
        (GOLDEN / name).write_text(content)
