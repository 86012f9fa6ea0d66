"""Every row of ``docs/trainers.md`` is what its export gives now: recognised, read, converted, run."""

import importlib.util

import pytest
from exports import DATA

ROOT = DATA.parents[2]


def _page():
    spec = importlib.util.spec_from_file_location("trainers_page", ROOT / "docs/trainers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


writer = _page()
TEXT = writer.PAGE.read_text()
VARIANTS = [(trainer, name) for trainer, found in writer.ROWS.items() for name in found]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("trainer", "variant"), VARIANTS, ids="/".join)
def test_a_row_is_what_its_export_gives(trainer, variant):
    assert writer.row(trainer, variant) in TEXT.splitlines(), "run: make docs"


def test_every_export_has_its_row():
    folders = {(path.parent.parent.name, path.parent.name) for path in DATA.glob("*/*/config.json")}
    assert set(VARIANTS) == folders


def test_the_page_has_no_other_row_and_no_empty_cell():
    rows = [line for line in TEXT.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(VARIANTS)
    assert all(cell.strip() for line in rows for cell in line.split("|")[1:-1])


def test_what_surrounds_the_rows_is_as_it_is_written():
    assert TEXT.startswith(writer.HEAD)
    assert TEXT.endswith(writer.TAIL)
