"""``pdctl top``: all ranks, groups and findings on one screen, look after look."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands import options as opt
from pdctl.commands.options import reach_of, seconds, selection
from pdctl.commands.watching import watch
from pdctl.probes.run import Asked, exit_code
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.extras import MODULES, install
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from pdctl.watch.model import WatchState

CHECK_S = 20.0
"""Between two whole checks, as long as no look sees anything new."""
EXAMPLES = ("pdctl top", "pdctl top --plain --every 5s --for 1m")


def command(
    ctx: typer.Context,
    every_s: Annotated[
        float, typer.Option("--every", parser=seconds, metavar="TIME", help="Time between looks.")
    ] = 1.0,
    plain: Annotated[
        bool, typer.Option("--plain", help="No screens: the same tables again and again, as with --watch.")
    ] = False,
    lasting: Annotated[
        Optional[float],  # noqa: UP045  # typer evaluates annotations
        typer.Option("--for", parser=seconds, metavar="TIME", help="Look for this long. Default: until q or Ctrl-C."),
    ] = None,
    ranks: opt.RankOption = None,
    groups: opt.GroupOption = None,
    servers: opt.ServerOption = None,
    roles: opt.RoleOption = None,
    run_dir: opt.RunDirOption = None,
    record_dir: opt.RecordDirOption = None,
    timeout: Annotated[
        float, typer.Option("--timeout", parser=seconds, metavar="TIME", help="Time limit of what Enter looks into.")
    ] = opt.TIMEOUT_S,
    rank_timeout: opt.RankTimeoutOption = opt.RANK_TIMEOUT_S,
) -> int:
    """Show groups, ranks and findings as they change. Enter looks into the selected line: diff, stack, story, explanation.

    It needs pdctl[top]. Without it, with TERM=dumb and where standard input or output is no terminal, it is as with --plain.

    Exit code: 0 it was ended with q, or --for is over. With --plain, Ctrl-C and --for end with that of the last look: 1 a
    finding of level warning or above, 3 something could not be seen, 4 nothing could be, else 0.
    """
    if not 0.1 <= every_s <= 60:
        raise typer.BadParameter("from 100ms to 1m", param_hint="--every")
    from pdctl.watch.eye import Eye

    asked = Asked(
        reach=reach_of(ctx, run_dir, record_dir),
        selection=selection(ranks, groups, servers, roles),
        timeout_s=timeout,
        rank_timeout_s=rank_timeout,
    )
    there = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    lacks = ""
    if there and not plain and importlib.util.find_spec(MODULES["top"]) is None:
        lacks = f"screens to walk through need {MODULES['top']}, which is not installed: {install('top')}"
    if plain or lacks or not there:
        with Eye(asked, every_s=every_s, check_s=CHECK_S) as eye:
            return watch(_look(eye.next, lacks), Format.TABLE, every_s, lasting)
    from pdctl.watch.top.app import Top
    from pdctl.watch.top.details import Looker

    eye = Eye(asked, every_s=every_s, check_s=CHECK_S)
    app = Top(eye.next, Looker(asked), every_s, lasting)
    app.run(mouse=False)
    if app.ended():
        eye.close()
    if app.failure:
        raise PdctlError(f"looking ended: {app.failure}", "Run pdctl check.", Exit.PARTIAL)
    return Exit.CLEAN


def _look(next_state: Callable[[], WatchState], note: str) -> Callable[[Output], int]:
    """Return what writes the next state without screens. note: what is said below each, "" nothing."""
    from pdctl.watch.top.plain import render
    from pdctl.watch.top.tables import SEEN, WIDE, Rates

    rates = Rates()

    def look(out: Output) -> int:
        state = next_state()
        rates.add(state)

        def draw(shown: WatchState, console: Console) -> None:
            for part in render(shown, rates, wide=console.width >= WIDE):
                console.print(part)

        code = exit_code(
            state.findings, seen=any(one.state in SEEN for one in state.ranks), partial=bool(state.problems)
        )
        out.document(state, None, draw, code=code)
        if note:
            out.note(note)
        return code

    return look
