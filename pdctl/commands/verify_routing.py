"""``pdctl verify-routing``: which prefill dp rank each room is on, by everyone who has to know, and where they differ."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.findings import draw_findings
from pdctl.commands.options import (
    RANK_TIMEOUT_S,
    TIMEOUT_S,
    FromOption,
    OutputOption,
    RankTimeoutOption,
    RecordDirOption,
    RunDirOption,
    TimeoutOption,
    find,
    seconds,
)
from pdctl.probes.routing import GRACE_S
from pdctl.protocol.errors import Exit
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.probes.routing.model import Asker, RoomRow, RoutingDocument, ServerRow, Side

SHOWN = 40
MAX_COLUMNS = 4
MAX_ROOM = (1 << 64) - 1
_STYLE = {
    "AGREE": "green",
    "WAITS": "cyan",
    "DONE": "dim",
    "GONE": "dim",
    "UNKNOWN": "yellow",
    "EXPIRES": "yellow",
    "REFUSED": "yellow",
}


def command(
    rooms: Annotated[
        Optional[list[str]],  # noqa: UP045  # typer evaluates annotations
        typer.Argument(metavar="[ROOM]...", help="Rooms to look at, wherever they are. Default: those that wait."),
    ] = None,
    bootstrap: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--bootstrap", metavar="HOST:PORT", help="Ask this bootstrap server, not those the ranks name."),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            "--grace", parser=seconds, metavar="TIME", help="Differences younger than this may be skew: no finding."
        ),
    ] = GRACE_S,
    output: OutputOption = Format.TABLE,
    source: FromOption = None,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
) -> int:
    """Show for each room on which prefill dp rank it is: by formula, bootstrap server, prefill and decode.

    A bootstrap server is asked over HTTP, within --rank-timeout; in another network namespace from inside it,
    which takes root. A difference must last: see --grace. With --from, what recordings have of registrations, queries and
    queues; settings and the bootstrap server's own belief are not in them.
    Exit code: 0 when nothing contradicts, 1 on a finding, 3 when a belief is missing or a room unknown, 4 when no
    rank answers.
    """
    from pdctl.probes.routing.bootstrap import split
    from pdctl.probes.routing.look import look
    from pdctl.probes.routing.model import RoomRow
    from pdctl.targets.client import Client

    numbers = [_room(text) for text in rooms or ()]
    for address in bootstrap or ():
        try:
            split(address)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--bootstrap") from None
    found = find(run_dir, record_dir, source, timeout=timeout, rank_timeout=rank_timeout)
    with Client(timeout_s=timeout, spent_s=found.took_s, rank_timeout_s=rank_timeout) as client:
        document = look(found, client, rooms=numbers, instead=bootstrap or (), grace_s=grace)
    out = Output(output)
    wide = output is Format.WIDE
    code = int(exit_code(document, recorded=source is not None, partial=bool(found.problems)))
    out.document(document, document.rooms, partial(draw, wide=wide), row=RoomRow, code=code)
    if output.drawn:
        for problem in (*document.problems, *found.problems):
            out.note(f"not asked or in part: {problem}")
        if found.left_out:
            out.note(found.left_out)
        for note in document.notes:
            out.note(note)
        for unknown in document.unknown:
            near = f"; nearest: {', '.join(map(str, unknown.nearest))}" if unknown.nearest else ""
            out.note(f"room {unknown.room} is not known to any rank or bootstrap server that answered{near}")
    return code


def _room(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MAX_ROOM:
        raise typer.BadParameter(f"{text!r} is no room: a whole number from 1 to 2^64 - 1", param_hint="ROOM")
    return int(text)


def exit_code(document: RoutingDocument, *, recorded: bool = False, partial: bool = False) -> Exit:
    """Return what the command exits with: findings come first, then what could not be judged."""
    from pdctl.report.findings import Level

    if any(found.level is not Level.INFO for found in document.findings):
        return Exit.FINDING
    if not recorded and not any(side.answered for side in document.sides):
        return Exit.UNREACHABLE
    return Exit.PARTIAL if document.partial or partial else Exit.CLEAN


# ---- for people ------------------------------------------------------------------------------------------------------


def draw(document: RoutingDocument, console: Console, *, wide: bool = False) -> None:
    """Draw how each server routes, every room with its four beliefs, then the findings."""
    from rich.text import Text

    for side in document.sides:
        console.print(Text(_side(side), style="bold"))
        for line in _told(side) if wide else ():
            console.print(f"  {line}")
    for server in document.servers:
        console.print(Text(_server(server), style="bold" if not server.silence else "yellow"))
    console.print()
    if not document.rooms:
        console.print("no room waits to be routed" if not document.unknown else "none of these rooms is known")
    shown = document.rooms if wide else document.rooms[:SHOWN]
    if shown:
        _draw_rooms(shown, console, wide=wide)
    if len(document.rooms) > len(shown):
        console.print(
            Text(f"… and {len(document.rooms) - len(shown)} more rooms (-o wide or json shows all)", style="dim")
        )
    if document.young:
        several = document.young != 1
        console.print(
            Text(
                f"({document.young} difference{'s'[:several]} too young to be told from skew: no finding)", style="dim"
            )
        )
    draw_findings(document.findings, console)


def _side(side: Side) -> str:
    parts = [side.service if side.service.startswith(side.role) else f"{side.role} {side.service}"]
    if side.answered < side.ranks:
        parts.append(f"{side.answered} of {side.ranks} ranks answer")
    if side.dp_size > 0:
        parts.append(f"dp {side.dp_size}")
    if side.balance and side.dp_size > 1:
        parts.append(side.balance)
    if side.force_query:
        parts.append("FORCE_QUERY")
    if side.registers:
        parts.append(f"{'registers' if side.role == 'prefill' else 'asks for'} {side.registers}")
    return " · ".join(parts)


def _told(side: Side) -> Iterable[str]:
    for address, facts in side.believes.items():
        yield f"was told by {address}: {', '.join(f'{name} {value}' for name, value in facts.items())}"


def _server(server: ServerRow) -> str:
    parts = [f"bootstrap {server.address}"]
    if server.silence:
        parts.append(f"missing: {server.silence}")
    if server.info:
        follows = {"True": "follows rooms", "False": "does not follow rooms"}
        parts += [
            f"dp {server.info.get('dp_size', '?')}",
            follows.get(server.info.get("follow_bootstrap_room", ""), ""),
        ]
    if server.info_off:
        parts.append(server.info_off)
    if server.rooms_asked:
        parts.append(f"{server.rooms_registered} of {server.rooms_asked} rooms registered")
    if server.way:
        parts.append(f"asked {server.way}")
    return " · ".join(filter(None, parts))


def _draw_rooms(rows: tuple[RoomRow, ...], console: Console, *, wide: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    places = list(dict.fromkeys(place for row in rows for asker in row.decode for place in asker.places))
    columns = sorted(places) if len(places) <= MAX_COLUMNS else []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("room", "formula", "bootstrap", "prefill", *(columns or ["decode"]), "verdict"):
        table.add_column(name, no_wrap=name != "decode")
    if wide:
        table.add_column("")
    for row in rows:
        decode = [_cell(row, place) for place in columns] if columns else [_folded(row)]
        cells = [str(row.room), _formula(row), _registered(row), _held(row), *decode]
        more = [row.text] if wide else []
        table.add_row(*cells, Text(row.verdict, style=_STYLE.get(row.verdict, "bold red")), *more)
    console.print(table)


def _formula(row: RoomRow) -> str:
    return "-" if row.formula is None else f"dp{row.formula}"


def _registered(row: RoomRow) -> str:
    if row.bootstrap is not None:
        return f"dp{row.bootstrap}"
    return "missing" if row.bootstrap_note.startswith("missing") else "none"


def _held(row: RoomRow) -> str:
    return ",".join(f"dp{dp}" for dp in sorted({holder.dp for holder in row.prefill})) or "-"


def _believed(asker: Asker) -> str:
    if asker.dp is not None:
        return f"dp{asker.dp}"
    if "decode.pending" not in asker.queues:
        return "-"
    return "asks" if len(asker.queues) > 1 else "pending"


def _cell(row: RoomRow, place: str) -> str:
    return next((_believed(asker) for asker in row.decode if place in asker.places), "-")


def _folded(row: RoomRow) -> str:
    """Return what the decode ranks take, ranks that agree together: ``dp1: tp0, tp1 · asks: tp2``."""
    said: dict[str, list[str]] = {}
    for asker in row.decode:
        said.setdefault(_believed(asker), []).extend(asker.places)
    if len(said) == 1:
        [(what, places)] = said.items()
        return f"{what}: all {len(places)}"
    return " · ".join(
        f"{what}: {', '.join(places[:4])}{', …' if len(places) > 4 else ''}" for what, places in said.items()
    )
