"""``pdctl record``: the recordings of all ranks, live or dead, in one file that every reading command takes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.commands.options import (
    RANK_TIMEOUT_S,
    TIMEOUT_S,
    AllStartsOption,
    FromOption,
    OutputOption,
    RankTimeoutOption,
    RecordDirOption,
    RunDirOption,
    TimeoutOption,
    find,
)
from pdctl.documents import Document
from pdctl.errors import Exit
from pdctl.output import Format, Output
from pdctl.trace.manifest import Manifest

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.discovery import Found
    from pdctl.trace.redact import Names

_STYLE = {"whole": "green", "partial": "yellow", "missing": "red"}


class RecordDocument(Document, frozen=True, kw_only=True, tag="pdctl.record"):
    """The trace that was made. path: the file, of so many bytes. trace: its manifest, as the file has it."""

    path: str
    size: int
    trace: Manifest


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE.pdtrace", help="The trace to write.")],
    output: OutputOption = Format.TABLE,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE where it exists.")] = False,
    keep_names: Annotated[
        bool, typer.Option("--keep-names", help="Keep host names, request ids and free text; else they are hashed.")
    ] = False,
    every_start: AllStartsOption = False,
    source: FromOption = None,
    through: Annotated[
        str,
        typer.Option(
            "--through",
            metavar="WAY",
            help="Use only: sockets, recordings. Default: sockets where no file can be read.",
        ),
    ] = "",
    run_dir: RunDirOption = None,
    record_dir: RecordDirOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    rank_timeout: RankTimeoutOption = RANK_TIMEOUT_S,
) -> int:
    """Collect the recordings of all ranks, live or dead, in one file, which --from of every reading command takes.

    Host names, request ids and free text are replaced by hashes unless --keep-names is given. Every rank that is expected
    is in the file's manifest, with the reason where its recording is missing; --timeout is for each rank's.
    Exit code: 0 when all of every rank is there, 3 when not, 4 when there is no recording at all.
    """
    if through not in ("", "sockets", "recordings"):
        raise typer.BadParameter("sockets or recordings", param_hint="--through")
    if source is not None and through == "sockets":
        raise typer.BadParameter("--from reads recordings, not sockets", param_hint="--through")
    from pdctl.trace import container

    container.check_target(file, force=force)
    started = time.time_ns()
    found = find(run_dir, record_dir, source, every_start=every_start)
    names, salt = _names(found, keep=keep_names)
    manifest = _collected(found, file, names, salt, started, through, timeout, rank_timeout, force=force)
    document = RecordDocument(path=str(file), size=file.stat().st_size, trace=manifest)
    out = Output(output)
    out.document(document, manifest.ranks, lambda console: draw(document, console))
    if output.drawn:
        for problem in manifest.problems:
            out.note(f"left out: {problem}")
        if manifest.earlier:
            out.note(
                f"{manifest.earlier} dead rank{'s'[: manifest.earlier != 1]} of earlier starts; --all records them"
            )
    return int(Exit.PARTIAL if manifest.partial else Exit.CLEAN)


def _names(found: Found, *, keep: bool) -> tuple[Names | None, str]:
    """Return what takes names out, None to keep them, and its salt, "" where no name was taken out ever."""
    if keep or found.salt:
        return None, found.salt
    import socket

    from pdctl.trace.manifest import new_salt
    from pdctl.trace.redact import Names

    salt = new_salt()
    return Names(salt, [socket.gethostname(), *(rank.identity.host for rank in found.ranks)]), salt


def _collected(
    found: Found, file: Path, names: Names | None, salt: str, started: int, through: str, timeout: float,
    rank_timeout: float, *, force: bool,
) -> Manifest:  # fmt: skip
    """Write the trace and return its manifest. Raises PdctlError (UNREACHABLE) where no rank has a recording."""
    import msgspec

    from pdctl.client import Client
    from pdctl.errors import PdctlError
    from pdctl.trace import collect, container, manifest

    said = names.words if names is not None else str
    with Client(timeout_s=timeout, rank_timeout_s=rank_timeout) as client:
        copies = collect.copies(_allowed(found, through), client, through_socket=through == "sockets")
        members = [collect.member(copy, names) for copy in copies]
    if all(member.data is None for member in members):
        why = "; ".join(dict.fromkeys(member.rank.reason for member in members))
        raise PdctlError(f"no recording can be read: {why}", "pdctl ranks says more of each rank.")
    made = manifest.new(
        "recorded what there was",
        started_wall_ns=started,
        seconds=(time.time_ns() - started) / 1e9,
        problems=tuple(map(said, found.problems)),
    )
    made = msgspec.structs.replace(made, redacted=bool(salt), salt=salt, earlier=found.earlier)
    if names is not None:
        clock = msgspec.structs.replace(made.clock, host=names.host(made.clock.host))
        made = msgspec.structs.replace(made, clock=clock)
    return container.write_trace(file, members, made, force=force)


def _allowed(found: Found, through: str) -> Found:
    """Return ``found`` without what ``--through recordings`` forbids: the sockets."""
    from dataclasses import replace

    if through != "recordings":
        return found
    closed = "only recordings were to be used"
    ranks = tuple(replace(r, endpoint="", endpoint_off=closed, recording_size=0) for r in found.ranks)
    return replace(found, ranks=ranks)


# ---- for people ------------------------------------------------------------------------------------------------------


def draw(document: RecordDocument, console: Console) -> None:
    """Draw what is in the file, a line a rank."""
    from rich.table import Table
    from rich.text import Text

    trace = document.trace
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("rank", "pid", "state", "recording"):
        table.add_column(name, no_wrap=True)
    table.add_column("")
    for rank in trace.ranks:
        kept = Text(rank.kept, style=_STYLE.get(rank.kept, ""))
        table.add_row(rank.rank, str(rank.identity.pid or "-"), rank.state, kept, rank.reason)
    console.print(table)
    names = "names hashed" if trace.redacted else "names kept"
    console.print(f"{document.path}: {_size(document.size)}, {names}; {trace.stopped}")
    if not trace.partial:
        console.print(Text(f"Next: pdctl diff-queues --from {document.path}", style="dim"))


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"
