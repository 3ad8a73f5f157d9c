"""The requests of a drill on real servers: sent by pdctl as a router sends them, to a prefill and a decode server."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pdctl.engines.sglang.server import CONNECT_S, Call, CallError, abort, generate_body
from pdctl.inject.drill.records import LoadLine
from pdctl.inject.drill.schema import LabLoad
from pdctl.inject.drill.servers import Pair, check
from pdctl.protocol import durations

PROMPTS = 4
PLAIN = (4, 8)
"""How many requests a plain load has: at least, at most."""
OTHER_HALF_S = 5.0
"""How long the half that nobody waits for may go on once a load is over."""
_DAY_S = 86_400.0


class Tokens:
    """The right answers to prompts: learnt in the steady state, compared afterwards.

    On an idle pair the engine usually answers a single prompt the same way every time, but it does not guarantee this. So each
    prompt is sent at least twice at first. Later answers are compared only if all first answers were the same.
    """

    def __init__(self) -> None:
        self._right: dict[int, tuple[int, ...]] = {}
        self._alike: set[int] = set()
        self._differ = False

    def learn(self, prompt: int, tokens: tuple[int, ...]) -> None:
        """Learn an answer as right."""
        if not tokens:
            return
        if prompt in self._right:
            self._alike.add(prompt)
            self._differ |= self._right[prompt] != tokens
        self._right[prompt] = tokens

    def wrong(self, prompt: int, tokens: tuple[int, ...]) -> bool | None:
        """Return whether an answer is wrong, None if that is unknown."""
        return self._right[prompt] != tokens if not self._differ and prompt in self._alike else None


@dataclass(eq=False)
class _Request:
    """One request on its way. Times are monotonic seconds."""

    rid: str
    room: int
    prompt: int
    sent: float
    calls: dict[str, Call] = field(default_factory=dict)
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    aborted: bool = False


class EngineRunning:
    """Requests to real servers, sent on threads of their own.

    learn: whether later answers are compared with its answers. A request is over when decode has answered it, or when either
    server has reported a failure; then the other half is ended, as a router does.
    """

    def __init__(self, pair: Pair, spec: LabLoad, seed: int | None, tokens: Tokens, *, learn: bool) -> None:
        check(spec, pair)
        self._pair, self._spec, self._tokens, self._learn = pair, spec, tokens, learn
        self._abort_s = durations.parse(spec.abort_after, most_s=_DAY_S) if spec.abort_after else 0.0
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        self._requests: list[_Request] = []
        self._waiting: dict[str, _Request] = {}
        self._errors: Counter[str] = Counter()
        self._completed = self._failed = self._wrong = self._unchecked = self._aborted = self._misrouted = 0
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pdctl-load", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether every request has been answered."""
        return not self._thread.is_alive()

    @property
    def answered(self) -> int:
        """Requests answered so far, whatever the answer."""
        return self._completed + self._failed + self._wrong

    @property
    def failed(self) -> int:
        """Requests that failed so far."""
        return self._failed + self._wrong

    @property
    def rooms(self) -> tuple[int, ...]:
        """Rooms of the requests sent."""
        return tuple(request.room for request in tuple(self._requests))

    def finish(self, at: float, step: str, ended: str) -> LoadLine:
        """Give up an unfinished load, and return the result. Abandoned requests are ended on both servers."""
        with self._changed:
            self._stopping = True
            unfinished = list(self._waiting.values())
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None:
            raise self._error
        for request in unfinished:
            self._abort(request, tuple(request.calls))
        left = self._left(OTHER_HALF_S)
        aborts = [thread for request, role in left for thread in self._abort(request, (role,))]
        _join(aborts, CONNECT_S)
        for request, role in left:
            request.calls[role].drop()
        return LoadLine(
            at=at, step=step, ended=ended, sent=len(self._requests), completed=self._completed, failed=self._failed,
            wrong=self._wrong, unfinished=len(unfinished), aborted=self._aborted, misrouted=self._misrouted,
            unchecked=self._unchecked, errors=dict(self._errors.most_common()), rooms=self.rooms[:1000],
        )  # fmt: skip

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._send_all()
        except BaseException as error:  # noqa: BLE001 - raised again by finish(), on the drill's thread
            self._error = error

    def _send_all(self) -> None:
        spec, started = self._spec, time.monotonic()
        with self._changed:
            while not self._stopping:
                now, number = time.monotonic(), len(self._requests)
                if number >= spec.requests and not self._waiting:
                    return
                due = started + number / spec.rate if spec.rate else now
                if number < spec.requests and len(self._waiting) < spec.concurrency and due <= now:
                    self._send(number, now)
                    continue
                if self._abort_s:
                    self._abort_old(now - self._abort_s)
                self._changed.wait(0.02)

    def _send(self, number: int, now: float) -> None:
        spec, pair = self._spec, self._pair
        room = spec.room + number if spec.room else self._random.getrandbits(62) | 1
        request = _Request(f"pdctl-{random.getrandbits(64):016x}", room, number // 2 % PROMPTS, now)
        body = generate_body(
            rid=request.rid, room=room, prompt=_prompt(request.prompt, spec.prompt_tokens), new_tokens=spec.new_tokens,
            bootstrap=pair.bootstrap,
        )  # fmt: skip
        bodies = {"prefill": body, "decode": body}
        if spec.prefill_dp >= 0:
            bodies["prefill"] = {**body, **pair.prefill_info.pin(spec.prefill_dp)}
            self._misrouted += spec.to != "decode" and pair.prefill_info.implied_dp(room) not in (-1, spec.prefill_dp)
        for role in ("prefill", "decode") if spec.to == "both" else (spec.to,):
            request.calls[role] = Call(pair.servers[role])
            request.threads[role] = threading.Thread(
                target=self._ask, args=(request, role, bodies[role]), name=f"pdctl-load-{role}", daemon=True
            )
        self._requests.append(request)
        self._waiting[request.rid] = request
        for thread in request.threads.values():
            thread.start()

    def _ask(self, request: _Request, role: str, body: dict[str, Any]) -> None:
        tokens: tuple[int, ...] = ()
        error = ""
        try:
            tokens = request.calls[role].generate(body)
        except CallError as failed:
            error = str(failed)
        except Exception as failed:  # noqa: BLE001 - an answer of another shape: the request failed, the drill goes on
            error = f"{role}: {type(failed).__name__}"
        with self._changed:
            if self._waiting.get(request.rid) is not request or self._stopping:
                return
            if error:
                self._end_failed(request, role, error)
            elif role == "decode":
                self._end_answered(request, tokens)
            elif self._spec.to == "prefill":
                self._completed += 1
                self._unchecked += 1
                del self._waiting[request.rid]
            self._changed.notify_all()

    def _end_failed(self, request: _Request, role: str, error: str) -> None:
        del self._waiting[request.rid]
        self._failed += 1
        self._errors[error.replace(request.rid, "RID").replace(str(request.room), "ROOM")] += 1
        self._abort(request, tuple(other for other in request.calls if other != role))

    def _end_answered(self, request: _Request, tokens: tuple[int, ...]) -> None:
        del self._waiting[request.rid]
        alone = self._spec.concurrency == 1
        if alone and self._learn:
            self._tokens.learn(request.prompt, tokens)
        wrong = self._tokens.wrong(request.prompt, tokens) if alone else None
        self._unchecked += wrong is None
        if wrong and not self._learn:
            self._wrong += 1
            self._errors["other tokens than in the steady state"] += 1
        else:
            self._completed += 1

    # ---- giving up ---------------------------------------------------------------------------------------------------

    def _abort_old(self, sent_before: float) -> None:
        for request in list(self._waiting.values()):
            if not request.aborted and request.sent <= sent_before:
                request.aborted = True
                self._aborted += 1
                self._abort(request, tuple(request.calls))

    def _abort(self, request: _Request, roles: tuple[str, ...]) -> list[threading.Thread]:
        """Tell servers, without waiting for them; returns what does."""
        threads = [
            threading.Thread(
                target=abort, args=(self._pair.servers[role], request.rid), name="pdctl-abort", daemon=True
            )
            for role in roles
        ]
        for thread in threads:
            thread.start()
        return threads

    def _left(self, patience_s: float) -> list[tuple[_Request, str]]:
        """Return the halves that a server has not answered after so long."""
        halves = [(request, role, thread) for request in self._requests for role, thread in request.threads.items()]
        _join([thread for _, _, thread in halves], patience_s)
        return [(request, role) for request, role, thread in halves if thread.is_alive()]


def _join(threads: list[threading.Thread], patience_s: float) -> None:
    end = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def _prompt(number: int, length: int) -> list[int]:
    """Return the token ids of a prompt: in every vocabulary, and none that means anything special in the usual ones."""
    chosen = random.Random(number)
    return [chosen.randrange(32, 256) for _ in range(length)]


def plain(spec: LabLoad) -> LabLoad:
    """Return a harmless load of about the same size: each prompt twice, one request after the other."""
    least, most = PLAIN
    requests = min(max(spec.requests, least), most)
    return LabLoad(requests=requests, concurrency=1, prompt_tokens=spec.prompt_tokens, new_tokens=spec.new_tokens)
