"""Launch commands: what `serve` prints, and what it says of one that somebody has."""

import json

import drafts
import pytest

from eagle3_interop.convert import serve
from eagle3_interop.schemas.findings import Usage

STOCK = drafts.SGLANG_CONFIG
PLUGIN = {**drafts.VLLM_CONFIG, "norm_before_residual": True}
GOOD = (
    "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path d --speculative-num-steps 4 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 5"
)


def codes(arguments, engine="sglang", config=STOCK, checkpoint="d", target=None):
    return [item.code for item in serve.judge(arguments, engine, config, checkpoint, target)]


def test_the_printed_command_is_one_that_the_judge_accepts():
    assert codes(serve.command(STOCK, "sglang", "d", "t", 4)) == []
    assert codes(serve.command(STOCK, "sglang", "d", "t", 4, topk=3)) == []
    assert codes(serve.command(PLUGIN, "sglang", "d", "t", 4), config=PLUGIN) == []
    assert codes(serve.command(STOCK, "vllm", "d", "t", 4), "vllm") == []


def test_vllm_gets_the_method_whatever_the_folder_is_called():
    line = serve.command(STOCK, "vllm", "org/eagle-draft", "t", 4)
    assert '"method": "eagle3"' in line


def test_a_path_with_spaces_stays_one_word():
    line = serve.command(STOCK, "sglang", "my draft", "t", 4)
    assert "'my draft'" in line


def test_a_tree_is_refused_for_vllm():
    with pytest.raises(Usage):
        serve.command(STOCK, "vllm", "d", "t", 4, topk=2)


def test_eagle_instead_of_eagle3_is_an_error():
    assert codes(GOOD.replace("EAGLE3", "EAGLE")) == ["serve-algorithm"]


def test_one_step_makes_two_draft_tokens_whatever_was_asked():
    arguments = GOOD.replace("steps 4", "steps 1").replace("tokens 5", "tokens 6")
    assert codes(arguments) == ["serve-steps-win"]


def test_draft_tokens_without_steps_are_an_error():
    assert codes(GOOD.replace("--speculative-num-steps 4 ", "")) == ["serve-counts"]


def test_more_draft_tokens_than_a_tree_has_nodes_are_an_error():
    # Two steps of two branches: the root, 2 nodes, then 2 x 2 more.
    tree = GOOD.replace("steps 4", "steps 2").replace("topk 1", "topk 2")
    assert codes(tree.replace("tokens 5", "tokens 7")) == []
    assert codes(tree.replace("tokens 5", "tokens 8")) == ["serve-counts"]


def test_no_counts_at_all_is_a_note_that_sglang_chooses():
    bare = GOOD.partition(" --speculative-num-steps")[0]
    assert codes(bare) == ["serve-counts-chosen"]


def test_a_context_beyond_the_drafts_positions_is_an_error():
    assert codes(GOOD + " --context-length 4096") == ["serve-context"]
    assert codes(GOOD + " --context-length 2048") == []
    assert codes(GOOD, target={"max_position_embeddings": 4096}) == ["serve-context"]


def test_a_quantised_target_hands_its_quantisation_to_the_draft():
    assert codes(GOOD + " --quantization fp8") == ["serve-quantisation"]
    kept = GOOD + " --quantization fp8 --speculative-draft-model-quantization unquant"
    assert codes(kept) == []


def test_a_draft_for_the_plugin_needs_the_plugin():
    assert codes(GOOD, config=PLUGIN) == ["serve-plugin"]
    assert codes(f"{serve.PLUGIN_VARIABLE} {GOOD}", config=PLUGIN) == []


def test_flags_may_be_given_with_an_equals_sign_and_underscores():
    assert codes(GOOD.replace("--speculative-num-steps 4", "--speculative_num_steps=4")) == []


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
    assert codes(f"--speculative-config '{settings}'", "vllm") == expected


def test_vllm_needs_a_number_of_draft_tokens_for_a_flat_folder():
    settings = json.dumps({"model": "d", "method": "eagle3"})
    assert codes(f"--speculative-config '{settings}'", "vllm") == ["serve-counts"]


def test_a_speculators_folder_tells_vllm_everything_itself():
    assert codes("vllm serve d", "vllm", drafts.SPECULATORS_CONFIG) == []


def test_head_sizes_that_differ_from_the_targets_are_a_warning():
    target = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
    assert codes(GOOD, target=target) == ["kv-shape"]
