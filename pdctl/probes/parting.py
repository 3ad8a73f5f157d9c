"""Finds the request with which the pipeline stages of a server that stands went different ways. Pure: recordings in.

Stages agree on what becomes of a request, and each looks at its own polls once more before it does that. Where one fails
the request meanwhile, another takes it on: it then waits for a stage that has forgotten the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.probes.standing import standing
from pdctl.probes.turns import Loop
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import POLLED_QUEUES, Action, EventKind, Identity
from pdctl.report.findings import Finding, finding

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording

MOST_RUNS = 64
"""Runs of each queue that are looked at: the newest."""
PARTS = ("prefill.bootstrap", "decode.prealloc", "decode.transfer")
"""Queues that a request has to leave in one way on all stages; ``prefill.inflight`` it leaves as the stage's transfer ended."""
_TOOK = {int(Action.MOVED): "took it on", int(Action.COMMITTED): "ended it well"}
_FAILED = {int(Action.FAILED): "failed it", int(Action.ABORTED): "aborted it"}


@dataclass(frozen=True)
class Recorded:
    """A rank's recording. now_ns: the present on its clock, None unknown."""

    recording: Recording
    now_ns: int | None = None


Done = Mapping[tuple[str, int], Sequence["Did"]]
"""What the stages of a pipeline did with rooms that left a queue, by queue and room."""


@dataclass(frozen=True)
class Did:
    """What a stage did with a room. age_s: seconds ago, None unknown. wall_ns: when."""

    rank: str
    stage: int
    action: int
    queue: str
    round: int
    wall_ns: int
    age_s: float | None
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Whether it has failed the room."""
        return self.action in _FAILED

    @property
    def words(self) -> str:
        """Return ``prefill dp0 pp1 tp0 failed it in round 25``."""
        what = {**_TOOK, **_FAILED}[self.action]
        return f"{self.rank} {what} in round {self.round}" + (f' ("{self.reason}")' if self.reason else "")


def stages(loops: Sequence[Loop]) -> list[int]:
    """Return the numbers of the ranks whose recordings are worth a look: of pipelines in which a loop stands."""
    units = {loops[n].identity.unit for n in standing(loops) if loops[n].identity.pp_size > 1}
    return [n for n, loop in enumerate(loops) if loop.identity.unit in units]


def judge(loops: Sequence[Loop], recorded: Mapping[int, Recorded]) -> tuple[Finding, ...]:
    """Return a finding for each pipeline whose stages did different things with a room. recorded: of :func:`stages`."""
    units: dict[str, list[int]] = {}
    for n in recorded:
        units.setdefault(loops[n].identity.unit, []).append(n)
    found = []
    for members in units.values():
        done = done_by((loops[n].identity, recorded[n]) for n in members)
        at = parted(done)
        if at is not None:
            ages = [loop.turn.age_s for loop in (loops[n] for n in members) if loop.turn.age_s is not None]
            found.append(parting([loops[n].identity for n in members], at, done[at], min(ages, default=None)))
    return tuple(found)


def done_by(members: Iterable[tuple[Identity, Recorded]]) -> dict[tuple[str, int], list[Did]]:
    """Return what these ranks of a pipeline did with the rooms that left a polled queue lately."""
    done: dict[tuple[str, int], list[Did]] = {}
    for identity, one in members:
        for room, did in _done(identity, one):
            done.setdefault((did.queue, room), []).append(did)
    return done


def parted(done: Done) -> tuple[str, int] | None:
    """Return the queue and the room with which stages went different ways, the last of several, None without one."""
    found = [at for at, each in done.items() if at[0] in PARTS and _parted(each)]
    return max(found, key=lambda at: max(did.wall_ns for did in done[at]), default=None)


def parting(members: Sequence[Identity], at: tuple[str, int], each: Sequence[Did], unturned_s: float | None) -> Finding:
    """Return the finding that these stages parted there. unturned_s: for how long no stage has turned, None unknown."""
    queue, room = at
    took = next(did for did in each if did.action in _TOOK)
    failed = next(did for did in each if did.action in _FAILED and did.stage != took.stage)
    since = f" for {seconds(unturned_s)}" if unturned_s is not None else ""
    return finding(
        "PD115",
        f"Stages of {members[0].role} dp{members[0].dp} parted at room {room}: {took.words} of {queue}, {failed.words}."
        f" No stage has turned{since}.",
        rooms=(room,),
        ranks=tuple(one.label for one in members),
        units=(one.unit for one in members),
        evidence=tuple(
            f"{did.words} of {queue}" + (f", {seconds(did.age_s)} ago" if did.age_s is not None else "")
            for did in sorted(each, key=lambda did: did.wall_ns)
        ),
    )


def _parted(each: Sequence[Did]) -> bool:
    took = {did.stage for did in each if did.action in _TOOK}
    return bool(took) and bool({did.stage for did in each if did.action in _FAILED} - took)


def _done(who: Identity, one: Recorded) -> Iterable[tuple[int, Did]]:
    """Yield each room that has left a polled queue of a rank lately, with how."""
    recording, wall = one.recording, one.recording.start_wall_ns - one.recording.start_mono_ns
    left = []
    for queue in POLLED_QUEUES:
        stream = recording.stream(queue)
        if stream is None:
            continue
        for row in range(max(0, len(stream) - MOST_RUNS), len(stream)):
            run = stream.run(row)
            acts = [(item.room, item.action) for item in stream.items(run) or ()]
            left += [(queue, run, room, action) for room, action in acts if action in _TOOK or action in _FAILED]
    reasons: dict[int, str] = {}
    failed = {room for _, _, room, action in left if action in _FAILED}
    for note in recording.events_of(failed, (EventKind.FAILURE,)) if failed else ():
        reasons.setdefault(note.room, note.text)
    for queue, run, room, action in left:
        age_s = None if one.now_ns is None else max(0.0, (one.now_ns - run.t_done) / 1e9)
        reason = reasons.get(room, "") if action in _FAILED else ""
        yield room, Did(who.label, who.pp, action, queue, run.last, run.t_done + wall, age_s, reason)


__all__ = ["PARTS", "Did", "Done", "Recorded", "done_by", "judge", "parted", "parting", "stages"]
