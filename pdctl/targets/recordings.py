"""A rank's recording: from its file where that can be read, else through its socket."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pdctl.protocol.rank import Answer, FoundRank, Silence

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording
    from pdctl.recording.source import Room, Source, Spool

CHUNK = 512 * 1024
MOST_AT_ONCE = 16
"""Ranks whose recordings are fetched at the same time, a chunk of each."""
MAX_RECORDING = 1 << 30
"""Bytes of a recording that is fetched through a socket, and of all that one client fetches."""


class Recordings:
    """The recordings of ranks that one client may ask. ask_each: :meth:`pdctl.targets.client.Client.ask_each`."""

    def __init__(
        self, ask_each: Callable[[Sequence[tuple[FoundRank, dict[str, Any]]], str, type[bytes]], list[Answer[bytes]]]
    ) -> None:
        self._ask_each = ask_each
        self._taken = 0
        self._spool: Spool | None = None

    def read(self, ranks: Sequence[FoundRank], *, through_socket: bool = False) -> list[Answer[Recording]]:
        """Return the ranks' recordings, from their files where these can be read, else through their sockets.

        through_socket: do not try the files.
        """
        answers: dict[int, Answer[Recording]] = {}
        fetched = []
        for rank in ranks:
            answer = None if through_socket else recording_file(rank)
            if answer is None or (answer.silence is Silence.NOT_AUTHORISED and rank.carries_recording):
                fetched.append(rank)
            else:
                answers[id(rank)] = answer
        answers.update((id(one.rank), _parsed(one)) for one in self.whole(fetched))
        return [answers[id(rank)] for rank in ranks]

    def copy(self, rank: FoundRank, *, through_socket: bool = False) -> tuple[Answer[Source], str]:
        """Return a copy of the rank's recording, and ``file`` or ``socket``, selected as in :meth:`read`.

        The bytes are copied from the start to the end, the order in which a recording must be read.
        """
        if not through_socket:
            answer = _file_bytes(rank)
            if answer.silence is not Silence.NOT_AUTHORISED or not rank.carries_recording:
                return answer, "file"
        [answer] = self.whole([rank])
        return answer, "socket"

    def part(self, rank: FoundRank, offset: int, length: int) -> Answer[bytes]:
        """Return ``length`` bytes of the rank's recording from ``offset`` on through its socket, fewer where it ends."""
        if length > MAX_RECORDING:
            return Answer(rank, None, Silence.GARBAGE, _too_long(length))
        data = bytearray()
        while len(data) < length:
            args = {"offset": offset + len(data), "length": min(CHUNK, length - len(data))}
            [part] = self._ask_each([(rank, args)], "recording", bytes)
            if part.body is None:
                return part
            if not part.body:
                break
            data += part.body
        return Answer(rank, bytes(data))

    def whole(self, ranks: Sequence[FoundRank]) -> list[Answer[Source]]:
        """Return the recordings of ranks through their sockets, of MOST_AT_ONCE at the same time.

        They are kept on disk, because agents choose their size. Each is taken from the start to the end.
        """
        batches = (ranks[at : at + MOST_AT_ONCE] for at in range(0, len(ranks), MOST_AT_ONCE))
        return [answer for batch in batches for answer in self._batch(batch)]

    def _batch(self, ranks: Sequence[FoundRank]) -> list[Answer[Source]]:
        answers: dict[int, Answer[Source]] = {}
        rooms: dict[int, Room] = {}
        for rank in ranks:
            room = self._room(rank)
            if isinstance(room, Answer):
                answers[id(rank)] = room
            else:
                rooms[id(rank)] = room
        while rooms:
            asked = [
                (
                    rank,
                    {"offset": rooms[id(rank)].size, "length": min(CHUNK, rank.recording_size - rooms[id(rank)].size)},
                )
                for rank in ranks
                if id(rank) in rooms
            ]
            for part in self._ask_each(asked, "recording", bytes):
                rank = part.rank
                answer = self._took(part, rooms[id(rank)])
                if answer is not None:
                    answers[id(rank)] = answer
                    self._taken -= rank.recording_size - rooms.pop(id(rank)).size
        return [answers[id(rank)] for rank in ranks]

    def _took(self, part: Answer[bytes], room: Room) -> Answer[Source] | None:
        """Keep the next part of a rank's recording. Return the recording if that was the last, or why there is none."""
        rank = part.rank
        if part.body is None:
            return Answer(rank, None, part.silence, part.reason, part.next_step, part.code)
        try:
            room.add(part.body)
        except OSError as error:
            return _no_room(rank, error)
        ended = not part.body or room.size >= rank.recording_size
        return Answer(rank, room.source()) if ended else None

    def _room(self, rank: FoundRank) -> Room | Answer[Source]:
        """Return a place for the rank's recording, or why it is not fetched. Its stated size counts as taken."""
        size = rank.recording_size
        if size > MAX_RECORDING:
            return Answer(rank, None, Silence.GARBAGE, _too_long(size))
        if self._taken + size > MAX_RECORDING:
            held = f"its recording of {size >> 20} MiB is not fetched: {self._taken >> 20} MiB were already, of "
            return Answer(rank, None, Silence.ERROR, f"{held}{MAX_RECORDING >> 20} MiB that are at most")
        if self._spool is None:
            from pdctl.recording.source import Spool  # only where there is something to keep

            self._spool = Spool()
        try:
            room = self._spool.room(size)
        except OSError as error:
            return _no_room(rank, error)
        self._taken += size
        return room


def _no_room(rank: FoundRank, error: OSError) -> Answer[Source]:
    why = f"its recording can't be kept in {tempfile.gettempdir()}: {error.strerror or error}"
    return Answer(rank, None, Silence.ERROR, why, "Set TMPDIR to a directory with room.")


def _parsed(answer: Answer[Source]) -> Answer[Recording]:
    rank = answer.rank
    if answer.body is None:
        return Answer(rank, None, answer.silence, answer.reason, answer.next_step, answer.code)
    from pdctl.recording.reader import BadRecording, read_from  # loads numpy: only where there is something to read

    try:
        return Answer(rank, read_from(answer.body, f"{rank.identity.label} (through its socket)"))
    except BadRecording as error:
        return Answer(rank, None, Silence.GARBAGE, f"its recording can't be read: {error}")


def _too_long(size: int) -> str:
    return f"its recording is said to have {size} bytes: at most {MAX_RECORDING >> 30} GiB go through a socket"


def recording_file(rank: FoundRank) -> Answer[Recording]:
    """Return the rank's recording from its file, or why it can't be read (NOT_AUTHORISED, GARBAGE, ERROR)."""
    if rank.recording is None or _elsewhere(rank):
        return Answer(rank, None, *_no_file(rank))
    from pdctl.recording.reader import BadRecording, read  # as above

    try:
        recording = read(rank.recording)
        if (recording.identity.pid, recording.identity.proc_start) != (rank.identity.pid, rank.identity.proc_start):
            return Answer(rank, None, Silence.GARBAGE, f"{rank.recording_name} is of another process")
        return Answer(rank, recording)
    except BadRecording as error:
        return Answer(rank, None, Silence.GARBAGE, f"{rank.recording_name}: {error}")
    except OSError as error:
        return Answer(rank, None, _refusal(error), f"{rank.recording_name}: {error.strerror}")


def _elsewhere(rank: FoundRank) -> bool:
    return rank.access is not None and bool(rank.recording_size)


def _no_file(rank: FoundRank) -> tuple[Silence, str]:
    """Return why there is no file of the rank's recording on this host."""
    if _elsewhere(rank):
        return Silence.NOT_AUTHORISED, f"its recording is on {rank.identity.host or 'another host'}"
    return Silence.ERROR, rank.recording_off or "it has no recording"


def _file_bytes(rank: FoundRank) -> Answer[Source]:
    if rank.recording is None or _elsewhere(rank):
        return Answer(rank, None, *_no_file(rank))
    from pdctl.recording.source import Source, whole

    try:
        return Answer(rank, Source(whole(rank.recording)))
    except OSError as error:
        return Answer(rank, None, _refusal(error), f"{rank.recording_name}: {error.strerror}")


def _refusal(error: OSError) -> Silence:
    return Silence.NOT_AUTHORISED if isinstance(error, PermissionError) else Silence.ERROR
