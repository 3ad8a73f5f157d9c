"""``pdctl watch``: says when ranks part, stand, leak or abort, and when that is over."""

from __future__ import annotations

import shlex
import signal
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands import options as opt
from pdctl.commands.options import place, reach_of, seconds, selection
from pdctl.report import escaping
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from contextlib import ExitStack

    from pdctl.targets.reach import Reach
    from pdctl.watch.actions import Action
    from pdctl.watch.incidents import Change

EXAMPLES = (
    "pdctl watch --on-finding record=/var/lib/pdctl",
    "pdctl watch --for 10m --until-finding -o jsonl",
)
_RECORD = "record="


def command(
    ctx: typer.Context,
    on_finding: Annotated[
        str,
        typer.Option(
            "--on-finding", metavar="record=DIR", help="Keep a trace, stacks and settings of each alarm in DIR."
        ),
    ] = "",
    execute: Annotated[
        str,
        typer.Option("--exec", metavar="CMD", help="Run this for each change; it gets JSON on standard input."),
    ] = "",
    webhook: Annotated[
        str, typer.Option("--webhook", metavar="URL", help="POST each change to this URL as JSON.")
    ] = "",
    lasting: Annotated[
        Optional[float],  # noqa: UP045  # typer evaluates annotations
        typer.Option("--for", parser=seconds, metavar="TIME", help="Watch for this long. Default: until Ctrl-C."),
    ] = None,
    until_finding: Annotated[bool, typer.Option("--until-finding", help="End at the first alarm.")] = False,
    every: Annotated[
        float, typer.Option("--every", parser=seconds, metavar="TIME", help="Time between two looks.")
    ] = 0.5,
    check: Annotated[
        float, typer.Option("--check", parser=seconds, metavar="TIME", help="Time between two whole checks.")
    ] = 10.0,
    ranks: opt.RankOption = None,
    groups: opt.GroupOption = None,
    servers: opt.ServerOption = None,
    roles: opt.RoleOption = None,
    output: opt.OutputOption = Format.TABLE,
    run_dir: opt.RunDirOption = None,
    record_dir: opt.RecordDirOption = None,
    timeout: opt.TimeoutOption = opt.TIMEOUT_S,
    rank_timeout: opt.RankTimeoutOption = opt.RANK_TIMEOUT_S,
) -> int:
    """Follow all ranks, and say once when something goes wrong, what its cause is, and when it is over.

    It reads what is new in recordings twice a second, which costs the ranks nothing, and runs every stage of check beside that:
    each 10 seconds, and at once when something is new. Ranks may come, go and restart. A line is a change: ALARM, CAUSE, over.
    --timeout holds for the search for ranks and, from 30s on, for each whole check.

    Exit code: 0 no alarm stands at the end, 1 one does, or --until-finding has seen one, 4 there was no rank at all. Ctrl-C and
    SIGTERM end it so. Where it ends by itself, what was begun for an alarm is completed first.
    """
    if output not in (Format.TABLE, Format.WIDE, Format.JSONL):
        raise typer.BadParameter("table or jsonl: a watch has no end that a document could have", param_hint="--output")
    if not 0.1 <= every <= 60:
        raise typer.BadParameter("from 100ms to 1m", param_hint="--every")
    if not 1 <= check <= 3600:
        raise typer.BadParameter("from 1s to 1h", param_hint="--check")
    from contextlib import ExitStack

    from pdctl.probes.run import Asked
    from pdctl.targets.follow import interruptible
    from pdctl.watch.eye import Eye
    from pdctl.watch.lines import line
    from pdctl.watch.run import watch
    from pdctl.watch.telling import Teller

    out = Output(output)
    reach = reach_of(ctx, run_dir, record_dir)
    asked = Asked(
        reach,
        selection=selection(ranks, groups, servers, roles),
        timeout_s=timeout,
        rank_timeout_s=rank_timeout,
    )
    with ExitStack() as held:
        over = held.enter_context(interruptible(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        teller = Teller(out)
        held.callback(teller.close)
        actions = _actions(held, over, reach, teller.note, on_finding, execute, webhook)
        eye = held.enter_context(Eye(asked, every_s=every, check_s=check, asks=False, over=over))
        show: Callable[[Change], str] = escaping.json_encoded if output is Format.JSONL else line
        return int(watch(eye, teller, show, actions, over, for_s=lasting, until_finding=until_finding))


def _actions(
    held: ExitStack,
    over: threading.Event,
    reach: Reach,
    say: Callable[[str], None],
    on_finding: str,
    execute: str,
    webhook: str,
) -> list[Action]:
    """Return what is to be done about an alarm; it is completed and ended with ``held``, at once when it is ``over``."""
    from pdctl.watch.actions import LAST_S, Exec, Webhook
    from pdctl.watch.evidence import Evidence

    found: list[Action] = []
    if on_finding:
        if not on_finding.startswith(_RECORD):
            raise typer.BadParameter("write record=DIR", param_hint="--on-finding")
        found.append(Evidence(place(on_finding.removeprefix(_RECORD)), reach.for_commands(), say))
    if execute:
        try:
            words = shlex.split(execute)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--exec") from None
        if not words:
            raise typer.BadParameter("it is empty", param_hint="--exec")
        found.append(Exec(words, say))
    if webhook:
        try:
            found.append(Webhook(webhook, say))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--webhook") from None
    for action in found:
        held.callback(action.close, LAST_S, over)
    return found
