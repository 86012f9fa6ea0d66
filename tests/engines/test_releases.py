"""Older releases on the same folders: their own code does what the rules of `schemas/engines` say."""

import pytest
import release_new
import release_seen
from release_grid import Grid
from release_rows import IN_CI
from release_seen import SAME, Seen

from eagle3_interop.schemas.engines.releases import RELEASES
from eagle3_interop.schemas.engines.versions import at_least

pytestmark = pytest.mark.engine

NAMED = [(engine, version) for engine, versions in IN_CI.items() for version in versions]
EVERY = pytest.mark.parametrize(("engine", "version"), NAMED)


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """The folders that tell releases apart."""
    return Grid.write(tmp_path_factory.mktemp("releases") / "grid", core=True)


@pytest.fixture(scope="session")
def seen(grid: Grid) -> dict[tuple[str, str], dict[str, Seen] | str]:
    """What each release that CI runs does with them."""
    found = {}
    for engine, version in NAMED:
        found[engine, version] = release_seen.see(engine, version, grid)
    return found


@EVERY
def test_a_release_does_what_its_rules_say(engine: str, version: str, grid: Grid, seen) -> None:
    found = seen[engine, version]
    assert not isinstance(found, str), found
    rules = release_seen.rules_of(engine, version)
    cells = release_seen.judge(engine, rules, found, grid)
    wrong = [
        f"{cell.case.name}: {cell.predicted}, {cell.seen}" for cell in cells if not cell.agrees
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("engine", "version", "rows"),
    [
        ("vllm", "0.21.0", ("fc_norm", "norm_output", "all on")),
        ("sglang", "0.5.11", ("fc_norm", "norm_output", "two layers", "all on")),
        ("sglang", "0.5.16", ("norm_before_fc",)),
    ],
)
def test_a_feature_that_a_release_does_not_have_never_runs_right(
    engine: str, version: str, rows: tuple[str, ...], seen
) -> None:
    found = seen[engine, version]
    told = {name: cell for name, cell in found.items() if name.partition(" (")[0] in rows}
    assert len(told) >= len(rows)
    assert all(cell.verdict != SAME for cell in told.values()), told


def test_a_release_that_comes_out_is_told_by_what_changed(grid: Grid) -> None:
    known = [one for one in RELEASES["sglang"] if not at_least(one.since, "0.5.12")]
    lines = "\n".join(release_new.new("sglang", "0.5.16", grid, known, kept=True))
    assert "SGLang 0.5.16 did otherwise" in lines
    for field in ("block_norms=True", "post_norm=True", "later_layers=True", "other_blocks=True"):
        assert field in lines
    assert "SGLANG_0_5_16 = computing(SGLANG_0_5_10, since='0.5.16', until='0.5.16'" in lines
    assert "SGLANG_0_5_10: until='0.5.15'" in lines
    assert "input_norm" not in lines  # comes with 0.5.17


def test_a_release_that_changed_nothing_needs_no_value(grid: Grid) -> None:
    known = [one for one in RELEASES["sglang"] if not at_least(one.since, "0.5.17")]
    lines = "\n".join(release_new.new("sglang", "0.5.16", grid, known, kept=True))
    assert "Nothing to add" in lines
