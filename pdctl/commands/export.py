"""``pdctl export``: what is seen of the ranks as metrics for Prometheus, and as a liveness probe."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands import options as opt
from pdctl.commands.options import reach_of, seconds, selection, target_place
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Output

if TYPE_CHECKING:
    import threading

    from pdctl.watch.export import Exporter, TextFile
    from pdctl.watch.eye import Eye
    from pdctl.watch.server import Address, Server

EXAMPLES = ("pdctl export", "pdctl export --textfile /var/lib/prometheus/node-exporter/pdctl.prom")

LISTEN = "127.0.0.1:9477"


def command(
    ctx: typer.Context,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help=f"Where to serve. Default: {LISTEN}, nowhere with --textfile or --once.",
        ),
    ] = "",
    anyone: Annotated[
        bool,
        typer.Option(
            "--listen-open", help="Let --listen be an address that other hosts reach: whoever reaches it may read."
        ),
    ] = False,
    textfile: Annotated[
        Optional[Path],  # noqa: UP045  # as in options.py
        typer.Option(
            "--textfile",
            parser=target_place,
            metavar="FILE.prom",
            help="Write this file for node_exporter's textfile collector after each look.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Look once, write --textfile or standard output, and end.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", parser=seconds, metavar="TIME", help="Time between two looks.")
    ] = 2.0,
    check: Annotated[
        float, typer.Option("--check", parser=seconds, metavar="TIME", help="Time between two whole checks.")
    ] = 30.0,
    stall: Annotated[
        float,
        typer.Option(
            "--livez-stall",
            parser=seconds,
            metavar="TIME",
            help="/livez fails when a loop has not turned for this long, and can't.",
        ),
    ] = 30.0,
    ranks: opt.RankOption = None,
    groups: opt.GroupOption = None,
    servers: opt.ServerOption = None,
    roles: opt.RoleOption = None,
    run_dir: opt.RunDirOption = None,
    record_dir: opt.RecordDirOption = None,
    timeout: opt.TimeoutOption = opt.TIMEOUT_S,
    rank_timeout: opt.RankTimeoutOption = opt.RANK_TIMEOUT_S,
) -> int:
    """Look at all ranks again and again: /metrics for Prometheus, /livez for a liveness probe.

    A scrape takes the last look; it makes none. /livez answers 503 only where a group has diverged, or a scheduler loop has not
    turned for --livez-stall and can't: never for silence, a rank that is not found, or a look that failed. All else is 200.

    --timeout holds for the search for ranks, for each whole check and for --once. Ctrl-C and SIGTERM end it.

    Exit code: 0 it was ended, 2 it can't listen or write there, 3 --once and something was not seen,
    4 --once and there is no rank, 5 the address is open to other hosts and --listen-open is missing.
    """
    if once and listen:
        raise typer.BadParameter("--once serves nothing", param_hint="--listen")
    if not 0.1 <= every <= 60:
        raise typer.BadParameter("from 100ms to 1m", param_hint="--every")
    if not 1 <= check <= 3600:
        raise typer.BadParameter("from 1s to 1h", param_hint="--check")
    from pdctl.probes.run import Asked
    from pdctl.targets.follow import interruptible
    from pdctl.watch.export import Exporter, TextFile
    from pdctl.watch.server import Server

    where = _address(listen, anyone=anyone) if listen else _address(LISTEN) if textfile is None and not once else None
    file = TextFile(textfile) if textfile is not None else None
    asked = Asked(
        reach_of(ctx, run_dir, record_dir),
        selection=selection(ranks, groups, servers, roles),
        timeout_s=timeout,
        rank_timeout_s=rank_timeout,
    )
    exporter, out = Exporter(every_s=every, stall_s=stall), Output()
    with ExitStack() as held:
        over = held.enter_context(interruptible(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        server = held.enter_context(Server(where, exporter.answer)) if where is not None else None
        from pdctl.watch.eye import Eye  # loads what asks: not before somebody can be served

        eye = held.enter_context(Eye(asked, every_s=every, check_s=check, over=over))
        if once:
            return int(_once(eye, exporter, file, out, over, timeout))
        if server is not None:
            out.note(f"listening at http://{server.address}")
        _follow(eye, exporter, server, file, out, over, every)
        if file is not None:
            file.remove()  # what nobody looks at any more is not told
    return int(Exit.CLEAN)


def _address(text: str, *, anyone: bool = False) -> Address:
    from pdctl.watch.server import parse_address

    try:
        address = parse_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from None
    if not (address.loopback or anyone):
        raise PdctlError(
            f"{address} can be reached from other hosts, and nothing asks who reads there",
            "Listen at a loopback address, or add --listen-open where the network keeps others away.",
            Exit.REFUSED,
        )
    return address


def _follow(
    eye: Eye,
    exporter: Exporter,
    server: Server | None,
    file: TextFile | None,
    out: Output,
    over: threading.Event,
    every: float,
) -> None:
    """Look until it is ``over``. Raises PdctlError (PARTIAL) where nobody is served any more."""
    due, lost = 0.0, ""
    while not over.is_set():
        exporter.take(eye.next())
        if server is not None and not server.alive:
            raise PdctlError("the HTTP server has ended", "Start it again; the lines above say why.", Exit.PARTIAL)
        if file is None or time.monotonic() < due:
            continue
        due = time.monotonic() + every
        try:
            file.write(exporter.metrics())
        except PdctlError as error:
            if error.message != lost:  # said once, and tried on
                out.note(error.message)
            lost = error.message
        else:
            if lost:
                out.note("it can be written again")
            lost = ""


def _once(
    eye: Eye, exporter: Exporter, file: TextFile | None, out: Output, over: threading.Event, timeout: float
) -> Exit:
    """Look until everything was checked once. Raises PdctlError (UNREACHABLE) where there is no rank."""
    until = time.monotonic() + timeout
    state = eye.next()
    while not eye.checked and time.monotonic() < until:  # some ranks only a check finds
        state = eye.next()
        if over.is_set():
            return Exit.INTERRUPTED
    exporter.take(state)
    if file is not None:
        file.write(exporter.metrics())
    silent = (f"{rank.rank}: {rank.reason}" for rank in state.ranks if not rank.there)
    problems = tuple(dict.fromkeys((*state.problems, *silent)))  # a look may have told of them already
    if not any(rank.there for rank in state.ranks):
        raise PdctlError("no rank is seen", "pdctl ranks says where it looks.", details=problems)
    if file is None:
        out.lines(exporter.metrics(), end="")
    for problem in problems:
        out.note(f"not seen or in part: {problem}")
    if not eye.checked:
        out.note("not seen or in part: the whole check did not end in time; --timeout gives it longer")
    return Exit.PARTIAL if problems or not state.checked_wall_ns else Exit.CLEAN
