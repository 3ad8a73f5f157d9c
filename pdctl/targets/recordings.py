"""A rank's recording: from its file where that can be read, else through its socket."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pdctl.protocol.rank import Answer, FoundRank, Silence

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording
    from pdctl.recording.source import Source, Spool

CHUNK = 512 * 1024
MAX_RECORDING = 1 << 30
"""Bytes of a recording that is fetched through a socket, and of all that one client fetches."""


class Recordings:
    """The recordings of ranks that one client may ask. ask: :meth:`pdctl.targets.client.Client.ask`."""

    def __init__(self, ask: Callable[[list[FoundRank], str, type[bytes], dict[str, Any]], list[Answer[bytes]]]) -> None:
        self._ask = ask
        self._taken = 0
        self._spool: Spool | None = None

    def read(self, rank: FoundRank, *, through_socket: bool = False) -> Answer[Recording]:
        """Return the rank's recording, from its file where that can be read, else through its socket.

        through_socket: do not try the file.
        """
        if through_socket:
            return self._fetch(rank)
        answer = recording_file(rank)
        if answer.silence is Silence.NOT_AUTHORISED and rank.carries_recording:
            return self._fetch(rank)
        return answer

    def copy(self, rank: FoundRank, *, through_socket: bool = False) -> tuple[Answer[Source], str]:
        """Return a copy of the rank's recording, and ``file`` or ``socket``, selected as in :meth:`read`.

        The bytes are copied from the start to the end, the order in which a recording must be read.
        """
        if not through_socket:
            answer = _file_bytes(rank)
            if answer.silence is not Silence.NOT_AUTHORISED or not rank.carries_recording:
                return answer, "file"
        return self._whole(rank), "socket"

    def part(self, rank: FoundRank, offset: int, length: int) -> Answer[bytes]:
        """Return ``length`` bytes of the rank's recording from ``offset`` on through its socket, fewer where it ends."""
        if length > MAX_RECORDING:
            return Answer(rank, None, Silence.GARBAGE, _too_long(length))
        data = bytearray()
        for answer in self._parts(rank, offset, length):
            if answer.body is None:
                return answer
            data += answer.body
        return Answer(rank, bytes(data))

    def _parts(self, rank: FoundRank, offset: int, length: int) -> Iterator[Answer[bytes]]:
        """Yield these bytes of the rank's recording in pieces, until they end or an answer is empty."""
        end = offset + length
        while offset < end:
            args = {"offset": offset, "length": min(CHUNK, end - offset)}
            [part] = self._ask([rank], "recording", bytes, args)
            if part.body is not None and not part.body:
                return
            yield part
            if part.body is None:
                return
            offset += len(part.body)

    def _whole(self, rank: FoundRank) -> Answer[Source]:
        """Return the rank's recording through its socket, if its stated size fits the limit.

        It is kept on disk, because the agent chooses its size.
        """
        size = rank.recording_size
        if size > MAX_RECORDING:
            return Answer(rank, None, Silence.GARBAGE, _too_long(size))
        if self._taken + size > MAX_RECORDING:
            held = f"its recording of {size >> 20} MiB is not fetched: {self._taken >> 20} MiB were already, of "
            return Answer(rank, None, Silence.ERROR, f"{held}{MAX_RECORDING >> 20} MiB that are at most")
        failed: list[Answer[bytes]] = []

        def bodies() -> Iterator[bytes]:
            for part in self._parts(rank, 0, size):
                if part.body is None:
                    failed.append(part)
                    return
                self._taken += len(part.body)
                yield part.body

        if self._spool is None:
            from pdctl.recording.source import Spool  # only where there is something to keep

            self._spool = Spool()
        try:
            source = self._spool.keep(bodies())
        except OSError as error:
            why = f"its recording can't be kept in {tempfile.gettempdir()}: {error.strerror or error}"
            return Answer(rank, None, Silence.ERROR, why, "Set TMPDIR to a directory with room.")
        for part in failed:
            return Answer(rank, None, part.silence, part.reason, part.next_step, part.code)
        return Answer(rank, source)

    def _fetch(self, rank: FoundRank) -> Answer[Recording]:
        answer = self._whole(rank)
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
