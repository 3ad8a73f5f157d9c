"""The words that pdctl uses: one list, shown by ``pdctl explain WORD`` and docs/glossary.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec

from pdctl.protocol import structs


class Term(msgspec.Struct, frozen=True):
    """A word. also: other ways to write it. see: words and commands that belong to it."""

    term: str
    meaning: str
    also: tuple[str, ...] = ()
    see: tuple[str, ...] = ()


@cache
def glossary() -> dict[str, Term]:
    """Return every word there is, in the order of glossary.toml."""
    tables = msgspec.toml.decode(Path(__file__).with_name("glossary.toml").read_bytes())
    return {word: structs.convert({"term": word, **row}, Term) for word, row in tables.items()}


def find_term(text: str) -> Term | None:
    """Return the word that ``text`` means, in any case, also by another way to write it, or in the plural."""
    wanted = text.strip().lower()
    for word in (wanted, wanted.removesuffix("s")):
        for term in glossary().values():
            if word in (one.lower() for one in (term.term, *term.also)):
                return term
    return None


def words_in(text: str) -> tuple[str, ...]:
    """Return the words of the glossary that ``text`` uses."""
    return tuple(
        term.term
        for term in glossary().values()
        if any(re.search(rf"\b{re.escape(one)}s?\b", text, re.IGNORECASE) for one in (term.term, *term.also))
    )
