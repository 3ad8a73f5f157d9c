"""How ``dump queues`` and ``dump groups`` are drawn."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.probes.stuck.released import acknowledged
from pdctl.protocol.durations import seconds
from pdctl.protocol.requests import DEFERRED
from pdctl.report import drawing
from pdctl.targets import nodeset

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.dump.model import GroupsDump, QueuedRequest, QueuesDump, RankQueues

_SHOWN = 60


def queues(document: QueuesDump) -> Iterable[RenderableType]:
    """Yield each rank's queues."""
    requests = {key: list(rows) for key, rows in groupby(document.requests, key=_key)}
    ranks = document.ranks
    if len(ranks) > drawing.MANY:
        ranks = tuple(rank for rank in ranks if requests.get(_key(rank)) or rank.missing)
        empty = [rank for rank in document.ranks if not (requests.get(_key(rank)) or rank.missing)]
        for those in drawing.alike(empty, lambda rank: (rank.silence, rank.server, rank.cluster)):
            who = nodeset.join(rank.rank for rank in those)
            line = Text(" · ".join((who, *_of(those[0]))), style="bold")
            yield line.append(f"   {those[0].silence or 'no requests'}", style="yellow" if those[0].silence else "")
        if empty and ranks:
            yield ""
    for number, rank in enumerate(ranks):
        if number:
            yield ""
        line = Text(" · ".join((rank.rank, *_of(rank))), style="bold")
        if rank.silence:
            line.append(f"   {rank.silence}", style="yellow")
        yield line
        for queue, why in rank.missing.items():
            yield f"  {queue}: not readable: {why}"
        rows = requests.get(_key(rank), [])
        if not rows:
            if not rank.silence:
                yield "  no requests"
            continue
        drawn = drawing.table(
            "  queue",
            "room",
            "rid",
            "slot",
            "state",
            "age",
            "prompt",
            "KV",
            "dp",
            right=("slot", "age", "prompt", "KV", "dp"),
            wraps=("rid",),
        )
        for row in rows[:_SHOWN]:
            numbers = [str(n) if n >= 0 else "-" for n in (row.tokens, row.kv, row.dp)]
            slot = str(row.slot) if row.slot >= 0 else "-"
            drawn.add_row(f"  {row.queue}", str(row.room), row.rid, slot, _state(row), _spoken(row.age_s), *numbers)
        yield drawn
        if len(rows) > _SHOWN:
            yield drawing.dim(f"  … and {len(rows) - _SHOWN} more requests (-o json shows all)")


def groups(document: GroupsDump) -> Iterable[RenderableType]:
    """Yield a line for each rank and group; of many, one for all ranks of a group."""
    drawn = drawing.table("rank", "group", "size", "members", "world", "flight recorder", right=("size",))
    folds = len(document.groups) > drawing.MANY
    kinds = drawing.alike(
        document.groups, lambda row: (row.kind, row.members, row.world, row.fr_id) if folds else id(row)
    )
    for rows in kinds:
        row = rows[0]
        members = nodeset.numbers(row.members) if folds else ", ".join(map(str, row.members))
        number = str(row.fr_id) if row.fr_id >= 0 else "-"
        drawn.add_row(nodeset.join(one.rank for one in rows), row.kind, str(row.size), members, row.world, number)
    yield drawn


def _of(rank: RankQueues) -> tuple[str, ...]:
    return tuple(filter(None, (rank.server, rank.cluster and f"cluster {rank.cluster}")))


def _key(of: RankQueues | QueuedRequest) -> tuple[str, str, str, str]:
    return of.cluster, of.service, of.instance, of.rank


def _state(row: QueuedRequest) -> str:
    if row.queue != DEFERRED:
        return row.state
    end = "" if row.left_s is None else f", {seconds(row.left_s)} left"
    return acknowledged(row.acks, row.needed) + end


def _spoken(value: float | None) -> str:
    return "-" if value is None else seconds(value)
