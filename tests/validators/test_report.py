"""The report's models, its page and its text."""

import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from eagle3_interop.convert.console import Console
from eagle3_interop.schemas.findings import Finding
from eagle3_interop.schemas.report import (
    AcceptanceReport,
    AgainstReport,
    FirstDifference,
    Gate,
    LogitsReport,
    Report,
    SweepRow,
)
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.accept.sweep import grid
from eagle3_interop.validators.report import heatmap, terminal
from eagle3_interop.validators.report.page import page

NASTY = "<script>alert('x')</script> & \"quoted\""
COUNTERS = {
    "accept_length": 2.5, "interval": (2.25, 2.75), "drafts": 100, "accepted": 150,
    "per_position": (80, 50, 20), "num_draft_tokens": 3, "tree": None, "tokens": 250,
}  # fmt: skip


def acceptance(**changes):
    return AcceptanceReport(**COUNTERS | changes)


@pytest.fixture
def report():
    against = AgainstReport(
        source=NASTY,
        layout="sglang",
        acceptance=acceptance(accept_length=2.75),
        logits=LogitsReport(
            max_abs_diff=0.5, mean_abs_diff=0.1, top1_agreement=0.9, kl=(0.1, 0.2), positions=9
        ),
        first_difference=FirstDifference(
            stage="residual", step=1, max_abs_diff=0.25, largest=3.0, prompt=0, meaning=NASTY
        ),
        differences={"residual": ("raw", NASTY)},
        tensors={"fc.weight": "different"},
    )
    tree = {"tree": (3, 2, 6), "accept_length": 3.0}
    return Report(
        verdict="fail",
        gates=(Gate(name="logits-agree", wanted=1e-4, got=0.5, passed=False),),
        findings=(Finding(code="recognised", severity="note", where=NASTY, message=NASTY),),
        acceptance=acceptance(),
        against=against,
        sweep=(
            SweepRow(**COUNTERS, speedup=1.5),
            SweepRow(**COUNTERS | tree, speedup=1.75, best=True),
        ),
        sampling={"temperature": 1.0, "accept_length": 2.0, "probabilistic_accept_length": 2.5},
        environment={
            "draft": {"path": NASTY, "layout": "vllm"}, "target": {"path": "org/target"},
            "device": "cpu", "dtype": "float32", "prompts": {"count": 2}, "end_of_sequence": "ignored",
        },
    )  # fmt: skip


def test_an_interval_without_width_is_not_shown_for_one(report):
    alike = report.model_copy(
        update={"acceptance": acceptance(interval=(2.5, 2.5)), "against": None}
    )
    (row,) = terminal._acceptance(alike).rows
    assert row[1] == "2.500 (no interval)"
    assert "accept length, no interval" in page(alike)
    wide = report.model_copy(update={"acceptance": acceptance(), "against": None})
    (row,) = terminal._acceptance(wide).rows
    assert row[1] == "2.500 (2.25 to 2.75)"
    assert "accept length, 95 % 2.25 to 2.75" in page(report)


def test_the_report_survives_json(report):
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_nobody_adds_a_key(report):
    content = report.model_dump(mode="json")
    with pytest.raises(ValidationError, match="another"):
        Report.model_validate(content | {"another": 1})
    with pytest.raises(ValidationError, match="frozen"):
        report.verdict = "pass"


def test_the_page_is_whole_and_alone(report, whole):
    content = page(report, (0.9, 0.8, 0.7))
    whole(content)
    assert "prefers-color-scheme: dark" in content
    assert not re.search(r"https?://|<script|<link|url\(|@import|src=", content)
    assert content.count("<svg") == 2
    assert content.index("<h1>Failed</h1>") < content.index("<svg")
    assert "residual" in content


def test_a_page_without_gates_says_so(report):
    bare = report.model_copy(
        update={"gates": (), "against": None, "sweep": None, "sampling": None, "verdict": "pass"}
    )
    assert "Measured; no gate ran" in page(bare)
    assert "<title>measured: " in page(bare)
    assert "no gate ran" in terminal.verdict(bare).plain


def test_the_text_tells_the_same(report, capsys):
    terminal.show(Console(), report)
    text = capsys.readouterr().out
    for word in (
        "2.500",
        "80.0%",
        "the networks part at: residual",
        "1.75",
        "✗ logits-agree",
        "FAIL",
    ):
        assert word in text
    assert json.dumps(NASTY)[1:5] in text


@pytest.mark.parametrize("width", [20, 32, 40, 60, 80, 200])
def test_a_narrow_terminal_loses_no_figure(report, capsys, monkeypatch, width):
    def shown(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal.show(Console(), report)
        return capsys.readouterr().out

    text = shown(width)
    figures = re.findall(r"\d+\.\d+%?", shown(1000))
    assert len(figures) > 10
    assert "…" not in text
    assert not set(figures) - set(re.findall(r"\d+\.\d+%?", text))
    assert max(map(len, text.splitlines())) <= width


def test_a_text_beside_figures_wraps_and_they_do_not(capsys, monkeypatch):
    rows = [("1.234", "2.50 ± 0.10", "taps [0, 3, 5] instead of [3, 5, 6]; residual raw")] * 2
    for width in (20, 40, 60, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        Console().show(
            terminal.Figures("wirings", ("score", "accept length", "wiring"), rows, True)
        )
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= width
        assert text.count("1.234") == text.count("2.50") == text.count("0.10") == 2
        assert "…" not in text


def test_brackets_in_a_table_are_text(capsys, monkeypatch):
    """rich would take them for its markup: a mark such as [best] was a style, and not to be seen."""
    monkeypatch.setenv("COLUMNS", "200")
    rows = [("1.2", "2.5", "taps [0, 3, 5] [best, equivalent] [/b]")]
    for prose in (True, False):
        Console().show(terminal.Figures("[a] title", ("score", "length", "wiring"), rows, prose))
        text = capsys.readouterr().out
        assert "[a] title" in text
        assert rows[0][2] in text


def test_a_sweep_is_one_that_sglang_runs():
    shapes = grid(Shape.chain(12))
    assert len(set(shapes)) == len(shapes)
    assert all(shape.checked() for shape in shapes)
    assert Shape.chain(12) in shapes
    assert {shape.topk for shape in shapes} == {1, 2, 4, 8}


def filled(value, text, key=""):
    """The same, with every text in it replaced that is not from a closed list."""
    if isinstance(value, str):
        return value if key in ("verdict", "severity") else text
    if isinstance(value, dict):
        return {name: filled(inner, text, name) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled(inner, text, key) for inner in value]
    return value


class Marks(HTMLParser):
    """Every tag with its attributes; only a title may hold what a report says."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, [(k, v) for k, v in attributes if k != "title"]))


def marks(content):
    parser = Marks()
    parser.feed(content)
    return parser.seen


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></table><!--",
    "' x='",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_value_of_a_report_adds_a_tag_to_its_page(report, text):
    content = report.model_dump(mode="json") | {
        "engine": {"engine": "x", "sentence": "x", "causes": [{"name": "x"}]},
        "checkpoint": {"files": {"x": "x"}},
    }
    content["against"]["first_difference"]["stage"] = "x"

    def page_of(said):
        told = filled(content, said)
        told["environment"][said] = said
        told["checkpoint"]["files"][said] = said
        told["against"]["differences"][said] = (said, said)
        told["against"]["tensors"] = {said: "different"}
        return page(Report.model_validate(told), (0.9, 0.8, 0.7))

    assert marks(page_of(text)) == marks(page_of("harmless"))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_value_of_a_diagnosis_adds_a_tag_to_its_page(text, monkeypatch):
    monkeypatch.setattr("eagle3_interop.validators.diagnose.run.answer", lambda said: said)
    wiring = {"taps": [1, 3, 5], "flags": {"residual": "x"}, "score": 1.0, "accept_length": 2.0}
    entry = wiring | {
        "interval": [1.9, 2.1],
        "changes": ["x"],
        "gain": 0.1,
        "gain_interval": [0, 0.2],
    }
    remark = {"code": "x", "severity": "note", "where": "x", "message": "x", "fix": "x"}
    content = {
        "verdict": "better-wiring", "configured": entry, "best": entry | {"equivalent": []},
        "candidates": [entry], "tried": 7, "seconds": 1.0, "findings": [remark],
        "environment": {"draft": {"path": "x"}, "target": {"path": "x"}},
    }  # fmt: skip

    def page_of(said):
        return heatmap.page(SimpleNamespace(report=filled(content, said), diagnosis=said, heat={}))

    assert marks(page_of(text)) == marks(page_of("harmless"))
