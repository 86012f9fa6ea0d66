"""A real engine, started in the user's own environment: its Python runs a small script of ours.

Nothing of the engine is imported here, and nothing of ours there.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3_interop.convert.masking import masked
from eagle3_interop.convert.read.folders import local_path
from eagle3_interop.convert.serve.command import PLUGIN_VARIABLE, Engine
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.engines.answers import TITLES, Ran, Served, Work, from_sglang
from eagle3_interop.validators.engines.processors import on_a_cpu

SCRIPTS = Path(__file__).with_name("scripts")

STALL_S = 1800.0
"""An engine that logs nothing for so long is taken for dead."""

LOG_LINES = 25

SPECULATIVE = ("--speculative", "--spec-", "-sc")
"""How flags begin that speak of drafting."""

AUX_LAYERS = re.compile(r"[Aa]uxiliary layers from [\w ]+: [(\[]([\d, ]*)[)\]]")
"""How vLLM 0.32 says, in its log, which layers it took from the draft's config."""

PROBE = (
    "import json, sys\n"
    "from importlib.util import find_spec\n"
    "def found(name):\n"
    "    try:\n"
    "        return find_spec(name) is not None\n"
    "    except ModuleNotFoundError:\n"
    "        return False\n"
    "print(json.dumps([found(name) for name in sys.argv[1:]]))\n"
)
PLUGIN_PACKAGE = PLUGIN_VARIABLE.partition("=")[2]


@dataclass(frozen=True)
class StartedEngine:
    """An engine that is started for one validation.

    Attributes:
        engine: which one.
        python: of its environment.
        arguments: the user's, for the engine's own command line.
    """

    engine: Engine
    python: str
    arguments: tuple[str, ...] = ()

    @classmethod
    def found(cls, engine: Engine, python: str | None, arguments: Sequence[str]) -> "StartedEngine":
        """The engine in an environment.

        Args:
            engine: which one.
            python: a path or a name on the PATH; this very Python without one.
            arguments: flags of the engine, with or without their dashes.

        Raises:
            Usage: there is no such Python.
        """
        given = sys.executable if python is None else python
        path = shutil.which(local_path(given))
        if path is None:
            raise Usage(f"--engine-python {given}: no such program.")
        return cls(engine, str(Path(path).absolute()), tuple(map(_flag, arguments)))

    @property
    def version(self) -> str | None:
        """It says so when it has generated."""
        return None

    @property
    def shape(self) -> Shape | None:
        """It drafts what it is told."""
        return None

    def generate(self, work: Work) -> Served:
        """Start the engine, generate, and end it.

        Raises:
            Usage: the engine has no trees.
            Unavailable: it is not installed, failed, or went silent.
        """
        self._probe(work)
        result, log = self._run(self._request(work), work.plugin)
        known: dict[str, Any] = {
            "dtype": work.dtype,
            "seconds": round(result["seconds"], 1),
            "ran": _ran(result),
        }
        if self.engine == "sglang":
            return from_sglang(result["answers"], work, result["version"], "started", **known)
        each = result["prompts"]
        return Served(
            engine="vllm",
            version=result["version"],
            how="started",
            outputs=tuple(map(tuple, result["outputs"])),
            drafts=result["drafts"],
            accepted=result["accepted"],
            per_position=tuple(result["per_position"]),
            prompts=None if each is None else tuple((drafts, taken) for drafts, taken in each),
            aux_layers=said_layers(log),
            told=tuple(result["told"]),
            **known,
        ).checked(work)

    def bare(self, work: Work) -> tuple[Ran, ...]:
        """Start the engine without the draft, and time the runs.

        Raises:
            Unavailable: it failed, or went silent.
        """
        request = self._request(work, drafting=False)
        result, _ = self._run({**request, "prompts": work.prompts[:1], "max_new_tokens": 1}, False)
        return _ran(result)

    def _request(self, work: Work, *, drafting: bool = True) -> dict[str, Any]:
        """What the script is asked; without the draft, what speaks of it is left out."""
        here = on_a_cpu(self.engine, work)

        def kept(arguments: Sequence[str]) -> list[str]:
            return [one for one in arguments if drafting or not one.startswith(SPECULATIVE)]

        return {
            "argv": kept(arguments_of(self.engine, work)),
            "on_a_cpu": {"argv": kept(here.arguments), "variables": dict(here.variables)},
            "given": kept(self.arguments),
            "prompts": work.prompts,
            "max_new_tokens": work.new_tokens,
            "stop_ids": work.stop_ids,
            "drafting": drafting,
            "runs": [asdict(run) for run in work.runs],
        }

    def _probe(self, work: Work) -> None:
        names = [self.engine, PLUGIN_PACKAGE]
        try:
            done = subprocess.run(  # noqa: S603
                [self.python, "-c", PROBE, *names],
                capture_output=True,
                text=True,
                env=self.environment(),
                check=True,
                timeout=120,
            )
            engine, plugin = json.loads(done.stdout.splitlines()[-1])
        except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
            raise Unavailable(f"{self.python} does not run as a Python: {error}") from error
        title = TITLES[self.engine]
        if not engine:
            raise Unavailable(
                f"{title} is not installed for {self.python}; give the Python of its environment "
                "with --engine-python."
            )
        if work.plugin and self.engine == "sglang" and not plugin:
            raise Unavailable(
                f"this checkpoint needs the SGLang plugin, which {self.python} does not have: "
                "pip install eagle3-interop there."
            )

    def environment(self, *, plugin: bool = False) -> dict[str, str]:
        """The user's own; with the environment's programs first, as if it were activated."""
        found = dict(os.environ)
        found["PATH"] = os.pathsep.join([str(Path(self.python).parent), found.get("PATH", "")])
        if plugin and self.engine == "sglang":
            name, _, value = PLUGIN_VARIABLE.partition("=")
            found[name] = value
        return found

    def _run(self, request: Mapping[str, Any], plugin: bool) -> tuple[dict[str, Any], str]:
        """The script's result, and the engine's log."""
        with tempfile.TemporaryDirectory(prefix="eagle3-engine-") as scratch:
            asked, answer, log = (Path(scratch, x) for x in ("request.json", "result.json", "log"))
            asked.write_text(json.dumps(request), encoding="utf-8")
            script = SCRIPTS / f"run_{self.engine}.py"
            with log.open("wb") as log_file:
                process = subprocess.Popen(  # noqa: S603
                    [self.python, str(script), str(asked), str(answer)],
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    env=self.environment(plugin=plugin),
                    start_new_session=True,
                )
                try:
                    ending = _wait(process, log)
                finally:
                    end_group(process)
            said = log.read_text(encoding="utf-8", errors="replace")
            if ending or not answer.exists():
                failure = ending or "ended without a result"
                raise Unavailable(f"{TITLES[self.engine]} {failure}; its last lines:\n{tail(said)}")
            result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return result, said


def arguments_of(engine: Engine, work: Work) -> list[str]:
    """The engine's command line.

    Raises:
        Usage: vLLM has no trees.
    """
    shape, remote = work.shape, ["--trust-remote-code"] if work.trust_remote_code else []
    if engine == "vllm":
        if not shape.is_chain:
            raise Usage("vLLM drafts chains only: leave out --tree, or take --engine sglang.")
        setting = "--speculative-config."
        return [
            f"--model={work.target}",
            f"--dtype={work.dtype}",
            "--skip-tokenizer-init",
            f"{setting}method=eagle3",
            f"{setting}model={work.draft}",
            f"{setting}num_speculative_tokens={shape.steps}",
            *([f"{setting}parallel_drafting=true"] if work.parallel else []),
            *remote,
        ]
    return [
        f"--model-path={work.target}",
        f"--dtype={work.dtype}",
        "--skip-tokenizer-init",
        "--speculative-algorithm=EAGLE3",
        f"--speculative-draft-model-path={work.draft}",
        f"--speculative-num-steps={shape.steps}",
        f"--speculative-eagle-topk={shape.topk}",
        f"--speculative-num-draft-tokens={shape.tokens}",
        *remote,
    ]


def _ran(result: Mapping[str, Any]) -> tuple[Ran, ...]:
    return tuple(
        Ran(one["seconds"], tuple(map(tuple, one["outputs"])), one["steps"])
        for one in result["ran"]
    )


def said_layers(log: str) -> tuple[int, ...] | None:
    """The layers that vLLM says it took, in its log."""
    found = AUX_LAYERS.search(log)
    return None if found is None else tuple(int(x) for x in found[1].split(",") if x.strip())


def tail(log: str) -> str:
    """The last lines of a log, without what looks like a secret."""
    lines = [line.rpartition("\r")[2] for line in log.rstrip().split("\n")]
    return masked("\n".join(lines[-LOG_LINES:]))


def _flag(argument: str) -> str:
    return argument if argument.startswith("-") else f"--{argument}"


def _wait(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait while the log grows; empty where all went well, else what happened."""
    size, grown = 0, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=min(1.0, STALL_S))
            return f"ended with exit code {code}" if code else ""
        if (now := log.stat().st_size) != size:
            size, grown = now, time.monotonic()
        elif time.monotonic() - grown > STALL_S:
            return f"said nothing for {STALL_S:g} s and was ended"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End whatever is left of an engine: one that succeeded may have left processes, too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
