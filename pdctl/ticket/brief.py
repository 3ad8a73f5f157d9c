"""A report for a chat or a ticket: Markdown of at most 40 lines. What others wrote is in a block of code. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from pdctl.probes.queues.model import WELL
from pdctl.report.escaping import escape, fenced
from pdctl.report.output import sentence
from pdctl.ticket.hide import Hider
from pdctl.ticket.model import Case

MOST_LINES = 40
_WIDTH = 400
_CODE = re.compile(r"PD\d{3}")


def brief(case: Case) -> str:
    """Return the lines, each with its end."""
    level, words = case.verdict
    worst = case.worst
    code = f" {worst.code}" if worst is not None and _CODE.fullmatch(worst.code) else ""
    lines = list(_lines(case))
    if case.manifest.redacted and case.manifest.salt:  # what a report says of a file is as the file is
        hider = Hider(case.manifest.salt)
        lines = list(map(hider.text, lines))
    most = MOST_LINES - 4
    if len(lines) > most:
        lines[most - 1 :] = [f"… and {len(lines) - most + 1} more lines: pdctl report makes a page of all"]
    return f"**pdctl: {level}{code}.** {words}\n\n{fenced(_cut(line) for line in lines)}"


def _cut(line: str) -> str:
    return escape(line, most=_WIDTH)


def _lines(case: Case) -> Iterator[str]:
    made = case.manifest
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(made.started_wall_ns // 10**9, 253402300799)))
    ranks = f"{len(case.ranks)} rank{'s'[: len(case.ranks) != 1]}"
    yield ", ".join(
        (case.name, at, ranks, *case.versions[:3], "names hashed" if made.redacted else "names as they are")
    )
    for one in case.findings[:6]:
        yield ""
        yield f"{one.code} {one.level.value}: {one.summary}"
        yield from (f"  {line}" for line in one.evidence[:3])
        if one.follows:
            yield f"  It follows from {one.follows}."
        elif one.next_step:
            yield f"  Next: {sentence(one.next_step)}"
    if len(case.findings) > 6:
        yield f"and {len(case.findings) - 6} more findings"
    apart = [one for one in case.groups if one.verdict not in WELL]
    if apart:
        yield ""
        yield from (f"{one.verdict} {one.title}{f': {one.said}' if one.said else ''}" for one in apart[:4])
    if case.unseen:
        yield ""
        yield from (f"not seen or in part: {line}" for line in case.unseen[:4])
        if len(case.unseen) > 4:
            yield f"and {len(case.unseen) - 4} more lines of what was not seen"
