"""What may stand in the place of an output: nothing, or an output of this tool that is as it was written."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import drafts
import pytest
from typer.testing import CliRunner

from eagle3_interop.convert import api, cli
from eagle3_interop.convert.write import kernel, output_folder, stream
from eagle3_interop.convert.write.output_folder import remove_leftovers
from eagle3_interop.schemas.findings import Usage

DATA = Path(__file__).resolve().parents[1] / "data"


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def everything_in(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}  # fmt: skip


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def source(tmp_path):
    folder = drafts.speculators(tmp_path / "source")
    (folder / "tokenizer.json").write_text("tokens")
    return folder


@pytest.fixture
def output(source, tmp_path):
    assert run("auto-to-vllm", source, tmp_path / "out").exit_code == 0
    return tmp_path / "out"


def as_of_0_1_0(output):
    """0.1.0 recorded every file's size, and a digest only with ``--digest``."""
    said = json.loads((output / "eagle3_interop.json").read_text())
    for facts in said["files"].values():
        facts.pop("sha256", None)
    said["tool"]["version"] = "0.1.0"
    (output / "eagle3_interop.json").write_text(json.dumps(said, indent=2))


# Replaced


@pytest.mark.parametrize("options", [(), ("--digest",), ("--link",), ("--max-shard-size", "20KB")])
def test_an_output_as_it_was_written_is_replaced(source, tmp_path, options):
    assert run("auto-to-vllm", source, tmp_path / "out", *options).exit_code == 0
    assert run("auto-to-sglang", source, tmp_path / "out", "--overwrite").exit_code == 0
    assert json.loads((tmp_path / "out" / "eagle3_interop.json").read_text())["output"] == {"layout": "sglang"}  # fmt: skip
    assert names_in(tmp_path) == ["out", "source"]


def test_an_output_of_0_1_0_is_replaced(source, output):
    as_of_0_1_0(output)
    assert run("auto-to-vllm", source, output, "--overwrite").exit_code == 0
    said = json.loads((output / "eagle3_interop.json").read_text())["files"]
    recorded = {name: "sha256" in facts for name, facts in said.items()}
    assert recorded == {"model.safetensors": False, "tokenizer.json": True, "config.json": True}


def test_an_output_linked_to_its_source_leaves_the_source_when_replaced(source, tmp_path):
    before = everything_in(source)
    for _ in range(2):
        done = run("auto-to-vllm", source, tmp_path / "out", "--link", "--overwrite")
        assert done.exit_code == 0
    assert everything_in(source) == before


# Not replaced


def add(name, content="mine"):
    def change(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)

    return change


def edited(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"hidden_size": 48', '"hidden_size": 84'))
    assert (folder / "config.json").read_text() != text
    assert len((folder / "config.json").read_text()) == len(text)


def grown(folder):
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"\0")


def linked(folder):
    (folder / "config.json").rename(folder.parent / "config.json")
    (folder / "config.json").symlink_to(folder.parent / "config.json")


def said_by_another(folder):
    (folder / "eagle3_interop.json").write_text('{"tool": {"name": "other"}, "files": {}}')


CHANGES = {
    "a card": add("README.md"),
    "a download's cache": add(".cache/huggingface/x"),
    "a repository": add(".git/HEAD"),
    "attributes": add(".gitattributes"),
    "a training state": add("optimizer/state.pt"),
    "an empty folder": lambda folder: (folder / "logs").mkdir(),
    "a config edited to the same size": edited,
    "weights that grew": grown,
    "a file that is a link": linked,
    "a file that is missing": lambda folder: (folder / "tokenizer.json").unlink(),
    "no provenance": lambda folder: (folder / "eagle3_interop.json").unlink(),
    "provenance that is no JSON": add("eagle3_interop.json", "{"),
    "provenance of something else": said_by_another,
}


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry run"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_output_that_is_not_as_it_was_written_stays(source, output, change, dry):
    change(output)
    before = everything_in(output)
    result = run("auto-to-vllm", source, output, "--overwrite", *dry)
    assert result.exit_code == 2
    assert "--overwrite replaces an output of this tool" in result.stderr
    assert everything_in(output) == before


def project(folder):
    folder.mkdir()
    (folder / "config.json").write_text('{"port": 80}')
    (folder / "thesis.tex").write_text("years of work")


FOREIGN = {
    "a project with a config.json": project,
    "a target model": lambda place: shutil.copytree(DATA / "target", place),
    "a draft from elsewhere": lambda place: shutil.copytree(DATA / "drafts" / "plain", place),
    "an empty folder": Path.mkdir,
    "a file": lambda place: place.write_text("x"),
    "a dangling link": lambda place: place.symlink_to("nowhere"),
    "a link to a folder": lambda place: place.symlink_to(place.parent),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_what_this_tool_did_not_write_stays(source, tmp_path, make):
    place = tmp_path / "place"
    make(place)
    before = names_in(tmp_path), everything_in(tmp_path)
    assert run("auto-to-vllm", source, place, "--overwrite").exit_code == 2
    assert (names_in(tmp_path), everything_in(tmp_path)) == before


def test_a_link_to_an_earlier_output_stays(source, output, tmp_path):
    (tmp_path / "link").symlink_to(output)
    assert run("auto-to-vllm", source, tmp_path / "link", "--overwrite").exit_code == 2
    assert (tmp_path / "link").is_symlink()


# Never what is read


@pytest.mark.parametrize("role", ["source", "target"])
@pytest.mark.parametrize("relation", ["is", "lies in", "holds", "is by a link"])
def test_an_output_never_meets_what_is_read(output, source, tmp_path, role, relation):
    """Not even where what is read is itself an output of this tool, as it was written."""
    target = tmp_path / "target"
    shutil.copytree(output, target)
    read = {"source": output, "target": target}[role]
    (tmp_path / "link").symlink_to(tmp_path)
    place = {
        "is": read,
        "lies in": read / "below" / "it",
        "holds": tmp_path,
        "is by a link": tmp_path / "link" / read.name,
    }[relation]
    before = everything_in(tmp_path)
    from_, to = (output, place) if role == "source" else (source, place)
    result = run("auto-to-vllm", from_, to, "--target", target, "--overwrite")
    assert result.exit_code == 2
    assert "in one another" in result.stderr
    assert everything_in(tmp_path) == before


def test_the_library_protects_the_target_as_the_command_does(tmp_path):
    target = tmp_path / "target"
    shutil.copytree(DATA / "target", target)
    options = api.Options(target=str(target))
    plain = api.load(str(DATA / "drafts" / "plain"), "auto", options)
    conversion = api.convert(plain, "vllm", options)
    for place in (target, target / "below", tmp_path):
        with pytest.raises(Usage, match="in one another"):
            api.write(conversion, place, overwrite=True)


def test_the_blobs_that_a_snapshot_points_at_are_read_too(source, tmp_path):
    blobs = tmp_path / "blobs"
    source.rename(blobs)
    source.mkdir()
    for file in blobs.iterdir():
        (source / file.name).symlink_to(file)
    result = run("auto-to-vllm", source, blobs, "--overwrite")
    assert result.exit_code == 2
    assert "in one another" in result.stderr


# What appears meanwhile


@pytest.fixture(params=["in one step", "without renameat2"])
def system(request, monkeypatch):
    if request.param == "without renameat2":
        monkeypatch.setattr(kernel, "_rename", lambda *_: errno.ENOSYS)


def meanwhile(monkeypatch, action):
    """Do something when all files are written, before the last rename."""
    fill = stream._filled

    def filled(*arguments, **options):
        files = fill(*arguments, **options)
        action()
        return files

    monkeypatch.setattr(stream, "_filled", filled)


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)], ids=["", "overwrite"])
@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_what_appears_during_a_run_stays(source, tmp_path, monkeypatch, make, overwrite):
    place = tmp_path / "place"
    meanwhile(monkeypatch, lambda: make(place))
    before = names_in(tmp_path)
    result = run("auto-to-vllm", source, place, *overwrite)
    assert result.exit_code == 2, result.output
    assert names_in(tmp_path) == sorted([*before, "place"])
    other = tmp_path / "other"
    make(other)
    assert place.is_symlink() == other.is_symlink()
    if not place.is_symlink() and place.is_dir():
        assert everything_in(place) == everything_in(other)


@pytest.mark.usefixtures("system")
def test_an_output_changed_during_a_run_is_put_back(source, output, tmp_path, monkeypatch):
    meanwhile(monkeypatch, lambda: (output / "NOTES.md").write_text("mine"))
    result = run("auto-to-vllm", source, output, "--overwrite")
    assert result.exit_code == 2
    assert "NOTES.md" in result.stderr
    assert (output / "NOTES.md").read_text() == "mine"
    assert names_in(tmp_path) == ["out", "source"]


def test_what_a_run_killed_while_it_looked_has_swapped_out_is_not_removed(tmp_path):
    """Under the hidden name then lies what somebody else put at the output."""
    swapped = tmp_path / ".out.partial-1-abcd"
    project(swapped)
    remove_leftovers(tmp_path / "out")
    assert names_in(swapped) == ["config.json", "thesis.tex"]


def test_an_interruption_after_the_exchange_puts_a_foreign_folder_back(tmp_path, monkeypatch):
    place = tmp_path / "place"

    def stopped(*_):
        raise KeyboardInterrupt

    def interrupted():
        with output_folder.output_folder(place, overwrite=True):
            project(place)
            monkeypatch.setattr(output_folder, "_check_ours", stopped)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names_in(place) == ["config.json", "thesis.tex"]
    assert names_in(tmp_path) == ["place"]


CONVERSION = """
import sys
from eagle3_interop.convert.cli import app
from eagle3_interop.convert.write import stream
fill = stream._filled

def filled(*arguments, **options):
    files = fill(*arguments, **options)
    print("ready", flush=True)
    sys.stdin.readline()
    return files

stream._filled = filled
app(sys.argv[1:])
"""


def at_once(arguments, count=4):
    """Exit codes of conversions that have all written their files before any is renamed."""
    command = [sys.executable, "-c", CONVERSION, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen(command, text=True, **pipes) for _ in range(count)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    return sorted(process.returncode for process in processes)


def test_of_concurrent_runs_exactly_one_succeeds(source, tmp_path):
    assert at_once(["auto-to-vllm", source, tmp_path / "out", "--quiet"]) == [0, 2, 2, 2]
    assert names_in(tmp_path) == ["out", "source"]
    assert run("inspect", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize("exists", [True, False])
def test_concurrent_runs_with_overwrite_each_replace_the_whole(source, tmp_path, exists):
    place = tmp_path / "out"
    if exists:
        assert run("auto-to-vllm", source, place).exit_code == 0
    assert at_once(["auto-to-vllm", source, place, "--overwrite", "--quiet"]) == [0, 0, 0, 0]
    assert names_in(tmp_path) == ["out", "source"]
    assert run("auto-to-vllm", source, place, "--overwrite").exit_code == 0, "as it was written"


# A dry run looks at the place as the run does


def test_a_dry_run_refuses_an_existing_output(source, output):
    assert run("auto-to-vllm", source, output, "--dry-run").exit_code == 2
    assert run("auto-to-vllm", source, output, "--dry-run", "--overwrite").exit_code == 0


def test_a_dry_run_refuses_a_place_where_nothing_may_be_written(source, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert run("auto-to-vllm", source, tmp_path / "new", "--dry-run").exit_code == 4


def test_a_dry_run_says_that_the_disk_is_too_small(source, tmp_path, monkeypatch):
    usage = shutil.disk_usage(source)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    result = run("auto-to-vllm", source, tmp_path / "new", "--dry-run")
    assert result.exit_code == 4
    assert "10 are free" in result.stderr
