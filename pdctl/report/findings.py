"""What pdctl can find: one catalogue of codes, each with its meaning, where it is known from and what to do next.

A judge makes a Finding from a code and the evidence; the text that is the same every time stands in findings.toml once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import cache
from pathlib import Path

import msgspec

from pdctl.protocol import structs

_ROOM = re.compile(r"\bROOM\b")


class Level(str, Enum):
    """How bad. INFO never changes an exit code."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Code(msgspec.Struct, frozen=True):
    """A kind of finding. versions: engine versions it is known for, in words. reference: the public report or fix.

    evidence: what a finding of this kind shows, and rests on. affects: the versions whose code has the defect behind it, as
    :func:`pdctl.protocol.versions.within` reads them; "" where no range of versions has it.
    """

    code: str
    level: Level
    title: str
    meaning: str
    versions: str = ""
    reference: str = ""
    next_step: str = ""
    evidence: str = ""
    affects: str = ""


class Finding(msgspec.Struct, frozen=True):
    """One finding. summary: what was found, in one or two sentences that name ranks and rooms.

    evidence: what it rests on, one statement a line. group: which group it is about. rooms, ranks: concerned.
    units: the data-parallel ranks that it is about or that it waits for, each with its server (``Identity.unit``).
    follows: code of the finding that it is a consequence of, "" where it stands for itself.
    """

    code: str
    level: Level
    summary: str
    group: str = ""
    rooms: tuple[int, ...] = ()
    ranks: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    cause: str = ""
    versions: str = ""
    next_step: str = ""
    units: tuple[str, ...] = ()
    follows: str = ""


@cache
def catalogue() -> dict[str, Code]:
    """Return every code there is, as findings.toml has them. Read at the first use: most commands find nothing."""
    tables = msgspec.toml.decode(Path(__file__).with_name("findings.toml").read_bytes())
    rows = [
        {"code": code, **{name: " ".join(text.split()) for name, text in row.items()}} for code, row in tables.items()
    ]
    return {code.code: code for code in structs.convert(rows, list[Code])}


def finding(
    code: str,
    summary: str,
    *,
    group: str = "",
    rooms: tuple[int, ...] = (),
    ranks: tuple[str, ...] = (),
    evidence: tuple[str, ...] = (),
    versions: str = "",
    next_step: str = "",
    level: Level | None = None,
    units: Iterable[str] = (),
) -> Finding:
    """Return a finding of ``code``. Raises KeyError for no such code.

    What is not given of level, versions and next step is the catalogue's. ROOM in a next step is the first of ``rooms``, where
    there are any: what it names can be run as it is printed.
    """
    entry = catalogue()[code]
    advice = next_step or entry.next_step
    return Finding(
        code=code,
        level=entry.level if level is None else level,
        summary=summary,
        group=group,
        rooms=rooms,
        ranks=ranks,
        evidence=evidence,
        cause=entry.title,
        versions=versions or entry.versions,
        next_step=_ROOM.sub(str(rooms[0]), advice) if rooms else advice,
        units=tuple(dict.fromkeys(units)),
    )
