"""A file that is sent exactly as it was hashed, or not at all.

The file is opened once and hashed block by block. Whoever reads it later reads it through the same
descriptor, so that a file put in its place is not seen, and each block is compared with its digest, so
that a change in place ends the read.
"""

import hashlib
import io
import os
from pathlib import Path

from eagle3_interop.schemas.findings import Unavailable

BLOCK = 1 << 20
"""Bytes of a block: 20 bytes of digest are kept for each."""


class Changed(Unavailable):
    """The file is no longer what was hashed, or what was looked at."""

    def __init__(self, name: str) -> None:
        """Name the file."""
        super().__init__(
            f"{name} was changed while it was being published. Nothing was committed: validate the "
            "folder again, and leave it alone until the push is done."
        )


class Sealed(io.BufferedIOBase):
    """An open file whose every read is held against what was hashed when it was opened.

    Attributes:
        name: of the file, for messages.
        sha256: of the whole, in hex.
        git_sha1: of the whole as git's blob, in hex.
        size: in bytes.
    """

    def __init__(self, path: Path) -> None:
        """Open and hash.

        Raises:
            OSError: the disk failed.
        """
        super().__init__()
        self.name = path.name
        self._file = path.open("rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size
        self._at, self._blocks = 0, list[bytes]()
        self._held: tuple[int, bytes] = (-1, b"")
        whole, blob = hashlib.sha256(), git_blob(self.size)
        for index in range(-(-self.size // BLOCK)):
            block = self._block(index)
            whole.update(block)
            blob.update(block)
            self._blocks.append(_digest(block))
        self.sha256, self.git_sha1 = whole.hexdigest(), blob.hexdigest()

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move there."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read on.

        Raises:
            Changed: what stands there now is not what was hashed.
        """
        stop = self.size if size is None or size < 0 else min(self.size, self._at + size)
        start, parts = self._at, []
        for index in range(start // BLOCK, -(-stop // BLOCK)):
            block = self._sound_block(index)
            first = index * BLOCK
            parts.append(block[max(0, start - first) : stop - first])
        self._at = max(start, stop)
        return b"".join(parts)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        super().close()

    def _sound_block(self, index: int) -> bytes:
        """A block, as it was hashed; the last one is kept, for whoever reads in small pieces."""
        if self._held[0] != index:
            block = self._block(index)
            if _digest(block) != self._blocks[index]:
                raise Changed(self.name)
            self._held = index, block
        return self._held[1]

    def _block(self, index: int) -> bytes:
        """A whole block; short or empty at the end only."""
        wanted, parts = BLOCK, []
        while wanted and (
            part := os.pread(self._file.fileno(), wanted, (index + 1) * BLOCK - wanted)
        ):
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)


def git_blob(size: int) -> "hashlib._Hash":
    """The hash by which git names a file of so many bytes, before its first one."""
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def _digest(block: bytes) -> bytes:
    return hashlib.blake2b(block, digest_size=20).digest()
