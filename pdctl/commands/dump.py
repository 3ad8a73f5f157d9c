"""``pdctl dump``: what ranks hold and believe, rank by rank: metadata slots, queues, groups, settings, what has no owner."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.options import (
    RANK_TIMEOUT_S,
    TIMEOUT_S,
    FromOption,
    OutputOption,
    RankTimeoutOption,
    RecordDirOption,
    RunDirOption,
    TimeoutOption,
    find,
    seconds,
    within,
)
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.probes.metadata.model import MetadataDocument, RankRows
    from pdctl.protocol.rank import FoundRank
    from pdctl.report.findings import Finding
    from pdctl.targets.find import Found

WATCH_S = 5.0

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Show what ranks hold and believe, rank by rank.",
)

RankOption = Annotated[
    Optional[list[str]],  # noqa: UP045  # typer evaluates annotations
    typer.Option("--rank", metavar="PATTERN", help="Only these ranks (decode:tp1, prefill:*), may be repeated."),
]
RoomOption = Annotated[
    Optional[list[int]],  # noqa: UP045
    typer.Option("--room", metavar="ROOM", min=1, help="Only this room, may be repeated."),
]


@app.command("metadata")
def metadata(
    rank: RankOption = None,
    slot: Annotated[
        Optional[list[int]],  # noqa: UP045
        typer.Option("--slot", metavar="SLOT", min=0, help="Only this slot, may be repeated."),
    ] = None,
    room: RoomOption = None,
    all_slots: Annotated[bool, typer.Option("--all-slots", help="Also slots that are free and hold no room.")] = False,
    output: OutputOption = Format.TABLE,
    source: FromOption = None,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
) -> int:
    """Show whose room is in which metadata slot, when it landed, and whether rows can come late on this rank.

    Rows are read without stopping the rank, and never shown: rooms and checksums (-o wide, json) only. Of ranks that are
    gone, and with --from, recordings tell what was decided on with another room in the slot.
    Exit code: 0 clean, 1 on a finding, 3 when some ranks could not be read or a room is unknown, 4 when none could.
    """
    import time

    from pdctl.commands.dump_tables import draw_metadata
    from pdctl.probes.metadata.collect import collect
    from pdctl.probes.metadata.judge import judge
    from pdctl.targets.client import Client

    found = find(run_dir, record_dir, source, timeout=timeout, rank_timeout=rank_timeout)
    ranks = chosen(found, rank)
    with Client(timeout_s=timeout, spent_s=found.took_s, rank_timeout_s=rank_timeout) as client:
        views = collect(found, client, ranks=ranks, slots=slot or (), rooms=room or (), every=all_slots)
    document = judge(views, now_s=time.time())
    _known(views, document, room or (), slot or ())
    out = Output(output)
    wide = output is Format.WIDE
    answered = any(view.body is not None or (source and view.history is not None) for view in views)
    code = int(_exit(document.findings, answered=answered, partial=document.partial or bool(found.problems)))
    out.document(document, document.slots, partial(draw_metadata, wide=wide), code=code)
    _notes(out, document.problems, found)
    return code


@app.command("queues")
def queues(
    rank: RankOption = None,
    room: RoomOption = None,
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
) -> int:
    """Show every request in every queue of every rank: room, rid, slot, state, age.

    Exit code: 0 all ranks answered, 3 when some did not or a room is unknown, 4 when none did.
    """
    from dataclasses import replace

    import msgspec

    from pdctl.commands.dump_tables import draw_queues
    from pdctl.probes.dump import collect
    from pdctl.targets.client import Client
    from pdctl.targets.fallback import stand_in

    found = find(run_dir, record_dir, timeout=timeout, rank_timeout=rank_timeout)
    with Client(timeout_s=timeout, spent_s=found.took_s, rank_timeout_s=rank_timeout) as client:
        found = replace(found, ranks=tuple(chosen(found, rank)))
        document = collect.queues(stand_in(found, client).ranks, client)
    if room:
        known = {request.room for request in document.requests}
        _unknown(set(room) - known, known, "is in no queue of these ranks")
        document = msgspec.structs.replace(document, requests=tuple(r for r in document.requests if r.room in room))
    out = Output(output)
    answered = any(not row.silence for row in document.ranks)
    code = int(_exit((), answered=answered, partial=document.partial or bool(found.problems)))
    out.document(document, document.requests, draw_queues, code=code)
    _notes(out, [f"{row.rank}: {row.silence}" for row in document.ranks if row.silence], found)
    return code


@app.command("groups")
def groups(
    rank: RankOption = None,
    output: OutputOption = Format.TABLE,
    source: FromOption = None,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
) -> int:
    """Show the process groups of every rank: kind, members, number in PyTorch's flight recorder.

    They are what ranks registered when they started, so that a hung or dead rank is in it, too.
    Exit code: 0 when those of every rank are known, 3 when not of all, 4 of none.
    """
    from pdctl.commands.dump_tables import draw_groups
    from pdctl.probes.dump import collect

    found = find(run_dir, record_dir, source)
    document = collect.groups_of(chosen(found, rank), found.ranks)
    out = Output(output)
    code = int(_exit((), answered=bool(document.groups), partial=document.partial or bool(found.problems)))
    out.document(document, document.groups, draw_groups, code=code)
    _notes(out, [f"{label}: {why}" for label, why in document.silent.items()], found)
    return code


@app.command("config")
def config(
    rank: RankOption = None,
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
) -> int:
    """Show the settings of both sides next to each other, and those that do not go together.

    The table has what differs; -o wide has all. Exit code: 0 they go together, 1 on a finding, 3 when some ranks did not
    answer, 4 when none did.
    """
    from pdctl.commands.dump_tables import draw_config
    from pdctl.probes.config.collect import collect
    from pdctl.probes.config.judge import judge
    from pdctl.targets.client import Client

    found = find(run_dir, record_dir, timeout=timeout, rank_timeout=rank_timeout)
    with Client(timeout_s=timeout, spent_s=found.took_s, rank_timeout_s=rank_timeout) as client:
        views = collect(chosen(found, rank), client)
    document = judge(views)
    out = Output(output)
    wide = output is Format.WIDE
    answered = any(view.body is not None for view in views)
    code = int(_exit(document.findings, answered=answered, partial=document.partial or bool(found.problems)))
    out.document(document, document.settings, partial(draw_config, wide=wide), code=code)
    _notes(out, document.problems, found)
    return code


@app.command("leaks")
def leaks(
    watch: Annotated[
        float, typer.Option("--watch", parser=seconds, metavar="TIME", help="How long to watch: what stays counts.")
    ] = WATCH_S,
    output: OutputOption = Format.TABLE,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
) -> int:
    """Show what is held though its request is gone: slots, KV space, failed requests of later pipeline stages, rooms.

    Every rank is looked at several times; only what was without an owner at every look counts. Rooms that engines leave
    behind after aborts are said, and are no fault.
    Exit code: 0 nothing leaks, 1 on a finding, 3 when some ranks could not be judged, 4 when none could.
    """
    from pdctl.commands.dump_tables import draw_leaks
    from pdctl.probes.leaks.collect import collect
    from pdctl.probes.leaks.judge import judge
    from pdctl.targets.client import Client

    within(watch, timeout)
    found = find(run_dir, record_dir, timeout=timeout, rank_timeout=rank_timeout)
    with Client(timeout_s=timeout, spent_s=found.took_s, rank_timeout_s=rank_timeout) as client:
        views = collect(found, client, watch_s=watch)
    document = judge(views, watch_s=watch)
    out = Output(output)
    judged = any(row.judged for row in document.ranks)
    code = int(_exit(document.findings, answered=judged, partial=document.partial or bool(found.problems)))
    out.document(document, document.ranks, draw_leaks, code=code)
    _notes(out, document.problems, found)
    return code


# ---- what they share -------------------------------------------------------------------------------------------------


def chosen(found: Found, patterns: Sequence[str] | None) -> list[FoundRank]:
    """Return the ranks that any pattern means, all without one. Raises BadParameter, or PdctlError when it is none."""
    if not patterns:
        return list(found.ranks)
    from pdctl.targets import selectors

    try:
        wanted = [selectors.parse(pattern) for pattern in patterns]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--rank") from None
    ranks = [rank for rank in found.ranks if any(pattern.matches(rank.identity) for pattern in wanted)]
    if not ranks:
        there = ", ".join(rank.identity.selector for rank in found.ranks[:8])
        raise PdctlError(f"no rank is {' or '.join(patterns)}", f"there are: {there}", Exit.USAGE)
    return ranks


def _known(views: Sequence[RankRows], document: MetadataDocument, rooms: Sequence[int], slots: Sequence[int]) -> None:
    """Raise PdctlError for a room or a slot that none of the ranks has."""
    sizes = [view.body.slots for view in views if view.body is not None]
    beyond = [slot for slot in slots if sizes and slot >= max(sizes)]
    if beyond:
        raise PdctlError(f"there is no slot {beyond[0]}", f"these ranks have slots 0 to {max(sizes) - 1}", Exit.USAGE)
    if rooms:
        here = {room for slot in document.slots for room in (slot.expected, slot.found) if room}
        past = {room for view in views if view.history is not None for room in view.history.rooms}
        live = {h.room for view in views if view.body is not None for h in view.body.holders}
        _unknown(set(rooms) - here, past | live, "is in no metadata slot of these ranks")


def _unknown(missing: set[int], known: set[int], what: str) -> None:
    from difflib import get_close_matches

    for room in sorted(missing):
        said = f"room {room} {what}"
        if room in known:
            raise PdctlError(said, "ranks know it: pdctl story tells what became of it", Exit.PARTIAL)
        near = get_close_matches(str(room), map(str, known), n=3, cutoff=0.5)
        hint = f"nearest rooms that are known: {', '.join(near)}" if near else "no room like it is known to these ranks"
        raise PdctlError(said, hint, Exit.PARTIAL)


def _notes(out: Output, problems: Sequence[str], found: Found) -> None:
    if out.format.drawn:
        for problem in (*problems, *found.problems):
            out.note(f"not seen or in part: {problem}")
        if found.left_out:
            out.note(found.left_out)


def _exit(findings: Sequence[Finding], *, answered: bool, partial: bool) -> Exit:
    """Return what the command exits with: findings come first, then what could not be seen."""
    from pdctl.report.findings import Level

    if any(found.level is not Level.INFO for found in findings):
        return Exit.FINDING
    if not answered:
        return Exit.UNREACHABLE
    return Exit.PARTIAL if partial else Exit.CLEAN
