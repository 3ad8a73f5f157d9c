"""Ranks of far sides that run pdctl themselves: over ``ssh``, ``srun``, ``kubectl exec``, where no port of a rank is open.

A far side is a command line. Its child process runs ``pdctl bridge`` there, which lists that side's ranks and carries questions
to their sockets (:mod:`pdctl.targets.bridge_near`). It stays for the whole command, over the looks of one that looks again
and again, and ends with this process.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Mapping, Sequence

from pdctl.protocol.rank import Access, FoundRank, Silence
from pdctl.targets.bridge_frames import STATES, FarRank, Listing, Settings
from pdctl.targets.bridge_near import MAX_REASON, Bridge, Far, explain
from pdctl.targets.children import end_aside
from pdctl.targets.registration import nameless
from pdctl.targets.silence import Answered

BRIDGE = ("pdctl", "bridge")
"""The end of a far side's command line."""
AT_ONCE = 64
"""Far sides that are started at the same time."""
_STARTS_S = 1.0
"""So long one that says nothing counts as being started: a rack that is down keeps nobody from the others."""
MAX_PROBLEMS = 8
"""Problems of one far side that are passed on."""
MAX_PATH = 4096
"""Characters of an address or a path."""
_SOONER = 0.85
"""Part of the time for an answer after which the far side gives up: its reason has to arrive in time."""
_AGAIN_S = 0.02
_LATE_S = 0.5
"""How long those that were late in an earlier look are waited for where no other is."""


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
            raise Answered(_silence(told.silence), told.reason[:MAX_REASON])
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

    At most ``at_once`` are started at the same time, until the monotonic time ``until``. One that did not answer in time is
    kept for the next look, which waits hardly longer for it than for the others. A list that came too late for the look that
    asked for it is that of the next one, which says how old it is.
    """
    settings, within_s = settings or Settings(), until - time.monotonic()
    results: dict[str, list[FoundRank]] = {}
    unstarted = deque(fars)
    starting: dict[str, Bridge] = {}
    since: dict[str, float] = {}
    while unstarted or starting:
        now = time.monotonic()
        busy = sum(now - since[name] < _STARTS_S for name, one in starting.items() if not one.late)
        while unstarted and busy < at_once and time.monotonic() < until:
            far = unstarted.popleft()
            bridge = _bridge(far)
            bridge.settings = settings
            try:
                bridge.ask_listing()
            except OSError as error:
                results[far.name] = [_unreached(far.name, error)]
                continue
            starting[far.name], since[far.name] = bridge, time.monotonic()
            busy += not bridge.late
        if not (unstarted or starting):
            break
        if not unstarted and all(one.late for one in starting.values()):
            until = min(until, time.monotonic() + _LATE_S)
        left_s = until - time.monotonic()
        for name in _ready(starting, min(left_s, _STARTS_S) if unstarted else left_s):
            if time.monotonic() >= until:
                break
            bridge = starting[name]
            try:
                listing = bridge.listing()
            except OSError as error:
                results[name] = [_unreached(name, error)]
                del starting[name]
                continue
            if listing is not None:
                bridge.late = bridge.age_s > within_s
                results[name] = _ranks(bridge, listing, problems)
                del starting[name]
        if time.monotonic() >= until:
            break
    for name, bridge in starting.items():
        bridge.late, listing = True, bridge.earlier()
        late = [unreached(name, Silence.TIMED_OUT, bridge.why())]
        results[name] = late if listing is None else _ranks(bridge, listing, problems)
        if bridge.hangs:
            bridge.close()
    for far in unstarted:
        why = f"it was not asked: the {len(fars)} far sides took all the time (--timeout)"
        results[far.name] = [unreached(far.name, Silence.TIMED_OUT, why)]
    for bridge in [one for name, one in _pool.items() if one.over and name not in results]:
        bridge.close()  # of a pod that is gone: no look asks for it any more
    end_aside()
    found = [rank for far in fars for rank in results[far.name]]
    # Hosts may share a directory: the one that has the process knows, to the others it has ended.
    return sorted(found, key=lambda rank: rank.state == "dead")


def _ready(starting: Mapping[str, Bridge], left_s: float) -> set[str]:
    """Return which of these far sides have something to tell, waiting up to ``left_s`` for the first.

    Another thread may start a child anew, and so with another descriptor: each time they are asked for it.
    """
    poll = select.poll()
    names: dict[int, str] = {}
    over: set[str] = set()
    """Those whose output has ended, since nothing tells when their exit codes are known; and those whose list is here.

    Where other threads read from them, too, no poll tells of the latter.
    """
    for name, one in starting.items():
        fd = one.fileno()
        if fd is None or one.listed:
            over.add(name)
        else:
            names[fd] = name
            poll.register(fd, select.POLLIN)
    left_s = min(left_s, _AGAIN_S) if over or _relays else left_s
    return {names[fd] for fd, _ in poll.poll(max(0, int(left_s * 1000)))} | over


def unreached(name: str, silence: Silence, why: str) -> FoundRank:
    """Return the row of a far side that gives no ranks."""
    return FoundRank(nameless(name), "live", access=Access(), silent=silence, silent_why=why, via=name)


def _unreached(name: str, error: OSError) -> FoundRank:
    return unreached(name, error.silence if isinstance(error, Answered) else Silence.REFUSED, str(error))


def _bridge(far: Far) -> Bridge:
    known = _pool.get(far.name)
    if known is None or (known.far.argv != far.argv and not known.alive):  # other time limits are in ssh's options, too
        if known is not None:
            known.close()
        known = _pool[far.name] = Bridge(far)
    return known


def _ranks(bridge: Bridge, listing: Listing, problems: list[str]) -> list[FoundRank]:
    name = bridge.far.name
    found = [_rank(name, one) for one in listing.ranks if one.state in STATES]
    if bridge.late:
        problems.append(f"{name}: its list of ranks is {bridge.age_s:.0f} s old: {bridge.why()}")
    problems += [f"{name}: {problem[:MAX_REASON]}" for problem in listing.problems[:MAX_PROBLEMS]]
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
        endpoint=one.endpoint[:MAX_PATH],
        endpoint_off=one.endpoint_off[:MAX_REASON],
        protocol=one.protocol,
        recording_size=max(0, one.recording_size),
        recording_off=one.recording_off[:MAX_REASON],
        access=Access(),
        tcp=one.tcp[:MAX_PATH],
        tcp_off=one.tcp_off[:MAX_REASON],
        store=one.store[:MAX_PATH],
        silent=silence,
        silent_why=one.silent_why[:MAX_REASON],
        via=name,
        far_key=one.key,
    )


def _silence(word: str) -> Silence:
    try:
        return Silence(word)
    except ValueError:
        return Silence.ERROR


__all__ = ["BRIDGE", "Answered", "Bridge", "BridgeLine", "Far", "Settings", "explain", "line", "open_all", "unreached"]
