"""Finds threads of an engine that have ended beside a scheduler that goes on. Pure.

The scheduler's loop notices nothing of it: a request waits for what the thread would have done, until its time-out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pdctl.protocol.durations import seconds
from pdctl.protocol.model import Identity, ServiceThread
from pdctl.protocol.notes import ROLE_CHANGED, THREAD_ENDED
from pdctl.report.findings import Finding, Level, finding
from pdctl.targets import nodeset

_BOOTSTRAP, _HEARTBEAT = "bootstrap thread", "heartbeat thread"
_KINDS = (
    ("bootstrap", _BOOTSTRAP, "it hears no decode rank any more: later requests wait in prefill.bootstrap"),
    ("transfer", "transfer worker", "what is queued for it is never sent"),
    ("heartbeat", _HEARTBEAT, "it does not notice any more that a prefill server has ended"),
    ("decode", "receiver thread", "it does not hear any more what prefill tells"),
)
"""What the name of a thread's function holds, what the thread is, and what its end means."""
MOST_EVIDENCE = 16


@dataclass(frozen=True)
class Ended:
    """Threads of one function that have ended on a rank.

    age_s: seconds since the first was seen so, None unknown. counted: whether it is known how many ended and how many run.
    """

    identity: Identity
    thread: ServiceThread
    age_s: float | None = None
    counted: bool = True


def recorded(identity: Identity, notes: Iterable[tuple[str, float | None]]) -> list[Ended]:
    """Return the threads that have ended by the notes of a recording, each function once: those of the rank's last role.

    notes: the text of each in its order, and the seconds since then, None unknown.
    """
    found: dict[str, Ended] = {}
    for text, age_s in notes:
        head, _, rest = text.partition(": ")
        function, _, error = rest.partition(": ")
        if text.startswith(ROLE_CHANGED):
            found.clear()
        elif head == THREAD_ENDED and function and function not in found:
            found[function] = Ended(identity, ServiceThread(function, ended=1, error=error), age_s, counted=False)
    return list(found.values())


def judge(ended: Sequence[Ended]) -> tuple[Finding, ...]:
    """Return a finding for each server with threads that have ended."""
    servers: dict[nodeset.Server, list[Ended]] = {}
    for one in ended:
        servers.setdefault(nodeset.server(one.identity), []).append(one)
    names = nodeset.server_names([one.identity for one in ended])
    return tuple(_finding(names[server], members) for server, members in servers.items())


def _finding(server: str, ended: Sequence[Ended]) -> Finding:
    first = max(ended, key=lambda one: one.age_s or 0.0)
    what, means = _kind(first.thread.function)
    summary = f"{_who(first)} {_ended(first)}{_why(first)}. On {first.identity.label} {means}"
    others = [one for one in ended if one is not first]
    if others:
        more = sorted({f"the {_kind(one.thread.function)[0]} of {one.identity.label}" for one in others})
        summary += f". So {'have' if len(more) > 1 else 'has'} {', '.join(more[:4])}{' and others' * (len(more) > 4)}"
    mild = all(_kind(one.thread.function)[0] == _HEARTBEAT for one in ended)
    deaf = what == _BOOTSTRAP and "aborts" in first.identity.lacks
    return finding(
        "PD117",
        f"{summary[0].upper()}{summary[1:]}.",
        group=server,
        ranks=tuple(dict.fromkeys(one.identity.label for one in ended)),
        units=() if mild else (one.identity.unit for one in ended),
        evidence=tuple(map(_evidence, ended[:MOST_EVIDENCE])),
        next_step=_UPGRADE if deaf else "",
        level=Level.WARNING if mild else None,
    )


_UPGRADE = (
    "Restart this server: nothing starts the thread again. In this version an abort or a time-out on decode ends it, each time"
    " (sgl-project/sglang PR 30352): abort nothing on decode, and upgrade prefill to 0.5.18 or newer."
)


def _kind(function: str) -> tuple[str, str]:
    for word, name, means in _KINDS:
        if word in function:
            return name, means
    return f"thread {function}", "what it did is not done any more"


def _who(one: Ended) -> str:
    name, thread = _kind(one.thread.function)[0], one.thread
    if thread.running:
        many = thread.running + thread.ended
        return f"{thread.ended} of {many} {name}s of {one.identity.label}"
    return f"{'the' if one.counted else 'a'} {name} of {one.identity.label}"


def _ended(one: Ended) -> str:
    return "has ended" if one.age_s is None else f"ended {seconds(one.age_s)} ago"


def _why(one: Ended) -> str:
    return f" by {one.thread.error}" if one.thread.error else ""


def _evidence(one: Ended) -> str:
    how = one.thread.error or "how is not known: without an exception that was seen"
    counts = f", {one.thread.ended} ended, {one.thread.running} running" if one.counted else ""
    return f"{one.identity.label}: {one.thread.function}{counts}: {how}"
