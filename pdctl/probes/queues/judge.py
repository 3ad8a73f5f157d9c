"""Judges the queues of every group: views of ranks in, groups and findings out. Pure.

Ranks are compared within one process group of one start of one server, over the rounds they recorded. Where there are no
rounds, snapshots are compared, and a difference counts only after it has lasted (:func:`unconfirmed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pdctl.probes.queues import STALLED_S, explain, formatting
from pdctl.probes.queues.compare import Difference, Polled, compare
from pdctl.probes.queues.gate import Held, holding
from pdctl.probes.queues.groups import Group, groups_of
from pdctl.probes.queues.holds import held_findings
from pdctl.probes.queues.lockstep import locksteps
from pdctl.probes.queues.model import WELL, GroupReport, QueueRow, QueuesDocument, RankNow, RankView, RoomSplit
from pdctl.probes.queues.now import length_of, now
from pdctl.probes.queues.pairing import pairing
from pdctl.probes.queues.stages import pipelines
from pdctl.probes.queues.waits import kept_waiting
from pdctl.probes.turns import STOOD_S
from pdctl.protocol.model import COMPARED_QUEUES, POLLED_QUEUES, QUEUES, Phase
from pdctl.recording.requests import last_sign_ns
from pdctl.report.findings import Finding, finding

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording
    from pdctl.recording.streams import Stream


def judge(
    views: Sequence[RankView], *, stalled_s: float = STALLED_S, confirmed: bool = True, holds: bool = True
) -> QueuesDocument:
    """Return the document of these views. confirmed: differences of snapshots have lasted (see :func:`unconfirmed`).

    holds: also look at what the gate has held, which takes most of the time where ranks agree.
    """
    reports, findings, problems = [], [], []
    for view in views:
        if view.silence:
            problems.append(f"{view.identity.label}: {view.silence}")
        elif view.recording is None and view.identity.groups:
            problems.append(f"{view.identity.label}: no rounds, {view.recording_off or 'no recording'}")
        if failed := _distrusted(view):
            problems.append(f"{view.identity.label}: pdctl's hooks failed at {', '.join(failed)}: rounds not compared")
        problems += [
            f"{view.identity.label}: recording: {p}" for p in (view.recording.problems if view.recording else [])
        ]
    for group in groups_of(views):
        report, found = _group(group, stalled_s, confirmed, views, holds=holds)
        reports.append(report)
        findings += found
        problems += [f"{report.title}: {note}" for note in report.notes]
    for report, found in (*pipelines(views, stalled_s=stalled_s), *locksteps(views, stalled_s=stalled_s)):
        reports.append(report)
        findings += found
    return QueuesDocument(
        groups=tuple(reports), findings=tuple(findings), partial=bool(problems), problems=tuple(problems)
    )


def unconfirmed(views: Sequence[RankView], before: Sequence[RankView] | None = None) -> bool:
    """Return whether a group without rounds shows a difference that has to be looked at again.

    before: the views of an earlier look; then only a difference that is still the same is one.
    """
    last = {group.info.key: _snapshot_lists(group) for group in groups_of(views) if _without_rounds(group)}
    then = last if before is None else {g.info.key: _snapshot_lists(g) for g in groups_of(before) if _without_rounds(g)}
    return any(len(set(lists.values())) > 1 and then.get(key) == lists for key, lists in last.items())


def _without_rounds(group: Group) -> bool:
    return (
        sum(view.recording is not None for view in group.known) < 2 <= sum(v.snapshot is not None for v in group.known)
    )


def _snapshot_lists(group: Group) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {
        view.place: tuple(tuple(e.room for e in view.snapshot.queues.get(q, [])) for q in POLLED_QUEUES)
        for view in group.known
        if view.snapshot is not None
    }


def _distrusted(view: RankView) -> list[str]:
    """Return the hooks of rounds that failed in this rank: it may have recorded fewer rounds than there were."""
    if view.status is None:
        return []
    failed = {*view.status.hooks_removed, *(name for name in view.status.hook_errors if name == "collective")}
    return sorted(name for name in failed if name in ("collective", "poll") or name.startswith("rounds."))


def has_rounds(view: RankView) -> bool:
    """Return whether a rank has rounds that can be compared."""
    return view.recording is not None and not _distrusted(view)


# ---- one group --------------------------------------------------------------------------------------------------------


def _group(
    group: Group, stalled_s: float, confirmed: bool, views: Sequence[RankView], *, holds: bool
) -> tuple[GroupReport, list[Finding]]:
    group.judged = [n for n, view in enumerate(group.members) if view is not None and has_rounds(view)]
    recordings = [recording for _, recording in _recorded(group)]
    queues = [q for q in COMPARED_QUEUES if any(r.stream(q, group.info.kind) for r in recordings)]
    if len(group.judged) > 1:
        for queue in queues:
            group.comparisons[queue] = compare(
                [Polled(r.stream(queue, group.info.kind), r.visits.get(queue)) for r in recordings]
            )
    notes = [f"{queue}: {comparison.gap}" for queue, comparison in group.comparisons.items() if comparison.gap]
    if group.info.size > 1 and len(group.known) > 1 and len(group.judged) < 2 and not _without_rounds(group):
        notes.append("fewer than two ranks have rounds or answer: nothing to compare")
    first = _first(group)
    held = {q: holding(_named_streams(group, q)) for q in queues if holds and q == "decode.transfer"}
    findings: list[Finding] = []
    splits: tuple[RoomSplit, ...] = ()
    age = None
    if first is not None:
        queue, difference = first
        splits = explain.splits(group, queue, difference)
        findings.append(explain.difference(group, queue, difference, splits))
        age = _age(group, difference)
    else:
        findings += held_findings(group, held, views)
        findings += _waiting(group, stalled_s)
        if confirmed:
            findings += _by_snapshots(group)
    verdict = _verdict(group, first, held, findings)
    # At any look one rank of a group is a moment ahead of another: that tells nothing.
    leaders, stragglers = _ahead(group) if verdict in ("DIVERGED", "WAITING") else ((), ())
    return GroupReport(
        title=group.title,
        ranks=tuple(group.place(n) for n in range(group.info.size)),
        verdict=verdict,
        queue=first[0] if first else "",
        round=first[1].ordinal if first else -1,
        age_s=age,
        queues=tuple(_rows(group, first, held, splits)),
        splits=splits,
        leaders=leaders,
        stragglers=stragglers,
        now=tuple(_now(group, splits)),
        pairing=() if verdict in WELL else pairing(group.info, _by_name(group)),
        compared={q: c.last - c.first + 1 for q, c in group.comparisons.items() if c.last >= c.first},
        notes=tuple(notes),
        said="one rank, nothing to compare" if group.info.size == 1 else "",
        role=group.known[0].identity.role,
        cluster=group.known[0].identity.cluster,
    ), findings


def _recorded(group: Group) -> Iterator[tuple[str, Recording]]:
    """Yield the name and the recording of each member with rounds."""
    for n in group.judged:
        view = group.members[n]
        if view is not None and view.recording is not None:
            yield group.place(n), view.recording


def _named_streams(group: Group, queue: str) -> list[tuple[str, Stream]]:
    each = ((name, recording.stream(queue, group.info.kind)) for name, recording in _recorded(group))
    return [(name, stream) for name, stream in each if stream is not None]


def _first(group: Group) -> tuple[str, Difference] | None:
    """Return the difference that came first in time: the others follow from it."""
    found = [(queue, c.difference) for queue, c in group.comparisons.items() if c.difference is not None]
    return min(found, key=lambda pair: _when(pair[1]), default=None)


def _when(difference: Difference) -> int:
    return min(
        (run.t_enter if run.repeat == 1 else run.t_first for run in difference.runs if run is not None), default=0
    )


def _age(group: Group, difference: Difference) -> float | None:
    clock = _clock(group)
    return None if clock is None else max(0.0, (clock - _when(difference)) / 1e9)


def _clock(group: Group) -> int | None:
    clocks = [view.now_ns for view in group.known if view.now_ns is not None]
    return max(clocks) if clocks else None


def _last_sign(group: Group) -> int | None:
    """Return when a group that is dead last wrote anything: that nobody has entered a round since then tells nothing."""
    return max((last_sign_ns(view.recording) for view in group.known if view.recording is not None), default=None)


def _ahead(group: Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return who has entered a round that others of the group have not, and those others."""
    for comparison in group.comparisons.values():
        if comparison.waiting:
            ahead = set(comparison.waiting)
            names = [group.place(n) for n in group.judged]
            return (
                tuple(name for n, name in enumerate(names) if n in ahead),
                tuple(name for n, name in enumerate(names) if n not in ahead),
            )
    return (), ()


def _waiting(group: Group, stalled_s: float) -> list[Finding]:
    clock = _clock(group) if any(not view.ended for view in group.known) else _last_sign(group)
    leaders, stragglers = _ahead(group)
    if not leaders or clock is None:
        return _waiting_for_the_silent(group, stalled_s, clock) or _waiting_elsewhere(group, stalled_s)
    since = [
        s.newest.t_enter
        for name, recording in _recorded(group)
        for s in recording.streams
        if name in leaders and len(s) and s.newest.phase is Phase.ENTERED
    ]
    waited = (clock - max(since)) / 1e9 if since else 0.0
    if waited < stalled_s:
        return []
    return [_late(group, leaders, stragglers, waited)]


def _waiting_for_the_silent(group: Group, stalled_s: float, clock: int | None) -> list[Finding]:
    """One rank alone has rounds, sits in a collective, and the rest of its group says nothing."""
    silent = [
        group.place(n) for n, view in enumerate(group.members) if n not in group.judged and (not view or view.silence)
    ]
    if clock is None or not silent:
        return []
    entered = [
        (s.newest.t_enter, name)
        for name, recording in _recorded(group)
        for s in recording.streams
        if s.group.size > 1 and len(s) and s.newest.phase is Phase.ENTERED
    ]
    if not entered or (clock - max(entered)[0]) / 1e9 < stalled_s:
        return []
    return [_late(group, tuple(name for _, name in entered), tuple(silent), (clock - max(entered)[0]) / 1e9)]


def _waiting_elsewhere(group: Group, stalled_s: float) -> list[Finding]:
    """Ranks wait for another one in a collective that is no round, as one of the model."""
    if group.info.size < 2 or len(group.known) < group.info.size:
        return []
    members = _by_name(group)
    wait = kept_waiting(members, stalled_s)
    stood = [turn.stood_s for name in wait.waiting if (turn := members[name].turn) is not None]
    if not stood or min(stood) < STOOD_S:  # a turn that began long ago may have waited for an instant only
        return []
    return [_late(group, wait.waiting, wait.late, wait.waited_s)]


def _late(group: Group, leaders: tuple[str, ...], late: tuple[str, ...], waited: float) -> Finding:
    states = {group.place(n): _state(view) for n, view in enumerate(group.members)}
    ended = {group.place(n) for n, view in enumerate(group.members) if view is not None and view.ended}
    ahead, behind = formatting.names(leaders), formatting.names(late)
    summary = f"{ahead} {formatting.has(leaders)} waited {waited:.0f} s for {behind}"
    if ended.issuperset(leaders):  # and it is not known when
        summary = f"{ahead} waited for {behind}, for {waited:.0f} s at most, and ended"
    evidence = tuple(f"{name}: {states[name]}" for name in late if states.get(name))
    units = (group.known[0].identity.unit,)
    return finding("PD110", summary, group=group.title, ranks=late, evidence=evidence, units=units)


def _state(view: RankView | None) -> str:
    if view is None:
        return "nothing is known of it"
    return view.silence or formatting.doing(view)


def _by_snapshots(group: Group) -> list[Finding]:
    if not _without_rounds(group):
        return []
    lists = _snapshot_lists(group)
    if len(set(lists.values())) < 2:
        return []
    lines = []
    for number, queue in enumerate(POLLED_QUEUES):
        rooms = {name: lists[name][number] for name in lists}
        if len(set(rooms.values())) > 1:
            lines.append(f"{queue}: " + ", ".join(f"{name} has {formatting.rooms(r)}" for name, r in rooms.items()))
    units = (group.known[0].identity.unit,)
    return [
        finding("PD111", "; ".join(lines), group=group.title, ranks=tuple(lists), evidence=tuple(lines), units=units)
    ]


# ---- how it is shown ---------------------------------------------------------------------------------------------------


def _verdict(
    group: Group, first: tuple[str, Difference] | None, held: dict[str, list[Held]], findings: list[Finding]
) -> str:
    if first is not None:
        return "DIVERGED"
    codes = {f.code for f in findings}
    if "PD110" in codes or any(view.stands for view in group.known):
        return "WAITING"
    if "PD111" in codes:
        return "SKEWED"
    not_compared = any(comparison.gap for comparison in group.comparisons.values())
    if (group.info.size > 1 and len(group.judged) < 2) or not_compared or _unheard(group):
        return "UNKNOWN"
    if any(h.now for hs in held.values() for h in hs):
        return "HELD"
    return "AGREE" if group.info.size > 1 else "ALONE"


def _unheard(group: Group) -> list[str]:
    """Return the members that were not heard: what they have done since nobody knows."""
    return [group.place(n) for n, view in enumerate(group.members) if view is None or not view.answers]


def _rows(
    group: Group,
    first: tuple[str, Difference] | None,
    held: dict[str, list[Held]],
    splits: Sequence[RoomSplit],
) -> Iterable[QueueRow]:
    for queue in QUEUES:
        lengths = tuple(length_of(view, queue) for view in group.members)
        comparison = group.comparisons.get(queue)
        polled = comparison is not None and (comparison.last >= 0 or comparison.difference is not None)
        if not polled and not any(lengths):
            continue
        if first is not None and first[0] == queue:
            yield QueueRow(queue, lengths, "diverged", formatting.diverged(first[1], splits), first[1].ordinal)
        elif comparison is not None and comparison.difference is not None:
            yield QueueRow(queue, lengths, "diverged", f"later, at round {comparison.difference.ordinal}")
        elif any(h.now for h in held.get(queue, ())):
            current = [h for h in held[queue] if h.now]
            yield QueueRow(queue, lengths, "held", "; ".join(formatting.held(h) for h in current[:2]))
        elif comparison is None:
            yield QueueRow(queue, lengths, "unknown" if queue in POLLED_QUEUES else "not polled", "")
        elif comparison.gap:
            yield QueueRow(queue, lengths, "unknown", comparison.gap)
        else:
            past = [h for h in held.get(queue, ()) if not h.now]
            text = f"the gate held {formatting.held_past(past)}" if past else ""
            unheard = [] if group.info.size == 1 else _unheard(group)
            if unheard:
                text = f"recorded rounds agree; {formatting.names(unheard)} {formatting.has(unheard)} not answered"
            yield QueueRow(queue, lengths, "unknown" if unheard else "agree", text, comparison.last)


def _by_name(group: Group) -> dict[str, RankView]:
    return {group.place(n): view for n, view in enumerate(group.members) if view is not None}


def _now(group: Group, splits: Sequence[RoomSplit] = ()) -> Iterable[RankNow]:
    for n, view in enumerate(group.members):
        rooms = [split.room for split in splits if view and explain.where_now(view, split.room) == "running"]
        yield now(group.place(n), view, rooms)
