"""``pdctl inject``: a deliberate fault on live ranks, for a while."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl import durations, selectors
from pdctl.commands.options import (
    RANK_TIMEOUT_S,
    TIMEOUT_S,
    OutputOption,
    RankTimeoutOption,
    RecordDirOption,
    RunDirOption,
    TimeoutOption,
    find,
)
from pdctl.errors import Exit, PdctlError
from pdctl.inject.faults import DELAY_METADATA, LEASE_S, MAX_DELAY_S, MAX_TTL_S
from pdctl.output import Document, Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.discovery import FoundRank
    from pdctl.inject.plan import Plan, Wish

MAX_ROOM = (1 << 64) - 1


class Planned(Document, frozen=True, kw_only=True, tag="pdctl.inject"):
    """What is told to whom. times in seconds. changed: False for a dry run."""

    fault: str
    kind: str
    targets: list[str]
    on: list[str]
    delay_s: float
    ttl_s: float
    lease_s: float
    room: int
    hits: int
    changed: bool


def command(
    rank: Annotated[
        list[str],
        typer.Option(
            "--rank", metavar="PATTERN", help="Decode rank to hit: decode:dp0:pp0:tp1, decode:tp1. Repeatable."
        ),
    ],
    delay_metadata: Annotated[
        str,
        typer.Option("--delay-metadata", metavar="TIME", help="Its metadata row lands this much after Success (5s)."),
    ] = "",
    room: Annotated[
        Optional[int],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            "--room", metavar="ROOM", min=1, max=MAX_ROOM, help="Only this room.", show_default="the next that comes"
        ),
    ] = None,
    hits: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--hits", metavar="N", min=1, max=1_000_000, help="End after so many rooms.", show_default="no limit"
        ),
    ] = None,
    time: Annotated[str, typer.Option("--for", metavar="TIME", help="How long the fault lives, at most 15m.")] = "60s",
    until_hit: Annotated[
        bool, typer.Option("--until-hit", help="End when the first held row has been written.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the fault's id and return; it ends when --for is over, or by heal.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show ranks, site and lease, and change nothing.")] = False,
    allow_ranks: Annotated[
        int, typer.Option("--allow-ranks", metavar="N", min=1, max=1024, help="Decode ranks it may hit.")
    ] = 1,
    allow_rooms: Annotated[
        int,
        typer.Option(
            "--allow-rooms", metavar="N", min=1, max=1024, help="Rooms it may hold at a time, one a prefill dp rank."
        ),
    ] = 1,
    output: OutputOption = Format.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
) -> int:
    """Break something on purpose, for a while: hold a decode rank's metadata back.

    Only ranks started with PDCTL_ARM=1 take faults. It stays in the foreground and heals when --for is over, on Ctrl-C,
    and, from inside the ranks, within 3 s when this command dies. Exit code 3: it never fired, so nothing was shown.
    """
    wish = _wish(rank, delay_metadata, room or 0, hits or 0, time, allow_ranks, allow_rooms)
    if detach and until_hit:
        raise typer.BadParameter("--detach does not wait: use pdctl faults --wait-for-hit ID afterwards")
    from pdctl.client import Client
    from pdctl.inject.plan import plan
    from pdctl.inject.session import know

    out = Output(output)
    with Client(timeout_s=timeout, rank_timeout_s=rank_timeout) as client:
        found = find(run_dir, record_dir).ranks
        planned = plan(know(client, found), wish)
        for note in planned.notes:
            out.note(f"Note: {note}")
        ranks = [_found(found, identity) for identity in planned.on]
        if dry_run:
            return _dry_run(out, planned, wish)
        return _inject(out, client, ranks, planned, wish, detach=detach, until_hit=until_hit)


def _wish(patterns: list[str], delay: str, room: int, hits: int, time: str, allow_ranks: int, allow_rooms: int) -> Wish:
    from pdctl.inject.audit import owner
    from pdctl.inject.plan import Wish

    if not delay:
        raise typer.BadParameter("name the fault: --delay-metadata TIME")
    try:
        delay_s = durations.parse(delay, most_s=MAX_DELAY_S, what="--delay-metadata")
        chosen = tuple(selectors.parse(pattern) for pattern in patterns)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        ttl_s = durations.parse(time, most_s=1e6, what="--for")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if ttl_s > MAX_TTL_S:
        raise PdctlError(f"--for {time} is over the limit of 15m", "no fault lives longer", Exit.REFUSED)
    return Wish(
        patterns=chosen,
        delay_s=delay_s,
        ttl_s=ttl_s,
        fault_id=f"f-{os.urandom(3).hex()}",
        owner=owner(),
        room=room,
        hits=hits,
        allow_ranks=allow_ranks,
        allow_rooms=allow_rooms,
    )


def _found(found: tuple[FoundRank, ...], identity: object) -> FoundRank:
    return next(rank for rank in found if rank.identity == identity)


def _document(planned: Plan, wish: Wish, *, lease_s: float, changed: bool) -> Planned:
    return Planned(
        fault=wish.fault_id,
        kind=wish.kind,
        targets=[target.selector for target in planned.targets],
        on=[f"{identity.selector} on {identity.host}, pid {identity.pid}" for identity in planned.on],
        delay_s=wish.delay_s,
        ttl_s=wish.ttl_s,
        lease_s=lease_s,
        room=wish.room,
        hits=wish.hits,
        changed=changed,
    )


def _dry_run(out: Output, planned: Plan, wish: Wish) -> int:
    document = _document(planned, wish, lease_s=LEASE_S, changed=False)

    def draw(console: Console) -> None:
        room = str(wish.room) if wish.room else "one at a time, the next that comes"
        for name, value in (
            ("fault", f"{DELAY_METADATA} {durations.show(wish.delay_s)}"),
            ("aims at", ", ".join(document.targets)),
            ("placed on", "; ".join(document.on)),
            ("room", f"{room}{f', at most {wish.hits}' if wish.hits else ''}"),
            (
                "ends",
                f"after {durations.show(wish.ttl_s)}, or {durations.show(LEASE_S)} after the last beat of this command",
            ),
        ):
            console.print(f"{name:<10} {value}")
        console.print("dry run: nothing was changed")

    out.document(document, draw=draw)
    return Exit.CLEAN


def _inject(
    out: Output, client: object, ranks: list[FoundRank], planned: Plan, wish: Wish, *, detach: bool, until_hit: bool
) -> int:
    from pdctl.client import Client
    from pdctl.commands.inject_watch import Foreground
    from pdctl.inject.audit import Audit, audit_path
    from pdctl.inject.session import BEAT_S, Session

    assert isinstance(client, Client)
    with Client(timeout_s=BEAT_S, rank_timeout_s=0.8 * BEAT_S) as beats:
        session = Session(client, beats, Audit(audit_path(os.environ), out.note), ranks, planned.args)
        foreground = Foreground(out, session, wish.ttl_s, until_hit=until_hit)
        if not detach:
            return foreground.run()
        code = foreground.place_only()
    if code is Exit.CLEAN:
        document = _document(planned, wish, lease_s=0.0, changed=True)
        out.document(document, draw=lambda console: console.print(wish.fault_id))
        out.note(
            f"{document.kind} is in place for {durations.show(wish.ttl_s)} at most; pdctl heal {wish.fault_id} ends it"
        )
    return code
