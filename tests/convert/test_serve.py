"""What `serve` prints and says for either engine."""

import drafts
import pytest

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


def test_flags_may_be_given_with_an_equals_sign():
    assert codes(GOOD.replace(" --speculative-num-steps 4", " --speculative-num-steps=4")) == []


def test_underscores_keep_sglang_from_starting_but_not_vllm():
    underscores = GOOD.replace("--speculative-num-steps 4", "--speculative_num_steps 4")
    assert codes(underscores) == ["serve-underscores"]
    line = serve.command(STOCK, "vllm", "d", "t", 4)
    assert codes(line.replace("--speculative-config", "--speculative_config"), "vllm") == []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_a_file_may_say_is_not_taken_to_be_absent(engine):
    assert codes("--model-path t --config flags.yaml", engine) == ["serve-config-file"]


def test_what_is_said_beside_a_file_is_judged():
    arguments = "--config flags.yaml --speculative-algorithm EAGLE --speculative-num-steps 2"
    assert codes(arguments) == ["serve-config-file", "serve-algorithm"]
    arguments = "vllm serve t --config flags.yaml --spec-method eagle"
    assert codes(arguments, "vllm") == ["serve-config-file", "serve-method"]


@pytest.mark.parametrize(
    ("flags", "target"),
    [
        ("--speculative-eagle-topk 4 --page-size 64", None),
        ("--quantization fp8", None),
        ("", {"max_position_embeddings": 4096}),
        ("", {"dtype": "bfloat16"}),
        ("--model-path /elsewhere/eagle/mistral", None),
        ("--speculative-use-rejection-sampling", {"architectures": ["LlamaForCausalLM"]}),
    ],
)
def test_a_file_may_mend_what_would_be_wrong_without_it(flags, target):
    whole = {**STOCK, "draft_vocab_size": STOCK["vocab_size"]}
    arguments = f"--config flags.yaml {flags}"
    assert codes(arguments, config=whole, target=target) == ["serve-config-file"]


def test_a_file_after_an_equals_sign_is_read_by_neither_engine():
    missing = ["serve-config-file", "serve-no-draft"]
    assert codes("vllm serve t --config=flags.yaml", "vllm") == missing
    assert codes("--config=flags.yaml")[:3] == ["serve-config-file", "serve-algorithm", missing[1]]


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
