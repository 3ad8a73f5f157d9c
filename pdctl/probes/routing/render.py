"""How ``verify-routing`` is drawn: how each server routes, then room by room what everybody believes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.report import drawing
from pdctl.targets.nodeset import join

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from pdctl.probes.routing.model import Asker, RoomRow, RoutingDocument, ServerRow, Side

SHOWN, _OF_MANY = 40, 12
"""Rooms that are shown, and how many of more than those: the ones that are not well first."""
_WELL = ("AGREE", "WAITS", "DONE", "GONE")
MAX_COLUMNS = 4
SERVERS = 6
"""Servers of both kinds that have a line each; of more, those that are alike have one."""
_STYLE = {
    "AGREE": "green",
    "WAITS": "cyan",
    "DONE": "dim",
    "GONE": "dim",
    "UNKNOWN": "yellow",
    "EXPIRES": "yellow",
    "REFUSED": "yellow",
}


def render(document: RoutingDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield how each server routes, every room with its four beliefs, then the findings. wide: all rooms."""
    folds = not wide and len(document.sides) + len(document.servers) > SERVERS
    for sides in drawing.alike(document.sides, lambda side: _side(side, "") if folds else id(side)):
        yield Text(_side(sides[0], _services(sides)), style="bold")
        for line in _told(sides[0]) if wide else ():
            yield f"  {line}"
    for servers in drawing.alike(document.servers, lambda one: _server(one, "") if folds else id(one)):
        addresses = drawing.some(server.address for server in servers)
        yield Text(_server(servers[0], addresses), style="bold" if not servers[0].silence else "yellow")
    yield ""
    if not document.rooms:
        yield "no room waits to be routed" if not document.unknown else "none of these rooms is known"
    shown = document.rooms
    if len(shown) > SHOWN and not wide:
        shown = tuple(sorted(shown, key=lambda row: row.verdict in _WELL)[:_OF_MANY])
    if shown:
        yield _rooms(shown, wide=wide)
    if len(document.rooms) > len(shown):
        verdicts = Counter(row.verdict for row in document.rooms).most_common()
        yield drawing.dim(f"… and {len(document.rooms) - len(shown)} more rooms (-o wide or json shows all)")
        yield f"all {len(document.rooms)} rooms: {', '.join(f'{number} {verdict}' for verdict, number in verdicts)}"
    if document.young:
        several = document.young != 1
        yield drawing.dim(f"({document.young} difference{'s'[:several]} too young to be told from skew: no finding)")
    yield from drawing.findings(document.findings)


def _services(sides: Sequence[Side]) -> str:
    """Return the names of servers that route in the same way."""
    if len(sides) > 1:
        return f"{len(sides)} {sides[0].role} servers: {drawing.some(side.service for side in sides)}"
    [side] = sides
    return side.service if side.service.startswith(side.role) else f"{side.role} {side.service}"


def _side(side: Side, services: str) -> str:
    parts = [services or side.role]
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


def _server(server: ServerRow, addresses: str) -> str:
    parts = [f"bootstrap {addresses}"]
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


def _rooms(rows: tuple[RoomRow, ...], *, wide: bool) -> Table:
    places = list(dict.fromkeys(place for row in rows for asker in row.decode for place in asker.places))
    columns = sorted(places) if len(places) <= MAX_COLUMNS else []
    names = ("room", "formula", "bootstrap", "prefill", *(columns or ["decode"]), "verdict")
    table = drawing.table(*names, *([""] if wide else []), wraps=("decode", ""))
    for row in rows:
        decode = [_cell(row, place) for place in columns] if columns else [_folded(row)]
        cells = [str(row.room), _formula(row), _registered(row), _held(row), *decode]
        more = [row.text] if wide else []
        table.add_row(*cells, Text(row.verdict, style=_STYLE.get(row.verdict, "bold red")), *more)
    return table


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
    return " · ".join(f"{what}: {join(places)}" for what, places in said.items())
