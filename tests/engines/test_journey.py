"""The user's journey in the real engines: convert a trained draft, start an engine, compare, judge."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build_env
import pytest
import run_engine
import trained
from typer.testing import CliRunner

from eagle3_interop.convert import cli as convert_cli
from eagle3_interop.validators import validate_cli

pytestmark = pytest.mark.engine

PROMPTS = trained.DATA / "prompts.jsonl"
ON_A_CPU = {
    "vllm": ["max-model-len=512", "enforce-eager"],
    "sglang": [
        "device=cpu",
        "attention-backend=torch_native",
        "prefill-attention-backend=intel_amx",
        "decode-attention-backend=intel_amx",
        "disable-cuda-graph",
        "mem-fraction-static=0.1",
        "max-total-tokens=8192",
        "max-running-requests=8",
        "context-length=512",
    ],
}
"""What the engines need here, as a user would give it."""

WAIT_S = 300.0


def variables(engine: str) -> dict[str, str]:
    """The environment of an engine on this kind of machine; SGLang's kernels are stand-ins."""
    found = run_engine.OFFLINE | (run_engine.VLLM if engine == "vllm" else run_engine.SGLANG)
    return {k: v for k, v in found.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}


@pytest.fixture
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine of a test, with its variables set for the processes that the test starts."""
    engine: str = request.param
    for name, value in variables(engine).items():
        monkeypatch.setenv(name, value)
    return engine


def converted(name: str, destination: str, folder: Path) -> Path:
    """A draft that speculators wrote, through the user's own command."""
    output = folder / f"{name}-{destination}"
    options = ["--target", str(trained.TARGET), "--target-name", "org/target"]
    command = [f"speculators-to-{destination}", str(trained.source(name)), str(output), *options]
    result = CliRunner().invoke(convert_cli.app, command)
    assert result.exit_code == 0, result.output
    return output


def validated(
    checkpoint: Path,
    *options: str,
    fine: tuple[int, ...] = (0, 1),
    target: Path = trained.TARGET,
) -> tuple[int, Any]:
    """The exit code and the report of ``eagle3-validate``."""
    arguments = ["--target", str(target), "--prompts", str(PROMPTS), "--device", "cpu"]
    arguments += ["--max-new-tokens", str(trained.NEW_TOKENS), "--json", "-", *options]
    arguments += [] if "--batch" in options else ["--no-speed"]
    result = CliRunner().invoke(validate_cli.app, [str(checkpoint), *arguments])
    assert result.exit_code in fine, result.output
    return result.exit_code, json.loads(result.stdout)


def started(engine: str, *more: str) -> list[str]:
    """The options that start an engine here."""
    arguments = [f"--engine-arg={argument}" for argument in ON_A_CPU[engine]]
    return ["--engine", engine, "--engine-python", str(build_env.build(engine)), *arguments, *more]


def runs_it(code: int, report: dict[str, Any]) -> bool:
    """Whether the engine passed, to the last token, and on the target's own text."""
    engine = report["engine"]
    gate = {gate["name"]: gate for gate in report["gates"]}["engine-counters"]
    same = engine["got"] == engine["expected"] and engine["prompts_that_differ"] in (0, None)
    return code == 0 and gate["passed"] and same and not engine["not_the_targets_choice"]


def caught_as(cause: str, code: int, report: dict[str, Any]) -> bool:
    """Whether the engine failed, and the one cause named counts exactly as it did."""
    causes = report["engine"]["causes"]
    return code == 1 and [(x["name"], x["exact"]) for x in causes] == [(cause, True)]


@pytest.mark.parametrize("here", ["vllm"], indirect=True)
def test_the_speed_of_vllm_with_the_draft_and_without(here: str) -> None:
    """The texts are the same, and the measured costs explain the measured speed; times themselves are no test."""
    source = trained.source("plain")
    code, report = validated(source, *started(here), "--batch", "1,4", "--sweep")
    assert code == 0
    speed = report["speed"]
    assert speed["same_texts"] == 1
    assert [tokens for tokens, _ in speed["target_step"]] == [1, 2, 4, 8, 16, 32, 64]
    assert all(seconds > 0 for _, seconds in speed["target_step"])
    (here_,) = [
        row for row in report["sweep"] if row["tree"] is None and row["num_draft_tokens"] == 4
    ]
    assert 0.5 < here_["tokens_per_second"] / speed["with"] < 2
    (best,) = [row for row in report["sweep"] if row["best"]]
    assert best["tree"] is None


@pytest.mark.parametrize("here", ["sglang"], indirect=True)
def test_convert_then_validate_in_sglang(here: str, tmp_path: Path) -> None:
    code, report = validated(converted("plain", "sglang", tmp_path), *started(here))
    assert report["engine"]["got"]["drafts"] == report["acceptance"]["drafts"]
    assert runs_it(code, report), report["engine"]["sentence"]


@pytest.mark.parametrize("here", ["sglang"], indirect=True)
def test_a_tree_with_the_plugin(here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin is switched on by the checkpoint; here it is importable, as after an installation."""
    path = trained.plugin_variables(tmp_path)["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([path, os.environ["PYTHONPATH"]]))
    folder = converted("norm_before_residual", "sglang", tmp_path)
    code, report = validated(folder, *started(here, "--tree", "3,3,8"))
    assert runs_it(code, report), report["engine"]["sentence"]


@pytest.mark.parametrize("here", ["vllm"], indirect=True)
def test_a_folder_of_sglang_given_to_vllm(here: str, tmp_path: Path) -> None:
    """SGLang's ids, which vLLM does not shift: every tap is one layer too low, and that is said."""
    folder = converted("plain", "sglang", tmp_path)
    trained_as = trained.changed(folder, tmp_path / "nested-only", only_nested)
    code, report = validated(trained_as, *started(here))
    engine = report["engine"]
    assert caught_as("taps-lower", code, report), engine["sentence"]
    assert engine["aux_layers"] == [tap - 1 for tap in engine["taps"]]


def only_nested(config: dict[str, Any]) -> None:
    """Leave the ids where SGLang alone reads them rightly."""
    config.pop("eagle_aux_hidden_state_layer_ids", None)


@contextlib.contextmanager
def server(engine: str, checkpoint: Path, log: Path) -> Iterator[str]:
    """A server on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = [f"--{flag}" for flag in ON_A_CPU[engine]]
    command = [*launch(engine, checkpoint), f"--port={port}", "--host=127.0.0.1", *flags]
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            [str(build_env.build(engine)), "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, process, log)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def launch(engine: str, checkpoint: Path) -> list[str]:
    """The launch of a server that drafts four tokens a step."""
    target = str(trained.TARGET)
    if engine == "vllm":
        settings = {"method": "eagle3", "model": str(checkpoint), "num_speculative_tokens": 4}
        command = ["vllm.entrypoints.openai.api_server", f"--model={target}", "--dtype=float32"]
        return [*command, f"--speculative-config={json.dumps(settings)}"]
    return [
        "sglang.launch_server",
        f"--model-path={target}",
        "--dtype=float32",
        "--speculative-algorithm=EAGLE3",
        f"--speculative-draft-model-path={checkpoint}",
        "--speculative-num-steps=4",
        "--speculative-eagle-topk=1",
        "--speculative-num-draft-tokens=5",
        "--skip-server-warmup",
    ]


def wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until it answers."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/health", timeout=5).close()  # noqa: S310
            return
        time.sleep(1)
    pytest.fail(f"no server: {log.read_text(errors='replace')[-4000:]}")


@pytest.mark.parametrize("here", ["sglang", "vllm"], indirect=True)
def test_a_running_server(here: str, tmp_path: Path) -> None:
    """It runs the right folder; held against another checkpoint, the difference shows, and why."""
    folder = converted("plain", here, tmp_path)
    shifted = trained.changed(folder, tmp_path / "shifted", shift)
    with server(here, folder, tmp_path / "log") as url:
        code, report = validated(folder, "--server", url)
        wrong_code, wrong = validated(shifted, "--server", url)
        if here == "vllm":
            with traffic(url):
                _, refusal = validated(folder, "--server", url, fine=(4,))
            assert "other traffic moved the counters" in refusal["message"]
    assert runs_it(code, report), report["engine"]["sentence"]
    assert caught_as("taps-lower", wrong_code, wrong), wrong["engine"]["sentence"]


@contextlib.contextmanager
def traffic(url: str) -> Iterator[None]:
    """Somebody else, who keeps asking a vLLM server."""
    body = {"model": str(trained.TARGET), "prompt": trained.prompts()[0], "max_tokens": 64}
    request = urllib.request.Request(  # noqa: S310
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            urllib.request.urlopen(request, timeout=60).close()  # noqa: S310

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def shift(config: dict[str, Any]) -> None:
    """Every id one higher, wherever it stands."""
    for place in (config, config.get("eagle_config") or {}):
        for key in ("eagle_aux_hidden_state_layer_ids", "layer_ids"):
            if key in place:
                place[key] = [i + 1 for i in place[key]]


@pytest.mark.conformance
@pytest.mark.parametrize("here", ["sglang"], indirect=True)
def test_an_fc_trained_on_the_embedding_and_served_without_it(here: str, tmp_path: Path) -> None:
    """The draft of a Kimi-like target, fc trained on [embedding, 2, 3] and served [2, 3, 5]; then put right."""
    served = trained.MLA / "drafts" / "shifted"

    def put_right(config: dict[str, Any]) -> None:
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 2, 3]

    meant = trained.changed(served, tmp_path / "meant", put_right)
    still_there = f"--engine-arg=speculative-draft-model-path={served}"
    code, report = validated(meant, *started(here, still_there), target=trained.MLA_TARGET)
    assert code == 1
    (cause,) = report["engine"]["causes"]
    assert cause["exact"]
    assert cause["message"] == "feeds each block of fc the next one's tap: [2, 3, 5], not [0, 2, 3]"
    slow = report["engine"]["got"]["accept_length"]
    code, report = validated(meant, *started(here), target=trained.MLA_TARGET)
    assert runs_it(code, report)
    assert report["engine"]["got"]["accept_length"] > slow + 0.3
