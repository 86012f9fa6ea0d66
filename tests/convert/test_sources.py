"""Sources are read as they were listed: no links to other people's files, and nothing that changes meanwhile."""

import os
import shutil
from pathlib import Path

import drafts
import pytest
from typer.testing import CliRunner

from eagle3_interop.convert import api, cli
from eagle3_interop.convert.write import stream
from eagle3_interop.schemas.findings import Refused, Unavailable

DATA = Path(__file__).resolve().parents[1] / "data"
COMMIT = "0123456789" * 4
COPIED = ["tokenizer.json", "LICENSE", "generation_config.json", "chat_template.jinja"]


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def convert(source, output, **options):
    conversion = api.convert(api.load(str(source)), "vllm")
    return api.write(conversion, output, **options)


@pytest.fixture
def source(tmp_path):
    folder = drafts.speculators(tmp_path / "source")
    (folder / "tokenizer.json").write_text("tokens")
    return folder


@pytest.fixture
def secret(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "id_rsa").write_text("PRIVATE")
    return tmp_path / "home" / "id_rsa"


# Links


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("name", COPIED)
def test_a_link_to_a_file_of_somebody_else_is_refused_by_name(source, tmp_path, name):
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(Path("..", "home", "id_rsa"))
    with pytest.raises(Refused) as refused:
        convert(source, tmp_path / "out")
    (found,) = refused.value.findings
    assert (found.code, found.where) == ("link-elsewhere", name)
    assert not (tmp_path / "out").exists()


def test_a_link_of_a_link_is_followed_to_its_end(source, secret, tmp_path):
    (source / "notes").symlink_to(secret)
    (source / "LICENSE").symlink_to("notes")
    with pytest.raises(Refused, match="id_rsa"):
        convert(source, tmp_path / "out")


@pytest.mark.parametrize("kind", ["device", "nothing", "pipe"])
def test_what_is_called_like_a_licence_and_is_no_file_is_refused_by_name(source, tmp_path, kind):
    place = source / "LICENSE.txt"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    with pytest.raises(Refused) as refused:
        convert(source, tmp_path / "out")
    assert [(x.code, x.where) for x in refused.value.findings] == [
        ("link-elsewhere", "LICENSE.txt")
    ]
    assert api.load(str(source)).layout == "speculators"


def test_a_link_within_the_folder_is_copied(source, tmp_path):
    (source / "legal").mkdir()
    (source / "legal" / "text").write_text("MIT")
    (source / "LICENSE").symlink_to("legal/text")
    convert(source, tmp_path / "out")
    assert (tmp_path / "out" / "LICENSE").read_text() == "MIT"
    assert not (tmp_path / "out" / "LICENSE").is_symlink()


def test_a_folder_that_is_itself_a_link_is_its_own_place(source, tmp_path):
    (tmp_path / "link").symlink_to(source)
    convert(tmp_path / "link", tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "tokens"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_weights_and_config_may_be_links_to_anywhere(source, tmp_path, name):
    (source / name).rename(tmp_path / "elsewhere")
    (source / name).symlink_to(tmp_path / "elsewhere")
    convert(source, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").is_file()


def cached(source, tmp_path, below=""):
    """As the Hub's cache lays it out."""
    repository = tmp_path / "hub" / "models--org--draft"
    snapshot, blobs = repository / "snapshots" / COMMIT / below, repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in source.iterdir():
        shutil.copy(file, blobs / f"blob-{file.name}")
        (snapshot / file.name).symlink_to(os.path.relpath(blobs / f"blob-{file.name}", snapshot))
    return snapshot


@pytest.mark.parametrize("below", ["", "draft"])
def test_the_hubs_cache_is_read_through_its_links(source, tmp_path, below):
    convert(cached(source, tmp_path, below), tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "tokens"


def test_a_snapshot_may_not_point_into_another_repository(source, tmp_path):
    snapshot = cached(source, tmp_path)
    other = tmp_path / "hub" / "models--me--private" / "blobs"
    other.mkdir(parents=True)
    (other / "x").write_text("PRIVATE")
    (snapshot / "LICENSE").symlink_to(other / "x")
    with pytest.raises(Refused, match="LICENSE"):
        convert(snapshot, tmp_path / "out")


def test_blobs_that_are_a_link_to_elsewhere_are_elsewhere(source, secret, tmp_path):
    """A clone may bring folders that are named as the cache's are."""
    snapshot = cached(source, tmp_path)
    blobs = tmp_path / "hub" / "models--org--draft" / "blobs"
    blobs.rename(blobs.with_name("old"))
    for file in blobs.with_name("old").iterdir():
        shutil.copy(file, secret.parent / file.name)
    blobs.symlink_to(secret.parent)
    with pytest.raises(Refused, match=r"tokenizer\.json"):
        convert(snapshot, tmp_path / "out")


@pytest.mark.parametrize("parent", ["snapshots", "models--org--draft/snapshots"])
def test_a_snapshot_has_the_name_of_a_commit_in_a_repository_of_the_cache(source, tmp_path, parent):
    folder = tmp_path / parent / "main"
    folder.parent.mkdir(parents=True)
    source.rename(folder)
    blobs = folder.parent.parent / "blobs"
    blobs.mkdir()
    (blobs / "x").write_text("PRIVATE")
    (folder / "LICENSE").symlink_to("../../blobs/x")
    with pytest.raises(Refused, match="LICENSE"):
        convert(folder, tmp_path / "out")


def test_looking_at_a_folder_asks_nothing_of_its_links(source, secret):
    (source / "LICENSE").symlink_to(secret)
    assert run("inspect", source).exit_code == 0


def test_a_link_that_is_exchanged_after_the_look_is_not_copied(source, secret, tmp_path):
    conversion = api.convert(api.load(str(source)), "vllm")
    (source / "tokenizer.json").unlink()
    (source / "tokenizer.json").symlink_to(secret)
    with pytest.raises(Unavailable, match=r"tokenizer\.json changed while it was read"):
        api.write(conversion, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_link_that_is_exchanged_before_the_look_is_not_copied(source):
    """Listed with one file behind it and looked at with another: neither is taken."""
    loaded = api.load(str(source))
    (source / "tokenizer.json").unlink()
    (source / "tokenizer.json").write_text("others")
    with pytest.raises(Unavailable, match=r"tokenizer\.json changed"):
        api.convert(loaded, "vllm")


# Sources that change


def touched(path):
    os.utime(path, ns=(1, 1))


def rewritten(path):
    path.write_bytes(bytes(path.stat().st_size))


def grown(path):
    with path.open("ab") as file:
        file.write(b"more")


def exchanged(path):
    """Another file with the same bytes, size and time."""
    before = path.stat()
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = [touched, rewritten, grown, exchanged, Path.unlink, lambda path: os.truncate(path, 20)]
OPTIONS = [{}, {"link": True}, {"digest": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_source_that_changes_is_refused(
    source, tmp_path, monkeypatch, when, change, name, options
):
    """Between the look and the first byte, or after the last."""
    conversion = api.convert(api.load(str(source)), "vllm")
    if when == "before":
        change(source / name)
    else:
        fill = stream._fill

        def filled(*arguments, **keywords):
            files = fill(*arguments, **keywords)
            change(source / name)
            return files

        monkeypatch.setattr(stream, "_fill", filled)
    with pytest.raises(Unavailable, match=name):
        api.write(conversion, tmp_path / "out", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_target_that_changes_is_refused_too(tmp_path):
    target = tmp_path / "target"
    shutil.copytree(DATA / "target", target)
    options = api.Options(target=str(target))
    loaded = api.load(str(DATA / "drafts" / "plain"), "auto", options)
    conversion = api.convert(loaded, "vllm", options)
    touched(target / "config.json")
    with pytest.raises(Unavailable, match=r"config\.json changed while it was read"):
        api.write(conversion, tmp_path / "out")


def test_the_command_ends_with_4_and_nothing_written(source, tmp_path, monkeypatch):
    fill = stream._fill

    def filled(*arguments, **keywords):
        grown(source / "model.safetensors")
        return fill(*arguments, **keywords)

    monkeypatch.setattr(stream, "_fill", filled)
    result = run("auto-to-vllm", source, tmp_path / "out")
    assert result.exit_code == 4
    assert "nothing was written" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_that_the_conversion_does_not_read_may_change(source, tmp_path):
    (source / "trainer.log").write_text("step 1")
    conversion = api.convert(api.load(str(source)), "vllm")
    (source / "trainer.log").write_text("step 1, step 2")
    api.write(conversion, tmp_path / "out")
