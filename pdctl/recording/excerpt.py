"""Excerpts: the part of a recording that a comparison needs, as a rank's gateway answers it and a client reads it.

A client asks for :class:`Wanted` and gets :class:`Part`: digests, and records of the recording as they are in its file. With
these it reads a recording as it reads a whole one (:class:`Excerpt`), with every check; only runs between are left out.
Each answer is of its own moment. Where anything is odd, the answer says so, and the client reads the whole recording.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from pdctl.protocol import structs
from pdctl.protocol.model import EventKind, Identity, KVPoll
from pdctl.recording import format as f
from pdctl.recording.digest import SIZE, Digests, whole
from pdctl.recording.header import BadRecording, parse_header
from pdctl.recording.reader import Recording, read_from
from pdctl.recording.rings import ROUND, Ring, among, events, later_rounds, possible_rounds, select_records
from pdctl.recording.source import FileSource, Held
from pdctl.recording.streams import Stream, foreign
from pdctl.recording.sums import right_sums
from pdctl.recording.tail import Tail
from pdctl.recording.witness import oldest

OP = "rounds"
GATED = "decode.transfer"
"""The queue whose polls the gate of the metadata holds back."""
MAX_BODY = 8 << 20
"""Bytes of the records in one answer, before they are compressed."""
MAX_ROWS, MAX_EVENTS, MAX_ITEM_BYTES = 16384, 8192, 4 << 20
MAX_PIECES = 4 * MAX_ROWS
MAX_HELD = 4 * MAX_BODY
"""Bytes that one recording's answers may have together; over it the recording is read whole."""
MAX_CUTS, MAX_ROOMS = 64, 4096
TOO_MUCH = "more is asked for than an excerpt may have"

_Number = Annotated[int, msgspec.Meta(ge=0, lt=f.MAX_COUNT)]
_Rounds = dict[Annotated[int, msgspec.Meta(ge=0, lt=256)], Annotated[list[_Number], msgspec.Meta(max_length=MAX_CUTS)]]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a client asks for. Streams are named by their number in the recording.

    newest: header, live cells, the oldest run of each stream, and so many of the newest runs with their lists; 0 nothing of it.
    held: (runs, most more), wanted of GATED where the gate held a request in its newest runs; most more, if all that time.
    foreign: of the newest so many runs of GATED, those in which a slot held another room when its owner was decided on, with
    their lists.
    rounds: the runs with these rounds. lists: the same, with the runs that their lists build on. cuts: a round from which turns
    are counted, then rounds; asked for is a digest of the rounds between each two of them.
    rooms, kinds: events about these rooms, and of these kinds. seen: also the runs that say something of these rooms. oldest:
    also the oldest events.
    """

    newest: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)] = 0
    held: tuple[_Number, _Number] = (0, 0)
    foreign: _Number = 0
    rounds: _Rounds = {}
    lists: _Rounds = {}
    cuts: _Rounds = {}
    rooms: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=MAX_ROOMS)] = []
    seen: bool = False
    oldest: bool = False
    kinds: Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=256)]], msgspec.Meta(max_length=64)] = []


class Part(msgspec.Struct, frozen=True):
    """The answer. whole: why the whole recording has to be read instead, "" if not.

    digests: by stream, SIZE bytes for each range; b"" where a round of it is not there (any more). packed: a Body, compressed.
    """

    whole: str = ""
    digests: dict[int, bytes] = {}
    packed: bytes = b""


class Body(msgspec.Struct, frozen=True):
    """Records. head: the file up to its rings. rows: round records. pieces: items and events, by their place in the file.

    tails: by stream, the round from which on no run is left out.
    """

    size: int = 0
    head: bytes = b""
    rows: bytes = b""
    pieces: Annotated[list[tuple[int, bytes]], msgspec.Meta(max_length=MAX_PIECES)] = []
    tails: dict[int, int] = {}


# ---- where the recording is -------------------------------------------------------------------------------------------


class Answerer:
    """Answers for one recording whose file this process can open. Raises OSError where it can't."""

    def __init__(self, path: Path, pid: int, proc_start: int) -> None:
        self._tail = _Kept(path, pid, proc_start)
        self._known: Known | None = None

    def answer(self, wanted: Wanted) -> Part:
        """Return what is wanted. Raises OSError, BadRecording as :meth:`Tail.read` does.

        A first question is answered from the recording as it is now. Later ones, without ``newest``, are answered from the same
        runs.
        """
        if self._known is None or (wanted.newest and self._tail.grew()):
            recording = self._tail.read()
            self._known = Known(recording, self._known, self._tail.overwritten(recording))
        return answer(self._known, wanted, self._tail.head)


class _Kept(Tail):
    """A tail of all runs in the file, and of some that are overwritten: a client may still ask for them."""

    def __init__(self, path: Path, pid: int, proc_start: int) -> None:
        super().__init__(path, pid, proc_start)
        self._source = self._heard = _Heard(path)

    @property
    def head(self) -> bytes:
        """The bytes up to the rings that the last recording was read from."""
        return self._heard.head

    def grew(self) -> bool:
        """Return whether a recording that is read now would be another one, but for its events."""
        last, head = self._heard.head, self._heard.read(0, f.HEADER_SIZE)
        head += self._heard.read(f.LIVE_OFFSET, f.RINGS_OFFSET - f.LIVE_OFFSET)
        if head != last or self._runs is None:
            return True
        offset, capacity = parse_header(head).rings[:2]
        more = later_rounds(self._heard, offset, capacity, int(self._runs["seq"][-1]), 1) if len(self._runs) else None
        return more is None or bool(len(more.table) or more.torn or more.untrue)

    def overwritten(self, recording: Recording) -> int:
        """Return the number of the newest run that was overwritten when ``recording`` was read."""
        newest = int(self._runs["seq"][-1]) if self._runs is not None and len(self._runs) else 0
        return max(0, newest - recording.rings[1])

    def _most(self, capacity: int) -> int:
        return capacity + capacity // 8


class _Heard(FileSource):
    """A file of which the bytes before the rings are remembered as they were read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.head = b""

    def read(self, offset: int, length: int) -> bytes:
        data = super().read(offset, length)
        if offset == 0:
            self.head = data
        elif offset == f.LIVE_OFFSET:
            self.head += data
        return data


class Known:
    """A recording, and what several answers of it need.

    before: the same of an earlier moment. overwritten: the number of the newest run that is not in the file any more.
    """

    def __init__(self, recording: Recording, before: Known | None = None, overwritten: int = 0) -> None:
        self.recording = recording
        self.streams = {stream.number: stream for stream in recording.streams}
        gaps = not all(whole(stream.table) for stream in recording.streams)
        self.odd = "; ".join(recording.problems)[:500] or ("rounds are missing in it" if gaps else "")
        self._digests: dict[int, Digests] = dict(before._digests) if before is not None else {}
        self._full: dict[int, NDArray[np.int64]] = {}
        self._overwritten = overwritten

    def oldest(self, stream: Stream) -> int:
        """Return the row of the oldest run of a stream that is in the file."""
        return int(np.count_nonzero(stream.table["seq"][:-1] <= self._overwritten))

    def digests(self, number: int, cuts: Sequence[int]) -> bytes:
        """Return the digests that a part has of a stream."""
        stream, old = self.streams.get(number), self._digests.get(number)
        if stream is None or len(cuts) < 3:
            return b""
        if old is None or old.first > min(cuts) or old.last < max(cuts):  # of the last round the outcome may be new
            old = self._digests[number] = Digests(stream.table)
        return b"".join(old.of(cuts[0], cuts[1:]) or ())

    def full(self, number: int) -> NDArray[np.int64]:
        """Return the rows of the runs of a stream that have their whole list themselves."""
        if number not in self._full:
            self._full[number] = np.flatnonzero(self.streams[number].table["flags"] >> 4 & f.FLAG_FULL)
        return self._full[number]


def answer(known: Known, wanted: Wanted, head: bytes = b"") -> Part:
    """Return what is wanted of a recording. head: its bytes up to the rings."""
    if known.odd:
        return Part(known.odd)
    try:
        body = _body(known, wanted, head)
    except _TooMuchError:
        return Part(TOO_MUCH)
    digests = {number: known.digests(number, cuts) for number, cuts in wanted.cuts.items()}
    packed = zlib.compress(msgspec.msgpack.encode(body), 1) if body is not None else b""
    return Part(digests=digests, packed=packed)


class _TooMuchError(Exception):
    pass


def _body(known: Known, wanted: Wanted, head: bytes) -> Body | None:
    recording, streams = known.recording, known.streams
    rows, listed = {}, {}
    tails = {}
    for number, stream in streams.items():
        size = len(stream)
        asked = [stream.index(n) for n in wanted.rounds.get(number, ())]
        lists = [stream.index(n) for n in wanted.lists.get(number, ())]
        if wanted.newest:
            gated = wanted.held[0] and stream.queue == GATED
            tail = max(0, size - max(wanted.newest, _held(stream, *wanted.held) if gated else 0))
            tails[number] = int(stream.table["ordinal"][tail])
            asked.append(known.oldest(stream))
            lists += range(tail, size)
        if wanted.foreign and stream.queue == GATED:
            changes = stream.changes(wanted.foreign)
            lists += np.unique(changes.row[foreign(changes.items)]).tolist()
        chains = _chains(known.full(number), [n for n in lists if n >= 0])
        seen = {n for n, _ in stream.sightings(wanted.rooms)} if wanted.seen else set()
        listed[number] = np.array(sorted(seen.union(chains)), np.int64)
        rows[number] = np.union1d(listed[number], np.array([n for n in asked if n >= 0], np.int64))
    if sum(map(len, rows.values())) > MAX_ROWS:
        raise _TooMuchError
    found = [select_records(stream.table, rows[number]) for number, stream in streams.items() if len(rows[number])]
    pieces: list[tuple[int, bytes]] = []
    if wanted.rooms or wanted.kinds or wanted.oldest:
        pieces += _events(recording, wanted)
    elif wanted.newest:
        pieces += _newest_event(recording) or _events(recording, wanted)
    left = MAX_ITEM_BYTES
    for number, stream in streams.items():
        for at, data in _items(recording, select_records(stream.table, listed[number])):
            left -= len(data)
            if left < 0:
                raise _TooMuchError
            pieces.append((at, data))
    if not found and not pieces and not wanted.newest:
        return None
    sealed = (_sealed(table).tobytes() for table in found)
    return Body(recording.source.size, head if wanted.newest else b"", b"".join(sealed), pieces, tails)


def _sealed(table: NDArray[Any]) -> NDArray[Any]:
    """Return the records as they are in the file: the run in the live cells is put together anew there."""
    right = right_sums(table.tobytes(), np.arange(len(table)), table["crc"], f.ROUND_SIZE, f.ROUND_BODY_SIZE)
    return select_records(table, right)


def _held(stream: Stream, least: int, most: int) -> int:
    """Return how many of the newest runs tell of the requests that the gate held in the newest ``least`` of them."""
    begin = max(0, len(stream) - least)
    changes = stream.changes(least)
    items = changes.items
    held = (items["local"] == KVPoll.SUCCESS) & (items["gated"] == KVPoll.TRANSFERRING)
    if changes.known.all() and not held.any():
        return 0
    since, now = _gated(stream, begin), _gated(stream, len(stream) - 1)
    return least + most if begin and since & now else least


def _gated(stream: Stream, index: int) -> set[int]:
    rows = stream.rows(index)
    if rows is None:
        return set()
    return set(rows["room"][(rows["local"] == KVPoll.SUCCESS) & (rows["gated"] == KVPoll.TRANSFERRING)].tolist())


def _chains(full: NDArray[np.int64], indices: Collection[int]) -> list[int]:
    """Return the rows of these runs and of those that their lists build on. full: rows of runs with their whole list."""
    found: set[int] = set()
    for index in indices:
        if index in found:
            continue
        at = int(np.searchsorted(full, index, "right")) - 1
        begin = int(full[at]) if at >= 0 else index  # else its list is lost
        found.update(range(begin, index + 1))
        if len(found) > MAX_ROWS:
            raise _TooMuchError
    return sorted(found)


def _items(recording: Recording, runs: NDArray[Any]) -> Iterable[tuple[int, bytes]]:
    _, _, offset, capacity, _, _ = recording.rings
    some = runs[(runs["items_count"] > 0) & (runs["items_count"] <= capacity)]
    if not len(some):
        return
    starts = some["items_start"].astype(np.int64)
    ends = starts + some["items_count"].astype(np.int64)
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    firsts, lasts = starts[np.r_[0, breaks]], ends[np.r_[breaks - 1, len(ends) - 1]]
    for first, end in zip(firsts.tolist(), lasts.tolist(), strict=True):
        begin = max(first, end - capacity)
        while begin < end:
            place = begin % capacity
            count = min(end - begin, capacity - place)
            at, length = offset + place * f.ITEM_SIZE, count * f.ITEM_SIZE
            yield at, recording.source.read(at, length)
            begin += count


def _newest_event(recording: Recording) -> list[tuple[int, bytes]]:
    """Return the newest event, found by halves, since their numbers rise up to it; nothing where it is not sound."""
    _, _, _, _, offset, capacity = recording.rings

    def record(place: int) -> bytes:
        return recording.source.read(offset + place * f.EVENT_SIZE, f.EVENT_SIZE)

    def number(data: bytes) -> int:
        return int.from_bytes(data[:8], "little")

    begin = number(record(0))
    low, high = 0, capacity  # the newest is from low on, before high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if number(record(middle)) == begin + middle else (low, middle)
    data = record(low)
    sound = len(data) == f.EVENT_SIZE and begin > 0 and (begin - 1) % capacity == 0
    if not sound or crc32(data[: f.EVENT.size]) != int.from_bytes(data[f.EVENT_CRC_OFFSET :], "little"):
        return []
    return [(offset + low * f.EVENT_SIZE, data)]


def _events(recording: Recording, wanted: Wanted) -> list[tuple[int, bytes]]:
    _, _, _, _, offset, capacity = recording.rings
    codes = np.array(wanted.kinds, np.uint8)
    landed = int(EventKind.LANDED)

    def meant(table: NDArray[Any]) -> NDArray[np.bool_]:
        found = np.isin(table["kind"], codes) | among(table["room"], wanted.rooms)
        if wanted.rooms:
            found |= (table["kind"] == landed) & among(table["b"].astype(np.uint64), wanted.rooms)
        return found

    def kept(table: NDArray[Any]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = table["seq"] == table["seq"].max(initial=0)  # one of these is the newest of all
        return found | meant(table) | oldest(table)

    table = events(recording.source, offset, capacity, kept)
    named = meant(table) | (oldest(table) if wanted.oldest else False)
    named[-1:] |= wanted.newest > 0
    table = select_records(table, named)
    if len(table) > MAX_EVENTS:
        raise _TooMuchError
    data = table.view(f"V{f.EVENT_SIZE}").tobytes()
    places = ((table["seq"].astype(np.int64) - 1) % capacity * f.EVENT_SIZE + offset).tolist()
    return [(at, data[n * f.EVENT_SIZE : (n + 1) * f.EVENT_SIZE]) for n, at in enumerate(places)]


# ---- who asked ---------------------------------------------------------------------------------------------------------


class Excerpt:
    """What one client has of a recording. The first part has its header; the recording is as it was then."""

    def __init__(self, part: Part, name: str) -> None:
        """Raises BadRecording where the part can't be read, or is not the first."""
        self._name = name
        body = _unpacked(part)
        if not f.RINGS_OFFSET <= body.size <= f.MAX_SIZE or len(body.head) != f.RINGS_OFFSET:
            raise BadRecording("the answer has no header")
        self._body = body
        self._taken = 0
        self._pieces = {0: body.head, **_checked(body.pieces, body.size)}
        self._rows = _rows(body.rows)
        self.recording = self._read()
        self._newest = {stream.number: stream.newest.ordinal for stream in self.recording.streams}

    def add(self, part: Part) -> None:
        """Take the records of a later answer, of runs that had ended when the first was given. Raises BadRecording."""
        if not part.packed:
            return
        body = _unpacked(part)
        self._taken += len(body.rows) + sum(len(data) for _, data in body.pieces)
        if self._taken > MAX_HELD:
            raise BadRecording("the answers are longer than they may be")
        self._pieces = {**_checked(body.pieces, self._body.size), **self._pieces}
        more = _rows(body.rows)
        ended = [
            ordinal < self._newest.get(stream, 0)
            for stream, ordinal in zip(more["stream"].tolist(), more["ordinal"].tolist(), strict=True)
        ]
        self._rows = _once(np.concatenate([self._rows, select_records(more, np.array(ended, np.bool_))]))
        self.recording = self._read()

    def _read(self) -> Recording:
        recording = read_from(_Pieces(self._body.size, self._pieces), self._name, lambda *_: Ring(self._rows))
        for stream in recording.streams:
            since = self._body.tails.get(stream.number, 0)
            stream.tail = int(np.searchsorted(stream.table["ordinal"].astype(np.int64), since))
        return recording


def opened(part: Part, identity: Identity) -> Excerpt | None:
    """Return what one client has after the first part, None where it has to read the whole recording.

    identity: of the process that was asked.
    """
    if part.whole:
        return None
    try:
        excerpt = Excerpt(part, f"{identity.label} (excerpt)")
    except BadRecording:
        return None
    found = excerpt.recording.identity
    same = (found.pid, found.proc_start) == (identity.pid, identity.proc_start)
    return excerpt if same and not excerpt.recording.problems else None


class _Pieces(Held):
    """These pieces of a file, zeros between."""

    def __init__(self, size: int, pieces: dict[int, bytes]) -> None:
        self.size = size
        self._starts: list[int] = []
        self._parts: list[bytes] = []
        end = 0
        for start, part in sorted(pieces.items()):
            kept = part[max(0, end - start) :]
            if kept:
                self._starts.append(start + len(part) - len(kept))
                self._parts.append(kept)
                end = start + len(part)


def _unpacked(part: Part) -> Body:
    """Return the records of a part. Raises BadRecording."""
    machine = zlib.decompressobj()
    try:
        data = machine.decompress(part.packed, MAX_BODY)
        if machine.unconsumed_tail or not machine.eof:
            raise BadRecording("the answer is longer than it may be")
        return structs.from_msgpack(data, Body)
    except (zlib.error, ValueError, RecursionError) as error:
        raise BadRecording(f"the answer can't be read: {error}"[:200]) from None


def _checked(pieces: Sequence[tuple[int, bytes]], size: int) -> dict[int, bytes]:
    if any(at < f.RINGS_OFFSET or at + len(data) > size for at, data in pieces):
        raise BadRecording("the answer has bytes from outside of the recording")
    return dict(pieces)


def _rows(data: bytes) -> NDArray[Any]:
    """Return round records, those of a stream in order. Raises BadRecording if one is not whole."""
    if len(data) % f.ROUND_SIZE:
        raise BadRecording("the answer ends within a record")
    table = np.frombuffer(data, ROUND)
    places = np.arange(len(table))
    if not right_sums(data, places, table["crc"], f.ROUND_SIZE, f.ROUND_BODY_SIZE).all():
        raise BadRecording("the answer has a torn record")
    if not possible_rounds(table).all():
        raise BadRecording("the answer has a record that can't be true")
    return _once(table)


def _once(table: NDArray[Any]) -> NDArray[Any]:
    order = np.lexsort((table["ordinal"], table["stream"]))
    stream, ordinal = table["stream"][order], table["ordinal"][order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (stream[1:] != stream[:-1]) | (ordinal[1:] != ordinal[:-1])
    return select_records(table, order[new])


def digests_of(part: Part, number: int, count: int) -> list[bytes] | None:
    """Return the ``count`` digests that a part has of a stream, None where it has not all of them."""
    data = part.digests.get(number, b"")
    if len(data) != count * SIZE:
        return None
    return [data[at : at + SIZE] for at in range(0, len(data), SIZE)]


__all__ = [
    "MAX_CUTS", "OP",
    "Answerer", "Excerpt", "Known", "Part", "Wanted", "answer", "digests_of", "opened",
]  # fmt: skip
