"""What is said of a kind of finding, as ``pdctl explain`` and ``pdctl top`` show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.protocol.documents import Document
from pdctl.report.findings import Code
from pdctl.report.glossary import words_in

if TYPE_CHECKING:
    from rich.console import Console

_STYLE = {"info": "cyan", "warning": "yellow", "error": "red"}


class FindingsDocument(Document, frozen=True, kw_only=True, tag="pdctl.explain"):
    """The codes asked for, or all of them."""

    codes: tuple[Code, ...]


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

    words = words_in(f"{code.title} {code.meaning} {code.evidence} {code.next_step}")
    if words:
        console.print(Text(f"  words: {', '.join(words)} (pdctl explain WORD)", style="dim"))
