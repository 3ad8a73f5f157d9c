"""``pdctl explore``: searches for event orders in which ranks diverge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from pdctl.commands.completing import values
from pdctl.commands.ending import tidy_end
from pdctl.commands.options import OutputOption, find, seconds, source_place, target_place
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report import progress
from pdctl.report.output import Format, Output

EXAMPLES = ("pdctl explore incident.pdtrace --policy no-gate", "pdctl explore --model ranks=2,requests=2,rounds=3")


def command(
    trace: Annotated[
        Optional[Path],  # noqa: UP045  # as in options.py
        typer.Argument(parser=source_place, metavar="TRACE", help="A .pdtrace, or a directory of recordings."),
    ] = None,
    model: Annotated[
        str,
        typer.Option("--model", metavar="MODEL", help="Search a model: ranks=2,requests=3[,rounds=3][,arrivals=1]."),
    ] = "",
    near: Annotated[
        int,
        typer.Option(
            "--near", metavar="N", min=0, max=3, help="With TRACE: how many rounds an event may move, at most."
        ),
    ] = 1,
    policy: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--policy",
            metavar="NAME",
            autocompletion=values("policy"),
            help="Search only this policy; repeatable. Default: all that apply.",
        ),
    ] = None,
    schedules: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--schedules", metavar="N", min=1, max=10**12, help="Try N random schedules."),
    ] = None,
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="Try every schedule. Default: only where there are at most 100 million."),
    ] = False,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=2**63 - 1, help="The same seed gives the same schedules.")
    ] = 0,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N.")] = "cpu",
    limit: Annotated[
        float, typer.Option("--for", parser=seconds, metavar="TIME", help="Time limit of the search.")
    ] = 60.0,
    write: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--write",
            parser=target_place,
            metavar="DIR",
            help="Write each counterexample as a .pdtrace into this new directory.",
        ),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> int:
    """Search for event orders in which ranks diverge: near a recorded TRACE, or in a model (--model).

    A schedule is an order of events on each rank. A policy is what an engine version does with polls. The search runs every
    policy on the schedules, and makes each counterexample as small as it can.

    Exit code: 0 every policy HOLDS, 1 a policy is BROKEN, 3 no policy is BROKEN and not all schedules were tried.
    """
    if trace is None and not model:
        raise PdctlError(
            "nothing to explore", "pdctl explore TRACE, or pdctl explore --model ranks=2,requests=3.", Exit.USAGE
        )
    if model and trace is not None:
        raise PdctlError("TRACE and --model are two different searches", "Leave one of them out.", Exit.USAGE)
    if exhaustive and schedules is not None:
        raise PdctlError("--exhaustive tries every schedule, --schedules some", "Leave one of them out.", Exit.USAGE)
    from pdctl.explore.document import Explored
    from pdctl.explore.render import draw
    from pdctl.explore.run import CODES, Search, search_model, search_near, select_policies

    asked = Search(select_policies(policy or ()), schedules, exhaustive, seed, device, limit, write, near)
    progress.doing("trying schedules")
    with tidy_end():
        if trace is None:
            document = search_model(asked, model)
        else:
            document = search_near(asked, find(None, None, trace, every_start=True), str(trace))
        out = Output(output)
        out.document(document, Rows(Explored, document.results), draw)
        if not output.whole:
            for problem in document.problems:
                out.note(f"left out: {problem}")
    return int(CODES[document.verdict])
