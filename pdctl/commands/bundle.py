"""``pdctl bundle``: all that pdctl can see of a cluster in one file, for a ticket."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands import options as opt
from pdctl.commands.options import find, place, reach_of, target_place
from pdctl.protocol.documents import Document, Rows
from pdctl.protocol.errors import Exit
from pdctl.protocol.files import check_target
from pdctl.report.escaping import argument
from pdctl.report.output import Format, Output
from pdctl.trace.manifest import Collector

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.targets.find import Found
    from pdctl.targets.reach import Reach

EXAMPLES = ("pdctl bundle -o ticket.zip --logs prefill.log --logs decode.log", "pdctl bundle --dry-run")

_BUNDLE_S = 120.0
_STYLE = {"kept": "green", "partial": "yellow", "missing": "red"}


class BundleDocument(Document, frozen=True, kw_only=True, tag="pdctl.bundle"):
    """The bundle that was made. path: the file, of so many bytes; size 0 with --dry-run. hashed: names in it are hashes.

    ranks: how many are in it; with --dry-run how many were found. collectors: what was taken, or would be.
    """

    path: str
    size: int
    hashed: bool
    ranks: int
    collectors: tuple[Collector, ...]
    dry_run: bool = False
    stopped: str = ""


def command(
    ctx: typer.Context,
    file: Annotated[
        Optional[Path],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            "-o",
            "--output",
            parser=target_place,
            metavar="FILE",
            help="The file to write. Default: pdctl-TIME.zip.",
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Format of the list of parts.")] = Format.TABLE,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE where it exists.")] = False,
    names: Annotated[
        bool, typer.Option("--names", help="Keep host names, addresses, request ids and paths. Default: hash them.")
    ] = False,
    logs: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            "--logs",
            parser=place,
            metavar="PATH",
            help="Take the end of this log, or of each *.log in this directory, too; repeatable.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be taken, and take nothing.")] = False,
    every_start: opt.AllStartsOption = False,
    source: opt.FromOption = None,
    run_dir: opt.RunDirOption = None,
    record_dir: opt.RecordDirOption = None,
    timeout: opt.TimeoutOption = _BUNDLE_S,
    rank_timeout: opt.RankTimeoutOption = opt.RANK_TIMEOUT_S,
) -> int:
    """Take all that pdctl can see into one file for a ticket: recordings, findings, stories, stacks, settings.

    The file is a ZIP file and a trace: every command with --from reads it, and pdctl report makes a page of it. Its
    manifest.json tells how each part was made, or why it is missing. Ctrl-C keeps what there is by then. A name has the same
    hash everywhere in one bundle. Lines of logs with the text of requests, and API keys, are left out. Read the logs before
    you send the file.

    Exit code: 0 all was taken, 3 a part is missing or not whole, 4 there is no rank.
    """
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = file or Path(f"pdctl-{at}.zip")
    check_target(path, force=force)
    began = time.monotonic()
    reach_of(ctx).for_commands()
    looking = timeout if source is not None else min(timeout / 4, opt.TIMEOUT_S)  # the parts need the rest
    found = find(
        run_dir, record_dir, source, reach=reach_of(ctx), every_start=every_start, timeout=looking,
        rank_timeout=rank_timeout,
    )  # fmt: skip
    from pdctl.targets.follow import interruptible
    from pdctl.ticket import collect
    from pdctl.ticket.logs import log_files

    taken = log_files(logs or ())
    out = Output(form)
    if dry_run:
        rows = tuple(collect.planned(taken, recorded=source is not None))
        document = BundleDocument(
            path=str(path), size=0, hashed=not names, ranks=len(found.ranks), collectors=rows, dry_run=True
        )
        out.document(document, Rows(Collector, rows), draw)
        return int(Exit.CLEAN)
    env, hosts = _reached(reach_of(ctx, run_dir, record_dir), found)
    with interruptible() as over:
        asked = collect.Asked(
            env=env,
            hosts=hosts,
            source=source,
            every_start=every_start,
            logs=taken,
            names=names,
            timeout_s=timeout,
            spent_s=time.monotonic() - began,
            rank_timeout_s=rank_timeout,
            over=lambda: "at Ctrl-C" if over.is_set() else "",
        )
        manifest = collect.bundle(path, asked, force=force)
    document = BundleDocument(
        path=str(path),
        size=path.stat().st_size,
        hashed=manifest.redacted,
        ranks=len(manifest.ranks),
        collectors=manifest.collectors,
        stopped=manifest.stopped,
    )
    out.document(document, Rows(Collector, manifest.collectors), draw)
    whole = all(one.status == collect.KEPT or not collect.expected(one) for one in manifest.collectors)
    return int(Exit.CLEAN if whole else Exit.PARTIAL)


def _reached(reach: Reach, found: Found) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment of the commands that look at these ranks, and the names of hosts that they may tell."""
    from pdctl.targets.names import site_names

    places = reach.places()
    env = reach.for_commands()
    if places.hosts:
        env["PDCTL_HOSTS"] = " ".join(places.hosts)  # a file of them is named from where this command runs
    return env, site_names(places, found)


def draw(document: BundleDocument, console: Console) -> None:
    """Draw a line a part."""
    from rich.text import Text

    from pdctl.report import drawing

    table = drawing.table("part", "command", "state", "time", "", right=("time",), wraps=("",))
    for one in document.collectors:
        took = "-" if document.dry_run else f"{one.seconds:.1f} s"
        table.add_row(
            one.name, one.command or "-", Text(one.status, style=_STYLE.get(one.status, "")), took, one.reason
        )
    console.print(table)
    names = "names hashed" if document.hashed else "names kept"
    many = f"{document.ranks} rank{'s'[: document.ranks != 1]}"
    if document.dry_run:
        console.print(f"{document.path} would have this of {many}, {names}. Nothing was taken.")
        return
    console.print(f"{document.path}: {document.size / 2**10:.0f} KiB, {many}, {names}; {document.stopped}")
    console.print(Text(f"Next: pdctl report {argument(document.path)}", style="dim"))
