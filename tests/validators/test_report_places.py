"""Where reports may go: never on what a command reads, into a model's folder, or on one another."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3_interop.validators import diagnose_cli, validate_cli

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture
def place(tmp_path, monkeypatch):
    shutil.copytree(DATA / "target", tmp_path / "target")
    for name in ("draft", "source", "other"):
        shutil.copytree(DATA / "drafts" / "plain", tmp_path / name)
    (tmp_path / "target" / "sub").mkdir()
    (tmp_path / "prompts.txt").write_text("Hello\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=["validate", "diagnose"])
def command(request, monkeypatch):
    """Torch must not be asked for: wrong usage is found before the work."""
    app = {"validate": validate_cli.app, "diagnose": diagnose_cli.app}[request.param]
    more = ("--against", "source") if request.param == "validate" else ()

    def run(*arguments):
        words = ("draft", "--target", "target", "--prompts", "prompts.txt", *more, *arguments)
        return CliRunner().invoke(app, list(words))

    for module in (validate_cli, diagnose_cli):
        monkeypatch.setattr(module, "require_extra", lambda: pytest.fail("the work began"))
    run.name = request.param
    return run


def everything_in(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}  # fmt: skip


READ = {
    "weights": "draft/model.safetensors",
    "config": "draft/config.json",
    "a new file of the draft": "draft/report.json",
    "by another way": "target/../draft/model.safetensors",
    "the target's tokenizer": "target/tokenizer.json",
    "below the target": "target/sub/report.json",
    "prompts": "prompts.txt",
    "another model's config": "other/config.json",
    "another model's folder": "other/report.json",
}


def test_only_the_json_goes_to_stdout(command, place):
    before = everything_in(place)
    ran = command("--html", "-")
    assert ran.exit_code == 2
    assert "--html -: only --json goes to stdout" in ran.output
    assert everything_in(place) == before


@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize("file", READ.values(), ids=READ)
def test_a_report_never_lands_on_or_among_what_is_read(place, command, option, file):
    before = everything_in(place)
    result = command(option, file)
    assert result.exit_code == 2
    assert file in result.stderr
    assert everything_in(place) == before


@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize("file", ["draft/model.safetensors", "prompts.txt"])
def test_links_make_no_difference(place, command, option, link, file):
    link(place / "report", place / file)
    before = everything_in(place)
    assert command(option, "report").exit_code == 2
    assert everything_in(place) == before


def test_what_a_link_in_the_draft_points_at_is_read_too(place, command):
    (place / "draft" / "model.safetensors").rename(place / "blob")
    (place / "draft" / "model.safetensors").symlink_to(place / "blob")
    before = everything_in(place)
    assert command("--json", "blob").exit_code == 2
    assert everything_in(place) == before


def test_the_source_of_a_comparison_is_read(place):
    before = everything_in(place)
    words = ("draft", "--target", "target", "--against", "source", "--json", "source/config.json")
    assert CliRunner().invoke(validate_cli.app, list(words)).exit_code == 2
    assert everything_in(place) == before


def test_the_python_of_an_engine_is_read(place):
    (place / "python").symlink_to(sys.executable)
    words = ["draft", "--target", "target", "--engine", "vllm", "--engine-python", "python"]
    result = CliRunner().invoke(validate_cli.app, [*words, "--json", "python"])
    assert result.exit_code == 2
    assert "which is read" in result.stderr


@pytest.mark.parametrize("second", ["r", "./r", "target/../r"])
def test_reports_never_land_on_one_another(place, command, second):
    result = command("--json", "r", "--html", second)
    assert result.exit_code == 2
    assert not (place / "r").exists()


def test_reports_that_exist_under_two_names_are_one(place, command):
    (place / "a").write_text("earlier")
    (place / "b").hardlink_to(place / "a")
    assert command("--json", "a", "--html", "b").exit_code == 2


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("file", ["absent/r", "target", "draft/config.json/r"])
def test_a_report_needs_a_folder_that_exists(command, file):
    assert command("--json", file).exit_code == 2


@pytest.mark.usefixtures("place")
def test_a_place_where_nothing_may_be_written_is_found_before_the_work(command, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    assert command("--json", "r").exit_code == 4


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="/proc takes no file, not even of root")
def test_a_place_that_takes_no_file_of_root_is_found_before_the_work(command, place):
    before = everything_in(place)
    assert command("--json", "/proc/r").exit_code == 4
    assert everything_in(place) == before


@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize("file", ["streams/streams.json", "streams/r"])
def test_a_report_never_lands_on_or_among_recordings(command, place, option, file):
    (place / "streams").mkdir()
    (place / "streams" / "streams.json").write_text("{}")
    before = everything_in(place)
    assert command("--streams", "streams", option, file).exit_code == 2
    assert everything_in(place) == before


# --write


@pytest.fixture
def diagnose(monkeypatch):
    monkeypatch.setattr(diagnose_cli, "require_extra", lambda: pytest.fail("the work began"))

    def run(*arguments):
        words = ("draft", "--target", "target", "--prompts", "prompts.txt", *arguments)
        return CliRunner().invoke(diagnose_cli.app, list(words))

    return run


@pytest.mark.parametrize("output", ["draft/new", "target/new", "target/sub/new", "draft", "."])
def test_a_written_checkpoint_lies_apart_from_what_is_read(place, diagnose, output):
    before = everything_in(place)
    assert diagnose("--write", output).exit_code == 2
    assert everything_in(place) == before


def test_a_written_checkpoint_replaces_nothing(place, diagnose):
    (place / "new").mkdir()
    assert diagnose("--write", "new").exit_code == 2


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("output", "file"), [("new", "new"), ("new/below", "new")])
def test_a_written_checkpoint_and_a_report_lie_apart(diagnose, output, file):
    result = diagnose("--write", output, "--json", file)
    assert result.exit_code == 2
    assert "--write" in result.stderr


@pytest.mark.usefixtures("place")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="/proc takes no file, not even of root")
def test_a_place_for_the_checkpoint_that_takes_nothing_of_root_is_found_before_the_work(diagnose):
    assert diagnose("--write", "/proc/out").exit_code == 4


@pytest.mark.usefixtures("place")
def test_an_unwritable_place_for_the_checkpoint_is_found_before_the_work(diagnose, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    assert diagnose("--write", "new").exit_code == 4


# What may be written


def test_reports_go_anywhere_else(place):
    words = ["draft", "--target", "target", "--prompts", "prompts.txt", "--max-new-tokens", "4"]
    (place / "earlier.json").write_text("{}")
    files = ["--json", "earlier.json", "--html", "page.html"]
    assert CliRunner().invoke(validate_cli.app, [*words, *files]).exit_code == 0
    assert (place / "earlier.json").stat().st_size > 100
    assert (place / "page.html").exists()
    assert CliRunner().invoke(validate_cli.app, [*words, "--json", "/dev/null"]).exit_code == 0


def test_a_checkpoint_that_changes_while_it_is_validated_gets_no_report(place, monkeypatch):
    """The figures would be of one file, and the digests that a push goes by of another."""
    from eagle3_interop.validators.prove import validate

    measure = validate._measure

    def measured(*arguments):
        os.utime(place / "draft" / "model.safetensors", ns=(1, 1))
        return measure(*arguments)

    monkeypatch.setattr(validate, "_measure", measured)
    words = ["draft", "--target", "target", "--prompts", "prompts.txt", "--max-new-tokens", "4"]
    result = CliRunner().invoke(validate_cli.app, [*words, "--json", "r.json"])
    assert result.exit_code == 4
    assert "changed while it was read" in result.stderr
    assert not (place / "r.json").exists()
