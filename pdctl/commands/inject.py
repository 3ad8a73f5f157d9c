"""``pdctl inject``: a deliberate fault on live ranks, for a while."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Optional

import msgspec
import typer

from pdctl.commands import inject_options
from pdctl.commands.inject_options import MAX_ROOM, Asked
from pdctl.commands.options import (
    RANK_TIMEOUT_S,
    TIMEOUT_S,
    OutputOption,
    RankTimeoutOption,
    RecordDirOption,
    RunDirOption,
    TimeoutOption,
    find,
    reach_of,
)
from pdctl.faults.kinds import KINDS, Kind, Parameter
from pdctl.faults.limits import LEASE_S
from pdctl.protocol import durations
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Document, Format, Output
from pdctl.targets import selectors

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.inject.plan import Plan
    from pdctl.inject.stop import Condition, Watch
    from pdctl.inject.wish import Wish
    from pdctl.targets.client import Client
    from pdctl.targets.find import Found, FoundRank
    from pdctl.targets.reach import Reach

_METAVARS = {Parameter.DURATION: "TIME", Parameter.STATE: "STATE", Parameter.DP: "DP", Parameter.ROOM: "ROOM|any"}


def _fault(name: str, group: str = "Faults, exactly one") -> object:
    """Return the option of one kind of fault; its help is the kind's own."""
    kind: Kind = KINDS[name]
    text = f"{kind.what[0].upper()}{kind.what[1:]} ({kind.aim.value} --rank)."
    metavar = _METAVARS.get(kind.parameter)
    if metavar is None:
        return typer.Option(f"--{name}", help=text, rich_help_panel=group)
    return typer.Option(f"--{name}", metavar=metavar, help=text, show_default=False, rich_help_panel=group)


class OtherFault(msgspec.Struct, frozen=True):
    """A fault that is in place in the same cluster already, and a rank that holds it."""

    fault: str
    kind: str
    owner: str
    target: str
    rank: str


class Planned(Document, frozen=True, kw_only=True, tag="pdctl.inject"):
    """What is told to whom. Times in seconds; value: the state, dp rank or room of a kind that has one, else 0.

    targets: ranks that shall feel it; on: ranks it is placed on. share: 0 to 1. changed: False for a dry run. others:
    faults of the cluster in place before this one.
    """

    fault: str
    kind: str
    targets: list[str]
    on: list[str]
    delay_s: float
    ttl_s: float
    lease_s: float
    room: int
    hits: int
    value: int
    rid: str
    seed: int
    share: float
    changed: bool
    others: list[OtherFault]


def command(
    ctx: typer.Context,
    rank: Annotated[
        list[str],
        typer.Option("--rank", metavar="PATTERN", help="Rank to hit: decode:dp0:pp0:tp1, decode:tp1. Repeatable."),
    ],
    delay_metadata: Annotated[str, _fault("delay-metadata")] = "",
    drop_metadata: Annotated[bool, _fault("drop-metadata")] = False,
    stale_metadata: Annotated[str, _fault("stale-metadata")] = "",
    corrupt_room: Annotated[bool, _fault("corrupt-room")] = False,
    fail_transfer: Annotated[bool, _fault("fail-transfer")] = False,
    stall_transfer: Annotated[str, _fault("stall-transfer")] = "",
    drop_status: Annotated[bool, _fault("drop-status")] = False,
    skew_poll: Annotated[str, _fault("skew-poll")] = "",
    flip_poll: Annotated[str, _fault("flip-poll")] = "",
    delay_registration: Annotated[str, _fault("delay-registration")] = "",
    hide_registration: Annotated[bool, _fault("hide-registration")] = False,
    misroute: Annotated[str, _fault("misroute")] = "",
    abort: Annotated[bool, _fault("abort")] = False,
    silence_heartbeat: Annotated[str, _fault("silence-heartbeat")] = "",
    duplicate_room: Annotated[str, _fault("duplicate-room")] = "",
    room: Annotated[
        Optional[int],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            "--room", metavar="ROOM", min=1, max=MAX_ROOM, help="Only this room.", show_default="the next that comes"
        ),
    ] = None,
    rid: Annotated[str, typer.Option("--rid", metavar="RID", help="Only this request.", show_default=False)] = "",
    share: Annotated[
        str, typer.Option("--share", metavar="SHARE", help="Of all visits only so many: 10% or 0.1.")
    ] = "100%",
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=MAX_ROOM, help="Which ones --share takes.")
    ] = 0,
    hits: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--hits",
            metavar="N",
            min=1,
            max=1_000_000,
            help="End after so many hits.",
            show_default="no limit, 1 where a hit can't be undone",
        ),
    ] = None,
    time: Annotated[str, typer.Option("--for", metavar="TIME", help="How long the fault lives, at most 15m.")] = "60s",
    stop_when: Annotated[
        str,
        typer.Option(
            "--stop-when",
            metavar="diverged|failed:N",
            help="End it early: ranks differ (while this command runs: not with --detach), or N rooms failed.",
            show_default=False,
        ),
    ] = "",
    until_hit: Annotated[bool, typer.Option("--until-hit", help="End when the first hit is over.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the fault's id and return; it ends when --for is over, or by heal.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show ranks, site and lease, and change nothing.")] = False,
    allow_ranks: Annotated[
        int, typer.Option("--allow-ranks", metavar="N", min=1, max=1024, help="Ranks it may hit.")
    ] = 1,
    allow_rooms: Annotated[
        int, typer.Option("--allow-rooms", metavar="N", min=1, max=1024, help="Rooms it may hold at a time.")
    ] = 1,
    output: OutputOption = Format.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
) -> int:
    """Break something on purpose, for a while, on live ranks.

    Only ranks started with PDCTL_ARM=1 take faults; pdctl faults --available shows which. It stays in the foreground and
    heals when --for is over, on Ctrl-C, and, from inside the ranks, within 3 s when this command dies. Exit code 3: it
    never fired, so nothing was shown.
    """
    given: dict[str, str | bool] = {
        "delay-metadata": delay_metadata, "drop-metadata": drop_metadata, "stale-metadata": stale_metadata,
        "corrupt-room": corrupt_room, "fail-transfer": fail_transfer, "stall-transfer": stall_transfer,
        "drop-status": drop_status, "skew-poll": skew_poll, "flip-poll": flip_poll,
        "delay-registration": delay_registration, "hide-registration": hide_registration, "misroute": misroute,
        "abort": abort, "silence-heartbeat": silence_heartbeat, "duplicate-room": duplicate_room,
    }  # fmt: skip
    asked = inject_options.asked(given)
    ttl_s = inject_options.time_to_live(time)
    wanted_share = inject_options.share(share)
    try:
        patterns = tuple(selectors.parse(pattern) for pattern in rank)
        condition = _condition(stop_when)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if detach and until_hit:
        raise typer.BadParameter("--detach does not wait: use pdctl faults --wait-for-hit ID afterwards")
    if detach and condition and not condition.failed:
        raise typer.BadParameter(
            "--stop-when diverged needs this command to compare the ranks, since none knows the queues of another: leave "
            "--detach out, or use --stop-when failed:N, which each rank keeps by itself"
        )
    if room and rid:
        raise typer.BadParameter("--room or --rid, not both")

    from pdctl.inject.audit import owner
    from pdctl.inject.stop import Watch
    from pdctl.inject.wish import Wish
    from pdctl.targets.client import Client

    reach = reach_of(ctx, run_dir, record_dir)
    reach.forbid_faults()
    wish = Wish(
        patterns=patterns, kind=asked.kind.name, delay_s=asked.delay_s, value=asked.value, ttl_s=ttl_s,
        fault_id=f"f-{os.urandom(3).hex()}", owner=owner(), room=room or 0, rid=rid, hits=hits or 0, seed=seed,
        share=wanted_share, stop_failed=condition.failed if condition else 0, allow_ranks=allow_ranks,
        allow_rooms=allow_rooms,
    )  # fmt: skip
    out = Output(output)
    with Client(timeout_s=timeout, rank_timeout_s=rank_timeout) as client:
        everything = find(run_dir, record_dir, reach=reach, timeout=timeout, rank_timeout=rank_timeout, outside=False)
        planned = _planned(everything, client, wish, reach)
        for note in (*planned.notes, *_others(planned)):
            out.note(f"Note: {note}")
        ranks = [_found(everything.ranks, identity) for identity in planned.on]
        if dry_run:
            return _dry_run(out, planned, wish, asked)
        watch = Watch(condition, everything) if condition and not detach else None
        return _inject(out, client, ranks, planned, wish, watch, detach=detach, until_hit=until_hit)


def _planned(everything: Found, client: Client, wish: Wish, reach: Reach) -> Plan:
    """Return the plan. Raises PdctlError, which also tells of ranks without an agent where no other one is meant."""
    from pdctl.inject.plan import plan
    from pdctl.inject.session import know
    from pdctl.targets.sources import agentless

    try:
        return plan(know(client, everything.ranks), _with_room(wish, client, everything))
    except PdctlError as error:
        if error.code is not Exit.PARTIAL or everything.elsewhere:
            raise
        env = reach.environment()
        there = agentless.choose(agentless.wanted(env), everything.ranks, run_dir=bool(env.get("PDCTL_RUN_DIR")))
        if not there.living:
            raise
        pids = ", ".join(str(one.pid) for one in there.living[:8])
        step = f"{error.next_step}; without an agent: pid {pids}. {agentless.put_in(there.attach)}"
        raise PdctlError(error.message, step, error.code) from None


def _condition(text: str) -> Condition | None:
    from pdctl.inject import stop

    return stop.parse(text) if text else None


def _with_room(wish: Wish, client: Client, found: Found) -> Wish:
    """Return the wish with the room of its request, where the kind's site sees rooms alone."""
    from dataclasses import replace

    from pdctl.inject.session import room_of

    kind = KINDS[wish.kind]
    if not wish.rid or kind.knows_rid or not kind.per_room:
        return wish
    return replace(wish, room=room_of(client, found.ranks, wish.rid), rid="")


def _others(planned: Plan) -> list[str]:
    """Return a line for each fault in place already."""
    said = {fault.id: fault for _, fault in planned.others}.values()
    return [
        f"also in place: {fault.id} of {fault.owner or 'unknown'}, {inject_options.say(fault.kind, fault.delay_s, fault.value)}"
        f" for {fault.target}"
        for fault in said
    ]


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
        room=planned.args.room,
        hits=planned.args.hits,
        value=wish.value,
        rid=wish.rid,
        seed=wish.seed,
        share=wish.share,
        changed=changed,
        others=[
            OtherFault(fault.id, fault.kind, fault.owner, fault.target, identity.selector)
            for identity, fault in planned.others
        ],
    )


def _dry_run(out: Output, planned: Plan, wish: Wish, asked: Asked) -> int:
    document = _document(planned, wish, lease_s=LEASE_S, changed=False)

    def draw(document: Planned, console: Console) -> None:
        at_once = planned.args.at_once
        room = f"{'one' if at_once == 1 else at_once} at a time, the next that come{'s' if at_once == 1 else ''}"
        which = str(document.room) if document.room else f"of request {document.rid}" if document.rid else room
        if not asked.kind.per_room:
            which = "any: it is about no single one"
        share = "" if wish.share == 1 else f", {wish.share:.4%} of visits by seed {wish.seed}"
        for name, value in (
            ("fault", asked.text),
            ("site", asked.kind.seam),
            ("aims at", ", ".join(document.targets)),
            ("placed on", "; ".join(document.on)),
            ("room", f"{which}{f', at most {document.hits}' if document.hits else ''}{share}"),
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
    out: Output,
    client: Client,
    ranks: list[FoundRank],
    planned: Plan,
    wish: Wish,
    watch: Watch | None,
    *,
    detach: bool,
    until_hit: bool,
) -> int:
    from pdctl.commands.inject_watch import Foreground
    from pdctl.inject.audit import Audit, audit_path
    from pdctl.inject.session import BEAT_S, Session
    from pdctl.targets.client import Client

    with Client(timeout_s=BEAT_S, rank_timeout_s=0.8 * BEAT_S) as beats:
        session = Session(client, beats, Audit(audit_path(os.environ), out.note), ranks, planned.args)
        foreground = Foreground(out, session, wish.ttl_s, until_hit=until_hit, watch=watch)
        if not detach:
            return foreground.run()
        code = foreground.place_only()
    if code is Exit.CLEAN:
        document = _document(planned, wish, lease_s=0.0, changed=True)
        out.note(
            f"{document.kind} is in place for {durations.show(wish.ttl_s)} at most; pdctl heal {wish.fault_id} ends it"
        )
        try:
            out.document(document, draw=lambda placed, console: console.print(placed.fault))
        except PdctlError as error:  # nobody was told the id that ends it
            error.code = foreground.take_back(error.message) or error.code
            raise
    return code
