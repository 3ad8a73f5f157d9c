"""``pdctl inject``: a deliberate fault on live ranks, for a while."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands import inject_options
from pdctl.commands import options as opt
from pdctl.commands.completing import values
from pdctl.commands.options import find, reach_of
from pdctl.faults.kinds import KINDS, Parameter
from pdctl.inject.parameter import format_fault
from pdctl.inject.planned import document_of, draw
from pdctl.protocol import durations
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format, Output
from pdctl.targets import selectors

if TYPE_CHECKING:
    from pdctl.inject.plan import Plan
    from pdctl.inject.stop import Watch
    from pdctl.inject.wish import Wish
    from pdctl.targets.client import Client
    from pdctl.targets.find import Found, FoundRank
    from pdctl.targets.reach import Reach

EXAMPLES = (
    "pdctl inject --rank decode:tp1 --delay-metadata 3s --dry-run",
    "pdctl inject --rank decode:tp1 --skew-poll 200ms --for 30s --detach",
)


@inject_options.with_faults
def command(
    ctx: typer.Context,
    rank: Annotated[
        list[str],
        typer.Option(
            "--rank",
            metavar="PATTERN",
            autocompletion=values("rank"),
            help="Rank to hit: decode:dp0:pp0:tp1, decode:tp1; repeatable.",
        ),
    ],
    faults: inject_options.Given,
    room: Annotated[
        Optional[int],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            "--room",
            metavar="ROOM",
            min=1,
            max=Parameter.ROOM.most,
            help="Hit only this room.",
            show_default="the next that comes",
        ),
    ] = None,
    rid: Annotated[str, typer.Option("--rid", metavar="RID", help="Hit only this request.", show_default=False)] = "",
    share: Annotated[
        str, typer.Option("--share", metavar="SHARE", help="Hit only this share of all visits: 10% or 0.1.")
    ] = "100%",
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", min=0, max=2**64 - 1, help="The same seed gives the same choice of --share."
        ),
    ] = 0,
    hits: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--hits",
            metavar="N",
            min=1,
            max=1_000_000,
            help="End after this number of hits.",
            show_default="no limit, 1 where a hit can't be undone",
        ),
    ] = None,
    time: Annotated[str, typer.Option("--for", metavar="TIME", help="Lifetime of the fault, at most 15m.")] = "60s",
    stop_when: Annotated[
        str,
        typer.Option(
            "--stop-when",
            metavar="diverged|failed:N",
            help="End early when ranks differ (not with --detach), or when N rooms have failed.",
            show_default=False,
        ),
    ] = "",
    until_hit: Annotated[bool, typer.Option("--until-hit", help="End when the first hit is over.")] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Print the fault's id and return. pdctl heal or the end of --for ends the fault."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show ranks, site and lease, and change nothing.")] = False,
    allow_ranks: Annotated[
        int, typer.Option("--allow-ranks", metavar="N", min=1, max=1024, help="How many ranks the fault may hit.")
    ] = 1,
    allow_rooms: Annotated[
        int,
        typer.Option(
            "--allow-rooms", metavar="N", min=1, max=1024, help="How many rooms the fault may hold at a time."
        ),
    ] = 1,
    output: opt.OutputOption = Format.TABLE,
    timeout: opt.TimeoutOption = opt.TIMEOUT_S,
    rank_timeout: opt.RankTimeoutOption = opt.RANK_TIMEOUT_S,
    run_dir: opt.RunDirOption = None,
    record_dir: opt.RecordDirOption = None,
) -> int:
    """Inject a fault into live ranks for a limited time.

    Only ranks that were started with PDCTL_ARM=1 accept faults. pdctl faults --available shows what each rank can carry.
    The command stays in the foreground. It heals the fault at the end of --for and on Ctrl-C. Where the command dies, the
    ranks end the fault themselves within 3 s. The options below call the rank of --rank "it".

    Exit code: 0 the fault fired and is healed, or is in place (--detach), 1 it has ended, and so has a thread of an engine
    meanwhile, which no healing brings back, 3 it never fired, 5 it was refused, 6 it may still be active.
    """
    from pdctl.inject import stop

    kind, delay_s, value = inject_options.parse_fault(faults)
    ttl_s = inject_options.parse_lifetime(time)
    wanted_share = inject_options.parse_share(share)
    try:
        patterns = tuple(selectors.parse(pattern) for pattern in rank)
        condition = stop.parse(stop_when) if stop_when else None
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
    from pdctl.inject.wish import Wish
    from pdctl.targets.client import Client

    reach = reach_of(ctx, run_dir, record_dir)
    reach.forbid_faults()
    wish = Wish(
        patterns=patterns, kind=kind.name, delay_s=delay_s, value=value, ttl_s=ttl_s,
        fault_id=f"f-{os.urandom(3).hex()}", owner=owner(), room=room or 0, rid=rid, hits=hits or 0, seed=seed,
        share=wanted_share, stop_failed=condition.failed if condition else 0, allow_ranks=allow_ranks,
        allow_rooms=allow_rooms,
    )  # fmt: skip
    out = Output(output)
    with Client(timeout_s=timeout, rank_timeout_s=rank_timeout, acts=True) as client:
        everything = find(run_dir, record_dir, reach=reach, timeout=timeout, rank_timeout=rank_timeout, outside=False)
        planned = _planned(everything, client, wish, reach)
        for note in (*planned.notes, *_others(planned)):
            out.note(f"Note: {note}")
        ranks = [_found(everything.ranks, identity) for identity in planned.on]
        if dry_run:
            document = document_of(planned, wish, placed=False)
            out.document(document, draw=partial(draw, at_once=planned.args.at_once))
            return Exit.CLEAN
        watch = stop.Watch(condition, everything) if condition and not detach else None
        return _inject(out, client, ranks, planned, wish, watch, everything.ranks, detach=detach, until_hit=until_hit)


def _planned(everything: Found, client: Client, wish: Wish, reach: Reach) -> Plan:
    """Return the plan. Raises PdctlError, which also tells of ranks without an agent where no other one is meant."""
    from pdctl.inject.plan import NoSuchRankError, plan
    from pdctl.inject.session import load_known
    from pdctl.targets.sources import agentless

    try:
        return plan(load_known(client, everything.ranks), _with_room(wish, client, everything))
    except NoSuchRankError as error:
        if everything.elsewhere:
            raise
        there = agentless.select_processes(reach.places(), everything.ranks)
        if not there.living:
            raise
        pids = ", ".join(str(one.pid) for one in there.living[:8])
        step = f"{error.next_step} Without an agent: pid {pids}. {agentless.attach_hint(there.attach)}"
        raise PdctlError(error.message, step, error.code) from None


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
        f"also in place: {fault.id} of {fault.owner or 'unknown'}, {format_fault(fault.kind, fault.delay_s, fault.value)}"
        f" for {fault.target}"
        for fault in said
    ]


def _found(found: tuple[FoundRank, ...], identity: object) -> FoundRank:
    return next(rank for rank in found if rank.identity == identity)


def _inject(
    out: Output,
    client: Client,
    ranks: list[FoundRank],
    planned: Plan,
    wish: Wish,
    watch: Watch | None,
    everyone: tuple[FoundRank, ...],
    *,
    detach: bool,
    until_hit: bool,
) -> int:
    from pdctl.commands.inject_watch import Foreground
    from pdctl.inject.audit import Audit, audit_path
    from pdctl.inject.session import BEAT_S, Session
    from pdctl.targets.client import Client

    with Client(timeout_s=BEAT_S, rank_timeout_s=0.8 * BEAT_S, acts=True) as beats:
        session = Session(client, beats, Audit(audit_path(os.environ), out.note), ranks, planned.args, everyone)
        foreground = Foreground(out, session, wish.ttl_s, until_hit=until_hit, watch=watch)
        if not detach:
            return foreground.run()
        code = foreground.place_only()
    if code is Exit.CLEAN:
        document = document_of(planned, wish, placed=True)
        out.note(
            f"{document.kind} is in place for {durations.show(wish.ttl_s)} at most; pdctl heal {wish.fault_id} ends it"
        )
        try:
            out.document(document, draw=lambda document, console: console.print(document.fault))
        except PdctlError as error:  # nobody was told the id that ends it
            error.code = foreground.take_back(error.message) or error.code
            raise
    return code
