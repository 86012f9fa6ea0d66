"""What is installed: every room of the house, and nothing else."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FLOORS = ("api", "convert", "recipes", "schemas", "validators")
BUILD = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"

Rooms = dict[str, set[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, unpacked; built from a copy, because setuptools reuses what an earlier build left behind."""
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for floor in FLOORS:
        shutil.copytree(ROOT / floor, source / floor)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    done = subprocess.run(
        [sys.executable, "-c", BUILD], cwd=source, check=True, capture_output=True, text=True
    )
    zipfile.ZipFile(source / done.stdout.split()[-1]).extractall(place)
    return place


def rooms_of(folder: Path) -> Rooms:
    found: Rooms = defaultdict(set)
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            found[path.parent.relative_to(folder).as_posix()].add(path.name)
    return found


def test_the_wheel_holds_every_room_whole(wheel):
    """A room or a file that is left out is missed by users alone."""
    wanted: Rooms = {}
    for floor in FLOORS:
        for room, files in rooms_of(ROOT / floor).items():
            wanted["/".join(part for part in (floor, room) if part != ".")] = files
    # Scripts that read this repository, and their page.
    assert {"demo.py", "train_tiny_pair.py"} <= wanted.pop("recipes")
    wanted["sglang_plugin"] = wanted.pop("convert/sglang_plugin")
    wanted |= {room: wanted.pop(f"api{end}") for room, end in ((".", ""), ("recipes", "/recipes"))}
    assert dict(rooms_of(wheel / "eagle3_interop")) == wanted


def test_it_installs_one_package_and_its_description(wheel):
    """Nothing named `validators` may reach site-packages: PyPI has a popular package of that name."""
    found = {path.name for path in wheel.iterdir()}
    assert found == {
        "eagle3_interop",
        f"eagle3_interop-{PYPROJECT['project']['version']}.dist-info",
    }


@pytest.mark.parametrize("command", PYPROJECT["project"]["scripts"])
def test_each_command_starts_from_the_wheel_alone(command, wheel):
    """``-S`` leaves out the .pth files by which an editable installation is found."""
    module, _, function = PYPROJECT["project"]["scripts"][command].partition(":")
    code = f"import sys; sys.argv = [{command!r}, '--help']; import {module} as m; m.{function}()"
    path = os.pathsep.join((str(wheel), sysconfig.get_path("purelib")))
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    assert f"Usage: {command}" in done.stdout
