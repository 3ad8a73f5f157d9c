"""``pdctl self-test``: whether the SGLang that is installed has what pdctl hooks and reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pdctl.commands.options import OutputOption
from pdctl.engines.sglang.survey import FOUND, GONE, MOVED, Place, Source, survey
from pdctl.protocol.documents import Document, Rows
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = ("pdctl self-test --engine", "pdctl self-test --engine --source DIR")

_STYLE = {FOUND: None, MOVED: "yellow", GONE: "red"}


class SelfTestDocument(Document, frozen=True, kw_only=True, tag="pdctl.self-test"):
    """Answer of ``pdctl self-test``. source: the folder that holds the package; engine: its version, "" unknown."""

    source: str
    engine: str
    places: tuple[Place, ...]


def command(
    *,
    engine: Annotated[bool, typer.Option("--engine", help="Look at each seam of the installed SGLang.")] = False,
    source: Annotated[
        Optional[Path],  # noqa: UP045  # typer evaluates annotations
        typer.Option(
            "--source",
            metavar="DIR",
            help="The folder that holds the package sglang. Default: where this Python finds it.",
        ),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> int:
    """Tell each place in SGLang's source that pdctl hooks or reads: found, moved or gone, with its file and function.

    Nothing of the engine is imported or run. What is gone without a version that is known to lack it makes the exit code 1,
    and so does what has moved.
    """
    if not engine:
        raise PdctlError(
            "nothing to test was named", "pdctl self-test --engine looks at the installed SGLang.", Exit.USAGE
        )
    found = _source(source)
    places = survey(found)
    document = SelfTestDocument(source=str(found.root), engine=found.version, places=tuple(places))
    Output(output).document(document, Rows(Place, document.places), _draw)
    return Exit.FINDING if any(wrong(place) for place in places) else Exit.CLEAN


def wrong(place: Place) -> bool:
    """Return whether a place is not where pdctl looks for it, though no version is known that lacks it."""
    return place.state == MOVED or (place.state == GONE and not place.since)


def _source(folder: Path | None) -> Source:
    from importlib.util import find_spec

    if folder is None:
        spec = find_spec("sglang")
        if spec is None or not spec.submodule_search_locations:
            raise PdctlError(
                "this Python has no sglang", "Name the folder that holds the package: --source DIR.", Exit.UNREACHABLE
            )
        folder = Path(next(iter(spec.submodule_search_locations))).parent
    try:
        return Source(folder)
    except OSError as error:
        raise PdctlError(str(error), "DIR is the folder that holds the package sglang.", Exit.UNREACHABLE) from None


def _draw(document: SelfTestDocument, console: Console) -> None:
    from pdctl.report import drawing

    table = drawing.table("seam", "", "file", "function", wraps=("function",))
    for place in document.places:
        where = f"{place.file}:{place.line}" if place.line else place.file
        since = f" (since {place.since})" if place.state == GONE and place.since else ""
        table.add_row(place.seam, place.state + since, where, place.function, style=_STYLE[place.state])
    console.print(table)
    bad = sum(map(wrong, document.places))
    name = f"SGLang {document.engine}".strip()
    console.print(f"\n{name}: {len(document.places)} places, {bad or 'none'} moved or gone")
