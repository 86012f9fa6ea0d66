"""vLLM's launch commands: what `serve` prints, and what it says of one that somebody has."""

import json

import drafts
import pytest

from eagle3_interop.convert import serve
from eagle3_interop.schemas.findings import Usage

STOCK = drafts.SGLANG_CONFIG


def codes(arguments, config=STOCK, target=None):
    return [item.code for item in serve.judge(arguments, "vllm", config, "d", target)]


def test_vllm_gets_the_method_whatever_the_folder_is_called():
    line = serve.command(STOCK, "vllm", "org/eagle-draft", "t", 4)
    assert '"method": "eagle3"' in line


def test_a_tree_is_refused_for_vllm():
    with pytest.raises(Usage):
        serve.command(STOCK, "vllm", "d", "t", 4, topk=2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/draft", ["serve-method"]),
        ("org/llama-eagle3", []),
        ("org/eagle-eagle3", ["serve-method"]),
    ],
)
def test_without_a_method_vllm_goes_by_the_name(name, expected):
    settings = json.dumps({"model": name, "num_speculative_tokens": 4})
    assert codes(f"--speculative-config '{settings}'") == expected


def test_vllm_needs_a_number_of_draft_tokens_for_a_flat_folder():
    settings = json.dumps({"model": "d", "method": "eagle3"})
    assert codes(f"--speculative-config '{settings}'") == ["serve-counts"]


SPECULATORS = drafts.SPECULATORS_CONFIG


@pytest.mark.parametrize("arguments", ["vllm serve d", "vllm serve --model d", "vllm serve ./d"])
def test_a_speculators_folder_that_is_served_tells_vllm_everything_itself(arguments):
    assert codes(arguments, SPECULATORS) == []


def test_beside_another_model_a_speculators_folder_tells_vllm_nothing():
    assert codes("vllm serve target", SPECULATORS) == ["serve-no-draft"]
    draft = """vllm serve target --speculative-config '{"model": "d"}'"""
    assert codes(draft, SPECULATORS) == ["serve-method", "serve-counts"]
    assert codes(serve.command(SPECULATORS, "vllm", "d", "t", 4), SPECULATORS) == []


def test_another_draft_method_is_an_error():
    settings = json.dumps({"model": "d", "method": "eagle", "num_speculative_tokens": 4})
    assert codes(f"--speculative-config '{settings}'") == ["serve-method"]


def test_settings_may_be_given_one_by_one():
    arguments = "--speculative-config.method eagle3 --speculative-config.num_speculative_tokens 4"
    assert codes(f"vllm serve t --speculative-config.model d {arguments}") == []


def test_a_quantised_target_leaves_vllms_draft_as_it_is():
    target = {"quantization_config": {"quant_method": "fp8"}}
    line = serve.command(STOCK, "vllm", "d", "t", 4)
    assert codes(line, target=target) == ["serve-quantised-target"]


@pytest.mark.parametrize(
    "eager",
    [
        "--enforce-eager",
        "-O0",
        "-O 0",
        "--optimization-level 0",
        "-cc.mode=none",
        """--compilation-config '{"mode": 0}'""",
        """-cc '{"mode": "NONE"}'""",
    ],
)
def test_without_compilation_a_tap_on_the_embeddings_is_a_warning(eager):
    line = serve.command(STOCK, "vllm", "d", "t", 4)
    tapped = {**drafts.VLLM_CONFIG, "eagle_aux_hidden_state_layer_ids": [0, 3, 5]}
    expected = ["serve-eager-embedding-tap"]
    assert codes(f"{line} {eager}", tapped) == expected
    assert codes(f"{line} {eager}", drafts.VLLM_CONFIG) == []


@pytest.mark.parametrize("compiled", ["", "-O2", """-cc '{"mode": 3}'""", "-cc.mode=3"])
def test_compiled_a_tap_on_the_embeddings_is_safe(compiled):
    line = serve.command(STOCK, "vllm", "d", "t", 4)
    tapped = {**drafts.VLLM_CONFIG, "eagle_aux_hidden_state_layer_ids": [0, 3, 5]}
    assert codes(f"{line} {compiled}", tapped) == []


def test_the_v1_runner_stops_drafting_where_the_drafts_positions_end():
    line = serve.command(STOCK, "vllm", "d", "t", 4)
    target = {"max_position_embeddings": 4096}
    old = f"VLLM_USE_V2_MODEL_RUNNER=0 {line}"
    assert codes(old, target=target) == ["serve-context-stops"]
    assert codes(f"{old} --max-model-len 4k") == ["serve-context-stops"]
    assert codes(f"{old} --max-model-len 2K", target=target) == []
    assert codes(line, target=target) == []  # the V2 runner, which is the default
