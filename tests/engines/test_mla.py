"""A target with latent attention (MLA), and trained drafts of both kinds for it, in whole engines."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_engine
import trained
from matrix import DIFFERS, EQUAL, HOLDS, REFUSED, Matrix
from test_trained import flip

from eagle3_interop.convert import api
from eagle3_interop.schemas.findings import Refused, errors
from eagle3_interop.validators.target.writing import write_texts

pytestmark = pytest.mark.engine

TARGET, TAPS = trained.MLA_TARGET, (2, 3, 5)
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
FLIPS: dict[str, Callable[[Any], Any]] = {
    "mla": flip(layers__attention__interleaved=False),
    "gqa": flip(taps=(1, 2, 4)),
}
"""The other kind of pairs; and what vLLM makes of the source's ids."""

COLUMNS = (
    "sglang source",
    "sglang sglang",
    "sglang universal",
    "vllm source",
    "vllm vllm",
    "vllm universal",
)
FIXED = {("mla", "sglang universal"), ("mla", "vllm vllm")}
"""What every change is judged by; the other cells are a part of the whole matrix."""


def source(name: str) -> Path:
    """As its trainer published it for SGLang."""
    return trained.MLA / "drafts" / name


@functools.cache
def expected(name: str, *, flipped: bool = False) -> Any:
    change = FLIPS[name] if flipped else (lambda draft: draft)
    return trained.expected(source(name), "sglang", change=change, of=TARGET)


def generate(engine: str, folder: Path, **request: Any) -> dict[str, Any]:
    return trained.generate(engine, folder, **{"target": str(TARGET), **request})


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mla")


def cells() -> list[Any]:
    return [
        pytest.param(name, column, marks=() if (name, column) in FIXED else pytest.mark.conformance)
        for name in FLIPS
        for column in COLUMNS
    ]


@pytest.mark.parametrize(("name", "column"), cells())
def test_counters_equal_the_references(
    name: str, column: str, scratch: Path, matrix: Matrix
) -> None:
    """The source's ids are those of SGLang, which vLLM takes for taps one layer lower."""
    engine, layout = column.split()
    wanted, flipped = expected(name), expected(name, flipped=True)
    matrix.record("mla", name, "reference", EQUAL, trained.figures(wanted))
    differs = not trained.same(flipped, wanted)
    matrix.claim("mla", name, "flipped", DIFFERS, differs, trained.figures(flipped))
    folder = source(name)
    if layout != "source":
        folder = trained.convert(folder, layout, scratch, of=TARGET)
    found = generate(engine, folder)
    text, versions = trained.figures(found), {engine: found["version"]}
    wrote = trained.wrote_the_targets_text(found, of=TARGET)
    title = f"{TITLES[engine]}: {layout}"
    if column == "vllm source":
        change = flip(taps=tuple(tap - 1 for tap in TAPS))
        lower = trained.expected(source(name), "sglang", change=change, of=TARGET)
        differs = wrote and trained.same(found, lower) and not trained.same(found, wanted)
        matrix.claim("mla", name, title, DIFFERS, differs, text, **versions)
        return
    same = wrote and trained.same(found, wanted)
    matrix.claim("mla", name, title, EQUAL, same, text, **versions)


@pytest.mark.parametrize(
    ("ids", "taps"), [([3, 1, 5], (1, 3, 5)), ([0, 3, 5], (0, 3, 5)), ([1, 3, 4], (2, 4, 5))]
)
@pytest.mark.conformance
def test_what_sglang_captures_in_front_of_this_target(
    ids: list[int], taps: tuple[int, ...], scratch: Path, matrix: Matrix
) -> None:
    """Ids are taps, the embedding's included, unless the first is 1: then all are one more."""

    def say(config: dict[str, Any]) -> None:
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids

    folder = trained.changed(source("gqa"), scratch / f"ids-{ids[0]}", say)
    wanted = trained.expected(source("gqa"), "sglang", change=flip(taps=taps), of=TARGET)
    found = generate("sglang", folder)
    right = trained.wrote_the_targets_text(found, of=TARGET) and trained.same(found, wanted)
    row = f"SGLang, DeepSeek's loop: ids {ids} are taps {list(taps)}"
    versions = {"sglang": found["version"]}
    matrix.claim("facts", row, "engine", HOLDS, right, trained.figures(found), **versions)


@pytest.mark.conformance
def test_a_tap_on_the_embeddings_is_refused_for_vllm_which_it_ends(
    scratch: Path, matrix: Matrix
) -> None:
    folder = trained.changed(source("gqa"), scratch / "embedding", zero_first)
    options = trained.options(TARGET)
    with pytest.raises(Refused) as refused:
        api.convert(api.load(str(folder), "sglang", options), "vllm", options)
    codes = ", ".join(sorted({item.code for item in errors(refused.value.findings)}))
    with pytest.raises(run_engine.EngineError, match="NoneType"):
        generate("vllm", trained.changed(folder, scratch / "embedding-vllm", for_vllm))
    matrix.claim("mla", "gqa, tap on the embeddings", "vLLM: vllm", REFUSED, True, codes)


def zero_first(config: dict[str, Any]) -> None:
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 3, 5]


def for_vllm(config: dict[str, Any]) -> None:
    config["eagle_aux_hidden_state_layer_ids"] = [0, 3, 5]
    config["num_aux_hidden_states"] = 3


@pytest.mark.parametrize("switched", [True, False])
@pytest.mark.conformance
def test_the_plain_rope_of_a_target_in_vllm_on_a_cpu(
    switched: bool, scratch: Path, matrix: Matrix
) -> None:
    """Without the switch that `--engine` sets there, vLLM writes another text."""
    folder = plain_rope(scratch / f"plain-rope-{switched}")
    request = {"draft": None, "prompts": trained.prompts()[:8], "max_new_tokens": 24}
    engine_args = {} if switched else {"compilation_config": {}}
    found = generate("vllm", source("mla"), target=str(folder), engine_args=engine_args, **request)
    texts = write_texts(trained.target(folder), request["prompts"], 24, 0).texts
    wanted = [list(text.completion) for text in texts]
    same, versions = found["outputs"] == wanted, {"vllm": found["version"]}
    row = f"vLLM on a CPU, plain rope and MLA, rope kernel {'off' if switched else 'on'}"
    verdict, holds = (EQUAL, same) if switched else (DIFFERS, not same)
    matrix.claim("facts", row, "engine", verdict, holds, "text", **versions)


def plain_rope(folder: Path) -> Path:
    """The target with a plain rope, which it was not trained with: another text, and one that all agree on."""
    folder.mkdir()
    config = json.loads((TARGET / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    config.pop("rope_scaling", None)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(TARGET / "model.safetensors")
    return folder
