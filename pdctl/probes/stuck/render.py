"""How ``stuck`` is drawn: room by room, a line for each side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.probes.stuck.advice import BEHIND, FIRST
from pdctl.probes.stuck.sides import folded
from pdctl.protocol.durations import seconds as spoken
from pdctl.report import drawing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pdctl.probes.stuck.model import StuckDocument, Waiting

SHOWN = 40
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
    shown = list(rooms.values()) if wide else list(rooms.values())[:SHOWN]
    for requests in shown:
        yield from _room(requests)
    if len(rooms) > len(shown):
        yield drawing.dim(f"… and {len(rooms) - len(shown)} more rooms (-o wide or json shows all)")
    if document.hidden:
        yield drawing.dim(f"({document.hidden} younger requests not shown)")
    yield from drawing.findings(document.findings, below=True)


def _room(requests: list[Waiting]) -> Iterable[RenderableType]:
    oldest = max(requests, key=lambda request: request.age_s)
    age = spoken(oldest.age_s) if oldest.age_s >= 0 else "age unknown"
    line = Text(f"room {oldest.room}", style="bold")
    line.append(f"  {age}  ", style="")
    line.append(oldest.progress, style=_PROGRESS.get(oldest.progress, ""))
    yield line
    table = drawing.grid(False, True, True)
    for request in sorted(requests, key=lambda each: each.role, reverse=True):
        table.add_row(f"  {request.side}", _where(request), _ends(request))
    if len({request.role for request in requests}) == 1:
        table.add_row("  other side", requests[0].peer, "")
    yield table


def _where(request: Waiting) -> str:
    """Return queue and state, by rank where the ranks differ, and what it holds."""
    kinds = {(place.queue, place.state) for place in request.ranks}
    if len(kinds) == 1:
        where = _short(request.queue, request.state)
    else:
        where = ", ".join(f"{folded(place.ranks)} {_short(place.queue, place.state)}" for place in request.ranks)
    return f"{where}; holds {request.holds}" if request.holds else where


def _short(queue: str, state: str) -> str:
    name = queue.partition(".")[2] or queue
    return name if state == "-" else f"{name} {state}"


def _ends(request: Waiting) -> str:
    if request.left_s is not None:
        return f"{request.cover.removeprefix(_PREFIX)} in {spoken(max(0.0, request.left_s))}"
    if request.queue in _UNTIL or request.note in (FIRST, BEHIND):
        return _UNTIL.get(request.queue, request.note)
    if request.cover == "unknown":
        return request.note or "what ends it is not known for this backend"
    return f"nothing ends it{f': {request.note.removeprefix(_PREFIX)}' if request.note else ''}"
