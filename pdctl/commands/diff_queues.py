"""``pdctl diff-queues``: which rank is out of step with its group, since which round, on which request, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.commands.findings import draw_findings
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
    seconds,
)
from pdctl.probes.queues import CONFIRM, STALLED_S
from pdctl.protocol.errors import Exit
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.probes.queues.model import GroupReport, QueuesDocument, RankNow

_STYLE = {"DIVERGED": "bold red", "WAITING": "yellow", "SKEWED": "yellow", "HELD": "cyan", "AGREE": "green"}


def command(
    output: OutputOption = Format.TABLE,
    every_start: AllStartsOption = False,
    source: FromOption = None,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
    stalled: Annotated[
        float,
        typer.Option("--stalled", parser=seconds, metavar="TIME", help="How long one rank may keep its group waiting."),
    ] = STALLED_S,
    confirm: Annotated[
        int,
        typer.Option("--confirm", min=1, max=100, help="Looks a difference must last where no rounds are recorded."),
    ] = CONFIRM,
    through: Annotated[
        str,
        typer.Option("--through", metavar="WAY", help="Use only: sockets, recordings. Default: both."),
    ] = "",
) -> int:
    """Compare the queues of all ranks of each group, round by round, and name the first difference and its cause.

    Exit code: 0 when all groups agree, 1 on a finding, 3 when some ranks could not be judged, 4 when none could.
    """
    if through not in ("", "sockets", "recordings"):
        raise typer.BadParameter("sockets or recordings", param_hint="--through")
    found = find(run_dir, record_dir, source, every_start=every_start, timeout=timeout, rank_timeout=rank_timeout)
    # Not before there is something to compare: judging loads numpy.
    import msgspec

    from pdctl.probes.queues.look import look
    from pdctl.targets.client import Client
    from pdctl.targets.fallback import stand_in

    sockets = through != "recordings" and source is None
    with Client(timeout_s=timeout, spent_s=found.took_s, rank_timeout_s=rank_timeout) as client:
        found = stand_in(found, client) if sockets else found
        document = look(found, client, stalled_s=stalled, confirm=confirm, sockets=sockets, files=through != "sockets")
    document = msgspec.structs.replace(document, earlier=found.earlier)
    out = Output(output)
    code = int(exit_code(document, found_problems=bool(found.problems)))
    out.document(document, document.groups, draw, code=code)
    if output.drawn:
        for problem in (*document.problems, *found.problems):
            out.note(f"not judged or in part: {problem}")
        if found.left_out:
            out.note(f"{found.left_out}; --all shows them")
    return code


def exit_code(document: QueuesDocument, *, found_problems: bool = False) -> Exit:
    """Return what the command exits with: findings come first, then what could not be judged."""
    from pdctl.report.findings import Level

    if any(f.level is not Level.INFO for f in document.findings):
        return Exit.FINDING
    seen = any(now.state == "outside" for group in document.groups for now in group.now)
    unjudged = all(not group.compared and group.verdict == "UNKNOWN" for group in document.groups)
    if unjudged and not seen and (document.groups or document.partial):
        return Exit.UNREACHABLE
    return Exit.PARTIAL if document.partial or found_problems or not document.groups else Exit.CLEAN


# ---- for people ------------------------------------------------------------------------------------------------------


def draw(document: QueuesDocument, console: Console) -> None:
    """Draw every group, then every finding."""
    for number, group in enumerate(document.groups):
        if number:
            console.print()
        _draw_group(group, console)
    draw_findings(document.findings, console)


def _draw_group(group: GroupReport, console: Console) -> None:
    from rich.text import Text

    verdict = group.verdict
    if group.round >= 0:
        verdict += f" at round {group.round}"
    if group.age_s is not None:
        from pdctl.protocol.durations import seconds as spoken

        verdict += f", {spoken(group.age_s)} ago"
    line = Text(group.title, style="bold")
    line.append("   ")
    line.append(verdict, style=_STYLE.get(group.verdict, ""))
    console.print(line)
    _draw_queues(group, console)
    if group.splits:
        _draw_splits(group, console)
    if group.verdict not in ("AGREE", "HELD"):
        _draw_now(group.now, group.pairing, console)


def _draw_queues(group: GroupReport, console: Console) -> None:
    from rich.table import Table

    if not group.queues:
        if len(group.ranks) == 1:
            console.print("  one rank, nothing to compare")
        elif group.verdict == "UNKNOWN":
            console.print("  nothing to compare: fewer than two ranks have rounds that can be read")
        else:
            console.print("  no requests, no rounds yet")
        return
    shown = group.ranks if len(group.ranks) <= 8 else group.ranks[:8]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("  queue", no_wrap=True)
    for rank in shown:
        table.add_column(rank, justify="right", no_wrap=True)
    table.add_column("")
    for row in group.queues:
        name = row.queue.partition(".")[2] or row.queue
        lengths = ["-" if n is None else str(n) for n in row.lengths[: len(shown)]]
        said = {"diverged": row.text, "held": row.text, "agree": f"agree {row.text and '· ' + row.text}".strip()}
        text = said.get(row.verdict, f"{row.verdict}: {row.text}" if row.text else row.verdict)
        table.add_row(f"  {name}", *lengths, "" if row.verdict == "not polled" else text)
    console.print(table)
    if len(group.ranks) > len(shown):
        console.print(f"  ({len(group.ranks) - len(shown)} more ranks: -o json shows all)")


def _draw_splits(group: GroupReport, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from pdctl.probes.queues.formatting import side

    for split in group.splits[:5]:
        rid = f" (rid {split.rid})" if split.rid else ""
        console.print(Text(f"      round {group.round}, room {split.room}{rid}", style="dim"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column()
        for s in split.sides:
            did, knew = side(s, ordinal=group.round)
            table.add_row(f"        {s.rank} {did}", knew)
        console.print(table)
    if len(group.splits) > 5:
        console.print(f"      … and {len(group.splits) - 5} more rooms (-o json shows all)")


def _draw_now(now: tuple[RankNow, ...], pairing: tuple[str, ...], console: Console) -> None:
    from rich.table import Table

    from pdctl.protocol.durations import seconds as spoken

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for n, rank in enumerate(now):
        age = f", {spoken(rank.age_s)}" if rank.age_s is not None else ""
        state = "" if rank.state == "live" else f"({rank.state}) "
        table.add_row(f"  {'now' if not n else '   '}  {rank.rank}", f"{state}{rank.doing or 'unknown'}{age}")
    console.print(table)
    for line in pairing:
        console.print(f"       {line}")
