"""``pdctl context``: saved targets, and those where no fault is allowed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import msgspec
import typer

from pdctl import contexts
from pdctl.commands.options import OutputOption
from pdctl.errors import Exit
from pdctl.output import Document, Format, Output

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Saved targets: where the ranks of a cluster put their files, and whether faults are allowed there.",
)


class ContextRow(msgspec.Struct, frozen=True):
    """One saved target. used: commands of this environment take it. inject: allow, or never."""

    context: str
    used: bool
    run_dir: str
    record_dir: str
    inject: str


class ContextsDocument(Document, frozen=True, kw_only=True, tag="pdctl.contexts"):
    """All saved targets, and the file they are in."""

    file: str
    contexts: list[ContextRow]


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    run_dir: Annotated[
        Optional[Path],  # noqa: UP045  # typer evaluates annotations
        typer.Option("--run-dir", metavar="DIR", help="Where its ranks put their sockets."),
    ] = None,
    record_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--record-dir", metavar="DIR", help="Where its ranks put their recordings."),
    ] = None,
    inject: Annotated[
        str, typer.Option("--inject", metavar="allow|never", help="Whether pdctl inject may break something there.")
    ] = "allow",
) -> int:
    """Save a target, or change it."""
    if inject not in contexts.INJECT:
        raise typer.BadParameter("allow or never", param_hint="--inject")
    run, record = (os.fspath(place.absolute()) if place else "" for place in (run_dir, record_dir))
    contexts.add(name, contexts.Context(run_dir=run, record_dir=record, inject=inject))
    return Exit.CLEAN


@app.command("use")
def use(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="None: the usual directories again.")] = "",
) -> int:
    """Take a target for every command that names none."""
    contexts.use(name)
    return Exit.CLEAN


@app.command("list")
def show(output: OutputOption = Format.TABLE) -> int:
    """Show the saved targets."""
    out = Output(output)
    known = contexts.load()
    used = os.environ.get("PDCTL_CONTEXT") or known.current
    rows = [
        ContextRow(context=name, used=name == used, run_dir=one.run_dir, record_dir=one.record_dir, inject=one.inject)
        for name, one in sorted(known.context.items())
    ]

    def draw(console: Console) -> None:
        if not rows:
            console.print("no contexts are saved: pdctl context add NAME")
            return
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("", "CONTEXT", "INJECT", "RUN DIR", "RECORD DIR"):
            table.add_column(title, overflow="fold")
        for row in rows:
            table.add_row("used" if row.used else "", row.context, row.inject, row.run_dir, row.record_dir)
        console.print(table)

    out.document(ContextsDocument(file=os.fspath(contexts.path()), contexts=rows), rows, draw)
    return Exit.CLEAN
