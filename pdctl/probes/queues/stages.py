"""Compares the stages of a pipeline: what each did with a request. Pure.

Stages poll for themselves, so their rounds have no numbers in common, and a later one is legally behind, always as many turns.
What a request came to must be the same on all, and a stage lets go what the others have let go, in the same turn of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from pdctl.probes import parting
from pdctl.probes.parting import PARTS, Did, Done, Recorded
from pdctl.probes.queues.formatting import ACTIONS
from pdctl.probes.queues.model import GroupReport, QueueRow, RankView, RoomSide, RoomSplit
from pdctl.probes.queues.now import age_of, length_of, now
from pdctl.probes.queues.waits import kept_waiting, late_finding
from pdctl.probes.standing import STANDS_S, in_a_forward
from pdctl.probes.turns import STOOD_S, Loop
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import POLLED_QUEUES, QUEUES
from pdctl.protocol.versions import within
from pdctl.report.findings import Finding, catalogue, finding
from pdctl.targets.servers import told_apart

KEPT_S, KEPT_ROUNDS = 10.0, 50
"""For how long, and in how many rounds, a stage must have kept a request that another has let go: a lag is none."""
BLOCKED_S = 1.0
"""For how long all ranks must wait, each at one place, until stages that parted go no further. A message takes less."""


@dataclass(frozen=True)
class Kept:
    """A request that one stage has in a queue out of which another one has let it go. did: when and how."""

    view: RankView
    queue: str
    room: int
    rid: str
    did: Did

    @property
    def words(self) -> str:
        """Return ``room 6 is in prefill.bootstrap of pp1 only: prefill dp0 pp0 tp0 failed it in round 25, 34.0 s ago``."""
        ago = f", {seconds(self.did.age_s)} ago" if self.did.age_s is not None else ""
        return f"room {self.room} is in {self.queue} of pp{self.view.identity.pp} only: {self.did.words}{ago}"

    @property
    def finding(self) -> Finding:
        """Return the finding that this stage keeps it."""
        one = self.view.identity
        rid = f" (rid {self.rid})" if self.rid else ""
        drains = one.engine == "sglang" and within(one.engine_version, catalogue()["PD152"].affects) is False
        return finding(
            "PD152" if one.role == "prefill" and one.pp > 0 and self.did.failed and not drains else "PD116",
            f"room {self.room}{rid} is in {self.queue} of {one.label}; {self.did.words}",
            rooms=(self.room,),
            ranks=(one.label,),
            evidence=(self.words,),
            units=(one.unit,),
        )


def pipelines(views: Sequence[RankView], *, stalled_s: float) -> Iterator[tuple[GroupReport, list[Finding]]]:
    """Yield a report and its findings for each pipeline."""
    for title, members in pipelines_of(views):
        yield _pipeline(title, members, stalled_s)


def pipelines_of(views: Sequence[RankView]) -> Iterator[tuple[str, list[RankView]]]:
    """Yield the title and the members of each pipeline: the stages of one dp rank of a server."""
    of_unit: dict[str, list[RankView]] = {}
    for view in views:
        if view.identity.pp_size > 1:
            of_unit.setdefault(f"{view.identity.cluster} {view.identity.unit}", []).append(view)
    units = [sorted(members, key=lambda view: view.identity.pp) for members in of_unit.values()]
    names = [f"{one.role} dp{one.dp}" for one in (members[0].identity for members in units)]
    apart = told_apart([members[0].identity for members in units], names)
    for members, name, server in zip(units, names, apart, strict=True):
        title = f"{name} · pipeline of {members[0].identity.pp_size} stages" + (f" · {server}" if server else "")
        yield title, members


def _pipeline(title: str, members: Sequence[RankView], stalled_s: float) -> tuple[GroupReport, list[Finding]]:
    one = members[0].identity
    stages = {pp: list(those) for pp, those in groupby(members, key=lambda view: view.identity.pp)}
    recorded = [(v.identity, Recorded(v.recording, v.now_ns)) for v in members if v.recording is not None]
    done = parting.done_by(recorded)
    each = parting.parted(done)
    if not each and not any(view.turn is not None and parting.held(view.turn) for view in members):
        each = parting.of_other_batches(done, recorded)
    if each and not _stands_since(members, each):
        each = ()
    kept = _kept(members, done)
    ranks = {_name(view): view for view in members}
    wait = kept_waiting(ranks, stalled_s)
    findings = [one.finding for one in kept]
    if each:
        ages = [age for view in members if (age := age_of(view)) is not None]
        findings.append(parting.parting([view.identity for view in members], each, min(ages, default=None)))
    if wait.late:
        findings.append(late_finding(wait, ranks, title))
    alike = _alike(done, one.pp_size)
    lacks = _lacks(stages, one.pp_size)
    if each:
        verdict = "DIVERGED"
    elif wait.late or any(view.stands for view in members):
        verdict = "WAITING"
    else:
        verdict = "KEPT" if kept else "UNKNOWN" if lacks or not alike else "AGREE"
    return GroupReport(
        title=title,
        ranks=tuple(f"pp{pp}" for pp in range(one.pp_size)),
        verdict=verdict,
        queue=each[0].queue if each else "",
        age_s=max((did.age_s for did in each if did.age_s is not None), default=None),
        queues=tuple(_rows(stages, one.pp_size, alike, kept)),
        splits=(_split(each),) if each else (),
        leaders=wait.waiting,
        stragglers=wait.late,
        now=tuple(now(_name(view), view) for view in members),
        compared=alike,
        kind="stages",
        said=_said(alike, lacks),
        role=one.role,
        cluster=one.cluster,
    ), findings


def _name(view: RankView) -> str:
    one = view.identity
    return f"pp{one.pp}" + (f" tp{one.tp}" if one.tp_size > 1 else "") + (f" cp{one.cp}" if one.cp_size > 1 else "")


def _stands_since(members: Sequence[RankView], did: Sequence[Did]) -> bool:
    """Return whether no stage has gone on since they parted. Else the request is over, whatever each stage made of it."""
    if any(view.turn is not None and view.turn.turned for view in members):
        return False
    if any(view.stands for view in members):
        return True
    ages = [age_of(view) for view in members if view.recording is not None]
    since = [one.age_s for one in did]
    if None in ages or None in since:
        return False
    known, parted_s = [age for age in ages if age is not None], min(age for age in since if age is not None)
    if _blocked(members) and all(age >= parted_s - STOOD_S for age in known):
        return True  # by the turns in which they acted it is no lag, nobody computes, and no turn has begun since
    return min(known) >= STANDS_S and all(age >= parted_s - STANDS_S for age in known)


def _blocked(members: Sequence[RankView]) -> bool:
    """Return whether all these ranks wait, each at one place in several looks, and no collective of a forward can end."""
    turns = [view.turn for view in members]
    if len({view.identity.pp for view in members}) < members[0].identity.pp_size:
        return False
    if not all(
        turn is not None and turn.waiting and turn.turned is False and turn.stood_s >= BLOCKED_S for turn in turns
    ):
        return False
    loops = [Loop(view.identity, view.turn) for view in members if view.turn is not None]
    return not in_a_forward(loops, range(len(loops)))


def _kept(members: Sequence[RankView], done: Done) -> list[Kept]:
    """Return the requests that a stage still has though another let them go long before, while both went on."""
    if not all(view.turn is not None and view.turn.turned for view in members):
        return []
    there = [(view, rooms) for view in members if (rooms := _rooms(view)) is not None]
    found: dict[tuple[int, str, int], Kept] = {}  # once for the ranks of a stage
    for (queue, room), each in done.items():
        has = {view.identity.label: rooms.get(room, {}) for view, rooms in there}
        gone = [
            did for did in each if did.rank in has and not (has[did.rank] if did.failed else queue in has[did.rank])
        ]
        last = max(gone, key=lambda did: did.wall_ns, default=None)
        if queue not in PARTS or last is None or not _went_on(members, last):
            continue
        for view, _ in there:
            rid = has[view.identity.label].get(queue)
            if rid is not None and view.identity.pp != last.stage and _still_polls(view, last):
                found.setdefault((view.identity.pp, queue, room), Kept(view, queue, room, rid, last))
    return list(found.values())


def _went_on(members: Sequence[RankView], did: Did) -> bool:
    """Return whether the rank that let a request go has come to that queue so often since that no other can be behind it."""
    view = next(view for view in members if view.identity.label == did.rank)
    visits = view.recording.visits.get(did.queue) if view.recording is not None else None
    return visits is not None and visits.count - did.visit >= KEPT_ROUNDS


def _rooms(view: RankView) -> dict[int, dict[str, str]] | None:
    """Return room → queue → id of the request, of all that a rank has; None where that is not known."""
    if view.snapshot is None:
        return None
    found: dict[int, dict[str, str]] = {}
    for queue, entries in view.snapshot.queues.items():
        for entry in entries:
            found.setdefault(entry.room, {}).setdefault(queue, entry.rid)
    return found


def _still_polls(view: RankView, did: Did) -> bool:
    """Return whether a rank's list of a queue has been the same for KEPT_ROUNDS, the last of them KEPT_S after ``did``."""
    stream = view.recording.stream(did.queue) if view.recording is not None else None
    if view.recording is None or stream is None or stream.newest.repeat < KEPT_ROUNDS:
        return False
    entered_ns = stream.newest.t_enter + view.recording.start_wall_ns - view.recording.start_mono_ns
    return entered_ns >= did.wall_ns + KEPT_S * 1e9


def _alike(done: Done, size: int) -> dict[str, int]:
    """Return how many rooms left each queue on every stage: with those that parted they are what was compared."""
    found: dict[str, int] = {}
    for (queue, _), each in done.items():
        if len({did.stage for did in each}) == size:
            found[queue] = found.get(queue, 0) + 1
    return {queue: found[queue] for queue in POLLED_QUEUES if queue in found}


def _lacks(stages: Mapping[int, Sequence[RankView]], size: int) -> str:
    """Return why what there is can't be of all stages, "" where it is."""
    members = [view for those in stages.values() for view in those]
    if len(stages) < size or not all(view.answers for view in members):
        return "not every stage was heard"
    return "" if all(view.recording is not None for view in members) else "not every stage has a recording"


def _said(alike: Mapping[str, int], lacks: str) -> str:
    many = sum(alike.values())
    what = (
        f"what became of requests on every stage, {many:,} times, and which it took on together"
        if many
        else "nothing, since the recordings have no request that left a queue of every stage"
    )
    return f"compared: {'; '.join(filter(None, (what, lacks)))}. Not compared: what stages send each other"


def _rows(
    stages: dict[int, list[RankView]], size: int, alike: dict[str, int], kept: Sequence[Kept]
) -> Iterator[QueueRow]:
    for queue in QUEUES:
        lengths = tuple(_length(stages.get(pp, ()), queue) for pp in range(size))
        here = [one for one in kept if one.queue == queue]
        if not any(lengths) and queue not in alike:
            continue
        if here:
            more = f"; {len(here) - 1} more" if len(here) > 1 else ""
            yield QueueRow(queue, lengths, "kept", here[0].words + more)
        elif queue in alike:
            many = alike[queue]
            yield QueueRow(queue, lengths, "alike", f"{many:,} request{'s'[: many != 1]} left it on every stage")
        else:
            yield QueueRow(queue, lengths, "not polled")


def _length(those: Sequence[RankView], queue: str) -> int | None:
    known = [length for view in those if (length := length_of(view, queue)) is not None]
    return max(known, default=None)


def _split(each: Sequence[Did]) -> RoomSplit:
    sides = {did.stage: RoomSide(f"pp{did.stage}", ACTIONS[did.action], where=did.queue) for did in each}
    return RoomSplit(each[0].room, "", tuple(sides[stage] for stage in sorted(sides)))
