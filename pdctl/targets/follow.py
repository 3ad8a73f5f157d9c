"""Follow the recordings of live ranks for a while, so that overwritten records are not lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from pdctl.protocol.errors import PdctlError
from pdctl.recording.source import FileSource, Source
from pdctl.targets.client import Client
from pdctl.targets.collect import Copy, why_none
from pdctl.targets.find import Found, FoundRank, refresh
from pdctl.trace.carry import Carried, Spill

_SHARE = 0.2
"""Share of a ring that may fill between two looks."""
_SHORTEST_S, _LONGEST_S = 0.02, 1.0
_STEP_S = 0.1


class SocketSource(Source):
    """A recording that is read through its rank's socket. Raises OSError with the reason where it does not answer."""

    def __init__(self, client: Client, rank: FoundRank) -> None:
        self._client, self._rank = client, rank
        self.size = rank.recording_size

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at ``offset`` as they are now."""
        self._client.restart()
        answer = self._client.recordings.part(self._rank, offset, length)
        if answer.body is None:
            raise OSError(answer.reason)
        return answer.body


@dataclass
class Followed:
    """A followed rank: its copied records, or the reason why it can't be followed. lost: why following it ended early."""

    rank: FoundRank
    carried: Carried | None = None
    through: str = ""
    reason: str = ""
    lost: str = ""
    wall_ns: int = 0
    mono_ns: int = 0

    def look(self) -> float:
        """Read new records once. Return the largest share of a ring that was new."""
        if self.carried is None or self.lost:
            return 0.0
        try:
            share = self.carried.look()
        except (OSError, ValueError) as error:
            self.lost = f"it could not be followed to the end: {error}"
            return 0.0
        self.wall_ns, self.mono_ns = time.time_ns(), time.monotonic_ns()
        return share

    def copy(self) -> Copy:
        """Return the copied records, for a trace."""
        rank = refresh(self.rank)
        if self.carried is None or not self.mono_ns:
            return Copy(rank, None, self.through, self.reason or self.lost)
        problems = (self.lost,) if self.lost else ()
        return Copy(
            rank, self.carried.build(), self.through, wall_ns=self.wall_ns,
            mono_ns=self.mono_ns if rank.access is None else 0,  # as in pdctl.targets.collect
            gaps=self.carried.gaps(), problems=problems,
        )  # fmt: skip


def begin(found: Found, client: Client, *, through_socket: bool = False) -> list[Followed]:
    """Return every rank of ``found``, ready to be followed, or with the reason why it can't be.

    Raises PdctlError (UNREACHABLE) where there is no place to keep what is copied.
    """
    try:
        spill = Spill()
    except OSError as error:
        said = f"what is followed can't be kept: {error.strerror}"
        raise PdctlError(said, "Set TMPDIR to a directory with room.") from None
    return [_begin(rank, client, spill, through_socket=through_socket) for rank in found.ranks]


def _begin(rank: FoundRank, client: Client, spill: Spill, *, through_socket: bool) -> Followed:
    if rank.recording is None and not (rank.live and rank.recording_size):
        return Followed(rank, reason=why_none(rank))
    source: Source | None = None
    through, reason = "file", ""
    if not through_socket and rank.recording is not None:
        try:
            source = FileSource(rank.recording)
        except OSError as error:
            reason = f"{rank.recording_name}: {error.strerror}"
            if not (isinstance(error, PermissionError) and rank.live and rank.recording_size):
                return Followed(rank, through=through, reason=reason)
    if source is None:
        source, through = SocketSource(client, rank), "socket"
    try:
        return Followed(rank, Carried(source, spill), through)
    except (OSError, ValueError) as error:
        said = f"{rank.recording_name or 'its recording'}: {error}"
        return Followed(rank, through=through, reason=reason or said)


def follow(
    ranks: list[Followed], *, seconds: float | None, max_size: int, ended: Callable[[], str], over: threading.Event
) -> str:
    """Read all ranks again and again. Return why it ended, in words.

    seconds: maximum duration, None for no limit. max_size: maximum bytes of one rank's recording. ended: called after each
    pass; returns the reason to end, "" to go on. over: an event that ends it from another thread.
    """
    end = None if seconds is None else time.monotonic() + seconds
    pause = _SHORTEST_S
    while True:
        share = max((rank.look() for rank in ranks), default=0.0)
        if over.is_set():
            return "interrupted"
        grown = next((rank for rank in ranks if rank.carried is not None and rank.carried.size > max_size), None)
        if grown is not None:
            return f"the recording of {grown.rank.identity.label} reached --max-size"
        enough = ended()
        if enough:
            return enough
        now = time.monotonic()
        if end is not None and now >= end:
            return "--for was over"
        # So that a ring fills by _SHARE at most, if it goes on as it went.
        pause = min(_LONGEST_S, max(_SHORTEST_S, pause * _SHARE / share)) if share else min(_LONGEST_S, 2 * pause)
        _sleep(min(pause, end - now) if end is not None else pause, over)


def _sleep(seconds: float, over: threading.Event) -> None:
    until = time.monotonic() + seconds
    while not over.is_set() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _STEP_S))


@contextmanager
def interruptible(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """Yield an event that the first of these signals sets (SIGINT and SIGTERM), instead of ending the process.

    A second one ends it. A signal that is ignored stays so.
    """
    over = threading.Event()
    heard = numbers or (signal.SIGINT, signal.SIGTERM)
    before = {number: how for number in heard if (how := signal.getsignal(number)) is not signal.SIG_IGN}

    def enough(number: int, _: FrameType | None) -> None:
        over.set()
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, enough)
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
