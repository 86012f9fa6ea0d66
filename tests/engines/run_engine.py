#!/usr/bin/env python3
"""Run one rig in its own environment, which is built first if it is not there.

    python tests/engines/run_engine.py RIG --output RESULT.json < REQUEST.json

RIG is one of ``vllm``, ``sglang``, ``vllm-draft-class``, ``sglang-draft-class``,
``vllm-quantised``, ``sglang-quantised``, ``sglang-capture-rules``, ``sglang-targets``, ``vllm-targets``, ``vllm-flags``, ``sglang-flags``, ``speculators-class``. An engine may take
its caller down or hang, so it runs as a process group of its own with a time limit. On failure the
exit code is 1 and the last lines of the engine's log are on stderr.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import build_env

HERE = Path(__file__).resolve().parent
LOG_LINES = 40  # of a failed engine's log
TIMEOUT_S = 300.0

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
VLLM = {
    "OMP_NUM_THREADS": "1",  # eight times faster than the default on two busy cores
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the runner asks the model itself for its aux layers
}
SGLANG = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "PYTHONPATH": str(HERE / "stubs"),
}


@dataclass(frozen=True)
class Rig:
    """A runner, the environment whose Python runs it, and the variables it needs."""

    environment: str
    script: str
    variables: dict[str, str] = field(default_factory=dict)


RIGS = {
    "vllm": Rig("vllm", "vllm_run.py", VLLM),
    "sglang": Rig("sglang", "sglang_run.py", SGLANG),
    "vllm-draft-class": Rig("vllm", "vllm_draft_class.py", VLLM),
    "sglang-draft-class": Rig("sglang", "sglang_draft_class.py", SGLANG),
    "sglang-capture-rules": Rig("sglang", "sglang_capture_rules.py", SGLANG),
    "sglang-targets": Rig("sglang", "sglang_targets.py", {**SGLANG, "SGLANG_USE_CPU_ENGINE": "0"}),
    "vllm-targets": Rig("vllm", "vllm_targets.py", VLLM),
    "vllm-quantised": Rig("vllm", "vllm_quantised.py", VLLM),
    "sglang-quantised": Rig("sglang", "sglang_quantised.py", SGLANG),
    "vllm-flags": Rig("vllm", "vllm_flags.py", VLLM),
    "sglang-flags": Rig("sglang", "sglang_flags.py", SGLANG),
    "vllm-release": Rig("vllm", "vllm_release.py", VLLM | {"PYTHONPATH": str(HERE / "stubs")}),
    "vllm-release-latent": Rig(
        "vllm", "vllm_release_latent.py", VLLM | {"PYTHONPATH": str(HERE / "stubs")}
    ),
    "vllm-release-parallel": Rig(
        "vllm", "vllm_release_parallel.py", VLLM | {"PYTHONPATH": str(HERE / "stubs")}
    ),
    "sglang-release": Rig("sglang", "sglang_release.py", SGLANG),
    "sglang-release-latent": Rig("sglang", "sglang_release_latent.py", SGLANG),
    "speculators-class": Rig("speculators", "speculators_class.py"),
}


class EngineError(RuntimeError):
    """A rig failed or ran out of time; the message ends with the last lines of its log."""


def run_engine(
    name: str,
    request: dict[str, Any],
    *,
    timeout_s: float = TIMEOUT_S,
    variables: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Run a rig once.

    Args:
        name: A key of ``RIGS``.
        request: What the rig reads on stdin.
        timeout_s: After so many seconds the rig and all its processes are killed.
        variables: Further environment variables; a ``PYTHONPATH`` is put before the rig's own.

    Returns:
        The object that the rig wrote.

    Raises:
        EngineError: If the rig fails, times out, or ends without a result.
    """
    rig = RIGS[name]
    python = build_env.build(rig.environment)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment.update(OFFLINE | rig.variables | (variables or {}))
    paths = [layer.get("PYTHONPATH") for layer in (variables or {}, rig.variables)]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    with tempfile.TemporaryDirectory(prefix="eagle3-engine-") as scratch:
        output, log = Path(scratch, "result.json"), Path(scratch, "log.txt")
        command = (str(python), str(HERE / rig.script), "--output", str(output))
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                process.communicate(json.dumps(request).encode(), timeout=timeout_s)
                ending = f"exit code {process.returncode}"
            except subprocess.TimeoutExpired:
                ending = f"no result after {timeout_s:g} s"
            finally:
                _kill_group(process)
        if process.returncode != 0 or not output.exists():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            tail = "\n".join(lines[-LOG_LINES:])
            raise EngineError(f"{name}: {ending}\n{tail}")
        return json.loads(output.read_text(encoding="utf-8"))


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End whatever is left of a rig: an engine that succeeded may have left processes too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    """Run the rig named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rig", choices=RIGS)
    parser.add_argument(
        "--output", type=Path, required=True, help="file that receives the JSON result"
    )
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS")
    arguments = parser.parse_args()
    try:
        result = run_engine(arguments.rig, json.load(sys.stdin), timeout_s=arguments.timeout)
    except (EngineError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    arguments.output.write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
