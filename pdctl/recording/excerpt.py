"""Excerpts: the part of a recording that a comparison needs, as a rank's gateway answers it and a client reads it.

A client asks for :class:`Wanted` and gets :class:`Part`: digests, and records of the recording as they are in its file
(:mod:`pdctl.recording.answers`). With these it reads a recording as it reads a whole one (:class:`Excerpt`), with every check;
only runs between are left out.
Each answer is of its own moment. Where anything is odd, the answer says so, and the client reads the whole recording.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pdctl.protocol import structs
from pdctl.protocol.model import Identity
from pdctl.recording import format as f
from pdctl.recording.digest import SIZE
from pdctl.recording.header import BadRecording
from pdctl.recording.reader import Recording, read_from
from pdctl.recording.rings import ROUND, Ring, possible_rounds, select_records
from pdctl.recording.source import Held
from pdctl.recording.sums import right_sums

OP = "rounds"
GATED = "decode.transfer"
"""The queue whose polls the gate of the metadata holds back."""
MAX_BODY = 8 << 20
"""Bytes of the records in one answer, before they are compressed."""
MAX_ROWS = 16384
MAX_PIECES = 4 * MAX_ROWS
MAX_HELD = 4 * MAX_BODY
"""Bytes that one recording's answers may have together; over it the recording is read whole."""
MAX_TOGETHER = 128 << 20
"""The same of all recordings that are looked at together: few bytes of many ranks may unpack to as many as are allowed."""
MAX_CUTS, MAX_ROOMS, MAX_RIDS = 64, 4096, 128

_Number = Annotated[int, msgspec.Meta(ge=0, lt=f.MAX_COUNT)]
_Stream = Annotated[int, msgspec.Meta(ge=0, lt=256)]
_Rounds = dict[_Stream, Annotated[list[_Number], msgspec.Meta(max_length=MAX_CUTS)]]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a client asks for. Streams are named by their number in the recording.

    newest: header, live cells, the oldest run of each stream, and so many of the newest runs, with their lists where these are
    more than one: a list may build on two thousand runs. 0 nothing of it.
    held: (runs, most more), wanted of GATED where the gate held a request in its newest runs; most more, if all that time.
    foreign: of the newest so many runs of GATED, those in which a slot held another room when its owner was decided on, with
    their lists.
    rounds: the runs with these rounds. lists: the same, with the runs that their lists build on. cuts: a round from which turns
    are counted, then rounds; asked for is a digest of the rounds between each two of them.
    runs: all runs of these streams, without lists.
    rooms, kinds: events about these rooms, and of these kinds. seen: also the runs that say something of these rooms. oldest:
    also the oldest events.
    rids: events about the rooms that entered a queue under these ids. slots: when these slots were taken and given back.
    sound: nothing, where an event lacks between the oldest and the newest.
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
    runs: Annotated[list[_Stream], msgspec.Meta(max_length=f.MAX_STREAMS)] = []
    rids: Annotated[list[Annotated[str, msgspec.Meta(max_length=f.TEXT_BYTES)]], msgspec.Meta(max_length=MAX_RIDS)] = []
    slots: Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]], msgspec.Meta(max_length=MAX_ROOMS)] = []
    sound: bool = False


class Part(msgspec.Struct, frozen=True):
    """The answer. whole: why the whole recording has to be read instead, "" if not.

    digests: by stream, SIZE bytes for each range; b"" where a round of it is not there (any more). packed: a Body, compressed.
    """

    whole: str = ""
    digests: dict[_Stream, bytes] = {}
    packed: bytes = b""


class Body(msgspec.Struct, frozen=True):
    """Records. head: the file up to its rings. rows: round records. pieces: items and events, by their place in the file.

    tails: by stream, the round from which on no run is left out.
    """

    size: int = 0
    head: bytes = b""
    rows: bytes = b""
    pieces: Annotated[list[tuple[int, bytes]], msgspec.Meta(max_length=MAX_PIECES)] = []
    tails: dict[_Stream, _Number] = {}


class Together:
    """The bytes that the excerpts of all recordings that are looked at together may still have."""

    def __init__(self) -> None:
        self._left = MAX_TOGETHER

    def take(self, body: Body) -> int:
        """Return the bytes of a body's records, which are held from now on. Raises BadRecording where there is no room."""
        count = len(body.head) + len(body.rows) + sum(len(data) for _, data in body.pieces)
        if count > self._left:
            raise BadRecording("the answers of all ranks are longer than they may be")
        self._left -= count
        return count


class Excerpt:
    """What one client has of a recording. The first part has its header; the recording is as it was then."""

    def __init__(self, part: Part, name: str, together: Together | None = None) -> None:
        """Raises BadRecording where the part can't be read, or is not the first, and as :meth:`Together.take`."""
        self._name = name
        self._together = together or Together()
        body = _unpacked(part)
        if not f.RINGS_OFFSET <= body.size <= f.MAX_SIZE or len(body.head) != f.RINGS_OFFSET:
            raise BadRecording("the answer has no header")
        self._together.take(body)
        self._body = body
        self._taken = 0
        self._pieces = _joined({0: body.head}, body.pieces, body.size)
        self._rows = _rows(body.rows)
        self.recording = self._read()
        self._newest = {stream.number: stream.newest.ordinal for stream in self.recording.streams}

    def add(self, part: Part) -> None:
        """Take the records of a later answer, of runs that had ended when the first was given. Raises BadRecording."""
        if not part.packed:
            return
        body = _unpacked(part)
        self._taken += self._together.take(body)
        if self._taken > MAX_HELD:
            raise BadRecording("the answers are longer than they may be")
        self._pieces = _joined(self._pieces, body.pieces, self._body.size)
        more = _rows(body.rows)
        ended = [
            ordinal < self._newest.get(stream, 0)
            for stream, ordinal in zip(more["stream"].tolist(), more["ordinal"].tolist(), strict=True)
        ]
        self._rows = _once(np.concatenate([self._rows, select_records(more, np.array(ended, np.bool_))]))
        self.recording = self._read()

    def _read(self) -> Recording:
        recording = read_from(_Pieces(self._body.size, self._pieces), self._name, lambda *_: Ring(self._rows))
        recording.excerpt = True
        for stream in recording.streams:
            since = self._body.tails.get(stream.number, 0)
            stream.tail = int(np.searchsorted(stream.table["ordinal"].astype(np.int64), since))
        return recording


def opened(part: Part, identity: Identity, together: Together | None = None) -> Excerpt | None:
    """Return what one client has after the first part, None where it has to read the whole recording.

    identity: of the process that was asked. together: what all excerpts of this look share.
    """
    if part.whole:
        return None
    try:
        excerpt = Excerpt(part, f"{identity.label} (excerpt)", together)
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
    except (zlib.error, ValueError) as error:
        raise BadRecording(f"the answer can't be read: {error}"[:200]) from None


def _joined(held: dict[int, bytes], pieces: Iterable[tuple[int, bytes]], size: int) -> dict[int, bytes]:
    """Return ``held`` with more pieces of a file of ``size`` bytes. Raises BadRecording for one from outside of its rings.

    Lists of two laps of the ring may begin at one place: of two such pieces the longer one has what the other lacks.
    """
    joined = dict(held)
    for at, data in pieces:
        if at < f.RINGS_OFFSET or at + len(data) > size:
            raise BadRecording("the answer has bytes from outside of the recording")
        there = joined.get(at, b"")
        if len(data) > len(there):
            joined[at] = there + data[len(there) :]
    return joined


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
