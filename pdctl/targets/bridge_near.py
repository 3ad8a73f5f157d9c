"""The near side of a bridge: the child process of a far side, and who waits for which of its answers.

The child runs ``pdctl bridge`` there (:mod:`pdctl.targets.bridge_far`). What it sends is untrusted: bounded, and decoded into
structs. Nothing here waits for it: a bridge that is closed is set aside, and ends while others are served.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from pdctl.protocol import structs
from pdctl.protocol.rank import Silence
from pdctl.protocol.stream import Reader, framed
from pdctl.targets.bridge_frames import (
    LIST,
    MAGIC,
    MAGIC_STEM,
    MAX_LISTING,
    MAX_PREAMBLE,
    MAX_TOLD,
    QUESTION,
    Ask,
    Listing,
    Settings,
    Told,
)
from pdctl.targets.children import PARTS_A_TURN, Child, set_aside
from pdctl.targets.silence import Answered

SLOW_S = 30.0
"""How long a later look counts on what did not come in time: a far side that has not begun, a list of ranks."""
KEPT_S = 60.0
"""How long a list of ranks is used again where no newer one comes."""
GONE_S = 120.0
"""After so long without a byte, though it was asked, a far side is begun anew: its host may have been started anew, too."""
MAX_REASON = 500
"""Characters of a reason that a far side gives."""
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
        self._reader = Reader(MAX_LISTING)
        self._preamble: bytes | None = b""
        self._waiting: dict[int, deque[Told]] = {}
        self._open: dict[int, int] = {}
        """Answers that are still to come, by channel."""
        self._owed = 0
        """Answers that are still to come, with those on channels that were dropped."""
        self._channel = 0
        self._told: Told | None = None
        """The newest answer with a list that was not read, or says why there is none."""
        self._last: Listing | None = None
        self._last_at = 0.0
        self._used = False
        """The newest list that was read, when it was asked for, and whether a look has used it."""
        self._asked = 0
        self._listed = 0
        """Times that the ranks were asked for, and up to which of them there is an answer: they come in this order."""
        self._asked_at: dict[int, float] = {}
        """When they were, of those without an answer and of the last one with one."""
        self._heard_at = 0.0

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
    def over(self) -> bool:
        """Whether there is a child process that has ended."""
        return self._child is not None and self._child.exit_code is not None

    @property
    @_alone
    def hangs(self) -> bool:
        """Whether it has begun long ago and has not said a thing, or has not said one for long, though it was asked."""
        now = time.monotonic()
        if self._preamble is not None:
            return self.alive and now - self.child.started_at > SLOW_S
        open_ = [at for number, at in self._asked_at.items() if number > self._listed]
        return self.alive and now - max(self._heard_at, min(open_, default=now)) > GONE_S

    def fileno(self) -> int | None:
        """Return the descriptor to poll, of this child; None where there is none, or its output has ended."""
        child = self._child
        return None if child is None or child.ended else child.fileno()

    @property
    def held(self) -> int:
        """Bytes of a frame that is not whole."""
        return self._reader.held

    @_alone
    def ask_listing(self) -> None:
        """Ask for the ranks, starting the child where there is none. Raises OSError if it can't be started.

        A list that was asked for SLOW_S ago at most, and has not come, is waited for. What has come is :meth:`earlier`'s.
        """
        if self.alive:
            with suppress(OSError):  # it is begun anew
                self.pump()
        if not self.alive or self.over:
            self._start()
        elif not self.listed and time.monotonic() - self._asked_at[self._asked] < SLOW_S:
            return
        self._list()

    @property
    def listed(self) -> bool:
        """Whether an answer to the last question for the ranks has come."""
        return self._listed == self._asked

    @_alone
    def listing(self) -> Listing | None:
        """Return the ranks there, None while the last question for them is open.

        Raises OSError with the reason why there are none.
        """
        if not self.listed:
            self.pump()
        self._read()
        if not self.listed:
            return None
        if self._told is not None:
            raise Answered(Silence.ERROR, self._told.reason[:MAX_REASON])
        self._used = True
        return self._last

    @property
    def age_s(self) -> float:
        """Seconds since the list that was read last was asked for."""
        return time.monotonic() - self._last_at

    @_alone
    def earlier(self) -> Listing | None:
        """Return the list that came last, for a look in which no newer one does. None where it was used, and is too old."""
        with suppress(OSError):  # a later look has the reason
            self._read()
        if self._last is None or (self._used and self.age_s > KEPT_S):
            return None
        self._used = True
        return self._last

    def _read(self) -> None:
        told = self._told
        if told is None or told.silence:
            return
        self._told = None  # what is read is held once
        try:
            if len(told.payload) > MAX_LISTING:
                raise ValueError(f"it has over {MAX_LISTING >> 20} MiB")
            self._last, self._used = structs.from_msgpack(told.payload, Listing), False
            self._last_at = self._asked_at[self._listed]
        except ValueError as error:
            self.close()
            raise Answered(Silence.GARBAGE, f"its list of ranks can't be read: {error}"[:300]) from None

    @_alone
    def open(self) -> int:
        """Return a new channel. Raises OSError if the child has ended and can't be started."""
        if not self.alive or self.over:
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
        self._reader.limit = MAX_TOLD
        self._open[channel] += 1
        self._owed += 1
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
        """Send and receive what can be, and hand it out. Raises OSError once it has ended, or sends what can't be read.

        One whose output has ended may have no exit code yet: until then there is nothing to poll (:meth:`fileno`).
        """
        try:
            self.child.flush()
        except ConnectionError:
            pass  # what it wrote before its end is read first
        for _ in range(PARTS_A_TURN):
            data = self.child.receive()
            if not data:
                break
            self._heard_at = time.monotonic()
            try:
                for frame in self._reader.feed(self._after_preamble(data)):
                    self._take(structs.from_msgpack(frame, Told))
            except ValueError as error:
                self.close()
                raise Answered(Silence.GARBAGE, f"what it sends can't be read: {error}"[:300]) from None
        if self.child.gone and (not self.listed or self._open):
            began, why = self.listed, self.why()
            self.close()
            raise ConnectionResetError(f"its bridge ended: {why}") if began else Answered(Silence.REFUSED, why)

    @_alone
    def close(self) -> None:
        """Part with the child, and wait for nothing. :func:`pdctl.targets.children.end_aside` ends it."""
        if self._child is not None:
            set_aside(self._child)
            self._child = None
        self._waiting.clear()
        self._open.clear()

    def _start(self) -> None:
        self.close()
        self._reader, self._preamble, self._owed = Reader(MAX_LISTING), b"", 0
        self._told, self._last, self._listed = None, None, self._asked
        try:
            self._child = Child(self.far.argv)
        except FileNotFoundError:
            raise Answered(Silence.REFUSED, f"{self.far.argv[0]} is not on this host's PATH") from None
        except OSError as error:
            raise Answered(Silence.REFUSED, f"{self.far.argv[0]} can't be run: {error.strerror}") from None

    def _list(self) -> None:
        self._asked += 1
        self._asked_at[self._asked] = time.monotonic()
        settings = msgspec.msgpack.encode(self.settings)
        self._send(Ask(-self._asked, LIST, wait_s=self.settings.timeout_s, payload=settings))

    def _send(self, ask: Ask) -> None:
        try:
            self.child.send(framed(msgspec.msgpack.encode(ask)))
        except ConnectionError:
            pass  # why it has ended is read from its other pipes
        except OSError:
            self.close()
            raise

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
        """Keep an answer. Raises ValueError for one that nobody asked for: a far side may send no more of them than that."""
        if told.channel < 0:
            if not self._listed < -told.channel <= self._asked:
                raise ValueError("an answer came that nobody waits for")
            self._listed, self._told = -told.channel, told
            self._asked_at = {number: at for number, at in self._asked_at.items() if number >= self._listed}
            return
        self._owed -= 1
        if self._owed < 0 or not self._open.get(told.channel, 1):
            raise ValueError("an answer came that nobody waits for")
        if told.channel in self._open:
            self._open[told.channel] -= 1
            self._waiting[told.channel].append(told)
