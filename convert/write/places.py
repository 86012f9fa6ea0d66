"""Where a command may write: never on what it reads, and never one output on another."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from eagle3_interop.convert.read.folders import hub_id, local_path
from eagle3_interop.convert.write.output_folder import check_free, check_writable
from eagle3_interop.schemas.findings import Unavailable, Usage

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


class Inputs:
    """Everything that a command reads: folders, files, and what the links in the folders point at."""

    def __init__(self, words: Iterable[str | Path | None]) -> None:
        """Look at what the user named; a Hub id, or what is not there, is no place on this disk."""
        self._folders: dict[Path, str | Path] = {}
        self._files: dict[Path, str | Path] = {}
        self._inodes: dict[tuple[int, int], str | Path] = {}
        for word in words:
            with suppress(Usage, Unavailable, OSError):
                if word is not None:
                    self._add(word)

    def _add(self, word: str | Path) -> None:
        path = local_path(hub_id(word) if isinstance(word, str) else word)
        if path.is_dir():
            self._folders[path.resolve()] = word
            files = [Path(entry) for entry in os.scandir(path) if entry.is_file()]
        else:
            files = [path] if path.is_file() else []
        for file in files:
            self._files[file.resolve()] = word
            self._inodes[_inode(file)] = word

    def around(self, output: Path) -> str | Path | None:
        """What is read and would lie in a folder that is written, or around it."""
        place = output.resolve()
        for folder, word in self._folders.items():
            if place.is_relative_to(folder) or folder.is_relative_to(place):
                return word
        return next((w for file, w in self._files.items() if file.is_relative_to(place)), None)

    def under(self, file: Path) -> str | Path | None:
        """What is read and would be written on, or into, by a file: under another name as well."""
        place = file.resolve()
        for folder, word in self._folders.items():
            if place.is_relative_to(folder):
                return word
        same = self._inodes.get(_inode(file)) if file.is_file() else None
        return self._files.get(place) if same is None else same


def check_apart(output: Path, reads: Iterable[str | Path | None]) -> None:
    """Refuse a folder to write that lies in, on or around anything that is read.

    Raises:
        Usage: with what it is.
    """
    word = Inputs(reads).around(output)
    if word is not None:
        raise Usage(
            f"{output} and {word}, which is read, would lie in one another; choose another place."
        )


def check_folder(
    output: Path, reads: Iterable[str | Path | None], *, overwrite: bool = False
) -> None:
    """Find out before the work that a folder cannot or must not be written.

    Raises:
        Usage: it exists and must not be replaced, or is not apart from all that is read.
        Unavailable: nothing may be written there.
    """
    output = local_path(output).absolute()
    check_apart(output, reads)
    check_free(output, overwrite=overwrite)


def check_files(
    files: Mapping[str, Path | None],
    reads: Iterable[str | Path | None],
    *,
    folder: Path | None = None,
) -> None:
    """Find out before the work, not after it, that a file cannot or must not be written.

    Args:
        files: option to path; None and ``-`` are nowhere.
        reads: every folder, Hub id and file that the command was given to read.
        folder: that the command writes as well.

    Raises:
        Usage: there is no such folder, the path is one, or the file would land on an input, in a model's
            folder, or on another output; or another file than the JSON is asked for on stdout.
        Unavailable: nothing may be written there.
    """
    inputs = Inputs(reads)
    for option, path in files.items():
        if path == Path("-") and option != "--json":
            raise Usage(f"{option} -: only --json goes to stdout; give a file.")
    wanted = [(name, path) for name, path in files.items() if path not in (None, Path("-"))]
    for number, (option, path) in enumerate(wanted):
        assert path is not None  # noqa: S101 - for mypy
        _check_place(path)
        if path.exists() and not path.is_file():
            continue  # a device or a pipe, which keeps nothing
        if (word := inputs.under(path)) is not None:
            raise Usage(f"{option} {path} would be written on or into {word}, which is read.")
        if _holds_a_model(path.resolve().parent):
            raise Usage(f"{option} {path} would lie in a model's folder; choose another place.")
        for other, earlier in _with_folder(wanted[:number], folder):
            if _same(path, earlier):
                raise Usage(f"{option} and {other} would be written on one another: {path}.")


def _with_folder(
    files: Iterable[tuple[str, Path | None]], folder: Path | None
) -> Iterator[tuple[str, Path]]:
    yield from ((option, path) for option, path in files if path is not None)
    if folder is not None:
        yield "--write", folder


def _check_place(path: Path) -> None:
    local_path(path)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise Usage(f"{path}: give a file in a folder that exists.")
    if not path.exists():
        check_writable(path.resolve().parent)
    elif not os.access(path, os.W_OK):
        raise Unavailable(f"{path}: nothing may be written there")


def _same(one: Path, other: Path) -> bool:
    """The same file, or one below the other."""
    first, second = one.resolve(), other.resolve()
    if first.is_relative_to(second) or second.is_relative_to(first):
        return True
    return one.is_file() and other.is_file() and _inode(one) == _inode(other)


def _holds_a_model(folder: Path) -> bool:
    with suppress(OSError):
        names = [entry.name for entry in os.scandir(folder)]
        return "config.json" in names and any(name.endswith(_WEIGHTS) for name in names)
    return False


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
