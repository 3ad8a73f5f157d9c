"""Asks many ranks at once and always comes back: each rank with its answer or with the reason for its silence."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import zmq

from pdctl import wire
from pdctl.errors import Exit
from pdctl.observed import Answer, FoundRank, Silence
from pdctl.processes import Process, look

if TYPE_CHECKING:
    from pdctl.outside.ranks import Asking
    from pdctl.recording.reader import Recording
    from pdctl.remote import Watch

TIMEOUT_S = 10.0
RANK_TIMEOUT_S = 2.0
CHUNK = 512 * 1024
_TICK_S = 0.002
"""What a poll that counts milliseconds may leave of a deadline that it waited for: none."""
_CUT_OFF = "connected, but nothing comes back: its host is cut off, its process is stopped, or something holds the GIL"

T = TypeVar("T")


class Deadline:
    """A moment after which nobody waits any more."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, most: float) -> float:
        """Return the seconds left, at most ``most``, at least 0."""
        return max(0.0, min(most, self._end - time.monotonic()))


class Client:
    """Keeps one connection to each rank asked. ``timeout_s`` runs from the client's making, over all its questions.

    rank_timeout_s: how long one question waits for one rank; ranks are waited for at the same time.
    """

    def __init__(self, *, timeout_s: float = TIMEOUT_S, rank_timeout_s: float = RANK_TIMEOUT_S) -> None:
        self._context = zmq.Context(io_threads=1)
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._watches: dict[str, Watch] = {}
        self._numbers = itertools.count(1)
        self._timeout_s = timeout_s
        self._rank_timeout_s = rank_timeout_s
        self.deadline = Deadline(timeout_s)
        self._given_up: dict[str, Answer[Any]] | None = None

    @property
    def rank_timeout_s(self) -> float:
        """How long one question waits for one rank, or for one server that a rank names."""
        return self._rank_timeout_s

    def __enter__(self) -> Client:  # noqa: PYI034  # typing.Self is newer than Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Drop all connections; what was asked and not answered is forgotten."""
        for connection in list(self._sockets):
            self._drop(connection)
        self._context.destroy(linger=0)

    def restart(self) -> None:
        """Begin the overall deadline anew, for a command that follows ranks and asks again and again."""
        self.deadline = Deadline(self._timeout_s)

    def pause(self, seconds: float) -> None:
        """Wait for this long before asking again, and not beyond the deadline."""
        time.sleep(self.deadline.left(seconds))

    @property
    def over(self) -> str:
        """Say that the deadline has passed, "" while there is time left."""
        return "" if self.deadline.left(1.0) >= _TICK_S else f"no time left of {self._timeout_s:g} s (--timeout)"

    def give_up_on_silent(self) -> None:
        """From now on wait only once for a rank that does not answer; questions after that get the same reason at once."""
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
        waiting: dict[zmq.Socket[bytes], tuple[int, int, float]] = {}
        poller = zmq.Poller()
        outside = [index for index, (rank, _) in enumerate(questions) if rank.state == "outside"]
        asking = self._from_outside([questions[index] for index in outside], op) if outside else None
        for index, (rank, args) in enumerate(questions):
            if rank.state == "outside":
                continue
            if self._given_up and rank.connection in self._given_up:
                answers[index] = self._given_up[rank.connection]
                continue
            silent = unreachable(rank)
            if silent is not None:
                answers[index] = Answer(rank, None, *silent)
                continue
            sock = self._socket(rank)
            number = next(self._numbers)
            try:
                sock.send(wire.encode(wire.Request(op, id=number, args=args)), zmq.NOBLOCK)
            except zmq.ZMQError as error:
                answers[index] = Answer(rank, None, Silence.TIMED_OUT, f"question can't be sent: {error}")
                continue
            waiting[sock] = (index, number, time.monotonic())
            poller.register(sock, zmq.POLLIN)
        patience = Deadline(self.deadline.left(self._rank_timeout_s))
        while waiting:
            ready = poller.poll(int(patience.left(3600.0) * 1000))
            if not ready:
                break
            for sock, _ in ready:
                index, number, sent = waiting[sock]
                answer = _read(sock, questions[index][0], number, kind, sent)
                if answer is not None:
                    answers[index] = answer
                    del waiting[sock]
                    poller.unregister(sock)
        for index, _, _ in waiting.values():
            answers[index] = self._timed_out(questions[index][0])
        if asking is not None:
            answers.update(zip(outside, asking.answers(), strict=True))
        return [answers[index] for index in range(len(questions))]

    def _from_outside(self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str) -> Asking:
        from pdctl.outside.ranks import Asking  # knows the engine: only where there is such a rank

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

    def recording_bytes(self, rank: FoundRank, *, through_socket: bool = False) -> tuple[Answer[bytes], str]:
        """Return the bytes of the rank's recording, chosen as :meth:`recording` does, and ``file`` or ``socket``.

        They are copied from the beginning to the end, which is the order in which a recording is to be read.
        """
        if not through_socket:
            answer = _file_bytes(rank)
            if answer.silence is not Silence.NOT_AUTHORISED or not rank.live:
                return answer, "file"
        return self.part(rank, 0, rank.recording_size), "socket"

    def part(self, rank: FoundRank, offset: int, length: int) -> Answer[bytes]:
        """Return ``length`` bytes of the rank's recording from ``offset`` on through its socket, fewer where it ends."""
        data = bytearray()
        while len(data) < length:
            args = {"offset": offset + len(data), "length": min(CHUNK, length - len(data))}
            [part] = self.ask([rank], "recording", bytes, args)
            if part.body is None:
                return part
            if not part.body:
                break
            data += part.body
        return Answer(rank, bytes(data))

    def _fetch(self, rank: FoundRank) -> Answer[Recording]:
        answer = self.part(rank, 0, rank.recording_size)
        if answer.body is None:
            return Answer(rank, None, answer.silence, answer.reason, answer.next_step, answer.code)
        from pdctl.recording.reader import BadRecording, parse  # loads numpy: only where there is something to read

        try:
            return Answer(rank, parse(answer.body, f"{rank.identity.label} (through its socket)"))
        except BadRecording as error:
            return Answer(rank, None, Silence.GARBAGE, f"its recording can't be read: {error}")

    def _socket(self, rank: FoundRank) -> zmq.Socket[bytes]:
        sock = self._sockets.get(rank.connection)
        if sock is None:
            sock = self._sockets[rank.connection] = self._context.socket(zmq.DEALER)
            sock.setsockopt(zmq.LINGER, 0)
            sock.setsockopt(zmq.MAXMSGSIZE, wire.MAX_MESSAGE)
            sock.setsockopt(zmq.SNDHWM, 64)
            if rank.access is not None:
                from pdctl.remote import Watch  # only where something is remote

                self._watches[rank.connection] = Watch(sock, rank.access)
            sock.connect(rank.endpoint)
        return sock

    def _drop(self, connection: str) -> str:
        """Close a connection; returns why it did not get through, "" where it did or is one to this host."""
        sock, watch = self._sockets.pop(connection, None), self._watches.pop(connection, None)
        why = watch.close() if watch is not None else ""
        if sock is not None:
            sock.close(linger=0)
        return why

    def _timed_out(self, rank: FoundRank) -> Answer[Any]:
        # A late answer to this question must not meet the next one on a full queue: the connection is made anew.
        not_through = self._drop(rank.connection)
        if rank.access is not None:
            return self._without_answer(rank, not_through or _CUT_OFF, not_through)
        process = look(rank.identity.pid)
        ended = _ended(rank, process)
        if ended:
            return Answer(rank, None, Silence.DEAD, ended)
        return self._without_answer(rank, process.words if process.state else "its process can't be seen from here")

    def _without_answer(self, rank: FoundRank, why: str, not_through: str = "") -> Answer[Any]:
        silence = Silence.NOT_AUTHORISED if not_through else Silence.TIMED_OUT
        if self.over:
            return Answer(rank, None, silence, f"no answer within {self._timeout_s:g} s overall: {why}")
        answer = Answer[Any](rank, None, silence, f"no answer within {self._rank_timeout_s:g} s: {why}")
        if self._given_up is not None:
            self._given_up[rank.connection] = answer
        return answer


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


def _file_bytes(rank: FoundRank) -> Answer[bytes]:
    if rank.access is not None and rank.recording_size:
        return Answer(rank, None, Silence.NOT_AUTHORISED, _elsewhere(rank))
    if rank.recording is None:
        return Answer(rank, None, Silence.ERROR, rank.recording_off or "it has no recording")
    from pdctl.recording.source import whole

    try:
        return Answer(rank, whole(rank.recording))
    except OSError as error:
        return Answer(rank, None, _refusal(error), f"{rank.recording_name}: {error.strerror}")


def _refusal(error: OSError) -> Silence:
    return Silence.NOT_AUTHORISED if isinstance(error, PermissionError) else Silence.ERROR


def unreachable(rank: FoundRank) -> tuple[Silence, str] | None:
    """Return why it is no use to ask ``rank``, None when it may answer. Tries its socket, sends nothing."""
    if rank.silent:
        return rank.silent, rank.silent_why
    if rank.state == "no agent":
        return Silence.NO_AGENT, rank.endpoint_off
    if rank.state == "dead":
        return Silence.DEAD, rank.process.words if rank.process.state == "Z" else "process has ended"
    if rank.state == "recorded":
        return Silence.RECORDED, ""
    if rank.state == "outside":
        return Silence.NO_AGENT, rank.silent_why or "no agent is in it"
    if not rank.endpoint:
        return Silence.NO_SOCKET, rank.endpoint_off or "it has no socket"
    if rank.protocol != wire.PROTOCOL:
        return Silence.PROTOCOL, f"its agent speaks protocol {rank.protocol}, this pdctl speaks {wire.PROTOCOL}"
    if rank.access is not None:
        return None  # its connection tells, once it has been tried
    path = rank.endpoint.removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return None  # more connections wait than it takes: stopped, most likely; the timeout will tell
        except (FileNotFoundError, ConnectionRefusedError) as error:
            ended = _ended(rank, look(rank.identity.pid))
            if ended:
                return Silence.DEAD, ended
            gone = isinstance(error, FileNotFoundError)
            return Silence.REFUSED, f"its socket {path} is gone" if gone else f"nobody listens on its socket {path}"
        except PermissionError:
            return Silence.NOT_AUTHORISED, f"its socket {path} is not open to this user"
        except OSError as error:
            return Silence.REFUSED, f"its socket {path}: {error.strerror or error}"
    return None


def _ended(rank: FoundRank, process: Process) -> str:
    """Return that the rank's process has ended, "" where it runs, or was never seen: in another pid namespace."""
    if process.runs_since(rank.identity.proc_start) or not (process.state or rank.process.state):
        return ""
    return process.words if process.state == "Z" else "process has ended"


def _read(sock: zmq.Socket[bytes], rank: FoundRank, number: int, kind: type[T], sent: float) -> Answer[T] | None:
    """Return the answer on ``sock``, None when what came is an answer to an older question."""
    frames = sock.recv_multipart()
    try:
        reply = wire.decode_reply(frames[-1])
        if reply.id not in (number, 0):
            return None
        if reply.error:
            text, _, next_step = reply.error.partition("\n")
            silence = Silence.NOT_AUTHORISED if text.startswith(wire.NOT_AUTHORISED) else Silence.ERROR
            return Answer(rank, None, silence, text, next_step, reply.code or Exit.UNREACHABLE)
        body = msgspec.msgpack.decode(reply.body, type=kind)
    except wire.ProtocolMismatch as error:
        return Answer(
            rank,
            None,
            Silence.PROTOCOL,
            f"its agent speaks protocol {error.version}, this pdctl speaks {wire.PROTOCOL}",
        )
    except (ValueError, TypeError) as error:
        return Answer(rank, None, Silence.GARBAGE, f"its answer can't be read: {error}"[:200])
    return Answer(rank, body, round_trip_s=time.monotonic() - sent)


__all__ = ["Answer", "Client", "Deadline", "Silence", "recording_file", "unreachable"]
