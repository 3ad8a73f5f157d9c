"""``pdctl attach``: what can be read of schedulers that run without an agent, from outside and without changing them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Optional

import msgspec
import typer

from pdctl.commands import options as opt
from pdctl.commands.options import reach_of
from pdctl.protocol.documents import Document, Rows
from pdctl.protocol.errors import Exit, PdctlError, exit_of
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from pdctl.introspect.find import Candidate

EXAMPLES = ("pdctl attach --all", "pdctl attach 4711 --inject-agent")


class AttachRow(msgspec.Struct, frozen=True, kw_only=True):
    """One process.

    rank: its label, "" where it can't be read: reason says why, next_step what helps. python: its version. reads: what can
    be read of it. lacks: what can't, each with the reason. requests: how many it holds. slots: how many metadata slots.
    stopped_ms: how long its main thread stood for a reading, at most; 0 where nothing had to stop.
    """

    pid: int
    title: str
    rank: str = ""
    service: str = ""
    engine_version: str = ""
    python: str = ""
    reads: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    requests: int = 0
    slots: int = 0
    stopped_ms: float = 0.0
    where: str = ""
    reason: str = ""
    next_step: str = ""


class AttachDocument(Document, frozen=True, kw_only=True, tag="pdctl.attach"):
    """Answer of ``pdctl attach``."""

    processes: tuple[AttachRow, ...]


def command(
    ctx: typer.Context,
    pids: Annotated[
        Optional[list[int]],  # noqa: UP045  # typer evaluates annotations
        typer.Argument(metavar="PID", help="Processes to read, under any process title."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Read all scheduler processes of this host.")] = False,
    inject_agent: Annotated[
        bool, typer.Option("--inject-agent", help="Start pdctl's agent in these processes, on its own thread.")
    ] = False,
    arm: Annotated[bool, typer.Option("--arm", help="With --inject-agent: let the agent accept faults.")] = False,
    remove_agent: Annotated[
        bool, typer.Option("--remove-agent", help="Remove an agent that --inject-agent started.")
    ] = False,
    run_dir: opt.RunDirOption = None,
    record_dir: opt.RecordDirOption = None,
    output: opt.OutputOption = Format.TABLE,
    timeout: opt.TimeoutOption = opt.TIMEOUT_S,
    rank_timeout: opt.RankTimeoutOption = opt.RANK_TIMEOUT_S,
) -> int:
    """Read ranks that run without an agent, from outside, and show what can be read of each.

    pdctl starts nothing in them without --inject-agent. Other commands read the same of such ranks, without pdctl attach.

    Exit code: 0 all processes could be read, 3 some could not, 4 none could. With --inject-agent: 0 all processes have an
    agent now, as asked for, 3 some have one, or one waits for the GIL, 5 --arm was given and the agents in place accept no
    faults.
    """
    from pdctl.introspect.find import candidate, candidates

    if pids and every:
        raise typer.BadParameter("--all means every scheduler process: give PIDs or --all, not both")
    if not pids and not every:
        raise typer.BadParameter("no process is named: give PIDs, or --all for every scheduler process")
    if arm and not inject_agent:
        raise typer.BadParameter("only an agent that --inject-agent starts can be armed", param_hint="--arm")
    if inject_agent and remove_agent:
        raise typer.BadParameter("--inject-agent and --remove-agent exclude each other")
    chosen = candidates() if every else [candidate(pid) for pid in dict.fromkeys(pids or ())]
    if not chosen:
        raise PdctlError(
            "no process here calls itself sglang::scheduler",
            "Is pdctl in the engine's pid namespace? From a sidecar that needs shareProcessNamespace, on the host nothing.",
        )
    # Processes of this host are meant, whatever else a context names.
    reach = reach_of(ctx, run_dir, record_dir)
    env = {name: value for name, value in reach.environment().items() if name not in ("PDCTL_ENDPOINT", "PDCTL_STORE")}
    if inject_agent or remove_agent:
        from pdctl.commands.attach_agent import put_in, take_out

        numbers = [one.pid for one in chosen]
        if remove_agent:
            return take_out(numbers, env, Output(output), timeout, rank_timeout)
        if arm:
            reach.forbid_faults()
        return put_in(numbers, env, Output(output), arm=arm, timeout_s=timeout, rank_timeout_s=rank_timeout)
    rows = read(chosen, timeout_s=timeout, rank_timeout_s=rank_timeout, agents=_agents(env))
    out = Output(output)
    unread = sum(bool(row.reason) for row in rows)
    code = exit_of(seen=unread < len(rows), partial=unread > 0)
    out.document(AttachDocument(processes=rows), Rows(AttachRow, rows), draw, code=code)
    return int(code)


def _agents(env: Mapping[str, str]) -> dict[tuple[int, int], str]:
    """Return the processes here that have an agent, by pid and start: which one, in words."""
    from pdctl.targets.find import discover
    from pdctl.targets.places import parse_places

    try:
        found = discover(parse_places(env)).ranks
    except PdctlError as error:
        if error.code is Exit.USAGE:
            raise
        return {}  # a directory that can't be used hides nothing that is read from outside
    return {
        (rank.identity.pid, rank.process.start): f"{rank.identity.label}, loaded by {rank.identity.loaded_by}"
        for rank in found
        if rank.live and rank.access is None and rank.protocol and rank.endpoint
    }


def read(
    chosen: Sequence[Candidate],
    *,
    timeout_s: float,
    rank_timeout_s: float,
    agents: Mapping[tuple[int, int], str] | None = None,
) -> tuple[AttachRow, ...]:
    """Return a row for every process, in their order, within ``timeout_s``. agents: what is said of those that have one."""
    from pdctl.introspect.ranks import found_ranks, identity_of, python_of, refusal_of, stops
    from pdctl.probes.turns import call_words
    from pdctl.protocol.metadata import Metadata
    from pdctl.protocol.model import Snapshot, Status
    from pdctl.targets.client import Client

    began = time.monotonic()
    ranks = found_ranks(chosen, min(rank_timeout_s, timeout_s / 2))
    spent_s = time.monotonic() - began
    with Client(timeout_s=timeout_s, spent_s=spent_s, rank_timeout_s=rank_timeout_s) as client:
        statuses = client.ask(ranks, "status", Status)
        snapshots = client.ask(ranks, "queues", Snapshot)
        rows = client.ask(ranks, "metadata", Metadata, {"sums": False})
    stopped = stops(ranks)
    found = []
    for one, status, snapshot, metadata in zip(chosen, statuses, snapshots, rows, strict=True):
        if snapshot.body is None:
            why = refusal_of(one)
            reason, step = (why.reason, why.next_step) if why else (snapshot.reason, snapshot.next_step)
            reason = reason.removeprefix(f"pid {one.pid}: ")  # the row says it
            agent = (agents or {}).get((one.pid, one.process.start))
            if agent:
                reason = f"it has pdctl's agent ({agent}), and can't be read from outside: {reason}"
                step = "Other commands ask its agent: pdctl ranks."
            found.append(AttachRow(pid=one.pid, title=one.title, python=python_of(one), reason=reason, next_step=step))
            continue
        lacks = [f"{name}: {why}" for name, why in snapshot.body.missing.items()]
        reads = ["queues"]
        if status.body is not None:
            reads.append("stack")
        else:
            lacks.append(f"stack: {status.reason}")
        if metadata.body is None:
            lacks.append(f"metadata: {metadata.reason}")
        elif not metadata.body.not_read:
            reads.append("metadata")
        i = identity_of(one) or status.rank.identity
        found.append(
            AttachRow(
                pid=one.pid,
                title=one.title,
                rank=i.label,
                service=i.service,
                engine_version=i.engine_version,
                python=python_of(one),
                reads=tuple(reads),
                lacks=(*lacks, "rounds: no agent counts them"),
                requests=sum(map(len, snapshot.body.queues.values())),
                slots=metadata.body.slots if metadata.body is not None else 0,
                stopped_ms=round(stopped.get(one.pid, 0.0), 3),
                where=call_words(status.body.call, status.body.stack) if status.body is not None else "",
            )
        )
    return tuple(found)


# ---- for people ------------------------------------------------------------------------------------------------------


def draw(document: AttachDocument, console: Console) -> None:
    """Draw a line a process, and below it why those that can't be read can't be."""
    from pdctl.report import drawing

    rows = document.processes
    names = ("rank", "pid", "engine", "python", "requests", "slots", "stopped", "main thread")
    table = drawing.table(*names, right=_RIGHT, wraps=("main thread",))
    for row in rows:
        read = not row.reason
        table.add_row(
            row.rank or "?",
            str(row.pid),
            row.engine_version or "-",
            row.python or "-",
            str(row.requests) if read else "-",
            str(row.slots) if read else "-",
            f"{row.stopped_ms:.1f} ms" if row.stopped_ms else "no" if read else "-",
            row.where or ("-" if read else "can't be read"),
        )
    console.print(table)
    for row in rows:
        who = row.rank or f"pid {row.pid}"
        if row.reason:
            console.print(f"  {who}: {row.reason}")
            if row.next_step:
                console.print(f"    {row.next_step}")
        for lack in row.lacks:
            if not lack.startswith("rounds:"):
                console.print(f"  {who}: not known: {lack}")
    if any(not row.reason for row in rows):
        console.print(
            "  Rounds are not known without an agent: what differs is SKEWED until it has lasted (--confirm)."
        )


_RIGHT = ("pid", "requests", "slots", "stopped")
