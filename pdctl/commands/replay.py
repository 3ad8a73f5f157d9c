"""``pdctl replay``: executes recorded rounds again. Each part has a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from pdctl.commands.completing import values
from pdctl.commands.ending import tidy_end
from pdctl.commands.options import OutputOption, seconds, source_place, target_place
from pdctl.report.output import Format

EXAMPLES = ("pdctl replay incident.pdtrace", "pdctl replay incident.pdtrace --gate on --queue decode.transfer")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    trace: Annotated[
        Path, typer.Argument(parser=source_place, metavar="TRACE", help="A .pdtrace, or a directory of recordings.")
    ],
    gate: Annotated[
        str, typer.Option("--gate", metavar="WAY", help="Replay with the metadata gate: on, off, both.")
    ] = "both",
    queue: Annotated[
        Optional[list[str]],  # noqa: UP045  # as in options.py
        typer.Option(
            "--queue",
            metavar="QUEUE",
            autocompletion=values("queue"),
            help="Replay only this queue; repeatable. Default: all queues with rounds.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="ENGINE", help="Poll with the functions of the installed engine: sglang.")
    ] = "",
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N.")] = "cpu",
    backend: Annotated[
        str,
        typer.Option(
            "--backend", metavar="BACKEND", help="Backend of the collectives: gloo, or nccl with a GPU for each rank."
        ),
    ] = "gloo",
    round_timeout: Annotated[
        float,
        typer.Option(
            "--round-timeout", parser=seconds, metavar="TIME", help="Time after which a replayed round counts as hung."
        ),
    ] = 5.0,
    repeats: Annotated[
        int,
        typer.Option("--repeats", metavar="N", min=1, help="Replay at most N equal rounds in a row."),
    ] = 1000,
    emit_test: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--emit-test",
            parser=target_place,
            metavar="FILE",
            help="Write the finding as a test of SGLang's transfer queue. Execute nothing.",
        ),
    ] = None,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--plot",
            parser=target_place,
            metavar="FILE",
            help="Draw rounds × ranks of TRACE, too: svg, png or html. Needs pdctl[plot].",
        ),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> int:
    """Execute recorded rounds again on real processes, with and without the metadata gate.

    One process for each rank replays its polls, its gate, the reduction over a real group, and its commits.

    Exit code: 0 the ranks stay in step, 1 they diverge, 3 ranks are missing or a worker failed.
    """
    from pdctl.commands.replay_rounds import Asked, run

    asked = Asked(tuple(queue or ()), gate, device, backend, engine, round_timeout, repeats, emit_test, plot)
    with tidy_end():
        return run(trace, asked, output)
