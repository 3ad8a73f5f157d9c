"""Every check of ``preflight``, once: why it matters, and whether a deployment may be called fit without it."""

from __future__ import annotations

from typing import NamedTuple

from pdctl.probes.preflight.model import ERROR, INFO, NOT_APPLICABLE, OK, UNKNOWN, WARNING, Line
from pdctl.report.findings import Finding, Level, catalogue, finding

_RAISES = "Decode compares it with what prefill's bootstrap server says, and its scheduler raises when they differ."


class Check(NamedTuple):
    """One check. why: what the engine does where it is not so. essential: without it, fit is not known."""

    why: str
    essential: bool = False


CHECKS = {
    "servers": Check("A request needs both sides, each in its role.", True),
    "ranks": Check("One rank that does not answer its group holds up all requests of the group.", True),
    "alike": Check("The ranks of one server decide by the same settings; one that has others parts from its group."),
    "model": Check("Nobody compares models: KV of other weights gives wrong answers, and no error.", True),
    "page-size": Check(_RAISES, True),
    "kv-dtype": Check(_RAISES, True),
    "kv-layout": Check("Nobody compares it: KV is written to the wrong places, or a transfer fails."),
    "metadata-rows": Check(
        "Up to 0.5.22 nobody compares it: prefill finds decode's rows by the lengths of its own, and writes beside them."
    ),
    "speculative": Check(
        "The KV of a draft model is sent with the model's: both sides must have it, or neither.", True
    ),
    "parallel": Check("Each decode rank works out from both sides' sizes which prefill ranks it takes KV from.", True),
    "transfer": Check("The messages of two backends differ: no request gets past its handshake.", True),
    "routing": Check(
        "Decode must ask for the dp rank of exactly those rooms that prefill registers; others wait for ever."
    ),
    "bootstrap": Check(
        "Decode learns there where the ranks of prefill are, and fails requests after 15 attempts.", True
    ),
    "ports": Check("The ranks of both sides connect to each other; where they can't, every request times out."),
    "time-outs": Check("Each side gives a request up by itself: one that comes too early fails healthy requests."),
    "versions": Check("Each side has the protections of its own version."),
    "defects": Check("A known defect waits for the request that meets it."),
    "clocks": Check("No time-out rests on wall clocks, but logs and stories of both sides are compared by them."),
    "handshake": Check("Only a request shows that all of it works together.", True),
}
"""In the order in which they are told."""


def line(
    check: str,
    verdict: str,
    found: str,
    *,
    about: str = "",
    code: str = "",
    cure: str = "",
    why: str = "",
    essential: bool | None = None,
) -> Line:
    """Return the line of a check. What is not given is the check's own, or the catalogue's for ``code``."""
    known = CHECKS[check]
    bad = verdict in (WARNING, ERROR)
    return Line(
        check=check,
        verdict=verdict,
        found=found,
        about=about,
        why=why or known.why,
        cure=cure or (catalogue()[code].next_step if code and bad else ""),
        code=code,
        essential=known.essential if essential is None else essential,
    )


def line_of(check: str, said: Finding) -> Line:
    """Return the line of a finding that another probe's judge made."""
    return Line(
        check=check,
        verdict=said.level.value,
        found=said.summary,
        why=CHECKS[check].why,
        cure=said.next_step,
        code=said.code,
    )


def finding_of(one: Line) -> Finding | None:
    """Return the finding that a line is, None where nothing is wrong."""
    if not one.code or one.verdict in (OK, UNKNOWN, NOT_APPLICABLE):
        return None
    about = f"{one.about}: " if one.about else ""
    return finding(one.code, f"{about}{one.found}", evidence=(one.why,), next_step=one.cure, level=_LEVEL[one.verdict])


_LEVEL = {INFO: Level.INFO, WARNING: Level.WARNING, ERROR: Level.ERROR}
