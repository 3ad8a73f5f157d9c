"""What the recordings say of their clocks: which ranks share one, and what bounds the others. Pure.

Rounds first: nobody leaves the reduction of a round before all have entered it. Between prefill and decode there are no
rounds; there the engine's messages bind, each only in the direction in which it can't be otherwise:

- a decode rank has enqueued and resolved a room before it sends its addresses, and the state of a prefill rank that
  sends to it turns to WaitingForInput only when they are there (that of one without a part in it may be made so);
- prefill tells a decode rank Success after it has written the metadata, so META_SENT comes before that rank's Success;
- prefill's sender is made (state Bootstrapping) before it registers its dp rank, which is before anybody is told of it.

META_SENT is written when the write has returned, so that LANDED may come a moment earlier: the two bound nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pdctl.probes.queues.compare import Polled, compare
from pdctl.probes.story.clocks import DRIFT, Bound, Contradiction, Offset, Passed, align, groups_of, shared_rounds
from pdctl.protocol.model import EventKind, KVPoll, Phase
from pdctl.recording.reader import Event, Recording
from pdctl.recording.streams import Stream
from pdctl.targets.servers import server_of

SAME_BOOT_NS = 60_000_000_000
"""The wall clock may have been set meanwhile; another boot of a host is further away than that."""


@dataclass(frozen=True)
class Time:
    """The clock of one rank. clock: number of it, equal for ranks that share one. why: what its offset rests on."""

    clock: int
    offset: Offset
    why: str


def times(recordings: Sequence[Recording], near: Sequence[int | None], reference: int) -> tuple[list[Time], list[str]]:
    """Return the time of each rank, and remarks.

    near: per rank the moment on its own clock that matters, None where it has none: then its wall clock tells it.
    reference: number of the rank whose clock the others are put on.
    """
    walls = [r.start_wall_ns - r.start_mono_ns for r in recordings]
    known = next((walls[n] + ns for n, ns in enumerate(near) if ns is not None), walls[reference])
    moments = [known - walls[n] if ns is None else ns for n, ns in enumerate(near)]
    clocks = clocks_of(recordings)
    remarks = []
    rounds = _rounds(recordings, moments)
    if any(bound.most < 0 and clocks[bound.before] == clocks[bound.after] for bound in rounds):
        clocks = list(range(len(recordings)))
        remarks.append("ranks of one host name have clocks that differ: none is taken to be shared")
    if len(set(clocks)) == 1:
        same = Offset(0, 0, 0)
        return [Time(0, same, "one clock: all ranks ran on one host") for _ in recordings], remarks
    messages = _messages(recordings, moments)
    return _aligned(clocks, walls, reference, rounds, messages, remarks), remarks


def clocks_of(recordings: Iterable[Recording]) -> list[int]:
    """Return the number of the clock of each rank, by its host and when that was booted."""
    return groups_of(
        [(r.identity.host, r.start_wall_ns - r.start_mono_ns) for r in recordings], tolerance_ns=SAME_BOOT_NS
    )


def _aligned(
    clocks: list[int], walls: list[int], reference: int, rounds: list[Bound], messages: list[Bound], remarks: list[str]
) -> list[Time]:
    first = {clock: n for n, clock in reversed(list(enumerate(clocks)))}
    clock_walls = [walls[first[clock]] for clock in range(max(clocks) + 1)]
    for bounds in ([*rounds, *messages], rounds, []):
        between = [
            Bound(clocks[b.before], clocks[b.after], b.most) for b in bounds if clocks[b.before] != clocks[b.after]
        ]
        try:
            offsets = align(clock_walls, between, clocks[reference])
        except Contradiction as error:
            what = "rounds and messages" if bounds is not rounds else "rounds"
            remarks.append(
                f"{what} of different hosts do not fit together ({error}): left out of the clocks' alignment"
            )
            continue
        by_rounds = _linked(clocks, rounds if bounds else [], clocks[reference])
        return [
            Time(clock, offsets[clock], _why(clock, offsets[clock], clocks, reference, by_rounds)) for clock in clocks
        ]
    raise AssertionError("no bounds at all contradict nothing")


def _linked(clocks: list[int], rounds: list[Bound], reference: int) -> set[int]:
    """Return the clocks that shared rounds tie to the reference's."""
    linked, grown = {reference}, True
    while grown:
        more = {clocks[b.before] for b in rounds if clocks[b.after] in linked} - linked
        linked |= more
        grown = bool(more)
    return linked


def _why(clock: int, offset: Offset, clocks: list[int], reference: int, by_rounds: set[int]) -> str:
    if clock == clocks[reference]:
        return "the others' times are put on this clock"
    if offset.within_ns is None:
        side = "" if offset.low is None and offset.high is None else ", and messages on one side"
        return f"wall clocks only{side}"
    return "by shared rounds" if clock in by_rounds else "by messages between the sides"


# ---- rounds ----------------------------------------------------------------------------------------------------------


def shared_streams(recordings: Iterable[Recording]) -> list[list[tuple[int, Stream]]]:
    """Return the streams of each queue over one group, with the numbers of their recordings."""
    streams: dict[tuple[str, str], list[tuple[int, Stream]]] = {}
    for n, recording in enumerate(recordings):
        for stream in recording.streams:
            instance = recording.identity.instance
            streams.setdefault((f"{instance} {stream.group.key}", stream.queue), []).append((n, stream))
    return list(streams.values())


def _rounds(recordings: Sequence[Recording], near: Sequence[int]) -> list[Bound]:
    """Return a bound for each two ranks that have rounds in common, in both directions."""
    least: dict[tuple[int, int], int] = {}
    for members in shared_streams(recordings):
        for place, (i, one) in enumerate(members):
            for j, other in members[place + 1 :]:
                for a, b, most in _pair(recordings, one.queue, (i, one), (j, other), near):
                    least[a, b] = min(most, least.get((a, b), most))
    return [Bound(a, b, most) for (a, b), most in least.items()]


def _pair(
    recordings: Sequence[Recording], queue: str, one: tuple[int, Stream], other: tuple[int, Stream], near: Sequence[int]
) -> Iterable[tuple[int, int, int]]:
    (i, mine), (j, theirs) = one, other
    found = compare([Polled(s, recordings[n].visits.get(queue)) for n, s in (one, other)])
    last = found.last if found.difference is None else found.difference.ordinal - 1
    if last < found.first:
        return  # no rounds in common, or the first of them is not the same collective for both
    a, b = _passed(mine, found.first, last), _passed(theirs, found.first, last)
    for first, second, m, n in ((a, b, i, j), (b, a, j, i)):
        most = shared_rounds(first, second, near_one=near[m], near_other=near[n])
        if most is not None:
            yield n, m, most


def _passed(stream: Stream, first: int, last: int) -> Passed:
    """Return when the rank was in rounds ``first`` to ``last``. A run has times of its first and its last round only."""
    table = stream.table
    ordinal, ends = table["ordinal"].astype(np.int64), stream.ends
    applied = (table["flags"] & 15) == int(Phase.APPLIED)
    enters = (np.concatenate([ordinal, ends]), np.concatenate([table["t_first"], table["t_enter"]]).astype(np.int64))
    done = table["t_done"] > 0
    again = table["repeat"] > 1
    follows = np.zeros(len(table), bool)
    follows[:-1] = applied[:-1] & (ordinal[1:] == ends[:-1] + 1)
    leaves = (
        np.concatenate([ordinal[done], ends[again] - 1, ends[follows]]),
        np.concatenate([table["t_done"][done], table["t_enter"][again], table["t_first"][1:][follows[:-1]]]).astype(
            np.int64
        ),
    )
    return Passed(_within(enters, first, last), _within(leaves, first, last))


def _within(
    points: tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]],
    first: int,
    last: int,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    ordinals, at = points
    keep = (ordinals >= first) & (ordinals <= last)
    ordinals, at = ordinals[keep], at[keep]
    order = np.lexsort((at, ordinals))
    return ordinals[order], at[order]


# ---- messages --------------------------------------------------------------------------------------------------------


STEPS = (
    EventKind.ENQUEUE,
    EventKind.STATE,
    EventKind.DP_REGISTER,
    EventKind.DP_ANSWER,
    EventKind.META_SENT,
    EventKind.FAULT_FIRED,
    EventKind.NOTE,
)
"""The events that messages between the sides are known by."""


@dataclass
class _Seen:
    """When a rank recorded the steps of a room's handshake and transfer, None where it did not."""

    sender_ns: int | None = None
    addresses_ns: int | None = None
    resolved_ns: int | None = None
    success_ns: int | None = None
    answered_ns: int | None = None
    registered: bool = False
    fault: bool = False


def _messages(recordings: Sequence[Recording], near: Sequence[int]) -> list[Bound]:
    roles = [recording.identity.role for recording in recordings]
    seen = [_steps(recording.events(), role) for recording, role in zip(recordings, roles, strict=True)]
    _leave_out_shared(recordings, seen)
    takers: dict[int, list[int]] = {}  # room → the decode ranks that know it: of many servers those of one
    for j, known in enumerate(seen):
        for room in known if roles[j] == "decode" else ():
            takers.setdefault(room, []).append(j)
    registered = Counter(room for known in seen for room, steps in known.items() if steps.registered)
    bounds: list[Bound] = []

    def before(i: int, ns: int | None, j: int, later: int | None) -> None:
        if ns is not None and later is not None:
            away = max(abs(ns - near[i]), abs(later - near[j]))
            bounds.append(Bound(i, j, later - ns + int(away * DRIFT) + 1))

    for i, recording in enumerate(recordings):
        if roles[i] != "prefill":
            continue
        for event in recording.events():
            mine = seen[i].get(event.room)  # a hostile recording may name none
            if event.kind is not EventKind.META_SENT or event.b != 0 or mine is None or mine.fault:
                continue
            for j in takers.get(event.room, ()):
                if _is_tp(recordings[j], event.a):
                    before(i, event.mono_ns, j, seen[j][event.room].success_ns)
                    before(j, seen[j][event.room].resolved_ns, i, mine.addresses_ns)
    for i, known in enumerate(seen):
        for room, steps in known.items():
            if steps.registered and registered[room] == 1:  # of several it can't be told whose was found
                for j in takers.get(room, ()):
                    before(i, steps.sender_ns, j, seen[j][room].answered_ns)
    return bounds


def _leave_out_shared(recordings: Sequence[Recording], seen: Sequence[dict[int, _Seen]]) -> None:
    """Mark the rooms that several servers of one side have: whose message it was can't be told."""
    servers: dict[tuple[str, int], tuple[str, str, str]] = {}
    shared: set[int] = set()
    for recording, steps in zip(recordings, seen, strict=True):
        role, server = recording.identity.role, server_of(recording.identity)
        shared.update(room for room in steps if servers.setdefault((role, room), server) != server)
    for steps in seen:
        steps.update((room, _Seen(fault=True)) for room in shared.intersection(steps))


def _is_tp(recording: Recording, tp: int) -> bool:
    identity = recording.identity
    return identity.tp == tp and not (identity.dp_attention and identity.dp_size > 1)


def _steps(events: Sequence[Event], role: str) -> dict[int, _Seen]:
    steps: dict[int, _Seen] = {}
    twice = set()
    for e in events:
        if not e.room:
            continue
        s = steps.setdefault(e.room, _Seen())
        if e.kind is EventKind.FAULT_FIRED or e.kind is EventKind.NOTE:
            s.fault = True
        elif e.kind is EventKind.DP_REGISTER:
            s.registered = True
        elif e.kind is EventKind.DP_ANSWER and e.a >= 0:
            s.answered_ns = s.answered_ns or e.mono_ns
            s.resolved_ns = max(s.resolved_ns or 0, e.mono_ns)
        elif e.kind is EventKind.ENQUEUE and e.queue in ("decode.pending", "decode.prealloc"):
            s.resolved_ns = max(s.resolved_ns or 0, e.mono_ns)
        elif e.kind is EventKind.STATE:
            if e.a == KVPoll.BOOTSTRAPPING:
                if s.sender_ns is not None:
                    twice.add(e.room)  # a room used again: which message belongs to which can't be told
                s.sender_ns = e.mono_ns
            elif e.a == KVPoll.WAITING_FOR_INPUT and role == "prefill":
                s.addresses_ns = s.addresses_ns or e.mono_ns
            elif e.a == KVPoll.WAITING_FOR_INPUT and role == "decode":
                s.resolved_ns = max(s.resolved_ns or 0, e.mono_ns)
            elif e.a == KVPoll.SUCCESS:
                s.success_ns = s.success_ns or e.mono_ns
    for room in twice:
        steps[room] = _Seen(fault=True)
    return steps
