"""On which engine versions a recorded finding comes again: what each version's run says, and where it changes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from pdctl.protocol.documents import Document
from pdctl.protocol.versions import parse

PASSES, FAILS, NOT_JUDGED = "passes", "fails", "not judged"
_TURNS = re.compile(r"ranks stopped after turns \[([\d, ]+)\]")
_RANKS = ("the ranks' transfer queues are", "the ranks took these requests over")
MAX_TEXT = 300


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One version. outcome: PASSES (the ranks stay in step), FAILS (they part), or NOT_JUDGED. text: what the test said.

    source: where the engine's code came from: a file that pip downloaded with its hash, or a directory. mib: its size
    when it is installed.
    """

    engine: str
    outcome: str
    text: str = ""
    source: str = ""
    mib: float = 0.0
    seconds: float = 0.0


class BisectDocument(Document, frozen=True, kw_only=True, tag="pdctl.bisect"):
    """Answer of ``pdctl bisect``. verdict: what the versions say together.

    last_bad, first_good: neighbours between which the test's outcome changes from FAILS to PASSES, "" where there are none.
    """

    trace: str
    verdict: str
    last_bad: str = ""
    first_good: str = ""
    engines: tuple[Judged, ...] = ()


def ordered(engines: Sequence[str]) -> list[str]:
    """Return versions from old to new, each once; as they were given where one of them is no released version."""
    once = list(dict.fromkeys(engines))
    keys = {name: parse(name) for name in once}
    return once if None in keys.values() else sorted(once, key=lambda name: keys[name] or ())


def outcome(kind: str, text: str) -> tuple[str, str]:
    """Return what one run of the emitted test means, and why.

    kind: ``passed``, ``assertion``, ``skipped`` or ``error``, as the runner of :mod:`.wheels` has it; text: of the exception.
    A test that could not begin says nothing about the engine.
    """
    first = text.strip().partition("\n")[0]
    if kind == "passed":
        return PASSES, "the ranks stay in step"
    if kind == "assertion" and any(words in first for words in _RANKS):
        return FAILS, first
    if kind == "assertion" and (found := _TURNS.search(first)):
        ended = set(found[1].replace(" ", "").split(","))
        if len(ended) > 1 or "Traceback" not in text:
            return FAILS, first
    last = text.strip().rpartition("\n")[2]
    return NOT_JUDGED, (last if kind == "assertion" else first)[:MAX_TEXT] or kind


def judge(trace: str, engines: Sequence[Judged]) -> BisectDocument:
    """Return what all versions say together. engines: from old to new."""
    told = [one for one in engines if one.outcome != NOT_JUDGED]
    turns = [n for n in range(1, len(told)) if told[n].outcome != told[n - 1].outcome]
    last_bad = first_good = ""
    if not told:
        verdict = "no version could be judged"
    elif not turns:
        only = " that could be judged" if len(told) < len(engines) else ""
        verdict = f"the test {told[0].outcome} on every version{only}"
    elif len(turns) == 1 and told[0].outcome == FAILS:
        last_bad, first_good = told[turns[0] - 1].engine, told[turns[0]].engine
        verdict = (
            f"{first_good} is the first version on which the test passes; {last_bad} is the last on which it fails"
        )
        between = [one.engine for one in engines[engines.index(told[turns[0] - 1]) + 1 : engines.index(told[turns[0]])]]
        verdict += f"; not judged between them: {', '.join(between)}" if between else ""
    elif len(turns) == 1:
        verdict = f"the test passes up to {told[turns[0] - 1].engine} and fails from {told[turns[0]].engine} on"
    else:
        verdict = f"the outcome changes {len(turns)} times: the fix came and went, or the test depends on time"
    return BisectDocument(
        trace=trace, verdict=verdict, last_bad=last_bad, first_good=first_good, engines=tuple(engines)
    )
