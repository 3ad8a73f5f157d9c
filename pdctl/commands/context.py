"""``pdctl context``: saved targets, and those where no fault is allowed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import msgspec
import typer

from pdctl.commands.completing import values
from pdctl.commands.options import OutputOption, place, reach_of
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Document, Format, Output
from pdctl.targets import contexts

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = {
    "add": (
        "pdctl context add staging --run-dir /run/staging",
        "pdctl context add prod --endpoint tcp://10.0.0.7:7000 --inject never",
    ),
    "use": ("pdctl context use staging", "pdctl context use"),
    "show": ("pdctl context show staging", "pdctl context show prod -o json"),
    "remove": ("pdctl context remove staging", "pdctl context remove prod"),
    "list": ("pdctl context list", "pdctl context list -o json"),
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Save targets: where the ranks of a cluster are, their keys, and whether faults are allowed.",
)


class ContextRow(msgspec.Struct, frozen=True):
    """One saved target. used: commands of this environment take it. inject: allow, or never.

    endpoints: where its ranks listen for other hosts; store: where they publish themselves;
    server_key: the key they have there; key: the pair shown to them. hosts, via: as the options of that name.
    """

    context: str
    used: bool
    run_dir: str
    record_dir: str
    inject: str
    endpoints: tuple[str, ...] = ()
    store: str = ""
    server_key: str = ""
    key: str = ""
    hosts: str = ""
    via: str = ""


class ContextsDocument(Document, frozen=True, kw_only=True, tag="pdctl.contexts"):
    """All saved targets, and the file they are in."""

    file: str
    contexts: list[ContextRow]


class ContextDocument(Document, frozen=True, kw_only=True, tag="pdctl.context"):
    """One saved target, and the file it is in."""

    file: str
    context: ContextRow


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the target.")],
    run_dir: Annotated[
        Optional[Path],  # noqa: UP045  # typer evaluates annotations
        typer.Option("--run-dir", parser=place, metavar="DIR", help="Directory of its ranks' sockets."),
    ] = None,
    record_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--record-dir", parser=place, metavar="DIR", help="Directory of its ranks' recordings."),
    ] = None,
    inject: Annotated[
        str, typer.Option("--inject", metavar="allow|never", help="Whether pdctl may inject faults there.")
    ] = "allow",
    endpoint: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--endpoint", metavar="tcp://HOST:PORT", help="Address of one of its ranks; repeatable."),
    ] = None,
    store: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--store", metavar="HOST:PORT", help="TCPStore of one of its jobs; repeatable."),
    ] = None,
    hosts: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--hosts",
            metavar="NODESET|@FILE",
            help="Hosts whose own pdctl is asked, over ssh: gpu[001-064]; repeatable.",
        ),
    ] = None,
    via: Annotated[
        str,
        typer.Option(
            "--via", metavar="COMMAND", help="What runs pdctl there, if not ssh {host} pdctl: srun -w {host} pdctl."
        ),
    ] = "",
    server_key: Annotated[str, typer.Option("--server-key", metavar="KEY", help="Public key of its ranks.")] = "",
    key: Annotated[str, typer.Option("--key", metavar="NAME", help="Client key of pdctl keys to use there.")] = "",
) -> int:
    """Save a target, or change it."""
    from pdctl.protocol import keys
    from pdctl.targets.hostlist import parse_hosts
    from pdctl.targets.places import parse_endpoints, parse_stores, parse_via

    nodes = " ".join(hosts or ())
    parse_hosts(nodes), parse_via(via)
    if inject not in contexts.INJECT:
        raise typer.BadParameter("allow or never", param_hint="--inject")
    run, record = (os.fspath(place.absolute()) if place else "" for place in (run_dir, record_dir))
    context = contexts.Context(
        run_dir=run,
        record_dir=record,
        inject=inject,
        endpoints=parse_endpoints(" ".join(endpoint or ())),
        store=" ".join(map(str, parse_stores(" ".join(store or ())))),
        server_key=keys.parse_public(server_key) if server_key else "",
        key=keys.check_name(key) if key else "",
        hosts=nodes,
        via=via,
    )
    contexts.add(name, context)
    return Exit.CLEAN


@app.command("use")
def use(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            autocompletion=values("context"),
            help="The target. Without it: the usual directories again.",
        ),
    ] = "",
) -> int:
    """Use a target for every command that names none."""
    contexts.use(name)
    return Exit.CLEAN


@app.command("show")
def show(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", autocompletion=values("context"), help="The target. Default: the one in use."),
    ] = "",
    output: OutputOption = Format.TABLE,
) -> int:
    """Show one saved target, all of it.

    Exit code: 0, or 2 where it is not saved, or none is in use.
    """
    env = reach_of(ctx).over(os.environ)
    chosen, context = contexts.select_context({**env, "PDCTL_CONTEXT": name} if name else env)
    if not chosen:
        raise PdctlError(
            "no context is in use: commands look in the usual directories",
            "pdctl context show NAME; pdctl context list names those saved.",
            Exit.USAGE,
        )
    document = ContextDocument(file=os.fspath(contexts.path()), context=_row(chosen, context, _used(env)))
    Output(output).document(document, Rows(ContextRow, (document.context,)), _draw_one)
    return Exit.CLEAN


@app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=values("context"), help="The target.")],
) -> int:
    """Forget a saved target. Where it was in use, the usual directories are again.

    Exit code: 0, or 2 where it is not saved.
    """
    contexts.remove(name)
    return Exit.CLEAN


@app.command("list")
def list_contexts(ctx: typer.Context, output: OutputOption = Format.TABLE) -> int:
    """Show the saved targets."""
    used = _used(reach_of(ctx).over(os.environ))
    rows = [_row(name, one, used) for name, one in sorted(contexts.load().context.items())]
    document = ContextsDocument(file=os.fspath(contexts.path()), contexts=rows)
    Output(output).document(document, Rows(ContextRow, rows), _draw)
    return Exit.CLEAN


def _used(env: Mapping[str, str]) -> str:
    return env.get("PDCTL_CONTEXT") or contexts.load().current


def _row(name: str, one: contexts.Context, used: str) -> ContextRow:
    return ContextRow(context=name, used=name == used, **msgspec.structs.asdict(one))


def _draw(document: ContextsDocument, console: Console) -> None:
    from pdctl.report import drawing

    if not document.contexts:
        console.print("no contexts are saved: pdctl context add NAME")
        return
    places = ("run dir", "record dir", "endpoints", "key")
    table = drawing.table("", "context", "inject", *places, wraps=places)
    for row in document.contexts:
        where = "\n".join(
            [
                *row.endpoints,
                *(f"store {one}" for one in row.store.split()),
                *([f"hosts {row.hosts}"] if row.hosts else []),
            ]
        )
        table.add_row(
            "used" if row.used else "",
            row.context,
            row.inject,
            *(text or "-" for text in (row.run_dir, row.record_dir, where, row.key)),
        )
    console.print(table)


def _draw_one(document: ContextDocument, console: Console) -> None:
    from pdctl.report import drawing

    row = document.context
    console.print(f"{row.context}{', in use' if row.used else ''}", style="bold")
    grid = drawing.grid(False, True)
    for title, text in (
        ("inject", row.inject),
        ("run dir", row.run_dir),
        ("record dir", row.record_dir),
        ("endpoints", "\n".join(row.endpoints)),
        ("store", "\n".join(row.store.split())),
        ("hosts", row.hosts),
        ("via", row.via),
        ("server key", row.server_key),
        ("key", row.key),
    ):
        if text:
            grid.add_row(f"  {title}", text)
    console.print(grid)
