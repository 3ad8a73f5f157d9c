"""How ``pdctl dump`` draws what it found, for people."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pdctl.commands.findings import draw_findings
from pdctl.protocol.durations import seconds

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.probes.config.model import ConfigDocument
    from pdctl.probes.dump.model import GroupsDump, QueuedRequest, QueuesDump, RankQueues
    from pdctl.probes.leaks.model import LeaksDocument
    from pdctl.probes.metadata.model import MetadataDocument, RankReport, SlotReport

_BAD = {"collision": "bold red", "foreign room": "bold red", "another room": "yellow", "stale owner": "yellow"}
_SHOWN = 60


def table(*names: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table in the style of all commands."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        made.add_column(name, no_wrap=True, justify="right" if name in right else "left")
    return made


def _age(value: float | None) -> str:
    return "-" if value is None else seconds(value)


# ---- metadata --------------------------------------------------------------------------------------------------------


def draw_metadata(document: MetadataDocument, console: Console, *, wide: bool) -> None:
    """Draw each rank with its slots, then the findings."""
    slots = {rank: list(rows) for rank, rows in groupby(document.slots, key=_server_rank)}
    for number, rank in enumerate(document.ranks):
        if number:
            console.print()
        _draw_rank(rank, console)
        rows = slots.get(_server_rank(rank), [])
        owned = rows if wide else [row for row in rows if row.verdict != "free" or len(rows) == 1]
        if owned:
            _draw_slots(owned, console, wide=wide)
        elif not rank.silence:
            console.print("  no slot is taken")
        kept = sum(bool(row.found) for row in rows) - sum(bool(row.found) for row in owned)
        if kept:
            console.print(
                Text(f"  {kept} free slots keep the room of an earlier owner (-o wide lists them)", style="dim")
            )
    draw_findings(document.findings, console)


def _draw_rank(rank: RankReport, console: Console) -> None:
    cluster = f" · cluster {rank.cluster}" if rank.cluster else ""
    engine = f" · {rank.engine} {rank.version}" if rank.engine else ""
    server = f" · {rank.server}" if rank.server else ""
    line = Text(f"{rank.rank}{server}{cluster}{engine}", style="bold")
    if rank.silence:
        line.append(f"   {rank.silence}", style="yellow")
        console.print(line)
        return
    console.print(line)
    size = sum(tensor.row_bytes for tensor in rank.tensors)
    console.print(
        f"  {rank.taken} of {rank.slots} slots taken · {len(rank.tensors)} tensors on {rank.device or 'no device'},"
        f" {size} bytes a slot · aux {rank.aux or 'unknown'} ({rank.aux_why})"
    )
    if rank.safe != "-":
        style = {"yes": "green", "no": "bold red"}.get(rank.safe, "yellow")
        console.print(Text("  safe: ").append(rank.safe, style=style).append(f" · {rank.why}"))


def _draw_slots(rows: list[SlotReport], console: Console, *, wide: bool) -> None:
    shown = rows if wide else rows[:_SHOWN]
    names = ["  slot", "verdict", "owner", "room", "found", "state", "held", "sent", "landed"]
    drawn = table(*names, *(["checksums"] if wide else []), "", right=("  slot", "held", "sent", "landed"))
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
            _age(row.held_s),
            _age(row.sent_s),
            landed,
            *([" ".join(f"{name}={crc}" for name, crc in row.sums.items())] if wide else []),
            ("changing; " if row.changing else "") + row.text,
        )
    console.print(drawn)
    if len(rows) > len(shown):
        console.print(Text(f"  … and {len(rows) - len(shown)} more slots (-o wide or json shows all)", style="dim"))


# ---- queues and groups -----------------------------------------------------------------------------------------------


def _server_rank(of: RankQueues | QueuedRequest | RankReport | SlotReport) -> tuple[str, str, str, str]:
    return of.cluster, of.service, of.instance, of.rank


def draw_queues(document: QueuesDump, console: Console) -> None:
    """Draw each rank's queues."""
    requests = {key: list(rows) for key, rows in groupby(document.requests, key=_server_rank)}
    for number, rank in enumerate(document.ranks):
        if number:
            console.print()
        more = [*([rank.server] if rank.server else []), *([f"cluster {rank.cluster}"] if rank.cluster else [])]
        line = Text(" · ".join([rank.rank, *more]), style="bold")
        if rank.silence:
            line.append(f"   {rank.silence}", style="yellow")
        console.print(line)
        for queue, why in rank.missing.items():
            console.print(f"  {queue}: not readable: {why}")
        rows = requests.get(_server_rank(rank), [])
        if not rows:
            if not rank.silence:
                console.print("  no requests")
            continue
        drawn = table(
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
        )
        for column in drawn.columns[1:3]:  # what requests are called by goes on in the next line rather than being cut
            column.no_wrap, column.overflow = False, "fold"
        for row in rows[:_SHOWN]:
            numbers = [str(n) if n >= 0 else "-" for n in (row.tokens, row.kv, row.dp)]
            slot = str(row.slot) if row.slot >= 0 else "-"
            drawn.add_row(f"  {row.queue}", str(row.room), row.rid, slot, row.state, _age(row.age_s), *numbers)
        console.print(drawn)
        if len(rows) > _SHOWN:
            console.print(Text(f"  … and {len(rows) - _SHOWN} more requests (-o json shows all)", style="dim"))


def draw_groups(document: GroupsDump, console: Console) -> None:
    """Draw the groups, a line for each rank and group."""
    drawn = table("rank", "group", "size", "members", "world", "flight recorder", right=("size",))
    for row in document.groups:
        members = ", ".join(map(str, row.members[:16])) + (" …" if row.size > 16 else "")
        number = str(row.fr_id) if row.fr_id >= 0 else "-"
        drawn.add_row(row.rank, row.kind, str(row.size), members, row.world, number)
    console.print(drawn)


# ---- config and leaks ------------------------------------------------------------------------------------------------


def draw_config(document: ConfigDocument, console: Console, *, wide: bool) -> None:
    """Draw the settings that differ, all of them when ``wide``, then the findings."""
    for server in document.servers:
        peers = f" · deals with {', '.join(server.peers)}" if server.peers else ""
        console.print(
            Text(
                f"{server.server} · {server.version} · {server.ranks} rank{'s'[: server.ranks != 1]}{peers}",
                style="bold",
            )
        )
    shown = [s for s in document.settings if wide or s.verdict not in ("same", "per rank")]
    if not shown:
        console.print("all settings are the same everywhere")
    else:
        drawn = table("setting", "verdict", *(server.server for server in document.servers))
        style = {"mismatch": "bold red", "ranks differ": "yellow"}
        for setting in shown:
            values = [setting.servers.get(server.server, "") for server in document.servers]
            drawn.add_row(setting.name, Text(setting.verdict, style=style.get(setting.verdict, "")), *values)
        console.print(drawn)
        if not wide and len(shown) < len(document.settings):
            console.print(
                Text(
                    f"({len(document.settings) - len(shown)} more are the same, or each rank's own: -o wide shows them)",
                    style="dim",
                )
            )
    draw_findings(document.findings, console)


def draw_leaks(document: LeaksDocument, console: Console) -> None:
    """Draw a line a rank, then the findings."""
    console.print(Text(f"watched for {seconds(document.watch_s)}", style="bold"))
    drawn = table("  rank", "slots lost", "KV lost", "orphans", "rooms left", "slots free", "")
    for row in document.ranks:
        counts = [str(n) if row.judged else "-" for n in (row.slots_lost, row.kv_lost, row.orphans, row.leftovers)]
        free = f"{row.slots_free} of {row.slots}" if row.slots >= 0 else "-"
        drawn.add_row(f"  {row.rank}", *counts, free, "" if row.judged else f"not judged: {row.why}")
    console.print(drawn)
    draw_findings(document.findings, console)
