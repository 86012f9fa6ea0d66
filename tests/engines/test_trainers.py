"""Drafts in the forms that trainers export, converted as they were trained: engines count what was trained.

A form is a real export (``data/trainers``): its keys and its names of tensors. The weights are those of the trained pair,
because random ones are accepted so seldom that two networks count the same.
"""

import json
from pathlib import Path
from typing import Any

import exports
import pytest
import trained
from matrix import DIFFERS, EQUAL, REFUSED, Matrix
from safetensors.numpy import load_file, save_file

from eagle3_interop.convert import api
from eagle3_interop.schemas.findings import Refused
from eagle3_interop.schemas.trainers.table import TRAINERS
from eagle3_interop.validators.accept.acceptance import Acceptance, measure
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights

pytestmark = pytest.mark.engine

SIZES = {
    "hidden_size": 128,
    "target_hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "vocab_size": 1024,
    "draft_vocab_size": 512,
}
TAPS = [1, 3, 5]
LOSSES = tuple(one.code for trainer in TRAINERS.values() for one in trainer.uncarried)

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "specforge/norm_output": ("plain", {"fc_norm": False}),
    "specforge/parallel_yarn": ("../parallel/peagle", {"mask_token_id": 4, "num_hidden_layers": 1}),
    "modelopt/default": ("plain", {}),
    "modelopt/two_layers": ("two_layers", {}),
    "modelopt/biases": ("plain", {}),
    "automodel/sliding_target": ("plain", {}),
    "eagle/theta": ("plain", {}),
    "angelslim/theta": ("plain", {}),
    "torchspec/linear": ("plain", {}),
    "torchspec/yarn": ("plain", {}),
}
"""By export: whose weights it is given, and what its config has to say of them beside the sizes."""

BASE = 1e4
"""At which the weights were trained."""

OTHER_BASE = {"eagle/theta", "angelslim/theta", "torchspec/linear", "torchspec/yarn"}
"""Exports whose config keeps another one, which the trainer never read."""

FIXED = {("specforge/norm_output", "sglang"), ("modelopt/two_layers", "vllm")}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainers")


def form(name: str, folder: Path) -> Path:
    """A trained draft as this trainer would have exported it."""
    weights, changes = FORMS[name]
    if folder.exists():
        return folder
    read = exports.read(name, trainer=name.partition("/")[0], allow=LOSSES)
    source = api.load(str(trained.source(weights)))
    values = load_file(trained.source(weights) / "model.safetensors")
    tensors = {
        stored: values[source.reading.names[canonical]]
        for canonical, stored in read.reading.names.items()
        if canonical in source.reading.names
    }
    tensors |= {
        stored: trained.noise(values[source.reading.names[f"{part[:-5]}.weight"]].shape[:1], 0.3, i)
        for i, (part, stored) in enumerate(read.reading.names.items())
        if part.endswith("_proj.bias")
    }
    config = json.loads((exports.DATA / name / "config.json").read_text())
    config |= {key: x for key, x in SIZES.items() if key in config or key != "target_hidden_size"}
    config |= changes
    if name not in OTHER_BASE:
        for keys in (config, config.get("rope_parameters"), config.get("rope_scaling")):
            if keys and "rope_theta" in keys:
                keys["rope_theta"] = BASE
    if read.layout == "sglang":
        nested = config.get("eagle_config", {"use_aux_hidden_state": True})
        ids = [tap - 1 for tap in TAPS]
        config["eagle_config"] = {**nested, "eagle_aux_hidden_state_layer_ids": ids}
    else:
        config["eagle_aux_hidden_state_layer_ids"] = TAPS
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tensors.setdefault("d2t", values["d2t"])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def options(**said: Any) -> api.Options:
    return api.Options(target=str(trained.TARGET), target_name="org/target", **said)


def counted(folder: Path, **said: Any) -> Acceptance | None:
    """What the reference counts of a reading; None where it is refused."""
    try:
        loaded = api.load(str(folder), "auto", options(**said))
    except Refused:
        return None
    weights = Weights.read(loaded.reading, loaded.checkpoint, tables=trained.target().tables)
    network = Network(loaded.reading.draft, weights)
    return measure(network, trained.target(), trained.texts(), [trained.CHAIN])[trained.CHAIN]


def cells() -> list[Any]:
    return [
        pytest.param(
            name,
            engine,
            id=f"{name}-{engine}",
            marks=() if (name, engine) in FIXED else pytest.mark.conformance,
        )
        for name in FORMS
        for engine in ("vllm", "sglang")
    ]


@pytest.mark.parametrize(("name", "engine"), cells())
def test_an_engine_counts_what_was_trained(
    name: str, engine: str, scratch: Path, matrix: Matrix
) -> None:
    trainer = name.partition("/")[0]
    folder = form(name, scratch / name.replace("/", "-"))
    said = {"trainer": trainer, "allow": LOSSES}
    wanted, served = counted(folder, **said), counted(folder, trainer="none")
    assert wanted is not None
    row = f"{TRAINERS[trainer].title}: {name.partition('/')[2]}"
    matrix.record("trainers", row, "as trained", EQUAL, trained.figures(wanted))
    if served is None:
        matrix.record("trainers", row, "as the folder is", REFUSED)
    else:
        differs = not trained.same(served, wanted)
        text = trained.figures(served)
        matrix.claim("trainers", row, "as the folder is", DIFFERS, differs, text)
    title = f"{'vLLM' if engine == 'vllm' else 'SGLang'}: converted"
    loaded = api.load(str(folder), "auto", options(**said))
    try:
        conversion = api.convert(loaded, engine, options(**said))
    except Refused as refused:
        codes = ", ".join(item.code for item in refused.findings if item.severity == "error")
        holds = engine == "sglang" and loaded.reading.draft.parallel is not None
        matrix.claim("trainers", row, title, REFUSED, holds, codes)
        return
    output = scratch / f"{folder.name}-{engine}"
    api.write(conversion, output)
    asked: dict[str, Any] = {}
    if loaded.reading.draft.parallel is not None:
        drafting = {"model": str(output), "num_speculative_tokens": 4, "parallel_drafting": True}
        asked["engine_args"] = {"speculative_config": {"method": "eagle3", **drafting}}
    found = trained.generate(engine, output, **asked)
    same = trained.wrote_the_targets_text(found) and trained.same(found, wanted)
    text, versions = trained.figures(found), {engine: found["version"]}
    matrix.claim("trainers", row, title, EQUAL, same, text, **versions)
