"""``pdctl clean``: removes what ranks that have ended left behind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pdctl.commands.options import OutputOption, RecordDirOption, RunDirOption, reach_of
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit
from pdctl.report.output import Document, Format, Output
from pdctl.targets.cleanup import Leftover, leftovers, remove

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = ("pdctl clean --dry-run", "pdctl clean --all")


class CleanRow(msgspec.Struct, frozen=True):
    """One file. kind: registration, socket, recording, stacks or unfinished. size: bytes it takes. age_s: since it was changed.

    went: ``removed``, ``would go``, ``kept`` or ``failed``; why says why for the last two.
    """

    path: str
    kind: str
    rank: str
    size: int
    age_s: float
    went: str
    why: str = ""


class CleanDocument(Document, frozen=True, kw_only=True, tag="pdctl.clean"):
    """What ranks that have ended left, and what became of it. freed: bytes removed, or that would be."""

    files: list[CleanRow]
    freed: int
    dry_run: bool


def clean(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    every: Annotated[
        bool,
        typer.Option("--all", help="Remove recordings of a server's newest start, too: the evidence of how it ended."),
    ] = False,
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    output: OutputOption = Format.TABLE,
) -> int:
    """Remove sockets, registrations, stacks and recordings of ranks that have ended.

    Files of live ranks stay. Recordings of each server's newest start stay without --all: they may tell why it ended. A
    recording that was written within the last minute always stays, since its rank may run out of pdctl's sight.

    Exit code: 0, or 3 where a file could not be removed.
    """
    out = Output(output)
    found = leftovers(reach_of(ctx, run_dir, record_dir).places(), every=every)
    failures = {} if dry_run else {one.path: why for one, why in remove(found)}
    rows = [_row(one, failures.get(one.path, ""), dry_run) for one in found]
    freed = sum(row.size for row in rows if row.went in ("removed", "would go"))
    document = CleanDocument(files=rows, freed=freed, dry_run=dry_run)
    out.document(document, Rows(CleanRow, rows), _draw)
    return Exit.PARTIAL if any(row.went == "failed" for row in rows) else Exit.CLEAN


def _row(one: Leftover, failure: str, dry_run: bool) -> CleanRow:
    went = "kept" if one.kept else "failed" if failure else "would go" if dry_run else "removed"
    return CleanRow(os.fspath(one.path), one.kind, one.rank, one.size, one.age_s, went, one.kept or failure)


def _draw(document: CleanDocument, console: Console) -> None:
    from pdctl.report import drawing

    if not document.files:
        console.print("nothing is left of ranks that have ended")
        return
    table = drawing.table("", "file", "of", "why", wraps=("why",))
    for row in document.files:
        table.add_row(row.went, row.path, row.rank or "-", row.why)
    console.print(table)
    mib = document.freed / 2**20
    console.print(f"{mib:.1f} MiB {'would be' if document.dry_run else ''} freed".replace("  ", " "))
