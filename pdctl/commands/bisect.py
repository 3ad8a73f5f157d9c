"""``pdctl bisect``: on which versions of SGLang a recorded finding comes again."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.ending import tidy_end
from pdctl.commands.options import OutputOption, seconds, source_place, target_place
from pdctl.protocol.documents import Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report import progress
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from pdctl.replay.bisect import BisectDocument

EXAMPLES = (
    "pdctl bisect incident.pdtrace --engine 0.5.12.post1 --engine 0.5.13.post1",
    "pdctl bisect incident.pdtrace --engine ~/sglang/python --python bin/python",
)


def command(
    trace: Annotated[
        Path, typer.Argument(parser=source_place, metavar="TRACE", help="A .pdtrace, or a directory of recordings.")
    ],
    engine: Annotated[
        Optional[list[str]],  # noqa: UP045  # as in options.py
        typer.Option(
            "--engine",
            metavar="VERSION",
            help="A version of SGLang, whose wheel pip downloads, or a directory with the package sglang; repeatable.",
        ),
    ] = None,
    python: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--python", metavar="PATH", help="Python of an environment in which some SGLang runs. Default: pdctl's."
        ),
    ] = None,
    keep: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--keep", parser=target_place, metavar="DIR", help="Keep the wheels installed in DIR."),
    ] = None,
    limit: Annotated[
        float, typer.Option("--limit", parser=seconds, metavar="TIME", help="Time limit of one version.")
    ] = 900.0,
    output: OutputOption = Format.TABLE,
) -> int:
    """Run a recorded finding as a test on several versions of SGLang, and name the first on which the ranks stay in step.

    The test is that of replay --emit-test. It needs no GPU, no model and no server. Each version comes first on
    the path of --python, whose environment does not change. The output names what was downloaded.

    Exit code: 0 every version was judged, whatever the tests say, 2 no --engine, one that is none, or --python is no Python,
    3 some could not be judged, or TRACE has nothing to reproduce, 4 TRACE can't be read.
    """
    from pdctl.commands.replay_rounds import Asked, plans_of, text_of
    from pdctl.replay import wheels
    from pdctl.replay.bisect import NOT_JUDGED, Judged, judge, ordered

    names = [name for name in engine or () if not (wheels.is_version(name) or (Path(name) / "sglang").is_dir())]
    if not engine or names:
        what = f"{names[0]!r} is no version, and no directory with the package sglang" if names else "no --engine"
        raise PdctlError(what, "pdctl bisect TRACE --engine 0.5.12.post1 --engine 0.5.13.post1", Exit.USAGE)
    with tidy_end(), tempfile.TemporaryDirectory(prefix="pdctl-bisect-") as folder:
        out = Output(output)
        test = Path(folder) / "test_ranks.py"
        test.write_text(text_of(plans_of(trace, Asked())[0]))
        interpreter = wheels.engine_python(python or Path(sys.executable))
        seen = []
        for name in ordered(engine):
            progress.doing(f"running SGLang {name}")
            seen.append(wheels.run(interpreter, test, name, keep, limit))
        document = judge(str(trace), seen)
        out.document(document, Rows(Judged, document.engines), draw)
    return int(Exit.PARTIAL if any(one.outcome == NOT_JUDGED for one in seen) else Exit.CLEAN)


_STYLE = {"passes": "green", "fails": "bold red"}


def draw(document: BisectDocument, console: Console) -> None:
    """Draw the verdict, and a row for each version."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(document.verdict, style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("engine", "test", "what it says", "code", "time"):
        table.add_column(name, no_wrap=name in ("engine", "test", "time"))
    for one in document.engines:
        source = f"{one.source} ({one.mib:g} MiB)" if one.source else "-"
        style = _STYLE.get(one.outcome, "yellow")
        table.add_row(one.engine, Text(one.outcome, style=style), Text(one.text), Text(source), f"{one.seconds:.0f} s")
    console.print(table)
