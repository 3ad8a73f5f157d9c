"""Whose a recording is, from its first bytes: cheap enough to ask of every file in a directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import msgspec

from pdctl.model import Identity
from pdctl.recording import format as f


@dataclass(frozen=True)
class Header:
    """The rank a recording belongs to, and how it ended: ``state`` is one of format.STATE_*."""

    identity: Identity
    size: int
    state: int


def read_header(path: Path) -> Header:
    """Return the header of the recording at ``path``.

    Raises OSError when it can't be read, ValueError with the reason when it is no recording this pdctl reads.
    """
    with path.open("rb") as file:
        return parse_header(file.read(f.HEADER_SIZE))


def parse_header(data: bytes) -> Header:
    """Return the header in the first bytes of a recording; :func:`read_header` says what is raised."""
    if data[:8] != f.MAGIC or len(data) < f.IDENTITY_OFFSET:
        raise ValueError("not a pdctl recording" if len(data) >= 8 else "empty, or cut off in its first bytes")
    _, version, _, size, _, _, _, state, *_ = f.FIXED.unpack_from(data)
    if version != f.VERSION:
        raise ValueError(f"recording format {version}; this pdctl reads format {f.VERSION}")
    length, crc = f.IDENTITY_FIELDS.unpack_from(data, f.IDENTITY_OFFSET_FIELDS)
    raw = data[f.IDENTITY_OFFSET : f.IDENTITY_OFFSET + length]
    if length > f.IDENTITY_MAX or len(raw) != length or crc32(raw) != crc:
        raise ValueError("its identity is damaged: the rank it belongs to can't be told")
    try:
        return Header(msgspec.json.decode(raw, type=Identity), size, state)
    except msgspec.MsgspecError as error:
        raise ValueError(f"its identity can't be read: {error}") from None
