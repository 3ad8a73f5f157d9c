"""``pdctl check``: all probes, a line each, for people, cron jobs and liveness probes."""

from __future__ import annotations

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
from pdctl.protocol.errors import Exit
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.probes.check.model import CheckDocument

WATCH_S = 2.0
CHECK_S = 3 * TIMEOUT_S
"""It asks as much as several commands: some stages look more than once, with pauses between."""
_STYLE = {"ok": "green", "info": "cyan", "unknown": "yellow", "warning": "yellow", "error": "red"}


def command(
    only: Annotated[
        Optional[list[str]],  # noqa: UP045  # typer evaluates annotations
        typer.Option("--only", metavar="STAGE", help="Only this stage; repeatable. -o wide says what each does."),
    ] = None,
    skip: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--skip", metavar="STAGE", help="Leave this stage out; repeatable."),
    ] = None,
    fail_on: Annotated[
        str, typer.Option("--fail-on", metavar="LEVEL", help="Lowest level that exits with 1: info, warning, error.")
    ] = "warning",
    suppress: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--suppress", metavar="PDnnn[=ROOM]", help="Leave this finding out, for all rooms or one."),
    ] = None,
    watch: Annotated[
        float,
        typer.Option("--watch", parser=seconds, metavar="TIME", help="Pause between two looks, where it looks twice."),
    ] = WATCH_S,
    output: OutputOption = Format.TABLE,
    source: FromOption = None,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = CHECK_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
) -> int:
    """Run all probes, from cheap to intrusive, and tell each one's result in a line. Changes nothing.

    With --from, those that recordings can answer. --timeout is for all stages together: one for which no time is left says
    so. A rank that does not answer is waited for once.

    Exit code: 0 nothing at --fail-on or above, 1 on such a finding, 3 when something could not be looked at, 4 when no
    rank answered. For a cron job: pdctl check -o json; for a liveness probe: pdctl check --only queues --fail-on error.
    """
    names = _names(only or [], skip or [], recorded=source is not None)
    from pdctl.probes.check.judge import FAIL_ON, judge, parse_suppressed

    if fail_on not in FAIL_ON:
        raise typer.BadParameter(", ".join(FAIL_ON), param_hint="--fail-on")
    try:
        suppressed = parse_suppressed(suppress or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--suppress") from None
    if source is None:
        within(watch, timeout)
    found = find(run_dir, record_dir, source, timeout=timeout, rank_timeout=rank_timeout)
    from pdctl.probes.check.stages import Looking, run
    from pdctl.targets.client import Client

    with Client(timeout_s=timeout, spent_s=found.took_s, rank_timeout_s=rank_timeout) as client:
        outcomes = list(run(Looking(found, client, watch, recorded=source is not None), names))
    document = judge(outcomes, suppressed=suppressed, fail_on=fail_on, others=found.others)
    out = Output(output)
    code = int(exit_code(document, answered=all(outcome.answered for outcome in outcomes)))
    out.document(document, document.stages, draw, code=code)
    if output.drawn:
        for problem in document.problems:
            out.note(f"not looked at: {problem}")
        if found.left_out:
            out.note(found.left_out)
    return code


def _names(only: list[str], skip: list[str], *, recorded: bool) -> list[str]:
    from pdctl.probes.check.stages import STAGES

    live = [stage.name for stage in STAGES if not stage.recorded]
    for name in only if recorded else ():
        if name in live:
            raise typer.BadParameter(
                f"recordings do not tell of {name}: ask live ranks, without --from", param_hint="--only"
            )

    known = [stage.name for stage in STAGES]
    for option, given in (("--only", only), ("--skip", skip)):
        for name in given:
            if name not in known:
                raise typer.BadParameter(f"there is no stage {name!r}: {', '.join(known)}", param_hint=option)
    names = [name for name in known if (not only or name in only) and name not in skip]
    names = [name for name in names if not recorded or name not in live]
    if not names:
        raise typer.BadParameter("no stage is left", param_hint="--skip")
    return names


def exit_code(document: CheckDocument, *, answered: bool) -> Exit:
    """Return what the command exits with."""
    if document.failed:
        return Exit.FINDING if answered or any(f.code != "PD112" for f in document.findings) else Exit.UNREACHABLE
    return Exit.PARTIAL if document.partial else Exit.CLEAN


def draw(document: CheckDocument, console: Console) -> None:
    """Draw a line for every stage, then what the findings say."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for wrap in (True, True, False):
        table.add_column(no_wrap=wrap)
    for row in document.stages:
        table.add_row(Text(row.level, style=_STYLE[row.level]), row.stage, row.summary)
    console.print(table)
    if document.suppressed:
        console.print(Text(f"({document.suppressed} findings suppressed)", style="dim"))
    draw_findings(document.findings, console)
