"""What is installed: every room of the house, and nothing else."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_room_is_a_package_of_the_wheel():
    """A room that is not listed is left out of the wheel, and its imports fail for users alone."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    places = declared["package-dir"]
    rooms = {
        ".".join([name, *folder.relative_to(ROOT / top).parts])
        for name, top in places.items()
        for folder in [ROOT / top, *(ROOT / top).rglob("*")]
        if (folder / "__init__.py").exists() and folder.name != "sglang_plugin"
    }
    assert sorted({*rooms, "eagle3_interop.sglang_plugin"}) == sorted(declared["packages"])


def test_every_data_file_of_a_room_is_shipped():
    """What is read at run time and not listed is missing for users alone."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    shipped = {
        path
        for name, patterns in declared["package-data"].items()
        for pattern in patterns
        for path in (ROOT / name.removeprefix("eagle3_interop.").replace(".", "/")).glob(pattern)
        if name != "*"
    }
    tops = [ROOT / top for top in declared["package-dir"].values()]
    data = {path for top in tops for path in top.rglob("data/*")}
    assert {"vllm-0.32.0.json", "prompts.jsonl"} <= {path.name for path in data}
    assert data <= shipped
