"""``pdctl faults``: which faults are in place, on which ranks, whose they are, and when they end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pdctl.commands import options as opt
from pdctl.commands.options import find, reach_of
from pdctl.commands.watching import WatchOption, watch
from pdctl.inject.parameter import format_fault
from pdctl.protocol import durations
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError, exit_of
from pdctl.report.output import Document, Format, Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from pdctl.faults.messages import FaultsBody
    from pdctl.protocol.model import FaultStatus
    from pdctl.targets.client import Answer, Client
    from pdctl.targets.find import FoundRank

EXAMPLES = ("pdctl faults", "pdctl faults --available")

WAIT_S = 900.0
LOOK_S = 0.25
WIDE = 120
"""Columns from which on the faults fit into a table."""


class FaultRow(msgspec.Struct, frozen=True):
    """One fault on one rank. Times in seconds. ended: why it is over, "" while it is in place."""

    fault: str
    kind: str
    target: str
    rank: str
    host: str
    pid: int
    owner: str
    delay_s: float
    left_s: float
    room: int
    hits: int
    visits: int
    eligible: int
    fired: int
    passed: int
    held: int
    released: int
    dropped: int
    failed: int
    last_room: int
    leased: bool
    ended: str
    value: int
    rid: str
    seed: int
    share: float


class FaultsDocument(Document, frozen=True, kw_only=True, tag="pdctl.faults"):
    """All faults found. silent: ranks that may hold one and did not answer, with the reason."""

    faults: list[FaultRow]
    silent: list[str]


def command(
    ctx: typer.Context,
    available: Annotated[
        bool,
        typer.Option("--available", help="Show which faults each rank can carry, and why it can't carry the others."),
    ] = False,
    past: Annotated[
        bool, typer.Option("--past", help="Show ended faults, too, as far as ranks remember them.")
    ] = False,
    wait_for_hit: Annotated[
        str, typer.Option("--wait-for-hit", metavar="ID", help="Wait until this fault has fired.", show_default=False)
    ] = "",
    within: Annotated[str, typer.Option("--within", metavar="TIME", help="How long --wait-for-hit waits.")] = "15m",
    every_s: WatchOption = None,
    output: opt.OutputOption = Format.TABLE,
    timeout: opt.TimeoutOption = opt.TIMEOUT_S,
    rank_timeout: opt.RankTimeoutOption = opt.RANK_TIMEOUT_S,
    run_dir: opt.RunDirOption = None,
    record_dir: opt.RecordDirOption = None,
) -> int:
    """List the faults in place: their owners, their hits, and when they end by themselves.

    Exit code: 0 all ranks answered, 3 a rank that may hold a fault did not, 4 no rank did. With --wait-for-hit: 0 the fault
    fired, 3 it ended and never fired, 124 it did not fire within --within.
    """
    try:
        within_s = durations.parse(within, most_s=WAIT_S, what="--within")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if wait_for_hit and every_s is not None:
        raise typer.BadParameter("--wait-for-hit looks again by itself", param_hint="--watch")
    from pdctl.targets.client import Client

    reach = reach_of(ctx)

    def look(out: Output) -> int:
        there = find(run_dir, record_dir, reach=reach, timeout=timeout, rank_timeout=rank_timeout, outside=False)
        found = there.ranks
        with Client(timeout_s=timeout, spent_s=there.took_s, rank_timeout_s=rank_timeout) as client:
            if available:
                from pdctl.commands.faults_available import show

                return show(out, _ask(client, found))
            if wait_for_hit:
                return _wait(out, client, found, wait_for_hit, within_s)
            answers = _ask(client, found)
            silent = _silent(answers)
            rows = _rows(answers, past=past)
            code = exit_of(seen=any(answer.body for answer in answers), partial=bool(silent))
            _show(out, rows, silent, code)
            return code

    return look(Output(output)) if every_s is None else watch(look, output, every_s)


def _ask(client: Client, found: Sequence[FoundRank]) -> list[Answer[FaultsBody]]:
    from pdctl.faults.messages import FaultsBody

    client.restart()
    return client.ask(found, "faults", FaultsBody)


def _silent(answers: Sequence[Answer[FaultsBody]]) -> list[str]:
    from pdctl.inject.healing import may_hold

    reasons = ((answer.rank.identity, may_hold(answer)) for answer in answers if answer.body is None)
    return [f"{identity.who}: {why}" for identity, why in reasons if why]


def _rows(answers: Sequence[Answer[FaultsBody]], *, past: bool) -> list[FaultRow]:
    rows = []
    for answer in answers:
        if answer.body is not None:
            left = {status.id for status in answer.body.left}
            ended = [status for status in answer.body.past if past and status.id not in left]
            rows += [_row(answer.rank, status) for status in (*ended, *answer.body.left)]
    return rows


def _row(rank: FoundRank, status: FaultStatus) -> FaultRow:
    alike = {name: getattr(status, name) for name in FaultRow.__struct_fields__ if hasattr(status, name)}
    alike.update(
        fault=status.id,
        rank=rank.identity.label,
        host=rank.identity.host,
        pid=rank.identity.pid,
        left_s=round(status.left_s, 1),
        held=status.pending,
    )
    return FaultRow(**alike)


def _show(out: Output, rows: list[FaultRow], silent: list[str], code: Exit = Exit.CLEAN) -> None:
    def draw(document: FaultsDocument, console: Console) -> None:
        rows = document.faults
        if not rows:
            console.print("no faults" if not document.silent else "no faults on the ranks that answered")
            return
        if console.width < WIDE:
            _draw_blocks(rows, console)
            return
        from pdctl.report import drawing

        counted = ("visits", "eligible", "fired", "held")
        names = ("fault", "kind", "aims at", "placed on", "owner", "state")
        table = drawing.table(*names, *counted, right=counted, wraps=("kind", "owner", "state"))
        for row in rows:
            kind = format_fault(row.kind, row.delay_s, row.value)
            counts = (str(count) for count in (row.visits, row.eligible, row.fired, row.held))
            table.add_row(row.fault, kind, row.target, f"{row.rank} pid {row.pid}", row.owner, _state(row), *counts)
        console.print(table)

    out.document(FaultsDocument(faults=rows, silent=silent), Rows(FaultRow, rows), draw, code=code)
    for line in silent:
        out.error(f"{line}: it may hold a fault")


def _state(row: FaultRow) -> str:
    left = "as long as its command runs" if row.leased else f"{durations.show(row.left_s)} left"
    return f"ended: {row.ended}" if row.ended else f"in place, {left}"


def _draw_blocks(rows: list[FaultRow], console: Console) -> None:
    """Draw a block for each fault, where the columns of a table would be too narrow to read."""
    from rich.padding import Padding

    for row in rows:
        console.print(f"{row.fault}  {format_fault(row.kind, row.delay_s, row.value)}", style="bold")
        for line in (
            _state(row),
            f"aims at {row.target}",
            f"placed on {row.rank} pid {row.pid}",
            f"by {row.owner or 'unknown'}",
            f"visits {row.visits}  eligible {row.eligible}  fired {row.fired}  held {row.held}",
        ):
            console.print(Padding(line, (0, 0, 0, 2)))


def _wait(out: Output, client: Client, found: Sequence[FoundRank], fault: str, within_s: float) -> int:
    end = time.monotonic() + within_s
    while True:
        answers = _ask(client, found)
        rows = [row for row in _rows(answers, past=True) if row.fault == fault]
        silent = _silent(answers)
        if any(row.fired for row in rows):
            _show(out, rows, silent)
            return Exit.CLEAN
        if not rows and not silent:
            raise PdctlError(f"no rank knows fault {fault}", "pdctl faults --past shows those known", Exit.PARTIAL)
        if rows and all(row.ended for row in rows) and not silent:
            _show(out, rows, silent)
            out.note(f"{fault} ended ({rows[0].ended}) without having fired: nothing was shown, either way.")
            return Exit.PARTIAL
        if time.monotonic() >= end:
            raise PdctlError(
                f"{fault} has not fired within {durations.show(within_s)}", "is there load?", Exit.DEADLINE
            )
        time.sleep(LOOK_S)
