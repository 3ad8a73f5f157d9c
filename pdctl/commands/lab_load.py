"""``pdctl lab load`` and ``abort``: sends requests to a lab, and ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.lab_parts import NameOption, check_alive, env_of, find_lab, one_of
from pdctl.commands.lab_show import LabAbort, LabLoad, draw_abort, draw_outcome
from pdctl.commands.options import OutputOption, RunDirOption, seconds
from pdctl.lab.config import MAX_ROOM, SIDES
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.numbers import PORT, whole
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from collections.abc import Sized


def load(
    name: NameOption = "lab",
    requests: Annotated[
        Optional[int],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            "--requests",
            "-n",
            metavar="N",
            min=0,
            help="How many requests to send (32, or one for each --rid or --room); 0: until --seconds ends.",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="How many requests at a time.")
    ] = 8,
    rate: Annotated[
        float, typer.Option(metavar="N", min=0, help="Requests a second; 0: as fast as the concurrency allows.")
    ] = 0.0,
    time_s: Annotated[
        float, typer.Option("--seconds", metavar="N", min=0.1, help="Time limit for sending and waiting, in seconds.")
    ] = 30.0,
    prompt_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Length of a prompt.")] = 24,
    new_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Length of an answer.")] = 8,
    rid: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="TEXT", help="Request id; repeatable, one for each request. One alone: TEXT-0, TEXT-1, …"),
    ] = None,
    room: Annotated[
        Optional[list[int]],  # noqa: UP045
        typer.Option(
            min=0,
            max=MAX_ROOM,
            metavar="N",
            help="Room of the first request; the next ones count up. Repeatable: one for each request. 0: random rooms.",
        ),
    ] = None,
    prefill_server: Annotated[
        int, typer.Option(min=-1, metavar="N", help="Prefill server that gets every request: 0, 1, …; -1: in turn.")
    ] = -1,
    prefill_dp: Annotated[
        int, typer.Option(metavar="N", min=-1, help="Prefill dp rank that gets every request; -1: load balancing.")
    ] = -1,
    to: Annotated[
        str, typer.Option(metavar="SIDE", help="Side that gets the requests: both, prefill, decode.")
    ] = "both",
    abort_after: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Abort requests that are not done after this time; 0: never."),
    ] = 0.0,
    give_up: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            parser=seconds, metavar="TIME", help="The client of a request goes away after this time, without an abort."
        ),
    ] = None,
    bootstrap: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Bootstrap server that decode is told, instead of the prefill server's own."
        ),
    ] = "",
    lost_on: Annotated[
        int, typer.Option(min=-1, metavar="TP", help="Decode tp rank that alone loses every request; -1: none.")
    ] = -1,
    seed: Annotated[
        int, typer.Option(metavar="N", help="The same seed gives the same rooms and prompts; -1: a new seed.")
    ] = -1,
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
) -> int:
    """Send requests to a lab as a router does, and check the answers.

    The tokens depend on the prompt, the KV and the metadata. A request with the KV or metadata of another request has wrong
    tokens.

    Exit code: 0 all requests completed with the right tokens, 1 some did not, 2 wrong options, 4 there is no such lab.
    """
    from pdctl.lab.client import Client, Load

    config, processes = find_lab(name, env_of(run_dir))
    check_alive(name, processes)
    side = one_of(to, ("both", *SIDES), "side")
    if prefill_dp >= config.prefill.dp:
        raise PdctlError(f"there is no prefill dp {prefill_dp}", f"this lab has {config.prefill.dp}", Exit.USAGE)
    if prefill_server >= config.prefills:
        raise PdctlError(f"there is no prefill server {prefill_server}", f"this lab has {config.prefills}", Exit.USAGE)
    rids, rooms = tuple(rid or ()), tuple(room or ())
    if requests is None:
        named = max(len(rids), len(rooms))
        requests = named if named > 1 else 32
    _enough("--rid", rids, requests)
    _enough("--room", rooms, requests)
    if len(rooms) == 1 and rooms[0] + max(requests, 1) - 1 > MAX_ROOM:
        raise PdctlError(
            f"{requests} rooms from {rooms[0]} on are too many", f"the last room is {MAX_ROOM}", Exit.USAGE
        )
    client = Client(
        config,
        Load(
            requests=requests,
            concurrency=concurrency,
            rate=rate,
            seconds=time_s,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            room=rooms[0] if len(rooms) == 1 else 0,
            rooms=rooms if len(rooms) > 1 else (),
            rids=rids,
            bootstrap=_address(bootstrap),
            give_up_s=give_up or 0.0,
            prefill_server=prefill_server,
            prefill_dp=prefill_dp,
            to=side,
            abort_after_s=abort_after,
            lost_on=lost_on,
            seed=None if seed < 0 else seed,
        ),
    )
    try:
        outcome = client.run()
    finally:
        client.close()
    document = LabLoad(name=name, **{field: getattr(outcome, field) for field in outcome.__struct_fields__})
    Output(output).document(document, draw=draw_outcome)
    return int(Exit.CLEAN if outcome.good else Exit.FINDING)


def abort(
    rids: Annotated[list[str], typer.Argument(metavar="RID...", help="Ids of requests.", show_default=False)],
    to: Annotated[str, typer.Option(metavar="SIDE", help="Side that is told: both, prefill, decode.")] = "both",
    name: NameOption = "lab",
    timeout: Annotated[float, typer.Option(parser=seconds, metavar="TIME", help="Time limit for telling them.")] = 5.0,
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
) -> int:
    """Tell servers of a lab to abort requests.

    It is POST /abort_request of an engine. A server carries it out in the next turn of its scheduler loop. An id that it does
    not have is no error.

    Exit code: 0 all servers were told, 2 wrong options, 3 a server takes no messages, 4 there is no such lab.
    """
    from pdctl.lab import processes as chosen
    from pdctl.lab.messages import MAX_RID

    side = one_of(to, ("both", *SIDES), "side")
    if not all(0 < len(rid) <= MAX_RID for rid in rids):
        raise PdctlError("that is no request id", f"one has 1 to {MAX_RID} characters", Exit.USAGE)
    config, processes = find_lab(name, env_of(run_dir))
    check_alive(name, processes)
    servers = [server for server in config.servers if side == "both" or server.startswith(side)]
    told = chosen.abort(config, rids, servers, timeout)
    not_told = tuple(place for place, done in told.items() if not done)
    whole = tuple(server for server in servers if not any(place.startswith(f"{server} ") for place in not_told))
    out = Output(output)
    out.document(LabAbort(name=name, rids=tuple(rids), servers=whole, not_told=not_told), draw=draw_abort)
    if not_told:
        out.note(f"nobody took the message there within {timeout:g} s: pdctl lab status --name {name}")
    return int(Exit.PARTIAL if not_told else Exit.CLEAN)


def _enough(option: str, given: Sized, requests: int) -> None:
    if len(given) > 1 and len(given) != requests:
        raise PdctlError(
            f"{len(given)} × {option} for {requests} requests",
            f"give {option} once, or once for each request",
            Exit.USAGE,
        )


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if text and not (host and len(host) <= 255 and whole(port, PORT)):
        raise PdctlError(f"{text[:80]!r} is no address of a bootstrap server", "write 127.0.0.1:8998", Exit.USAGE)
    return text
