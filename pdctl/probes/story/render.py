"""How ``story`` is drawn: a time line for each room, the clocks it rests on, and what is not known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from pdctl.probes.story.perfetto import uncertainty
from pdctl.report import drawing
from pdctl.targets.nodeset import listed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from pdctl.probes.story.model import RoomStory, StoryDocument

_STYLE = {
    "fault": "magenta",
    "abort": "yellow",
    "log": "dim",
    "failure": "red",
    "missing": "yellow",
    "held": "cyan",
    "sent": "blue",
    "landed": "blue",
    "decision": "bold",
}


def render(document: StoryDocument) -> Iterable[RenderableType]:
    """Yield every story: its lines, the clocks they rest on, and what is not known."""
    for number, story in enumerate(document.stories):
        if number:
            yield ""
        yield from _story(story)
    yield from drawing.findings(document.findings)


def _story(story: RoomStory) -> Iterable[RenderableType]:
    rid = f"  rid {', '.join(story.rids)}" if story.rids else ""
    yield Text(f"room {story.room}{rid}", style="bold")
    scale, unit, digits = (1e3, "ms", 1) if story.span_s < 10 else (1.0, "s", 3)
    yield f"first entry at {story.started[11:23]} UTC, {story.started[:10]}; times in {unit} since"
    table = drawing.grid(False, False, True, right=(0,))
    for entry in story.entries:
        time = f"{entry.t_s * scale:,.{digits}f}"
        style = _STYLE.get("abort" if entry.value == "cancelled" else entry.kind, "")
        table.add_row(time, entry.rank, Text(entry.text, style=style))
    yield table
    yield _clocks(story)
    for title, lines in (("not known", story.gaps), ("noted", story.notes)):
        for n, line in enumerate(lines):
            grid = drawing.grid(False, True, width=9)
            grid.add_row("" if n else title, line)
            yield grid


def _clocks(story: RoomStory) -> Table:
    saw = [line for line in story.ranks if line.saw]
    grid = drawing.grid(False, True, width=9)
    lines = []
    for clock in dict.fromkeys((line.clock, line.uncertainty_s) for line in saw):
        who = listed([line.rank for line in saw if (line.clock, line.uncertainty_s) == clock])
        why, within = clock
        lines.append(why if not within and len({line.clock for line in saw}) == 1 else f"{who}: {_sure(within, why)}")
    others = [line for line in story.ranks if not line.saw and not line.elsewhere and not line.why_not]
    if others:
        lines.append(f"never on {listed([line.rank for line in others])}, as far as recordings go")
    lines += [f"{log.name}: {log.clock or 'no line that names it'}" for log in story.logs]
    for n, text in enumerate(lines):
        grid.add_row("" if n else "clocks", text)
    return grid


def _sure(within: float | None, why: str) -> str:
    if within is None:
        return f"{uncertainty(None)}{why.removeprefix('wall clocks only')}"
    return f"{uncertainty(within)}, {why}" if within else why
