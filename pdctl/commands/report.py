"""``pdctl report``: a page of a bundle or a trace, for people, or a few lines for a chat."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.options import TimeoutOption, source_place, target_place
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import check_target, write_new
from pdctl.report.output import Output

if TYPE_CHECKING:
    from pdctl.replay.bisect import BisectDocument

EXAMPLES = ("pdctl report ticket.zip -o report.html", "pdctl report incident.pdtrace --markdown")

_REPORT_S = 60.0
_MOST_JSON = 1 << 20


def command(
    source: Annotated[
        Path,
        typer.Argument(
            parser=source_place, metavar="FILE", help="A bundle or a trace. - is standard input.", show_default=False
        ),
    ],
    file: Annotated[
        Optional[Path],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            "-o",
            "--output",
            parser=target_place,
            metavar="FILE",
            help="The file to write.",
            show_default="report.html; standard output with --markdown and --upstream",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file where it exists.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write 40 lines of Markdown at most, for a chat or a ticket.")
    ] = False,
    upstream: Annotated[
        bool,
        typer.Option("--upstream", help="Write a bug report for the engine's tracker, in Markdown, without names."),
    ] = False,
    bisected: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--bisect", metavar="JSON", help="With --upstream: the output of pdctl bisect -o json on the same FILE."
        ),
    ] = None,
    timeout: TimeoutOption = _REPORT_S,
) -> int:
    """Write a page of what a bundle or a trace shows: verdict, findings, rounds, stories, what was not seen.

    The page is one file. It needs no network and no script, and prints well. Names in it are those of the file.

    Exit code: 0 the page is written, whatever it says, 2 wrong options, the file to write exists without --force or can't be
    written, or --bisect is no output of pdctl bisect, 4 FILE can't be read.
    """
    if (markdown and upstream) or (bisected is not None and not upstream):
        which = (
            "--markdown and --upstream are two reports" if markdown and upstream else "--bisect belongs to --upstream"
        )
        raise PdctlError(which, "pdctl report FILE --upstream --bisect bisect.json", Exit.USAGE)
    path = file if file is not None or markdown or upstream else Path("report.html")
    if path is not None:
        check_target(path, force=force)
    from pdctl.ticket.gather import gather

    began = time.monotonic()
    case = gather(source, timeout_s=timeout)
    if markdown:
        from pdctl.ticket.brief import brief

        text = brief(case)
    elif upstream:
        from pdctl.ticket.reproduce import reproduce
        from pdctl.ticket.upstream import upstream as write_upstream

        again = reproduce(source, timeout_s=timeout, spent_s=time.monotonic() - began)
        text = write_upstream(case, again, _bisected(bisected), secrets.token_hex(16))
    else:
        from pdctl.ticket.page import page

        text = page(case)
    if path is None:
        Output().lines(text, end="")
        return int(Exit.CLEAN)
    write_new(path, text.encode("utf-8", "backslashreplace"), force=force)
    Output().note(f"wrote {path}")
    return int(Exit.CLEAN)


def _bisected(path: Path | None) -> BisectDocument | None:
    """Return the answer of ``pdctl bisect`` that a file holds. Raises PdctlError for a file with anything else."""
    if path is None:
        return None
    from pdctl.protocol import structs
    from pdctl.protocol.files import read_regular
    from pdctl.replay.bisect import BisectDocument

    try:
        return structs.from_json(read_regular(path, _MOST_JSON), BisectDocument)
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:
        why = str(error)
    raise PdctlError(
        f"{path} can't be read: {why}", "Make it: pdctl bisect FILE --engine V -o json > bisect.json", Exit.USAGE
    )
