"""Finds ranks that can't get on: they are in different collectives of one group, or wait for each other in two. Pure.

Only ranks count that stood in the same collective, without a turn in between, in several looks over CONFIRM_S: what is
different for a moment is skew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pdctl.probes.collectives import countable, is_collective, mispaired
from pdctl.probes.collectives import said as said_of
from pdctl.probes.stacks.formatting import group_name, in_group
from pdctl.probes.stacks.model import RankLooks
from pdctl.probes.stacks.moves import STUCK, moves, stood_s
from pdctl.protocol.model import Call, GroupCount
from pdctl.report.findings import Finding, finding

LOOKS = 3
CONFIRM_S = 2.0
"""How long, and in how many looks, ranks must have stood before that is a finding."""

Key = tuple[str, str]
"""A process group of torch: its world, and its name in it."""


Fold = Callable[[Sequence[int]], str]
"""Names ranks, given by their number among the views: ``decode dp0 tp0-6``."""


def suspected(views: Sequence[RankLooks], fold: Fold) -> bool:
    """Return whether there would be a finding if the ranks go on standing: whether it is worth to look longer."""
    return bool(_findings(views, fold))


def findings(views: Sequence[RankLooks], fold: Fold) -> tuple[Finding, ...]:
    """Return what is certain by now."""
    certain = [
        view if len(view.looks) >= LOOKS and stood_s(view) >= CONFIRM_S else _not_standing(view) for view in views
    ]
    return tuple(_findings(certain, fold))


def _not_standing(view: RankLooks) -> RankLooks:
    return RankLooks(view.identity, view.state, view.silence, view.looks[-1:])


def _findings(views: Sequence[RankLooks], fold: Fold) -> list[Finding]:
    standing = {n: call for n, view in enumerate(views) if (call := _stands_in(view)) is not None}
    return [*_one_group(views, fold, standing), *_each_other(views, fold, standing)]


def _stands_in(view: RankLooks) -> Call | None:
    """Return the collective the rank stands in, None when it moves, is in none, or its number says nothing."""
    last = view.last
    if last is None or moves(view) != STUCK or not is_collective(last.call):
        return None
    call = last.call
    return call if call.seq >= 0 and call.pg and countable(view.identity, call.group) else None


def _count(view: RankLooks, pg: str) -> GroupCount | None:
    return next((c for c in view.last.counts if c.pg == pg), None) if view.last is not None else None


def _by_group(views: Sequence[RankLooks], standing: Mapping[int, Call]) -> dict[Key, list[int]]:
    groups: dict[Key, list[int]] = {}
    for n, call in standing.items():
        groups.setdefault((views[n].identity.world, call.pg), []).append(n)
    return groups


# ---- one group -------------------------------------------------------------------------------------------------------


def _one_group(views: Sequence[RankLooks], fold: Fold, standing: Mapping[int, Call]) -> Iterable[Finding]:
    for (_, pg), members in _by_group(views, standing).items():
        calls = {n: standing[n] for n in members}
        kind = group_name(standing[members[0]].group, pg)
        pairs = mispaired(calls)
        if pairs:
            about = sorted(n for ops in pairs.values() for ranks in ops.values() for n in ranks)
            said = [
                f"collective #{seq} of {kind} is {' and '.join(f'{op} on {fold(ranks)}' for op, ranks in ops.items())}"
                for seq, ops in pairs.items()
            ]
        else:
            count = _count(views[members[0]], pg)
            numbers = {call.seq for call in calls.values()}
            if len(numbers) < 2 or count is None or len(members) < count.size:
                continue  # a member that is elsewhere may be the one that the others wait for
            about = members
            at = [[n for n in members if calls[n].seq == seq] for seq in sorted(numbers)]
            said = [
                f"{fold(ranks)} {'stand' if len(ranks) > 1 else 'stands'} in {in_group(calls[ranks[0]])}"
                for ranks in at
            ]
        yield finding(
            "PD160",
            f"{'; '.join(said)}.",
            group=kind,
            ranks=tuple(views[n].identity.label for n in about),
            evidence=tuple(_evidence(views, fold, {n: calls[n] for n in about})),
            units=(views[n].identity.unit for n in about),
        )


def _evidence(views: Sequence[RankLooks], fold: Fold, calls: Mapping[int, Call]) -> Iterable[str]:
    alike: dict[tuple[str, str], list[int]] = {}
    for n, call in calls.items():
        alike.setdefault((in_group(call), said_of(call)), []).append(n)
    for (where, said), ranks in alike.items():
        least = min(stood_s(views[n]) for n in ranks)
        looks = min(len(views[n].looks) for n in ranks)
        yield f"{fold(ranks)}: {where}, {said}, the same in {looks} looks over {least:.1f} s"


# ---- ranks that wait for each other ----------------------------------------------------------------------------------


def _each_other(views: Sequence[RankLooks], fold: Fold, standing: Mapping[int, Call]) -> Iterable[Finding]:
    """Find circles: a rank waits for each member of its group that stands elsewhere and has not entered its collective."""
    worlds: dict[str, list[int]] = {}
    for n in standing:
        worlds.setdefault(views[n].identity.world, []).append(n)
    for members in worlds.values():
        counts = {n: {c.pg: c.seq for c in views[n].last.counts} for n in members}  # type: ignore[union-attr]
        at: dict[tuple[str, int], list[int]] = {}
        for n in members:
            at.setdefault((standing[n].pg, standing[n].seq), []).append(n)
        missing = {(pg, seq): {m for m in members if counts[m].get(pg, seq) < seq} for pg, seq in at}
        circle = set(_circle({n: missing[where] for where, ranks in at.items() for n in ranks}))
        if not circle:
            continue
        parts: list[str] = []
        evidence: list[str] = []
        for where, ranks in at.items():
            waiting, late = [n for n in ranks if n in circle], sorted(missing[where] & circle)
            if not waiting:
                continue
            call = standing[waiting[0]]
            parts.append(
                f"{fold(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in {in_group(call)}, which {fold(late)}"
                f" {'has' if len(late) == 1 else 'have'} not entered"
            )
            evidence += _evidence(views, fold, {n: standing[n] for n in waiting})
            entered: dict[int, list[int]] = {}
            for n in late:
                entered.setdefault(counts[n][call.pg], []).append(n)
            evidence += [f"{fold(of)}: at #{seq} of {group_name(call.group, call.pg)}" for seq, of in entered.items()]
        yield finding(
            "PD161",
            f"{'; '.join(parts)}: they wait for each other.",
            group=" and ".join(dict.fromkeys(group_name(standing[n].group, standing[n].pg) for n in sorted(circle))),
            ranks=tuple(views[n].identity.label for n in sorted(circle)),
            evidence=tuple(evidence),
            units=(views[n].identity.unit for n in sorted(circle)),
        )


def _circle(waits: Mapping[int, set[int]]) -> list[int]:
    """Return the ranks on circles, and between circles: those left when all that wait for nobody left, or that nobody
    left waits for, are taken away."""
    left = set(waits)
    while True:
        awaited = {m for n in left for m in waits[n]}
        keep = {n for n in left if waits[n] & left and n in awaited}
        if keep == left:
            return sorted(left)
        left = keep
