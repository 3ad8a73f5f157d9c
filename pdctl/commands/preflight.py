"""``pdctl preflight``: whether a deployment is fit for traffic."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from pdctl.commands import options as opt
from pdctl.commands.completing import values
from pdctl.commands.options import place, reach_of, seconds, selection
from pdctl.probes.base import WrongOptionError
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from pdctl.inject.drill.servers import Address
    from pdctl.probes.run import Asked

EXAMPLES = (
    "pdctl preflight --handshake",
    "pdctl preflight --prefill-url http://p:30000 --decode-url http://d:30000",
)


def command(
    ctx: typer.Context,
    prefill_url: Annotated[
        str, typer.Option("--prefill-url", metavar="URL", help="Ask this prefill server over HTTP, and no rank.")
    ] = "",
    decode_url: Annotated[str, typer.Option("--decode-url", metavar="URL", help="The decode server for it.")] = "",
    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap",
            metavar="HOST:PORT",
            help="Prefill's bootstrap server, as decode reaches it.",
            show_default="as the ranks name it, or the prefill URL's host and the port that server says",
        ),
    ] = "",
    settings: Annotated[
        Optional[list[Path]],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            "--settings",
            metavar="FILE",
            parser=place,
            help="Compare what pdctl dump config -o json saved, and ask nobody; one file with both sides, or one each.",
        ),
    ] = None,
    handshake: Annotated[
        bool,
        typer.Option(
            "--handshake",
            help="Where nothing is wrong: send one request through the pair, and follow it through the queues of its ranks.",
        ),
    ] = False,
    router_timeout: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--router-timeout", metavar="TIME", parser=seconds, help="How long the router waits for an answer."
        ),
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on",
            metavar="LEVEL",
            autocompletion=values("level"),
            help="Lowest level of a finding that exits with 1: info, warning, error.",
        ),
    ] = "warning",
    ranks: opt.RankOption = None,
    groups: opt.GroupOption = None,
    servers: opt.ServerOption = None,
    roles: opt.RoleOption = None,
    output: opt.OutputOption = Format.TABLE,
    findings: opt.FindingsOption = False,
    run_dir: opt.RunDirOption = None,
    record_dir: opt.RecordDirOption = None,
    timeout: opt.TimeoutOption = 3 * opt.TIMEOUT_S,
    rank_timeout: opt.RankTimeoutOption = opt.RANK_TIMEOUT_S,
) -> int:
    """Check that a prefill/decode deployment is fit for traffic, before a router sends any.

    It asks the ranks that have an agent, two servers over HTTP, or saved settings: who is there, what both sides must have
    alike, the bootstrap server, ports, time-outs, and known defects of the versions. --handshake needs ranks that were armed
    (PDCTL_ARM=1); for SGLang it needs the URLs, too. PDCTL_API_KEY is the servers' --api-key.

    Exit code: 0 fit, 1 a finding of level warning or above, 3 something that decides it is not known, 4 nothing could be
    looked at, 5 --handshake on ranks that are not armed.
    """
    from pdctl.inject.drill.servers import Address
    from pdctl.probes.preflight.probe import LEVELS, PreflightOptions
    from pdctl.probes.run import Asked

    if fail_on not in LEVELS:
        raise typer.BadParameter(", ".join(LEVELS), param_hint="--fail-on")
    files, chosen = tuple(settings or ()), selection(ranks, groups, servers, roles)
    if files and (prefill_url or decode_url or bootstrap or handshake or chosen.given):
        raise typer.BadParameter("saved settings are compared, and nobody is asked", param_hint="--settings")
    address = Address.parse(prefill_url, decode_url, bootstrap if prefill_url or decode_url else "")
    if address is not None and chosen.given:
        raise typer.BadParameter("servers are asked over HTTP, and no rank", param_hint=next(iter(chosen.given)))
    if router_timeout and address is not None and not handshake:
        raise typer.BadParameter(
            "HTTP does not tell the servers' time-outs; ranks with an agent do", param_hint="--router-timeout"
        )
    reach = reach_of(ctx, run_dir, record_dir)
    out = Output(output)
    asked = Asked(
        reach=reach,
        selection=chosen,
        timeout_s=timeout,
        rank_timeout_s=rank_timeout,
        only_findings=findings,
    )
    send: Any = None
    if handshake:
        from pdctl.inject.handshake import handshake as send_one

        send = partial(send_one, address=address, env=reach.environment(), limit_s=timeout)
    options = PreflightOptions(bootstrap, router_timeout or 0.0, fail_on, send)
    try:
        return int(_run(options, asked, out, files, address))
    except WrongOptionError as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from None


def _run(options: Any, asked: Asked, out: Output, files: tuple[Path, ...], address: Address | None) -> Exit:
    from pdctl.probes.preflight.probe import PROBE, with_handshake
    from pdctl.probes.run import run, show

    if files:
        from pdctl.probes.preflight.files import collect as read

        document = PROBE.judge(read(files, options.router_s), options)
        return show(PROBE, document, options, out, seen=True, asked=asked)
    if address is None or (options.handshake is not None and _ranks_are_there(asked, out)):
        return run(PROBE, options, asked, out)
    from pdctl.probes.preflight.servers import collect as ask

    evidence = ask(address.prefill, address.decode, address.bootstrap, asked.timeout_s, options.router_s)
    document = PROBE.judge(with_handshake(evidence, options, None), options)
    return show(PROBE, document, options, out, seen=any(not side.silence for side in evidence.sides), asked=asked)


def _ranks_are_there(asked: Asked, out: Output) -> bool:
    """Return whether ranks can be looked at beside the servers: a request is followed on them."""
    from pdctl.probes.run import find

    try:
        return any(rank.live for rank in find(asked, out).ranks)
    except PdctlError:
        return False
