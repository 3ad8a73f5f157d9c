"""Finds the request with which the pipeline stages of a server that stands went different ways. Pure: recordings in.

Stages agree on what becomes of a request, and each looks at its own polls once more before it does that. Where one fails
the request meanwhile, another takes it on: it then waits for a stage that has forgotten the request. A stage that has no
metadata yet keeps the request instead. So what each took on is compared by the turns in which it did: its batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from pdctl.probes.standing import standing
from pdctl.probes.turns import ENDED, HALTED, Loop, Turn
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import POLLED_QUEUES, Action, EventKind, Identity, Phase
from pdctl.report.findings import Finding, finding

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording

MOST_RUNS = 64
"""Runs of each queue that are looked at: the newest."""
PARTS = ("prefill.bootstrap", "decode.prealloc", "decode.transfer")
"""Queues that a request has to leave in one way on all stages; ``prefill.inflight`` it leaves as the stage's transfer ended."""
BATCHED = ("prefill.bootstrap", "decode.transfer")
"""Queues out of which a request goes to a batch, and which are polled in each turn that finds a request there."""
_TOOK = {int(Action.MOVED): "took it on", int(Action.COMMITTED): "ended it well"}
_FAILED = {int(Action.FAILED): "failed it", int(Action.ABORTED): "aborted it"}
_SAYS = {**_TOOK, **_FAILED, int(Action.KEPT): "kept it"}


@dataclass(frozen=True)
class Recorded:
    """A rank's recording. now_ns: the present on its clock, None unknown."""

    recording: Recording
    now_ns: int | None = None


Done = Mapping[tuple[str, int], Sequence["Did"]]
"""What the stages of a pipeline did with rooms that left a queue, by queue and room."""


@dataclass(frozen=True)
class Did:
    """What a stage did with a room. age_s: seconds ago, None unknown. wall_ns: when.

    visit: turn at the queue in which it did; the stages of a pipeline have one such turn for each of another. beside: another
    room that it took on in the same turn, 0 where that is not said.
    """

    rank: str
    stage: int
    room: int
    action: int
    queue: str
    round: int
    wall_ns: int
    age_s: float | None
    reason: str = ""
    visit: int = 0
    beside: int = 0

    @property
    def took(self) -> bool:
        """Whether it has taken the room on."""
        return self.action in _TOOK

    @property
    def failed(self) -> bool:
        """Whether it has failed the room."""
        return self.action in _FAILED

    @property
    def words(self) -> str:
        """Return ``prefill dp0 pp1 tp0 failed it in round 25``."""
        beside = f" with room {self.beside}" if self.beside else ""
        reason = f' ("{self.reason}")' if self.reason else ""
        return f"{self.rank} {_SAYS[self.action]}{beside} in round {self.round}{reason}"


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
        those = [(loops[n].identity, recorded[n]) for n in members]
        done = done_by(those)
        each = parted(done) or ([] if any(held(loops[n].turn) for n in members) else of_other_batches(done, those))
        if each:
            ages = [loop.turn.age_s for loop in (loops[n] for n in members) if loop.turn.age_s is not None]
            ended = any(loops[n].turn.state == ENDED for n in members)
            found.append(parting([loops[n].identity for n in members], each, min(ages, default=None), ended=ended))
    return tuple(found)


def held(turn: Turn) -> bool:
    """Return whether a rank's process does not run: then the others wait for it, whatever it has not done yet."""
    return turn.state in HALTED or turn.state == ENDED


def done_by(members: Iterable[tuple[Identity, Recorded]]) -> dict[tuple[str, int], list[Did]]:
    """Return what these ranks of a pipeline did with the rooms that left a polled queue lately."""
    done: dict[tuple[str, int], list[Did]] = {}
    for identity, one in members:
        for did in _done(identity, one):
            done.setdefault((did.queue, did.room), []).append(did)
    return done


def parted(done: Done) -> Sequence[Did]:
    """Return what each stage did with the last request that some took on and others failed, nothing without one."""
    found = [each for (queue, _), each in done.items() if queue in PARTS and _parted(each)]
    return max(found, key=lambda each: max(did.wall_ns for did in each), default=())


def of_other_batches(done: Done, members: Sequence[tuple[Identity, Recorded]]) -> Sequence[Did]:
    """Return what two stages did with the first request that is in a batch of one and not in the same batch of the other.

    A later stage takes on what the one before it took on, always as many turns later: a lag is none. Where the later one polled
    the request in that turn and kept it, or took on with another one what the first one took on alone, they parted.
    """
    stages: dict[int, tuple[Identity, Recorded]] = {}
    for identity, one in members:  # the ranks of a stage do the same
        stages.setdefault(identity.pp, (identity, one))
    found = []
    for queue in BATCHED:
        took = {pp: _taken(done, queue, identity.label) for pp, (identity, _) in stages.items()}
        for first, later in combinations(sorted(stages), 2):
            visits = {
                room: (did.visit, took[later][room].visit) for room, did in took[first].items() if room in took[later]
            }
            both = sorted(visits, key=lambda room: visits[room])
            if both:  # else it is not known how many turns the later one is behind
                found.append(_apart(both, took[first], took[later]))
                lag = max(second - one for one, second in visits.values())
                anywhere = {
                    room for (at, room), each in done.items() if at == queue for did in each if did.stage == later
                }
                passed = {room: did for room, did in took[first].items() if room not in anywhere}
                found.append(_passed(passed, lag, *stages[later]))
    return min((each for each in found if each), key=lambda each: each[0].wall_ns, default=())


def _taken(done: Done, queue: str, rank: str) -> dict[int, Did]:
    """Return the rooms that a rank took on out of a queue; not those of several requests."""
    mine = {room: [did for did in each if did.rank == rank] for (at, room), each in done.items() if at == queue}
    return {room: each[0] for room, each in mine.items() if len(each) == 1 and each[0].took}


def _apart(both: Sequence[int], first: Mapping[int, Did], later: Mapping[int, Did]) -> Sequence[Did]:
    """Return what was done with a request of the newest two batches that has another one beside it on one stage only.

    both: rooms that both stages took on, in the order of the first one.
    """
    newest = sorted({first[room].visit for room in both})[-2:]
    for room, other in pairwise(both):
        together = first[room].visit == first[other].visit
        if first[room].visit in newest and together != (later[room].visit == later[other].visit):
            of_later = replace(later[other], beside=0 if together else room)
            return replace(first[other], beside=room if together else 0), of_later
    return ()


def _passed(took: Mapping[int, Did], lag: int, identity: Identity, one: Recorded) -> Sequence[Did]:
    """Return what was done with a request that a later stage kept in the turn in which it should have taken it on.

    took: what an earlier stage took on, and this one did not. lag: turns that this one is behind. one: its recording.
    """
    queue = next((did.queue for did in took.values()), "")
    stream = one.recording.stream(queue)
    newest = stream.newest if stream is not None and len(stream) else None
    if stream is None or newest is None or newest.phase is not Phase.APPLIED:
        return ()
    kept = {item.room for item in stream.items(newest) or () if item.action == Action.KEPT}
    polled = newest.visit + newest.repeat - 1
    passed = [did for room, did in took.items() if room in kept and did.visit + lag <= polled]
    if not passed:
        return ()
    did = min(passed, key=lambda did: did.visit)
    wall_ns = newest.t_enter + one.recording.start_wall_ns - one.recording.start_mono_ns
    age_s = None if one.now_ns is None else max(0.0, (one.now_ns - newest.t_enter) / 1e9)
    what = int(Action.KEPT)
    return did, Did(identity.label, identity.pp, did.room, what, queue, newest.last, wall_ns, age_s, visit=polled)


def parting(
    members: Sequence[Identity], each: Sequence[Did], unturned_s: float | None, *, ended: bool = False
) -> Finding:
    """Return the finding that these stages parted there. unturned_s: for how long no stage has turned, None unknown.

    each: what they did with one request. ended: whether the process of a stage has ended.
    """
    queue, room = each[0].queue, each[0].room
    took = next(did for did in each if did.took)
    other = next(did for did in each if did.stage != took.stage and (did.failed or len(each) == 2))
    since = f" for {seconds(unturned_s)}" if unturned_s is not None else ""
    return finding(
        "PD115",
        f"Stages of {members[0].role} dp{members[0].dp} parted at room {room}: {took.words} of {queue}, {other.words}."
        f" {'A stage has ended since' if ended else f'No stage has turned{since}'}.",
        rooms=(room,),
        ranks=tuple(one.label for one in members),
        units=(one.unit for one in members),
        evidence=tuple(
            f"{did.words} of {queue}" + (f", {seconds(did.age_s)} ago" if did.age_s is not None else "")
            for did in sorted(each, key=lambda did: did.wall_ns)
        ),
    )


def _parted(each: Sequence[Did]) -> bool:
    took = {did.stage for did in each if did.took}
    return bool(took) and bool({did.stage for did in each if did.failed} - took)


def _done(who: Identity, one: Recorded) -> Iterable[Did]:
    """Yield what a rank did with each room that has left a polled queue of it lately."""
    recording, wall = one.recording, one.recording.start_wall_ns - one.recording.start_mono_ns
    left = []
    for queue in POLLED_QUEUES:
        stream = recording.stream(queue)
        if stream is None:
            continue
        for row in range(max(stream.tail, len(stream) - MOST_RUNS), len(stream)):
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
        yield Did(who.label, who.pp, room, action, queue, run.last, run.t_done + wall, age_s, reason, run.visit)
