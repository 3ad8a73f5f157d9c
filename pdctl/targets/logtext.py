"""The lines of log files that hold one of some names. Logs may be huge, packed, cut off, or no text at all."""

from __future__ import annotations

import gzip
import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pdctl.protocol.files import open_regular

TAIL = 256 << 20
"""Bytes at the end of a log that are read. A packed one is read from its start, as many bytes as that unpacked."""
MOST_LINES = 2_000
MOST_LINE = 64 << 10
MOST_KEPT = 4 << 20
"""Lines that are kept, bytes of one of them, and of all."""
_CHUNK = 4 << 20
_PACKED = b"\x1f\x8b"


@dataclass(frozen=True)
class LogText:
    """What a log has of some names. lines: in the file's order, without line ends.

    unread: what of the log was not read, "" nothing. why_not: why nothing of it could be read. dropped: lines that hold a name
    and are not in ``lines``: those in the middle. last: the last line of the log, whatever it names; b"" where that was not
    read.
    """

    path: Path
    lines: tuple[bytes, ...] = ()
    unread: str = ""
    why_not: str = ""
    dropped: int = 0
    last: bytes = b""


def read_log(path: Path, names: Sequence[bytes], keep: Callable[[bytes], bool], left_s: float) -> LogText:
    """Return the lines of the log at ``path`` that hold one of ``names``, as far as ``keep`` says so of a line.

    left_s: seconds that reading may take.
    """
    until = time.monotonic() + left_s
    found = _Found(names, keep)
    try:
        with os.fdopen(open_regular(path, follow=True), "rb", buffering=0) as file:
            packed = file.read(len(_PACKED)) == _PACKED
            if packed:
                file.seek(0)
                with gzip.GzipFile(fileobj=file) as unpacked:
                    return _packed(path, unpacked, found, until)
            return _plain(path, file, found, until)
    except OSError as error:
        return LogText(path, why_not=error.strerror or str(error))
    except ValueError as error:  # a name with a null byte
        return LogText(path, why_not=str(error))


def _plain(path: Path, file: IO[bytes], found: _Found, until: float) -> LogText:
    size = os.fstat(file.fileno()).st_size
    since = max(0, size - TAIL)
    file.seek(since)
    read = found.read(file, size - since, until)
    said = [f"its first {_amount(since)}"] if since else []
    if read < size - since:
        said.append(f"its last {_amount(size - since - read)}")
    why = _why(since, over=read < size - since)
    return found.text(path, f"{' and '.join(said)}: {why}" if said else "", ended=read == size - since)


def _packed(path: Path, file: gzip.GzipFile, found: _Found, until: float) -> LogText:
    read = 0
    try:
        read = found.read(file, TAIL, until)
        ended = not file.read(1)
    except (OSError, EOFError, zlib.error) as error:
        return found.text(path, f"what follows a damage after {_amount(found.seen)}: {error}")
    if ended:
        return found.text(path, "", ended=True)
    why = "it is packed, unpack it to have its end read" if read >= TAIL else "no time was left (--timeout)"
    return found.text(path, f"what follows its first {_amount(read)}: {why}")


def _why(since: int, *, over: bool) -> str:
    whys = [f"of a log {TAIL >> 20} MiB are read"] if since else []
    return ", and ".join([*whys, *(["no time was left (--timeout)"] if over else [])])


def _amount(size: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.1f} {unit}"
    return f"{size} bytes"


class _Found:
    """Lines that hold a name: the first and the last ones, where there are too many. seen: bytes that were looked at."""

    def __init__(self, names: Sequence[bytes], keep: Callable[[bytes], bool]) -> None:
        self._names = [name for name in names if name]
        self._keep = keep
        self._first: list[bytes] = []
        self._last: deque[bytes] = deque(maxlen=MOST_LINES // 2)
        self._kept = 0
        self._count = 0
        self.seen = 0
        self._last_line = b""

    def read(self, file: IO[bytes] | gzip.GzipFile, most: int, until: float) -> int:
        """Look through at most ``most`` bytes, and return how many there were before the end or the time was over."""
        rest = b""
        some = getattr(file, "read1", file.read)  # of a packed file that is cut off, read would give nothing
        while self.seen < most and time.monotonic() < until:
            chunk = some(min(_CHUNK, most - self.seen))
            if not chunk:
                break
            self.seen += len(chunk)
            data = rest + chunk
            end = data.rfind(b"\n") + 1
            rest = data[end:] if len(data) - end <= _CHUNK else data[-MOST_LINE:]
            self._look(data[:end])
            whole = data[data.rfind(b"\n", 0, max(0, end - 1)) + 1 : end] if end else b""
            self._last_line = whole or self._last_line
        self._look(rest)
        return self.seen

    def text(self, path: Path, unread: str, *, ended: bool = False) -> LogText:
        lines = (*self._first, *self._last)
        return LogText(
            path, lines, unread, dropped=self._count - len(lines), last=self._last_line[:MOST_LINE] if ended else b""
        )

    def _look(self, data: bytes) -> None:
        for line in _lines_with(data, self._names):
            if not self._keep(line):
                continue
            self._count += 1
            if self._kept + len(line) > MOST_KEPT:
                continue
            if len(self._first) < MOST_LINES - MOST_LINES // 2:
                self._first.append(line)
            else:
                if len(self._last) == self._last.maxlen:
                    self._kept -= len(self._last[0])
                self._last.append(line)
            self._kept += len(line)


def _lines_with(data: bytes, names: Sequence[bytes]) -> Iterator[bytes]:
    starts: dict[int, int] = {}
    for name in names:
        at = data.find(name)
        while at >= 0:
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            starts[data.rfind(b"\n", 0, at) + 1] = end
            at = data.find(name, end)
    for start in sorted(starts):
        yield data[start : min(starts[start], start + MOST_LINE)].rstrip(b"\r")
