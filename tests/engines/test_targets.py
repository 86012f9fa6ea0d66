"""The lists of targets that can feed a draft are those of the engines' own registries."""

import json
from typing import Any

import pytest
import record_targets
from matrix import HOLDS, TITLES, Matrix

from eagle3_interop.schemas.engines import targets
from eagle3_interop.schemas.engines.capturing import capturing_of

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def asked() -> dict[str, dict[str, Any]]:
    return {engine: record_targets.ask(engine) for engine in ("vllm", "sglang")}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_recorded_classes_are_those_of_the_engines_registry(
    engine: str, asked: dict[str, dict[str, Any]], matrix: Matrix
) -> None:
    found = asked[engine]
    recorded = record_targets.DATA / f"{engine}-{found['release']}-targets.json"
    assert json.loads(recorded.read_text()) == found
    assert capturing_of(engine).release == found["release"]
    counts = f"{len(found['captures'])} classes can, {len(found['lacks'])} cannot"
    fact = "registered target classes that can hand over hidden states"
    matrix.record("facts", fact, TITLES[engine], HOLDS, counts, **{engine: found["release"]})


def test_a_model_of_vllms_that_captures_nothing_is_one_that_we_name(
    asked: dict[str, dict[str, Any]],
) -> None:
    # Models inside classes; MiMo's class promises what its model does not do, Granite's promises nothing.
    assert asked["vllm"]["idle"] == ["granite4_vision.Granite4VisionLLMModel", "mimo.MiMoModel"]
    assert "MiMoForCausalLM" in targets.VLLM_CAPTURES_NOTHING & set(asked["vllm"]["captures"])
    assert "Granite4VisionForConditionalGeneration" in asked["vllm"]["lacks"]


def test_every_class_with_rules_of_its_own_is_one_that_can(
    asked: dict[str, dict[str, Any]],
) -> None:
    own = targets.SGLANG_IDS_AS_TAPS | targets.SGLANG_CAPTURES_THE_END
    assert own <= {*asked["sglang"]["captures"]}
    promised = targets.VLLM_NO_EMBEDDING | targets.VLLM_SPARSE | targets.VLLM_CAPTURES_NOTHING
    known = {*asked["vllm"]["captures"], *asked["vllm"]["lacks"], *asked["vllm"]["unread"]}
    assert promised <= known
