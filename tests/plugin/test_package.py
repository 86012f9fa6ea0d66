"""The plugin where nothing of ours is installed: the way of docs/sglang-plugin.md that copies folders."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "convert" / "sglang_plugin"
LOADED = """
import sys
import eagle3_interop.sglang_plugin, eagle3_interop.sglang_plugin.tensors as tensors
config = type("Config", (), dict(hidden_size=8, head_dim=4, vocab_size=32, draft_vocab_size=16,
    num_attention_heads=4, num_key_value_heads=2, intermediate_size=12, num_hidden_layers=1, rms_norm_eps=1e-5))
print(tensors.required(config, qk_norm=False, output_bias=True)["fc.weight"])
print(*sorted(name for name in sys.modules if name.startswith("eagle3_interop.")))
print(*sorted({"torch", "transformers", "sglang", "numpy", "huggingface_hub", "typer"} & set(sys.modules)))
"""


def copied() -> list[str]:
    """The folders that the page's command copies."""
    page = (ROOT / "docs" / "sglang-plugin.md").read_text()
    command = re.search(r"cp -r (.*) plugin/eagle3_interop/", page)
    assert command is not None
    return command[1].split()


def run(code: str, where: Path) -> subprocess.CompletedProcess[str]:
    """A Python with these copies and the libraries, but without the installed eagle3_interop.

    ``-S`` leaves out the .pth files by which an editable installation is found.
    """
    path = os.pathsep.join((str(where), sysconfig.get_path("purelib")))
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(
        command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    for folder in copied():
        source = ROOT / folder
        shutil.copytree(source, tmp_path / "eagle3_interop" / source.name)
    return tmp_path


def test_the_copied_folders_are_all_that_it_needs(plugin: Path) -> None:
    done = run(LOADED, plugin)
    assert done.returncode == 0, done.stderr
    shape, ours, heavy = done.stdout.split("\n")[:3]
    assert shape == "(8, 24)"
    assert ours.split() == [
        "eagle3_interop.schemas",
        "eagle3_interop.schemas.draft",
        "eagle3_interop.schemas.parameters",
        "eagle3_interop.schemas.quantisation",
        "eagle3_interop.sglang_plugin",
        "eagle3_interop.sglang_plugin.tensors",
        "eagle3_interop.sglang_plugin.versions",
    ]
    assert heavy == ""


def test_the_plugins_folder_alone_is_refused_with_what_to_copy(plugin: Path) -> None:
    shutil.rmtree(plugin / "eagle3_interop" / "schemas")
    done = run("import eagle3_interop.sglang_plugin", plugin)
    assert done.returncode == 1
    assert "ImportError: eagle3_interop.sglang_plugin needs eagle3_interop.schemas" in done.stderr
    assert "docs/sglang-plugin.md" in done.stderr


@pytest.mark.parametrize("module", sorted(PLUGIN.glob("*.py")), ids=lambda path: path.name)
def test_only_the_package_imports_what_could_be_missing(module: Path) -> None:
    """SGLang ignores a module of an external package that fails, with a warning in its log."""
    imported = {
        node.module
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None
    }
    others = {name for name in imported if name.startswith("eagle3_interop.")}
    others = {name for name in others if not name.startswith("eagle3_interop.sglang_plugin")}
    assert others == ({"eagle3_interop.schemas"} if module.name == "__init__.py" else set())
