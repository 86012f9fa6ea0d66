"""What Linux does with files and Python does not offer; elsewhere each call is a no-op that says so."""

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
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
    return _rename(one, other, _RENAME_EXCHANGE) == 0


def rename_new(folder: Path, name: Path) -> None:
    """Give a folder a name that nothing has.

    Where the system cannot say so in one step, the name is taken with an empty folder first: nothing that
    somebody else puts there is replaced, only what is still empty.

    Raises:
        FileExistsError: something has it, a dangling link too.
        OSError: the disk failed.
    """
    number = _rename(folder, name, _RENAME_NOREPLACE)
    if number == 0:
        return
    if number not in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        raise OSError(number, os.strerror(number), str(name))
    name.mkdir()
    try:
        folder.rename(name)
    except OSError as error:
        with suppress(OSError):
            name.rmdir()
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(name)) from error
        raise


def _rename(one: Path, other: Path, flags: int) -> int:
    """The error's number, 0 for success."""
    call = getattr(_LIBC, "renameat2", None)
    if call is None:
        return errno.ENOSYS
    names = os.fsencode(one), os.fsencode(other)
    done = call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], flags)
    return 0 if done == 0 else ctypes.get_errno()
