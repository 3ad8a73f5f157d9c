"""The current and the last collective of every process group, rank by rank, folded. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pdctl.probes.collectives import countable, mispaired, sizes
from pdctl.probes.stacks.model import Collective, CollectiveRow, GroupCollectives, RankLooks
from pdctl.probes.stacks.moves import STUCK, moves
from pdctl.protocol.model import Call, FlightEntry, GroupCount, Status
from pdctl.protocol.numbers import whole


def collectives(
    views: Sequence[RankLooks],
    names: Sequence[str],
    within: Callable[[Sequence[int], Sequence[int]], str],
    title: Callable[[Sequence[int]], str],
) -> tuple[GroupCollectives, ...]:
    """Return a row for ranks with the same collectives, group by group.

    within: names ranks of a group, both given by number; title: what ranks have in common.
    """
    groups: dict[tuple[str, str], dict[int, GroupCount]] = {}
    for n, view in enumerate(views):
        for count in view.last.counts if view.last is not None else ():
            groups.setdefault((view.identity.world, count.pg), {})[n] = count
    return tuple(_group(views, names, members, within, title) for members in groups.values())


def _group(
    views: Sequence[RankLooks],
    names: Sequence[str],
    members: dict[int, GroupCount],
    within: Callable[[Sequence[int], Sequence[int]], str],
    title: Callable[[Sequence[int]], str],
) -> GroupCollectives:
    one = next(iter(members.values()))
    known = {n: _known(views[n], count) for n, count in members.items()}
    rows: dict[tuple[Collective | None, Collective | None], list[int]] = {}
    for n, pair in known.items():
        rows.setdefault(pair, []).append(n)
    comparable = all(countable(views[n].identity, one.kind) for n in members)
    # A rank says its operation and then the number, which may be of another moment while it gets on.
    stuck = [n for n in members if moves(views[n]) == STUCK]
    calls = {n: call for n in stuck if (call := _call(views[n].last, one.pg)) is not None}
    pairs = mispaired(calls) if comparable else {}
    return GroupCollectives(
        title=title(sorted(members)),
        kind=one.kind,
        pg=one.pg,
        size=one.size,
        rows=tuple(
            CollectiveRow(within(ranks, sorted(members)), tuple(names[n] for n in ranks), current, last)
            for (current, last), ranks in sorted(rows.items(), key=lambda row: (len(row[1]), row[1]))
        ),
        seen=len(members),
        in_step=len({count.seq for count in members.values()}) == 1
        if comparable and len(members) == one.size
        else None,
        mispaired=tuple(
            f"#{seq}: " + " and ".join(f"{op} on {within(ranks, sorted(members))}" for op, ranks in ops.items())
            for seq, ops in pairs.items()
        ),
    )


def _call(status: Status | None, pg: str) -> Call | None:
    return status.call if status is not None and status.call.op and status.call.pg == pg else None


def _known(view: RankLooks, count: GroupCount) -> tuple[Collective | None, Collective | None]:
    """Return (the collective the rank is in, the last before it): from its stack, its flight recorder, its counter."""
    call = _call(view.last, count.pg)
    number = whole(count.pg)
    entries = sorted(
        (e for e in view.flight if number is not None and e.pg_id == number), key=lambda e: e.created_wall_ns
    )
    current = None
    if call is not None:
        size = str(call.elements) if call.elements >= 0 else ""
        current = Collective(call.seq, call.op, size, "in it", "stack", call.inside)
        if entries and not entries[-1].retired:
            entries.pop()  # the recorder's view of the same
    elif entries and not entries[-1].retired:
        current = _entry(entries.pop())
    over = [entry for entry in entries if entry.retired]
    if over:
        return current, _entry(over[-1])
    if current is None:
        return None, Collective(count.seq, state="entered", source="count") if count.seq > 0 else None
    return current, None


def _entry(entry: FlightEntry) -> Collective:
    return Collective(entry.seq, entry.op, sizes(entry), "over" if entry.retired else "not over", "flight recorder")
