"""``pdctl replay``: what ranks did, or could have done, with their polls. Each part has a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from pdctl.commands.ending import tidy_end
from pdctl.commands.options import OutputOption, seconds, source_place, target_place
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format

LIMIT_S = 60.0


def command(
    trace: Annotated[
        Optional[Path],  # noqa: UP045  # as in options.py
        typer.Argument(parser=source_place, metavar="TRACE", help="A .pdtrace, or a directory of recordings."),
    ] = None,
    gate: Annotated[
        str, typer.Option("--gate", metavar="WAY", help="Replay with the metadata gate: on, off, both.")
    ] = "both",
    queue: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--queue", metavar="QUEUE", help="Replay only this queue; repeatable. Default: all with rounds."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="ENGINE", help="Poll by the functions of the installed engine: sglang.")
    ] = "",
    backend: Annotated[
        str, typer.Option("--backend", metavar="BACKEND", help="What reduces: gloo, or nccl with a GPU for each rank.")
    ] = "gloo",
    round_timeout: Annotated[
        float,
        typer.Option("--round-timeout", parser=seconds, metavar="TIME", help="When a replayed round counts as hung."),
    ] = 5.0,
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats", metavar="N", min=1, help="Replay at most N rounds in a row that are equal on all ranks."
        ),
    ] = 1000,
    emit_test: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--emit-test",
            parser=target_place,
            metavar="FILE",
            help="Write the finding as a test of SGLang's own transfer queue.",
        ),
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
        typer.Option(
            "--write",
            parser=target_place,
            metavar="DIR",
            help="Write each counterexample as a .pdtrace into this new directory.",
        ),
    ] = None,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--plot",
            parser=target_place,
            metavar="FILE",
            help="Also draw rounds × ranks of TRACE: svg, png or html. Needs pdctl[plot].",
        ),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> int:
    """Execute recorded rounds again on real processes, or search for the order of events in which ranks part.

    TRACE alone: one process a rank polls, gates, reduces over a real group and commits what was recorded, with and
    without the metadata gate. Exit code: 0 in step, 1 when ranks part, 3 when ranks are missing or a worker fails.

    With --explore (near TRACE) or --model (from nothing): tries orders in which things can happen on each rank, under
    policies, that is what engine versions do with polls; counterexamples are made as small as they get. Exit code: 0
    when every policy HOLDS (all within the bound were tried), 1 when one is BROKEN, 3 when none is and not all were tried.
    """
    if plot is not None and (explore or model or trace is None):
        raise PdctlError("--plot draws what TRACE recorded", "Leave --explore and --model out.", Exit.USAGE)
    if trace is not None and not explore and not model:
        from pdctl.commands.replay_rounds import Asked
        from pdctl.commands.replay_rounds import run as run_rounds

        asked = Asked(tuple(queue or ()), gate, device, backend, engine, round_timeout, repeats, emit_test, plot)
        with tidy_end():
            return run_rounds(trace, asked, output)
    if explore == bool(model) or (trace is None and not model):
        raise PdctlError(
            "nothing to replay" if not model and not explore else "--model and --explore are two different searches",
            "pdctl replay TRACE, pdctl replay TRACE --explore, or pdctl replay --model ranks=2,requests=3.",
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
    with tidy_end():
        return run(search, model, trace, output)
