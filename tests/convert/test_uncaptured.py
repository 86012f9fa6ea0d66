"""Targets whose class cannot hand over hidden states: said before a command is printed that cannot start."""

import json

import drafts
import pytest
from conversions import convert, loaded, refusal, refusals
from typer.testing import CliRunner

from eagle3_interop.convert.cli import app
from eagle3_interop.convert.decide import inspection
from eagle3_interop.schemas.engines.capturing import capturing_of

# As the engines' own registries answered: a class is asked for a method, or for its interface.
LACK = {
    "sglang": [
        "DeepseekV4ForCausalLM",
        "KimiK3ForConditionalGeneration",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "MixtralForCausalLM",
    ],
    "vllm": ["GraniteMoeForCausalLM", "MixtralForCausalLM", "Gemma2ForCausalLM"],
}
HAVE = {
    "sglang": ["LlamaForCausalLM", "Qwen3ForCausalLM", "GptOssForCausalLM"],
    "vllm": [
        "LlamaForCausalLM",
        "GraniteForCausalLM",
        "DeepseekV4ForCausalLM",
        "GptOssForCausalLM",
    ],
}
PAIRS = [(engine, name) for engine, names in LACK.items() for name in names]
ELSEWHERE = {"sglang": "vLLM", "vllm": "SGLang"}


def pair(folder, *names):
    target = drafts.target(folder / "target", architectures=list(names))
    return drafts.vllm(folder / "draft"), target


@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_a_conversion_for_a_target_that_cannot_feed_it_is_refused(engine, name, tmp_path):
    draft, target = pair(tmp_path, name)
    found = refusal(convert, draft, engine, target=target)
    assert found.code == "target-captures-nothing"
    assert name in found.message


@pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine, names in HAVE.items() for name in names]
)
def test_a_target_that_can_is_passed(engine, name, tmp_path):
    draft, target = pair(tmp_path, name)
    assert convert(draft, engine, target=target)


def test_the_engine_that_can_is_named(tmp_path):
    draft, target = pair(tmp_path, "GraniteForCausalLM")
    assert "vLLM" in refusal(convert, draft, "sglang", target=target).fix
    other = drafts.target(tmp_path / "other", architectures=["GraniteMoeForCausalLM"])
    assert "SGLang" not in refusal(convert, draft, "vllm", target=other).fix


@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_inspect_and_serve_say_it_as_well(engine, name, tmp_path):
    draft, target = pair(tmp_path, name)
    row = inspection.engines(loaded(draft, target=target))[engine]
    assert row["as_is"] == "does-not-load"
    assert row["reasons"] == ["target-captures-nothing"]
    arguments = ["serve", str(draft), "--engine", engine, "--target", str(target), "--json"]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 3
    assert [item["code"] for item in json.loads(run.stdout)["findings"]] == [
        "target-captures-nothing"
    ]


def test_a_folder_for_all_engines_is_one_for_none_where_one_cannot(tmp_path):
    draft, target = pair(tmp_path, "GraniteForCausalLM")
    assert "target-captures-nothing" in refusals(convert, draft, "universal", target=target)


def test_the_first_architecture_that_an_engine_knows_counts(tmp_path):
    draft, target = pair(tmp_path, "OfNobodyForCausalLM", "GraniteForCausalLM")
    assert refusals(convert, draft, "sglang", target=target) == {"target-captures-nothing"}


def test_of_a_class_that_no_registry_names_nothing_is_said(tmp_path):
    draft, target = pair(tmp_path, "OfNobodyForCausalLM")
    for engine in LACK:
        assert convert(draft, engine, target=target)


def test_a_draft_without_fc_takes_no_captured_states(tmp_path):
    tensors = {name: x for name, x in drafts.flat_tensors().items() if name != "fc.weight"}
    keys = {"eagle_config": {"use_aux_hidden_state": False}}
    keys["eagle_aux_hidden_state_layer_ids"] = drafts.ABSENT
    draft = drafts.vllm(tmp_path / "draft", tensors, **keys)
    target = drafts.target(tmp_path / "target", architectures=["GraniteMoeForCausalLM"])
    for engine in LACK:
        assert convert(draft, engine, target=target)


@pytest.mark.parametrize("engine", LACK)
def test_no_class_both_can_and_cannot(engine):
    known = capturing_of(engine)
    assert not known.captures & known.lacks
    assert set(HAVE[engine]) <= known.captures
    assert set(LACK[engine]) <= known.lacks
