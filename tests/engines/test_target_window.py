"""A target whose layers all slide: vLLM gives its window to draft layers that have none of their own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import trained
from matrix import HOLDS, Matrix

from eagle3_interop.convert import api
from eagle3_interop.validators.accept.acceptance import Acceptance, measure
from eagle3_interop.validators.engines.miswirings import miswirings
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.writing import write_texts

pytestmark = [pytest.mark.engine, pytest.mark.conformance]

WINDOW = 12
ROW = "a target whose layers all slide hands its window on to a draft without one in vLLM"


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target of tests/data as a Mistral that slides: the same weights, another network."""
    folder = tmp_path_factory.mktemp("sliding") / "target"
    shutil.copytree(trained.TARGET, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": WINDOW,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def wanted(sliding: Path) -> dict[str, Acceptance]:
    """The reference's counters on the sliding target, without a window and with the target's."""
    target = Target.load(sliding)
    texts = write_texts(target, trained.prompts(), trained.NEW_TOKENS, 4).texts
    loaded = api.load(str(trained.source("plain")), options=api.Options(target=str(sliding)))
    draft = loaded.reading.draft
    (taken,) = [
        one.draft for one in miswirings(draft, 6, 128, WINDOW) if one.name == "target-window"
    ]
    found = {}
    for name, one in (("without", draft), ("with", taken)):
        weights = Weights.read(loaded.reading, loaded.checkpoint, tables=target.tables)
        weights.draft = one
        found[name] = measure(Network(one, weights), target, texts, [trained.CHAIN])[trained.CHAIN]
    assert not trained.same(found["without"], found["with"])
    return found


def converted(destination: str, target: Path, output: Path) -> Path:
    options = api.Options(target=str(target), target_name="org/target")
    conversion = api.convert(
        api.load(str(trained.source("plain")), options=options), destination, options
    )
    api.write(conversion, output)
    return output


def claim(matrix: Matrix, column: str, holds: bool, found: dict[str, Any]) -> None:
    versions = {found["engine"]: found["version"]}
    matrix.claim("facts", ROW, column, HOLDS, holds, trained.figures(found), **versions)


def test_vllm_takes_it_for_a_folder_made_without_that_target(
    sliding: Path, wanted: dict[str, Acceptance], tmp_path: Path, matrix: Matrix
) -> None:
    folder = converted("vllm", trained.TARGET, tmp_path / "vllm")
    found = trained.generate("vllm", folder, target=str(sliding))
    claim(matrix, "as it is: slides", trained.same(found, wanted["with"]), found)


@pytest.mark.parametrize("destination", ["vllm", "universal"])
def test_a_window_that_no_context_reaches_keeps_it_away(
    destination: str, sliding: Path, wanted: dict[str, Acceptance], tmp_path: Path, matrix: Matrix
) -> None:
    folder = converted(destination, sliding, tmp_path / destination)
    found = trained.generate("vllm", folder, target=str(sliding))
    column = f"vLLM: {destination}, does not"
    claim(matrix, column, trained.same(found, wanted["without"]), found)


def test_sglang_passes_such_a_window_by(sliding: Path, tmp_path: Path, matrix: Matrix) -> None:
    # SGLang's own Mistral does not slide, so it is asked on the target of tests/data.
    folder = converted("universal", sliding, tmp_path / "universal")
    found = trained.generate("sglang", folder)
    right = trained.same(found, trained.expected(trained.source("plain"), "speculators"))
    claim(matrix, "SGLang: universal, does not", right, found)
