"""The owner of a recording, read from its first bytes. This is cheap enough for every file in a directory.

The numbers of a header are checked here, once for all readers: the values in a :class:`Header` are in range.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from pdctl.protocol import structs
from pdctl.protocol.fields import why_not
from pdctl.protocol.files import read_head
from pdctl.protocol.model import QUEUES, Identity
from pdctl.recording import format as f

CUT_OFF = "file is empty or cut off in its first bytes"


class BadRecording(ValueError):  # noqa: N818  # it is the recording that is bad
    """The file is not a recording this pdctl can read; the message says why."""


@dataclass(frozen=True, slots=True)
class Visits:
    """Turns of the scheduler at one queue so far; whether the last found it empty; when that was (monotonic ns)."""

    count: int
    empty: bool
    mono_ns: int


@dataclass(frozen=True, slots=True)
class Header:
    """The rank that a recording belongs to, and how the recording ended. ``state``: one of format.STATE_*, or unknown.

    size: bytes of the complete file. wall_ns, mono_ns: its start on both clocks. pid, proc_start: its process.
    rings: (offset, capacity in records) of rounds, items and events. ticks, tick_mono_ns: turns of the rank's loop so far and
    when the last began, 0 unknown; pulse_fits: False where they can't be true and were left out. visits: by queue.
    """

    identity: Identity
    size: int
    state: int
    wall_ns: int
    mono_ns: int
    pid: int
    proc_start: int
    rings: tuple[int, int, int, int, int, int]
    ticks: int
    tick_mono_ns: int
    pulse_fits: bool
    visits: dict[str, Visits]


def read_header(path: Path) -> Header:
    """Return the header of the recording at ``path``; a link or anything but a regular file is not read.

    Raises OSError when it can't be read, BadRecording with the reason when it is no recording this pdctl reads.
    """
    return parse_header(read_head(path, f.HEADER_SIZE))


def parse_header(data: bytes) -> Header:
    """Return the header in the first bytes of a recording; :func:`read_header` says what is raised."""
    if len(data) < 8:
        raise BadRecording(CUT_OFF)
    if data[:8] != f.MAGIC:
        raise BadRecording("not a pdctl recording")
    if len(data) < f.IDENTITY_OFFSET:
        raise BadRecording("cut off inside its header")
    _, version, header, size, wall, mono, pid, state, start, *rings = f.FIXED.unpack_from(data)
    if version != f.VERSION:
        raise BadRecording(f"recording format {version}; this pdctl reads format {f.VERSION}")
    if not f.MIN_SIZE <= size <= f.MAX_SIZE:
        raise BadRecording(f"header is damaged: a recording has {f.MIN_SIZE} to {f.MAX_SIZE} bytes, not {size}")
    if header != f.HEADER_SIZE or tuple(rings) != f.layout(size):
        raise BadRecording("header is damaged: its rings are not where they belong")
    if not (0 <= wall < f.MAX_WALL_NS and 0 <= mono < f.MAX_MONO_NS):
        raise BadRecording(f"header is damaged: no recording begins at {wall} ns, {mono} ns of its clocks")
    visits = _visits(data)
    ticks, tick_ns = f.PULSE.unpack_from(data, f.PULSE_OFFSET)
    fits = ticks < f.MAX_COUNT and 0 <= tick_ns < f.MAX_MONO_NS
    if not fits:
        ticks = tick_ns = 0
    if not ticks and visits:  # an engine whose loop has no seam of its own
        last = max(visits.values(), key=lambda v: v.mono_ns)
        ticks, tick_ns = last.count, last.mono_ns
    return Header(_identity(data), size, state, wall, mono, pid, start, f.layout(size), ticks, tick_ns, fits, visits)


def _visits(head: bytes) -> dict[str, Visits]:
    visits = {}
    for code, queue in enumerate(QUEUES):
        word, mono_ns = f.VISITS.unpack_from(head, f.VISITS_OFFSET + f.VISITS.size * code)
        if word and word & ~f.EMPTY_BIT < f.MAX_COUNT and 0 <= mono_ns < f.MAX_MONO_NS:
            visits[queue] = Visits(word & ~f.EMPTY_BIT, bool(word & f.EMPTY_BIT), mono_ns)
    return visits


def _identity(data: bytes) -> Identity:
    length, crc = f.IDENTITY_FIELDS.unpack_from(data, f.IDENTITY_OFFSET_FIELDS)
    raw = data[f.IDENTITY_OFFSET : f.IDENTITY_OFFSET + length]
    if length > f.IDENTITY_MAX or len(raw) != length or crc32(raw) != crc:
        raise BadRecording("its identity is damaged: the rank it belongs to can't be told")
    try:
        return structs.from_json(raw, Identity)
    except ValueError as error:
        raise BadRecording(f"its identity can't be read: {why_not(error)}") from None
