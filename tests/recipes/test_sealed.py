"""What a push sends is what was hashed, whenever and however a file is swapped."""

import hashlib
import io
import json
import os

import pytest

from eagle3_interop.recipes.publish import sealed
from eagle3_interop.recipes.publish.sealed import Changed, Sealed

# The client's own way of sending a file over LFS.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(autouse=True)
def _drawn_at_once(monkeypatch):
    monkeypatch.setattr("eagle3_interop.recipes.publish.card.draw", lambda _: b"\x89PNG")


@pytest.fixture
def blocks(monkeypatch):
    """Blocks of sixteen bytes."""
    monkeypatch.setattr(sealed, "BLOCK", 16)


def replace(path, content):
    """Another file takes the name."""
    other = path.with_name("other")
    other.write_bytes(content)
    other.replace(path)


def write_into(path, content):
    """The file itself changes."""
    with path.open("r+b") as file:
        file.write(content)


def link(path, content):
    """A link takes the name."""
    other = path.with_name("other")
    other.write_bytes(content)
    path.unlink()
    path.symlink_to(other)


def cut(path, content):
    """The file itself ends early."""
    os.truncate(path, len(content) // 2)


def grow(path, _content):
    """The file itself goes on."""
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 100])
def test_it_reads_like_the_file_in_any_pieces(tmp_path, size):
    content, path = bytes(i * 37 % 251 for i in range(size)), tmp_path / "file"
    path.write_bytes(content)
    with Sealed(path) as file:
        plain = io.BytesIO(content)
        assert file.sha256 == hashlib.sha256(content).hexdigest()
        blob = b"blob %d\0" % size + content
        assert file.git_sha1 == hashlib.sha1(blob, usedforsecurity=False).hexdigest()
        for offset, whence, count in [
            (0, 0, -1),
            (3, 0, 5),
            (-4, 2, 9),
            (2, 1, 20),
            (0, 0, 16),
            (14, 0, 4),
        ]:
            if offset < 0 and size < 4:
                continue
            assert file.seek(offset, whence) == plain.seek(offset, whence)
            assert file.read(count) == plain.read(count)
            assert file.tell() == plain.tell()


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("at", [0, 15, 16, 40, 99])
def test_a_byte_that_changed_ends_the_read_of_its_block(tmp_path, at):
    content, path = bytes(range(100)), tmp_path / "file"
    path.write_bytes(content)
    with Sealed(path) as file:
        with path.open("r+b") as other:
            other.seek(at)
            other.write(b"\xff")
        with pytest.raises(Changed, match="file was changed while it was being published"):
            file.read()
        start = at // 16 * 16
        assert file.read(start) == content[:start]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("change", [cut, grow])
def test_a_file_that_ends_early_or_goes_on_is_noticed(tmp_path, change):
    path = tmp_path / "file"
    path.write_bytes(bytes(40))
    with Sealed(path) as file:
        change(path, bytes(40))
        with pytest.raises(Changed):
            file.read()


MOMENTS = [
    "^GET /api/models",
    "^POST .*/preupload",
    "^POST .*/info/lfs",
    "^PUT ",
    "^POST .*/commit/",
]


@pytest.mark.parametrize("swap", [replace, write_into, link, cut, grow])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "eagle3_interop.json"])
def test_no_swap_puts_up_what_was_not_validated(hub, checkpoint, report, push, name, moment, swap):
    file = checkpoint / name
    good = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    tensors = json.loads(good["eagle3_interop.json"])["tensors"]
    path = report(checkpoint)
    other = bytearray(good[name])
    other[len(other) // 2] ^= 1
    hub.before(moment, lambda: swap(file, bytes(other)))
    result = push(checkpoint, path)
    files = hub.files("org/draft")
    if result.exit_code == 0:
        for sent in ("model.safetensors", "config.json", "LICENSE"):
            assert files[sent] == good[sent]
        # It goes up without paths of this machine: made from what was validated.
        assert json.loads(files["eagle3_interop.json"])["tensors"] == tensors
    else:
        assert result.exit_code == 4
        assert f"{name} was changed while it was being published" in result.stderr
        assert "Nothing was committed" in result.stderr
        assert "config.json" not in files
    if swap in (replace, link):
        assert result.exit_code == 0, "the open file is still what was hashed"


@pytest.mark.parametrize("name", ["config.json", "eagle3_interop.json"])
def test_what_the_card_says_is_of_the_files_that_are_sent(
    hub, checkpoint, report, push, name, monkeypatch
):
    """A config that was there while the folder was looked at, and gone when it was hashed."""
    from eagle3_interop.recipes.publish import bundle

    path, good = report(checkpoint), (checkpoint / name).read_bytes()
    (checkpoint / name).write_bytes(good.replace(b"{", b'{"other": 1,', 1))

    class Late(Sealed):
        def __init__(self, file):
            if file.name == name:
                file.write_bytes(good)
            super().__init__(file)

    monkeypatch.setattr(bundle, "Sealed", Late)
    result = push(checkpoint, path)
    assert result.exit_code == 4
    assert f"{name} was changed" in result.stderr
    assert hub.log == []


# A commit that is found wrong afterwards.


def tampered(tree):
    tree.update({"config.json": ("regular", b"{}")})


@pytest.mark.parametrize(("options", "branch"), [((), "main"), (("--revision", "v1"), "v1")])
def test_a_wrong_commit_is_said_with_the_way_to_take_it_back(
    hub, checkpoint, report, push, options, branch
):
    hub.tamper = tampered
    result = push(checkpoint, report(checkpoint), *options)
    assert result.exit_code == 4
    commit = hub.repos["org/draft"].refs[branch]
    assert (
        f"The branch {branch} of org/draft now holds files that were not validated."
        in result.stderr
    )
    assert f"git checkout {branch} && git revert --no-edit {commit} && git push" in result.stderr


def test_a_wrong_pull_request_is_to_be_closed(hub, checkpoint, report, push):
    hub.make("org/draft", {"README.md": b"# x\n"})
    hub.tamper = tampered
    result = push(checkpoint, report(checkpoint), "--create-pr")
    assert result.exit_code == 4
    assert "The pull request holds files that were not validated. Close it:" in result.stderr
    assert "/discussions/1" in result.stderr


def test_a_commit_that_cannot_be_read_back_is_said_to_be_there(hub, checkpoint, report, push):
    hub.before("^POST .*/commit/", lambda: hub.fail("^GET /api/models", 503))
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "the Hub failed (503)" in result.stderr
    assert "was made. It is not known whether it arrived whole: run this again" in result.stderr
    hub.faults.clear()
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    assert len(hub.repos["org/draft"].messages) == 2
