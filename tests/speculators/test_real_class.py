"""Judged by the real speculators library: what is written for it loads whole, to the same bytes."""

import hashlib
import itertools
import json
import os
import subprocess
from pathlib import Path

import drafts
import numpy as np
import pytest
import torch
from conversions import convert, loaded
from feature_grid import Features, write
from safetensors.numpy import save_file
from safetensors.torch import load_file

from eagle3_interop.convert.decide import inspection
from eagle3_interop.schemas.dialects.keys import SpeculatorsKeys

pytestmark = pytest.mark.speculators

ROOT = Path(__file__).parents[2]
TRAINED = sorted(path.parent for path in (ROOT / "tests/data/drafts").glob("*/config.json"))

GRID = {
    "plain": Features(),
    "midlayer": Features(prefix="midlayer."),
    "two layers": Features(layers=2),
    "four taps": Features(taps=(0, 1, 3, 5)),
    "input norm": Features(fc="input norm"),
    "block norms, post-norm": Features(fc="block norms", norm_output=True),
    "normed residual": Features(normed_residual=True),
    "qwen3": Features(qk_norm=True),
    "qwen3, two layers": Features(qk_norm=True, layers=2, normed_residual=True),
    "biases": Features(qkv_bias=True),
    "window": Features(window=8),
    "qwen3 window": Features(window=8, qk_norm=True),
    "llama3 rope": Features(llama3=True, theta=5e5),
    "full vocabulary": Features(full_vocabulary=True),
    "unsorted map": Features(sorted_map=False),
    "no embeddings": Features(embeddings=False),
}
CASES = {
    f"{name}: {home} to {destination}": (features, home, destination)
    for (name, features), home, destination in itertools.product(
        GRID.items(), ("speculators", "sglang", "vllm"), ("speculators", "universal")
    )
    if home != destination
    if features.sorted_map or home != "speculators"
    # One flag means other biases to each reader of a folder for all three.
    if not (features.qkv_bias and destination == "universal" and features.qk_norm)
}


@pytest.fixture(scope="session")
def python():
    """The Python of an environment that has the library."""
    found = os.environ.get("EAGLE3_SPECULATORS_PYTHON")
    if not found:
        pytest.fail("EAGLE3_SPECULATORS_PYTHON is unset: run make speculators, which sets it.")
    return found


@pytest.fixture(scope="session")
def judged(python, tmp_path_factory):
    """Every folder converted, and what the library's own class made of it, in one process."""
    base = tmp_path_factory.mktemp("judged")
    target = drafts.target(base / "target")
    folders = {}
    for i, (name, (features, home, destination)) in enumerate(CASES.items()):
        source = write(base / str(i) / "draft", home, features)
        folders[name] = convert(
            source, destination, layout=home, target=target, target_name=str(target)
        ).folder
    for source, destination in itertools.product(TRAINED, ("sglang", "vllm", "universal")):
        copy = base / f"{source.name}-{destination}" / "draft"
        copy.parent.mkdir()
        copy.symlink_to(source)
        there = convert(copy, destination)
        back = there if destination == "universal" else convert(there.folder, "speculators")
        folders[f"{source.name} through {destination}"] = back.folder
    output = base / "report.json"
    request = {"cases": [{"draft": str(path)} for path in folders.values()], "target": str(target)}
    subprocess.run(
        [python, ROOT / "tests/engines/speculators_class.py", "--output", output],
        input=json.dumps(request),
        text=True,
        check=True,
        timeout=600,
    )
    cases = json.loads(output.read_text())["cases"]
    return dict(zip(folders, zip(folders.values(), cases, strict=True), strict=True))


NAMES = [
    *CASES,
    *(f"{path.name} through {to}" for path in TRAINED for to in ("sglang", "vllm", "universal")),
]


@pytest.mark.parametrize("name", NAMES)
def test_the_real_class_loads_every_tensor_and_misses_none(name, judged):
    folder, report = judged[name]
    stored = drafts.load(folder)[1] if "through" not in name else None
    assert report.get("error") is None, report.get("error")
    assert report["missing_keys"] == []
    assert report["mismatched_keys"] == []
    # SGLang reads the norm of a later layer under another name: a universal folder has both.
    assert [key for key in report["unexpected_keys"] if "hidden_norm" not in key] == []
    assert set(report["unexpected_keys"]) <= {"layers.1.hidden_norm.weight"}
    borrowed = {"verifier_norm.weight", "verifier_lm_head.weight", "embed_tokens.weight"}
    assert set(report["not_in_files"]) <= borrowed
    if stored is not None:
        for tensor, facts in report["tensors"].items():
            assert (
                facts["sha256"]
                == hashlib.sha256(np.ascontiguousarray(stored[tensor]).tobytes()).hexdigest()
            )
        assert report["tensors"].keys() == stored.keys() - set(report["unexpected_keys"])


@pytest.mark.parametrize("source", TRAINED, ids=lambda path: path.name)
@pytest.mark.parametrize("through", ["sglang", "vllm"])
def test_a_trained_draft_comes_back_to_the_tensors_that_the_library_saved(source, through, judged):
    folder, _ = judged[f"{source.name} through {through}"]
    before, after = (load_file(path / "model.safetensors") for path in (source, folder))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_every_default_is_the_one_of_the_librarys_own_class(python):
    script = """
import json
from speculators.models.eagle3 import Eagle3SpeculatorConfig
fields = Eagle3SpeculatorConfig.model_fields
print(json.dumps({name: field.default for name, field in fields.items() if field.default_factory is None}, default=str))
"""
    ran = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    theirs = json.loads(ran.stdout.strip().splitlines()[-1])
    ours = {
        name: field.default
        for name, field in SpeculatorsKeys.model_fields.items()
        if not field.is_required()
    }
    compared = ours.keys() & theirs.keys()
    assert compared >= {
        "draft_vocab_size", "norm_before_residual", "target_hidden_size", "norm_before_fc", "fc_norm",
        "norm_output", "embed_requires_grad", "eagle_aux_hidden_state_layer_ids",
    }  # fmt: skip
    assert {name: ours[name] for name in compared} == {name: theirs[name] for name in compared}


LOADING = """
import json, sys
from pathlib import Path
from safetensors.torch import load_file
from speculators.models.eagle3 import Eagle3DraftModel
verdicts = {}
for folder in map(Path, sys.argv[1:]):
    try:
        state = Eagle3DraftModel.from_pretrained(folder).state_dict()
    except Exception:
        verdicts[folder.name] = "does-not-load"
        continue
    (file,) = folder.glob("*.safetensors")
    stored = {k.removeprefix("model."): v for k, v in load_file(file).items()}
    whole = {k for k in state if not k.startswith("verifier_")} == {
        k for k in stored if not k.startswith("verifier_")
    }
    equal = all(v.equal(stored[k]) for k, v in state.items() if not k.startswith("verifier_"))
    verdicts[folder.name] = "same" if whole and equal else "different"
print(json.dumps(verdicts))
"""


def odd_folders(base):
    """Folders that the library loads otherwise than they look."""
    target = drafts.target(base / "target")
    settings = drafts.SPECULATORS_CONFIG["speculators_config"]
    verifier = {**settings["verifier"], "name_or_path": str(target)}
    whole = drafts.speculators_tensors()

    def save(name, tensors=whole, **changes):
        written = {"speculators_config": {**settings, "verifier": verifier, **changes}}
        chosen = changes if "speculators_config" in changes else written
        return drafts.speculators(base / name, tensors, **chosen)

    maps = ("lm_head.weight", "d2t", "t2d")
    yield save("plain")
    yield save("prefixed", {k if k in maps else f"model.{k}": v for k, v in whole.items()})
    yield save("all-prefixed", {f"model.{k}": v for k, v in whole.items()})
    yield save("no-t2d", {k: v for k, v in whole.items() if k != "t2d"})
    stray = {"verifier_norm.weight": np.ones(drafts.H, dtype=np.float32)}
    yield save("verifier-norm", whole | stray)
    yield save("no-settings", speculators_config=drafts.ABSENT)
    yield save("null-settings", speculators_config=None)
    yield save("no-name", verifier={**verifier, "name_or_path": None})
    yield save("no-classes", verifier={"name_or_path": str(target)})
    yield save("no-methods", proposal_methods=[])
    yield save("unknown-method", default_proposal_method="sampled")
    odd = save("odd-file")
    (odd / "model.safetensors").rename(odd / "draft.safetensors")
    yield odd


def test_inspect_says_of_a_folder_what_the_real_class_does(python, tmp_path):
    folders = list(odd_folders(tmp_path))
    ran = subprocess.run(
        [python, "-c", LOADING, *folders],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert json.loads(ran.stdout.strip().splitlines()[-1]) == {
        folder.name: inspection.engines(loaded(folder))["speculators"]["as_is"]
        for folder in folders
    }


def test_the_real_class_takes_the_single_file_before_the_index(python, tmp_path):
    (folder, *_) = odd_folders(tmp_path)
    other = {"norm.weight": np.zeros(drafts.H, dtype=np.float32)}
    save_file(other, folder / "one.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(other, "one.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    script = """
import sys
from speculators.models.eagle3 import Eagle3DraftModel
print(Eagle3DraftModel.from_pretrained(sys.argv[1]).norm.weight.any().item())
"""
    command = [python, "-c", script, folder]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert ran.stdout.strip().splitlines()[-1] == "True"
