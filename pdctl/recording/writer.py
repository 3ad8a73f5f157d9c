"""The rank's side of a recording: a mapped file that is only ever stored into. Standard library only.

Nothing here blocks, allocates on disk after start-up, or raises on the hot path: the file's space is reserved when it
is created, so a full disk shows at start (OSError) and never later as a bus error in the engine.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import time
from pathlib import Path
from zlib import crc32

from pdctl.recording import format as f

_TRIM_BYTES = 1 << 20


class RecordingWriter:
    """Writes one recording. Rounds and items come from the rank's main thread, events from any thread."""

    def __init__(self, path: Path, mapping: mmap.mmap, size: int) -> None:
        self.path = path
        self.size = size
        self._map = mapping
        (
            self._rounds_off,
            self.rounds_capacity,
            self._items_off,
            self.items_capacity,
            self._events_off,
            self._events_cap,
        ) = f.layout(size)
        self._round_seq = 0
        self._items_written = 0
        self._event_seq = itertools.count(1)
        # The header as 8-byte words: a store of one is a single store of the processor, so that nobody reads half of it.
        self._words = memoryview(mapping)[: f.HEADER_SIZE].cast("Q")
        self._since_trim = 0

    @classmethod
    def create(cls, path: Path, identity_json: bytes, *, size: int = f.DEFAULT_SIZE) -> RecordingWriter:
        """Create ``path`` (mode 0600, must not exist), reserve ``size`` bytes and write the header.

        Raises OSError when the file can't be made or its space can't be reserved, ValueError for a size under
        MIN_SIZE, an identity over IDENTITY_MAX bytes or a big-endian machine.
        """
        if sys.byteorder != "little":
            raise ValueError("recordings are written on little-endian machines only")
        if size < f.MIN_SIZE:
            raise ValueError(f"a recording needs at least {f.MIN_SIZE} bytes, not {size}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            mapping = mmap.mmap(fd, size)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(fd)
        writer = cls(path, mapping, size)
        writer.set_identity(identity_json)
        fixed = f.FIXED.pack(
            f.MAGIC,
            f.VERSION,
            f.HEADER_SIZE,
            size,
            time.time_ns(),
            time.monotonic_ns(),
            os.getpid(),
            f.STATE_WRITING,
            process_start(os.getpid()),
            writer._rounds_off,
            writer.rounds_capacity,
            writer._items_off,
            writer.items_capacity,
            writer._events_off,
            writer._events_cap,
        )
        mapping[8 : len(fixed)] = fixed[8:]
        mapping[0:8] = f.MAGIC  # last: a reader that sees it sees the rest
        return writer

    def set_identity(self, identity_json: bytes) -> None:
        """Replace the identity. Raises ValueError when it is over IDENTITY_MAX bytes."""
        if len(identity_json) > f.IDENTITY_MAX:
            raise ValueError(f"identity of {len(identity_json)} bytes is over {f.IDENTITY_MAX}")
        end = f.IDENTITY_OFFSET + len(identity_json)
        self._map[f.IDENTITY_OFFSET : end] = identity_json
        f.IDENTITY_FIELDS.pack_into(self._map, f.IDENTITY_OFFSET_FIELDS, len(identity_json), crc32(identity_json))

    def pulse(self, ticks: int, mono_ns: int) -> None:
        """Say that the scheduler is alive: ``ticks`` turns so far, the last at ``mono_ns``."""
        words = self._words
        words[_PULSE_WORD] = ticks
        words[_PULSE_WORD + 1] = mono_ns

    def visits(self, queue: int) -> memoryview[int]:
        """Return the two words of queue code ``queue``: its turns so far (or-ed with EMPTY_BIT), and the last one's time.

        The caller stores into them: the number when a turn begins, then the time.
        """
        at = f.VISITS_OFFSET // 8 + 2 * queue
        return self._words[at : at + 2]

    def live(self, stream: int) -> LiveRun:
        """Return what keeps the run that ``stream`` is in. Raises IndexError from MAX_STREAMS on."""
        if not 0 <= stream < f.MAX_STREAMS:
            raise IndexError(f"a recording has room for {f.MAX_STREAMS} streams")
        first = f.REPEATS_OFFSET // 8 + f.REPEATS.size // 8 * stream
        return LiveRun(self._map, self._words[first : first + 3], stream)

    def close_run(self, head: tuple[int, ...], tail: bytes) -> None:
        """Append a run that has ended to the rounds ring."""
        seq = self._round_seq = self._round_seq + 1
        body = f.ROUND_HEAD.pack(seq, *head) + tail
        at = self._rounds_off + (seq - 1) % self.rounds_capacity * f.ROUND_SIZE
        self._map[at : at + f.ROUND_SIZE] = body + _ROUND_PAD + crc32(body).to_bytes(4, "little")
        self._trim(f.ROUND_SIZE)

    def items(self, data: bytes) -> int:
        """Append item records (``data``: a multiple of ITEM_SIZE bytes) and return the number of the first one.

        Items beyond the ring's capacity overwrite the oldest; a batch larger than the ring keeps its end.
        """
        start = self._items_written
        count = len(data) // f.ITEM_SIZE
        at = start % self.items_capacity
        head = min(count, self.items_capacity - at)
        offset = self._items_off + at * f.ITEM_SIZE
        self._map[offset : offset + head * f.ITEM_SIZE] = data[: head * f.ITEM_SIZE]
        rest = data[head * f.ITEM_SIZE :]
        if rest:
            rest = rest[-self.items_capacity * f.ITEM_SIZE :]
            self._map[self._items_off : self._items_off + len(rest)] = rest
        self._items_written = start + count
        self._trim(len(data))
        return start

    def event(
        self,
        kind: int,
        *,
        mono_ns: int | None = None,
        queue: int = f.NO_QUEUE,
        room: int = 0,
        slot: int = -1,
        a: int = 0,
        b: int = 0,
        text: str = "",
    ) -> None:
        """Append an event (:class:`pdctl.model.EventKind` says what ``a``, ``b`` and ``text`` mean). Any thread."""
        seq = next(self._event_seq)
        when = time.monotonic_ns() if mono_ns is None else mono_ns
        body = f.EVENT.pack(seq, when, kind, queue, 0, slot, room, a, b, text.encode("utf-8", "replace")[:72])
        offset = self._events_off + (seq - 1) % self._events_cap * f.EVENT_SIZE
        self._map[offset : offset + f.EVENT_SIZE] = body + b"\0\0\0\0" + crc32(body).to_bytes(4, "little")
        self._trim(f.EVENT_SIZE)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file, for a client that has the control socket only."""
        return self._map[offset : offset + length]

    def stop(self, *, closed: bool = True) -> None:
        """Mark the recording as ended: closed in good order, or stopped because the writer gave up."""
        f.STATE.pack_into(self._map, f.STATE_OFFSET, f.STATE_CLOSED if closed else f.STATE_STOPPED)

    def _trim(self, written: int) -> None:
        # Stored pages count as the rank's resident memory although they are the file's. Giving the mapping back now and
        # then keeps the rank small; the data stays in the file.
        self._since_trim += written
        if self._since_trim > _TRIM_BYTES:
            self._since_trim = 0
            self._map.madvise(mmap.MADV_DONTNEED)


_ROUND_PAD = b"\0" * (f.ROUND_CRC_OFFSET - f.ROUND_BODY_SIZE)
_PULSE_WORD = f.PULSE_OFFSET // 8
_SEQ_TAG = (1 << 64 - f.REPEAT_BITS) - 1
_pack_head, _pack_crc = f.ROUND_HEAD.pack_into, f.ROUND_CRC.pack_into


class LiveRun:
    """The run one stream is in: two cells that are written in turn, so that a death in one leaves the other whole.

    words: where a tap says that the run was repeated, as :data:`pdctl.recording.format.REPEATS` tells: first the time in
    word 1, then ``tag | repeat`` in word 0; when that round has been applied the same in word 2. tag is the run's own.
    """

    __slots__ = ("_body", "_cell", "_map", "_places", "_seq", "tag", "words")

    def __init__(self, mapping: mmap.mmap, words: memoryview[int], stream: int) -> None:
        self.words = words
        self.tag = 0
        self._map = mapping
        first = f.LIVE_OFFSET + 2 * stream * f.ROUND_SIZE
        self._places = tuple(slice(at, at + f.ROUND_SIZE) for at in (first, first + f.ROUND_SIZE))
        self._seq = 0
        self._cell = bytearray(f.ROUND_SIZE)
        self._body = memoryview(self._cell)[: f.ROUND_BODY_SIZE]

    def store(self, head: tuple[int, ...], tail: bytes) -> None:
        """Store the run; ``head`` is a ROUND_HEAD without seq, ``tail`` a packed ROUND_TAIL."""
        seq = self._seq = self._seq + 1
        cell = self._cell
        _pack_head(cell, 0, seq, *head)
        cell[f.ROUND_HEAD.size : f.ROUND_BODY_SIZE] = tail
        _pack_crc(cell, f.ROUND_CRC_OFFSET, crc32(self._body))
        self._map[self._places[seq & 1]] = cell
        self.tag = (seq & _SEQ_TAG) << f.REPEAT_BITS
        self.words[0] = self.words[2] = 0  # or they would fit a cell 65,536 further on


def process_start(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot (field 22 of /proc/PID/stat), 0 when it is gone.

    With the pid it names one process for as long as the host is up.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat.rsplit(b")", 1)[1].split()[19])
