#!/usr/bin/env python3
"""Build the virtual environment of one real engine or trainer, once per content of its pinned list.

    python tests/engines/build_env.py speculators|vllm|sglang|specforge|modelopt

The last line on stdout is the path of the environment's Python; everything else goes to stderr.
Environments lie outside the clone, under ``$EAGLE3_ENGINES_HOME`` (default
``~/.cache/eagle3-interop/engines``), and are named after a digest of what they are made of: a
changed list or recipe makes a new environment, an unchanged one is found at once. That of a trainer is a layer:
its own packages before those of another environment, which is built first.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
ENGINES = ("speculators", "vllm", "sglang")
LAYERS = {"specforge": "speculators", "modelopt": "speculators"}

# Every list is complete, so nothing but torch may bring anything along: a resolver would add
# torchvision and torchaudio (which fail to load beside a CPU build of torch) and SGLang's CUDA
# packages. Torch comes first and with dependencies, because only its own build, CPU or other, knows
# what it needs.
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "--quiet")
RECIPE = (
    (*PIP, "install", "{torch}"),
    (*PIP, "install", "--no-deps", "--requirement", "{requirements}"),
)
LAYER = ((*PIP, "install", "--no-deps", "--requirement", "{requirements}"),)
UNDER = "under.pth"  # names the packages of the environment below
MARKER = ".complete"  # written last: an environment without it was interrupted


def environments_home() -> Path:
    """Return the folder that holds every engine environment."""
    configured = os.environ.get("EAGLE3_ENGINES_HOME")
    return Path(configured or "~/.cache/eagle3-interop/engines").expanduser()


def environment_path(engine: str) -> Path:
    """Return where an engine's environment lies, built or not."""
    below = LAYERS.get(engine)
    ingredients = (
        (REQUIREMENTS / f"{engine}.txt").read_text(encoding="utf-8"),
        repr(RECIPE if below is None else (LAYER, str(environment_path(below)))),
        "python{}.{}".format(*sys.version_info),
    )
    digest = hashlib.sha256("\0".join(ingredients).encode()).hexdigest()
    return environments_home() / f"{engine}-{digest[:12]}"


def python_of(environment: Path) -> Path:
    """Return the Python of an environment."""
    return environment / "bin" / "python"


def build(engine: str) -> Path:
    """Build an engine's environment unless it is complete already.

    Args:
        engine: One of ``ENGINES`` or ``LAYERS``.

    Returns:
        The path of the environment's Python.

    Raises:
        subprocess.CalledProcessError: If pip fails; the environment then stays without its marker.
    """
    environment = environment_path(engine)
    below = LAYERS.get(engine)
    if below is not None:
        build(below)
    marker = environment / MARKER
    if marker.exists():
        return python_of(environment)
    with _lock(environment):
        if marker.exists():  # another process built it while this one waited
            return python_of(environment)
        started = time.monotonic()
        if environment.exists():
            shutil.rmtree(environment)
        _run(sys.executable, "-m", "venv", str(environment))
        requirements = REQUIREMENTS / f"{engine}.txt"
        names = {"requirements": str(requirements)}
        if below is None:
            names["torch"] = _pinned(requirements, "torch")
        else:
            _packages(environment).joinpath(UNDER).write_text(
                f"{_packages(environment_path(below))}\n"
            )
        for step in RECIPE if below is None else LAYER:
            _run(str(python_of(environment)), *(word.format(**names) for word in step))
        marker.write_text(f"{time.monotonic() - started:.0f} s\n", encoding="utf-8")
    return python_of(environment)


def _packages(environment: Path) -> Path:
    """Return the folder of an environment's packages."""
    return environment / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"


@contextlib.contextmanager
def _lock(environment: Path) -> Iterator[None]:
    """Let one process at a time build an environment."""
    environment.parent.mkdir(parents=True, exist_ok=True)
    with environment.with_suffix(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def version_of(engine: str) -> str:
    """Return the release of an engine that its environment holds."""
    lines = (REQUIREMENTS / f"{engine}.txt").read_text(encoding="utf-8").splitlines()
    found = (line.partition("==") for line in lines)
    return next(version for name, _, version in found if name.partition("-")[0] == engine)


def _pinned(requirements: Path, package: str) -> str:
    """Return the line of a requirement file that pins a package."""
    lines = requirements.read_text(encoding="utf-8").splitlines()
    return next(line.strip() for line in lines if line.startswith(f"{package}=="))


def _run(*command: str) -> None:
    """Run a command at low priority, its output on stderr."""
    print("+", *command, file=sys.stderr, flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        command, check=True, stdout=sys.stderr, env=environment, preexec_fn=lambda: os.nice(10)
    )


def main() -> int:
    """Build the environment named on the command line and print its Python."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=(*ENGINES, *LAYERS))
    try:
        print(build(parser.parse_args().engine))
    except subprocess.CalledProcessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
