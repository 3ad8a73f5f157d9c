"""``pdctl stuck``: every request that waits, what the other side says of it, and what will end the wait."""

from __future__ import annotations

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
    within,
)
from pdctl.probes.stuck import ORDER, STUCK_S
from pdctl.protocol.errors import Exit
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.probes.stuck.model import StuckDocument, Waiting

WATCH_S = 2.0
SHOWN = 40
_PREFIX = "SGLANG_DISAGGREGATION_"
_PROGRESS = {"still": "bold", "moving": "green", "in line": "cyan", "new": "dim"}


def command(
    older: Annotated[
        Optional[float],  # noqa: UP045  # typer evaluates annotations
        typer.Option("--older", parser=seconds, metavar="TIME", help="Show only requests that wait this long."),
    ] = None,
    by: Annotated[str, typer.Option("--by", metavar="WHAT", help="Sort by: age, queue, rank.")] = "age",
    watch: Annotated[
        float, typer.Option("--watch", parser=seconds, metavar="TIME", help="Pause between the two looks.")
    ] = WATCH_S,
    stuck: Annotated[
        float,
        typer.Option(
            "--stuck-after", parser=seconds, metavar="TIME", help="Age at which a wait nothing ends is a finding."
        ),
    ] = STUCK_S,
    output: OutputOption = Format.TABLE,
    source: FromOption = None,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
) -> int:
    """Show every request that waits, what the other side says of its room, and which time-out will end it.

    Two looks tell what moves from what does not. A full decode is said to be full, not faulty. With --from, what the
    polled queues held when the last of the ranks wrote; time-outs and memory are not in recordings.
    Exit code: 0 nothing is stuck, 1 on a finding, 3 when some ranks did not answer, 4 when none did.
    """
    from pdctl.probes.stuck.judge import judge
    from pdctl.probes.stuck.model import Waiting

    if by not in ORDER:
        raise typer.BadParameter(", ".join(ORDER), param_hint="--by")
    if source is None:
        within(watch, timeout)
    found = find(run_dir, record_dir, source, timeout=timeout, rank_timeout=rank_timeout)
    from pdctl.probes.stuck.collect import collect, collect_recorded
    from pdctl.targets.client import Client
    from pdctl.targets.fallback import stand_in

    with Client(timeout_s=timeout, spent_s=found.took_s, rank_timeout_s=rank_timeout) as client:
        found = stand_in(found, client)
        looks = (collect if source is None else collect_recorded)(found, client, pause_s=watch)
    document = judge(looks, pause_s=watch, older_s=older or 0.0, stuck_s=stuck, by=by)
    out = Output(output)
    wide = output is Format.WIDE
    answered = any(look.second is not None for look in looks)
    code = int(exit_code(document, answered=answered, partial=bool(found.problems)))
    out.document(document, document.requests, partial(draw, every=wide), row=Waiting, code=code)
    if output.drawn:
        for problem in (*document.problems, *found.problems):
            out.note(f"not asked or in part: {problem}")
        if found.left_out:
            out.note(found.left_out)
    return code


def exit_code(document: StuckDocument, *, answered: bool, partial: bool = False) -> Exit:
    """Return what the command exits with. partial: something was not found, besides what the document says."""
    from pdctl.report.findings import Level

    if any(found.level is not Level.INFO for found in document.findings):
        return Exit.FINDING
    if not answered:
        return Exit.UNREACHABLE
    return Exit.PARTIAL if document.partial or partial else Exit.CLEAN


# ---- for people ------------------------------------------------------------------------------------------------------


def draw(document: StuckDocument, console: Console, *, every: bool = False) -> None:
    """Draw every room that waits with a line for each side, then the findings."""
    from rich.text import Text

    if not document.requests:
        console.print("no request waits" if not document.hidden else "no request waits that long")
    rooms: dict[tuple[str, int], list[Waiting]] = {}
    for request in document.requests:
        rooms.setdefault((request.cluster, request.room), []).append(request)
    shown = list(rooms.values()) if every else list(rooms.values())[:SHOWN]
    for requests in shown:
        _draw_room(requests, console)
    if len(rooms) > len(shown):
        console.print(Text(f"… and {len(rooms) - len(shown)} more rooms (-o wide or json shows all)", style="dim"))
    if document.hidden:
        console.print(Text(f"({document.hidden} younger requests not shown)", style="dim"))
    draw_findings(document.findings, console)


def _draw_room(requests: list[Waiting], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from pdctl.protocol.durations import seconds as spoken

    oldest = max(requests, key=lambda request: request.age_s)
    age = spoken(oldest.age_s) if oldest.age_s >= 0 else "age unknown"
    line = Text(f"room {oldest.room}", style="bold")
    line.append(f"  {age}  ", style="")
    line.append(oldest.progress, style=_PROGRESS.get(oldest.progress, ""))
    console.print(line)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for wrap in (True, False, False):
        table.add_column(no_wrap=wrap)
    for request in sorted(requests, key=lambda each: each.role, reverse=True):
        table.add_row(f"  {request.side}", _where(request), _ends(request))
    if len({request.role for request in requests}) == 1:
        table.add_row("  other side", requests[0].peer, "")
    console.print(table)


def _where(request: Waiting) -> str:
    """Return queue and state, by rank where the ranks differ, and what it holds."""
    from pdctl.probes.stuck.sides import folded

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
    from pdctl.protocol.durations import seconds as spoken

    if request.left_s is not None:
        return f"{request.cover.removeprefix(_PREFIX)} in {spoken(max(0.0, request.left_s))}"
    if request.cover == "unknown":
        return "what ends it is not known for this backend"
    return f"nothing ends it{f': {request.note.removeprefix(_PREFIX)}' if request.note else ''}"
