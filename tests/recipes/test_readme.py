"""The recipes of recipes/README.md and recipes/push_to_hub.py, run as they are written."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from typer import Typer
from typer.testing import CliRunner

from eagle3_interop.schemas.report import Report

ROOT = Path(__file__).parents[2]
README = (ROOT / "recipes" / "README.md").read_text()
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE))
VARIABLES = re.search(r"```bash\n(.*?)```", README, re.DOTALL)[1]


def blocks(section, language="bash"):
    return re.findall(rf"```{language}\n(.*?)```", SECTIONS[section], re.DOTALL)


@pytest.fixture
def workshop(tmp_path):
    """An empty folder with the repository's data in its place, this project's commands and its Python."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "data").symlink_to(ROOT / "tests" / "data")
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (commands / "python").chmod(0o755)
    for name, target in SCRIPTS.items():
        module, _, function = target.partition(":")
        code = f"from {module} import {function}\n{function}()\n"
        (commands / name).write_text(f"#!{sys.executable}\n{code}")
        (commands / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def bash(workshop):
    """Run a script there; the exit code is for the caller to judge."""

    def run(script, **variables):
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
            "PATH": f"{workshop / 'bin'}:{os.environ['PATH']}",
            "HF_HOME": str(workshop / "hf-home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        return subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", script],
            cwd=workshop,
            env=environment,
            capture_output=True,
            text=True,
        )

    return run


def succeeded(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_recipe_is_run_by_a_test():
    tested = Path(__file__).read_text()
    with_commands = [name for name in SECTIONS if blocks(name) or blocks(name, "yaml")]
    assert [name for name in with_commands if f'"{name}"' not in tested] == []


def test_convert_for_an_engine(bash):
    said = succeeded(
        bash(VARIABLES + "".join(blocks("Convert for SGLang") + blocks("Convert for vLLM")))
    )
    launch = re.search(r"^python -m sglang\.launch_server .*draft-sglang.*$", said, re.MULTILINE)[0]
    assert "--speculative-num-steps 4" in launch
    assert "--speculative-num-draft-tokens 5" in launch
    assert re.search(r'^vllm serve .*"num_speculative_tokens": 4}', said, re.MULTILINE)


def test_one_folder_for_all_three(bash):
    said = succeeded(bash(VARIABLES + "".join(blocks("One folder for all three"))))
    for engine in ("speculators", "sglang", "vllm"):
        assert re.search(rf"^{engine} +runs it +runs$", said, re.MULTILINE), said


def test_validate_in_ci_and_publish(hub, bash, server):
    (text,) = blocks("Validate in CI", "yaml")
    workflow = yaml.safe_load(text)
    (job,) = workflow["jobs"].values()
    steps = {step["name"]: step for step in job["steps"] if "name" in step}
    assert list(steps) == ["Convert", "Validate", "Publish"]
    for name in ("Convert", "Validate"):
        succeeded(bash(steps[name]["run"], **workflow["env"]))
    card = succeeded(bash("".join(blocks("Publish"))))
    assert "vllm serve org/target" in card

    token, publish = os.environ["HF_TOKEN"], steps["Publish"]
    assert publish["env"] == {"HF_TOKEN": "${{ secrets.HF_TOKEN }}"}
    online = {"HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0", "HF_TOKEN": token}
    too_high = publish["run"].replace("--min-accept-length 1.5", "--min-accept-length 9.5")
    assert bash(too_high, **workflow["env"], **online).returncode == 1
    assert hub.repos == {}
    done = bash(publish["run"], **workflow["env"], **online)
    succeeded(done)
    assert token not in done.stdout + done.stderr
    assert "model.safetensors" in hub.files("me/draft-vllm")
    assert b"base_model: org/target" in hub.files("me/draft-vllm")["README.md"]


def test_measure_on_benchmarks_by_kind(bash, workshop):
    (workshop / "recipes").symlink_to(ROOT / "recipes")
    (block,) = blocks("Measure on benchmarks, by kind")
    said = succeeded(bash(VARIABLES + block))
    assert "by category" in said
    kinds = json.loads((workshop / "four.json").read_text())["breakdown"]["categories"]
    assert [row["category"] for row in kinds] == ["writing", "math", "humaneval", "gsm8k"]
    assert "against" in (workshop / "both.md").read_text()


def test_diagnose_begins_with_the_command_and_the_folder(bash):
    done = bash(VARIABLES + blocks("Diagnose a slow draft")[0])
    succeeded(done)
    assert "serve-algorithm" in done.stdout + done.stderr


def test_diagnose_asks_the_weights(bash, workshop):
    done = bash(VARIABLES + blocks("Diagnose a slow draft")[1])
    assert done.returncode in (0, 1), done.stderr
    verdict = json.loads((workshop / "diagnosis.json").read_text())["verdict"]
    assert verdict == ("better-wiring", "configured-is-best")[done.returncode == 0]


@pytest.fixture
def recipe(workshop, monkeypatch):
    """recipes/push_to_hub.py as a module, in the workshop."""
    monkeypatch.chdir(workshop)
    (workshop / "prompts.txt").write_text("import os\n")
    spec = importlib.util.spec_from_file_location("_chain", ROOT / "recipes" / "push_to_hub.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chain(recipe, *options):
    app = Typer()
    app.command()(recipe.chain)
    target = ["--target", "tests/data/target", "--target-name", "org/target"]
    words = ["tests/data/drafts/plain", *target, "--prompts", "prompts.txt", "--to", "vllm"]
    return CliRunner().invoke(app, [*words, *options], catch_exceptions=False)


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_the_chain_in_one_file(hub, recipe):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    result = chain(recipe, "--repo-id", "me/draft")
    assert result.exit_code == 0, result.output
    assert "published: " in result.stdout
    assert "model.safetensors" in hub.files("me/draft")


def test_the_chain_ends_at_a_closed_gate(hub, recipe, monkeypatch):
    monkeypatch.setattr(recipe, "validate", lambda *_: Report(verdict="fail"))
    result = chain(recipe, "--repo-id", "me/draft")
    assert result.exit_code == 1
    assert "not published: the report's verdict is 'fail'" in result.stderr
    assert hub.log == []
