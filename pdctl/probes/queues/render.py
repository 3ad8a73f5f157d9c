"""How ``diff-queues`` is drawn: group by group, the first difference, and what each rank does now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.probes.queues.formatting import side
from pdctl.probes.queues.model import WELL
from pdctl.protocol.durations import seconds as spoken
from pdctl.report import drawing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.queues.model import GroupReport, QueuesDocument, RankNow

_STYLE = {"DIVERGED": "bold red", "WAITING": "yellow", "SKEWED": "yellow", "HELD": "cyan", "AGREE": "green"}


def render(document: QueuesDocument) -> Iterable[RenderableType]:
    """Yield what is wrong and what to do, every group, then every finding."""
    yield from drawing.headline(document.findings)
    for number, group in enumerate(document.groups):
        if number:
            yield ""
        yield from _group(group)
    yield from drawing.findings(document.findings, below=True)


def _group(group: GroupReport) -> Iterable[RenderableType]:
    verdict = group.verdict
    if group.round >= 0:
        verdict += f" at round {group.round}"
    if group.age_s is not None:
        verdict += f", {spoken(group.age_s)} ago"
    line = Text(group.title, style="bold")
    line.append("   ")
    line.append(verdict, style=_STYLE.get(group.verdict, ""))
    yield line
    if group.said and (group.kind != "polls" or not group.queues):
        yield f"  {group.said}"
    yield from _queues(group)
    if group.splits:
        yield from _splits(group)
    if group.verdict not in WELL:
        yield from _now(group.now, group.pairing)


def _queues(group: GroupReport) -> Iterable[RenderableType]:
    if not group.queues:
        if group.said:
            return
        if group.verdict == "UNKNOWN":
            yield "  nothing to compare: fewer than two ranks have rounds that can be read"
        else:
            yield "  no requests, no rounds yet"
        return
    shown = group.ranks if len(group.ranks) <= 8 else group.ranks[:8]
    table = drawing.table("  queue")
    for rank in shown:
        table.add_column(rank, justify="right", no_wrap=True)
    table.add_column("")
    for row in group.queues:
        name = row.queue.partition(".")[2] or row.queue
        lengths = ["-" if n is None else str(n) for n in row.lengths[: len(shown)]]
        known = {n for n in row.lengths if n is not None}
        moving = "(moving), rounds " if row.verdict == "agree" and len(known) > 1 else ""
        said = {
            "diverged": row.text,
            "held": row.text,
            "agree": f"{moving}agree {row.text and '· ' + row.text}".strip(),
        }
        text = said.get(row.verdict, f"{row.verdict}: {row.text}" if row.text else row.verdict)
        table.add_row(f"  {name}", *lengths, "" if row.verdict == "not polled" else text)
    yield table
    if len(group.ranks) > len(shown):
        yield f"  ({len(group.ranks) - len(shown)} more ranks: -o json shows all)"


def _splits(group: GroupReport) -> Iterable[RenderableType]:
    for split in group.splits[:5]:
        rid = f" (rid {split.rid})" if split.rid else ""
        where = f"round {group.round}" if group.round >= 0 else group.queue
        yield drawing.dim(f"      {where}, room {split.room}{rid}")
        table = drawing.grid(False, True)
        for s in split.sides:
            did, knew = side(s, ordinal=group.round)
            table.add_row(f"        {s.rank} {did}", knew)
        yield table
    if len(group.splits) > 5:
        yield f"      … and {len(group.splits) - 5} more rooms (-o json shows all)"


def _now(now: tuple[RankNow, ...], pairing: tuple[str, ...]) -> Iterable[RenderableType]:
    table = drawing.grid(False, True)
    for n, rank in enumerate(now):
        age = f", {spoken(rank.age_s)}" if rank.age_s is not None else ""
        state = "" if rank.state == "live" else f"({rank.state}) "
        table.add_row(f"  {'now' if not n else '   '}  {rank.rank}", f"{state}{rank.doing or 'unknown'}{age}")
    yield table
    for line in pairing:
        yield f"       {line}"
