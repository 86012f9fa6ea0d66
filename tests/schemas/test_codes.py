"""The registry of findings: every code is raised, and none is raised that is not in it."""

import ast
from pathlib import Path

import pytest

from eagle3_interop.schemas import codes
from eagle3_interop.schemas.codes import CODES
from eagle3_interop.schemas.findings import finding, has_effect, refusal, unmended

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for room in ("schemas", "convert", "validators", "recipes")
    for path in sorted((ROOT / room).rglob("*.py"))
    if path.parent.name != "codes"
]


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


def test_a_code_stands_in_one_theme_only():
    assert sum(len(theme) for theme in codes._THEMES) == len(CODES)


def test_a_row_that_is_mended_by_another_names_one_that_is_there():
    assert {row.mended_by for row in CODES.values()} - {""} <= set(CODES)


def test_a_fault_that_the_writer_mended_is_said_no_more():
    fault = finding("target-window", "layers.windows", "the target's")
    mended = finding("window-written", "config.json: sliding_window", "wide")
    assert unmended([fault, mended]) == [mended]
    assert unmended([fault]) == [fault]


@pytest.mark.parametrize("engine", ["speculators", "vllm", "sglang"])
def test_an_absent_table_is_computed_otherwise_by_the_one_that_leaves_it_uninitialised(engine):
    absent = finding("target-embeddings", "embed_tokens.weight", "absent")
    assert has_effect(absent, engine) == (engine == "speculators")


def questions(source):
    """Where a source asks a finding for its name: by comparison, membership, or a set of codes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            named = any(isinstance(x, ast.Attribute) and x.attr == "code" for x in sides)
            keyed = any(isinstance(x, ast.Subscript) and word(x.slice) == "code" for x in sides)
            member = isinstance(node.ops[0], ast.In | ast.NotIn | ast.Eq | ast.NotEq)
            spoken = member and any(word(x) in CODES and "-" in word(x) for x in sides)
            if (named and not all(map(is_number, node.comparators))) or keyed or spoken:
                yield ast.unparse(node)
        elif isinstance(node, ast.Set | ast.Tuple | ast.List) and len(node.elts) > 1:
            words = [word(x) for x in node.elts]
            if all(one in CODES for one in words) and any("-" in one for one in words):
                yield ast.unparse(node)


def word(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_number(node):
    """What an HTTP status is compared with."""
    return all(
        isinstance(x, ast.Constant | ast.Tuple | ast.Load) for x in ast.walk(node)
    ) and not any(word(x) for x in ast.walk(node))


@pytest.mark.parametrize(
    "source",
    [
        'item.code == "cast"',
        "item.code in allowed",
        'item["code"] in allowed',
        '"needs-sglang-plugin" in codes',
        'said = {"zero-map", "bad-map"}',
    ],
)
def test_asking_a_finding_for_its_name_is_noticed(source):
    assert list(questions(source))


def test_an_http_status_is_no_finding():
    assert not list(questions("error.code in (404, 405)"))


ELSEWHERE = [path for path in SOURCES if path != ROOT / "schemas" / "findings.py"]


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_part_of_the_program_asks_a_finding_for_its_name(path):
    """What a code means for the program is its row's: a new code then needs no list that could forget it."""
    assert list(questions(path.read_text())) == []


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_finding_is_made_by_its_one_constructor(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert [ast.unparse(call) for call in calls if ast.unparse(call.func) == "Finding"] == []


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_refusal_is_an_error(path):
    """The row says what refuses; a `Refused` of a warning would exit with code 3 and no reason."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "refusal"
            and word(node.args[0])
        ):
            assert CODES[word(node.args[0])].severity == "error", ast.unparse(node)
