"""Options that commands share, so that they are called, explained and checked alike everywhere.

def command(output: OutputOption = Format.TABLE, timeout: TimeoutOption = TIMEOUT_S, ...) -> None:
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.completing import values
from pdctl.probes import base
from pdctl.protocol import durations
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from pdctl.targets.find import Found
    from pdctl.targets.reach import Reach
    from pdctl.targets.selectors import Selection


TIMEOUT_S = base.TIMEOUT_S
RANK_TIMEOUT_S = base.RANK_TIMEOUT_S


STREAM = "-"
STDOUT = Path("/dev/stdout")


def seconds(text: str) -> float:
    """Return ``10``, ``2.5``, ``500ms`` or ``1m`` in seconds; raises typer.BadParameter for anything else."""
    written = str(text).strip()
    try:
        return durations.parse(f"{written}s" if written.replace(".", "", 1).isdecimal() else written, most_s=86_400)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def place(text: str) -> Path:
    """Return the path that the user wrote. Raises typer.BadParameter for one that nothing can have.

    An empty one is a variable that was not set, and does not mean the current directory.
    """
    written = str(text)
    if not written or "\0" in written:
        raise typer.BadParameter("it has a character that no path has" if written else "it is empty")
    try:
        os.lstat(written)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise typer.BadParameter(f"{_short(written)}: {error.strerror}") from None
    return Path(written)


def source_place(text: str) -> Path:
    """Return the path of what is to be read; ``-`` is standard input, which is read into a file now.

    Raises as :func:`place`, and PdctlError (UNREACHABLE) where that is forbidden.
    """
    if text == STREAM:
        from pdctl.trace.pipes import from_stdin

        return from_stdin()
    return _allowed(place(text), Exit.UNREACHABLE)


def target_place(text: str) -> Path:
    """Return the path of what is to be written. Raises as :func:`place`, and PdctlError (USAGE) where that is forbidden."""
    if text == STREAM:
        raise typer.BadParameter("it is written to a file, not to standard output; a file that is called - is ./-")
    return _allowed(place(text), Exit.USAGE)


def trace_place(text: str) -> Path:
    """Return the path of a trace that is to be written, STDOUT for ``-``. Raises as :func:`target_place`."""
    return STDOUT if text == STREAM else target_place(text)


def _allowed(path: Path, code: Exit) -> Path:
    try:
        os.lstat(path)
    except PermissionError as error:
        what = f"{_short(str(path))} can't be reached: {error.strerror}"
        raise PdctlError(what, "Name another path, or run pdctl as a user who may go there.", code) from None
    except OSError:
        pass  # it is said where it is needed
    return path


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:99]}…"


OutputOption = Annotated[Format, typer.Option("-o", "--output", help="Format of the data on standard output.")]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", parser=seconds, metavar="TIME", help="Time limit of the whole command: 10, 500ms, 1m."),
]
RankTimeoutOption = Annotated[
    float, typer.Option("--rank-timeout", parser=seconds, metavar="TIME", help="How long to wait for each rank.")
]
RunDirOption = Annotated[
    Optional[Path],  # noqa: UP045  # typer evaluates annotations, and 3.10's own | is fine, older typer's is not
    typer.Option("--run-dir", parser=place, metavar="DIR", help="Directory of the ranks' sockets [PDCTL_RUN_DIR]."),
]
RecordDirOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--record-dir", parser=place, metavar="DIR", help="Directory of the ranks' recordings [PDCTL_RECORD_DIR]."
    ),
]
FromOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--from",
        parser=source_place,
        metavar="FILE|DIR",
        help="Read this trace (- is standard input), or what is in this directory, and ask no rank.",
    ),
]
RankOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--rank",
        metavar="PATTERN",
        autocompletion=values("rank"),
        help="Only these ranks (decode:dp0, *:tp[01]); repeatable.",
    ),
]
GroupOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--group",
        metavar="PATTERN",
        autocompletion=values("group"),
        help="Only whole groups: those of these ranks (decode:dp3), or with this title; repeatable.",
    ),
]
ServerOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--server",
        metavar="NAME",
        autocompletion=values("server"),
        help="Only ranks of these servers (10.0.0.7:30000, gpu*), as pdctl ranks names them; repeatable.",
    ),
]
RoleOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--role", metavar="ROLE", autocompletion=values("role"), help="Only ranks of this role: prefill, decode."
    ),
]
FindingsOption = Annotated[
    bool, typer.Option("--findings", help="With -o jsonl or csv: write the findings, and no other rows.")
]
PrefillUrlOption = Annotated[
    str, typer.Option("--prefill-url", metavar="URL", help="Send the requests to this prefill server.")
]
DecodeUrlOption = Annotated[
    str,
    typer.Option("--decode-url", metavar="URL", help="Send the requests to this decode server, too, as a router does."),
]
BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT",
        help="The prefill's bootstrap server, as decode reaches it.",
        show_default="the prefill URL's host, the port that server says",
    ),
]
AllStartsOption = Annotated[bool, typer.Option("--all", help="Include dead ranks of a server's earlier starts.")]


def selection(
    ranks: Sequence[str] | None,
    groups: Sequence[str] | None,
    servers: Sequence[str] | None,
    roles: Sequence[str] | None,
) -> Selection:
    """Return which ranks these options mean. Raises PdctlError (USAGE) for what can mean none, whoever is there."""
    from pdctl.targets.selectors import Selection, check

    found = Selection(*(tuple(texts or ()) for texts in (ranks, groups, servers, roles)))
    check(found)
    return found


def reach_of(ctx: typer.Context, run_dir: Path | None = None, record_dir: Path | None = None) -> Reach:
    """Return where the options before the command say ranks are, with these directories."""
    from pdctl.targets.reach import Reach

    return (ctx.find_object(Reach) or Reach()).at(run_dir, record_dir)


def find(
    run_dir: Path | None,
    record_dir: Path | None,
    source: Path | None = None,
    *,
    reach: Reach | None = None,
    every_start: bool = False,
    timeout: float = TIMEOUT_S,
    rank_timeout: float = RANK_TIMEOUT_S,
    outside: bool = True,
) -> Found:
    """Return the ranks these options mean. timeout, rank_timeout: as the options, for ranks on other hosts.

    reach: what the options before the command said; None: nothing, as where a trace is all there is.
    outside: also those here that have no agent and are read from outside, within the same time. What belongs to other users
    and was left alone is said on a line of stderr.
    Raises PdctlError (UNREACHABLE) when there are none, or none may be seen.
    """
    from pdctl.probes import run
    from pdctl.targets.reach import Reach

    asked = run.Asked(
        (reach or Reach()).at(run_dir, record_dir),
        source,
        every_start=every_start,
        timeout_s=timeout,
        rank_timeout_s=rank_timeout,
    )
    return run.find(asked, Output(), outside=outside)
