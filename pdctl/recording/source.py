"""Where a recording's bytes come from: memory, or a file that is read piece by piece while it may be written."""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pdctl.protocol.files import open_regular

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
        """Return (offset, length) of the pieces that were ever written. All other bytes are zero."""
        length = min(length, self.size - offset)
        return [(offset, length)] if length > 0 else []


class Held(Source):
    """A copy of another source in memory, without the holes. It holds no descriptor, and only the written bytes."""

    def __init__(self, source: Source) -> None:
        self.size = source.size
        self._starts: list[int] = []
        self._parts: list[bytes] = []
        for start, length in source.pieces(0, source.size):
            self._starts.append(start)
            self._parts.append(source.read(start, length))

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at ``offset``, zeros for holes."""
        end = min(offset + length, self.size)
        out = bytearray(max(0, end - offset))
        for number, stop in self._within(offset, end):
            begin = self._starts[number]
            start = max(offset, begin)
            out[start - offset : stop - offset] = self._parts[number][start - begin : stop - begin]
        return bytes(out)

    def pieces(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Return the pieces that are no holes."""
        end = min(offset + length, self.size)
        found = []
        for number, stop in self._within(offset, end):
            start = max(offset, self._starts[number])
            found.append((start, stop - start))
        return found

    def _within(self, offset: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (part, where it ends) for each part between these places."""
        first = max(0, bisect_right(self._starts, offset) - 1)
        for number in range(first, len(self._starts)):
            start = self._starts[number]
            stop = min(end, start + len(self._parts[number]))
            if start >= end:
                break
            if stop > offset:
                yield number, stop


class OpenSource(Source):
    """The bytes of an open file from ``base`` on. The file stays open as long as this object lives."""

    def __init__(self, file: IO[bytes], size: int, base: int = 0) -> None:
        self._file, self._base, self.size = file, base, size

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at ``offset`` as they are now."""
        length = min(length, self.size - offset)
        return os.pread(self._file.fileno(), length, self._base + offset) if length > 0 else b""

    def pieces(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Return the pieces of the file that are no holes, as the file system reports them."""
        whole = super().pieces(offset, length)
        if not whole:
            return []
        base = self._base
        end = base + offset + whole[0][1]
        found: list[tuple[int, int]] = []
        at, fd = base + offset, self._file.fileno()
        while at < end:
            if len(found) == _MOST_PIECES:
                return [*found, (at - base, end - at)]
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
                at = os.lseek(fd, start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    break
                return whole  # a file system that can't tell
            if start < end:
                found.append((start - base, min(at, end) - start))
        return found


class FileSource(OpenSource):
    """A regular file that stays open, so that later reads are of the same file.

    follow: whether ``path`` may be a link; only for a path that the user named. Raises OSError if it can't be opened.
    """

    def __init__(self, path: Path, *, follow: bool = False) -> None:
        file = os.fdopen(open_regular(path, follow=follow), "rb", buffering=0)
        super().__init__(file, os.fstat(file.fileno()).st_size)


_PAGE = 4096
_ZEROS = bytes(_PAGE)


class Spool:
    """An unnamed file for recordings that agents send. Pages of zeros become holes.

    So the recordings take no memory, one descriptor, and only the disk space of their content. The file disappears
    after its last reader.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0

    def room(self, limit: int) -> Room:
        """Return a place for a recording of ``limit`` bytes at most. Raises OSError where there is none."""
        if self._file is None:
            import tempfile  # loads what packs archives: a gateway, which keeps nothing, does without

            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # as long as it is read from
        base = self._end
        self._end += -(-limit // _PAGE) * _PAGE
        os.ftruncate(self._file.fileno(), self._end)
        return Room(self._file, base, limit)


class Room:
    """A place for one recording, whose parts come one after the other. size: bytes of those that have come."""

    def __init__(self, file: IO[bytes], base: int, limit: int) -> None:
        self._file, self._base, self._limit = file, base, limit
        self.size = 0

    def add(self, part: bytes) -> None:
        """Keep the next part, as far as there is room. Raises OSError if the disk is full."""
        kept = memoryview(part)[: self._limit - self.size]
        self._put(kept, self._base + self.size)
        self.size += len(kept)

    def source(self) -> Source:
        """Return what has come."""
        return OpenSource(self._file, self.size, self._base)

    def _put(self, part: memoryview, at: int) -> None:
        for begin in range(0, len(part), _PAGE):
            page = part[begin : begin + _PAGE]
            while page and page != _ZEROS[: len(page)]:
                written = os.pwrite(self._file.fileno(), page, at + begin)
                page, begin = page[written:], begin + written  # noqa: PLW2901


MAX_HOLES = 512 << 20
"""Bytes of a recording that are taken for what they are, though most of them may be holes."""


def whole(path: Path) -> bytes:
    """Return all bytes of the recording at ``path``, holes as zeros.

    Raises OSError if it can't be read, and EFBIG if it would take far more memory than the file has bytes.
    """
    source = FileSource(path)
    check_dense(source)
    return source.read(0, source.size)


def check_dense(source: Source) -> None:
    """Raise OSError (EFBIG) if a recording with its holes would take far more memory than its written bytes."""
    if source.size > MAX_HOLES:
        there = sum(length for _, length in source.pieces(0, source.size))
        if source.size > MAX_HOLES + 4 * there:
            raise OSError(errno.EFBIG, f"its {source.size} bytes are nearly all holes")
