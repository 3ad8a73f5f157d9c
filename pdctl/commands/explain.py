"""``pdctl explain``: what a finding means, what it rests on, where it is known from and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.completing import values
from pdctl.commands.options import OutputOption
from pdctl.protocol.documents import Document, Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.findings import Code, catalogue
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = ("pdctl explain PD101", "pdctl explain")

_STYLE = {"info": "cyan", "warning": "yellow", "error": "red"}


class FindingsDocument(Document, frozen=True, kw_only=True, tag="pdctl.explain"):
    """The codes asked for, or all of them."""

    codes: tuple[Code, ...]


def command(
    code: Annotated[
        Optional[str],  # noqa: UP045  # typer evaluates annotations; 3.10's own | is fine, older typer's is not
        typer.Argument(
            metavar="CODE",
            autocompletion=values("finding"),
            help="The code of a finding: PD101. Without it: a list of all findings.",
        ),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> int:
    """Explain a finding: its meaning, evidence, known engine versions and the next step.

    Exit code: 0, or 2 for an unknown code.
    """
    codes = tuple(catalogue().values()) if code is None else (find(code),)
    document = FindingsDocument(codes=codes)
    Output(output).document(document, Rows(Code, codes), _list if code is None else draw)
    return Exit.CLEAN


def find(text: str) -> Code:
    """Return the code that ``text`` names (``pd101`` and ``101`` do, too). Raises PdctlError (USAGE) with the nearest."""
    from difflib import get_close_matches

    wanted = text.strip().upper()
    if wanted.isdecimal():
        wanted = f"PD{wanted}"
    if wanted in catalogue():
        return catalogue()[wanted]
    near = get_close_matches(wanted, catalogue(), n=3, cutoff=0.6)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    raise PdctlError(f"there is no finding {text!r}", f"{hint}pdctl explain lists all findings.", Exit.USAGE)


def draw(document: FindingsDocument, console: Console) -> None:
    """Draw one code."""
    from rich.padding import Padding
    from rich.text import Text

    [code] = document.codes
    console.print(
        Text.assemble(
            (code.code, "bold"), "  ", (code.level.value, _STYLE[code.level.value]), "  ", (code.title, "bold")
        )
    )
    console.print()
    console.print(Padding(Text(code.meaning), (0, 0, 1, 2)))
    for title, text in (
        ("rests on", code.evidence),
        ("known for", code.versions),
        ("see", code.reference),
        ("next", code.next_step),
    ):
        if text:
            console.print(Text(f"  {title}", style="dim"))
            console.print(Padding(Text(text), (0, 0, 0, 4)))


def _list(document: FindingsDocument, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("code", "level", "found"):
        table.add_column(name)
    for code in document.codes:
        table.add_row(code.code, code.level.value, code.title, style=None)
    console.print(table)
