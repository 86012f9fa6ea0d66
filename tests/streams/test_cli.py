"""The command: its options, and that wrong usage costs no import of torch."""

import json
import subprocess
import sys

import pytest
from conftest import TARGET
from typer.testing import CliRunner

from eagle3_interop.convert import cli as convert_cli
from eagle3_interop.recipes.publish import push_cli
from eagle3_interop.validators import record_cli, validate_cli

OPTIONS = {
    "--out", "--prompts", "--max-new-tokens", "--lookahead", "--taps", "--device", "--dtype", "--seed", "--engine",
    "--engine-python", "--engine-arg", "--server", "--last-state", "--no-last-state", "--json", "--trust-remote-code",
    "--quiet", "--version", "--help", "--install-completion", "--show-completion",
}  # fmt: skip


def run(*words):
    return CliRunner().invoke(record_cli.app, list(words), env={"COLUMNS": "200"})


def test_the_options_are_frozen():
    words = run("--help").stdout.replace("|", " ").split()
    assert {word.strip(",.") for word in words if word.startswith("--")} == OPTIONS


@pytest.mark.parametrize(
    "words", [["--help"], ["x/y", "--out", "o", "--engine", "vllm", "--server", "u"]]
)
def test_neither_help_nor_wrong_usage_imports_torch(words):
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from eagle3_interop.validators.record_cli import app\n"
        f"print(CliRunner().invoke(app, {words!r}).exit_code)\n"
        "print(*({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    code, imported = done.stdout.split("\n")[:2]
    assert code == ("0" if "--help" in words else "2")
    assert imported == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "vllm", "--server", "http://x"], "not both"),
        (["--engine-python", "python3"], "--engine starts"),
        (["--no-last-state"], "--engine sglang"),
        (["--taps", "1,x"], "--taps '1,x'"),
        (["--device", "tpu"], "--device tpu"),
        (["--lookahead", "0"], "lookahead"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(words, said, tmp_path):
    done = run(str(TARGET), "--out", str(tmp_path / "s"), *words)
    assert done.exit_code == 2
    assert said in done.output
    assert not (tmp_path / "s").exists()


def test_a_draft_is_no_target(tmp_path):
    folder = TARGET.parent / "drafts" / "plain"
    done = run(str(folder), "--out", str(tmp_path / "s"), "--json", "-")
    assert done.exit_code == 3
    assert json.loads(done.stdout)["findings"][0]["code"] == "not-a-target"


def test_a_push_says_that_its_figures_rest_on_recordings(recorded, tmp_path):
    """The report of a validation on recordings passes the gate of a push, whose card names them."""
    out, report = tmp_path / "out", tmp_path / "report.json"
    source = str(TARGET.parent / "drafts" / "plain")
    target = ["--target", str(TARGET)]
    words = ["speculators-to-vllm", source, str(out), *target, "--target-name", "org/target"]
    assert CliRunner().invoke(convert_cli.app, words).exit_code == 0
    words = [
        str(out),
        *target,
        "--streams",
        str(recorded),
        "--against",
        source,
        "--json",
        str(report),
    ]
    assert CliRunner().invoke(validate_cli.app, words).exit_code == 0
    words = [str(out), "--repo-id", "org/x", "--report", str(report), "--dry-run"]
    done = CliRunner().invoke(push_cli.app, words)
    assert done.exit_code == 0, done.output
    line = next(x for x in done.output.splitlines() if x.startswith("eagle3-validate org/x"))
    assert f"--streams {recorded.name}" in line
    assert "--prompts" not in line
