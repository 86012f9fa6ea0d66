"""The commands: exit codes, what stands on stdout, and what importing them costs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import drafts
import pytest
from typer.testing import CliRunner

from eagle3_interop.convert import cli
from eagle3_interop.schemas.codes import CODES
from eagle3_interop.schemas.registry import DESTINATIONS, DIALECTS

OPTIONS = {
    "--target", "--target-name", "--stock", "--taps", "--set", "--dtype", "--max-shard-size", "--link",
    "--canonical-names", "--dequantize", "--digest", "--overwrite", "--dry-run", "--json", "--quiet", "--help", "--trainer", "--allow", "--for",
}  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def command(name):
    return next(item for item in cli.app.registered_commands if (item.name or "") == name)


def test_every_source_converts_to_every_destination():
    names = {item.name for item in cli.app.registered_commands if item.name}
    assert names == {f"{a}-to-{b}" for a in (*DIALECTS, "auto") for b in DESTINATIONS}


def test_the_names_typed_out_in_the_cli_are_those_of_the_registry():
    assert (*DIALECTS, "auto") == cli.SOURCES
    assert tuple(DESTINATIONS) == cli.DESTINATIONS


def test_the_options_of_a_conversion_are_frozen():
    output = run("auto-to-sglang", "--help").stdout
    found = {word.strip(",") for word in output.split() if word.startswith("--")}
    assert found == OPTIONS


def test_help_imports_neither_torch_nor_transformers_nor_the_hub():
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from eagle3_interop.convert.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(app, ['auto-to-sglang', '--help']).exit_code == 0\n"
        "print(*({'torch', 'transformers', 'huggingface_hub', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["sglang-to-vllm", "--json"],
        ["sglang-to-vllm", "a", "b", "--dtype", "int8", "--json"],
        ["sglang-to-vllm", "a", "b", "--no-such-option", "--json"],
        ["sglang-to-gguf", "a", "b", "--json"],
        ["sglang-to-vllm", "a", "b", "--json"],
        ["explain", "no-such-code", "--json"],
        ["serve", "a", "--engine", "trt", "--json"],
        ["inspect", "", "--json"],
        ["inspect", "a", "--target", "", "--json"],
        ["inspect", "a", "--target=", "--json"],
        ["inspect", "~nosuchuser/a", "--json"],
        ["inspect", "a" * 300, "--json"],
        ["auto-to-vllm", "a", "a" * 300, "--json"],
        ["inspect", b"\xff", "--json"],
    ],
)
def test_wrong_usage_is_one_json_object_too(tmp_path, arguments):
    script = "from eagle3_interop.convert.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    failure = json.loads(done.stdout)
    assert (failure["status"], failure["exit_code"], done.returncode) == ("failed", 2, 2)
    assert failure["message"].rstrip(".") in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--version"], 0), (["--help"], 0), (["inspect", "/none"], 2)]
)
def test_the_entry_point_exits_as_its_commands_do(arguments, code):
    script = "from eagle3_interop.convert.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True)
    assert done.returncode == code


def test_a_conversion_exits_with_0_and_prints_one_json_object(tmp_path):
    source = drafts.speculators(tmp_path / "source")
    result = run("speculators-to-sglang", source, tmp_path / "out", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report) == {"status", "source", "output", "draft", "trainer", "findings", "tensors"}
    assert report["status"] == "ok"
    assert report["source"] == {"layout": "speculators", "path": str(source)}
    assert report["output"] == {"layout": "sglang", "path": str(tmp_path / "out")}
    assert set(report["findings"][0]) == {"code", "severity", "where", "message", "fix"}
    assert set(report["tensors"][0]) == {"source", "output", "op"}


def test_a_refusal_exits_with_3_and_writes_nothing(tmp_path):
    source = drafts.speculators(tmp_path / "source")
    result = run("sglang-to-vllm", source, tmp_path / "out", "--json")
    assert result.exit_code == 3
    report = json.loads(result.stdout)
    assert report["status"] == "refused"
    assert report["findings"][0]["code"] == "wrong-layout"
    assert "speculators-to-" in report["findings"][0]["fix"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--taps", "embed,x"),
        ("--set", "nonsense"),
        ("--set", "no.such.key=1"),
        ("--set", "residual=sideways"),
        ("--set", "rope.theta=" + "[" * 100_000),
        ("--set", "rope.parameters=" + "[" * 900 + "]" * 900),
        ("--set", "rope.theta=NaN"),
        ("--set", "rope.theta=1e999"),
        ("--set", "rope.theta=" + "9" * 400),
        ("--set", r'layers.mlp.activation="\ud800"'),
        ("--taps", "[1,3"),
        ("--taps", "[]"),
        ("--taps", "9" * 5000),
        ("--max-shard-size", "huge"),
        ("--max-shard-size", "0"),
        ("--max-shard-size", "0.5B"),
        ("--max-shard-size", "9" * 400),
        ("--max-shard-size", "9" * 300 + "TB"),
        ("--dtype", "int8"),
        ("--no-such-option",),
    ],
)
def test_wrong_usage_exits_with_2(tmp_path, arguments):
    source = drafts.speculators(tmp_path / "source")
    result = run("auto-to-vllm", source, tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert len(result.stderr) < 3000
    assert not (tmp_path / "out").exists()


def test_an_existing_output_is_refused_without_overwrite(tmp_path):
    source = drafts.speculators(tmp_path / "source")
    assert run("auto-to-vllm", source, tmp_path / "out").exit_code == 0
    assert run("auto-to-vllm", source, tmp_path / "out").exit_code == 2
    assert run("auto-to-vllm", source, tmp_path / "out", "--overwrite").exit_code == 0


def test_a_missing_source_exits_with_2_and_one_line(tmp_path):
    result = run("auto-to-vllm", tmp_path / "absent", tmp_path / "out")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


def test_a_dry_run_reports_everything_and_writes_nothing(tmp_path):
    source = drafts.speculators(tmp_path / "source")
    result = run("auto-to-vllm", source, tmp_path / "out", "--dry-run", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["tensors"]
    assert not (tmp_path / "out").exists()


def test_quiet_prints_nothing_when_all_is_well(tmp_path):
    source = drafts.speculators(tmp_path / "source")
    result = run("auto-to-vllm", source, tmp_path / "out", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_a_conversion_for_sglang_ends_with_a_launch_command_whose_counts_agree(tmp_path):
    source = drafts.speculators(tmp_path / "source")
    result = run("auto-to-sglang", source, tmp_path / "out")
    line = result.stdout.splitlines()[-1]
    assert "--speculative-algorithm EAGLE3 " in line
    assert (
        "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
        in line
    )


def test_a_conversion_that_needs_the_plugin_says_so_in_the_launch_command(tmp_path):
    source = drafts.speculators(tmp_path / "source", norm_before_residual=True)
    result = run("auto-to-sglang", source, tmp_path / "out")
    assert "needs-sglang-plugin" in result.stderr
    command = result.stdout.splitlines()[-1].strip()
    assert command.startswith("SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3_interop.sglang_plugin python")


SLIDING = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "sliding_window": 16,
}
MIMO = {"model_type": "mimo", "architectures": ["MiMoForCausalLM"]}


def last_line(source, output, *arguments):
    result = run(f"auto-to-{output.name}", source, output, *arguments)
    assert result.exit_code == 0
    return result.stdout.splitlines()[-1]


@pytest.mark.parametrize("changes", [SLIDING, MIMO])
def test_no_launch_command_ends_a_conversion_whose_output_the_engine_does_not_run(
    tmp_path, changes
):
    source = drafts.speculators(tmp_path / "source")
    target = drafts.target(tmp_path / "target", **changes)
    line = last_line(source, tmp_path / "speculators", "--target", target)
    assert line.startswith("vllm does not run this output as it is: ")


def test_an_output_that_no_conversion_makes_vllm_run_is_said_to_have_no_way_out(tmp_path):
    layers = {**drafts.LAYER_CONFIG, "hidden_act": "gelu"}
    source = drafts.speculators(tmp_path / "source", transformer_layer_config=layers)
    line = last_line(source, tmp_path / "speculators")
    assert line.startswith("vllm does not run this output as it is: ")
    assert line.endswith("No conversion makes vLLM run it: eagle3-convert auto-to-vllm says why.")


def test_a_dry_run_has_no_output_to_look_at(tmp_path):
    source = drafts.speculators(tmp_path / "source")
    target = drafts.target(tmp_path / "target", **SLIDING)
    arguments = ("--target", target, "--dry-run")
    assert "vllm serve" in last_line(source, tmp_path / "speculators", *arguments)


def test_a_draft_that_cannot_follow_its_target_ends_without_a_launch_command(tmp_path):
    rope = {"rope_type": "dynamic", "factor": 1.5, "rope_theta": 10000.0}
    source = drafts.sglang(tmp_path / "source", rope_scaling=rope)
    target = drafts.target(tmp_path / "target", max_position_embeddings=8192)
    line = last_line(source, tmp_path / "sglang", "--target", target)
    assert line.startswith("sglang does not run this output as it is: 8192 positions")


def test_an_output_whose_name_begins_with_a_tilde_lies_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    line = last_line(drafts.speculators(tmp_path / "source"), Path("~/vllm"))
    assert f'"model": "{tmp_path}/vllm"' in line
    assert (tmp_path / "vllm" / "config.json").exists()


def test_diff_exits_with_0_for_one_network_in_two_layouts(tmp_path):
    source = drafts.speculators(tmp_path / "source")
    run("auto-to-sglang", source, tmp_path / "out")
    assert run("diff", source, tmp_path / "out").exit_code == 0


def test_diff_exits_with_1_and_names_what_differs(tmp_path):
    one = drafts.speculators(tmp_path / "one")
    other = drafts.speculators(tmp_path / "other", norm_before_residual=True)
    result = run("diff", one, other, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["differences"] == {"residual": ["raw", "normed"]}


def test_diff_does_not_mind_how_many_positions_are_declared(tmp_path):
    source = drafts.speculators(tmp_path / "source")
    run("auto-to-sglang", source, tmp_path / "out", "--target", drafts.target(tmp_path / "target"))
    assert drafts.load(tmp_path / "out")[0]["max_position_embeddings"] == 4096
    assert run("diff", source, tmp_path / "out").exit_code == 0
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    one = drafts.vllm(tmp_path / "one", rope_scaling=dynamic)
    other = drafts.vllm(tmp_path / "other", rope_scaling=dynamic, max_position_embeddings=4096)
    assert run("diff", one, other).exit_code == 1


def test_diff_says_what_it_guessed(tmp_path):
    model = drafts.target(
        tmp_path / "target", model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"]
    )
    source = drafts.speculators(tmp_path / "source")
    run("auto-to-sglang", source, tmp_path / "out", "--target", model)
    assert run("diff", source, tmp_path / "out", "--target", model).exit_code == 0
    result = run("diff", source, tmp_path / "out", "--json")
    assert result.exit_code == 1
    assert "plain-rule" in [item["code"] for item in json.loads(result.stdout)["findings"]]


def test_a_dry_run_prints_no_command_for_what_an_engine_cannot_run(tmp_path):
    model = drafts.target(tmp_path / "target", model_type="mimo", architectures=["MiMoForCausalLM"])
    source = drafts.speculators(tmp_path / "source")
    result = run("auto-to-speculators", source, tmp_path / "out", "--target", model, "--dry-run")
    assert "vllm does not run this output as it is" in result.stdout
    assert "serve with" not in result.stdout


def test_diff_names_a_tensor_that_differs(tmp_path):
    one = drafts.speculators(tmp_path / "one")
    tensors = drafts.speculators_tensors()
    tensors["norm.weight"] = tensors["norm.weight"] * 2
    other = drafts.speculators(tmp_path / "other", tensors)
    result = run("diff", one, other, "--json")
    assert json.loads(result.stdout)["tensors"] == {"norm.weight": "different"}


def test_inspect_says_what_another_engine_would_compute_from_the_same_folder(tmp_path):
    source = drafts.sglang(tmp_path / "source")
    result = run("inspect", source, "--json")
    vllm = json.loads(result.stdout)["engines"]["vllm"]
    assert vllm["as_is"] == "different"
    assert vllm["differences"]["taps"] == [[1, 3, 5], [0, 2, 4]]


@pytest.mark.parametrize(
    ("make", "engine"), [(drafts.sglang, "vllm"), (drafts.speculators, "sglang")]
)
@pytest.mark.parametrize("check", [(), ("--check", "anything")])
def test_no_command_serves_a_folder_that_the_engine_reads_otherwise(tmp_path, make, engine, check):
    result = run("serve", make(tmp_path / "source"), "--engine", engine, "--json", *check)
    assert result.exit_code == 3
    assert [item["code"] for item in json.loads(result.stdout)["findings"]] == ["serve-folder"]


@pytest.mark.parametrize(
    ("make", "engine"), [(drafts.sglang, "sglang"), (drafts.speculators, "vllm")]
)
def test_a_folder_is_served_by_the_engine_that_reads_it(tmp_path, make, engine):
    assert run("serve", make(tmp_path / "source"), "--engine", engine).exit_code == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"max_position_embeddings": 4096},
        {"model_max_length": 8192},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ],
)
def test_a_printed_command_that_does_not_fit_the_target_is_wrong_as_its_check_is(tmp_path, changes):
    target = drafts.target(tmp_path / "target", **{"max_position_embeddings": 2048, **changes})
    arguments = ("serve", drafts.sglang(tmp_path / "draft"), "--engine", "sglang", "--json")
    result = run(*arguments, "--target", target)
    report = json.loads(result.stdout)
    assert (result.exit_code, report["status"]) == (1, "wrong")
    checked = run(*arguments, "--target", target, "--check", report["command"])
    assert (checked.exit_code, json.loads(checked.stdout)) == (1, report)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_check_says_that_the_command_names_another_draft_or_target_than_the_ones_given(
    tmp_path, engine
):
    make = drafts.vllm if engine == "vllm" else drafts.sglang
    draft = make(tmp_path / "draft")
    target = drafts.target(tmp_path / "target", max_position_embeddings=2048)
    given = ("serve", draft, "--target", target, "--engine", engine)
    line = json.loads(run(*given, "--json").stdout)["command"]

    def checked(command):
        result = run(*given, "--check", command)
        return result.exit_code, result.stdout, re.findall(r"serve-other-\w+", result.stderr)

    assert checked(line) == (0, "the command fits this draft\n", [])
    warned = "the command fits this draft, but for the warnings\n"
    for name, code in ((draft, "serve-other-draft"), (target, "serve-other-target")):
        assert checked(line.replace(str(name), f"{name}-2")) == (0, warned, [code])


def test_a_wrong_command_is_answered_by_a_right_one_only(tmp_path):
    draft = drafts.sglang(tmp_path / "draft")
    wrong = ("serve", draft, "--engine", "sglang", "--check", "python -m sglang.launch_server")
    long = drafts.target(tmp_path / "long", max_position_embeddings=4096)
    assert "--speculative-draft-model-path" in run(*wrong).stdout
    assert run(*wrong, "--target", long).stdout == ""


@pytest.mark.parametrize("count", ["0", "-1", "1025", "9" * 30, "9" * 5000])
@pytest.mark.parametrize("option", ["--num-draft-tokens", "--topk"])
def test_a_number_of_tokens_that_no_engine_drafts_is_wrong_usage(tmp_path, option, count):
    source = drafts.sglang(tmp_path / "source")
    result = run("serve", source, "--engine", "sglang", option, count)
    assert result.exit_code == 2


def test_taps_are_taken_as_they_are_printed(tmp_path):
    source = drafts.speculators(tmp_path / "source")
    for number, taps in enumerate(("1,3,5", "[1,3,5]", " [1, 3, 5] ", "[1, 3,5]")):
        report = run("auto-to-vllm", source, tmp_path / f"{number}", "--taps", taps, "--json")
        assert json.loads(report.stdout)["draft"]["taps"] == [1, 3, 5]


@pytest.mark.parametrize(
    ("short", "long"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")]
)
def test_a_dtype_has_a_short_name(tmp_path, short, long):
    source = drafts.speculators(tmp_path / "source")
    for name in (short, long):
        assert run("auto-to-vllm", source, tmp_path / name, "--dtype", name).exit_code == 0
    one, other = (tmp_path / name / "model.safetensors" for name in (short, long))
    assert one.read_bytes() == other.read_bytes()
    assert drafts.load(tmp_path / short)[0]["dtype"] == long


def test_quiet_leaves_what_was_asked_for(tmp_path):
    source = drafts.sglang(tmp_path / "source")
    for words in (
        ("inspect", source),
        ("diff", source, source),
        ("explain", "recognised"),
        ("serve", source, "--engine", "sglang"),
    ):
        loud, quiet = run(*words), run(*words, "--quiet")
        assert (quiet.stdout, quiet.stderr) == (loud.stdout, "")
        assert quiet.stdout


def test_a_source_may_be_given_by_its_url(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    drafts.speculators(tmp_path / "org" / "draft")
    for word in ("https://huggingface.co/org/draft", "hf://org/draft"):
        report = json.loads(run("inspect", word, "--json").stdout)
        assert report["source"]["path"] == "org/draft"


def test_inspect_says_which_engines_a_conversion_exists_for(tmp_path):
    source = drafts.speculators(tmp_path / "source", norm_before_residual=True)
    engines = json.loads(run("inspect", source, "--json").stdout)["engines"]
    assert {name: facts["convertible"] for name, facts in engines.items()} == {
        "speculators": "stock",
        "sglang": "plugin",
        "vllm": "stock",
    }


@pytest.mark.parametrize("code", sorted(CODES))
def test_explain_knows_every_code(code):
    result = run("explain", code)
    assert result.exit_code == 0
    assert CODES[code].meaning in result.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_output_fits_the_encoding_of_stdout(tmp_path, encoding, form):
    source = drafts.speculators(tmp_path / "\N{EAGLE}")
    script = "from eagle3_interop.convert.cli import main; main()"
    arguments = [sys.executable, "-c", script, "inspect", source, *form]
    done = subprocess.run(
        arguments, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}
    )
    assert done.returncode == 0, done.stderr
    if form:
        assert json.loads(done.stdout.decode(encoding))["source"]["path"] == str(source)


def test_explain_suggests_a_code_for_a_misspelled_one():
    result = run("explain", "residual-norm")
    assert result.exit_code == 2
    assert "residual-normed" in result.stderr
