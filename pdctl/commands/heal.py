"""``pdctl heal``: ends faults, and makes sure."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pdctl.commands import options as opt
from pdctl.commands.options import find, reach_of
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.escaping import escape
from pdctl.report.output import Document, Format, Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from pdctl.inject.drill.servers import Address
    from pdctl.inject.proof import Proof
    from pdctl.targets.find import FoundRank
    from pdctl.targets.reach import Reach

EXAMPLES = ("pdctl heal --all --prove", "pdctl heal 3f9c27")


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
    """What healing came to. clean: no rank holds such a fault. answered: whether a request sent then was, None: none was."""

    clean: bool
    ranks: list[HealedRank]
    answered: bool | None = None


def command(
    ctx: typer.Context,
    fault: Annotated[
        str, typer.Argument(metavar="ID", help="The fault's id, as pdctl inject and pdctl faults print it.")
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="End every fault on every rank, whoever placed it.")] = False,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Then send one request, and wait for its answer as long as --timeout says: to a lab, or to the servers named.",
        ),
    ] = False,
    prefill_url: opt.PrefillUrlOption = "",
    decode_url: opt.DecodeUrlOption = "",
    bootstrap: opt.BootstrapOption = "",
    output: opt.OutputOption = Format.TABLE,
    timeout: opt.TimeoutOption = opt.TIMEOUT_S,
    rank_timeout: opt.RankTimeoutOption = opt.RANK_TIMEOUT_S,
    run_dir: opt.RunDirOption = None,
    record_dir: opt.RecordDirOption = None,
) -> int:
    """End one fault, or all faults, and verify that they have ended.

    It works while scheduler threads hang, and can be repeated. What a fault did may outlive it, as a group that hangs does:
    --prove shows that with one request.

    Exit code: 0 no fault is left, 1 none is left, but the request was not answered, or a thread of an engine has ended while
    one was in place, which no healing brings back, 3 no rank knows the named fault and another fault is in place, or no request
    could be sent, 4 no rank runs any more, 6 a rank that may hold a fault did not answer, or still writes data that it held
    back.
    """
    if bool(fault) == every:
        raise typer.BadParameter("name one fault, or --all")
    from pdctl.inject import healing
    from pdctl.inject.audit import Audit, audit_path
    from pdctl.inject.drill.servers import Address
    from pdctl.targets.client import Client

    out = Output(output)
    address = Address.parse(prefill_url, decode_url, bootstrap)
    audit = Audit(audit_path(os.environ), out.note)
    reach = reach_of(ctx, run_dir, record_dir)
    there = find(run_dir, record_dir, reach=reach, timeout=timeout, rank_timeout=rank_timeout, outside=False)
    found = there.ranks
    with Client(timeout_s=timeout, spent_s=there.took_s, rank_timeout_s=rank_timeout, acts=True) as client:
        results = healing.heal(client, found, fault)
        left = healing.aftermath(client, found, min((result.placed for result in results), default=math.inf))
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
    code = healing.exit_code(results, left.harm)
    if code is Exit.CLEAN and all(result.gone or not result.rank.live for result in results):
        code = Exit.UNREACHABLE  # nobody is left to say anything
    proof = None
    if (prove or address is not None) and code is Exit.CLEAN:
        proof, code = _proof(out, found, address, reach, timeout)
    audit.write("heal", fault=fault or "all", ranks=msgspec.to_builtins(ranks), clean=code is not Exit.FAULT_ACTIVE)

    def draw(document: HealedDocument, console: Console) -> None:
        ended = {name: owner for rank in document.ranks for name, owner in zip(rank.ended, rank.owners, strict=True)}
        asked = sum(result.rank.live for result in results)
        if ended:
            console.print(f"ended: {', '.join(whose(name, ended[name]) for name in sorted(ended))}")
        elif code in (Exit.CLEAN, Exit.PARTIAL) or proof is not None:
            console.print(
                f"no {f'fault {escape(fault)}' if fault else 'fault'} is in place on the {asked} live ranks found"
            )

        if document.answered and proof is not None:
            console.print(proof.said)

    for line in (*healing.lines(results), *left.harm):
        out.error(line)
    answered = None if proof is None else proof.answered
    document = HealedDocument(clean=code is not Exit.FAULT_ACTIVE, ranks=ranks, answered=answered)
    out.document(document, Rows(HealedRank, ranks), draw, code=code)
    for line in left.before:
        out.note(line)
    others = {status.id: status.owner for result in results for status in result.others}
    if others:
        out.note(f"in place, and not meant: {', '.join(whose(name, others[name]) for name in sorted(others))}")
    for result in results:
        if result.gone:
            rank = result.rank.identity
            out.note(f"{rank.who} was not reached, and holds nothing: its process has ended")
    if code is Exit.CLEAN and proof is None and any(result.fired for result in results):
        out.note(healing.unproven(fault))
    return code


def _proof(
    out: Output, ranks: Sequence[FoundRank], address: Address | None, reach: Reach, limit_s: float
) -> tuple[Proof | None, Exit]:
    """Send one request. Return what became of it, None where none was sent, and the exit code."""
    from pdctl.inject import proof

    try:
        sent = proof.send(proof.place(ranks, address, reach.environment()), limit_s)
    except PdctlError as error:
        out.error(f"no request was sent: {error.message}", error.next_step)
        return None, Exit.PARTIAL
    if not sent.answered:
        out.error(sent.said, "pdctl check")
    return sent, Exit.CLEAN if sent.answered else Exit.FINDING


def whose(fault: str, owner: str) -> str:
    """Return a fault and who placed it, as far as that is known."""
    return f"{fault} of {owner}" if owner else fault
