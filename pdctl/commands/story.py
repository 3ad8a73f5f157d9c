"""``pdctl story``: one room's way through all ranks of prefill and decode, on one time line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.options import (
    RANK_TIMEOUT_S,
    TIMEOUT_S,
    AllStartsOption,
    FromOption,
    OutputOption,
    RankTimeoutOption,
    RecordDirOption,
    RunDirOption,
    TimeoutOption,
    find,
    target_place,
)
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import check_target, write_new
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.probes.story.model import RankPast, RoomStory, StoryDocument
    from pdctl.targets.find import Found

PLOTS = (".svg", ".png", ".html")
_STYLE = {
    "fault": "magenta",
    "abort": "yellow",
    "missing": "yellow",
    "held": "cyan",
    "sent": "blue",
    "landed": "blue",
    "decision": "bold",
}


def command(
    asked: Annotated[str, typer.Argument(metavar="ROOM|RID", help="The room's number, or the request's id.")],
    output: OutputOption = Format.TABLE,
    every_start: AllStartsOption = False,
    source: FromOption = None,
    perfetto: Annotated[
        Optional[Path],  # noqa: UP045  # as in options.py
        typer.Option(
            "--perfetto",
            parser=target_place,
            metavar="FILE",
            help="Also write a trace that ui.perfetto.dev opens (JSON).",
        ),
    ] = None,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--plot",
            parser=target_place,
            metavar="FILE",
            help="Also draw it: FILE.svg, FILE.png or FILE.html (pdctl[plot]).",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that exist; without it they are left as they are.")
    ] = False,
    through: Annotated[
        str,
        typer.Option(
            "--through",
            metavar="WAY",
            help="Use only: sockets, recordings. Default: sockets where no file can be read.",
        ),
    ] = "",
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
) -> int:
    """Tell what happened to one room on all ranks of both sides, from their recordings, on one time line.

    Ranks of different hosts are put on it by the rounds they share and the messages between the sides; how far each may be
    off is shown. What recordings have lost is said. Exit code: 0, or 3 when no recording knows the room.
    """
    if through not in ("", "sockets", "recordings"):
        raise typer.BadParameter("sockets or recordings", param_hint="--through")
    if source is not None and through == "sockets":
        raise typer.BadParameter("--from reads recordings, not sockets", param_hint="--through")
    targets = [path for path in (perfetto, plot) if path is not None]
    for path in targets:
        check_target(path, force=force)
    if perfetto is not None and plot is not None and perfetto.absolute() == plot.absolute():
        raise typer.BadParameter("--perfetto and --plot name one file", param_hint="--plot")
    if plot is not None:
        _plottable(plot)
    found = find(run_dir, record_dir, source, every_start=every_start, timeout=timeout, rank_timeout=rank_timeout)
    pasts = _pasts(found, "recordings" if source is not None else through, timeout, rank_timeout)
    document = _document(asked, found, pasts)
    out = Output(output)
    rows = tuple(entry for story in document.stories for entry in story.entries)
    out.document(document, rows, draw)
    if perfetto is not None:
        write_new(perfetto, _trace(document.stories), force=force)
    if plot is not None:
        from pdctl.probes.story.plot import draw as picture

        write_new(plot, picture(document.stories, plot.suffix.lower().lstrip(".")), force=force)
    for path in targets:
        out.note(f"wrote {path}")
    if output.drawn:
        for problem in found.problems:
            out.note(f"left out: {problem}")
    return int(Exit.CLEAN)


def _pasts(found: Found, through: str, timeout: float, rank_timeout: float) -> list[RankPast]:
    from pdctl.probes.story.collect import collect
    from pdctl.targets.client import Client

    if through == "recordings":
        return collect(found, None)
    with Client(timeout_s=timeout, spent_s=found.took_s, rank_timeout_s=rank_timeout) as client:
        return collect(found, client, files=through != "sockets")


def _document(asked: str, found: Found, pasts: list[RankPast]) -> StoryDocument:
    """Return the stories ``asked`` means. Raises PdctlError: PARTIAL for an unknown room, UNREACHABLE without recordings."""
    from pdctl.probes.story.find import known_rooms, meant, nearest
    from pdctl.probes.story.judge import story
    from pdctl.probes.story.model import StoryDocument
    from pdctl.targets.sources.agentless import unrecorded

    recordings = [past.recording for past in pasts if past.recording is not None]
    if not recordings:
        without = unrecorded(found.ranks)
        if without is not None:
            raise without
        why = "; ".join(dict.fromkeys(past.why_not for past in pasts if past.why_not))
        raise PdctlError(
            f"no recording can be read: {why or 'no rank has one'}",
            "Start ranks with recording on (PDCTL_RECORD_DIR on a file system with room), or give --from DIR.",
        )
    known = known_rooms(recordings)
    rooms = meant(asked, known, recordings, hashed=_hashed(asked, found.salts))
    if not rooms:
        near = nearest(asked, known)
        silent = sum(past.recording is None for past in pasts)
        unread = f"; {silent} rank{'s have' if silent > 1 else ' has'} no recording that can be read" if silent else ""
        earlier = f"; {found.earlier} ranks of earlier starts were left out, --all reads them" if found.earlier else ""
        hint = f"Known are, nearest first: {', '.join(near)}." if near else "No recording names any room yet."
        raise PdctlError(f"no recording knows a room or rid {asked}{unread}{earlier}", hint, Exit.PARTIAL)
    return StoryDocument(asked=asked, stories=tuple(story(pasts, room) for room in rooms), earlier=found.earlier)


def _hashed(rid: str, salts: tuple[str, ...]) -> list[str]:
    """Return what a request id is called in traces whose names are hashed with these salts."""
    if not salts:
        return []
    from pdctl.trace.redact import Names

    return [Names(salt).rid(rid) for salt in salts]


# ---- files -----------------------------------------------------------------------------------------------------------


def _plottable(path: Path) -> None:
    from pdctl.protocol import extras

    if path.suffix.lower() not in PLOTS:
        raise typer.BadParameter(f"{path.name} ends in none of {', '.join(PLOTS)}", param_hint="--plot")
    extras.require("plot", "--plot")


def _trace(stories: tuple[RoomStory, ...]) -> bytes:
    from pdctl.probes.story.perfetto import trace
    from pdctl.report.escaping import json_encoded

    return json_encoded(trace(stories)).encode()


# ---- for people ------------------------------------------------------------------------------------------------------


def draw(document: StoryDocument, console: Console) -> None:
    """Draw every story: its lines, the clocks they rest on, and what is not known."""
    for number, story in enumerate(document.stories):
        if number:
            console.print()
        _draw_story(story, console)
    if document.earlier:
        console.print(f"\n{document.earlier} ranks of earlier starts left out: --all reads them")


def _draw_story(story: RoomStory, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    rid = f"  rid {', '.join(story.rids)}" if story.rids else ""
    console.print(Text(f"room {story.room}{rid}", style="bold"))
    scale, unit, digits = (1e3, "ms", 1) if story.span_s < 10 else (1.0, "s", 3)
    console.print(f"first entry at {story.started[11:23]} UTC, {story.started[:10]}; times in {unit} since")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for entry in story.entries:
        time = f"{entry.t_s * scale:,.{digits}f}"
        table.add_row(time, entry.rank, Text(entry.text, style=_STYLE.get(entry.kind, "")))
    console.print(table)
    _draw_clocks(story, console)
    for title, lines in (("not known", story.gaps), ("noted", story.notes)):
        for n, line in enumerate(lines):
            grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
            grid.add_column(width=9, no_wrap=True)
            grid.add_column()
            grid.add_row("" if n else title, line)
            console.print(grid)


def _draw_clocks(story: RoomStory, console: Console) -> None:
    from rich.table import Table

    saw = [line for line in story.ranks if line.saw]
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    grid.add_column(width=9, no_wrap=True)
    grid.add_column()
    lines = []
    for clock in dict.fromkeys((line.clock, line.uncertainty_s) for line in saw):
        who = ", ".join(line.rank for line in saw if (line.clock, line.uncertainty_s) == clock)
        why, within = clock
        lines.append(why if not within and len({line.clock for line in saw}) == 1 else f"{who}: {_sure(within, why)}")
    others = [line for line in story.ranks if not line.saw and not line.why_not]
    if others:
        lines.append(f"never on {', '.join(line.rank for line in others)}, as far as recordings go")
    for n, text in enumerate(lines):
        grid.add_row("" if n else "clocks", text)
    console.print(grid)


def _sure(within: float | None, why: str) -> str:
    from pdctl.probes.story.perfetto import uncertainty

    if within is None:
        return f"{uncertainty(None)}{why.removeprefix('wall clocks only')}"
    return f"{uncertainty(within)}, {why}" if within else why


__all__ = ["command", "draw"]
