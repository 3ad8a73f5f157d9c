"""``pdctl heal``: ends faults, and makes sure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

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
from pdctl.errors import Exit
from pdctl.output import Document, Format, Output

if TYPE_CHECKING:
    from rich.console import Console


class HealedRank(msgspec.Struct, frozen=True):
    """One rank. ended: faults this command ended there. left: faults still there. unsure: why it may hold one."""

    rank: str
    host: str
    pid: int
    ended: list[str]
    left: list[str]
    unsure: str


class HealedDocument(Document, frozen=True, kw_only=True, tag="pdctl.heal"):
    """What healing came to. clean: no rank holds such a fault."""

    clean: bool
    ranks: list[HealedRank]


def command(
    fault: Annotated[str, typer.Argument(metavar="[ID]", help="The fault, as inject and faults name it.")] = "",
    every: Annotated[bool, typer.Option("--all", help="End every fault of every rank, whoever placed it.")] = False,
    output: OutputOption = Format.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
) -> int:
    """End one fault, or all of them, and make sure. It needs no scheduler thread and can be repeated.

    Exit code 0: nothing is left. 6: a rank that may hold a fault did not answer, or still writes what it held.
    """
    if bool(fault) == every:
        raise typer.BadParameter("name one fault, or --all")
    from pdctl.client import Client
    from pdctl.inject import healing
    from pdctl.inject.audit import Audit, audit_path

    out = Output(output)
    audit = Audit(audit_path(os.environ), out.note)
    found = find(run_dir, record_dir).ranks
    with Client(timeout_s=timeout, rank_timeout_s=rank_timeout) as client:
        results = healing.heal(client, found, fault)
    ranks = [
        HealedRank(
            rank=result.rank.identity.selector,
            host=result.rank.identity.host,
            pid=result.rank.identity.pid,
            ended=sorted(result.ended),
            left=sorted(status.id for status in result.left),
            unsure=result.unsure,
        )
        for result in results
    ]
    code = healing.exit_code(results)
    audit.write("heal", fault=fault or "all", ranks=msgspec.to_builtins(ranks), clean=code is Exit.CLEAN)

    def draw(console: Console) -> None:
        ended = sorted({name for result in results for name in result.ended})
        asked = sum(result.rank.live for result in results)
        if ended:
            console.print(f"ended: {', '.join(ended)}")
        elif code is Exit.CLEAN:
            console.print(f"no {f'fault {fault}' if fault else 'fault'} is in place on the {asked} live ranks found")

    out.document(HealedDocument(clean=code is Exit.CLEAN, ranks=ranks), ranks, draw)
    for line in healing.lines(results):
        out.error(line)
    for result in results:
        if result.gone:
            rank = result.rank.identity
            out.note(f"{rank.selector} (pid {rank.pid}) was not reached, and holds nothing: its process has ended")
    return code
