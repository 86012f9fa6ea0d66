"""What is said of a release that comes out, from what known ones were seen to do; needs no engine."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3_interop.schemas.engines.releases import RELEASES
from eagle3_interop.schemas.engines.versions import numbers

sys.path.insert(0, str(Path(__file__).parent))
release_grid = importlib.import_module("release_grid")
release_new = importlib.import_module("release_new")
release_page = importlib.import_module("release_page")
release_seen = importlib.import_module("release_seen")

KNOWN = json.loads(release_page.RESULTS.read_text())


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folders that every release was run on."""
    return release_grid.Grid.write(tmp_path_factory.mktemp("releases") / "grid")


@pytest.fixture
def told(grid: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is said of a release, where the ones since another are not known yet."""

    def seen(engine: str, version: str, grid: Any, **_: Any) -> dict[str, Any]:
        cells = KNOWN[engine][version]
        return {
            case.name: release_seen.Seen(cells[case.name]["seen"], cells[case.name]["detail"])
            for case in grid.of(engine)
        }

    def of(engine: str, version: str, since: str) -> str:
        known = [one for one in RELEASES[engine] if numbers(one.since) < numbers(since)]
        return "\n".join(release_new.new(engine, version, grid, known))

    monkeypatch.setattr(release_seen, "see", seen)
    return of


def test_a_feature_that_came_is_a_field_of_the_value(told: Any) -> None:
    said = told("sglang", "0.5.17", "0.5.17")
    assert (
        "SGLANG_0_5_17 = computing(SGLANG_0_5_13, since='0.5.17', until='0.5.17', input_norm=True)"
        in said
    )
    assert "SGLANG_0_5_13: until='0.5.16'" in said
    assert "It explains all of them." in said


def test_a_row_that_changed_for_another_reason_makes_no_field(told: Any) -> None:
    said = told("vllm", "0.30.0", "0.30")
    assert "full_map=False" in said
    assert "own_whole_head" not in said
    assert "by another rule" in said


def test_the_newest_changed_nothing(told: Any) -> None:
    said = told("vllm", "0.33.0", "1")
    assert "did with all" in said
    assert "Nothing to add" in said


def test_one_that_does_not_run_says_why(grid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_seen, "see", lambda *_, **__: "ImportError: no such module")
    lines = release_new.new("vllm", "0.34.0", grid, RELEASES["vllm"])
    assert lines[-1] == "ImportError: no such module"
