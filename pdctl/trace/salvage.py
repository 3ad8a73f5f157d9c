"""What is whole of a trace that is cut off or damaged: its members, by the headers before each of them.

The list of all members is at the end of a ZIP file, and so is the manifest of a trace. A copy that ended early has neither.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable
from typing import IO, Any

import msgspec

from pdctl.recording import format as f
from pdctl.recording.header import parse_header
from pdctl.trace.manifest import MAX_RANKS, WHOLE, Manifest, TraceRank, new

_LOCAL = struct.Struct("<4s2B4HL2L2H")
_ENTRY = struct.Struct("<4s4B4HL2L5H2L")
_END = struct.Struct("<4s4H2LH")
_LATER_OR_SECRET = 0x09
"""Flags of a member whose size follows it, or that is encrypted: traces have neither."""
_MOST = 0xFFFFFFFF
_MOST_LISTED = 8 << 20
"""Bytes of a list of members that is not made any longer: it is more than anybody reads."""

DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeDecodeError,
    struct.error,
)
"""What :mod:`zipfile` raises for a member that is damaged, encrypted or packed in a way it does not know."""


def with_list(file: IO[bytes], reader: type[io.BufferedReader]) -> io.BufferedReader | None:
    """Return ``file`` up to the end of its last whole member, with a list of its members after that; None without any.

    Nothing is checked but that each member lies within the file: who opens the result checks names, sizes and sums.
    """
    size = file.seek(0, io.SEEK_END)
    entries: list[bytes] = []
    at = 0
    length = 0
    while len(entries) <= MAX_RANKS and length <= _MOST_LISTED and (found := _member(file, at, size)) is not None:
        entry, at = found
        entries.append(entry)
        length += len(entry)
    if not entries:
        return None
    listed = b"".join(entries)
    number = len(entries)
    end = _END.pack(b"PK\5\6", 0, 0, number, number, len(listed), at, 0)
    return reader(_Extended(file, at, listed + end))


def _member(file: IO[bytes], at: int, size: int) -> tuple[bytes, int] | None:
    """Return the list's entry of the member at ``at``, and where the next one begins; None where there is no whole one."""
    file.seek(at)
    head = file.read(_LOCAL.size)
    if len(head) < _LOCAL.size or at > _MOST:
        return None
    magic, version, system, flags, method, time, date, crc, packed, unpacked, names, extras = _LOCAL.unpack(head)
    if magic != b"PK\3\4" or flags & _LATER_OR_SECRET:
        return None
    name, extra = file.read(names), file.read(extras)
    if _MOST in (packed, unpacked):
        if extra[:4] != struct.pack("<2H", 1, 16) or len(extra) < 20:
            return None
        unpacked, packed = struct.unpack("<2Q", extra[4:20])
    end = at + _LOCAL.size + names + extras + packed
    if len(name) < names or end > size or end > _MOST or unpacked > f.MAX_SIZE:
        return None
    entry = _ENTRY.pack(
        b"PK\1\2", version, system, version, system, flags, method, time, date, crc, packed, unpacked, names, 0, 0, 0, 0, 0,
        at,
    )  # fmt: skip
    return entry + name, end


class _Extended(io.RawIOBase):
    """The first ``end`` bytes of a file, and more after them."""

    def __init__(self, file: IO[bytes], end: int, more: bytes) -> None:
        self._file, self._end, self._more, self._at = file, end, more, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move as in any file."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end + len(self._more)}[whence]
        if base + offset < 0:
            raise OSError(22, "before the first byte")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Read as any raw file does: some bytes, none at the end."""
        room = len(buffer)
        if self._at < self._end:
            self._file.seek(self._at)
            data = self._file.read(min(room, self._end - self._at))
        else:
            begin = self._at - self._end
            data = self._more[begin : begin + room]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def open_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    """Open a member. Raises BadZipFile for a compression that traces don't use: its cost has no bound."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"it is packed by method {info.compress_type}, neither stored nor deflated")
    return archive.open(info)


def manifest_of(archive: zipfile.ZipFile, members: Iterable[zipfile.ZipInfo], reason: str) -> Manifest:
    """Return what can be said of a trace without its manifest, by the headers of the recordings ``members``.

    reason: why it has none.
    """
    ranks, problems = [], []
    for info in members:
        try:
            with open_member(archive, info) as member:
                header = parse_header(member.read(f.HEADER_SIZE))
        except (*DAMAGE, ValueError, OSError) as error:
            problems.append(f"{info.filename[:200]}: {error}")
            continue
        ranks.append(
            TraceRank(
                rank=header.identity.label,
                state="recorded",
                kept=WHOLE,
                identity=header.identity,
                member=info.filename,
                size=info.file_size,
                writer=f.STATE_NAMES.get(header.state, "unknown"),
            )
        )
    return msgspec.structs.replace(new(reason, problems=tuple(problems[:20])), ranks=tuple(ranks))
