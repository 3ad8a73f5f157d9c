"""``pdctl explain``: what a finding means, what it rests on, where it is known from and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.completing import values
from pdctl.commands.options import OutputOption
from pdctl.commands.usage import did_you_mean
from pdctl.protocol.documents import Document, Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.explaining import FindingsDocument, draw
from pdctl.report.findings import Code, catalogue
from pdctl.report.glossary import Term, find_term, glossary
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = ("pdctl explain PD101", "pdctl explain gate")


class TermDocument(Document, frozen=True, kw_only=True, tag="pdctl.explain.term"):
    """A word of the glossary."""

    term: Term


def command(
    code: Annotated[
        Optional[str],  # noqa: UP045  # typer evaluates annotations; 3.10's own | is fine, older typer's is not
        typer.Argument(
            metavar="CODE|WORD",
            autocompletion=values("explained"),
            help="A finding (PD101) or a word that pdctl uses (gate). Without it: a list of both.",
        ),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> int:
    """Explain a finding: its meaning, evidence, known engine versions and the next step. Or explain a word that pdctl uses.

    Exit code: 0, or 2 for an unknown code or word.
    """
    term = None if code is None else find_term(code)
    if term is not None:
        Output(output).document(TermDocument(term=term), Rows(Term, (term,)), _draw_term)
        return Exit.CLEAN
    codes = tuple(catalogue().values()) if code is None else (find(code),)
    document = FindingsDocument(codes=codes)
    Output(output).document(document, Rows(Code, codes), _list if code is None else draw)
    return Exit.CLEAN


def find(text: str) -> Code:
    """Return the code that ``text`` names (``pd101`` and ``101`` do, too). Raises PdctlError (USAGE) with the nearest."""
    wanted = text.strip().upper()
    if wanted.isdecimal():
        wanted = f"PD{wanted}"
    if wanted in catalogue():
        return catalogue()[wanted]
    near = did_you_mean(wanted, catalogue()) or did_you_mean(text.strip().lower(), glossary())
    raise PdctlError(f"there is no finding or word {text!r}", f"{near}pdctl explain lists all.", Exit.USAGE)


def _draw_term(document: TermDocument, console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    term = document.term
    also = f"  also {', '.join(term.also)}" if term.also else ""
    console.print(Text.assemble((term.term, "bold"), (also, "dim")))
    console.print(Padding(Text(term.meaning), (1, 0, 1, 2)))
    if term.see:
        console.print(Text(f"  see {', '.join(term.see)}", style="dim"))


def _list(document: FindingsDocument, console: Console) -> None:
    from pdctl.report import drawing

    table = drawing.table("code", "level", "found", wraps=("found",))
    for code in document.codes:
        table.add_row(code.code, code.level.value, code.title, style=None)
    console.print(table)
    console.print(f"\nwords: {', '.join(glossary())}")
