"""The rank's side of a recording: a file that is only written. Standard library only.

The hot path never raises and never allocates disk space. The space is reserved when the file is created, so a full disk shows
at start (OSError). A later failure ends the recording, with a reason, and nothing else. Written data outlives the process.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from pdctl.protocol.processes import look
from pdctl.recording import format as f
from pdctl.recording.file import Store, out_of_the_way, survive_file_limits


class RecordingWriter:
    """Writes one recording. Rounds and items come from the rank's main thread, events from any thread."""

    def __init__(self, path: Path, store: Store) -> None:
        self.path = path
        self.size = store.size
        (
            self._rounds_off,
            self.rounds_capacity,
            self._items_off,
            self.items_capacity,
            self._events_off,
            self._events_cap,
        ) = f.layout(store.size)
        self._round_seq = 0
        self._items_written = 0
        self._event_seq = itertools.count(1)
        self._store = store
        # The counters of the header: 8-byte words in memory, and all of them in the file after each flush.
        shadow = bytearray(_COUNTERS_END - f.PULSE_OFFSET)
        self._words = memoryview(shadow).cast("Q")
        self.flush = store.window(f.PULSE_OFFSET, shadow)
        """Brings into the file what was stored into the words of :meth:`visits` and :class:`LiveRun`: one write."""

    @property
    def reason(self) -> str:
        """Why nothing is written any more, "" while it is."""
        return self._store.reason

    def when_stopped(self, call: Callable[[str], None]) -> None:
        """Set the callback for an error that ends the recording. It is called once, with the reason, on the failing thread."""
        self._store.stopped = call

    @classmethod
    def create(cls, path: Path, identity_json: bytes, *, size: int = f.DEFAULT_SIZE) -> RecordingWriter:
        """Create ``path`` (mode 0600, must not exist), reserve ``size`` bytes and write the header.

        Raises OSError when the file can't be made or its space can't be reserved or written, ValueError for a size under
        MIN_SIZE, an identity over IDENTITY_MAX bytes or a big-endian machine. Nothing is left then.
        """
        if sys.byteorder != "little":
            raise ValueError("recordings are written on little-endian machines only")
        if size < f.MIN_SIZE:
            raise ValueError(f"a recording needs at least {f.MIN_SIZE} bytes, not {size}")
        if len(identity_json) > f.IDENTITY_MAX:
            raise ValueError(f"identity of {len(identity_json)} bytes is over {f.IDENTITY_MAX}")
        survive_file_limits()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            head = _header(identity_json, size)
            _write_all(fd, head[8:], 8)
            _write_all(fd, f.MAGIC, 0)  # last: a reader that sees it sees the rest
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return cls(path, Store(out_of_the_way(fd), size, _STOPPED))

    def set_identity(self, identity_json: bytes) -> None:
        """Replace the identity. Raises ValueError when it is over IDENTITY_MAX bytes."""
        if len(identity_json) > f.IDENTITY_MAX:
            raise ValueError(f"identity of {len(identity_json)} bytes is over {f.IDENTITY_MAX}")
        self._store.put(f.IDENTITY_OFFSET, identity_json)
        self._store.put(f.IDENTITY_OFFSET_FIELDS, f.IDENTITY_FIELDS.pack(len(identity_json), crc32(identity_json)))

    def pulse(self, ticks: int, mono_ns: int) -> None:
        """Say that the scheduler is alive: ``ticks`` turns so far, the last at ``mono_ns``."""
        words = self._words
        words[0] = ticks
        words[1] = mono_ns
        self.flush()

    def visits(self, queue: int) -> memoryview[int]:
        """Return the two words of queue code ``queue``: its turns so far (or-ed with EMPTY_BIT), and the last one's time.

        The caller stores into them, and flushes.
        """
        at = (f.VISITS_OFFSET - f.PULSE_OFFSET) // 8 + 2 * queue
        return self._words[at : at + 2]

    def live(self, stream: int) -> LiveRun:
        """Return what keeps the run that ``stream`` is in. Raises IndexError from MAX_STREAMS on."""
        if not 0 <= stream < f.MAX_STREAMS:
            raise IndexError(f"a recording has room for {f.MAX_STREAMS} streams")
        first = (f.REPEATS_OFFSET - f.PULSE_OFFSET + f.REPEATS.size * stream) // 8
        return LiveRun(self._store, self._words[first : first + 3], stream)

    def close_run(self, head: tuple[int, ...], tail: bytes) -> None:
        """Append a run that has ended to the rounds ring."""
        seq = self._round_seq = self._round_seq + 1
        body = f.ROUND_HEAD.pack(seq, *head) + tail
        at = self._rounds_off + (seq - 1) % self.rounds_capacity * f.ROUND_SIZE
        self._store.put(at, body + _ROUND_PAD + crc32(body).to_bytes(4, "little"))

    def items(self, data: bytes) -> int:
        """Append item records (``data``: a multiple of ITEM_SIZE bytes) and return the number of the first one.

        Items beyond the ring's capacity overwrite the oldest; a batch larger than the ring keeps its end.
        """
        start = self._items_written
        if not data:
            return start
        count = len(data) // f.ITEM_SIZE
        at = start % self.items_capacity
        head = min(count, self.items_capacity - at)
        offset = self._items_off + at * f.ITEM_SIZE
        self._store.put(offset, data[: head * f.ITEM_SIZE])
        rest = data[head * f.ITEM_SIZE :]
        if rest:
            rest = rest[-self.items_capacity * f.ITEM_SIZE :]
            self._store.put(self._items_off, rest)
        self._items_written = start + count
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
        """Append an event (:class:`pdctl.protocol.model.EventKind` says what ``a``, ``b`` and ``text`` mean). Any thread."""
        seq = next(self._event_seq)
        when = time.monotonic_ns() if mono_ns is None else mono_ns
        body = f.EVENT.pack(seq, when, kind, queue, 0, slot, room, a, b, text.encode("utf-8", "replace")[:72])
        offset = self._events_off + (seq - 1) % self._events_cap * f.EVENT_SIZE
        self._store.put(offset, body + b"\0\0\0\0" + crc32(body).to_bytes(4, "little"))

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file, for a client that has the control socket only; fewer where it ends. Raises OSError."""
        return self._store.read(offset, length)

    def stop(self) -> None:
        """Mark the recording as closed in good order, and write no more."""
        self._store.put(f.STATE_OFFSET, f.STATE.pack(f.STATE_CLOSED))
        self._store.end()


def _header(identity_json: bytes, size: int) -> bytearray:
    head = bytearray(f.HEADER_SIZE)
    pid = os.getpid()
    f.FIXED.pack_into(
        head, 0, f.MAGIC, f.VERSION, f.HEADER_SIZE, size, time.time_ns(), time.monotonic_ns(), pid, f.STATE_WRITING,
        look(pid).start, *f.layout(size),
    )  # fmt: skip
    f.IDENTITY_FIELDS.pack_into(head, f.IDENTITY_OFFSET_FIELDS, len(identity_json), crc32(identity_json))
    head[f.IDENTITY_OFFSET : f.IDENTITY_OFFSET + len(identity_json)] = identity_json
    return head


def _write_all(fd: int, data: bytes | bytearray, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        offset, view = offset + done, view[done:]


_STOPPED = (f.STATE_OFFSET, f.STATE.pack(f.STATE_STOPPED))
_ROUND_PAD = b"\0" * (f.ROUND_CRC_OFFSET - f.ROUND_BODY_SIZE)
_COUNTERS_END = f.REPEATS_OFFSET + f.REPEATS.size * f.MAX_STREAMS
_SEQ_TAG = (1 << 64 - f.REPEAT_BITS) - 1
_pack_head, _pack_crc = f.ROUND_HEAD.pack_into, f.ROUND_CRC.pack_into


class LiveRun:
    """The current run of one stream. Two cells are written in turn: if the rank dies during one write, the other is complete.

    words: the repeat words of :data:`pdctl.recording.format.REPEATS`, which a tap sets when the run is repeated. Word 1 is the
    time, word 0 is ``tag | repeat``. Word 2 gets the same value when the round has been applied. A flush writes them into the
    file. tag: the tag of this run.
    """

    __slots__ = ("_body", "_cell", "_seq", "_write", "tag", "words")

    def __init__(self, store: Store, words: memoryview[int], stream: int) -> None:
        self.words = words
        self.tag = 0
        self._seq = 0
        self._cell = bytearray(f.ROUND_SIZE)
        first = f.LIVE_OFFSET + 2 * stream * f.ROUND_SIZE
        self._write = tuple(store.window(at, self._cell) for at in (first, first + f.ROUND_SIZE))
        self._body = memoryview(self._cell)[: f.ROUND_BODY_SIZE]

    def store(self, head: tuple[int, ...], tail: bytes) -> None:
        """Store the run; ``head`` is a ROUND_HEAD without seq, ``tail`` a packed ROUND_TAIL."""
        seq = self._seq = self._seq + 1
        cell = self._cell
        _pack_head(cell, 0, seq, *head)
        cell[f.ROUND_HEAD.size : f.ROUND_BODY_SIZE] = tail
        _pack_crc(cell, f.ROUND_CRC_OFFSET, crc32(self._body))
        self._write[seq & 1]()
        self.tag = (seq & _SEQ_TAG) << f.REPEAT_BITS
        self.words[0] = self.words[2] = 0  # not yet in the file, where their tag does not fit this cell
