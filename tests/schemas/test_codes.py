"""The registry of findings: every code is raised, and none is raised that is not in it."""

import pytest

from eagle3_interop.convert.read.strict_json import refusal
from eagle3_interop.schemas.codes import CODES
from eagle3_interop.schemas.findings import finding


@pytest.mark.whole_run
def test_every_code_was_raised_by_the_program_in_some_test(raised):
    assert CODES.keys() - raised == set()


def test_every_error_says_its_meaning_in_a_sentence():
    for code, entry in CODES.items():
        assert entry.meaning.endswith("."), code
        assert entry.severity in ("error", "warning", "note")


def test_every_error_says_what_to_do():
    """Without exception: a refusal that leaves the user nowhere is half of one."""
    assert [
        code for code, entry in CODES.items() if entry.severity == "error" and not entry.fix
    ] == []


def test_a_finding_has_the_registrys_severity_and_way_out():
    entry = CODES["broken-file"]
    for made in (finding("broken-file", "a", "b"), refusal("broken-file", "a", "b").findings[0]):
        assert (made.severity, made.fix) == (entry.severity, entry.fix)


def test_a_way_out_that_is_given_goes_before_the_registrys():
    assert refusal("broken-file", "place", "message", "Do that.").findings[0].fix == "Do that."


def test_no_finding_is_made_of_a_code_that_is_not_registered():
    with pytest.raises(KeyError):
        finding("no-such-code", "place", "message")
