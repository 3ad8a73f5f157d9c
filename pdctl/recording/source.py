"""Where a recording's bytes come from: memory, or a file that is read piece by piece while it may be written."""

from __future__ import annotations

import os
from pathlib import Path


class Source:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at ``offset``, fewer than ``length`` where they end."""
        return self._data[offset : offset + length]


class FileSource(Source):
    """A file, kept open so that what is read later is of the same file. Raises OSError when it can't be opened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at ``offset`` as they are now."""
        return os.pread(self._file.fileno(), length, offset)
