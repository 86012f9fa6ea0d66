"""What ``inspect`` tells people: kept word for word, and every verdict with its reason."""

import json

import drafts
import inspected
import pytest
from typer.testing import CliRunner

from eagle3_interop.convert.cli import app
from eagle3_interop.convert.decide.description import describe
from eagle3_interop.schemas.codes import CODES

EXPECTED = {path.name: path.read_text() for path in inspected.GOLDEN.glob("*.txt")}
WRITE = "read what has changed, then: python tests/inspected.py"


@pytest.mark.parametrize("place", inspected.TRAINED, ids=lambda place: place.name)
def test_the_text_of_a_trained_draft_is_the_one_that_was_read(place):
    assert inspected.text_of_trained(place) == EXPECTED[f"{place.name}.txt"], WRITE


@pytest.mark.parametrize("name", inspected.TROUBLED)
def test_the_text_of_a_troubled_folder_is_the_one_that_was_read(name, tmp_path):
    assert inspected.text_of_troubled(name, tmp_path) == EXPECTED[f"{name}.txt"], WRITE


def test_no_text_is_kept_of_a_folder_that_is_gone():
    names = {*(place.name for place in inspected.TRAINED), *inspected.TROUBLED}
    assert EXPECTED.keys() == {f"{name}.txt" for name in names}


def inspect(*words):
    return CliRunner().invoke(app, ["inspect", *map(str, words)])


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("two_ids_for_three_blocks", "taps-mismatch"),
        ("no_map", "missing-map"),
        ("a_tensor_is_missing", "missing-tensor"),
        ("more_layers_than_said", "layer-count-short"),
        ("another_target", "taps-out-of-range"),
    ],
)
def test_a_folder_with_errors_is_refused_and_described(name, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = inspected.TROUBLED[name](tmp_path / "draft")
    ran = inspect(tmp_path / "draft", *(made if isinstance(made, list) else []), "--json")
    report = json.loads(ran.stdout)
    assert (ran.exit_code, report["status"]) == (3, "refused")
    assert report["draft"]["hidden_size"] == drafts.H
    assert code in [item["code"] for item in report["findings"]]
    assert {row["convertible"] for row in report["engines"].values()} == {"refused"}
    assert all(code in row["reasons"] for row in report["engines"].values())


def test_what_cannot_be_read_as_a_draft_at_all_is_refused_without_a_description(tmp_path):
    ran = inspect(drafts.target(tmp_path / "model"), "--json")
    report = json.loads(ran.stdout)
    assert (ran.exit_code, report["draft"], report["engines"]) == (3, None, {})


@pytest.mark.parametrize("name", inspected.TROUBLED)
def test_every_verdict_but_a_good_one_has_its_reason(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    made = inspected.TROUBLED[name](tmp_path / "draft")
    ran = inspect(tmp_path / "draft", *(made if isinstance(made, list) else []))
    first = ran.stdout.partition("engine      release")[0]
    rows = [line for line in first.splitlines() if line.startswith(("spec", "sglang", "vllm"))]
    assert len(rows) == 3
    for row in rows:
        good = row.split()[1:] == ["runs", "it", "runs"]
        assert good or "[" in row or "settle first" in row or "computes" in row, row


@pytest.mark.parametrize("width", [30, 60, 80, 110, 200])
def test_no_word_is_cut_on_a_narrow_terminal(width, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    said = inspect(drafts.vllm(tmp_path / "draft"), "--quiet").stdout
    table = said.partition("\n")[2]
    assert max(map(len, table.splitlines())) <= width
    assert "…" not in said


def test_a_window_biases_and_numbers_of_the_rope_are_shown(tmp_path):
    inspected.TROUBLED["windows_and_yarn"](tmp_path / "one")
    inspected.TROUBLED["normed_residual_and_biases"](tmp_path / "two")
    one, two = (inspect(tmp_path / name).stdout for name in ("one", "two"))
    assert "by layer: 64, full" in one
    assert "yarn scaling (factor 4, original_max_position_embeddings 512)" in one
    assert "4 a step" in one
    assert "q/k/v biases" in two


def test_a_value_that_an_error_leaves_open_is_shown_as_that(tmp_path):
    from eagle3_interop.convert import api

    inspected.TROUBLED["two_ids_for_three_blocks"](tmp_path / "draft")
    loaded = api.load(tmp_path / "draft", describing=True)
    (taps,) = [line for line in describe(loaded) if line.startswith("taps")]
    assert taps.split() == ["taps", "not", "settled", "(in", "doubt:", "taps-mismatch)"]


def test_explain_without_a_code_lists_them_all():
    ran = CliRunner().invoke(app, ["explain"])
    assert ran.exit_code == 0
    assert [line.split()[0] for line in ran.stdout.splitlines()] == sorted(CODES)
    rows = json.loads(CliRunner().invoke(app, ["explain", "--json"]).stdout)
    assert {name: row["meaning"] for name, row in rows.items()} == {
        name: entry.meaning for name, entry in CODES.items()
    }


def test_help_shows_what_answers_questions_before_the_conversions():
    said = CliRunner().invoke(app, ["--help"]).stdout
    first, conversions = said.split("Conversions:")
    commands = first.split("Commands:")[1]
    assert [line.split()[0] for line in commands.splitlines() if line.strip()] == [
        "inspect", "diff", "serve", "explain",
    ]  # fmt: skip
    assert conversions.count("-to-") == 16


def converted(source, output, *words):
    return CliRunner().invoke(app, ["speculators-to-universal", str(source), str(output), *words])


def test_a_file_that_is_written_anew_although_no_tensor_changed_says_why(tmp_path):
    from safetensors.numpy import save_file

    source = drafts.speculators(tmp_path / "draft")
    _, tensors = drafts.load(source)
    whole = converted(source, tmp_path / "one").stdout
    assert "0 changed" in whole
    assert "written anew all the same" not in whole
    save_file(tensors, source / "model.safetensors")
    said = converted(source, tmp_path / "two").stdout
    assert "0 changed" in said
    assert "without the metadata format=pt" in said


def test_files_that_are_split_anew_say_so(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    said = converted(source, tmp_path / "out", "--max-shard-size", "100KB").stdout
    assert "0 changed" in said
    assert "put together anew, for their size" in said


@pytest.mark.parametrize("tied", [False, True])
def test_a_key_that_speculators_itself_writes_is_no_remark(tied, tmp_path):
    said = inspect(drafts.speculators(tmp_path / "draft", tie_word_embeddings=tied)).stderr
    assert ("unread-keys" in said) is tied
