"""The far side of a bridge: lists the ranks that pdctl finds here, and carries a client's questions to them.

One thread reads standard input. Each rank has a thread of its own, with one question at a time: a rank that hangs holds up
no other. So has the list of ranks, once there is one: they are asked while the next is made. A question goes the way that one
of this host's commands takes: to the rank's socket, or from outside. So the far side's word for a rank that gives no answer is
what a command there would print.
"""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pdctl.gateway.rounds import OP, Rounds
from pdctl.protocol import structs, wire
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import open_regular
from pdctl.protocol.rank import Answer, FoundRank, Silence
from pdctl.protocol.stream import PART, Reader, framed
from pdctl.targets import bridges
from pdctl.targets.bridge_frames import LIST, MAGIC, MAX_ASK, MAX_RANKS, STATES, Ask, FarRank, Listing, Settings, Told
from pdctl.targets.client import Client
from pdctl.targets.find import Found, discover
from pdctl.targets.places import Places, parse_places
from pdctl.targets.servers import process_key

IDLE_S = 600.0
MAX_WAITING = 64
"""Questions to one rank that wait for each other."""
MAX_WAIT_S = 60.0
_LISTS = "\0"
"""The key of the questions for the ranks themselves: no rank has it."""
MAX_PART = 1 << 20
"""Bytes of a recording in one answer."""


class Side:
    """This host's part of a bridge over the descriptors ``source`` and ``sink``. It ends with its input, or after IDLE_S.

    environ: where ranks are looked for, and what a client's settings are put over. forbid: raises PdctlError where no fault may
    be placed.
    """

    def __init__(
        self, source: int, sink: int, environ: Mapping[str, str], forbid: Callable[[], None] = lambda: None
    ) -> None:
        self._source, self._sink = source, sink
        self._environ = environ
        self._forbid = forbid
        self._writes = threading.Lock()
        self._began = False
        self._ranks: dict[str, FoundRank] = {}
        self._queues: dict[str, queue.Queue[Ask]] = {}
        self._rounds: dict[str, Rounds] = {}

    def serve(self) -> None:
        """Answer until the client's end of the bridge is gone, or asks nothing any more."""
        reader = Reader(MAX_ASK)
        while select.select([self._source], [], [], IDLE_S)[0]:
            data = os.read(self._source, PART)
            if not data:
                return
            for frame in reader.feed(data):
                self._take(structs.from_msgpack(frame, Ask))

    def _take(self, ask: Ask) -> None:
        key = _LISTS if ask.op == LIST else ask.key
        if key is _LISTS and not self._ranks:
            self._tell(self._list(ask))  # nobody can be asked before
            return
        waiting = self._queues.get(key)
        if key is not _LISTS and key not in self._ranks:
            self._tell(_gone(ask))
            return
        if waiting is None:
            if len(self._queues) > MAX_RANKS:
                self._tell(Told(ask.channel, b"", Silence.ERROR.value, f"over {MAX_RANKS} ranks are asked there"))
                return
            waiting = self._queues[key] = queue.Queue(MAX_WAITING)
            threading.Thread(target=self._work, args=(waiting,), daemon=True).start()
        try:
            waiting.put_nowait(ask)
        except queue.Full:
            self._tell(Told(ask.channel, b"", Silence.TIMED_OUT.value, f"{MAX_WAITING} questions wait for it already"))

    def _list(self, ask: Ask) -> Told:
        settings = structs.from_msgpack(ask.payload, Settings)
        try:
            found = discover(
                _places(self._environ, settings),
                timeout_s=min(settings.timeout_s, MAX_WAIT_S),
                rank_timeout_s=min(settings.rank_timeout_s, MAX_WAIT_S),
                outside=True,
            )
        except PdctlError as error:
            return Told(ask.channel, b"", Silence.ERROR.value, f"{error.message}; {error.next_step}")
        if any(rank.via for rank in found.ranks):
            bridges.relay()
        self._ranks = {process_key(rank.identity): rank for rank in found.ranks if rank.state in STATES}
        return Told(ask.channel, wire.encode(_listing(found, self._ranks)))

    def _work(self, waiting: queue.Queue[Ask]) -> None:
        while True:
            ask = waiting.get()
            try:
                told = self._answered(ask)
            except Exception as error:  # noqa: BLE001  # whatever was sent, the client is told and the others are served
                told = Told(ask.channel, b"", Silence.ERROR.value, f"{type(error).__name__}: {error}"[:300])
            self._tell(told)

    def _answered(self, ask: Ask) -> Told:
        if ask.op == LIST:
            return self._list(ask)
        rank = self._ranks.get(ask.key)
        if rank is None:
            return _gone(ask)
        request = wire.decode_request(ask.payload)
        if request.op == "inject":
            try:
                self._forbid()
            except PdctlError as error:
                return _refused(ask, request, f"{error.message}\n{error.next_step}", error.code)
        if request.op == "recording" and rank.recording is not None:
            part = _of_file(rank.recording, request.args)
            return Told(ask.channel, wire.encode(wire.Reply(id=request.id, body=msgspec.Raw(wire.encode(part)))))
        if request.op == OP and (reply := self._of_rounds(ask.key, rank).answer(request)) is not None:
            return Told(ask.channel, reply)
        wait_s = min(ask.wait_s, MAX_WAIT_S)
        with Client(timeout_s=wait_s, rank_timeout_s=wait_s) as client:
            [answer] = client.ask([rank], request.op, msgspec.Raw, request.args)
        return _told(ask, request, answer)

    def _of_rounds(self, key: str, rank: FoundRank) -> Rounds:
        """Return what follows this rank's recording, as its gateway does for clients over TCP."""
        known = self._rounds.get(key)
        if known is None:
            one, path = rank.identity, rank.recording
            known = self._rounds[key] = Rounds(str(path) if path is not None else "", one.pid, one.proc_start)
        return known

    def _tell(self, told: Told) -> None:
        data = framed(wire.encode(told))
        with self._writes:
            if not self._began:
                data, self._began = MAGIC + data, True
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(self._sink, view) :]
            except OSError:
                os._exit(0)  # nobody reads any more


def _of_file(recording: Path, args: Mapping[str, Any]) -> bytes:
    """Return a part of a recording: the rank itself pays nothing for it, and one that has ended still has it.

    Raises OSError, and KeyError, TypeError or ValueError for what is no question.
    """
    offset, length = max(0, int(args["offset"])), min(max(0, int(args["length"])), MAX_PART)
    descriptor = open_regular(recording)
    try:
        return os.pread(descriptor, length, offset)
    finally:
        os.close(descriptor)


def _gone(ask: Ask) -> Told:
    return Told(ask.channel, b"", Silence.DEAD.value, "it is not there any more")


def _told(ask: Ask, request: wire.Request, answer: Answer[msgspec.Raw]) -> Told:
    if answer.silence is Silence.ERROR:
        return _refused(ask, request, f"{answer.reason}\n{answer.next_step}".rstrip("\n"), answer.code)
    if answer.silence:
        return Told(ask.channel, b"", answer.silence.value, answer.reason)
    body = answer.body if isinstance(answer.body, msgspec.Raw) else msgspec.Raw(wire.encode(answer.body))
    return Told(ask.channel, wire.encode(wire.Reply(id=request.id, body=body)))


def _refused(ask: Ask, request: wire.Request, error: str, code: int) -> Told:
    return Told(ask.channel, wire.encode(wire.Reply(id=request.id, error=error, code=int(code or Exit.UNREACHABLE))))


def _places(environ: Mapping[str, str], settings: Settings) -> Places:
    asked = {
        "PDCTL_RUN_DIR": settings.run_dir,
        "PDCTL_RECORD_DIR": settings.record_dir,
        "PDCTL_OUTSIDE": settings.outside,
    }
    return parse_places({**environ, **{name: value for name, value in asked.items() if value}})


def _listing(found: Found, ranks: Mapping[str, FoundRank]) -> Listing:
    return Listing(
        ranks=tuple(_far_rank(key, rank) for key, rank in ranks.items()),
        problems=found.problems,
        bare=len(found.agentless.living) + found.agentless.left_alone if not ranks else 0,
    )


def _far_rank(key: str, rank: FoundRank) -> FarRank:
    there = rank.recording is not None
    return FarRank(
        key=key,
        identity=rank.identity,
        state=rank.state,
        endpoint=rank.endpoint,
        endpoint_off=rank.endpoint_off,
        protocol=rank.protocol,
        recording_size=rank.recording_size if there else 0,
        recording_off=rank.recording_off,
        tcp=rank.tcp,
        tcp_off=rank.tcp_off,
        store=rank.store,
        silence=rank.silent.value,
        silent_why=rank.silent_why,
    )


def serve_stdio(environ: Mapping[str, str], forbid: Callable[[], None]) -> None:
    """Serve the bridge of this process's standard input and output, until the client is gone.

    Nothing else gets to standard output: what a library prints goes to standard error.
    """
    source, sink = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with open(os.devnull) as nothing:  # noqa: PTH123  # a descriptor is needed, not a path
        os.dup2(nothing.fileno(), 0)
    try:
        Side(source, sink, environ, forbid).serve()
    except ValueError as error:
        sys.exit(f"pdctl bridge: what the client sends can't be read: {error}")
    finally:
        sys.stdout.flush()
    os._exit(0)  # its threads may wait for ranks
