"""How ``stuck`` is drawn: room by room, a line for each side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.probes.queues.formatting import names
from pdctl.probes.stuck import UNHEARD_S
from pdctl.probes.stuck.advice import AFTER_RETRACTED, BEHIND, FIRST, NO_SLOT, overdue_s
from pdctl.protocol.durations import seconds as spoken
from pdctl.report import drawing

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from pdctl.probes.stuck.model import StuckDocument, Waiting

SHOWN, _OF_MANY = 40, 5
"""Rooms that are shown one by one, and how many of more than those: only ones that stand still."""
_PREFIX = "SGLANG_DISAGGREGATION_"
_UNTIL = {"decode.retracted": "until there is space again", "waiting": "until there is a place in a batch"}
"""What ends the wait of requests that wait for nothing from the other side."""
_PROGRESS = {"still": "bold", "moving": "green", "in line": "cyan", "new": "dim"}


def render(document: StuckDocument, *, wide: bool) -> Iterable[RenderableType]:
    """Yield what is wrong, every room that waits with a line for each side (wide: all of them), then the findings."""
    yield from drawing.headline(document.findings)
    if not document.requests:
        yield "no request waits" if not document.hidden else "no request waits that long"
    rooms: dict[tuple[str, int], list[Waiting]] = {}
    for request in document.requests:
        rooms.setdefault((request.cluster, request.room), []).append(request)
    each = list(rooms.values())
    if len(each) > SHOWN and not wide:
        each = [requests for requests in each if not _moves(requests)][:_OF_MANY]
    endless = {room for found in document.findings if found.code == "PD141" for room in found.rooms}
    for requests in each:
        yield from _room(requests, endless=requests[0].room in endless)
    if len(rooms) > len(each):
        more = f"… and {len(rooms) - len(each)} more rooms" if each else f"{len(rooms)} rooms, and none stands still"
        yield drawing.dim(f"{more} (-o wide or json shows all). All of them:")
        yield _all(document.requests)
    if document.hidden:
        yield drawing.dim(f"({document.hidden} younger requests not shown)")
    yield from drawing.findings(document.findings, below=True)


def _moves(requests: list[Waiting]) -> bool:
    return all(request.progress != "still" for request in requests)


def _all(requests: Sequence[Waiting]) -> Table:
    """Return a table of many requests, by where they are and whether they get on."""
    table = drawing.table("  side", "where", "", "requests", "groups", "oldest", right=("requests", "groups", "oldest"))
    lines = drawing.alike(requests, lambda one: (one.role, one.queue, one.state, one.progress))
    for those in sorted(lines, key=_moves)[: drawing.MANY]:
        one, age_s = those[0], max(request.age_s for request in those)
        table.add_row(
            f"  {one.role}",
            _short(one.queue, one.state),
            Text(one.progress, style=_PROGRESS.get(one.progress, "")),
            str(len(those)),
            str(len({request.side for request in those})),
            spoken(age_s) if age_s >= 0 else "-",
        )
    return table


def _room(requests: list[Waiting], *, endless: bool) -> Iterable[RenderableType]:
    oldest = max(requests, key=lambda request: request.age_s)
    age = spoken(oldest.age_s) if oldest.age_s >= 0 else "age unknown"
    line = Text(f"room {oldest.room}", style="bold")
    line.append(f"  {age}  ", style="")
    line.append(oldest.progress, style=_PROGRESS.get(oldest.progress, ""))
    yield line
    table = drawing.grid(False, True, True)
    for request in sorted(requests, key=lambda each: each.role, reverse=True):
        table.add_row(f"  {request.side}", _where(request), _ends(request, endless=endless))
    if len({request.role for request in requests}) == 1:
        table.add_row("  other side", requests[0].peer, "")
    yield table


def _where(request: Waiting) -> str:
    """Return queue and state, by rank where the ranks differ, and what it holds."""
    kinds = {(place.queue, place.state) for place in request.ranks}
    if len(kinds) == 1:
        where = _short(request.queue, request.state)
    else:
        where = ", ".join(f"{names(place.ranks)} {_short(place.queue, place.state)}" for place in request.ranks)
    return f"{where}; holds {request.holds}" if request.holds else where


def _short(queue: str, state: str) -> str:
    name = queue.partition(".")[2] or queue
    return name if state == "-" else f"{name} {state}"


def _ends(request: Waiting, *, endless: bool) -> str:
    """Return what ends a wait. endless: a finding says that nothing does; else it ends as the request gets on."""
    if request.note in (AFTER_RETRACTED, NO_SLOT):
        return request.note
    if overdue_s(request) >= UNHEARD_S:
        return f"{request.cover.removeprefix(_PREFIX)} was due {spoken(overdue_s(request))} ago"
    if request.left_s is not None:
        return f"{request.cover.removeprefix(_PREFIX)} in {spoken(max(0.0, request.left_s))}"
    if request.queue in _UNTIL or request.note in (FIRST, BEHIND):
        return _UNTIL.get(request.queue, request.note)
    if request.cover == "unknown":
        return request.note or "what ends it is not known for this backend"
    what = "nothing ends it" if endless else "no time-out ends it"
    return f"{what}{f': {request.note.removeprefix(_PREFIX)}' if request.note else ''}"
