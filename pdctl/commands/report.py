"""``pdctl report``: a page of a bundle or a trace, for people, or a few lines for a chat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from pdctl.commands.options import TimeoutOption, source_place, target_place
from pdctl.protocol.errors import Exit
from pdctl.protocol.files import check_target, write_new
from pdctl.report.output import Output

EXAMPLES = ("pdctl report ticket.zip -o report.html", "pdctl report incident.pdtrace --markdown")

_REPORT_S = 60.0


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
            show_default="report.html; standard output with --markdown",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file where it exists.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write 40 lines of Markdown at most, for a chat or a ticket.")
    ] = False,
    timeout: TimeoutOption = _REPORT_S,
) -> int:
    """Write a page of what a bundle or a trace shows: verdict, findings, rounds, stories, what was not seen.

    The page is one file. It needs no network and no script, and prints well. Names in it are those of the file.

    Exit code: 0 it is written, whatever it says, 4 FILE can't be read.
    """
    path = file if file is not None or markdown else Path("report.html")
    if path is not None:
        check_target(path, force=force)
    from pdctl.ticket.gather import gather

    case = gather(source, timeout_s=timeout)
    if markdown:
        from pdctl.ticket.brief import brief

        text = brief(case)
    else:
        from pdctl.ticket.page import page

        text = page(case)
    if path is None:
        Output().lines(text, end="")
        return int(Exit.CLEAN)
    write_new(path, text.encode("utf-8", "backslashreplace"), force=force)
    Output().note(f"wrote {path}")
    return int(Exit.CLEAN)
