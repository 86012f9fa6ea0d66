"""Pages that are written from the code say what the code says."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from eagle3_interop.schemas.codes import CODES

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_of_findings_is_the_registry():
    spec = importlib.util.spec_from_file_location("findings_page", ROOT / "docs" / "findings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "findings.md").read_text() == module.page(), "run: make docs"


def test_the_page_of_conformance_is_what_the_engines_runs_found():
    folder = ROOT / "tests" / "engines"
    spec = importlib.util.spec_from_file_location("matrix", folder / "matrix.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["matrix"] = module
    spec.loader.exec_module(module)
    cells = json.loads((folder / "results.json").read_text())
    assert (ROOT / "docs" / "conformance.md").read_text() == module.render(cells)


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name
)
def test_links_between_pages_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_code_raised_in_the_sources_is_in_the_registry():
    raised = set()
    for folder in ("schemas", "convert", "validators", "recipes"):
        for path in (ROOT / folder).rglob("*.py"):
            raised |= set(
                re.findall(r'(?:say|finding|refusal)\(\s*"([a-z0-9-]+)"', path.read_text())
            )
            raised |= set(re.findall(r'\bcode="([a-z0-9-]+)"', path.read_text()))
    assert raised <= set(CODES)
