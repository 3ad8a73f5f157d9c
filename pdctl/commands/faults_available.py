"""``pdctl faults --available``: which faults each rank can carry, and why not the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, exit_of
from pdctl.report.output import Document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from pdctl.faults.messages import FaultsBody
    from pdctl.report.output import Output
    from pdctl.targets.client import Answer


class AvailableRow(msgspec.Struct, frozen=True):
    """One kind of fault on one rank. state: present, or missing with the reason in ``detail``, else the site's function.

    rank_means: what --rank names for this kind: ``aimed at`` a decode rank (placed on the prefill ranks that write to
    it), or ``on`` this very rank.
    """

    rank: str
    host: str
    pid: int
    engine: str
    engine_version: str
    armed: bool
    kind: str
    what: str
    rank_means: str
    state: str
    seam: str
    detail: str


class AvailableDocument(Document, frozen=True, kw_only=True, tag="pdctl.faults.available"):
    """Every kind on every rank that answered. silent: the others, with the reason."""

    sites: list[AvailableRow]
    silent: list[str]


def rows_of(answers: Sequence[Answer[FaultsBody]]) -> list[AvailableRow]:
    """Return one row a rank and kind, in the order of ranks and kinds."""
    from pdctl.faults.capabilities import sites_of

    return [
        AvailableRow(
            rank=answer.rank.identity.label,
            host=answer.rank.identity.host,
            pid=answer.rank.identity.pid,
            engine=answer.rank.identity.engine,
            engine_version=answer.rank.identity.engine_version,
            armed=answer.body.armed,
            kind=site.kind.name,
            what=site.kind.what,
            rank_means=site.kind.aim.value,
            state="present" if site.present else "missing",
            seam=site.kind.seam,
            detail=site.detail,
        )
        for answer in answers
        if answer.body is not None
        for site in sites_of(answer.body.sites, answer.rank.identity.role)
    ]


def show(out: Output, answers: Sequence[Answer[FaultsBody]]) -> Exit:
    """Print it and return the exit code: PARTIAL where some ranks did not answer, UNREACHABLE where none did."""
    rows = rows_of(answers)
    silent = [
        f"{answer.rank.identity.who}: {answer.reason or answer.silence.value}"
        for answer in answers
        if answer.body is None and answer.rank.state != "dead"
    ]
    code = exit_of(seen=bool(rows), partial=bool(silent))
    out.document(AvailableDocument(sites=rows, silent=silent), Rows(AvailableRow, rows), _draw, code=code)
    for line in silent:
        out.note(f"not asked, or no answer: {line}")
    return code


def _draw(document: AvailableDocument, console: Console) -> None:
    """Draw ranks that can do the same as one."""
    from pdctl.report import drawing

    by_rank: dict[tuple[str, int], list[AvailableRow]] = {}
    for row in document.sites:
        by_rank.setdefault((row.host, row.pid), []).append(row)
    alike: dict[tuple[object, ...], list[list[AvailableRow]]] = {}
    for sites in by_rank.values():
        first = sites[0]
        can = tuple((row.kind, row.state, row.detail) for row in sites)
        alike.setdefault((first.engine, first.engine_version, first.armed, can), []).append(sites)
    for number, group in enumerate(alike.values()):
        if number:
            console.print()
        first = group[0][0]
        names = ", ".join(sites[0].rank for sites in group[:6]) + (" …" if len(group) > 6 else "")
        armed = "armed" if first.armed else "NOT ARMED: takes no fault"
        console.print(f"{names}   {first.engine} {first.engine_version}, {armed}", style="bold", highlight=False)
        table = drawing.table("  kind", "--rank", "site", "where, or why not", wraps=("where, or why not",))
        for row in group[0]:
            table.add_row(f"  {row.kind}", row.rank_means, row.state, row.detail)
        console.print(table)
