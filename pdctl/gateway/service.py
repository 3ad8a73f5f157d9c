"""The gateway's one thread: takes clients' questions in turn, asks the rank, and hands the answers back.

All costs of clients are bounded. :mod:`pdctl.gateway.relay` bounds buffers, and :mod:`pdctl.gateway.limits` the agent's thread.
RLIMIT_DATA bounds the gateway's memory (without memory libzmq ends the process, and the agent starts another one). CPU_SHARE
bounds its CPU time, as a share of a core.
"""

from __future__ import annotations

import json
import os
import resource
import select
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pdctl.gateway.address import listen_at
from pdctl.gateway.allowed import LOOK_AGAIN_S, Allowed
from pdctl.gateway.door import Door, Question
from pdctl.gateway.limits import Limits
from pdctl.gateway.link import Link
from pdctl.gateway.relay import Connection, Relay
from pdctl.gateway.rounds import OP, Rounds
from pdctl.protocol import wire
from pdctl.protocol.budget import Budget
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.listen import parse_listen
from pdctl.protocol.processes import look

MEMORY = 44 << 20
"""Bytes that the gateway may use over what its program takes when nobody has come."""
ROUNDS_MEMORY = 72 << 20
"""The same more once it answers comparisons: numpy, and the rounds of a recording."""
CPU_SHARE = 0.25
"""Seconds of CPU a second that the gateway may use, once its burst is used up."""
CPU_BURST_S = 2.0
ASK_S = 60.0
"""How long the rank is waited for. Its client has given up long before; whoever comes next is served again after it."""
STOPPED_S = 1.0
"""After this long without an answer the rank's process is looked at: one that is stopped is said to be."""
TOO_FAST_S = 1.0
"""A question that has waited this long for its client's share is answered with an error."""
ROOM = 8 << 20
ROOM_OF_KEY = 2 << 20
"""Bytes of answers that may be on their way to clients, in all and to those with one key, when a next question is taken."""
_ROOM_OF_ONE = 64 * 1024
_MAX_NOTES = 64
_STOPPED = ("T", "t")
_TOO_FAST = "questions come faster than this rank answers one client: a tenth of its agent's thread, a fifth to one key"


class Service:
    """The gateway of the rank with this pid. say: tells the rank something, as :func:`pdctl.gateway.process.main` does."""

    def __init__(self, setup: dict[str, Any], say: Callable[[dict[str, str]], None]) -> None:
        """Listen. Raises ValueError or OSError with the reason where it can't."""
        self._pid = int(setup["pid"])
        self._env: dict[str, str] = setup["env"]
        self._say = say
        self._noted: set[str] = set()
        self._folder = str(Path(setup["socket"]).parent)
        self._link = Link(setup["socket"], self._pid)
        self._link.thread = int(setup["thread"])
        self._rounds = Rounds(setup["recording"], self._pid, int(setup["proc_start"]))
        listen = parse_listen(setup["listen"])
        self._allowed = Allowed(listen, self._env, self.note)
        self._listening, self.endpoint = listen_at(listen)
        now = time.monotonic()
        self._limits = Limits(now)
        self._own = Budget(CPU_SHARE, now, CPU_BURST_S)
        self._used_s = time.process_time()
        self._order: deque[bytes] = deque()
        self._asking: Connection | None = None
        self._number = 0
        self._changed_at = now
        self._relay = self._open(now)

    @property
    def server_key(self) -> str:
        """The public key that clients know it by, "" where it is open."""
        pair = self._allowed.pair
        return pair.public if pair is not None else ""

    def note(self, what: str, text: str) -> None:
        """Send a note to the rank, once for the same ``what``. The number of notes is limited."""
        if what in self._noted or len(self._noted) >= _MAX_NOTES:
            return
        self._noted.add(what)
        last = " (further notes are left out)" if len(self._noted) == _MAX_NOTES else ""
        self._say({"note": f"TCP socket: {text}{last}"})

    def _open(self, now: float) -> Relay:
        door = Door(self._folder, self._allowed.pair, self._allowed.knows, self._hosts, self.note)
        return Relay(self._listening, door, self.note, now)

    def _hosts(self) -> str:
        return self._relay.hosts()

    # ---- one turn ---------------------------------------------------------------------------------------------------

    def run(self, control: int) -> None:
        """Serve until the rank ends or closes ``control``. The id of its agent's thread also comes over ``control``."""
        limit_memory()
        rank = _watched(self._pid)
        said = bytearray()
        while os.getppid() == self._pid:
            now = time.monotonic()
            poll = select.poll()
            poll.register(control, select.POLLIN)
            if rank >= 0:
                poll.register(rank, select.POLLIN)
            tired = self._own.due(now)
            wait = min(tired, 1.0) if tired > 0 else self._register(poll, now)
            ready = poll.poll(wait * 1000)
            for fd, _ in ready:
                if fd == rank:
                    return
                if fd == control:
                    data = os.read(control, 4096)
                    if not data:
                        return
                    said += data
            while b"\n" in said:
                line, _, rest = bytes(said).partition(b"\n")
                said = bytearray(rest)
                self._link.thread = int(json.loads(line)["thread"])
            if tired <= 0:
                self._turn([one for one in ready if one[0] not in (rank, control)], time.monotonic())
            used = time.process_time()
            self._own.take(used - self._used_s)
            self._used_s = used

    def _register(self, poll: select.poll, now: float) -> float:
        wait = self._relay.register(poll, now)
        for fd in self._relay.door.filenos():
            poll.register(fd, select.POLLIN)
        if self._link.busy:
            poll.register(self._link.fileno(), self._link.events())
        elif self._order:
            wait = min(wait, self._due(now))
        return 0.0 if self._relay.door.waits() else wait

    def _turn(self, ready: list[tuple[int, int]], now: float) -> None:
        if now - self._changed_at >= LOOK_AGAIN_S:
            self._changed_at = now
            if self._allowed.changed():
                self._begin_anew(now)
                return
        self._relay.turn([one for one in ready if one[0] != self._link.fileno()], now)
        for question in self._relay.door.turn(now):
            self._came(question, now)
        if self._link.busy:
            self._answer(now)
        if not self._link.busy:
            self._next(now)

    def _begin_anew(self, now: float) -> None:
        """Use another key pair for handshakes from now on. Connections made with the old pair end."""
        self._drop_question()
        self._relay.close()
        self._relay.door.close()
        self._order.clear()
        self._relay = self._open(now)
        self.note(f"own key {self.server_key}", f"has another key now: clients know it by {self.server_key}")
        self._say({"rotated": self.server_key})

    # ---- questions --------------------------------------------------------------------------------------------------

    def _came(self, question: Question, now: float) -> None:
        c = self._relay.asked(question)
        if c is None:
            return
        if question.body is None:
            self.note("no question", f"cut off a client at {c.host}: what it sends is no question")
            self._relay.end(c)
        elif len(c.questions) == 1:
            self._order.append(c.name)
            self._pace(c, now)

    def _pace(self, c: Connection, now: float) -> None:
        """Make a client wait if its share of the agent's thread is used up. Nothing is read from it meanwhile."""
        c.wait_until = now + self._limits.due(c.name, (c.user or "").encode(), now)

    def _due(self, now: float) -> float:
        """Return the seconds after which a question that waits may be asked, or is refused."""
        waits = (c for c in map(self._relay.by_name.get, self._order) if c is not None)
        return max(0.005, min((min(c.wait_until, c.questions[0].at + TOO_FAST_S) - now for c in waits), default=1.0))

    def _next(self, now: float) -> None:
        """Ask the rank the first question that need not wait. The others keep their order."""
        room = self._relay.owed() < ROOM
        if not room:
            self._relay.make_room(now)
        for _ in range(len(self._order)):
            name = self._order.popleft()
            c = self._relay.by_name.get(name)
            if c is None:
                continue
            if c.wait_until > now:
                if now - c.questions[0].at > TOO_FAST_S:
                    self._refuse(c, _TOO_FAST, now)
                else:
                    self._order.append(name)
            elif not room or not self._has_room(c, now):
                self._order.append(name)
            elif self._ask(c, now):
                return

    def _has_room(self, c: Connection, now: float) -> bool:
        """Return whether enough of the earlier answers to this client and its key have been sent."""
        if c.owed >= _ROOM_OF_ONE:
            return False
        if self._relay.owed(c.user) < ROOM_OF_KEY:
            return True
        self._relay.make_room(now, c.user)
        return False

    def _ask(self, c: Connection, now: float) -> bool:
        """Ask the oldest question of this client; returns whether others have to wait: not where it was refused."""
        body = c.questions[0].body
        assert body is not None
        number = 0
        try:
            request = wire.decode_request(body)
            number = request.id
            self._allowed.check(c.user or "", request.op)
            if request.op == OP and self._told(c, request, now):
                return True
            self._not_stopped()
            c.questions[0].packs = request.packs
            self._link.ask(body, now)
        except wire.ProtocolMismatch as error:
            self._refuse(c, str(error), now, number)
        except PdctlError as error:
            self._refuse(c, f"{error.message}\n{error.next_step}" if error.next_step else error.message, now, number)
        except OSError as error:
            self._link.drop()
            self._refuse(c, f"its gateway can't ask it: {error.strerror or error}", now, number)
        except Exception as error:  # noqa: BLE001  # whatever was sent, the client is told and the others are served
            self._refuse(c, f"{type(error).__name__}: {error}"[:500], now, number)
        else:
            self._asking, self._number = c, number
            return True
        return False

    def _told(self, c: Connection, request: wire.Request, now: float) -> bool:
        """Answer a comparison's question from the rank's file; returns False where the rank has to be asked."""
        allow_rounds()
        begun = time.process_time()
        answer = self._rounds.answer(request)
        self._limits.took(c.name, (c.user or "").encode(), time.process_time() - begun)
        if answer is None:
            return False
        self._send(c, answer, now)
        return True

    def _not_stopped(self) -> None:
        """Raise PdctlError if the rank is still stopped, after a question to it was given up for that reason."""
        if self._link.fileno() < 0 and (process := look(self._pid)).state in _STOPPED:
            raise PdctlError(f"not reachable: {process.why_silent}")

    def _answer(self, now: float) -> None:
        """Read the rank's answer, if it has arrived, or answer with the reason why there is none."""
        c, waited = self._asking, now - self._link.asked_at
        try:
            answer = self._link.turn()
        except OSError as error:
            answer = _error(f"its agent did not answer: {error}", self._number)
        if answer is None:
            process = look(self._pid)
            if waited > ASK_S or (waited > STOPPED_S and process.state in _STOPPED):
                answer = _error(f"not reachable: no answer within {waited:.0f} s: {process.why_silent}", self._number)
                self._link.drop()
        if answer is None:
            return
        self._asking = None
        if c is None or c.name not in self._relay.by_name:
            return
        self._limits.took(c.name, (c.user or "").encode(), max(0.0, self._link.cost_s(waited)))
        self._send(c, answer, now)

    def _refuse(self, c: Connection, error: str, now: float, number: int = 0) -> None:
        self._send(c, _error(error, number), now)

    def _send(self, c: Connection, answer: bytes, now: float) -> None:
        """Answer the oldest question of this client. Nothing is sent if too many of its answers are unread."""
        question = c.questions[0]
        answer = wire.packed(answer) if question.packs else answer
        gets = c.owed < _ROOM_OF_ONE and self._relay.door.answer(question, answer)
        self._relay.answered(c, len(answer) if gets else 0, now)
        self._pace(c, now)
        if c.questions:
            self._order.append(c.name)

    def _drop_question(self) -> None:
        self._link.drop()
        self._asking = None


def _watched(pid: int) -> int:
    """Return a descriptor that can be read once the process has ended, -1 where the kernel gives none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _error(text: str, number: int = 0) -> bytes:
    return wire.encode(wire.Reply(id=number, error=text or "unknown error", code=int(Exit.UNREACHABLE)))


def limit_memory() -> None:
    """Limit this process's memory to its present use plus MEMORY. The kernel enforces this."""
    fields = Path("/proc/self/statm").read_bytes().split()
    limit = int(fields[5]) * resource.getpagesize() + MEMORY
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = limit + ROUNDS_MEMORY if hard == resource.RLIM_INFINITY else min(hard, limit + ROUNDS_MEMORY)
    resource.setrlimit(resource.RLIMIT_DATA, (min(limit, most), most))


def allow_rounds() -> None:
    """Raise the limit by ROUNDS_MEMORY, once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft < hard and hard != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
