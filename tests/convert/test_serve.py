"""What `serve` prints and says for either engine."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import drafts
import pytest
from conversions import launch_line

from eagle3_interop.convert.serve import command
from eagle3_interop.schemas.findings import Usage

STOCK = drafts.SGLANG_CONFIG
PLUGIN = {**drafts.VLLM_CONFIG, "norm_before_residual": True}
GOOD = (
    "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path d --speculative-num-steps 4 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 5"
)


def codes(arguments, engine="sglang", config=STOCK, target=None, name=None):
    return [item.code for item in command.judge(arguments, engine, config, "d", target, name)]


def test_the_printed_command_is_one_that_the_judge_accepts():
    assert codes(launch_line(STOCK, "sglang", "d", "t", 4)) == []
    assert codes(launch_line(STOCK, "sglang", "d", "t", 4, topk=3)) == []
    assert codes(launch_line(PLUGIN, "sglang", "d", "t", 4), config=PLUGIN) == []
    assert codes(launch_line(STOCK, "vllm", "d", "t", 4), "vllm") == []


def test_a_path_with_spaces_stays_one_word():
    line = launch_line(STOCK, "sglang", "my draft", "t", 4)
    assert "'my draft'" in line


def test_flags_may_be_given_with_an_equals_sign():
    assert codes(GOOD.replace(" --speculative-num-steps 4", " --speculative-num-steps=4")) == []


def test_underscores_keep_sglang_from_starting_but_not_vllm():
    underscores = GOOD.replace("--speculative-num-steps 4", "--speculative_num_steps 4")
    assert codes(underscores) == ["serve-underscores"]
    line = launch_line(STOCK, "vllm", "d", "t", 4)
    assert codes(line.replace("--speculative-config", "--speculative_config"), "vllm") == []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_a_file_may_say_is_not_taken_to_be_absent(engine):
    assert codes("--config flags.yaml --port 3000", engine) == ["serve-config-file"]


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
    line = launch_line(STOCK, "sglang", "org/draft@v2", "org/target@main", 3)
    assert "--speculative-draft-model-path org/draft --speculative-draft-model-revision v2" in line
    assert "--model-path org/target --revision main" in line
    line = launch_line(STOCK, "vllm", "org/draft@v2", "org/target@main", 3)
    assert '"model": "org/draft", "revision": "v2"' in line
    assert line.startswith("vllm serve org/target --revision main ")


def test_a_backslash_at_the_end_of_a_line_joins_the_next():
    lines = GOOD.replace(" --", " \\\n  --").replace(" d ", " \\\n d ")
    assert codes(lines) == []
    settings = '{"model": "d", "method": "eagle3", "num_speculative_tokens": 4}'
    assert codes(f"vllm serve t \\\n --speculative-config \\\n '{settings}'", "vllm") == []
    escaped = settings.replace('"', '\\"').replace(", ", ", \\\n")
    assert codes(f'vllm serve t --speculative-config "{escaped}"', "vllm") == []


def test_inside_single_quotes_a_backslash_joins_nothing():
    with pytest.raises(Usage):
        codes("vllm serve t -sc '{\\\n}'", "vllm")


@pytest.mark.parametrize("user", ["~nosuchuser/mistral-eagle", "m" * 300 + "/mistral-eagle"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_path_that_no_folder_can_have_is_judged_like_any_other(user, engine):
    named = GOOD.replace("model-path t", f"model-path {user}")
    assert codes(named if engine == "sglang" else f"vllm serve {user}", engine) == [
        "serve-mistral-target" if engine == "sglang" else "serve-no-draft"
    ]
    assert codes(f"vllm serve {user}", "vllm", drafts.SPECULATORS_CONFIG) == ["serve-no-draft"]
    assert user in launch_line(STOCK, engine, "d", user, 4)


DEEP = ["[" * 100_000, '{"a":' * 20_000, "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900]


@pytest.mark.parametrize("value", [*DEEP, "9" * 5000, '{"\\ud800": 1}', "{", "NaN"])
@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("sglang", "--json-model-override-args"),
        ("vllm", "--speculative-config"),
        ("vllm", "--speculative-config.model"),
        ("vllm", "--compilation-config"),
        ("vllm", "-cc.mode"),
    ],
)
def test_no_json_in_a_command_ends_in_a_fault(engine, flag, value):
    try:
        found = codes(f"{GOOD if engine == 'sglang' else 'vllm serve t'} {flag} '{value}'", engine)
    except Usage as usage:
        found = [str(usage)]
    assert found


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_command_that_no_shell_could_have_handed_on_is_wrong_usage(engine):
    """Linux hands a program no argument of 128 KiB, its closing zero included; a letter may have two bytes."""
    longest = 128 * 1024 - 1
    start = "--port 3000 --model "
    assert codes(start + "m" * (longest - len(start)), engine)
    for model in ("m" * (longest - len(start) + 1), "é" * (longest // 2)):
        with pytest.raises(Usage, match="131,071"):
            codes(start + model, engine)


def test_a_command_that_is_not_utf8_is_wrong_usage():
    with pytest.raises(Usage):
        codes("--config \udcff")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_printed_path_has_no_tilde_left(engine):
    line = launch_line(STOCK, engine, "~/my drafts/d", "~/no such target", 4)
    assert f"{Path.home()}/my drafts/d" in line
    assert f"'{Path.home()}/no such target'" in line
    assert "~" not in line


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("name", ["a; b", "$(a)", "mistral eagle; a"])
def test_all_that_is_printed_is_quoted(engine, name):
    line = launch_line(STOCK, engine, name, name, 4)
    quoted = f"'{name}'" if engine == "sglang" else json.dumps(name)
    assert quoted in line
    assert line.count(name) == line.count(f"'{name}'") + line.count(f'"{name}"')


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_comments_are_no_arguments(engine):
    line = launch_line(STOCK, engine, "d", "t", 3)
    assert codes(f"# don't use more\n{line} # --enforce-eager", engine) == []
    start = line.split(" --")[0]
    bare = f"{start} # {line.removeprefix(start)}"
    assert codes(bare, engine) != []


@pytest.mark.parametrize("between", ["&&", ";", "&", "| tee log;"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_flags_of_other_commands_are_not_the_engines(engine, between):
    line = launch_line(STOCK, engine, "d", "t", 3)
    other = "python bench.py --speculative-num-steps 9 --model mistral-eagle-x"
    assert codes(f"{line} {between} {other}", engine) == []
    assert codes(f"{other} {between} {line}", engine) == []


LINES = {"sglang": GOOD, "vllm": launch_line(STOCK, "vllm", "d", "t", 4)}


@pytest.mark.parametrize("engine", LINES)
def test_the_model_and_the_draft_that_were_given_are_those_that_the_command_names(engine):
    line = LINES[engine]
    assert codes(line, engine, name="t") == []
    assert codes(line, engine, name="u") == ["serve-other-target"]
    draft = line.replace("path d", "path e").replace('"d"', '"e"')
    assert codes(draft, engine, name="t") == ["serve-other-draft"]


@pytest.mark.parametrize("engine", LINES)
def test_a_folder_may_be_named_by_another_way_to_it(engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = launch_line(STOCK, engine, "./d", f"{tmp_path}/t", 4)
    assert codes(line, engine, name="t") == []


@pytest.mark.parametrize("engine", LINES)
def test_another_revision_is_another_model(engine):
    def judged(draft, target):
        line = launch_line(STOCK, engine, draft, target, 4)
        found = command.judge(line, engine, STOCK, "org/draft@v2", None, "org/target")
        return [item.code for item in found]

    assert judged("org/draft@v2", "org/target") == []
    assert judged("org/draft@v2", "org/target@main") == []
    assert judged("org/draft", "org/target") == ["serve-other-draft"]
    assert judged("org/draft@v2", "org/target@v3") == ["serve-other-target"]


@pytest.mark.parametrize("engine", LINES)
@pytest.mark.parametrize(
    "flag", ["--speculative-draft-sliding-window", "--max-modl-len", "--no-such.key", "-z"]
)
def test_a_flag_that_the_engine_does_not_have_keeps_it_from_starting(engine, flag):
    found = command.judge(f"{LINES[engine]} {flag} 3", engine, STOCK, "d")
    assert [(item.code, item.where) for item in found] == [("serve-unknown-flag", flag)]


def test_the_flag_that_was_probably_meant_is_named():
    wrong = f"{GOOD} --speculative-draft-windowsize 3"
    fixes = [item.fix for item in command.judge(wrong, "sglang", STOCK, "d")]
    assert fixes == ["Did you mean --speculative-draft-window-size?"]


@pytest.mark.parametrize("engine", LINES)
@pytest.mark.parametrize(
    "before",
    ["docker run --gpus all -p 8000:8000 --rm image", "nice -n 5", "A=b numactl --membind 0"],
)
def test_flags_of_the_program_that_starts_the_engine_are_not_the_engines(engine, before):
    assert codes(f"{before} {LINES[engine]}", engine, name="t") == []


def test_vllms_own_image_starts_the_server_with_what_stands_behind_its_name():
    line = LINES["vllm"].replace(
        "vllm serve t", "docker run --rm vllm/vllm-openai:latest --model t"
    )
    assert codes(line, "vllm", name="t") == []
    assert codes(f"{line} --max-modl-len 3", "vllm", name="t") == ["serve-unknown-flag"]


def test_flags_behind_a_program_that_is_not_known_are_not_judged_by_their_names():
    line = LINES["vllm"].replace("vllm serve t", "docker run --gpus all my-image --model t")
    assert codes(line, "vllm") == []


def test_the_parsers_flags_are_read_only_when_a_command_is_judged():
    code = (
        "import eagle3_interop.convert.serve.command; "
        "from eagle3_interop.schemas.engines import flags; "
        "assert flags.flags_of.cache_info().currsize == 0"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_command_is_a_value_whose_flags_a_program_can_read():
    wanted = command.Serving("sglang", PLUGIN, "org/my-draft@v2", "org/target", 3, 2, 6)
    made = command.command(wanted)
    assert (made.engine, made.model, made.before) == ("sglang", "org/target", ())
    assert made.env == (("SGLANG_EXTERNAL_MODEL_PACKAGE", "eagle3_interop.sglang_plugin"),)
    assert dict(made.flags) == {
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": "org/my-draft",
        "--speculative-draft-model-revision": "v2",
        "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "2",
        "--speculative-num-draft-tokens": "6",
    }


@pytest.mark.parametrize("engine", LINES)
@pytest.mark.parametrize("name", ["a b", "it's", "$(x)", "a;b"])
def test_a_rendered_command_is_split_by_a_shell_into_what_it_was_made_of(engine, name):
    made = command.Command(engine, name, (("--flag", name),), (("V", name),), ("ln", name, "d"))
    first, _, rest = made.line.partition(" && ")
    assert shlex.split(first) == ["ln", name, "d"]
    words = shlex.split(rest)
    assert words[0] == f"V={name}"
    assert words[-3:] == [name, "--flag", name]


def test_a_tree_of_a_number_of_nodes_is_refused_for_vllm():
    with pytest.raises(Usage, match="chains"):
        command.command(command.Serving("vllm", STOCK, "d", "t", 3, draft_tokens=6))
