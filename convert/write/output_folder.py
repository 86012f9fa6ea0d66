"""An output folder that appears complete or not at all.

It is filled under a hidden name beside its final place and renamed into it at the end. A lock on
the hidden folder, which ends with its process, tells a run in progress from a killed one's remains.
"""

import fcntl
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from eagle3_interop.convert.read.folders import local_folder, local_path
from eagle3_interop.convert.write import kernel
from eagle3_interop.schemas.findings import Unavailable, Usage


@contextmanager
def output_folder(output: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a hidden folder to fill; it becomes the output when the block ends without an exception.

    Args:
        output: the final place; its parents are made.
        overwrite: replace an existing checkpoint.

    Raises:
        Usage: the output exists, and must not or cannot be replaced.
        OSError: the disk failed.
    """
    check_free(output, overwrite=overwrite)
    output.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(output)
    hidden = output.parent / f"{_prefix(output)}{os.getpid()}-{secrets.token_hex(4)}"
    with _signals_raise():
        try:
            hidden.mkdir()
            with _folder(hidden) as descriptor:
                with suppress(OSError):  # without locks, remains are not recognised: no more
                    _lock(descriptor)
                yield hidden
                os.fsync(descriptor)
                _move(hidden, output)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
    with _folder(output.parent) as descriptor:
        os.fsync(descriptor)


def check_free(output: Path, *, overwrite: bool) -> None:
    """Refuse an output that exists, or that `overwrite` would not expect to replace.

    Raises:
        Usage: with what stands in the way.
        Unavailable: nothing may be written there.
    """
    local_path(output)
    if not output.exists() and not output.is_symlink():
        _check_parent(output)
        return
    if not overwrite:
        raise Usage(f"{output} exists; choose another place (eagle3-convert can --overwrite)")
    if not output.is_dir() or output.is_symlink():
        raise Usage(f"{output} is not a folder, and is not overwritten")
    if any(output.iterdir()) and not (output / "config.json").exists():
        raise Usage(f"{output} does not look like a checkpoint, and is not overwritten")


def check_apart(output: Path, source: str) -> None:
    """Refuse an output inside the folder that it is made from.

    Raises:
        Usage: it lies there.
    """
    folder = local_folder(source)
    if folder is not None and output.resolve().is_relative_to(folder.resolve()):
        raise Usage(f"{output} would lie in its source {source}")


def _check_parent(output: Path) -> None:
    existing = next(folder for folder in output.absolute().parents if folder.exists())
    if not existing.is_dir():
        raise Usage(f"{existing} is a file, and {output} cannot be below it")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise Unavailable(f"{existing}: nothing may be written there")


def remove_leftovers(output: Path) -> None:
    """Remove hidden folders that killed runs to the same output left behind."""
    for hidden in output.parent.glob(f"{_escaped(_prefix(output))}*"):
        with suppress(OSError), _folder(hidden) as descriptor:
            _lock(descriptor)
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


def _move(hidden: Path, output: Path) -> None:
    """Rename into place; an existing output is exchanged, and ends up under the hidden name."""
    if not output.exists():
        hidden.rename(output)
    elif not kernel.exchange(hidden, output):
        old = hidden.with_name(hidden.name + "-old")
        output.rename(old)
        try:
            hidden.rename(output)
        except BaseException:
            old.rename(output)
            raise
        shutil.rmtree(old, ignore_errors=True)


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
