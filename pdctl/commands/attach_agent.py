"""``pdctl attach --inject-agent`` and ``--remove-agent``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pdctl.introspect.inject import Injected, inject, take_back
from pdctl.protocol.documents import Document, Rows
from pdctl.protocol.errors import Exit, PdctlError, exit_of
from pdctl.protocol.model import Status
from pdctl.protocol.rank import Answer
from pdctl.targets.client import Client
from pdctl.targets.find import discover
from pdctl.targets.places import parse_places

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.report.output import Output

_AT_ONCE = 8


class InjectedDocument(Document, frozen=True, kw_only=True, tag="pdctl.attached"):
    """Answer of ``pdctl attach --inject-agent``: what came of each process, in the order given."""

    processes: tuple[Injected, ...]


class Left(msgspec.Struct, frozen=True):
    """What came of one process's agent. rank: "" without one. kept: why there is none to leave, or why it is still there."""

    rank: str
    pid: int
    kept: str = ""


class LeftDocument(Document, frozen=True, kw_only=True, tag="pdctl.detached"):
    """Answer of ``pdctl attach --remove-agent``."""

    ranks: tuple[Left, ...]


def put_in(
    pids: Sequence[int], env: Mapping[str, str], out: Output, *, arm: bool, timeout_s: float, rank_timeout_s: float
) -> int:
    """Put an agent into each process and say what came of it."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = tuple(pool.map(lambda pid: inject(pid, env, arm=arm, wait_s=timeout_s), pids))
    if any(one.state == "there" for one in found):
        found = _answering(found, env, timeout_s, rank_timeout_s)
    document = InjectedDocument(processes=found)
    code = int(exit_code(found))
    out.document(document, Rows(Injected, found), _draw, code=code)
    return code


def exit_code(found: Sequence[Injected]) -> Exit:
    """Return what the command exits with: see its help."""
    done = sum(one.state in ("running", "there") for one in found)
    refused = Exit.REFUSED if all(one.unarmed for one in found) else Exit.UNREACHABLE
    none = Exit.PARTIAL if any(one.state == "pending" for one in found) else refused
    return exit_of(seen=done > 0, partial=done < len(found), none=none)


def _answering(
    found: Sequence[Injected], env: Mapping[str, str], timeout_s: float, rank_timeout_s: float
) -> tuple[Injected, ...]:
    """Return the same, an agent that was there before and does not answer as refused."""
    there = {one.pid for one in found if not one.thread}
    ranks = [rank for rank in discover(parse_places(env)).ranks if rank.identity.pid in there]
    with Client(timeout_s=timeout_s, rank_timeout_s=rank_timeout_s) as client:
        answers = {answer.rank.identity.pid: answer for answer in client.ask(ranks, "status", Status)}

    def asked(one: Injected) -> Injected:
        answer = answers.get(one.pid)
        if one.state != "there" or (answer is not None and answer.body is not None):
            return one
        why = answer.reason if answer is not None else "its registration has gone"
        step = "No second one is started beside it. pdctl ranks says more."
        return msgspec.structs.replace(one, state="refused", reason=f"{one.reason}: {why}", next_step=step)

    return tuple(asked(one) for one in found)


def _draw(document: InjectedDocument, console: Console) -> None:
    for one in document.processes:
        stood = f"; thread {one.thread} stood {one.stopped_ms:.1f} ms" if one.thread else ""
        if one.state == "running":
            console.print(f"pid {one.pid}: agent of {one.rank} runs at {one.endpoint}{stood}")
            continue
        console.print(f"pid {one.pid}: {one.state}: {one.reason}{stood}")
        if one.next_step:
            console.print(f"  {one.next_step}")
    if any(one.state == "running" for one in document.processes):
        console.print("Such an agent records no rounds. pdctl attach PID --remove-agent takes it out again.")


def take_out(pids: Sequence[int], env: Mapping[str, str], out: Output, timeout_s: float, rank_timeout_s: float) -> int:
    """Tell agents that were put in to leave, wait until they have, and take back those that wait for the GIL.

    Raises PdctlError (UNREACHABLE) where none of these has an agent.
    """
    ranks = [
        rank for rank in discover(parse_places(env)).ranks if rank.identity.pid in pids and rank.endpoint and rank.live
    ]
    waiting = {pid for pid in pids if take_back(pid, env)}
    if not ranks and not waiting:
        raise PdctlError("no agent answers in these processes", "pdctl ranks lists those that have one.")
    with Client(timeout_s=timeout_s, rank_timeout_s=rank_timeout_s) as client:
        answers = {a.rank.identity.pid: a for a in client.ask(ranks, "leave", str)}
    end = time.monotonic() + timeout_s
    rows = tuple(_left(pid, answers.get(pid), end, timeout_s, taken=pid in waiting) for pid in pids)

    def draw(document: LeftDocument, console: Console) -> None:
        for row in document.ranks:
            console.print(f"{row.rank or f'pid {row.pid}'}: {row.kept or 'its agent has left'}")

    kept = sum(bool(row.kept) for row in rows)
    code = exit_of(seen=kept < len(rows), partial=kept > 0, none=Exit.REFUSED)
    out.document(LeftDocument(ranks=rows), Rows(Left, rows), draw, code=code)
    return int(code)


def _left(pid: int, answer: Answer[str] | None, end: float, timeout_s: float, *, taken: bool) -> Left:
    """Return what came of one agent that was told to leave ``timeout_s`` seconds before ``end`` (monotonic)."""
    if answer is None:
        return Left("", pid, "" if taken else "no agent answers in it")
    label = answer.rank.identity.label
    if answer.body is None:
        return Left(label, pid, answer.reason)
    socket = Path(answer.rank.endpoint.removeprefix("ipc://"))
    while there := any(socket.with_suffix(suffix).exists() for suffix in (".json", ".sock")):
        if time.monotonic() >= end:
            break
        time.sleep(0.02)
    return Left(label, pid, f"it is told to leave, and has not within {timeout_s:g} s" if there else "")
