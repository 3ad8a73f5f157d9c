"""Where a recording's bytes come from: memory, or a file that is read piece by piece while it may be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from pdctl.files import open_regular

_MOST_PIECES = 65536


class Source:
    """Bytes in memory. size: how many there are."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at ``offset``, fewer than ``length`` where they end."""
        return self._data[offset : offset + length]

    def pieces(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Return (offset, length) of what was ever written of these bytes; around it are zeros that nobody has to read."""
        length = min(length, self.size - offset)
        return [(offset, length)] if length > 0 else []


class FileSource(Source):
    """A regular file, kept open so that what is read later is of the same file.

    follow: whether ``path`` may be a link, as one may that the user named. Raises OSError when it can't be opened.
    """

    def __init__(self, path: Path, *, follow: bool = False) -> None:
        self._file = os.fdopen(open_regular(path, follow=follow), "rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at ``offset`` as they are now."""
        length = min(length, self.size - offset)
        return os.pread(self._file.fileno(), length, offset) if length > 0 else b""

    def pieces(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Return the pieces of the file that are no holes, as the file system tells them."""
        whole = super().pieces(offset, length)
        if not whole:
            return []
        end = offset + whole[0][1]
        found: list[tuple[int, int]] = []
        at, fd = offset, self._file.fileno()
        while at < end:
            if len(found) == _MOST_PIECES:
                return [*found, (at, end - at)]
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
                at = os.lseek(fd, start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    break
                return whole  # a file system that can't tell
            if start < end:
                found.append((start, min(at, end) - start))
        return found
