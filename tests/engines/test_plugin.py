"""What the plugin refuses, in the real SGLang; what it computes is judged by the other tests here."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_drafts
import run_engine
import test_classes
import trained
from matrix import REFUSED, Matrix
from random_drafts import Spec

pytestmark = pytest.mark.engine


def plugin_name(config: dict[str, Any]) -> None:
    config["architectures"] = ["Eagle3LlamaForCausalLM"]
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}


def say(**keys: Any) -> Any:
    def change(config: dict[str, Any]) -> None:
        plugin_name(config)
        config.update(keys)

    return change


def put(name: str, shape: tuple[int, ...]) -> Any:
    return lambda tensors: tensors.update({name: np.ones(shape, np.float32)})


def drop(name: str) -> Any:
    return lambda tensors: tensors.pop(name)


def keep(_: Any) -> None:
    """No change."""


WRONG: dict[str, tuple[Any, Any, str]] = {
    "a tensor too many": (plugin_name, put("midlayer.self_attn.q_norm.weight", (32,)), "no such tensor"),
    "a bias too many": (plugin_name, put("midlayer.self_attn.q_proj.bias", (128,)), "no such tensor"),
    "a tensor too few": (plugin_name, drop("fc.weight"), "lack fc.weight"),
    "biases announced and absent": (say(attention_bias=True), keep, "lack layers.0.self_attn"),
    "another shape": (plugin_name, put("norm.weight", (64,)), "shape [64]"),
    "a tensor twice": (plugin_name, put("layers.0.hidden_norm.weight", (128,)), "stored twice"),
    "bias": (say(bias=True), put("fc.bias", (128,)), "bias True"),
    "mlp_bias": (say(mlp_bias=True), keep, "mlp_bias True"),
    "tie_word_embeddings": (say(tie_word_embeddings=True), keep, "tie_word_embeddings True"),
    "logit_scale": (say(logit_scale=0.5), keep, "logit_scale 0.5"),
    "an fc that SGLang would skip": (say(num_aux_hidden_states=1), keep, "skip it"),
}  # fmt: skip


def test_folders_that_are_not_the_network_of_their_config(tmp_path: Path, matrix: Matrix) -> None:
    source = random_drafts.write(Spec(), "sglang", tmp_path / "source", trained.TARGET)
    good = trained.changed(source, tmp_path / "good", plugin_name)
    folders = [good]
    for row, (config, tensors, _) in WRONG.items():
        folders.append(trained.changed(source, tmp_path / row.replace(" ", "-"), config, tensors))
    inputs, grid = test_classes.write_inputs(tmp_path / "inputs", Spec()), test_classes.Grid()
    test_classes.run(
        "sglang", trained.TARGET, [(folder, inputs) for folder in folders], grid, tmp_path
    )
    assert not isinstance(grid.found["sglang", good], str)
    for folder, (row, (_, _, message)) in zip(folders[1:], WRONG.items(), strict=True):
        said = grid.found["sglang", folder]
        refused = (
            isinstance(said, str) and said.startswith("DraftCheckpointError") and message in said
        )
        matrix.claim("plugin", row, "SGLang", REFUSED, refused, **grid.versions)


def test_another_version_of_sglang(tmp_path: Path, matrix: Matrix) -> None:
    """The real SGLang, and a copy of the plugin that was run with another one."""
    variables = trained.plugin_variables(tmp_path)
    versions = tmp_path / "plugin" / "eagle3_interop" / "sglang_plugin" / "versions.py"
    changed = re.sub(r"TESTED = .*", 'TESTED = ("0.0.1",)', versions.read_text())
    versions.write_text(changed)
    source = random_drafts.write(Spec(), "sglang", tmp_path / "source", trained.TARGET)
    case = {
        "draft": str(trained.changed(source, tmp_path / "draft", plugin_name)),
        "inputs": str(test_classes.write_inputs(tmp_path / "inputs", Spec())),
        "output": str(tmp_path / "output"),
    }
    request = {"target": str(trained.TARGET), "cases": [case]}
    answer = run_engine.run_engine("sglang-draft-class", request, variables=variables)
    said = answer["cases"][0].get("error", "")
    assert said.startswith("UntestedSGLangError")
    assert "run with SGLang 0.0.1" in said
    insisting = {**variables, "EAGLE3_SGLANG_ANY_VERSION": "1"}
    answer = run_engine.run_engine("sglang-draft-class", request, variables=insisting)
    assert answer["cases"][0].get("class") == "Eagle3LlamaForCausalLM"
    row = "another version of SGLang, unless told otherwise"
    matrix.record("plugin", row, "SGLang", REFUSED, sglang=answer["version"])


def test_a_server_without_the_plugin(tmp_path: Path, matrix: Matrix) -> None:
    """It refuses the names that vLLM knows: nothing runs silently wrong."""
    folders, inputs = [], test_classes.write_inputs(tmp_path / "inputs", Spec())
    for kind in ("llama", "qwen3"):
        spec = Spec(kind=kind, flags={"norm_before_residual": True})
        source = random_drafts.write(spec, "vllm", tmp_path / kind, trained.TARGET)
        cell = test_classes.convert(source, "vllm", "universal", trained.OPTIONS)
        assert cell.folder is not None
        folders.append(cell.folder)
    cases = [{"draft": str(f), "inputs": str(inputs), "output": f"{f}.out"} for f in folders]
    request = {"target": str(trained.TARGET), "cases": cases}
    answer = run_engine.run_engine("sglang-draft-class", request)
    for case, name in zip(answer["cases"], ("Llama", "Qwen3"), strict=True):
        refused = f"Eagle3{name}ForCausalLM" in case.get("error", "")
        row, title = f"architecture Eagle3{name}ForCausalLM", "SGLang without the plugin"
        matrix.claim("plugin", row, title, REFUSED, refused, sglang=answer["version"])
