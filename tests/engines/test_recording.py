"""Hidden states from the real engines: the counters on them are those of the running target, to the last token."""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build_env
import pytest
import trained
from test_journey import ON_A_CPU, PROMPTS, variables, wait_for
from typer.testing import CliRunner

from eagle3_interop.validators import diagnose_cli, record_cli, validate_cli

pytestmark = pytest.mark.engine

KNOWN = json.loads((trained.DATA / "acceptance.json").read_text())
TREE = {"drafts": 702, "accepted": 1621}
"""SGLang's own counters of the tree 5,4,16 (README.md of this folder)."""

CPU_CONNECTOR = {
    "kv_connector": "CpuConnector",
    "kv_connector_module_path": "cpu_connector",
    "kv_role": "kv_producer",
}


@pytest.fixture
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine of a test, with its variables set for the processes that the test starts."""
    engine: str = request.param
    for name, value in variables(engine).items():
        monkeypatch.setenv(name, value)
    return engine


def invoked(app: Any, *words: str) -> Any:
    """The JSON of a command that succeeded."""
    result = CliRunner().invoke(app, [*words, "--json", "-"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def recorded(out: Path, *words: str) -> Any:
    """The manifest of a recording of the tiny target."""
    given = [str(trained.TARGET), "--out", str(out), "--prompts", str(PROMPTS)]
    length = ["--max-new-tokens", str(trained.NEW_TOKENS)]
    return invoked(record_cli.app, *given, *length, *words)


def counted(draft: str, streams: Path, *words: str) -> dict[str, Any]:
    """The counters of a trained draft on recordings."""
    given = [str(trained.source(draft)), "--target", str(trained.TARGET), "--streams", str(streams)]
    found: dict[str, Any] = invoked(validate_cli.app, *given, "--device", "cpu", *words)[
        "acceptance"
    ]
    return {key: found[key] for key in ("drafts", "accepted")}


def expected(draft: str) -> dict[str, Any]:
    """The counters of the running target."""
    return {key: KNOWN[draft][key] for key in ("drafts", "accepted")}


def started(engine: str, *more: str) -> list[str]:
    """The options that start an engine here."""
    arguments = [f"--engine-arg={argument}" for argument in (*ON_A_CPU[engine], *more)]
    return ["--engine", engine, "--engine-python", str(build_env.build(engine)), *arguments]


@pytest.mark.parametrize("here", ["sglang"], indirect=True)
def test_sglang_records_what_is_counted_as_live(here: str, tmp_path: Path) -> None:
    manifest = recorded(tmp_path / "s", *started(here))
    assert manifest["by"]["engine"] == "sglang"
    assert (manifest["taps"], manifest["last"]) == ([1, 2, 3, 4, 5], "post-norm")
    for draft in ("plain", "embed_tap", "two_layers"):
        assert counted(draft, tmp_path / "s", "--num-draft-tokens", "4") == expected(draft)
    assert counted("plain", tmp_path / "s", "--tree", "5,4,16") == TREE
    assert not (tmp_path / "s" / ".parts").exists()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("here", ["sglang"], indirect=True)
def test_a_server_records_without_the_last_state(tmp_path: Path) -> None:
    """The likeliest tokens stand for the distribution: a wrong wiring is found from them, too."""
    with server(["1", "3", "0", "2", "4"], tmp_path / "log") as url:
        manifest = recorded(tmp_path / "s", "--server", url)
    assert (manifest["last"], manifest["basis"]) == ("absent", "top-logprobs")
    assert counted("plain", tmp_path / "s", "--num-draft-tokens", "4") == expected("plain")
    wrong = trained.changed(trained.source("plain"), tmp_path / "wrong", other_taps)
    words = [
        str(wrong),
        "--target",
        str(trained.TARGET),
        "--streams",
        str(tmp_path / "s"),
        "--json",
        "-",
    ]
    result = CliRunner().invoke(diagnose_cli.app, words)
    assert result.exit_code == 1, result.output
    assert json.loads(result.stdout)["best"]["taps"] == [1, 3, 5]


def other_taps(config: dict[str, Any]) -> None:
    """Every tap one lower."""
    config["eagle_aux_hidden_state_layer_ids"] = [0, 2, 4]


@contextlib.contextmanager
def server(ids: list[str], log: Path) -> Iterator[str]:
    """An SGLang on loopback that hands out hidden states."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        "-m", "sglang.launch_server", f"--model-path={trained.TARGET}", "--dtype=float32",
        "--enable-return-aux-hidden-states", "--speculative-algorithm=EAGLE3",
        "--return-aux-hidden-state-layer-ids", *ids, "--disable-radix-cache", "--chunked-prefill-size=-1",
        "--skip-server-warmup", f"--port={port}", "--host=127.0.0.1",
        *(f"--{flag}" for flag in ON_A_CPU["sglang"]),
    ]  # fmt: skip
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            [str(build_env.build("sglang")), *command],
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


@pytest.mark.parametrize("here", ["vllm"], indirect=True)
def test_vllm_records_what_is_counted_as_live(
    here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of vLLM but the copy off the device, for which its connector has CUDA alone (cpu_connector.py)."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    folder = tmp_path / "connector"
    folder.mkdir()
    settings = {**CPU_CONNECTOR, "kv_connector_extra_config": {"shared_storage_path": str(folder)}}
    manifest = recorded(
        tmp_path / "s", *started(here, f"kv-transfer-config={json.dumps(settings)}")
    )
    assert (manifest["by"]["engine"], manifest["last"]) == ("vllm", "pre-norm")
    for draft in ("plain", "embed_tap"):
        assert counted(draft, tmp_path / "s", "--num-draft-tokens", "4") == expected(draft)


@pytest.mark.gpu
@pytest.mark.skipif("EAGLE3_VLLM_PYTHON" not in os.environ, reason="needs CUDA and a vLLM for it")
def test_vllm_records_on_a_gpu(tmp_path: Path) -> None:
    words = ["--engine", "vllm", "--engine-python", os.environ["EAGLE3_VLLM_PYTHON"]]
    recorded(tmp_path / "s", *words, "--engine-arg=max-model-len=512")
    assert counted("plain", tmp_path / "s", "--num-draft-tokens", "4") == expected("plain")
