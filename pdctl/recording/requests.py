"""A rank's requests as its recording shows them: the polled queues after their last rounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pdctl.protocol.durations import seconds
from pdctl.protocol.model import POLLED_QUEUES, UNKNOWN, Action, EventKind, Phase
from pdctl.protocol.requests import NOT_KNOWN, Cover, RoomEntry, Rooms, RoomTable, Space

if TYPE_CHECKING:
    from pdctl.protocol.rank import FoundRank
    from pdctl.recording.reader import Recording
    from pdctl.recording.streams import Item, Run

UNSEEN_S = 5.0
"""For how long a rank that is well may write nothing: one turn with a long prompt, on a busy machine."""


def last_sign_ns(recording: Recording) -> int:
    """Return when the rank last wrote anything into its recording, ns of its own monotonic clock."""
    signs = [recording.start_mono_ns, recording.tick_mono_ns]
    signs += [visits.mono_ns for visits in recording.visits.values()]
    signs += [max(stream.newest.t_enter, stream.newest.t_done) for stream in recording.streams]
    signs += recording.event_table()["mono_ns"][-1:].tolist()
    return max(signs)


def moments(recordings: Iterable[Recording]) -> dict[int, int]:
    """Return the time of the newest write of any rank, on each rank's own clock (ns), by ``id(recording)``.

    For how long a rank's own state is known, see :func:`seen_until_ns`.
    """
    those = list(recordings)
    last = max((last_sign_ns(r) + r.start_wall_ns - r.start_mono_ns for r in those), default=0)
    return {id(r): last - r.start_wall_ns + r.start_mono_ns for r in those}


def seen_until_ns(recording: Recording, end_ns: int, seen_ns: int = 0) -> int:
    """Return the time until which the recording shows the rank's requests, ns of its clock, at most ``end_ns``.

    This is the time of its last write. It is ``seen_ns`` if the rank was seen alive and recording after that: the rank hung
    then, and nothing changed. A gap as short as a working rank may leave does not count.
    """
    last = last_sign_ns(recording)
    if seen_ns > last and recording.state == "writing":
        last = seen_ns
    return end_ns if end_ns - last < UNSEEN_S * 1e9 else last


def alive_ns(rank: FoundRank) -> int:
    """Return when a rank of a trace was last seen alive, ns of its host's monotonic clock, 0 unknown."""
    return rank.seen_ns if rank.seen_live else 0


def untrusted(recording: Recording) -> tuple[str, ...]:
    """Return the parts of a recording that can't be trusted, in words."""
    return tuple(f"recording: {problem}" for problem in recording.problems)


def doubts(recording: Recording, unseen_s: float) -> tuple[str, ...]:
    """Return :func:`untrusted`, and a line for a rank that wrote nothing in the last ``unseen_s`` seconds."""
    found = [*untrusted(recording)]
    if unseen_s:
        why = _why_silent(recording)
        since = f"wrote nothing for {seconds(unseen_s)} before the end of the recordings"
        found.append(f"{since}, and what it has seen since is not known{why and f': {why}'}")
    return tuple(found)


def _why_silent(recording: Recording) -> str:
    """Return where the rank of a recording that ends early may be, "" if the recording does not show it."""
    for stream in recording.streams:
        if stream.newest.phase is Phase.ENTERED:
            return f"it entered round {stream.last} of {stream.queue}, which it has not left"
    return ""


def rooms_of(recording: Recording, now_ns: int) -> Rooms:
    """Return the requests in the polled queues of a rank at ``now_ns`` of its clock, as its recording has them.

    Ages count from when a request entered the queue, or was first polled there. dp is what the bootstrap server answered.
    """
    entered: dict[tuple[int, str], tuple[int, str]] = {}
    dp: dict[int, int] = {}
    there = {queue: _there(recording, queue) for queue in POLLED_QUEUES}
    rooms = {item.room for found in there.values() for _, item in found}
    for event in recording.events_told((EventKind.ENQUEUE, EventKind.DP_ANSWER), rooms):
        if event.kind is EventKind.ENQUEUE:
            entered[event.room, event.queue] = (event.mono_ns, event.text)
        elif event.a >= 0:
            dp[event.room] = event.a
    rids = {room: rid for (room, _), (_, rid) in entered.items() if rid}
    prefilling = recording.identity.role == "prefill"
    entries = []
    for queue, found in there.items():
        for run, item in found:
            since, _ = entered.get((item.room, queue), (run.t_first, ""))
            entries.append(
                RoomEntry(
                    queue=queue,
                    room=item.room,
                    rid=rids.get(item.room, ""),
                    slot=item.slot,
                    state=item.local,
                    age_s=max(0.0, (now_ns - since) / 1e9),
                    dp=recording.identity.dp if prefilling else dp.get(item.room, -1),
                )
            )
    return Rooms(
        mono_ns=now_ns,
        ticks=recording.ticks,
        rooms=RoomTable.of(entries),
        covers=tuple(Cover(queue, UNKNOWN, NOT_KNOWN) for queue in POLLED_QUEUES),
        space=Space(),
        tables={},
        failures={e.room: e.text for e in recording.events_told((EventKind.FAILURE,))},
        missing=dict.fromkeys(("decode.pending", "waiting", "running"), "not in recordings"),
    )


def changed_since(recording: Recording, since_ns: int) -> set[int]:
    """Return the rooms with a new record after ``since_ns`` of the rank's clock."""
    events = recording.event_table()
    return set(events["room"][events["mono_ns"] > since_ns].tolist()) - {0}


def _there(recording: Recording, queue: str) -> list[tuple[Run, Item]]:
    """Return the requests that the newest round left in a queue; none if the last turn found the queue empty."""
    stream = recording.stream(queue)
    visits = recording.visits.get(queue)
    if stream is None or (visits is not None and visits.empty):
        return []
    run = stream.newest
    items = stream.items(run) or []
    applied = run.phase is Phase.APPLIED
    return [(run, item) for item in items if not applied or item.action in (int(Action.KEPT), UNKNOWN)]
