"""Shared parts of all renderers: tables without lines, and findings. Renderers yield objects for rich, and print nothing."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pdctl.report.findings import Level
from pdctl.targets.nodeset import fold_lines, join

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from pdctl.report.findings import Finding

R = TypeVar("R")
MANY = 16
"""Lines of one kind that are drawn one by one. Of more, those that say the same are one line, and the odd ones come first."""
MOST_ALIKE = 8
"""Causes of one code that are told one by one; of more, the first few are, and the others are named."""
_IN_FULL = 3
_MOST_ALSO = 12
_LEAST, _LEAST_BROKEN, _LONGEST_WORD = 16, 10, 48
"""Columns that a cell whose text may be wrapped has at least, as far as its text needs them, where its words may be broken,
and as one word of it does."""


class Sheet(Console):
    """What documents are drawn on. A line that is wrapped keeps its indentation, and nothing is cut at the edge."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does."""
        if len(objects) == 1 and isinstance(objects[0], (str, Text)) and not options.get("soft_wrap"):
            text = objects[0]
            plain = text if isinstance(text, str) else text.plain
            indent = len(plain) - len(plain.lstrip(" "))
            if 0 < indent < len(plain) and "\n" not in plain:
                objects = (Padding(text[indent:], (0, 0, 0, indent), expand=False),)
        super().print(*objects, **{"crop": False, **options})


class Whole(Table):
    """A table whose cells are never cut: where they need more columns than there are, its lines are longer.

    breaks: words of cells that may be wrapped are broken before lines get longer.
    """

    breaks = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        least = sum(
            2 + _needed(column.header, *column.cells, wraps=not column.no_wrap, breaks=self.breaks)
            for column in self.columns
        )
        least -= 2 * self.breaks  # the last column has no blanks behind it
        yield from super().__rich_console__(console, options.update(max_width=max(options.max_width, least)))


def _needed(*cells: object, wraps: bool, breaks: bool) -> int:
    texts = [cell.plain if isinstance(cell, Text) else str(cell) for cell in cells]
    widest = max((cell_len(line) for text in texts for line in text.split("\n")), default=0)
    if not wraps:
        return widest
    if breaks:
        return min(widest, _LEAST_BROKEN)
    word = max((cell_len(word) for text in texts for word in text.split()), default=0)
    return min(widest, max(_LEAST, min(word, _LONGEST_WORD)))


def table(*names: str, right: tuple[str, ...] = (), wraps: tuple[str, ...] = (), breaks: bool = False) -> Table:
    """Return an empty table with these headings. A first one of "" makes an indentation.

    right: columns of numbers. wraps: those whose text may take several lines. breaks: their words may, too.
    """
    made = Whole(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    made.breaks = breaks
    for name in names:
        made.add_column(
            name,
            no_wrap=name not in wraps,
            justify="right" if name in right else "left",
            overflow="fold" if name in wraps else "ellipsis",
        )
    return made


def grid(*wraps: bool, right: tuple[int, ...] = (), width: int | None = None) -> Table:
    """Return an empty table without headings. wraps: for each column whether its text may take several lines.

    right: numbers of the columns that are aligned there. width: of the first column, None: as its text needs.
    """
    made = Whole(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for number, wrap in enumerate(wraps):
        made.add_column(
            no_wrap=not wrap,
            justify="right" if number in right else "left",
            width=None if number else width,
            overflow="fold" if wrap else "ellipsis",
        )
    return made


def dim(text: str) -> Text:
    """Return a remark."""
    return Text(text, style="dim")


def alike(rows: Iterable[R], key: Callable[[R], Hashable]) -> list[list[R]]:
    """Return the rows, those of the same key together, in the order of the first of each."""
    found: dict[Hashable, list[R]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return list(found.values())


def some(texts: Iterable[str], most: int = 6) -> str:
    """Return texts, each once, with commas; of more than ``most`` how many there are besides."""
    named = list(dict.fromkeys(texts))
    return ", ".join(named[:most]) + (f" and {len(named) - most} more" if len(named) > most else "")


def headline(found: Sequence[Finding]) -> Iterable[RenderableType]:
    """Yield the first cause, its next step, and what other errors there are; nothing where nothing is wrong.

    found: connected, as documents have them.
    """
    if not headed(found):
        return
    drawn = grid(False, True)
    drawn.add_row(Text(found[0].code, style="bold red"), found[0].summary)
    yield drawn
    yield f"Next: {found[0].next_step}"
    then = [one for one in found[1:] if one.level is Level.ERROR and not one.follows]
    if then:
        more = f"; and {len(then) - 1} more" if len(then) > 1 else ""
        yield f"Then: {then[0].code} {_first_words(then[0].summary)}{more} (below)"
    yield ""


def findings(found: Sequence[Finding], *, below: bool = False) -> Iterable[RenderableType]:
    """Yield each cause after an empty line: code and summary, known versions, next step; a line for each consequence.

    below: the first one's summary and next step stand above (:func:`headline`), and it has its title here.
    """
    below = below and headed(found)
    causes = [number for number, finding in enumerate(found) if not number or not finding.follows]
    often = Counter(found[number].code for number in causes)
    told: Counter[str] = Counter()
    for number, end in itertools.pairwise((*causes, len(found))):
        finding = found[number]
        told[finding.code] += 1
        if often[finding.code] > MOST_ALIKE and told[finding.code] > _IN_FULL:
            continue
        yield ""
        drawn = grid(False, True)
        above = below and not number
        drawn.add_row(Text(finding.code, style="bold"), finding.cause if above else finding.summary)
        if finding.versions:
            drawn.add_row("", finding.versions)
        if finding.next_step and not above:
            drawn.add_row("", f"Next: {finding.next_step}")
        also = list(_also(found[number + 1 : end]))
        for line in also[:_MOST_ALSO]:
            drawn.add_row("", dim(f"so also {line}"))
        if len(also) > _MOST_ALSO:
            drawn.add_row("", dim(f"… and {len(also) - _MOST_ALSO} more (-o json shows all)"))
        if often[finding.code] > MOST_ALIKE and told[finding.code] == _IN_FULL:
            more = [found[n] for n in causes if found[n].code == finding.code][_IN_FULL:]
            drawn.add_row("", f"… and {len(more)} more of {finding.code} (-o json shows all): {_where(more)}")
        yield drawn


def _where(found: Sequence[Finding]) -> str:
    """Return the groups that findings are about, or their ranks or rooms."""
    groups = join(" of ".join(one.group.split(" · ")[::2]) for one in found if one.group)
    ranks = join(rank for one in found if not one.group for rank in one.ranks)
    rooms = some(str(room) for one in found if not one.group and not one.ranks for room in one.rooms)
    return "; ".join(filter(None, (groups, ranks, rooms and f"rooms {rooms}"))) or found[0].cause


def _also(found: Sequence[Finding]) -> Iterable[str]:
    """Yield what follows from a cause; what is the same of several ranks in one line."""
    for code in dict.fromkeys(one.code for one in found):
        for line in fold_lines(_first_words(one.summary) for one in found if one.code == code):
            yield f"{code}: {line}"


def headed(found: Sequence[Finding]) -> bool:
    """Return whether the first cause or what follows from it is more than information."""
    if not found:
        return False
    also = list(itertools.takewhile(lambda one: one.follows, found[1:]))
    return bool(found[0].next_step) and any(one.level is not Level.INFO for one in (found[0], *also))


_FEW_WORDS = 5


def _first_words(summary: str) -> str:
    """Return a summary's first statement: up to a colon that does not follow on a mere name, else its first sentence."""
    head = summary.partition(": ")[0]
    text = head if len(head.split()) > _FEW_WORDS else summary
    return re.split(r"[.;](?: |$)", text, maxsplit=1)[0]
