"""The lab's load generator: sends a request with its room to both servers, as a router does, and checks answers."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from pdctl.lab import messages, toymodel
from pdctl.lab.config import LabConfig
from pdctl.lab.rank import bootstrap_address, request_endpoint
from pdctl.protocol.errors import Exit, PdctlError

_LINGER_MS = 2000
"""How long a client that is closed waits for a server to take what was sent to it; a server that is gone takes nothing."""


@dataclass
class Request:
    """One request on its way. Times are monotonic seconds. tag: the connection that answers come by; rids may be alike.
    prefill: name of its prefill server.
    """

    rid: str
    room: int
    prompt: list[int]
    max_new_tokens: int
    prefill: str
    prefill_dp: int
    decode_dp: int
    sent: float
    tag: int = 0
    prefill_ended: bool = False
    aborted: bool = False
    error: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """What came of a load. Latencies are seconds over completed requests, None without any.

    wrong: completed with tokens that are not this request's. unfinished: no answer before the time was over. given_up: requests
    whose client went away before the answer.
    """

    sent: int
    completed: int
    failed: int
    wrong: int
    unfinished: int
    aborted: int
    given_up: int
    seconds: float
    latency_p50_s: float | None
    latency_p99_s: float | None
    latency_max_s: float | None
    errors: dict[str, int]
    unfinished_rooms: list[int]

    @property
    def good(self) -> bool:
        """Whether every request completed with its own tokens."""
        return self.completed == self.sent and not self.wrong


@dataclass
class Load:
    """How much to send and how. rate: requests a second, 0 for as fast as concurrency allows.

    room, prefill_server, prefill_dp: fixed instead of chosen. to: ``both``, or one side only: the other never hears of the
    request. rooms, rids: one for each request, in order; a single room counts up, and a single rid gets ``-N`` where there
    are more requests. bootstrap: address that decode is told instead of the prefill server's.
    abort_after_s: abort requests that are not finished by then, 0 for never. requests 0: until the time is over.
    give_up_s: stop listening to a request that is not finished by then, without an abort, 0 for never.
    lost_on: this decode tp rank loses every request right after it came (a rank-local time-out or abort), -1 for none.
    """

    requests: int = 32
    concurrency: int = 8
    rate: float = 0.0
    seconds: float = 30.0
    prompt_tokens: int = 24
    new_tokens: int = 8
    room: int = 0
    rooms: tuple[int, ...] = ()
    rids: tuple[str, ...] = ()
    prefill_server: int = -1
    prefill_dp: int = -1
    to: str = "both"
    bootstrap: str = ""
    abort_after_s: float = 0.0
    give_up_s: float = 0.0
    lost_on: int = -1
    seed: int | None = None


@dataclass
class Client:
    """Sends requests to one lab and gathers the answers. Close it."""

    config: LabConfig
    load: Load
    waiting: dict[int, Request] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    failed: int = 0
    wrong: int = 0
    aborted: int = 0
    given_up: int = 0
    stopping: bool = False
    """Set from another thread: run() gives up what is not answered and returns."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.load.seed)
        self._context: zmq.Context[Any] = zmq.Context()
        self._reply_path = self.config.state_dir / f"load-{os.getpid()}-{time.monotonic_ns() & 0xFFFFFF:x}.reply"
        self._replies = self._context.socket(zmq.PULL)
        try:
            self._replies.bind(f"ipc://{self._reply_path}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise PdctlError(
                f"answers can't come to {self.config.state_dir}: {os.strerror(error.errno or 0)}",
                "run pdctl as the user whose lab it is, or give the directory mode 0700",
                Exit.UNREACHABLE,
            ) from None
        self._servers: dict[tuple[str, int], Any] = {}
        for name in self.config.servers:
            for dp in range(self.config.shape(name).dp):
                server = self._context.socket(zmq.PUSH)
                server.setsockopt(zmq.LINGER, _LINGER_MS)
                server.connect(request_endpoint(self.config, name, dp))
                self._servers[name, dp] = server
        self._outstanding: Counter[tuple[str, int]] = Counter()
        self._next_dp = self._next_decode_dp = 0

    def close(self) -> None:
        """Close the sockets and remove the one that answers come to. What was sent, an abort too, still goes to its server."""
        self._context.destroy()
        self._reply_path.unlink(missing_ok=True)

    def run(self) -> Outcome:
        """Send the load and return what came of it, at the latest when its seconds are over."""
        load, started = self.load, time.monotonic()
        deadline = started + load.seconds
        poller = zmq.Poller()
        poller.register(self._replies, zmq.POLLIN)
        while True:
            now = time.monotonic()
            more = (not load.requests or self.sent < load.requests) and now < deadline
            if self.stopping or (not more and not self.waiting):
                break
            if now >= deadline and (load.requests or now >= deadline + 10):
                break  # an endless load is allowed 10 s more to see its last requests through
            due = started + self.sent / load.rate if load.rate else now
            if more and len(self.waiting) < load.concurrency and due <= now:
                self.send()
                continue
            for _ in poller.poll(20):
                while True:
                    try:
                        self._take(msgspec.msgpack.decode(self._replies.recv(zmq.NOBLOCK)))
                    except zmq.Again:
                        break
            if load.abort_after_s:
                self._abort_old(time.monotonic() - load.abort_after_s)
            if load.give_up_s:
                self._leave_old(time.monotonic() - load.give_up_s)
        return self._outcome(time.monotonic() - started)

    def send(self) -> Request:
        """Send one request and return it."""
        config, load = self.config, self.load
        room, tag = self._room(), self.sent
        number = load.prefill_server if load.prefill_server >= 0 else tag % config.prefills
        prefill = config.servers[number]
        prefill_dp = load.prefill_dp if load.prefill_dp >= 0 else self._balance(prefill, room)
        decode_dp = self._next_decode_dp % config.decode.dp
        self._next_decode_dp += 1
        prompt = [self._random.randrange(1, toymodel.VOCABULARY) for _ in range(load.prompt_tokens)]
        rid = self._rid(room)
        request = Request(rid, room, prompt, load.new_tokens, prefill, prefill_dp, decode_dp, time.monotonic(), tag)
        host, _, port = (load.bootstrap or bootstrap_address(config, prefill)).rpartition(":")
        message = messages.encode(
            messages.Generate(
                rid=rid,
                room=room,
                prompt=prompt,
                max_new_tokens=load.new_tokens,
                reply=f"ipc://{self._reply_path}",
                bootstrap_host=host,
                bootstrap_port=int(port),
                tag=tag,
            )
        )
        self.waiting[tag] = request
        self._outstanding[prefill, prefill_dp] += 1
        self.sent += 1
        if load.to in ("both", "prefill"):
            self._servers[prefill, prefill_dp].send(message)
        if load.to in ("both", "decode"):
            self._servers["decode", decode_dp].send(message)
            if load.lost_on >= 0:
                self.lose(request, load.lost_on)
        return request

    def _room(self) -> int:
        load, n = self.load, self.sent
        if load.rooms:
            return load.rooms[n % len(load.rooms)]
        return load.room + n if load.room else self._random.getrandbits(62) + 1

    def _rid(self, room: int) -> str:
        load, n = self.load, self.sent
        if len(load.rids) == 1 and load.requests != 1:
            return f"{load.rids[0]}-{n}"
        return load.rids[n % len(load.rids)] if load.rids else f"{room:016x}-{n}"

    def _balance(self, prefill: str, room: int) -> int:
        size, method = self.config.prefill.dp, self.config.load_balance
        if method == "follow_bootstrap_room":
            return room % size
        if method == "total_requests":
            return min(range(size), key=lambda dp: self._outstanding[prefill, dp])
        self._next_dp += 1
        return (self._next_dp - 1) % size

    def _take(self, answer: dict[str, Any]) -> None:
        request = self.waiting.get(answer["tag"])
        if request is None:
            return
        if answer["role"] == "prefill":
            if not request.prefill_ended:
                request.prefill_ended = True
                self._outstanding[request.prefill, request.prefill_dp] -= 1
            if not answer["error"]:
                return
            if self.load.to == "both" and not request.aborted:
                self.abort(request, ("decode",))  # as a router does: the other half has lost its purpose
            self._end(request, answer["error"])
            return
        if answer["error"]:
            self._end(request, answer["error"])
            return
        self.latencies.append(time.monotonic() - request.sent)
        del self.waiting[request.tag]
        if answer["tokens"] != toymodel.expected_tokens(request.prompt, request.max_new_tokens, self.config.layers):
            self.wrong += 1
            self.errors["wrong tokens: metadata or KV of another request"] += 1

    def _end(self, request: Request, error: str) -> None:
        del self.waiting[request.tag]
        self.failed += 1
        self.errors[error.replace(str(request.room), "ROOM").replace(request.rid, "RID")] += 1

    def _abort_old(self, sent_before: float) -> None:
        for request in list(self.waiting.values()):
            if not request.aborted and request.sent <= sent_before:
                request.aborted = True
                self.aborted += 1
                self.abort(request, ("prefill", "decode") if self.load.to == "both" else (self.load.to,))

    def _leave_old(self, sent_before: float) -> None:
        for request in [request for request in self.waiting.values() if request.sent <= sent_before]:
            del self.waiting[request.tag]
            self.given_up += 1

    def abort(self, request: Request, roles: tuple[str, ...]) -> None:
        """Tell servers to abort a request."""
        message = messages.encode(messages.Abort(request.rid))
        for role in roles:
            place = (request.prefill, request.prefill_dp) if role == "prefill" else ("decode", request.decode_dp)
            self._servers[place].send(message)

    def lose(self, request: Request, tp: int) -> None:
        """Make decode rank ``tp`` lose a request, while the other ranks go on with it."""
        self._servers["decode", request.decode_dp].send(messages.encode(messages.Lose(request.rid, tp)))

    def _outcome(self, seconds: float) -> Outcome:
        latencies = sorted(self.latencies)

        def at(share: float) -> float | None:
            return latencies[min(len(latencies) - 1, int(share * len(latencies)))] if latencies else None

        return Outcome(
            sent=self.sent,
            completed=len(latencies) - self.wrong,
            failed=self.failed,
            wrong=self.wrong,
            unfinished=len(self.waiting),
            aborted=self.aborted,
            given_up=self.given_up,
            seconds=seconds,
            latency_p50_s=at(0.5),
            latency_p99_s=at(0.99),
            latency_max_s=at(1.0),
            errors=dict(self.errors.most_common()),
            unfinished_rooms=[request.room for request in self.waiting.values()],
        )
