"""One look and the last whole check, as one state of ranks, groups and findings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import msgspec

from pdctl.probes.queues.groups import groups_of
from pdctl.probes.queues.lockstep import locksteps_of
from pdctl.probes.queues.model import WELL, GroupReport, QueuesDocument, RankView
from pdctl.probes.queues.now import age_of, length_of
from pdctl.probes.queues.stages import pipelines_of
from pdctl.probes.ranks.judge import row
from pdctl.protocol.model import QUEUES, KVPoll, Status, poll_name
from pdctl.protocol.rank import Answer, FoundRank
from pdctl.protocol.requests import Space
from pdctl.report.causes import connect
from pdctl.report.findings import Finding, Level
from pdctl.targets.servers import process_key
from pdctl.watch.checking import Checked
from pdctl.watch.model import GroupState, RankState

STANDS_S = (3.0, 6.0, 12.0, 24.0)
"""Ages of a turn at which everything is checked at once."""
STOPPED = ("T", "t")
"""States in ``/proc`` of a process that is stopped, or traced."""
_POLLS = frozenset(KVPoll)
PARTED = ("PD101", "PD103", "PD104", "PD105", "PD106", "PD107", "PD108", "PD115")
"""Findings that ranks of a group have parted: of one group there is one."""
NOT_READ = "its recording is not read in a look"
"""Of a rank on another host: that is no problem, the check reads it."""
MOVES_ON = ("PD110", "PD111", "PD114")
"""Findings of ranks that do not go on: over when their loops have turned since."""


@dataclass(frozen=True)
class Look:
    """What a look saw. at: seconds, on the monotonic clock. answers: to ``status``, without body and reason if not asked.

    parted: what looks have found of groups, each with the monotonic ns at which it was seen last: it stands until a whole check
    that began later does not find it. gated: process and room → since when only the gate has been seen to hold it.
    """

    at: float = 0.0
    ranks: tuple[FoundRank, ...] = ()
    answers: tuple[Answer[Status], ...] = ()
    views: tuple[RankView, ...] = ()
    document: QueuesDocument = field(default_factory=lambda: QueuesDocument(groups=()))
    problems: tuple[str, ...] = ()
    parted: tuple[tuple[int, Finding], ...] = ()
    gated: dict[tuple[str, int], float] = field(default_factory=dict)


class State(NamedTuple):
    """The parts of a :class:`.model.WatchState`."""

    ranks: tuple[RankState, ...]
    groups: tuple[GroupState, ...]
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]


# ---- when everything has to be checked at once ---------------------------------------------------------------------------


def suspicions(look: Look, before: Look) -> bool:
    """Return whether a look saw what the one before it did not: a finding, a rank gone or silent, or a loop that stands."""
    stood = _stands(before)
    return (
        _alarms(look) != _alarms(before)
        or _states(look) != _states(before)
        or any(often > stood.get(key, 0) for key, often in _stands(look).items())
        or (_uneven(look) and _uneven(before) and _rounds(look) == _rounds(before))
    )


def _alarms(look: Look) -> set[tuple[str, str, tuple[str, ...]]]:
    return {_about(found) for found in look.document.findings if found.level is not Level.INFO}


def _about(found: Finding) -> tuple[str, str, tuple[str, ...]]:
    """Return the code, the group, and the servers' starts: a group of the same name may be another server's by now."""
    return found.code, found.group, found.units


def _states(look: Look) -> set[tuple[str, str, bool, bool]]:
    return {
        (process_key(rank.identity), rank.state, bool(answer.silence), rank.process.state in STOPPED)
        for rank, answer in zip(look.ranks, look.answers, strict=True)
    }


def _stands(look: Look) -> dict[str, int]:
    """Return for each rank how many of STANDS_S its last turn is old."""
    ages = {process_key(view.identity): age_of(view) for view in look.views if not view.ended}
    return {key: sum(age >= least for least in STANDS_S) for key, age in ages.items() if age is not None}


def _rounds(look: Look) -> dict[str, dict[str, int]]:
    """Return what live ranks whose recordings are not read say of their rounds."""
    return {
        process_key(view.identity): view.status.rounds
        for view in look.views
        if view.status is not None and view.recording is None
    }


def _uneven(look: Look) -> bool:
    rounds = _rounds(look)
    for group in groups_of(look.views):
        said = [
            {name: number for name, number in rounds[key].items() if name.endswith(f"/{group.info.kind}")}
            for view in group.known
            if (key := process_key(view.identity)) in rounds
        ]
        if any(one != said[0] for one in said[1:]):
            return True
    return False


# ---- one state ---------------------------------------------------------------------------------------------------------


def merged(look: Look, before: Look, last: Checked, now: Checked | None) -> tuple[Look, State]:
    """Return the look with what still stands of earlier ones, and the state of everything. now: a check that is under way."""
    now_ns = int(look.at * 1e9)
    seen = {_about(found): found for found in look.document.findings}
    stands = {_about(found): (at, found) for at, found in before.parted if not (last.ended_ns and last.began_ns > at)}
    stands |= {key: (now_ns, found) for key, found in seen.items() if found.code in PARTED}
    gated = {key: before.gated.get(key, look.at) for view in look.views for key in _gated(view)}
    look = replace(look, parted=tuple(stands.values()), gated=gated)
    here, checked = _Members(look.views), _Members(last.views)
    findings = connect(tuple(_findings(look, here, [found for _, found in stands.values()], last, now)))
    shown = _groups(look, here, last, checked)
    return look, State(
        ranks=tuple(_ranks(look, last)),
        groups=shown,
        findings=findings,
        problems=(*look.problems, *last.problems, *(() if _elsewhere(look) else look.document.problems)),
    )


def _elsewhere(look: Look) -> bool:
    return any(view.recording_off == NOT_READ for view in look.views)


class _Members:
    """The members of groups and the ranks among some views, each sorted out once and only where it is asked for."""

    def __init__(self, views: Sequence[RankView]) -> None:
        self._views = views

    def of(self, title: str, kind: str = "polls") -> list[RankView]:
        """Return the members of the group of this title, none where there is no such group."""
        return self._titles.get(kind, {}).get(title, [])

    def called(self, label: str) -> list[RankView]:
        """Return the ranks of this label."""
        return self._labels.get(label, [])

    @cached_property
    def _titles(self) -> dict[str, dict[str, list[RankView]]]:
        groups = [(group.title, group.known) for group in groups_of(self._views)]
        kinds = {"polls": groups, "stages": pipelines_of(self._views), "lockstep": locksteps_of(self._views)}
        found: dict[str, dict[str, list[RankView]]] = {}
        for kind, named in kinds.items():
            for title, members in named:
                found.setdefault(kind, {}).setdefault(title, members)  # of several of a title the first
        return found

    @cached_property
    def _labels(self) -> dict[str, list[RankView]]:
        found: dict[str, list[RankView]] = {}
        for view in self._views:
            found.setdefault(view.identity.label, []).append(view)
        return found


def _findings(
    look: Look, here: _Members, parted: Sequence[Finding], last: Checked, now: Checked | None
) -> Iterator[Finding]:
    """Yield what is found now. Of a group that has parted the check knows the most: it asks its ranks, too."""
    done = {one.name: (one, last.begun.get(one.name, last.began_ns)) for one in last.outcomes}
    if now is not None:  # what its stages have found already is newer
        done |= {one.name: (one, now.began_ns) for one in now.outcomes}
    checked = [
        found for one, began_ns in done.values() for found in one.findings if not _over(found, look, here, began_ns)
    ]
    told = {_about(found)[1:] for found in checked if found.code in PARTED}
    yield from checked
    for found in (*look.document.findings, *parted):
        if not (found.code in PARTED and _about(found)[1:] in told):
            yield found


def _over(found: Finding, look: Look, here: _Members, since_ns: int) -> bool:
    """Return whether this look contradicts what a check found that began at ``since_ns``: all its loops have turned since."""
    if found.code not in MOVES_ON:
        return False
    meant = [view for label in found.ranks for view in here.called(label)] or here.of(found.group)
    return bool(meant) and all(_turned(view, look.at, since_ns) for view in meant)


def _turned(view: RankView, at: float, since_ns: int) -> bool:
    age_s = age_of(view)
    return not view.ended and age_s is not None and at - age_s > since_ns / 1e9


def _groups(look: Look, here: _Members, last: Checked, checked_then: _Members) -> tuple[GroupState, ...]:
    """Return the groups as this look saw them, those whose rounds are not read in a look as the last check did."""
    checked = {report.title: report for report in last.groups}
    own = look.document.groups
    members = here if own else checked_then
    found = []
    for report in own or last.groups:
        other = checked.get(report.title)
        stale = report.verdict in ("UNKNOWN", *WELL) and other is not None
        chosen = other if stale and other is not None and _says_more(report, other, here) else report
        those = members.of(chosen.title, chosen.kind)
        state = _group(chosen, those)
        if state.verdict == "AGREE" and any(map(_gated, those)):
            state = msgspec.structs.replace(state, verdict="HELD")
        found.append(state)
    return tuple(found)


def _says_more(report: GroupReport, checked: GroupReport, here: _Members) -> bool:
    """Return whether the last check tells more of a group: its rounds, or that its loops stand and have not turned since."""
    if report.verdict == "UNKNOWN":
        return checked.verdict != "UNKNOWN"
    return checked.verdict == "WAITING" and any(
        (age := age_of(view)) is not None and age >= STANDS_S[0] for view in here.of(report.title, report.kind)
    )


def _group(report: GroupReport, members: Sequence[RankView]) -> GroupState:
    services = {view.identity.service for view in members}
    rounds: dict[str, int] = {}
    for view in members:
        for stream in view.recording.streams if view.recording is not None else ():
            if len(stream):
                rounds[stream.queue] = max(rounds.get(stream.queue, -1), stream.last)
        for name, number in view.status.rounds.items() if view.status is not None else ():
            queue = name.partition("/")[0]
            rounds[queue] = max(rounds.get(queue, -1), number)
    return GroupState(
        title=report.title,
        kind=report.kind,
        verdict=report.verdict,
        role=report.role,
        cluster=report.cluster,
        service=services.pop() if len(services) == 1 else "",
        ranks=tuple(view.identity.label for view in members),
        queue=report.queue,
        round=report.round,
        age_s=report.age_s,
        rounds={queue: number for queue, number in rounds.items() if number >= 0},
    )


def _ranks(look: Look, last: Checked) -> Iterator[RankState]:
    there = set()
    for rank, answer, view in zip(look.ranks, look.answers, look.views, strict=True):
        key = process_key(rank.identity)
        there.add(key)
        yield _rank(answer, view, last.spaces.get(key), look.at, look.gated)
    agentless = {process_key(one.identity): one for one in last.found.ranks} if last.found is not None else {}
    for view in last.views:  # only a check knows of ranks without an agent
        key = process_key(view.identity)
        if view.state == "outside" and key not in there and key in agentless:
            yield _rank(
                Answer(agentless[key], view.status), replace(view, snapshot=None), last.spaces.get(key), look.at, {}
            )


def _rank(
    answer: Answer[Status], view: RankView, space: Space | None, at: float, gated: dict[tuple[str, int], float]
) -> RankState:
    said = row(
        answer,
        view.recording,
        (view.recording.start_wall_ns - view.recording.start_mono_ns + view.now_ns)
        if view.recording is not None and view.now_ns is not None
        else 0,
    )
    state = said.state
    if state == "silent" and not answer.silence and not answer.reason:  # nobody asked it
        state = "live"
    queues = {queue: length for queue in QUEUES if (length := length_of(view, queue)) is not None}
    entries = view.snapshot.queues if view.snapshot is not None else {}
    ages = {queue: max((one.age for one in those), default=-1.0) for queue, those in entries.items()}
    held = [at - gated[key] for key in _gated(view)]
    states = {
        queue: dict(Counter(poll_name(one.state) for one in entries.get(queue, ()) if one.state in _POLLS))
        for queue in queues
    }
    status = view.status
    used = len(view.snapshot.slots) if view.snapshot is not None else None
    if used is None and space is not None and space.slots >= 0 and space.slots_free >= 0:
        used = space.slots - space.slots_free
    return RankState(
        rank=said.rank,
        role=said.role,
        state=state,
        cluster=said.cluster,
        service=said.service,
        instance=said.instance,
        reason=said.reason,
        where=said.where,
        ticks=said.ticks,
        tick_age_s=said.tick_age_s,
        rounds=said.rounds,
        queues=queues,
        states={queue: counts for queue, counts in states.items() if counts},
        oldest_s={queue: age for queue, age in ages.items() if age >= 0},
        slots=space.slots if space is not None and space.slots >= 0 else None,
        slots_used=used,
        gated=None if view.snapshot is None else len(held),
        gated_s=max(held, default=None),
        faults=sum(not fault.ended for fault in status.faults) if status is not None else None,
        agent_cpu_s=said.agent_cpu_s,
        host=answer.rank.host,
    )


def _gated(view: RankView) -> list[tuple[str, int]]:
    """Return the requests of a rank whose own poll says Success while their slot does not have their metadata."""
    if view.snapshot is None:
        return []
    key, found = process_key(view.identity), {one.expected: one.found for one in view.snapshot.slots}
    entries = view.snapshot.queues.get("decode.transfer", ())
    return [(key, one.room) for one in entries if one.state == KVPoll.SUCCESS and found.get(one.room, one.room) == 0]
