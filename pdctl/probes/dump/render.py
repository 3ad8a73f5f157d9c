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

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.dump.model import GroupsDump, QueuedRequest, QueuesDump, RankQueues

_SHOWN = 60


def queues(document: QueuesDump) -> Iterable[RenderableType]:
    """Yield each rank's queues."""
    requests = {key: list(rows) for key, rows in groupby(document.requests, key=_key)}
    for number, rank in enumerate(document.ranks):
        if number:
            yield ""
        more = [*([rank.server] if rank.server else []), *([f"cluster {rank.cluster}"] if rank.cluster else [])]
        line = Text(" · ".join([rank.rank, *more]), style="bold")
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
    """Yield a line for each rank and group."""
    drawn = drawing.table("rank", "group", "size", "members", "world", "flight recorder", right=("size",))
    for row in document.groups:
        members = ", ".join(map(str, row.members[:16])) + (" …" if row.size > 16 else "")
        number = str(row.fr_id) if row.fr_id >= 0 else "-"
        drawn.add_row(row.rank, row.kind, str(row.size), members, row.world, number)
    yield drawn


def _key(of: RankQueues | QueuedRequest) -> tuple[str, str, str, str]:
    return of.cluster, of.service, of.instance, of.rank


def _state(row: QueuedRequest) -> str:
    if row.queue != DEFERRED:
        return row.state
    end = "" if row.left_s is None else f", {seconds(row.left_s)} left"
    return acknowledged(row.acks, row.needed) + end


def _spoken(value: float | None) -> str:
    return "-" if value is None else seconds(value)
