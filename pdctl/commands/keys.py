"""``pdctl keys``: makes keys, says which there are, and who may ask the ranks that use this directory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pdctl.commands.completing import values
from pdctl.commands.options import OutputOption
from pdctl.protocol import keys
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Document, Format, Output

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = {
    "new": ("pdctl keys new server", "pdctl keys new alice"),
    "list": ("pdctl keys list", "pdctl keys list -o json"),
    "authorize": ("pdctl keys authorize alice --role observe", "pdctl keys authorize bob --role inject"),
    "revoke": ("pdctl keys revoke alice", "pdctl keys revoke bob"),
}

_REPLACED_SERVER = (
    "ranks that use this directory take it within seconds; clients on other hosts need its public half: --server-key"
)
_REPLACED = "authorise its public half where the ranks run, and take the former one off: pdctl keys revoke {name}"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Manage keys for control sockets over TCP: who may ask ranks (observe), and who may break them (inject).",
)


class KeyRow(msgspec.Struct, frozen=True):
    """A pair of keys in this directory. name ``server`` is the agents' own. problem: why the file is not used."""

    name: str
    public: str
    problem: str = ""


class ClientRow(msgspec.Struct, frozen=True):
    """Somebody whom agents with this directory let in. role: observe, or inject, which may observe as well."""

    name: str
    role: str
    public: str


class KeyLine(msgspec.Struct, frozen=True):
    """A line of the list: a pair of keys here, a client, or both where a client's key is of a pair here.

    name: of the pair, "" where it is not here. authorized: what the client is called, "" where the key is no client's; role:
    what that may do.
    """

    name: str
    authorized: str
    role: str
    public: str
    problem: str = ""


class KeysDocument(Document, frozen=True, kw_only=True, tag="pdctl.keys"):
    """The keys in a directory, and the clients on its list. Secret keys are never shown."""

    folder: str
    keys: list[KeyRow]
    authorized: list[ClientRow]
    problems: tuple[str, ...] = ()


class KeyDocument(Document, frozen=True, kw_only=True, tag="pdctl.key"):
    """A pair of keys that was made."""

    name: str
    public: str
    file: str


@app.command("new")
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the pair. server is the pair of the ranks' agents.")
    ],
    replace: Annotated[bool, typer.Option("--replace", help="Replace the pair of that name.")] = False,
    output: OutputOption = Format.TABLE,
) -> int:
    """Make a pair of keys and show its public half.

    Running ranks use a new server key within seconds, without a restart.

    Exit code: 0, or 2 where the name is taken or the directory can't be used.
    """
    folder = keys.folder(os.environ)
    pair = keys.make(folder, name, replace=replace)
    file = os.fspath(folder / f"{name}{keys.KEY_SUFFIX}")
    Output(output).document(
        KeyDocument(name=name, public=pair.public, file=file),
        draw=lambda made, console: console.print(made.public, soft_wrap=True),
    )
    if replace:
        Output(output).note(_REPLACED_SERVER if name == keys.SERVER else _REPLACED.format(name=name))
    return int(Exit.CLEAN)


@app.command("list")
def show(output: OutputOption = Format.TABLE) -> int:
    """Show the keys of this directory, and the authorised clients.

    Exit code: 0, or 3 where a file is not used; the output says why.
    """
    folder = keys.folder(os.environ)
    rows = [_row(folder, name) for name in keys.names(folder)]
    clients, problems = _authorized(folder)
    document = KeysDocument(
        folder=os.fspath(folder),
        keys=rows,
        authorized=[ClientRow(c.name, c.role, c.public) for c in clients.values()],
        problems=tuple(problems),
    )
    out = Output(output)
    lines = _lines(rows, clients)
    out.document(document, Rows(KeyLine, lines), _draw)
    if not output.whole:
        for problem in [*(row.problem for row in rows if row.problem), *problems]:
            out.note(problem)
    return int(Exit.PARTIAL if problems or any(row.problem for row in rows) else Exit.CLEAN)


@app.command("authorize")
def authorize(
    public: Annotated[
        str,
        typer.Argument(
            metavar="PUBLIC_KEY|NAME",
            autocompletion=values("key"),
            help="A public key, or the name of a key in this directory.",
        ),
    ],
    role: Annotated[
        str,
        typer.Option("--role", metavar="observe|inject", help="observe: ask ranks. inject: also place and end faults."),
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the client, for people.")] = "",
) -> int:
    """Authorise a client at the agents that use this directory.

    Running agents accept the client within a second of its next try.

    Exit code: 0, or 2 for no key, no role, or a list that can't be changed.
    """
    if role not in keys.ROLES:
        raise typer.BadParameter(" or ".join(keys.ROLES), param_hint="--role")
    folder = keys.folder(os.environ)
    known = _public(folder, public)
    who = keys.check_name(name or (public if public in keys.names(folder) else known[:8]))
    with keys.changing(folder):
        keys.write_authorized(folder, {**_listed(folder), known: keys.Client(who, role, known)})
    Output().note(f"{who} ({known[:8]}…) may {role}; agents with {folder} let it in")
    return int(Exit.CLEAN)


@app.command("revoke")
def revoke(
    public: Annotated[
        str,
        typer.Argument(
            metavar="PUBLIC_KEY|NAME", autocompletion=values("key"), help="The client, as pdctl keys list shows it."
        ),
    ],
) -> int:
    """Revoke the authorisation of a client. Agents refuse its next request, also on an open connection.

    Exit code: 0, or 2 where the client is not authorised.
    """
    folder = keys.folder(os.environ)
    with keys.changing(folder):
        listed = _listed(folder)
        gone = [c.public for c in listed.values() if public.lower() == c.public or public == c.name]
        if not gone:
            there = ", ".join(sorted(c.name for c in listed.values())) or "nobody"
            raise PdctlError(f"{public[:80]!r} is not authorised in {folder}", f"authorised are: {there}", Exit.USAGE)
        keys.write_authorized(folder, {key: client for key, client in listed.items() if key not in gone})
    Output().note(f"{len(gone)} key{'s'[: len(gone) != 1]} taken off the list in {folder}")
    return int(Exit.CLEAN)


def _public(folder: Path, text: str) -> str:
    """Return the public key that is meant: itself, or that of a pair here."""
    if text in keys.names(folder):
        row = _row(folder, text)
        if row.problem:
            raise PdctlError(row.problem, code=Exit.USAGE)
        return row.public
    return keys.parse_public(text)


def _row(folder: Path, name: str) -> KeyRow:
    file = folder / f"{name}{keys.KEY_SUFFIX}"
    try:
        return KeyRow(name, keys.read_pair(file).public)
    except OSError as error:
        return KeyRow(name, "", f"{file}: {error.strerror}" if error.strerror else str(error))
    except ValueError as error:
        return KeyRow(name, "", str(error))


def _authorized(folder: Path) -> tuple[dict[str, keys.Client], list[str]]:
    file = folder / keys.AUTHORIZED
    try:
        return keys.read_authorized(file)
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [f"{file}: {error.strerror}" if error.strerror else str(error)]
    except ValueError as error:
        return {}, [str(error)]


def _listed(folder: Path) -> dict[str, keys.Client]:
    """Return the list that is to be changed; refuses to write over one that is not understood whole."""
    clients, problems = _authorized(folder)
    if problems:
        raise PdctlError(f"the list is not changed: {problems[0]}", "mend it first", Exit.USAGE)
    return clients


def _lines(rows: Sequence[KeyRow], clients: Mapping[str, keys.Client]) -> list[KeyLine]:
    """Return the pairs here, then the clients whose keys are not here. clients: by public key."""
    here = [(row, clients.get(row.public)) for row in rows]
    known = {row.public for row in rows}
    return [
        *(KeyLine(row.name, c.name if c else "", c.role if c else "", row.public, row.problem) for row, c in here),
        *(KeyLine("", c.name, c.role, c.public) for c in clients.values() if c.public not in known),
    ]


def _draw(document: KeysDocument, console: Console) -> None:
    from pdctl.report import drawing

    if not document.keys and not document.authorized:
        console.print(f"no keys in {document.folder}: pdctl keys new NAME", soft_wrap=True)
        return
    table = drawing.table("key here", "authorised as", "role", "public key")
    clients = {c.public: keys.Client(c.name, c.role, c.public) for c in document.authorized}
    for line in _lines(document.keys, clients):
        table.add_row(line.name or "-", line.authorized or "-", line.role or "-", line.public or "not used")
    console.print(table)
