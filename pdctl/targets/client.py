"""Ask many ranks in parallel, within a deadline. Each rank gives an answer or the reason for its silence."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pdctl.protocol import structs, wire
from pdctl.protocol.errors import Exit
from pdctl.protocol.processes import Process, look
from pdctl.protocol.rank import Answer, FoundRank, Silence
from pdctl.targets.lines import AGAIN_S, Line, LocalLine

if TYPE_CHECKING:
    from pdctl.introspect.ranks import Asking
    from pdctl.recording.reader import Recording
    from pdctl.recording.source import Source, Spool
    from pdctl.targets.far_lines import FarLine, Memory

TIMEOUT_S = 10.0
RANK_TIMEOUT_S = 2.0
CHUNK = 512 * 1024
MAX_RECORDING = 1 << 30
"""Bytes of a recording that is fetched through a socket, and of all that one client fetches."""
MAX_ERROR = 2000
"""Characters of an agent's error that are passed on."""
_LIMITS = {"hello": 64 << 10, "status": 1 << 20, "settings": 256 << 10, "leave": 4 << 10}
"""Bytes of an answer where it is known to be small."""
_FRAME = 1 << 10
"""Bytes of a reply around its body."""
SMALL = 256 << 10
"""Bytes of an answer that any rank may give."""
MAX_LARGE = 16 << 20
"""Bytes of all larger answers to one question together."""
_TICK_S = 0.002
"""What a poll that counts milliseconds may leave of a deadline that it waited for: none."""
_CUT_OFF = "connected, but nothing comes back: its host is cut off, its process is stopped, or something holds the GIL"

_TOO_LARGE = f"its answer can't be read: answers over {SMALL >> 10} KiB may take {MAX_LARGE >> 20} MiB together"
_BROKEN = frozenset((Silence.GARBAGE, Silence.REFUSED, Silence.DEAD, Silence.NOT_AUTHORISED))
"""After these a connection is made anew."""

T = TypeVar("T")


class Deadline:
    """The time at which all waiting ends."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, most: float) -> float:
        """Return the seconds left, at most ``most``, at least 0."""
        return max(0.0, min(most, self._end - time.monotonic()))


@dataclass
class _Question:
    """One question to one rank."""

    index: int
    rank: FoundRank
    op: str
    args: dict[str, Any]
    number: int = 0
    line: Line = field(init=False)

    @property
    def limit(self) -> int:
        """The bytes that an answer to it may have."""
        if self.op == "recording":
            return int(self.args.get("length", 0)) + _FRAME
        return _LIMITS.get(self.op, wire.MAX_MESSAGE)


class Client:
    """Keeps one connection to each rank. ``timeout_s`` covers all questions, from the client's construction on.

    spent_s: the part of it used before, for instance to find the ranks. rank_timeout_s: how long one question waits for one
    rank; all ranks are waited for at the same time.
    """

    def __init__(
        self, *, timeout_s: float = TIMEOUT_S, rank_timeout_s: float = RANK_TIMEOUT_S, spent_s: float = 0.0
    ) -> None:
        self._local: dict[str, LocalLine] = {}
        self._far: dict[str, FarLine] = {}
        self._context: Any = None
        """ZeroMQ's, once there is a rank of another host."""
        self._numbers = itertools.count(1)
        self._timeout_s = timeout_s
        self._rank_timeout_s = rank_timeout_s
        self._spent_s = spent_s
        self.deadline = Deadline(timeout_s - spent_s)
        self._given_up: dict[str, Answer[Any]] | None = None
        self._fetched = 0
        self._spool: Spool | None = None

    @property
    def rank_timeout_s(self) -> float:
        """How long one question waits for one rank, or for one server that a rank names."""
        return self._rank_timeout_s

    def __enter__(self) -> Client:  # noqa: PYI034  # typing.Self is newer than Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Unanswered questions are dropped."""
        for connection in [*self._local, *self._far]:
            self._drop(connection)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def restart(self) -> None:
        """Begin the overall deadline anew, for a command that follows ranks and asks again and again."""
        self.deadline = Deadline(self._timeout_s - self._spent_s)

    def pause(self, seconds: float) -> None:
        """Wait for this long before asking again, and not beyond the deadline."""
        time.sleep(self.deadline.left(seconds))

    @property
    def over(self) -> str:
        """Return a sentence if the deadline has passed, "" if not."""
        return "" if self.deadline.left(1.0) >= _TICK_S else f"no time left of {self._timeout_s:g} s (--timeout)"

    def give_up_on_silent(self) -> None:
        """From now on wait only once for a silent rank. Later questions to it get the same reason at once."""
        self._given_up = self._given_up or {}

    def ask(
        self, ranks: Iterable[FoundRank], op: str, kind: type[T], args: dict[str, Any] | None = None
    ) -> list[Answer[T]]:
        """Ask every rank ``op`` and return one answer a rank, in the order given. Never raises for a rank's fault."""
        return self.ask_each([(rank, args or {}) for rank in ranks], op, kind)

    def ask_each(
        self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str, kind: type[T]
    ) -> list[Answer[T]]:
        """Ask each rank ``op`` with arguments of its own; otherwise as :meth:`ask`. No rank may be in it twice."""
        answers: dict[int, Answer[T]] = {}
        outside = [index for index, (rank, _) in enumerate(questions) if rank.state == "outside"]
        asking = self._from_outside([questions[index] for index in outside], op) if outside else None
        patience = Deadline(self.deadline.left(self._rank_timeout_s))
        waiting: list[_Question] = []
        for index, (rank, args) in enumerate(questions):
            if rank.state == "outside":
                continue
            if self._given_up and rank.connection in self._given_up:
                answers[index] = self._given_up[rank.connection]
                continue
            question = _Question(index, rank, op, args)
            silent = _not_asked(rank) or self._begin(question)
            if silent is not None:
                answers[index] = Answer(rank, None, *silent)
            else:
                waiting.append(question)
        for question in self._wait(waiting, answers, kind, patience):
            answers[question.index] = self._timed_out(question.rank)
        if asking is not None:
            answers.update(zip(outside, asking.answers(), strict=True))
        return [answers[index] for index in range(len(questions))]

    def _begin(self, question: _Question) -> tuple[Silence, str] | None:
        """Send a question; returns why it can't be, None where it is on its way."""
        rank = question.rank
        question.number = next(self._numbers)
        payload = wire.encode(wire.Request(question.op, id=question.number, args=question.args))
        try:
            question.line = self._line(rank)
            question.line.begin(payload, question.limit)
        except OSError as error:
            self._drop(rank.connection)
            return _no_connection(rank, error)
        return None

    def _wait(
        self, waiting: list[_Question], answers: dict[int, Answer[T]], kind: type[T], patience: Deadline
    ) -> list[_Question]:
        """Collect answers into ``answers``. Return the questions that are unanswered after the time limit."""
        memory = self._memory() if any(question.rank.access is not None for question in waiting) else None
        watch = _Watch(far=memory is not None)
        for question in waiting:
            watch.look(question)
        large = 0
        while watch.open:
            left_s = patience.left(AGAIN_S if memory is not None or watch.ticking else 3600.0)
            if memory is not None:
                memory.waits()
            ready = watch.ready(left_s)
            if memory is not None and memory.waited():
                return self._flooded(list(watch.open.values()), answers, kind, patience)
            for question in ready:
                answer, size = self._heard(question, kind, MAX_LARGE - large)
                large += size if size > SMALL else 0
                if answer is None and watch.held(question) > MAX_LARGE - large:
                    answer = Answer(question.rank, None, Silence.GARBAGE, _TOO_LARGE)
                if answer is None:
                    watch.look(question)
                    continue
                answers[question.index] = answer
                watch.forget(question)
                if answer.silence in _BROKEN:
                    self._drop(question.rank.connection)
            if patience.left(1.0) < _TICK_S:
                break
        return list(watch.open.values())

    def _heard(self, question: _Question, kind: type[T], room: int) -> tuple[Answer[T] | None, int]:
        """Return the answer to a question, None while there is none, and the bytes it had. room: for a large one."""
        rank = question.rank
        try:
            while (payload := question.line.turn()) is not None:
                if len(payload) > SMALL and len(payload) > room:
                    return Answer(rank, None, Silence.GARBAGE, _TOO_LARGE), 0
                answer = _read(payload, question, kind)
                if answer is not None:
                    return answer, len(payload)
                if question.line.poll_on is not None:
                    break  # an answer to an older question; others are waited for as well
        except OSError as error:
            return Answer(rank, None, *_no_connection(rank, error)), 0
        except ValueError as error:
            return Answer(rank, None, Silence.GARBAGE, f"its answer can't be read: {error}"[:200]), 0
        return None, 0

    def _flooded(
        self, waiting: list[_Question], answers: dict[int, Answer[T]], kind: type[T], patience: Deadline
    ) -> list[_Question]:
        """Recover after too much data came from other hosts. The sender is unknown, so ask one rank at a time."""
        from pdctl.targets.far_lines import MAX_HELD, give_back

        far = [question for question in waiting if question.rank.access is not None]
        for question in far:
            self._drop(question.rank.connection)
        give_back()
        if len(far) == 1:
            why = f"its answer can't be read: over {MAX_HELD >> 20} MiB came, and no end"
            answers[far[0].index] = Answer(far[0].rank, None, Silence.GARBAGE, why)
            far = []
        unanswered = []
        for number, question in enumerate(far):
            silent = self._begin(question)
            if silent is not None:
                answers[question.index] = Answer(question.rank, None, *silent)
                continue
            share = Deadline(patience.left(3600.0) / (len(far) - number))
            unanswered += self._wait([question], answers, kind, share)
        near = [question for question in waiting if question.rank.access is None]
        return unanswered + self._wait(near, answers, kind, patience)

    @staticmethod
    def _memory() -> Memory:
        from pdctl.targets.far_lines import Memory  # only where something is remote

        return Memory()

    def _from_outside(self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str) -> Asking:
        from pdctl.introspect.ranks import Asking  # knows the engine: only where there is such a rank

        return Asking(questions, op, self.deadline.left(self._rank_timeout_s))

    def recording(self, rank: FoundRank, *, through_socket: bool = False) -> Answer[Recording]:
        """Return the rank's recording, from its file where that can be read, else through its socket.

        through_socket: do not try the file.
        """
        if through_socket:
            return self._fetch(rank)
        answer = recording_file(rank)
        if answer.silence is Silence.NOT_AUTHORISED and rank.live:
            return self._fetch(rank)
        return answer

    def recording_bytes(self, rank: FoundRank, *, through_socket: bool = False) -> tuple[Answer[Source], str]:
        """Return a copy of the rank's recording, and ``file`` or ``socket``, selected as in :meth:`recording`.

        The bytes are copied from the start to the end, the order in which a recording must be read.
        """
        if not through_socket:
            answer = _file_bytes(rank)
            if answer.silence is not Silence.NOT_AUTHORISED or not rank.live:
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
            [part] = self.ask([rank], "recording", bytes, args)
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
        if self._fetched + size > MAX_RECORDING:
            held = f"its recording of {size >> 20} MiB is not fetched: {self._fetched >> 20} MiB were already, of "
            return Answer(rank, None, Silence.ERROR, f"{held}{MAX_RECORDING >> 20} MiB that are at most")
        failed: list[Answer[bytes]] = []

        def bodies() -> Iterator[bytes]:
            for part in self._parts(rank, 0, size):
                if part.body is None:
                    failed.append(part)
                    return
                self._fetched += len(part.body)
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

    def _line(self, rank: FoundRank) -> Line:
        """Return the connection to ``rank``, made where there is none."""
        if rank.access is None:
            return self._local.setdefault(rank.connection, LocalLine(rank.endpoint.removeprefix("ipc://")))
        line = self._far.get(rank.connection)
        if line is None:
            import zmq  # only where something is remote

            from pdctl.targets.far_lines import FarLine

            if self._context is None:
                self._context = zmq.Context(io_threads=1)
            line = self._far[rank.connection] = FarLine(self._context, rank)
        return line

    def _drop(self, connection: str) -> str:
        """Close a connection. Return why it was not established, "" if it was, or if it is local."""
        local, far = self._local.pop(connection, None), self._far.pop(connection, None)
        if local is not None:
            local.close()
        return far.close() if far is not None else ""

    def _timed_out(self, rank: FoundRank) -> Answer[Any]:
        # A late answer to this question must not meet the next one on a full queue: the connection is made anew.
        not_through = self._drop(rank.connection)
        if rank.access is not None:
            return self._without_answer(rank, not_through or _CUT_OFF, not_through)
        process = look(rank.identity.pid)
        ended = _ended(rank, process)
        if ended:
            return Answer(rank, None, Silence.DEAD, ended)
        return self._without_answer(
            rank, process.why_silent if process.state else "its process can't be seen from here"
        )

    def _without_answer(self, rank: FoundRank, why: str, not_through: str = "") -> Answer[Any]:
        silence = Silence.NOT_AUTHORISED if not_through else Silence.TIMED_OUT
        if self.over:
            return Answer(rank, None, silence, f"no answer within {self._timeout_s:g} s overall: {why}")
        answer = Answer[Any](rank, None, silence, f"no answer within {self._rank_timeout_s:g} s: {why}")
        if self._given_up is not None:
            self._given_up[rank.connection] = answer
        return answer


def _too_long(size: int) -> str:
    return f"its recording is said to have {size} bytes: at most {MAX_RECORDING >> 30} GiB go through a socket"


def recording_file(rank: FoundRank) -> Answer[Recording]:
    """Return the rank's recording from its file, or why it can't be read (NOT_AUTHORISED, GARBAGE, ERROR)."""
    if rank.access is not None and rank.recording_size:
        return Answer(rank, None, Silence.NOT_AUTHORISED, _elsewhere(rank))
    if rank.recording is None:
        return Answer(rank, None, Silence.ERROR, rank.recording_off or "it has no recording")
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


def _elsewhere(rank: FoundRank) -> str:
    return f"its recording is on {rank.identity.host or 'another host'}"


def _file_bytes(rank: FoundRank) -> Answer[Source]:
    if rank.access is not None and rank.recording_size:
        return Answer(rank, None, Silence.NOT_AUTHORISED, _elsewhere(rank))
    if rank.recording is None:
        return Answer(rank, None, Silence.ERROR, rank.recording_off or "it has no recording")
    from pdctl.recording.source import Source, whole

    try:
        return Answer(rank, Source(whole(rank.recording)))
    except OSError as error:
        return Answer(rank, None, _refusal(error), f"{rank.recording_name}: {error.strerror}")


def _refusal(error: OSError) -> Silence:
    return Silence.NOT_AUTHORISED if isinstance(error, PermissionError) else Silence.ERROR


def unreachable(rank: FoundRank) -> tuple[Silence, str] | None:
    """Return why asking ``rank`` is useless, None if it may answer. Tries its socket; sends nothing."""
    silent = _not_asked(rank)
    if silent is not None or rank.access is not None:
        return silent  # of another host: its connection tells, once it has been tried
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(rank.endpoint.removeprefix("ipc://"))
        except BlockingIOError:
            return None  # more connections wait than it takes: stopped, most likely; the timeout will tell
        except OSError as error:
            return _no_connection(rank, error)
    return None


def _not_asked(rank: FoundRank) -> tuple[Silence, str] | None:
    """Return why ``rank`` must not be asked, from known facts only; None if it may be asked."""
    if rank.silent:
        return rank.silent, rank.silent_why
    if rank.state == "no agent":
        return Silence.NO_AGENT, rank.endpoint_off
    if rank.state == "dead":
        return Silence.DEAD, rank.process.why_silent if rank.process.state == "Z" else "process has ended"
    if rank.state == "recorded":
        return Silence.RECORDED, ""
    if rank.state == "outside":
        return Silence.NO_AGENT, rank.silent_why or "no agent is in it"
    if not rank.endpoint:
        return Silence.NO_SOCKET, rank.endpoint_off or "it has no socket"
    if rank.protocol != wire.PROTOCOL:
        return Silence.PROTOCOL, f"its agent speaks protocol {rank.protocol}, this pdctl speaks {wire.PROTOCOL}"
    return None


def _no_connection(rank: FoundRank, error: OSError) -> tuple[Silence, str]:
    """Return the reason for a rank's silence that a connection error shows."""
    if rank.access is not None:
        return Silence.TIMED_OUT, str(error)
    path = rank.endpoint.removeprefix("ipc://")
    if isinstance(error, PermissionError):
        return Silence.NOT_AUTHORISED, f"its socket {path} is not open to this user"
    if isinstance(error, (FileNotFoundError, ConnectionError)):
        ended = _ended(rank, look(rank.identity.pid))
        if ended:
            return Silence.DEAD, ended
    if isinstance(error, FileNotFoundError):
        return Silence.REFUSED, f"its socket {path} is gone"
    if isinstance(error, ConnectionRefusedError):
        return Silence.REFUSED, f"nobody listens on its socket {path}"
    return Silence.REFUSED, f"its socket {path}: {error.strerror or error}"


def _ended(rank: FoundRank, process: Process) -> str:
    """Return a sentence if the rank's process has ended; "" if it runs, or if it is in another pid namespace."""
    if process.runs_since(rank.identity.proc_start) or not (process.state or rank.process.state):
        return ""
    return process.why_silent if process.state == "Z" else "process has ended"


def _read(payload: bytes, question: _Question, kind: type[T]) -> Answer[T] | None:
    """Return the answer that ``payload`` is, None when it is one to an older question."""
    rank = question.rank
    try:
        reply = wire.decode_reply(payload)
        if reply.id not in (question.number, 0):
            return None
        if reply.error:
            text, _, next_step = reply.error[: 2 * MAX_ERROR].partition("\n")
            silence = Silence.NOT_AUTHORISED if text.startswith(wire.NOT_AUTHORISED) else Silence.ERROR
            return Answer(rank, None, silence, _cut(text), _cut(next_step), reply.code or Exit.UNREACHABLE)
        body = structs.from_msgpack(reply.body, kind)
    except wire.ProtocolMismatch as error:
        return Answer(
            rank,
            None,
            Silence.PROTOCOL,
            f"its agent speaks protocol {error.version}, this pdctl speaks {wire.PROTOCOL}",
        )
    except (ValueError, TypeError) as error:
        return Answer(rank, None, Silence.GARBAGE, f"its answer can't be read: {error}"[:200])
    return Answer(rank, body)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} …"


class _Watch:
    """The questions that wait for an answer, and a poll over their connections."""

    def __init__(self, *, far: bool) -> None:
        self.open: dict[int, _Question] = {}
        self.ticking: dict[int, _Question] = {}
        """Those that no poll tells of: they are tried again and again."""
        self._watched: dict[object, _Question] = {}
        self._on: dict[int, object] = {}
        self._held: dict[int, int] = {}
        self._poll: Any = select.poll()
        if far:
            import zmq  # only where something is remote

            self._poll = zmq.Poller()

    def look(self, question: _Question) -> None:
        """Register the present descriptor of the question's line."""
        index, on = question.index, question.line.poll_on
        self.open[index] = question
        if on is not None and self._on.get(index) == on:
            return
        self._unwatch(question)
        if on is None:
            self.ticking[index] = question
        else:
            self.ticking.pop(index, None)
            self._on[index] = on
            self._watched[on] = question
            self._poll.register(on, select.POLLIN)

    def ready(self, wait_s: float) -> list[_Question]:
        """Wait until a question is ready. Return all ready questions."""
        found = [self._watched[on] for on, _ in self._poll.poll(int(wait_s * 1000)) if on in self._watched]
        return found + list(self.ticking.values())

    def held(self, question: _Question) -> int:
        """Return the bytes of all large answers held, with this question's; 0 if this answer is not large."""
        held = question.line.held
        if held <= SMALL:
            self._held.pop(question.index, None)
            return 0
        self._held[question.index] = held
        return sum(self._held.values())

    def forget(self, question: _Question) -> None:
        """Wait no more for a question."""
        self._unwatch(question)
        for of in (self.open, self.ticking, self._held):
            of.pop(question.index, None)

    def _unwatch(self, question: _Question) -> None:
        on = self._on.pop(question.index, None)
        if on is not None and self._watched.get(on) is question:
            del self._watched[on]
            with contextlib.suppress(KeyError, OSError):
                self._poll.unregister(on)


__all__ = ["Answer", "Client", "Deadline", "Silence", "recording_file", "unreachable"]
