"""``pdctl record``: the recordings of all ranks, live or dead, in one file that every reading command takes."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands import options as opt
from pdctl.commands.options import find, reach_of, seconds, trace_place
from pdctl.protocol.documents import Document, Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import check_target
from pdctl.report import progress
from pdctl.report.escaping import argument
from pdctl.report.output import Format, Output
from pdctl.trace.folder import private_folder
from pdctl.trace.manifest import Manifest, TraceRank
from pdctl.trace.pipes import check_stdout, to_stdout

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.commands.record_trigger import Trigger
    from pdctl.targets.client import Client
    from pdctl.targets.find import Found
    from pdctl.targets.places import Places
    from pdctl.trace.manifest import Divergence
    from pdctl.trace.redact import Names
    from pdctl.trace.writer import Member

EXAMPLES = ("pdctl record incident.pdtrace", "pdctl record hang.pdtrace --for 10m --trigger diverged")

DIVERGED = "diverged"
MAX_SIZE = "256MiB"
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_STYLE = {"whole": "green", "partial": "yellow", "missing": "red"}


def _bytes(text: str) -> int:
    """Return ``64MiB``, ``64M`` or a number of bytes in bytes; raises typer.BadParameter for anything else."""
    written = str(text).strip().removesuffix("B").removesuffix("i")
    unit = written[-1:].upper() if written[-1:].isalpha() else ""
    number = written.removesuffix(written[-1:] if unit else "")
    if unit not in _UNITS or not (number.isascii() and number.isdecimal()) or len(number) > 12:
        raise typer.BadParameter("a size like 64MiB", param_hint="--max-size")
    size = int(number) << _UNITS[unit]
    if not 256 << 10 <= size <= 1 << 30:
        raise typer.BadParameter("from 256KiB to 1GiB", param_hint="--max-size")
    return size


class RecordDocument(Document, frozen=True, kw_only=True, tag="pdctl.record"):
    """The trace that was made. path: the file, of so many bytes. trace: its manifest, as the file has it."""

    path: str
    size: int
    trace: Manifest


def command(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            parser=trace_place, metavar="FILE.pdtrace", help="The trace to write. - writes it to standard output."
        ),
    ],
    output: opt.OutputOption = Format.TABLE,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE where it exists.")] = False,
    keep_names: Annotated[
        bool, typer.Option("--keep-names", help="Keep host names, request ids and free text. Default: hash them.")
    ] = False,
    words: Annotated[
        str,
        typer.Option(
            "--salt", metavar="WORDS", help="Traces made with the same words have the same hashes, on any host."
        ),
    ] = "",
    lasting: Annotated[
        Optional[float],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            "--for", parser=seconds, metavar="TIME", help="Follow the ranks for this long. Ctrl-C ends it earlier."
        ),
    ] = None,
    trigger: Annotated[
        str,
        typer.Option(
            "--trigger", metavar="WHAT", help="diverged: follow the ranks until they differ, or until --for ends."
        ),
    ] = "",
    max_size: Annotated[
        str, typer.Option("--max-size", metavar="SIZE", help="Size limit of each rank's recording while following.")
    ] = MAX_SIZE,
    every_start: opt.AllStartsOption = False,
    source: opt.FromOption = None,
    through: Annotated[
        str,
        typer.Option(
            "--through",
            metavar="WAY",
            help="Read only sockets, or only recordings. Default: sockets where no file can be read.",
        ),
    ] = "",
    run_dir: opt.RunDirOption = None,
    record_dir: opt.RecordDirOption = None,
    timeout: opt.TimeoutOption = opt.TIMEOUT_S,
    rank_timeout: opt.RankTimeoutOption = opt.RANK_TIMEOUT_S,
) -> int:
    """Save the recordings of all ranks, live or dead, in one trace file. Other commands read it with --from.

    Hashes replace host names, request ids and free text, unless --keep-names is given. The manifest of the file lists every
    expected rank. It gives the reason where a recording is missing. --timeout holds for each rank's recording.

    Exit code: 0 every recording is complete, 3 one is not, or --trigger saw nothing in time, 4 there is no recording, or no
    rank to follow.
    """
    if through not in ("", "sockets", "recordings"):
        raise typer.BadParameter("sockets or recordings", param_hint="--through")
    if source is not None and through == "sockets":
        raise typer.BadParameter("--from reads recordings, not sockets", param_hint="--through")
    if trigger not in ("", DIVERGED):
        raise typer.BadParameter(DIVERGED, param_hint="--trigger")
    if source is not None and (lasting is not None or trigger):
        raise typer.BadParameter("recordings given with --from do not grow", param_hint="--for")
    limit = _bytes(max_size)
    out = Output(output, out=sys.stderr) if file == opt.STDOUT else Output(output)
    if file != opt.STDOUT:
        check_target(file, force=force)
    elif output.drawn:
        check_stdout()
    else:
        raise typer.BadParameter("standard output has the trace", param_hint="--output")
    started = time.time_ns()
    reach = reach_of(ctx)
    found = find(
        run_dir, record_dir, source, reach=reach, every_start=every_start, timeout=timeout, rank_timeout=rank_timeout
    )
    if (lasting is not None or trigger) and source is None and not any(rank.live for rank in found.ranks):
        raise PdctlError(
            "no rank runs: there is nothing to follow", "Without --for and --trigger, what they left is recorded."
        )
    names, salt = _names(found, reach.places() if source is None else None, words, keep=keep_names)
    from pdctl.commands.record_trigger import Trigger
    from pdctl.targets.client import Client

    seen: Divergence | None = None
    way = "following" if lasting is not None or trigger else "copying recordings of"
    progress.doing(f"{way} {len(found.ranks)} rank{'s'[: len(found.ranks) != 1]}")
    with Client(timeout_s=timeout, rank_timeout_s=rank_timeout) as client:
        if lasting is None and not trigger:
            stopped = "recorded what there was"
            members = _copied(_allowed(found, through), client, names, sockets=through == "sockets")
        else:
            watch = Trigger(found) if trigger else None
            stopped, members = _followed(_allowed(found, through), client, names, lasting, limit, watch, through)
            seen = watch.seen if watch is not None else None
    with ExitStack() as held:
        made = held.enter_context(private_folder()) / "made.pdtrace" if file == opt.STDOUT else file
        manifest = _written(found, made, members, names, salt, started, stopped, seen, force=force)
        document = RecordDocument(
            path="-" if file == opt.STDOUT else str(file), size=made.stat().st_size, trace=manifest
        )
        if file == opt.STDOUT:
            to_stdout(made)
    out.document(document, Rows(TraceRank, manifest.ranks), draw)
    if not output.whole:
        for problem in manifest.problems:
            out.note(f"left out: {problem}")
        if manifest.earlier:
            out.note(
                f"{manifest.earlier} dead rank{'s'[: manifest.earlier != 1]} of earlier starts; --all records them"
            )
        if trigger and seen is None:
            out.note("the ranks did not diverge")
    return int(Exit.PARTIAL if manifest.partial or (trigger and seen is None) else Exit.CLEAN)


def _names(found: Found, places: Places | None, words: str, *, keep: bool) -> tuple[Names | None, str]:
    """Return what takes names out, None to keep them, and its salt, "" where no name was taken out ever."""
    if len(found.salts) > 1:
        raise PdctlError("traces with different salts can't become one", "Record them with one --salt.", Exit.USAGE)
    if keep or found.salts:
        return None, "".join(found.salts)
    import socket

    from pdctl.targets.names import site_names
    from pdctl.trace.manifest import new_salt
    from pdctl.trace.redact import Names

    salt = new_salt(words)
    return Names(salt, [socket.gethostname(), *site_names(places, found)]), salt


def _copied(found: Found, client: Client, names: Names | None, *, sockets: bool) -> list[Member]:
    from pdctl.targets import collect

    return [collect.member(copy, names) for copy in collect.copies(found, client, through_socket=sockets)]


def _followed(
    found: Found, client: Client, names: Names | None, lasting: float | None, limit: int, trigger: Trigger | None,
    through: str,
) -> tuple[str, list[Member]]:  # fmt: skip
    """Follow the ranks; returns why that ended, and what was had of each."""
    from pdctl.targets import collect, follow

    with follow.interruptible() as over:
        ranks = follow.begin(found, client, through_socket=through == "sockets")
        ended = trigger if trigger is not None else lambda: ""
        stopped = follow.follow(ranks, seconds=lasting, max_size=limit, ended=ended, over=over)
    return stopped, [collect.member(rank.copy(), names) for rank in ranks]


def _written(
    found: Found, file: Path, members: list[Member], names: Names | None, salt: str, started: int, stopped: str,
    seen: Divergence | None, *, force: bool,
) -> Manifest:  # fmt: skip
    """Write the trace and return its manifest. Raises PdctlError (UNREACHABLE) where no rank has a recording."""
    import msgspec

    from pdctl.targets.sources.agentless import unrecorded
    from pdctl.trace import manifest, writer

    if all(member.data is None for member in members):
        without = unrecorded(found.ranks)
        if without is not None:
            raise without
        why = "; ".join(dict.fromkeys(member.rank.reason for member in members))
        raise PdctlError(f"no recording can be read: {why}", "pdctl ranks says more of each rank.")
    said = names.words if names is not None else str
    took = (time.time_ns() - started) / 1e9
    problems = tuple(map(said, found.problems))
    made = manifest.new(stopped, started_wall_ns=started, seconds=took, problems=problems)
    if seen is not None and names is not None:
        ranks = tuple(map(names.words, seen.ranks))
        seen = msgspec.structs.replace(seen, group=names.server(names.words(seen.group)), ranks=ranks)
    made = msgspec.structs.replace(made, redacted=bool(salt), salt=salt, earlier=found.earlier, divergence=seen)
    if names is not None:
        clock = msgspec.structs.replace(made.clock, host=names.host(made.clock.host))
        made = msgspec.structs.replace(made, clock=clock)
    return writer.write_trace(file, members, made, force=force)


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
    from rich.text import Text

    from pdctl.report import drawing

    trace = document.trace
    table = drawing.table("rank", "pid", "state", "recording", "", wraps=("",))
    for rank in trace.ranks:
        kept = Text(rank.kept, style=_STYLE.get(rank.kept, ""))
        table.add_row(rank.rank, str(rank.identity.pid or "-"), rank.state, kept, rank.reason)
    console.print(table)
    names = "names hashed" if trace.redacted else "names kept"
    console.print(f"{document.path}: {_size(document.size)}, {names}; {trace.stopped}{_after(trace)}")
    if trace.divergence is not None:
        seen = trace.divergence
        rooms = ", ".join(map(str, seen.rooms[:5])) or "no room known"
        console.print(f"DIVERGED: {seen.group}, round {seen.round} of {seen.queue}: {rooms} ({', '.join(seen.ranks)})")
    if not trace.partial and document.path != "-":
        console.print(Text(f"Next: pdctl diff-queues --from {argument(document.path)}", style="dim"))


def _after(trace: Manifest) -> str:
    return f" after {trace.seconds:.1f} s" if trace.seconds >= 1 else ""


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"
