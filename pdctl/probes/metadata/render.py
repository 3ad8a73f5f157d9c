"""How ``dump metadata`` is drawn: rank by rank, its slots."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.protocol.durations import seconds
from pdctl.report import drawing
from pdctl.targets import nodeset

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.metadata.model import MetadataDocument, RankReport, SlotReport

_BAD = {"collision": "bold red", "foreign room": "bold red", "another room": "yellow", "stale owner": "yellow"}
_SHOWN = 60
_IN_FULL = 3
"""Ranks of many with something odd that are told in full."""


def render(document: MetadataDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield each rank with its slots, then the findings. wide: all slots."""
    slots = {rank: list(rows) for rank, rows in groupby(document.slots, key=_key)}
    ranks = list(document.ranks)
    if len(ranks) > drawing.MANY and not wide:
        ranks = [rank for rank in ranks if any(row.verdict in _BAD for row in slots.get(_key(rank), []))][:_IN_FULL]
        told = set(map(_key, ranks))
        yield from _others([rank for rank in document.ranks if _key(rank) not in told])
        if ranks:
            yield ""
    for number, rank in enumerate(ranks):
        if number:
            yield ""
        yield from _rank(rank)
        rows = slots.get(_key(rank), [])
        owned = rows if wide else [row for row in rows if row.verdict != "free" or len(rows) == 1]
        if owned:
            yield from _slots(owned, wide=wide)
        elif not rank.silence:
            yield "  no slot is taken"
        kept = sum(bool(row.found) for row in rows) - sum(bool(row.found) for row in owned)
        if kept:
            yield drawing.dim(f"  {kept} free slots keep the room of an earlier owner (-o wide lists them)")
    yield from drawing.findings(document.findings)


def _rank(rank: RankReport) -> Iterable[RenderableType]:
    cluster = f" · cluster {rank.cluster}" if rank.cluster else ""
    engine = f" · {rank.engine} {rank.version}" if rank.engine else ""
    server = f" · {rank.server}" if rank.server else ""
    line = Text(f"{rank.rank}{server}{cluster}{engine}", style="bold")
    if rank.silence:
        line.append(f"   {rank.silence}", style="yellow")
        yield line
        return
    yield line
    yield _memory(rank, str(rank.taken))
    yield from _safety(rank)


def _others(ranks: list[RankReport]) -> Iterable[RenderableType]:
    """Yield the ranks of many that have nothing odd, those that are alike together."""
    lines = drawing.alike(ranks, lambda rank: (*_ways(rank), rank.silence, rank.slots))
    for those in sorted(lines, key=lambda those: not those[0].silence)[: drawing.MANY]:
        one = those[0]
        servers = drawing.some(rank.server for rank in those if rank.server)
        text = " · ".join(filter(None, (nodeset.join(rank.rank for rank in those), servers)))
        yield Text(f"{text} · {len(those)} rank{'s'[: len(those) != 1]}", style="bold")
        if one.silence:
            yield Text(f"  {one.silence}", style="yellow")
            continue
        yield _memory(one, nodeset.span(rank.taken for rank in those))
        yield from _safety(one)
    if len(lines) > drawing.MANY:
        yield drawing.dim(f"… and ranks of {len(lines) - drawing.MANY} more kinds (-o wide or json shows all)")
    yield drawing.dim("Slots in which nothing is wrong are not shown (-o wide or json shows all).")


def _ways(rank: RankReport) -> tuple[object, ...]:
    """Return what ranks have in common to which metadata comes in the same way."""
    return rank.role, rank.cluster, rank.engine, rank.version, rank.device, rank.aux, rank.aux_why, rank.safe, rank.why


def _memory(rank: RankReport, taken: str) -> str:
    size = sum(tensor.row_bytes for tensor in rank.tensors)
    return (
        f"  {taken} of {rank.slots} slots taken · {len(rank.tensors)} tensors on {rank.device or 'no device'},"
        f" {size} bytes a slot · aux {rank.aux or 'unknown'} ({rank.aux_why})"
    )


def _safety(rank: RankReport) -> Iterable[Text]:
    if rank.safe != "-":
        style = {"yes": "green", "no": "bold red"}.get(rank.safe, "yellow")
        yield Text("  safe: ").append(rank.safe, style=style).append(f" · {rank.why}")


def _slots(rows: list[SlotReport], *, wide: bool) -> Iterable[RenderableType]:
    shown = rows if wide else rows[:_SHOWN]
    names = ["  slot", "verdict", "owner", "room", "found", "state", "held", "sent", "landed"]
    drawn = drawing.table(*names, *(["checksums"] if wide else []), "", right=("  slot", "held", "sent", "landed"))
    for row in shown:
        found = "not read" if row.found is None else str(row.found)
        landed = "-"
        if row.landed_s is not None:
            landed = f"{seconds(row.landed_s)} ago, {seconds(row.late_s or 0.0)} after Success"
        drawn.add_row(
            str(row.slot),
            Text(row.verdict, style=_BAD.get(row.verdict, "")),
            f"{row.rid} ({row.where})" if row.rid else "-",
            str(row.expected or "-"),
            found,
            row.state,
            _spoken(row.held_s),
            _spoken(row.sent_s),
            landed,
            *([" ".join(f"{name}={crc}" for name, crc in row.sums.items())] if wide else []),
            ("changing; " if row.changing else "") + row.text,
        )
    yield drawn
    if len(rows) > len(shown):
        yield drawing.dim(f"  … and {len(rows) - len(shown)} more slots (-o wide or json shows all)")


def _key(of: RankReport | SlotReport) -> tuple[str, str, str, str]:
    return of.cluster, of.service, of.instance, of.rank


def _spoken(value: float | None) -> str:
    return "-" if value is None else seconds(value)
