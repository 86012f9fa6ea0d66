"""What every command does with what nobody thought of, and with streams that take nothing."""

import io
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import drafts
import pytest
import typer

from eagle3_interop.convert import cli, console
from eagle3_interop.convert.console import Console, colours
from eagle3_interop.recipes.publish import push_cli
from eagle3_interop.schemas.findings import Unavailable
from eagle3_interop.validators import diagnose_cli, report_cli, validate_cli

RUN = "from eagle3_interop.convert.cli import main; main()"
COMMANDS = [
    (cli, ["inspect", "draft", "--json"]),
    (cli, ["auto-to-vllm", "draft", "output", "--json"]),
    (push_cli, ["draft", "--repo-id", "me/draft", "--report", "report", "--json"]),
    (validate_cli, ["draft", "--target", "target", "--json", "-"]),
    (diagnose_cli, ["draft", "--target", "target", "--json", "-"]),
    (report_cli, ["report.json", "--json", "-"]),
]
FAILURES = [
    (TypeError("'NoneType' object is not iterable\nand more"), 4, "unforeseen: TypeError: "),
    (RecursionError("maximum recursion depth exceeded"), 4, "unforeseen: RecursionError"),
    (MemoryError(), 4, "out of memory"),
    (OSError(5, "Input/output error", "model.safetensors"), 4, "model.safetensors: Input/output"),
    (KeyboardInterrupt(), 130, "interrupted"),
]


def run(words, **options):
    command = [sys.executable, "-c", RUN, *words]
    return subprocess.run(command, text=True, check=False, stderr=subprocess.PIPE, **options)


def fails_with(monkeypatch, error, words):
    def fail(*_arguments):
        raise error

    monkeypatch.setattr(Console, "outcomes", fail)
    monkeypatch.setattr(sys, "argv", ["eagle3", *words])


@pytest.mark.parametrize(("error", "code", "words"), FAILURES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(("command", "arguments"), COMMANDS)
def test_what_nobody_thought_of_is_one_sentence_and_one_json_object(
    monkeypatch, capsys, command, arguments, error, code, words
):
    fails_with(monkeypatch, error, arguments)
    with pytest.raises(SystemExit) as left:
        command.main()
    said = capsys.readouterr()
    assert left.value.code == code
    assert said.err.startswith(f"error: {words}")
    assert said.err.count("\n") == 1
    failure = json.loads(said.out)
    assert (failure["status"], failure["exit_code"]) == ("failed", code)


def test_a_fault_of_the_tool_says_how_to_report_it_and_shows_its_traceback_on_request(
    monkeypatch, capsys
):
    fails_with(monkeypatch, TypeError("no"), ["inspect", "draft"])
    for wish, shown in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("EAGLE3_TRACEBACK", wish)
        with pytest.raises(SystemExit):
            cli.main()
        said = capsys.readouterr().err
        assert "please report this line and the command" in said
        assert ("Traceback (most recent call last)" in said) is shown


UNWRITABLE = [["--help"], ["-h"], ["--version"], ["inspect", "draft"], ["inspect", "draft", "--json"],
              ["explain", "recognised"], ["diff", "draft", "draft"], ["auto-to-vllm", "draft", "out"],
              ["inspect", "absent", "--json"]]  # fmt: skip


@pytest.mark.parametrize("words", UNWRITABLE, ids=" ".join)
@pytest.mark.parametrize("stdout", ["full", "left"])
def test_a_stdout_that_takes_nothing_is_the_outside_worlds_fault(tmp_path, words, stdout):
    drafts.speculators(tmp_path / "draft")
    if stdout == "full":
        place = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, place = os.pipe()
        os.close(reader)
    done = run(words, cwd=tmp_path, stdout=place)
    os.close(place)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    wanted = "No space left on device" if stdout == "full" else "Broken pipe"
    assert done.stderr.splitlines()[-1].endswith(wanted)


@pytest.mark.parametrize(
    ("words", "code"), [(["inspect", "absent"], 2), (["--no-such-option"], 2), (["--version"], 0)]
)
def test_where_remarks_cannot_be_written_the_exit_code_still_speaks(tmp_path, words, code):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", RUN, *words]
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == code


def test_what_rich_lays_out_fails_like_any_other_text(monkeypatch):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(Unavailable, match="stdout cannot be written"):
            Console().show("a table")


class Terminal:
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environment", "on_terminal", "in_file"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"CLICOLOR": "0"}, False, False),
        ({"CLICOLOR_FORCE": "1"}, True, True),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_colours_are_as_the_environment_wants_them(
    monkeypatch, tmp_path, environment, on_terminal, in_file
):
    for name in ("NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    assert colours(Terminal()) is on_terminal
    with (tmp_path / "file").open("w") as file:
        assert colours(file) is in_file


@pytest.mark.parametrize(("wish", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
@pytest.mark.parametrize(
    "words", [["inspect", "draft"], ["inspect", "absent"], ["--no-such-option"]]
)
def test_no_color_is_heeded_on_a_terminal(tmp_path, wish, coloured, words):
    drafts.speculators(tmp_path / "draft")
    ours, theirs = pty.openpty()
    kept = {key: value for key, value in os.environ.items() if "COLOR" not in key}
    subprocess.run(
        [sys.executable, "-c", RUN, *words],
        cwd=tmp_path, stdout=theirs, stderr=theirs, stdin=theirs, env=kept | {"TERM": "xterm"} | wish,
        check=False,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert said
    assert (b"\x1b[" in said) is (coloured and words[0] == "inspect")


def test_without_a_terminal_a_line_comes_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(console, "EVERY", 0.05)
    with Console().progress("generating", 4000) as progress:
        progress(1000)
        time.sleep(0.3)
    with Console().progress("loading the target", 0):
        time.sleep(0.2)
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert lines[0] == "generating: 1,000 of 4,000 tokens, 0 s"
    assert lines[-1] == "loading the target: 0 s"
    assert said.out == ""


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", [36, 60, 80, 109, 110, 200])
def test_a_bar_moves_and_loses_no_figure_on_a_narrow_terminal(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Screen())
    with Console().progress("the engine starts and generates", 123456) as progress:
        time.sleep(0.25)
        began = sys.stderr.getvalue()
        progress(12345)
        time.sleep(0.25)
    said = sys.stderr.getvalue()
    assert "12345/123456" in said
    assert "…" not in said
    spinning = set(began) & set("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
    assert len(spinning) > 1


@pytest.mark.parametrize("form", [{"quiet": True}, {"as_json": True}])
def test_nobody_is_told_of_progress_who_did_not_want_to_hear_it(monkeypatch, capsys, form):
    monkeypatch.setattr(console, "EVERY", 0.01)
    with Console(**form).progress("generating", 4000) as progress:
        assert progress is None
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [cli, push_cli, validate_cli, diagnose_cli, report_cli])
def test_h_is_help_and_completion_can_be_installed(command):
    from typer.testing import CliRunner

    asked = CliRunner().invoke(command.app, ["-h"])
    assert asked.exit_code == 0
    assert asked.stdout == CliRunner().invoke(command.app, ["--help"]).stdout
    assert "--install-completion" in asked.stdout


@pytest.mark.parametrize("name", ["inspect", "diff", "explain", "serve", "auto-to-vllm"])
def test_h_is_help_of_every_command(name):
    from typer.testing import CliRunner

    asked = CliRunner().invoke(cli.app, [name, "-h"])
    assert asked.exit_code == 0
    assert asked.stdout == CliRunner().invoke(cli.app, [name, "--help"]).stdout


def test_a_shell_completes_the_commands():
    words = {"_EAGLE3_COMPLETE": "complete_bash", "COMP_WORDS": "eagle3 ins", "COMP_CWORD": "1"}
    script = "import sys; sys.argv[0] = 'eagle3'; " + RUN
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **words}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, ["inspect"])


def test_one_json_object_is_the_most_that_is_printed(capsys):
    talker = Console(as_json=True)
    talker.data({"status": "ok"})
    talker.fail("too late", 4)
    assert json.loads(capsys.readouterr().out) == {"status": "ok"}


def test_a_command_that_exits_says_its_own_code(monkeypatch):
    app = typer.Typer()

    @app.command()
    def leave() -> None:
        raise typer.Exit(3)

    monkeypatch.setattr(sys, "argv", ["leave"])
    with pytest.raises(SystemExit) as left:
        console.launch(app)
    assert left.value.code == 3
