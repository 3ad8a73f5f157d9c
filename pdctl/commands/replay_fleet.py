"""The projecting part of ``pdctl replay``: a fleet and how late rows land, given or measured, to a probability an hour."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.commands.pictures import plottable
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import write_new
from pdctl.replay.fleet import FleetDocument, Lag, counted, parse_fleet, parse_lag, project
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.replay.fleet_measure import Measured

PLOTS = (".svg", ".png")


def run(fleet: str, lag: str, trace: Path | None, plot: Path | None, output: Format) -> int:
    """Project, print, and return 0. Raises PdctlError for what can't be projected."""
    try:
        asked, paced = parse_fleet(fleet)
    except ValueError as error:
        raise PdctlError(f"--fleet: {error}", "For example --fleet ranks=10000,group=8,rate=5/s.", Exit.USAGE) from None
    if bool(lag) == (trace is not None):
        raise PdctlError(
            "how late metadata lands is given twice" if lag else "nothing says how late metadata lands",
            "--lag late=0.1%,mean=3ms, or a TRACE to measure it in.",
            Exit.USAGE,
        )
    if plot is not None:
        plottable(plot, PLOTS)
    if trace is None:
        document = project(asked, _given(lag), source="as given")
    else:
        measured = _measured(trace)
        if not paced and measured.round_s:
            from dataclasses import replace

            asked = replace(asked, round_s=measured.round_s)
        late = counted(measured.late_s, measured.total, measured.unseen)
        document = project(asked, late, source="measured", observed=measured.total)
    if plot is not None:
        from pdctl.replay.fleet_plot import draw as picture

        write_new(plot, picture(document, plot.suffix.lower().lstrip(".")))
    out = Output(output)
    out.document(document, document.curves, draw)
    if plot is not None:
        out.note(f"wrote {plot}")
    return int(Exit.CLEAN)


def _given(lag: str) -> Lag:
    try:
        return parse_lag(lag)
    except ValueError as error:
        raise PdctlError(f"--lag: {error}", "For example --lag late=0.1%,mean=3ms.", Exit.USAGE) from None


def _measured(trace: Path) -> Measured:
    from pdctl.commands.options import find
    from pdctl.recording.reader import BadRecording, read
    from pdctl.replay.fleet_measure import measure

    recordings = []
    for rank in find(None, None, trace, every_start=True).ranks:
        try:
            if rank.recording is not None:
                recordings.append(read(rank.recording))
        except (OSError, BadRecording) as error:
            Output().note(f"left out: {rank.identity.label}: {error}")
    found = measure(recordings)
    if not found.total:
        raise PdctlError(
            f"no recording of {trace} shows a request of decode.transfer in Success",
            "Record a decode group under load, or give --lag late=0.1%,mean=3ms.",
            Exit.PARTIAL,
        )
    return found


# ---- for people ------------------------------------------------------------------------------------------------------


def draw(document: FleetDocument, console: Console) -> None:
    """Draw what goes in, what comes out, and what it assumes."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{document.groups:,} groups of {document.group} ranks", style="bold"))
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column()
    over = f", over {document.observed:,} requests on a rank" if document.observed else ""
    mean = f", by {document.late_mean_s * 1000:.3g} ms on average" if document.late_mean_s else ""
    grid.add_row("  metadata late at Success", f"{document.late:.3g} of slots{mean} ({document.source}{over})")
    grid.add_row("  load", f"{document.rate:g} requests/s a group, a round every {document.round_s * 1000:.3g} ms")
    grid.add_row("  one request parts its group", _with(document.request, document.request_low, document.request_high))
    grid.add_row("  any group within an hour", _with(document.hour, document.hour_low, document.hour_high))
    grid.add_row("  groups lost in an hour", f"{document.groups_lost:.3g} of {document.groups:,}")
    grid.add_row("  time to the first", _span(document.until_s))
    console.print(grid)
    console.print()
    for n, line in enumerate(document.assumes):
        row = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, style="dim")
        row.add_column(width=7, no_wrap=True)
        row.add_column()
        row.add_row("" if n else "assumes", line)
        console.print(row)


def _with(value: float, low: float | None, high: float | None) -> str:
    bounds = f"  (95 %: {low:.3g} to {high:.3g})" if low is not None and high is not None else ""
    return f"probability {value:.3g}{bounds}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    for name, unit in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name} on average"
    return f"{seconds:.3g} s on average"
