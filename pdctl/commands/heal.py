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
    reach_of,
)
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit
from pdctl.report.escaping import escape
from pdctl.report.output import Document, Format, Output

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = ("pdctl heal --all", "pdctl heal 3f9c27")


class HealedRank(msgspec.Struct, frozen=True):
    """One rank. ended: faults this command ended there, owners: whose each was. left: faults still there.

    others: faults in place that were not meant. unsure: why it may hold one.
    """

    rank: str
    host: str
    pid: int
    ended: list[str]
    owners: list[str]
    left: list[str]
    others: list[str]
    unsure: str


class HealedDocument(Document, frozen=True, kw_only=True, tag="pdctl.heal"):
    """What healing came to. clean: no rank holds such a fault."""

    clean: bool
    ranks: list[HealedRank]


def command(
    ctx: typer.Context,
    fault: Annotated[
        str, typer.Argument(metavar="ID", help="The fault's id, as pdctl inject and pdctl faults print it.")
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="End every fault on every rank, whoever placed it.")] = False,
    output: OutputOption = Format.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
) -> int:
    """End one fault, or all faults, and verify that they have ended.

    It works while scheduler threads hang, and can be repeated.

    Exit code: 0 no fault is left, 1 none is left, and a thread of an engine has ended, which no healing brings back, 3 no rank
    knows the named fault and another fault is in place, 4 no rank runs any more, 6 a rank that may hold a fault did not answer,
    or still writes data that it held back.
    """
    if bool(fault) == every:
        raise typer.BadParameter("name one fault, or --all")
    from pdctl.inject import healing
    from pdctl.inject.audit import Audit, audit_path
    from pdctl.targets.client import Client

    out = Output(output)
    audit = Audit(audit_path(os.environ), out.note)
    reach = reach_of(ctx)
    there = find(run_dir, record_dir, reach=reach, timeout=timeout, rank_timeout=rank_timeout, outside=False)
    found = there.ranks
    with Client(timeout_s=timeout, spent_s=there.took_s, rank_timeout_s=rank_timeout) as client:
        results = healing.heal(client, found, fault)
        harm = healing.aftermath(client, found)
    ranks = [
        HealedRank(
            rank=result.rank.identity.label,
            host=result.rank.identity.host,
            pid=result.rank.identity.pid,
            ended=sorted(result.ended),
            owners=[result.ended[fault_id] for fault_id in sorted(result.ended)],
            left=sorted(status.id for status in result.left),
            others=sorted(status.id for status in result.others),
            unsure=result.unsure,
        )
        for result in results
    ]
    code = healing.exit_code(results)
    if harm and code is Exit.CLEAN:
        code = Exit.FINDING
    if code is Exit.CLEAN and all(result.gone or not result.rank.live for result in results):
        code = Exit.UNREACHABLE  # nobody is left to say anything
    audit.write("heal", fault=fault or "all", ranks=msgspec.to_builtins(ranks), clean=code is not Exit.FAULT_ACTIVE)

    def draw(document: HealedDocument, console: Console) -> None:
        ended = {name: owner for rank in document.ranks for name, owner in zip(rank.ended, rank.owners, strict=True)}
        asked = sum(result.rank.live for result in results)
        if ended:
            console.print(f"ended: {', '.join(whose(name, ended[name]) for name in sorted(ended))}")
        elif code in (Exit.CLEAN, Exit.PARTIAL):
            console.print(
                f"no {f'fault {escape(fault)}' if fault else 'fault'} is in place on the {asked} live ranks found"
            )

    for line in (*healing.lines(results), *harm):
        out.error(line)
    document = HealedDocument(clean=code is not Exit.FAULT_ACTIVE, ranks=ranks)
    out.document(document, Rows(HealedRank, ranks), draw, code=code)
    others = {status.id: status.owner for result in results for status in result.others}
    if others:
        out.note(f"in place, and not meant: {', '.join(whose(name, others[name]) for name in sorted(others))}")
    for result in results:
        if result.gone:
            rank = result.rank.identity
            out.note(f"{rank.who} was not reached, and holds nothing: its process has ended")
    return code


def whose(fault: str, owner: str) -> str:
    """Return a fault and who placed it, as far as that is known."""
    return f"{fault} of {owner}" if owner else fault
