"""What the runs of releases found: predicted as it was seen, named by `inspect`, and shown; needs no engine."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3_interop.convert.cli import app

sys.path.insert(0, str(Path(__file__).parent))
release_page = importlib.import_module("release_page")
release_rows = importlib.import_module("release_rows")
release_trained = importlib.import_module("release_trained")

KNOWN = json.loads(release_page.RESULTS.read_text())
DATA = Path(__file__).parents[1] / "data"
DRAFTS = sorted(path.name for path in (DATA / "drafts").iterdir())
ENGINES = ("vllm", "sglang")


def test_the_page_is_what_the_runs_found() -> None:
    assert release_page.PAGE.read_text() == release_page.page(KNOWN)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_release_was_run_on_the_same_folders(engine: str) -> None:
    assert set(KNOWN[engine]) == set(release_rows.VERSIONS[engine])
    rows = {frozenset(found) for found in KNOWN[engine].values()}
    assert len(rows) == 1
    assert {name.rpartition(" (")[0] for name in next(iter(rows))} <= set(release_rows.ROWS)


@pytest.mark.parametrize("engine", ENGINES)
def test_whole_engines_count_as_the_reference_does(engine: str) -> None:
    found = KNOWN["whole"][engine]
    for version in release_rows.WHOLE[engine]:
        assert found[version]
        assert {cell["state"] for cell in found[version].values()} == {"equal"}, version
    for version in release_rows.NOT_WHOLE[engine]:
        assert {cell["state"] for cell in found[version].values()} == {"stopped"}, version


@pytest.mark.parametrize("engine", ENGINES)
def test_every_folder_did_in_every_release_what_the_rules_said(engine: str) -> None:
    for version, found in KNOWN[engine].items():
        assert not release_page.wrong(found), version


@pytest.mark.parametrize(
    ("engine", "last", "rows"),
    [
        ("vllm", "0.21.0", ("fc_norm", "norm_output", "both fc norms", "all on")),
        ("sglang", "0.5.11", ("fc_norm", "norm_output", "both fc norms", "all on")),
        ("sglang", "0.5.16", ("norm_before_fc", "both fc norms")),
    ],
)
def test_no_release_before_a_feature_was_seen_to_run_it(
    engine: str, last: str, rows: tuple[str, ...]
) -> None:
    versions = release_rows.VERSIONS[engine]
    for version in versions[: versions.index(last) + 1]:
        seen = {name: cell["seen"] for name, cell in KNOWN[engine][version].items()}
        told = [state for name, state in seen.items() if name.rpartition(" (")[0] in rows]
        assert len(told) >= len(rows)
        assert "same" not in told, version


def ranges(draft: str) -> dict[str, list[dict[str, Any]]]:
    """By engine what `inspect` says of its releases."""
    words = [
        "inspect",
        str(DATA / "drafts" / draft),
        "--target",
        str(DATA / "target"),
        "--json",
        "--quiet",
    ]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)["engines"]
    return {engine: found[engine]["releases"] for engine in found}


@pytest.mark.parametrize("draft", DRAFTS)
def test_inspect_names_the_releases_that_were_seen_to_begin_to_run_a_draft(draft: str) -> None:
    said = ranges(draft)
    for engine, drafts in KNOWN["trained"].items():
        for form, cells in drafts[draft].items():
            turn = release_trained.turn_of(engine, said[engine], form)
            assert {place: cell and cell["version"] for place, cell in cells.items()} == {
                place: getattr(turn, place) for place in release_trained.PLACES
            }, (engine, form)


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_first_of_them_and_the_newest_ran_it_and_the_one_before_did_not(draft: str) -> None:
    for engine, drafts in KNOWN["trained"].items():
        for form, cells in drafts[draft].items():
            ran = {place: cell["seen"] == "same" for place, cell in cells.items() if cell}
            wanted = {place: place != "before" for place in ran}
            assert ran == wanted, (engine, form)
            assert all(cell["predicted"] == cell["seen"] for cell in cells.values() if cell)
