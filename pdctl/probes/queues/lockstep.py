"""Tells of the dp ranks that meet in a collective in every turn (dp attention): who has got how far. Pure.

They have requests of their own, so there is nothing in their queues to compare. Where one does not come, all wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pdctl.probes.queues.formatting import names
from pdctl.probes.queues.model import GroupReport, QueueRow, RankView
from pdctl.probes.queues.now import length_of, now
from pdctl.probes.queues.waits import kept_waiting, late_finding
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import QUEUES
from pdctl.report.findings import Finding
from pdctl.targets import nodeset
from pdctl.targets.servers import told_apart


def locksteps(views: Sequence[RankView], *, stalled_s: float) -> Iterator[tuple[GroupReport, list[Finding]]]:
    """Yield a report and its findings for each group of dp ranks."""
    for title, members in locksteps_of(views):
        yield _lockstep(title, members, stalled_s)


def locksteps_of(views: Sequence[RankView]) -> Iterator[tuple[str, list[RankView]]]:
    """Yield the title and the members of each group: the ranks of each stage of a server with dp attention."""
    of_server: dict[tuple[object, ...], list[RankView]] = {}
    for view in views:
        one = view.identity
        if one.dp_attention and one.dp_size > 1:
            of_server.setdefault((*nodeset.server(one), one.pp), []).append(view)
    those = [sorted(members, key=lambda view: view.identity.world_rank) for members in of_server.values()]
    firsts = [members[0].identity for members in those]
    titles = [f"{one.role}{f' pp{one.pp}' if one.pp_size > 1 else ''}" for one in firsts]
    for members, title, server in zip(those, titles, told_apart(firsts, titles), strict=True):
        whole = f"{title} · dp attention of {members[0].identity.dp_size} dp ranks"
        yield f"{whole} · {server}" if server else whole, members


def _lockstep(title: str, members: Sequence[RankView], stalled_s: float) -> tuple[GroupReport, list[Finding]]:
    one = members[0].identity
    ranks = {_name(view): view for view in members}
    wait = kept_waiting(ranks, stalled_s)
    findings = [late_finding(wait, ranks, title)] if wait.late else []
    whole = len(members) >= one.dp_size * max(1, one.tp_size) * max(1, one.cp_size)
    if not wait.late and all(view.stands for view in members):
        verdict, said = "WAITING", "no loop turns, and which of them keeps the others waiting is not known"
    elif wait.late or any(view.stands for view in members):
        verdict, said = "WAITING", "one of them does not come to the collective in which all meet"
    elif not whole or not all(view.answers for view in members):
        verdict, said = "UNKNOWN", "not every rank was heard"
    elif all(view.turn is not None and view.turn.turned for view in members):
        verdict, said = "AGREE", "every loop turns, and in each turn all meet in a collective"
    else:
        verdict, said = "UNKNOWN", _on_the_way(ranks)
    return GroupReport(
        title=title,
        ranks=tuple(ranks),
        verdict=verdict,
        queues=tuple(_rows(members)),
        leaders=wait.waiting,
        stragglers=wait.late,
        now=tuple(now(name, view) for name, view in ranks.items()),
        pairing=() if verdict == "AGREE" else tuple(_entered(ranks)),
        kind="lockstep",
        said=f"{said}. Not compared: requests, of which each dp rank has its own",
        role=one.role,
        cluster=one.cluster,
    ), findings


def _name(view: RankView) -> str:
    one = view.identity
    place = f"dp{one.dp} tp{one.tp}" + (f" cp{one.cp}" if one.cp_size > 1 else "")
    return f"{place} ({one.logged})" if one.logged else place


def _on_the_way(ranks: Mapping[str, RankView]) -> str:
    """Return who has not begun another turn, and who computes."""
    turns = {name: view.turn for name, view in ranks.items() if view.turn is not None}
    computing = [name for name, turn in turns.items() if turn.computing and not turn.turned]
    ages = [turn.age_s for turn in turns.values() if turn.age_s is not None and not turn.turned]
    for_s = f" for {seconds(min(ages))}" if ages else ""
    if computing:
        return f"not all have turned{for_s}: {names(computing)} {'computes' if len(computing) == 1 else 'compute'}"
    return f"whether their loops turn is not known, or not all have turned{for_s}"


def _entered(ranks: Mapping[str, RankView]) -> Iterator[str]:
    """Yield, for each group in whose collective a rank waits, which number each rank has entered there."""
    statuses = {name: view.status for name, view in ranks.items() if view.status is not None}
    groups = {status.call.pg: status.call.group for status in statuses.values() if status.call.op and status.call.pg}
    for pg, kind in groups.items():
        at: dict[int, list[str]] = {}
        for name, status in statuses.items():
            for count in status.counts:
                if count.pg == pg:
                    at.setdefault(count.seq, []).append(name)
        if len(at) > 1 or sum(map(len, at.values())) < len(ranks):
            said = ", ".join(f"{names(those)} at #{seq}" for seq, those in sorted(at.items()))
            silent = [name for name in ranks if name not in statuses]
            more = f"; {names(silent)} not known" if silent else ""
            yield f"collectives of group {kind or pg}: {said}{more}"


def _rows(members: Sequence[RankView]) -> Iterator[QueueRow]:
    for queue in QUEUES:
        lengths = tuple(length_of(view, queue) for view in members)
        if any(lengths):
            yield QueueRow(queue, lengths, "not polled")
