"""What `serve` prints and says for either engine."""

import drafts

from eagle3_interop.convert import serve

STOCK = drafts.SGLANG_CONFIG
PLUGIN = {**drafts.VLLM_CONFIG, "norm_before_residual": True}
GOOD = (
    "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path d --speculative-num-steps 4 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 5"
)


def codes(arguments, engine="sglang", config=STOCK, target=None):
    return [item.code for item in serve.judge(arguments, engine, config, "d", target)]


def test_the_printed_command_is_one_that_the_judge_accepts():
    assert codes(serve.command(STOCK, "sglang", "d", "t", 4)) == []
    assert codes(serve.command(STOCK, "sglang", "d", "t", 4, topk=3)) == []
    assert codes(serve.command(PLUGIN, "sglang", "d", "t", 4), config=PLUGIN) == []
    assert codes(serve.command(STOCK, "vllm", "d", "t", 4), "vllm") == []


def test_a_path_with_spaces_stays_one_word():
    line = serve.command(STOCK, "sglang", "my draft", "t", 4)
    assert "'my draft'" in line


def test_flags_may_be_given_with_an_equals_sign_and_underscores():
    assert codes(GOOD.replace("--speculative-num-steps 4", "--speculative_num_steps=4")) == []


def test_head_sizes_that_differ_from_the_targets_are_a_warning():
    target = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
    assert codes(GOOD, target=target) == ["kv-shape"]


def test_a_revision_has_a_flag_of_its_own():
    line = serve.command(STOCK, "sglang", "org/draft@v2", "org/target@main", 3)
    assert "--speculative-draft-model-path org/draft --speculative-draft-model-revision v2" in line
    assert "--model-path org/target --revision main" in line
    line = serve.command(STOCK, "vllm", "org/draft@v2", "org/target@main", 3)
    assert '"model": "org/draft", "revision": "v2"' in line
    assert line.startswith("vllm serve org/target --revision main ")
