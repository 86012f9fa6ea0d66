"""Folders of files to read from: a local one, or a repository of the Hugging Face Hub.

Both give names with sizes, ranges of bytes, and a local path for a file that is needed whole.
"""

import difflib
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

from eagle3_interop.schemas.findings import Refused, Unavailable, Usage, finding, refusal
from eagle3_interop.schemas.hub import split_hub_id

_HUB_URLS = (
    re.compile(
        r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<repo>[^/?#@]+/[^/?#@]+)"
        r"(?:/(?:tree|commit)/(?P<revision>refs/(?:pr|convert)/[^/?#]+|[^/?#]+))?/?(?:[?#].*)?"
    ),
    re.compile(r"hf://(?:models/)?(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^@]+?))?/?"),
)
_ENTRIES = 10_000
"""Of a folder that are looked at for a name like the one that is not there."""
_IMPOSSIBLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
_LONGEST = 255
"""Bytes of a name; below a folder that does not exist yet no file system complains of more."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")


class State(NamedTuple):
    """What a file says of itself without being read; it changes when somebody writes or replaces it."""

    device: int
    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, file: Path | int) -> "State":
        """Of a path, links followed, or of an open file.

        Raises:
            OSError: there is no such file.
        """
        return cls.told(file.stat() if isinstance(file, Path) else os.fstat(file))

    @classmethod
    def told(cls, found: os.stat_result) -> "State":
        """Of what the system said."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Folder(Protocol):
    """What a checkpoint needs of the place it lies in.

    Attributes:
        label: what the user calls it.
        name: its Hub id, if it was given by one.
        revision: the commit, where known.
        sizes: bytes of each file directly in it.
        states: of each file on the local disk that was asked for, as it was listed.
        odd: names that are neither files nor folders: links to nothing, devices, pipes.
    """

    label: str
    name: str | None
    revision: str | None
    sizes: dict[str, int]
    states: dict[Path, State]
    odd: tuple[str, ...]

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a file; fewer where it ends early."""

    def path(self, name: str) -> Path:
        """The file on a local disk (downloaded now, if need be)."""

    def sha256(self, name: str) -> str | None:
        """The file's digest where the Hub already gave it."""


class LocalFolder:
    """A folder on a local disk; symlinks found by listing are followed."""

    def __init__(self, folder: Path, label: str, name: str | None = None) -> None:
        """List the files directly in the folder."""
        self.folder = folder.absolute()
        self.label = label
        self.name = name
        commit = self.folder.name
        in_cache = self.folder.parent.name == "snapshots" and _COMMIT.fullmatch(commit)
        self.revision = commit if in_cache else None
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        self._listed = {
            entry.name: State.told(entry.stat()) for entry in entries if entry.is_file()
        }
        self.odd = tuple(
            entry.name for entry in entries if not entry.is_file() and not entry.is_dir()
        )
        self.sizes = {name: state.size for name, state in self._listed.items()}
        self.states: dict[Path, State] = {}

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a file; fewer where it ends early."""
        with self.path(name).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def path(self, name: str) -> Path:
        """The file."""
        path = self.folder / name
        if name in self._listed:
            self.states[path] = self._listed[name]
        return path

    def sha256(self, name: str) -> str | None:
        """The digest that the Hub's cache uses as the name of a large file."""
        blob = (self.folder / name).resolve()
        return blob.name if blob.parent.name == "blobs" and _SHA256.fullmatch(blob.name) else None


class HubFolder:
    """A repository of the Hub at one commit: ranges are requested, whole files are downloaded."""

    def __init__(self, repo: str, revision: str | None, label: str) -> None:
        """Ask the Hub for the list of files."""
        from huggingface_hub import HfApi

        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
        files = [file for file in info.siblings or () if "/" not in file.rfilename]
        self.label = label
        self.repo, self.requested = repo, revision
        self.name: str | None = repo
        self.revision = info.sha
        self.sizes = {file.rfilename: file.size or 0 for file in files}
        self.odd: tuple[str, ...] = ()
        self._digests = {file.rfilename: file.lfs.sha256 for file in files if file.lfs}
        self.states: dict[Path, State] = {}

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a file, by one range request."""

        def request() -> bytes:
            from huggingface_hub import HfFileSystem

            url = f"{self.repo}@{self.revision}/{name}"
            with HfFileSystem().open(url, "rb", cache_type="none") as file:
                file.seek(start)
                return bytes(file.read(stop - start))

        return _from_hub(self.label, request)

    def path(self, name: str) -> Path:
        """The file in the Hub's own cache, downloaded now unless it is there."""

        def download() -> Path:
            from huggingface_hub import hf_hub_download

            # By the name that the user gave, not by commit: so the cache serves it offline, too.
            path = Path(hf_hub_download(self.repo, name, revision=self.requested))
            if path.parent.name != self.revision:
                raise Unavailable("the repository changed meanwhile")
            self.states.setdefault(path, State.of(path))
            return path

        return _from_hub(self.label, download)

    def sha256(self, name: str) -> str | None:
        """The digest of a large file."""
        return self._digests.get(name)


def check_unchanged(states: Mapping[Path, State]) -> None:
    """Refuse files that were written or replaced since they were listed.

    Raises:
        Unavailable: with the first of them.
    """
    for path, state in states.items():
        try:
            same = State.of(path) == state
        except OSError:
            same = False
        if not same:
            raise changed(path)


def changed(path: Path) -> Unavailable:
    """What there is to say of a file that is not what it was."""
    message = "changed while it was read; nothing was written. Run again when nothing writes to it"
    return Unavailable(f"{path} {message}.")


def check_links(paths: Iterable[Path], states: Mapping[Path, State]) -> None:
    """Refuse links that leave their folder: whoever made the folder would choose what is copied.

    A link may point inside the folder, and in the Hub's cache into the repository's own ``blobs``.

    Args:
        paths: files that are only copied.
        states: as they were listed; the file that is copied is the one that was looked at here.

    Raises:
        Refused: with every such link.
        Unavailable: a file was exchanged meanwhile.
    """
    found = []
    for path in paths:
        place = path.resolve()
        if not any(place.is_relative_to(home) for home in _homes(path.parent.resolve())):
            message = f"a link to {place}, outside of the folder; it would only be copied."
            found.append(finding("link-elsewhere", path.name, message))
        elif not place.is_file():
            message = "no file, but a link to nothing, a device or a pipe; it cannot be copied."
            found.append(finding("link-elsewhere", path.name, message))
        elif path in states and State.told(place.lstat()) != states[path]:
            raise changed(path)
    if found:
        raise Refused(found)


def _homes(folder: Path) -> Iterator[Path]:
    """Where the files of a folder may lie, its links followed."""
    yield folder
    for place in (folder, *folder.parents):
        repository = place.parent.parent
        in_snapshots = place.parent.name == "snapshots" and _COMMIT.fullmatch(place.name)
        if in_snapshots and repository.name.startswith("models--"):
            yield repository / "blobs"


def local_path(word: str | Path) -> Path:
    """The path that the user names, which need not exist; ``~`` is expanded.

    Raises:
        Usage: it is empty, of a user that there is none of, or such as no file system has.
        Unavailable: the disk does not say what is there.
    """
    if not str(word).strip():
        raise Usage("a path is empty; was a variable of the shell not set?")
    try:
        path = Path(word).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
        longest = max(len(os.fsencode(part)) for part in path.absolute().parts)
    except (RuntimeError, ValueError) as error:
        raise Usage(f"{str(word)[:80]!r}: {error}") from error
    except OSError as error:
        wrong = Usage if error.errno in _IMPOSSIBLE else Unavailable
        raise wrong(f"{str(word)[:80]!r}: {error.strerror}") from error
    if longest > _LONGEST:
        raise Usage(f"{str(word)[:80]!r}: {os.strerror(errno.ENAMETOOLONG)}")
    return path


def hub_id(word: str) -> str:
    """The ``ORG/NAME[@REVISION]`` that a URL of the Hub or an ``hf://`` names; any other word as it is."""
    for form in _HUB_URLS:
        if match := form.fullmatch(unquote(word)):
            revision = match["revision"]
            return match["repo"] + (f"@{revision}" if revision else "")
    return word


def did_you_mean(word: str | Path, *, folder: bool = False) -> str:
    """The end of a sentence about a path that is not there: one that is, and has nearly its name.

    Args:
        word: the path.
        folder: only a folder is meant.
    """
    with suppress(OSError, RuntimeError, ValueError):
        near = _nearest(Path(word).expanduser())
        if near is not None and (near.is_dir() or not folder):
            return f"; did you mean {near}?"
    return ""


def _nearest(path: Path) -> Path | None:
    found, wrong = Path(path.anchor), False
    for part in path.parts[bool(path.anchor) :]:
        if not (found / part).exists():
            with os.scandir(found) as entries:
                names = {entry.name.lower(): entry.name for entry in islice(entries, _ENTRIES)}
            near = difflib.get_close_matches(part.lower(), names, n=1, cutoff=0.7)
            if not near:
                return None
            part, wrong = names[near[0]], True
        found /= part
    return found if wrong else None


def local_folder(word: str | Path) -> Path | None:
    """The existing local folder that a word names, if it does: it may be a Hub id as well."""
    with suppress(Usage, Unavailable):
        path = local_path(word)
        return path if path.is_dir() else None
    return None


def unmistakable(spec: str) -> str:
    """A local folder's path such that nobody takes it for a Hub id: ``data/target`` is ``./data/target``."""
    return f"./{spec}" if split_hub_id(spec) else spec


def pinned(spec: str) -> tuple[str, str | None]:
    """A folder as it is, or a Hub id and its revision, which engines want apart.

    Neither engines nor a shell, inside quotes, expand ``~``.
    """
    spec = hub_id(spec)
    folder = local_folder(spec)
    if folder is not None:
        return str(folder) if spec.startswith("~") else spec, None
    return split_hub_id(spec) or (spec, None)


def open_folder(spec: str) -> Folder:
    """A local folder (which wins), or the Hub repository ``ORG/NAME[@REVISION]``.

    Raises:
        Usage: neither a folder nor a Hub id; or a path that was mistyped.
        Unavailable: the Hub cannot be reached, or has no such repository.
    """
    spec = hub_id(spec)
    local = local_path(spec)
    named = hub_named(spec)
    if named is None:
        try:
            return LocalFolder(local, unmistakable(spec))
        except OSError as error:
            raise Unavailable(f"{spec}: {error.strerror}") from error
    repo, revision = named
    try:
        return _from_hub(spec, lambda: HubFolder(repo, revision, spec))
    except Unavailable as failure:
        return _from_cache(repo, revision, spec, _mistyped(spec, local) or failure)


def hub_named(spec: str) -> tuple[str, str | None] | None:
    """A Hub id and its revision, or None for an existing local folder, which wins.

    Raises:
        Usage: neither of the two.
    """
    spec = hub_id(spec)
    local = local_path(spec)
    if local.is_dir():
        return None
    if local.exists():
        raise Usage(f"{spec} is a file; give the folder that holds it")
    named = split_hub_id(spec)
    if named is None:
        near = did_you_mean(spec, folder=True)
        raise Usage(f"{spec} is neither a folder nor a Hub id ORG/NAME[@REVISION]{near}")
    return named


def safe_names(names: Mapping[str, Any], sizes: Mapping[str, int], index: str) -> list[str]:
    """The distinct file names of an index's ``weight_map``, in order.

    Raises:
        Refused: a name that leaves the folder, or that is not in it (code ``broken-index``).
    """
    for tensor, name in names.items():
        if not isinstance(name, str) or re.search(r"[/\\\0]", name) or name in ("", ".", ".."):
            raise refusal("broken-index", index, f"{tensor!r} is said to be in {name!r}")
        if name not in sizes:
            message = f"{tensor!r} is said to be in {name}, which is not in the folder"
            raise refusal("broken-index", index, message, "Download the missing file.")
    return sorted(set(names.values()))


def _from_hub(label: str, action: Callable[[], T]) -> T:
    try:
        return action()
    except Exception as error:  # requests, httpx and the Hub's own errors have no common base
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        message = f"{label}: no such local folder, and the Hub did not give it: {reason}"
        raise Unavailable(message) from error


def _mistyped(spec: str, path: Path) -> Usage | None:
    """What the Hub does not have, and looks like a folder here."""
    if near := did_you_mean(spec, folder=True):
        return Usage(f"{spec}: no such folder{near} Nor does the Hub give a model of that name.")
    if path.parent.is_dir():
        return Usage(
            f"{spec}: there is no {path.name} in the folder {path.parent}, nor on the Hub."
        )
    return None


def _from_cache(repo: str, revision: str | None, spec: str, failure: Exception) -> Folder:
    from huggingface_hub import snapshot_download

    try:
        cached = snapshot_download(repo, revision=revision, local_files_only=True)
    except Exception:
        raise failure from None
    return LocalFolder(Path(cached), spec, repo)
