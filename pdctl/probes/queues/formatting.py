"""Says in words what the queue judge found. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pdctl.probes.queues.compare import Difference, Kind
from pdctl.probes.queues.gate import Held
from pdctl.probes.queues.model import RankView, RoomSide, RoomSplit
from pdctl.probes.turns import call_words
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import SPARE_QUEUES, Action, Phase, poll_name
from pdctl.targets import nodeset

ACTIONS: dict[int, str] = {
    Action.KEPT: "kept",
    Action.COMMITTED: "committed",
    Action.FAILED: "failed",
    Action.ABORTED: "aborted",
    Action.MOVED: "moved on",
}
_FLAGS = {
    "decode.held": ("may be released", "must be kept"),
    "decode.deferred": ("not ready", "ready"),
    "decode.checksum": ("right", "wrong"),
}
"""What the two values of a flag mean, for the lists that are no polls."""
_MEANINGS = {meaning for meanings in _FLAGS.values() for meaning in meanings}


def value(queue: str, number: int) -> str:
    """Return what a number that is reduced says: the name of a poll, what a flag means, or the number."""
    if queue in _FLAGS and number in (0, 1):
        return _FLAGS[queue][number]
    return str(number) if queue in SPARE_QUEUES else poll_name(number)


def counted(queue: str, count: int | str) -> str:
    """Return ``3 polls`` or ``1 flag``."""
    return f"{count} {one_of(queue)}{'s'[: str(count) != '1']}"


def one_of(queue: str) -> str:
    """Return what a number that is reduced is called: ``flag``, ``number`` or ``poll``."""
    return "flag" if queue in _FLAGS else "number" if queue in SPARE_QUEUES else "poll"


MOST_NAMES = 4
"""Ranks that are named one by one; more are folded."""


def names(ranks: Iterable[str]) -> str:
    """Return ``tp0``, ``tp0 and tp1``, ``tp0, tp1 and tp3`` or, of more ranks than MOST_NAMES, ``tp0-6,9``."""
    listed = list(ranks)
    if len(listed) > MOST_NAMES and all(map(nodeset.axes_of, listed)):
        return nodeset.join(listed)
    if len(listed) < 2:
        return "".join(listed)
    return f"{', '.join(listed[:-1])} and {listed[-1]}"


def has(ranks: Sequence[str]) -> str:
    """Return the verb that goes with ``ranks``."""
    return "has" if len(ranks) == 1 else "have"


def rooms(listed: Sequence[int]) -> str:
    """Return a short list of rooms, ``nothing`` for none."""
    if not listed:
        return "nothing"
    shown = ", ".join(map(str, listed[:3]))
    return (
        f"room {shown}"
        if len(listed) == 1
        else f"rooms {shown}" + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
    )


def held(h: Held) -> str:
    """Return ``room 7 held by the gate on tp1 for 812 rounds (4.9 s)``."""
    return (
        f"room {h.room} held by the gate on {h.rank} for {h.rounds} round{'s'[: h.rounds != 1]} ({seconds(h.seconds)})"
    )


def held_past(past: Sequence[Held]) -> str:
    """Return what the gate held earlier, the longest hold by name."""
    longest = max(past, key=lambda h: h.seconds)
    more = f", and {len(past) - 1} other hold{'s'[: len(past) != 2]}" if len(past) > 1 else ""
    span = f"{longest.rounds} rounds, {seconds(longest.seconds)}"
    return f"room {longest.room} on {longest.rank} until round {longest.until} ({span}){more}"


def diverged(difference: Difference, splits: Sequence[RoomSplit]) -> str:
    """Return the few words behind a queue that differs."""
    if difference.kind is Kind.SKIPPED and not splits:
        return f"round {difference.ordinal} was skipped by some ranks"
    only: dict[tuple[str, ...], list[int]] = {}
    ends: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for split in splits:
        if any(side.action == "not readable" for side in split.sides):
            return "the ranks differ, and one rank's requests of that round are lost from its recording"
        on = tuple(side.rank for side in split.sides if side.action in ("kept", "undecided"))
        if not on:
            ends.setdefault(tuple((side.action, side.rank) for side in split.sides), []).append(split.room)
        elif len(on) < len(split.sides):
            only.setdefault(on, []).append(split.room)
    parts = [f"{rooms(found)} {'is' if len(found) == 1 else 'are'} on {names(on)} only" for on, found in only.items()]
    parts += [f"{rooms(found)} {'was' if len(found) == 1 else 'were'} {_ended(acts)}" for acts, found in ends.items()]
    return "; ".join(parts) or "the same requests in another order"


def _ended(acts: Sequence[tuple[str, str]]) -> str:
    """Return ``aborted on tp0 and committed on tp1`` for (what it did, rank)."""
    by_act: dict[str, list[str]] = {}
    for act, rank in acts:
        by_act.setdefault(act, []).append(rank)
    return names(f"{act} on {names(ranks)}" for act, ranks in by_act.items())


def side(s: RoomSide) -> tuple[str, str]:
    """Return (what the rank did, what it knew) of one room."""
    did = {
        "committed": "committed it",
        "kept": "kept it",
        "failed": "failed it",
        "aborted": "aborted it",
        "moved on": "passed it on",
        "undecided": "has it in this round, not decided",
        "not readable": "can't be told: its requests of this round are lost from its recording",
    }.get(s.action, "does not have it" + (f": it is in {s.where}" if s.where else ""))
    if s.found is not None and s.slot >= 0:
        if s.found == 0:
            landed = "" if s.landed_s is None else f" (it landed {seconds(s.landed_s)} later)"
            return did, f"slot {s.slot} held 0: metadata not written{landed}"
        return did, f"slot {s.slot} held room {s.found}"
    if s.local != "-":
        return did, f"its own {'flag' if s.local in _MEANINGS else 'poll'}: {s.local}" + (
            f", gated to {s.gated}" if s.gated != s.local else ""
        )
    return did, ""


def doing(view: RankView) -> str:
    """Return where a rank's main thread is, in words; without a live answer, where its recording ends."""
    if view.turn is not None and view.turn.in_kernel:
        return view.turn.doing or f"its process is {view.turn.halted}"
    if view.status is not None:
        return call_words(view.status.call, view.status.stack)
    return last_round(view)


def last_round(view: RankView) -> str:
    """Return how far a rank got in the round it entered last, "" without one."""
    stream = None if view.recording is None else view.recording.entered_last
    if stream is None:
        return ""
    run = stream.newest
    how = {
        Phase.ENTERED: f"waits in the all_reduce of {counted(stream.queue, run.n)}",
        Phase.REDUCED: f"has the reduced {one_of(stream.queue)}s, has not decided",
        Phase.APPLIED: "has left it",
    }
    return f"round {run.last} of {stream.queue}: {how[run.phase]}"
