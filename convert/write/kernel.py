"""What Linux does with files and Python does not offer; elsewhere each call is a no-op that says so."""

import ctypes
import errno
import os
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_SYNC_FILE_RANGE_WRITE = 2
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
# copy_file_range cannot serve these two files; plain reads and writes can.
_NO_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


def reserve(file: int, length: int) -> None:
    """Take the space that a new file will need, which is also what makes its flush fast.

    Raises:
        OSError: there is not enough space. A file system that cannot reserve is no error.
    """
    call = getattr(_LIBC, "fallocate", None)
    if call is None or length == 0:
        return
    if call(file, 0, ctypes.c_int64(0), ctypes.c_int64(length)) != 0:
        number = ctypes.get_errno()
        if number in _NO_SPACE:
            raise OSError(number, os.strerror(number))


def start_flush(file: int, start: int, length: int) -> None:
    """Begin writing a range to the disk, without waiting for it."""
    call = getattr(_LIBC, "sync_file_range", None)
    if call is not None:
        call(file, ctypes.c_int64(start), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)


def copy_range(reader: int, writer: int, start: int, length: int) -> int:
    """Append bytes of one file to another without passing them through this process.

    Returns:
        How many bytes were copied; 0 where the kernel cannot, or the source has ended.
    """
    if not hasattr(os, "copy_file_range"):
        return 0
    try:
        return os.copy_file_range(reader, writer, length, start)
    except OSError as error:
        if error.errno in _NO_COPY:
            return 0
        raise


def exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system cannot."""
    call = getattr(_LIBC, "renameat2", None)
    if call is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)
