"""The registry of findings: every code is raised somewhere, and every code that is raised is in it."""

import re
from pathlib import Path

import pytest

from eagle3_interop.convert.read.strict_json import refusal
from eagle3_interop.schemas.codes import CODES
from eagle3_interop.schemas.findings import finding

ROOT = Path(__file__).parents[2]


def mentioned(paths):
    text = "\n".join(path.read_text() for path in paths)
    return set(re.findall(r'"([a-z0-9-]+)"', text))


SOURCES = [
    path
    for room in ("schemas", "convert", "validators", "recipes")
    for path in sorted((ROOT / room).rglob("*.py"))
    if path.name != "codes.py"
]
OF_CONVERSIONS = [
    path
    for path in SOURCES
    if path.relative_to(ROOT).parts[0] in ("schemas", "convert") and path.parent.name != "serve"
]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_code_is_raised_somewhere(code):
    assert code in mentioned(SOURCES)


@pytest.mark.parametrize("code", sorted(CODES.keys() & mentioned(OF_CONVERSIONS)))
def test_a_code_of_a_conversion_is_provoked_by_a_test(code):
    assert code in mentioned(TESTS)


def test_every_error_says_its_meaning_in_a_sentence():
    for code, entry in CODES.items():
        assert entry.meaning.endswith("."), code
        assert entry.severity in ("error", "warning", "note")


ERRORS = sorted(code for code, entry in CODES.items() if entry.severity == "error")


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_says_what_to_do_wherever_it_is_raised(code):
    """Without exception: a refusal that leaves the user nowhere is half of one."""
    assert CODES[code].fix
    assert refusal(code, "place", "message").findings[0].fix == CODES[code].fix
    assert finding(code, "place", "message").fix == CODES[code].fix


def test_a_way_out_that_is_given_goes_before_the_registrys():
    assert refusal("broken-file", "place", "message", "Do that.").findings[0].fix == "Do that."
