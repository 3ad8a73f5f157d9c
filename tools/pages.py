"""The pages of the documentation and their links. ``python -m tools.pages`` names each internal link that leads nowhere.

A link leads somewhere where the file is there and, after ``#``, a heading of that page has the anchor: as GitHub makes
it, which is what the site makes, too. A folder is a target. Links to other hosts are not followed.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
#: Pages that stand outside docs/.
AROUND = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`)(?:(?!\n\n).)*?(?<!`)\1(?!`)", re.DOTALL)
#: ``[text](target)``, text of one line or two; the target has no space.
LINK = re.compile(r"(?<!\\)\[(?P<text>[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
REMOTE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


class Link(NamedTuple):
    """A link of a page. line: from 1. target: as written."""

    page: Path
    line: int
    target: str


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that are checked."""
    around = [root / name for name in AROUND if (root / name).exists()]
    return [*around, *sorted((root / "docs").rglob("*.md")), *sorted((root / "skills").rglob("*.md"))]


def blank(found: re.Match[str]) -> str:
    """Return as many lines as were found, with nothing in them."""
    return "\n" * found[0].count("\n")


def links(page: Path) -> Iterator[Link]:
    """Yield the internal links of a page, those in code left out."""
    text = CODE.sub(blank, FENCE.sub(blank, page.read_text()))
    for found in LINK.finditer(text):
        if not REMOTE.match(found["target"]):
            yield Link(page, text.count("\n", 0, found.start()) + 1, found["target"])


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    plain = LINK.sub(lambda found: found["text"], heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of the headings of a page, less those of two headings: each renderer numbers them in its own way."""
    counted = Counter(map(slug, HEADING.findall(FENCE.sub(blank, page.read_text()))))
    return frozenset(anchor for anchor, times in counted.items() if times == 1)


def complaint(link: Link, root: Path = ROOT) -> str:
    """Return what is wrong with a link; empty where it leads somewhere."""
    path, _, anchor = unquote(link.target).partition("#")
    where = f"{link.page.relative_to(root)}:{link.line}: {link.target}"
    target = (link.page.parent / path).resolve() if path else link.page
    if not target.is_relative_to(root.resolve()):
        return f"{where}: outside the repository"
    if not target.exists():
        return f"{where}: no such file"
    if anchor and (target.suffix != ".md" or anchor not in anchors(target)):
        return f"{where}: no heading of its own has this anchor"
    return ""


def main() -> int:
    """Exit status: 0 all links lead somewhere, 1 not."""
    wrong = [text for page in pages() for link in links(page) if (text := complaint(link))]
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
