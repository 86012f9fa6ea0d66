"""A file being written from its first byte to its last, flushed as it grows."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_interop.convert.read.folders import State, changed
from eagle3_interop.convert.write import kernel
from eagle3_interop.schemas.findings import refusal

Progress = Callable[[int], None]
"""Called with the number of bytes that have just been written."""

# Long enough that a system call costs nothing, short enough that the disk is busy from early on.
_RUN_BYTES = 64 << 20
_BUFFER_BYTES = 4 << 20


class Sink:
    """A new file of a known size; the disk works on what is written while more is being written."""

    def __init__(self, file: int, report: Progress) -> None:
        """Write to a descriptor, and report to somebody's progress bar."""
        self._file = file
        self._report = report
        self._flushed = 0
        self.size = 0

    def append(self, raw: bytes | memoryview) -> None:
        """Write bytes."""
        rest = memoryview(raw)
        while rest:
            count = os.write(self._file, rest)
            rest = rest[count:]
            self._advance(count)

    def append_array(self, values: np.ndarray[Any, Any]) -> None:
        """Write an array's values, row by row."""
        self.append(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)

    def append_range(
        self, source: Path, start: int, length: int, state: State | None = None
    ) -> None:
        """Copy a range of another file, within the kernel where it can.

        Raises:
            Refused: the source ends early (``broken-file``).
            Unavailable: it is not in this state.
        """
        stop = start + length
        with opened(source, state) as reader:
            while start < stop:
                count = self._copy(reader, start, stop - start)
                if count == 0:
                    raise refusal("broken-file", source, f"ends {stop - start} bytes early")
                start += count

    def _copy(self, reader: int, start: int, length: int) -> int:
        count = kernel.copy_range(reader, self._file, start, min(length, _RUN_BYTES))
        if count == 0:
            raw = os.pread(reader, min(length, _BUFFER_BYTES), start)
            self.append(raw)
            return len(raw)
        self._advance(count)
        return count

    def _advance(self, count: int) -> None:
        self.size += count
        if self.size - self._flushed >= _RUN_BYTES:
            kernel.start_flush(self._file, self._flushed, self.size - self._flushed)
            self._flushed = self.size
        self._report(count)


@contextmanager
def opened(path: Path, state: State | None = None) -> Iterator[int]:
    """A file to read from.

    Raises:
        Unavailable: the file that was opened is not in this state: changed, or another one.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if state is not None and State.of(descriptor) != state:
            raise changed(path)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def created(path: Path, size: int, report: Progress) -> Iterator[Sink]:
    """A new file, on the disk when the block ends without an exception.

    Raises:
        ValueError: other than `size` bytes were written.
        OSError: the file exists, or the disk failed or is full.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        kernel.reserve(descriptor, size)
        sink = Sink(descriptor, report)
        yield sink
        if sink.size != size:
            raise ValueError(f"{path.name}: {size} bytes were planned, and {sink.size} written")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
