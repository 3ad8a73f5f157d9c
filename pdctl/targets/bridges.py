"""Ranks of far sides that run pdctl themselves: over ``ssh``, ``srun``, ``kubectl exec``, where no port of a rank is open.

A far side is a command line. Its child process runs ``pdctl bridge`` there, which lists that side's ranks and carries questions
to their sockets (:mod:`pdctl.targets.bridge_far`). It stays for the whole command, over the looks of one that looks again
and again, and ends with this process. What it sends is untrusted: bounded, and decoded into structs.
"""

from __future__ import annotations

import contextlib
import functools
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from pdctl.protocol import structs
from pdctl.protocol.rank import Access, FoundRank, Silence
from pdctl.protocol.stream import Reader, framed
from pdctl.targets.bridge_frames import (
    LIST,
    MAGIC,
    MAGIC_STEM,
    MAX_PREAMBLE,
    MAX_TOLD,
    QUESTION,
    STATES,
    Ask,
    FarRank,
    Listing,
    Settings,
    Told,
)
from pdctl.targets.children import Child, end
from pdctl.targets.registration import nameless
from pdctl.targets.silence import Answered

BRIDGE = ("pdctl", "bridge")
"""The end of a far side's command line."""
AT_ONCE = 64
"""Far sides that are started at the same time."""
SLOW_S = 30.0
"""How long a far side that has not begun is kept, for a later look to find it there."""
MAX_PROBLEMS = 8
"""Problems of one far side that are passed on."""
_PARTS_A_TURN = 16
_SOONER = 0.85
"""Part of the time for an answer after which the far side gives up: its reason has to arrive in time."""
_NOT_FOUND, _CANT_RUN, _USAGE = 127, 126, 2

P = ParamSpec("P")
T = TypeVar("T")
Explain = Callable[["int | None", str], str]


def explain(code: int | None, words: str) -> str:
    """Return why a far side gave nothing. code: its exit status, None while it runs. words: its last line of stderr."""
    said = f": {words}" if words else ""
    if code is None:
        return f"no answer in time{said}"
    if code in (_NOT_FOUND, _CANT_RUN):
        return f"pdctl can't be run there (exit code {code}{said}); install it there, or name its path with --via"
    if code == _USAGE and "bridge" in words:
        return f"pdctl there is older than this one and has no bridge{said}; install the same version there"
    return f"it ended with exit code {code}{said}" if code >= 0 else f"signal {-code} ended it{said}"


@dataclass(frozen=True)
class Far:
    """A far side. name: what its row is called; one command has no two of a name. argv: the child, which no shell reads.

    explain: the reason in words, with the next step, of an exit code (None: it has not ended) and the last line of stderr.
    """

    name: str
    argv: tuple[str, ...]
    explain: Explain = explain


def _alone(method: Callable[Concatenate[Bridge, P], T]) -> Callable[Concatenate[Bridge, P], T]:
    """Return a method that one thread at a time is in."""

    @functools.wraps(method)
    def locked(self: Bridge, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.lock:
            return method(self, *args, **kwargs)

    return locked


class Bridge:
    """The child process of a far side, and who waits for which of its answers. Any thread may use it."""

    def __init__(self, far: Far) -> None:
        self.far = far
        self.lock = threading.RLock()
        self.settings = Settings()
        self.late = False
        """Whether it was waited for in vain before."""
        self._child: Child | None = None
        self._reader = Reader(MAX_TOLD)
        self._preamble: bytes | None = b""
        self._waiting: dict[int, deque[Told]] = {}
        self._open: dict[int, int] = {}
        """Answers that are still to come, by channel."""
        self._channel = 0
        self._listing: Told | None = None
        self._asked = 0

    @property
    def child(self) -> Child:
        """Its child process. Raises OSError if there is none."""
        if self._child is None:
            raise ConnectionError(f"{self.far.name} is not connected")
        return self._child

    @property
    def alive(self) -> bool:
        """Whether its child process has not ended."""
        return self._child is not None and not self._child.ended

    @property
    def hangs(self) -> bool:
        """Whether it has begun long ago, and has not said a thing."""
        return self.alive and self._preamble is not None and time.monotonic() - self.child.started_at > SLOW_S

    @property
    def held(self) -> int:
        """Bytes of a frame that is not whole."""
        return self._reader.held

    @_alone
    def ask_listing(self) -> None:
        """Ask for the ranks, starting the child where there is none. Raises OSError if it can't be started."""
        if not self.alive or self.child.exit_code is not None:
            self._start()
        self._list()

    @_alone
    def listing(self) -> Listing | None:
        """Return the ranks there, None while they are not known. Raises OSError with the reason why there are none."""
        if self._listing is None:
            self.pump()
        told = self._listing
        if told is None:
            return None
        if told.silence:
            raise Answered(Silence.ERROR, told.reason)
        try:
            return structs.from_msgpack(told.payload, Listing)
        except (ValueError, RecursionError) as error:
            self.close()
            raise Answered(Silence.GARBAGE, f"its list of ranks can't be read: {error}"[:300]) from None

    @_alone
    def open(self) -> int:
        """Return a new channel. Raises OSError if the child has ended and can't be started."""
        if not self.alive or self.child.exit_code is not None:
            self._start()
            self._list()
        self._channel += 1
        self._waiting[self._channel], self._open[self._channel] = deque(), 0
        return self._channel

    @_alone
    def ask(self, channel: int, key: str, payload: bytes, wait_s: float) -> None:
        """Ask a rank. Raises OSError if the child has ended."""
        if channel not in self._open:
            raise ConnectionError("its bridge has ended")
        self._open[channel] += 1
        self._send(Ask(channel, QUESTION, key, wait_s, payload))

    @_alone
    def answer(self, channel: int) -> Told | None:
        """Return an answer on this channel, None while there is none. Raises OSError if none can come."""
        if not self._waiting.get(channel):
            self.pump()
        answers = self._waiting.get(channel)
        if answers is None:
            raise ConnectionResetError("its bridge has ended")
        return answers.popleft() if answers else None

    @_alone
    def forget(self, channel: int) -> None:
        """Drop the answers that still come on this channel."""
        self._waiting.pop(channel, None)
        self._open.pop(channel, None)

    def first(self, channel: int) -> bool:
        """Return whether no other channel waits longer."""
        return channel == next((number for number, owed in self._open.items() if owed), channel)

    def why(self) -> str:
        """Return why nothing comes of it."""
        if self._child is None:
            return "it is not connected"
        code = self.child.exit_code
        printed = (self._preamble or b"").decode(errors="replace").strip().splitlines()
        return self.far.explain(code, self.child.last_words or (printed[-1].strip()[:200] if printed else ""))

    @_alone
    def pump(self) -> None:
        """Send and receive what can be, and hand it out. Raises OSError once it has ended, or sends what can't be read."""
        try:
            self.child.flush()
        except ConnectionError:
            pass  # what it wrote before its end is read first
        for _ in range(_PARTS_A_TURN):
            data = self.child.receive()
            if not data:
                break
            try:
                for frame in self._reader.feed(self._after_preamble(data)):
                    self._take(structs.from_msgpack(frame, Told))
            except (ValueError, RecursionError) as error:
                self.close()
                raise Answered(Silence.GARBAGE, f"what it sends can't be read: {error}"[:300]) from None
        if self.child.ended and self._listing is None:
            _reaped(self.child)
            why = self.why()
            self.close()
            raise Answered(Silence.REFUSED, why)
        if self.child.ended and self._open:
            _reaped(self.child)
            why = self.why()
            self.close()
            raise ConnectionResetError(f"its bridge ended: {why}")

    @_alone
    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self._child = None
        self._waiting.clear()
        self._open.clear()

    def _start(self) -> None:
        self.close()
        self._reader, self._preamble, self._listing = Reader(MAX_TOLD), b"", None
        try:
            self._child = Child(self.far.argv)
        except FileNotFoundError:
            raise Answered(Silence.REFUSED, f"{self.far.argv[0]} is not on this host's PATH") from None
        except OSError as error:
            raise Answered(Silence.REFUSED, f"{self.far.argv[0]} can't be run: {error.strerror}") from None

    def _list(self) -> None:
        self._listing = None
        self._asked += 1
        settings = msgspec.msgpack.encode(self.settings)
        self._send(Ask(-self._asked, LIST, wait_s=self.settings.timeout_s, payload=settings))

    def _send(self, ask: Ask) -> None:
        with contextlib.suppress(ConnectionError):  # why it has ended is read from its other pipes
            self.child.send(framed(msgspec.msgpack.encode(ask)))

    def _after_preamble(self, data: bytes) -> bytes:
        if self._preamble is None:
            return data
        seen = self._preamble + data
        at = seen.find(MAGIC)
        if at >= 0:
            self._preamble = None
            return seen[at + len(MAGIC) :]
        if (stem := seen.find(MAGIC_STEM)) >= 0 and seen.find(b"%\n", stem + len(MAGIC_STEM)) >= 0:
            raise ValueError("another version of pdctl's bridge is there; install this version of pdctl there")
        if len(seen) > MAX_PREAMBLE:
            line = seen[:200].decode(errors="replace").strip().partition("\n")[0]
            raise ValueError(
                f"{MAX_PREAMBLE >> 10} KiB came before pdctl's first word, beginning {line[:80]!r}; "
                "keep what logins without a terminal run there from printing"
            )
        self._preamble = seen
        return b""

    def _take(self, told: Told) -> None:
        if told.channel < 0:
            if told.channel < -self._asked:
                raise ValueError("an answer came that nobody waits for")
            if told.channel == -self._asked:
                self._listing = told
            return
        if told.channel in self._open:
            if not self._open[told.channel]:
                raise ValueError("an answer came that nobody waits for")
            self._open[told.channel] -= 1
            self._waiting[told.channel].append(told)


class BridgeLine:
    """A line to a rank of a far side."""

    def __init__(self, bridge: Bridge, key: str) -> None:
        self.wait_s = 0.0
        """How long the next question is waited for."""
        self._bridge = bridge
        self._key = key
        self._limit = 0
        self._channel = bridge.open()

    def begin(self, payload: bytes, limit: int) -> None:
        """Ask. Raises OSError if the bridge has ended."""
        self._limit = limit
        self._bridge.ask(self._channel, self._key, payload, _SOONER * self.wait_s)

    def turn(self) -> bytes | None:
        """Return the answer, None while there is none. Raises Answered (OSError) with the far side's reason."""
        told = self._bridge.answer(self._channel)
        if told is None:
            return None
        if told.silence:
            raise Answered(_silence(told.silence), told.reason[:500])
        if len(told.payload) > self._limit:
            raise ValueError(f"it has {len(told.payload)} bytes; {self._limit} are allowed")
        return told.payload

    @property
    def poll_on(self) -> object:
        """The descriptor to watch, the same for all ranks of a far side. None where other threads read from it, too."""
        return self._bridge.child.fileno() if self._bridge.alive and not _relays else None

    @property
    def held(self) -> int:
        """Bytes of a frame that is not whole. They are counted to the question that waits longest."""
        return self._bridge.held if self._bridge.first(self._channel) else 0

    def close(self) -> None:
        """Drop what is still to come."""
        self._bridge.forget(self._channel)


_pool: dict[str, Bridge] = {}
_relays: list[bool] = []


def relay() -> None:
    """From now on several threads of this process ask ranks over one bridge."""
    _relays[:] = [True]


def line(rank: FoundRank) -> BridgeLine:
    """Return a new line to a rank that :func:`open_all` found. Raises OSError if its far side can't be reached any more."""
    return BridgeLine(_pool[rank.via], rank.far_key)


def open_all(
    fars: Sequence[Far], until: float, problems: list[str], settings: Settings | None = None, at_once: int = AT_ONCE
) -> list[FoundRank]:
    """Return the ranks of all far sides, and one row for each far side that gives none, with the reason.

    At most ``at_once`` are started at the same time, until the monotonic time ``until``. One that did not begin in time is
    kept for the next look, which waits no longer for it than for the others.
    """
    settings = settings or Settings()
    results: dict[str, list[FoundRank]] = {}
    unstarted = deque(fars)
    starting: dict[int, Bridge] = {}
    poll = select.poll()
    while unstarted or starting:
        while unstarted and len(starting) < at_once and time.monotonic() < until:
            far = unstarted.popleft()
            bridge = _bridge(far)
            bridge.settings = settings
            try:
                bridge.ask_listing()
            except OSError as error:
                results[far.name] = [_unreached(far.name, error)]
                continue
            starting[bridge.child.fileno()] = bridge
            poll.register(bridge.child.fileno(), select.POLLIN)
        left_s = until - time.monotonic()
        waits = bool(unstarted) or any(not one.late for one in starting.values())
        ready = poll.poll(max(0, int(left_s * 1000)) if waits else 0)
        if time.monotonic() >= until or (not ready and not waits):
            break
        for fd, _ in ready:
            bridge = starting[fd]
            try:
                listing = bridge.listing()
            except OSError as error:
                results[bridge.far.name] = [_unreached(bridge.far.name, error)]
            else:
                if listing is None:
                    continue
                bridge.late = False
                results[bridge.far.name] = _ranks(bridge.far.name, listing, problems)
            poll.unregister(fd)
            del starting[fd]
    for bridge in starting.values():
        bridge.late = True
        results[bridge.far.name] = [unreached(bridge.far.name, Silence.TIMED_OUT, bridge.why())]
    hanging = [bridge for bridge in starting.values() if bridge.hangs]
    end([bridge.child for bridge in hanging])
    for bridge in hanging:
        bridge.close()
    for far in unstarted:
        why = f"it was not asked: the {len(fars)} far sides took all the time (--timeout)"
        results[far.name] = [unreached(far.name, Silence.TIMED_OUT, why)]
    found = [rank for far in fars for rank in results[far.name]]
    # Hosts may share a directory: the one that has the process knows, to the others it has ended.
    return sorted(found, key=lambda rank: rank.state == "dead")


def unreached(name: str, silence: Silence, why: str) -> FoundRank:
    """Return the row of a far side that gives no ranks."""
    return FoundRank(nameless(name), "live", access=Access(), silent=silence, silent_why=why, via=name)


def _unreached(name: str, error: OSError) -> FoundRank:
    return unreached(name, error.silence if isinstance(error, Answered) else Silence.REFUSED, str(error))


def _bridge(far: Far) -> Bridge:
    known = _pool.get(far.name)
    if known is None or known.far.argv != far.argv:
        if known is not None:
            known.close()
        known = _pool[far.name] = Bridge(far)
    return known


def _reaped(child: Child) -> None:
    """Wait a moment for the exit code of a child that has closed its output."""
    until = time.monotonic() + 0.2
    while child.exit_code is None and time.monotonic() < until:
        time.sleep(0.002)


def _ranks(name: str, listing: Listing, problems: list[str]) -> list[FoundRank]:
    found = [_rank(name, one) for one in listing.ranks if one.state in STATES]
    problems += [f"{name}: {problem[:500]}" for problem in listing.problems[:MAX_PROBLEMS]]
    if found:
        return found
    bare = listing.bare
    if bare:
        many = "1 scheduler runs" if bare == 1 else f"{bare} schedulers run"
        why = f"{many} there without pdctl's agent, and not read from outside; pdctl attach --all, there, shows them"
    else:
        why = "no rank found there: does the engine run there, as that user, with the same PDCTL_RUN_DIR?"
    return [unreached(name, Silence.NO_AGENT, why)]


def _rank(name: str, one: FarRank) -> FoundRank:
    silence = _silence(one.silence) if one.silence else Silence.NONE
    return FoundRank(
        identity=one.identity,
        state=one.state,
        endpoint=one.endpoint,
        endpoint_off=one.endpoint_off,
        protocol=one.protocol,
        recording_size=max(0, one.recording_size),
        recording_off=one.recording_off,
        access=Access(),
        tcp=one.tcp,
        tcp_off=one.tcp_off,
        store=one.store,
        silent=silence,
        silent_why=one.silent_why[:500],
        via=name,
        far_key=one.key,
    )


def _silence(word: str) -> Silence:
    try:
        return Silence(word)
    except ValueError:
        return Silence.ERROR


__all__ = ["BRIDGE", "Answered", "Bridge", "BridgeLine", "Far", "Settings", "explain", "line", "open_all", "unreached"]
