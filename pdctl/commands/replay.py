"""``pdctl replay``: what ranks did, or could have done, with their polls. Each part has a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from pdctl.commands.options import OutputOption, seconds
from pdctl.errors import Exit, PdctlError
from pdctl.output import Format

LIMIT_S = 60.0


def command(
    trace: Annotated[
        Optional[Path],  # noqa: UP045  # as in options.py
        typer.Argument(metavar="TRACE", help="With --explore: a .pdtrace, or a directory of recordings."),
    ] = None,
    model: Annotated[
        str,
        typer.Option("--model", metavar="MODEL", help="Search a model: ranks=2,requests=3[,rounds=3][,arrivals=1]."),
    ] = "",
    explore: Annotated[
        bool, typer.Option("--explore", help="Search the schedules near what TRACE recorded, around its divergence.")
    ] = False,
    policy: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--policy", metavar="NAME", help="Only this policy; repeatable. Default: all that apply."),
    ] = None,
    schedules: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--schedules", metavar="N", min=1, max=10**12, help="Try N schedules drawn from --seed."),
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Try every schedule. Default: where there are at most 100 million.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Same seed, same schedules.")] = 0,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N.")] = "cpu",
    limit: Annotated[
        float, typer.Option("--for", parser=seconds, metavar="TIME", help="When the search ends at the latest.")
    ] = LIMIT_S,
    near: Annotated[
        int,
        typer.Option("--near", metavar="N", min=0, max=3, help="With --explore: rounds anything may be off, at most."),
    ] = 1,
    write: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--write", metavar="DIR", help="Write each counterexample as a .pdtrace into this new directory."),
    ] = None,
    fleet: Annotated[
        str,
        typer.Option(
            "--fleet",
            metavar="FLEET",
            help="Project onto a fleet: ranks=10000[,group=8][,rate=5/s][,round=10ms]; rate is a group's.",
        ),
    ] = "",
    lag: Annotated[
        str,
        typer.Option("--lag", metavar="LAG", help="With --fleet, without TRACE: late=0.1%[,mean=3ms], of metadata."),
    ] = "",
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--plot", metavar="FILE", help="With --fleet: draw it, too, as FILE.svg or FILE.png (pdctl[plot])."
        ),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> int:
    """Search the orders in which things can happen on each rank for one in which the ranks part, under a policy.

    A policy is what an engine version does with its polls. Counterexamples are made as small as they get.
    Exit code: 0 when every policy HOLDS (all schedules within the bound were tried), 1 when one is BROKEN, 3 when
    none is and not all were tried.

    --fleet says how probable it is that ranks part in a fleet without a gate, from how late metadata lands: 0.
    """
    if fleet:
        if explore or model:
            raise PdctlError("--fleet is no search", "Leave --model and --explore out.", Exit.USAGE)
        from pdctl.commands.replay_fleet import run as run_fleet

        return run_fleet(fleet, lag, trace, plot, output)
    if lag or plot is not None:
        raise PdctlError("--lag and --plot are of --fleet", "--fleet ranks=10000,group=8,rate=5/s.", Exit.USAGE)
    if explore == bool(model) or (explore and trace is None):
        raise PdctlError(
            "nothing to replay" if not model and not explore else "--model and --explore are two different searches",
            "pdctl replay --model ranks=2,requests=3, or pdctl replay TRACE --explore.",
            Exit.USAGE,
        )
    if model and trace is not None:
        raise PdctlError("--model takes no TRACE", "Leave one of them out; --explore starts from TRACE.", Exit.USAGE)
    if exhaustive and schedules is not None:
        raise PdctlError("--exhaustive tries every schedule, --schedules some", "Leave one of them out.", Exit.USAGE)
    from pdctl.commands.replay_explore import Search, run

    search = Search(
        names=tuple(policy or ()),
        schedules=schedules,
        exhaustive=exhaustive,
        seed=seed,
        device=device,
        limit_s=limit,
        write=write,
        near=near,
    )
    return run(search, model, trace, output)
