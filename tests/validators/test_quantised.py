"""What quantisation costs: the reference computes with the weights that a quantised draft stands for."""

import json
from pathlib import Path

import numpy as np
import pytest
import quantised
from safetensors.torch import load_file
from typer.testing import CliRunner

from eagle3_interop.validators import validate_cli
from eagle3_interop.validators.diagnose import suspect

DATA = Path(__file__).resolve().parents[1] / "data"
TARGET, PLAIN = DATA / "target", DATA / "drafts" / "plain"


def quantise(folder: Path, kind: str, leaves=quantised.MATRICES) -> Path:
    tensors = {
        name: value.numpy() if value.dtype.is_floating_point is False else value.float().numpy()
        for name, value in load_file(PLAIN / "model.safetensors").items()
    }
    stored, _ = quantised.quantise(tensors, kind, leaves)
    config = json.loads((PLAIN / "config.json").read_text())
    config |= {"dtype": "float32", "quantization_config": quantised.quantisation_config(kind)}
    return quantised.save(folder, config, stored)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join((DATA / "prompts.jsonl").read_text().splitlines(keepends=True)[:2]))
    return path


def validated(prompts: Path, checkpoint: Path, against: Path) -> dict:
    options = ("--prompts", prompts, "--max-new-tokens", 16, "--device", "cpu", "--json", "-")
    arguments = (checkpoint, "--target", TARGET, "--against", against, *options)
    result = CliRunner().invoke(validate_cli.app, [str(argument) for argument in arguments])
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("kind", ["int8", "w4a16", "modelopt nvfp4"])
def test_against_the_original_it_says_what_is_lost(kind, prompts, tmp_path):
    report = validated(prompts, quantise(tmp_path / "draft", kind), PLAIN)
    logits = report["against"]["logits"]
    assert logits["max_abs_diff"] > 0
    assert 0.8 < logits["top1_agreement"] <= 1
    said = {item["code"]: item for item in report["findings"]}
    assert "7 quantised matrices" in said["dequantised"]["message"]


def test_four_bits_lose_more_than_eight(prompts, tmp_path):
    lost = {}
    for kind in ("w8a16", "w4a16"):
        report = validated(prompts, quantise(tmp_path / kind, kind), PLAIN)
        lost[kind] = report["against"]["logits"]["max_abs_diff"]
    assert 0 < lost["w8a16"] < lost["w4a16"]


def test_it_is_the_draft_that_dequantize_writes(prompts, tmp_path):
    source = quantise(tmp_path / "draft", "w4a16")
    layout = "speculators"
    quantised.written(source, layout, dequantize=True)
    report = validated(prompts, source, tmp_path / f"draft-to-{layout}")
    assert report["against"]["logits"]["max_abs_diff"] == 0
    assert report["against"]["first_difference"] is None
    assert report["acceptance"] == report["against"]["acceptance"] | {
        key: report["acceptance"][key]
        for key in report["acceptance"].keys() - report["against"]["acceptance"].keys()
    }


def test_a_diagnosis_searches_among_the_plain_weights(tmp_path):
    import torch

    from eagle3_interop.convert import api
    from eagle3_interop.validators.target.running import Target

    loaded = api.load(
        str(quantise(tmp_path / "draft", "int8")), "auto", api.Options(target=str(TARGET))
    )
    target = Target.load(str(TARGET), device=torch.device("cpu"), dtype=torch.float32)
    subject = suspect.subject_of(loaded, target, device=torch.device("cpu"), dtype=torch.float32)
    assert subject.weights["layers.0.mlp.up_proj.weight"].is_floating_point()
    assert np.isfinite(subject.weights["layers.0.mlp.up_proj.weight"].numpy()).all()
