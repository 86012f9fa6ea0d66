"""A trained P-EAGLE draft of speculators' own class in whole engines."""

from pathlib import Path
from typing import Any

import pytest
import trained
from matrix import DIFFERS, EQUAL, REFUSED, Matrix

from eagle3_interop.convert import api
from eagle3_interop.convert.decide import inspection
from eagle3_interop.schemas.findings import Refused

pytestmark = pytest.mark.engine

NAME = "peagle"
SOURCE = trained.DATA / "parallel" / NAME


def token_by_token(draft: Any) -> Any:
    return draft.model_copy(update={"parallel": None})


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parallel")


@pytest.fixture(scope="module")
def wanted() -> Any:
    return trained.expected(SOURCE, "speculators")


@pytest.fixture(scope="module")
def without() -> Any:
    return trained.expected(SOURCE, "speculators", change=token_by_token)


def as_sglang_knows_it(config: dict[str, Any]) -> None:
    """Its class, and the ids where it looks for them."""
    ids = [tap - 1 for tap in config["eagle_aux_hidden_state_layer_ids"]]
    config["architectures"] = ["LlamaForCausalLMEagle3"]
    config["eagle_config"] = {
        "use_aux_hidden_state": True,
        "eagle_aux_hidden_state_layer_ids": ids,
    }


def in_vllm(folder: Path, **settings: Any) -> dict[str, Any]:
    config = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": 4, **settings}
    return trained.generate("vllm", folder, engine_args={"speculative_config": config})


@pytest.mark.parametrize(
    "layout",
    [
        "vllm",
        pytest.param("source", marks=pytest.mark.conformance),
        pytest.param("speculators", marks=pytest.mark.conformance),
    ],
)
def test_counters_equal_the_references(
    layout: str, scratch: Path, wanted: Any, without: Any, matrix: Matrix
) -> None:
    matrix.record("parallel", NAME, "reference", EQUAL, trained.figures(wanted))
    differs = not trained.same(without, wanted)
    matrix.claim("parallel", NAME, "flipped", DIFFERS, differs, trained.figures(without))
    folder = SOURCE if layout == "source" else trained.convert(SOURCE, layout, scratch)
    assert inspection.engines(api.load(str(folder)))["vllm"]["as_is"] == "same"
    found = in_vllm(folder, parallel_drafting=True)
    same = trained.wrote_the_targets_text(found) and trained.same(found, wanted)
    figures, versions = trained.figures(found), {"vllm": found["version"]}
    matrix.claim("parallel", NAME, f"vLLM: {layout}", EQUAL, same, figures, **versions)


@pytest.mark.conformance
def test_without_the_flag_vllm_drafts_token_by_token(without: Any) -> None:
    found = in_vllm(SOURCE)
    assert trained.wrote_the_targets_text(found)
    assert trained.same(found, without)


@pytest.mark.conformance
def test_sglang_would_draft_token_by_token_and_is_refused(
    scratch: Path, wanted: Any, matrix: Matrix
) -> None:
    with pytest.raises(Refused) as refused:
        trained.convert(SOURCE, "sglang", scratch)
    codes = {item.code for item in refused.value.findings if item.severity == "error"}
    refuses = codes == {"parallel-draft"}
    matrix.claim("parallel", NAME, "SGLang: sglang", REFUSED, refuses, "parallel-draft")
    flat = trained.convert(SOURCE, "vllm", scratch)
    forced = trained.changed(flat, scratch / "stock", as_sglang_knows_it)
    found = trained.generate("sglang", forced)
    differs = trained.wrote_the_targets_text(found) and not trained.same(found, wanted)
    detail = f"{trained.figures(found)} for {trained.figures(wanted)}"
    matrix.claim("stock", NAME, "SGLang stock", DIFFERS, differs, detail, sglang=found["version"])
