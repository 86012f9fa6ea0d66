"""The walk-through of the documentation, run as written."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
PAGE = (ROOT / "docs" / "walkthrough.md").read_text()
FEW = 8
BASH = shutil.which("bash") or "/bin/bash"


def steps():
    """Each command of the page, and what it says that it prints."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            yield command, shown


def looks_like(shown):
    """What is shown as a pattern: a line of dots is any number of lines, dots at an end any rest of it."""
    lines = ["*" if line == "..." else fnmatch_of(line) for line in shown.splitlines()]
    return "\n".join(lines).replace("*\n", "*").replace("\n*", "*")


def fnmatch_of(line):
    plain = "".join(f"[{x}]" if x in "*?[" else x for x in line.removesuffix(" ..."))
    return plain + ("*" if line.endswith(" ...") else "")


@pytest.fixture
def candidates(tmp_path):
    """Two drafts that speculators trained and saved, their target, and a few prompts."""
    shutil.copytree(DATA / "drafts" / "plain", tmp_path / "candidate-a")
    shutil.copytree(DATA / "drafts" / "norm_before_residual", tmp_path / "candidate-b")
    (tmp_path / "target").symlink_to(DATA / "target")
    lines = (DATA / "prompts.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "prompts.jsonl").write_text("".join(lines[:FEW]))
    return tmp_path


def test_every_command_prints_what_the_page_shows(candidates):
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "COLUMNS": "110", "NO_COLOR": "1"}
    for command, shown in steps():
        done = subprocess.run(
            [BASH, "-c", command], cwd=candidates, env=environment, capture_output=True, text=True
        )
        assert (command, done.returncode, done.stderr if done.returncode else "") == (
            command,
            0,
            "",
        )
        printed = "\n".join(line.rstrip() for line in done.stdout.splitlines())
        pattern = looks_like(shown)
        assert fnmatch.fnmatchcase(printed, pattern), f"$ {command}\n{printed}"


def test_the_page_shows_commands():
    assert len(list(steps())) > 6
