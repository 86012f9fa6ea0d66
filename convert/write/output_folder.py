"""An output folder that appears complete or not at all.

It is filled under a hidden name beside its final place and renamed into it at the end. A lock on
the hidden folder, which ends with its process, tells a run in progress from a killed one's remains.
"""

import fcntl
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from eagle3_interop.convert.read.folders import local_path
from eagle3_interop.convert.write import kernel
from eagle3_interop.convert.write.earlier import why_not_ours
from eagle3_interop.schemas.findings import Unavailable, Usage

_UNFINISHED = ".unfinished"
"""A file in the hidden folder until everything else is: what a killed run left with it may be removed."""


@contextmanager
def output_folder(output: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a hidden folder to fill; it becomes the output when the block ends without an exception.

    Args:
        output: the final place; its parents are made.
        overwrite: replace an earlier output of this tool that is still as written.

    Raises:
        Usage: the output exists, appeared meanwhile, or must not be replaced.
        Unavailable: nothing may be written there.
        OSError: the disk failed.
    """
    check_free(output, overwrite=overwrite)
    output.parent.mkdir(parents=True, exist_ok=True)
    hidden = output.parent / f"{_prefix(output)}{os.getpid()}-{secrets.token_hex(4)}"
    with _signals_raise():
        made = None
        try:
            with ExitStack() as stack:
                with _one_at_a_time(output.parent):
                    remove_leftovers(output)
                    hidden.mkdir()
                    made = hidden.stat().st_ino
                    (hidden / _UNFINISHED).touch()
                    descriptor = stack.enter_context(_folder(hidden))
                    with suppress(OSError):  # without locks, remains are not recognised: no more
                        _lock(descriptor)
                yield hidden
                with _one_at_a_time(output.parent):
                    (hidden / _UNFINISHED).unlink()
                    os.fsync(descriptor)
                    _move(hidden, output, overwrite=overwrite)
        finally:
            _discard(hidden, made)
    with _folder(output.parent) as descriptor:
        os.fsync(descriptor)


def check_free(output: Path, *, overwrite: bool) -> None:
    """Refuse an output that exists, or that is none of this tool's and so is not replaced.

    Raises:
        Usage: with what stands in the way.
        Unavailable: nothing may be written there.
    """
    local_path(output)
    if os.path.lexists(output):
        if not overwrite:
            raise Usage(
                f"{output} exists; choose another place. (eagle3-convert --overwrite replaces an earlier output of its own.)"
            )
        _check_ours(output, output)
    _check_parent(output)


def _check_ours(folder: Path, output: Path) -> None:
    """Refuse to replace what this tool did not write, or what was changed since.

    Args:
        folder: where it is now.
        output: where the user knows it.
    """
    try:
        reason = why_not_ours(folder)
    except OSError as error:
        raise Unavailable(f"{error.filename or output}: {error.strerror}") from error
    if reason:
        raise Usage(
            f"{output} {reason}. --overwrite replaces an output of this tool that is as it was written, and "
            "nothing else: choose another place, or move the folder away yourself."
        )


def _check_parent(output: Path) -> None:
    existing = next(folder for folder in output.absolute().parents if folder.exists())
    if not existing.is_dir():
        raise Usage(f"{existing} is a file, and {output} cannot be below it")
    check_writable(existing)


def check_writable(folder: Path) -> None:
    """Find out whether a folder takes a file: it is tried, because to root every place says yes.

    Raises:
        Unavailable: it does not.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Unavailable(f"{folder}: nothing may be written there")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Unavailable(f"{folder}: nothing may be written there: {error.strerror}") from error


def remove_leftovers(output: Path) -> None:
    """Remove hidden folders that killed runs to the same output left behind."""
    for hidden in output.parent.glob(f"{_escaped(_prefix(output))}*"):
        with suppress(OSError), _folder(hidden) as descriptor:
            _lock(descriptor)
            _discard(hidden)


def _discard(hidden: Path, made: int | None = None) -> None:
    """Remove what was being written, or an output that was replaced; anything else stays where it is.

    Args:
        hidden: the folder.
        made: inode of the folder that this run made.
    """
    with suppress(OSError):
        own = hidden.stat().st_ino == made or (hidden / _UNFINISHED).exists()
        if own or not any(hidden.iterdir()) or not why_not_ours(hidden):
            shutil.rmtree(hidden)


def _prefix(output: Path) -> str:
    """Of the hidden names, which are longer than the output's and have room for no more than 255 bytes."""
    name = output.name.encode(errors="surrogateescape")[:200].decode(errors="ignore")
    return f".{name}.partial-"


def _escaped(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "[*?" else letter for letter in text)


@contextmanager
def _folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Take the lock until the descriptor is closed; BlockingIOError where another run holds it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _move(hidden: Path, output: Path, *, overwrite: bool) -> None:
    """Rename into place; an earlier output is exchanged, and ends up under the hidden name.

    Raises:
        Usage: what stands there by now must not be replaced; it stays, or is put back.
    """
    try:
        if not overwrite or not os.path.lexists(output):
            kernel.rename_new(hidden, output)
        elif kernel.exchange(hidden, output):
            with _undone(lambda: kernel.exchange(hidden, output)):
                _check_ours(hidden, output)
        else:
            _check_ours(output, output)
            old = hidden.with_name(f"{hidden.name}-old")
            kernel.rename_new(output, old)
            with _undone(lambda: kernel.rename_new(old, output)):
                _check_ours(old, output)
                kernel.rename_new(hidden, output)
            _discard(old)
    except FileExistsError as error:
        raise Usage(f"{output} appeared while this ran, and stays; nothing was written.") from error


@contextmanager
def _undone(undo: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        undo()
        raise


@contextmanager
def _one_at_a_time(parent: Path) -> Iterator[None]:
    """Runs to the same output tidy, look and rename in turn: none takes another's folder for remains."""
    with _folder(parent) as descriptor:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack, so that the hidden folder is removed."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    caught = []
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGTERM, signal.SIGHUP)
        caught = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in caught:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)
