"""Who holds decode's KV space and its places in the running batch, and who waits for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from pdctl.probes.stuck import UNHEARD_S
from pdctl.probes.stuck.advice import AFTER_RETRACTED, BEHIND, BOOTSTRAP_TIMEOUT
from pdctl.probes.stuck.model import SideSpace, Waiting
from pdctl.probes.stuck.peer import ENDED
from pdctl.probes.stuck.sides import Key, Seen, Side
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import KVPoll, poll_name
from pdctl.report.findings import Finding, Level, finding

NAMED = 4
"""Requests that a sentence names one by one."""
_HOLD = ("running", "waiting", "decode.transfer")
"""Queues of requests that have a row."""


def full(
    space: SideSpace,
    side: Side,
    requests: Sequence[Waiting],
    given_up: Mapping[int, Waiting],
    failed: Collection[Key],
    stuck: Mapping[str, Sequence[Waiting]],
) -> Finding:
    """Return that a side has no space. requests: that wait on it. given_up: those of them that prefill does not send any more.

    given_up are by room. failed: those that the other side has failed. stuck: those that a finding tells of, by its code.
    """
    first = [] if side.retracted else [one for one in requests if one.room == space.head]
    line = [*first, *(one for one in requests if one.note in (BEHIND, AFTER_RETRACTED))]
    head = next(iter(first), None)
    words = [f"{side.title} is full: {space.full}."]
    if head is not None and head.age_s >= 0:
        words.append(f"Room {head.room} has waited for {seconds(head.age_s)}.")
    behind = len(line) if side.retracted else len(line) - 1
    if behind > 0:
        words.append(
            f"{behind} more {_verb(behind, 'waits', 'wait')} behind {'them' if len(side.retracted) > 1 else 'it'}."
        )
    dead, kv = _dead(side, failed)
    if dead:
        words.append(
            f"{dead} {_verb(dead, 'request that nobody waits for holds', 'requests that nobody waits for hold')} {kv} of"
            f" {space.kv} KV tokens."
        )
    next_step = ""
    held = list(_held_by(space, stuck))
    if held:
        codes = " and ".join(code for code, _ in held)
        words.append(" ".join(said for _, said in held))
        next_step = (
            f"See to what is stuck first ({codes}): it holds what the others wait for, and more capacity ends no wait. "
        )
    if given_up:
        count = len(given_up)
        words.append(f"Prefill has given up {count} {_verb(count, 'request', 'requests')} meanwhile.")
        next_step += (
            "Abort on decode what prefill has given up (POST /abort_request with its rid): it holds a place in line, and then"
            " space, for nothing. "
        )
        if not held:
            next_step += f"Add decode capacity, admit less, or raise {BOOTSTRAP_TIMEOUT} on prefill."
    retracted = [seen.entry.room for seen in side.retracted] or [space.head]
    return finding(
        "PD140",
        " ".join(words),
        group=side.title,
        rooms=tuple(dict.fromkeys((*retracted, *(one.room for one in line if not _unheard(one)), *given_up))),
        evidence=_held(space, side),
        next_step=next_step.strip(),
        units=(side.unit,),
    )


def _unheard(request: Waiting) -> bool:
    """Return whether a message is lost that would have reached a request that is not looked at: it waits for that as well."""
    over = request.state in (poll_name(KVPoll.SUCCESS), poll_name(KVPoll.FAILED))
    return request.note == AFTER_RETRACTED and request.peer_is == ENDED and not over


def _held_by(space: SideSpace, stuck: Mapping[str, Sequence[Waiting]]) -> Iterator[tuple[str, str]]:
    """Yield, by the code of a finding, how much of what is lacking its requests hold, in words."""
    for code, ones in stuck.items():
        slots = sum(any(place.slot >= 0 for place in one.ranks) for one in ones) if space.slots_free == 0 else 0
        kv = sum(max((place.kv for place in one.ranks), default=0) for one in ones)
        lacks_kv = 0 <= space.kv_free < space.needs + space.reserved
        what = [f"{slots} of {space.slots} metadata slots"] if slots else []
        what += [f"{kv} of {space.kv} KV tokens"] if kv > 0 and lacks_kv else []
        if what:
            who = _verb(len(ones), "1 request that is stuck holds", f"{len(ones)} requests that are stuck hold")
            yield code, f"{who} {' and '.join(what)} ({code})."


def _held(space: SideSpace, side: Side) -> tuple[str, ...]:
    lines = []
    if space.kv >= 0:
        running = sum(seen[0].entry.queue == "running" for seen in side.requests.values())
        lines.append(f"{max(0, space.kv - space.kv_free)} of {space.kv} KV tokens are taken; {running} requests run")
    return tuple(lines)


def _dead(side: Side, failed: Collection[Key]) -> tuple[int, int]:
    """Return how many requests hold KV although nobody waits for them or the other side has failed them, and how much."""
    held = [
        max(each.entry.kv for each in seen)
        for key, seen in side.requests.items()
        if key in failed or all(each.entry.client == 0 for each in seen)
    ]
    held = [kv for kv in held if kv > 0]
    return len(held), sum(held)


def batch(side: Side) -> Finding | None:
    """Return that requests wait for a place in the running batch, None where there is one or nobody waits.

    A batch is full that was full of the same requests at both looks, with the same one waiting.
    """
    looks = [look for look in side.looks if look.first is not None and look.second is not None]
    if not looks or side.recorded:
        return None
    first, second = looks[0].first, looks[0].second
    assert first is not None
    assert second is not None
    space = second.space
    queues = _HOLD if space.requests_free == 0 else ("running",)
    places = space.requests if space.requests_free == 0 else space.batch
    holds = {key: seen for key, seen in side.requests.items() if seen[0].entry.queue in queues}
    waits = {
        key: seen
        for key, seen in side.requests.items()
        if seen[0].entry.queue == "waiting" or (space.requests_free == 0 and seen[0].entry.queue == "decode.prealloc")
    }
    before = set(first.rooms.rows("queue", "room", "rid"))
    waits = {key: seen for key, seen in waits.items() if key not in holds and (seen[0].entry.queue, *key) in before}
    if (
        not 0 < places <= len(holds)
        or not waits
        or any((s[0].entry.queue, *key) not in before for key, s in holds.items())
    ):
        return None
    return _full_batch(side, places, list(holds.values()), list(waits.values()))


def _full_batch(side: Side, places: int, holds: Sequence[Sequence[Seen]], waits: Sequence[Sequence[Seen]]) -> Finding:
    by_age = sorted(holds, key=_age, reverse=True)
    gone = [seen for seen in by_age if all(each.entry.client == 0 for each in seen)]
    unknown = any(each.entry.client < 0 for seen in holds for each in seen)
    oldest = max(waits, key=_age)
    waited = _age(oldest)
    rest = f" and {len(by_age) - NAMED} more" if len(by_age) > NAMED else ""
    taken_by = f"{', '.join(map(_since, by_age[:NAMED]))}{rest}"
    count = _verb(len(waits), "1 request waits", f"{len(waits)} requests wait")
    words = [
        f"The running batch of {side.title} is full: {len(holds)} of {places} places are taken, by {taken_by}.",
        f"{count} for a place, room {oldest[0].entry.room}{f' for {seconds(waited)}' if waited >= 0 else ''}.",
    ]
    if gone:
        words.append(f"Nobody waits for {len(gone)} of those that run: {_rids(gone)}.")
    elif unknown:
        words.append("The engine does not tell whether their clients are still there.")
    return finding(
        "PD146",
        " ".join(words),
        group=side.title,
        rooms=tuple(dict.fromkeys(seen[0].entry.room for seen in (*waits, *holds))),
        evidence=tuple(f"{_since(seen)}, {_client(seen)}" for seen in by_age[:20]),
        level=Level.WARNING if gone and waited >= UNHEARD_S else None,
        next_step="Abort the requests that nobody waits for (POST /abort_request with their rids, above). Then find out why"
        " nobody aborted them when their clients left: a router has to pass that on."
        if gone
        else "",
        units=(side.unit,),
    )


def _age(seen: Sequence[Seen]) -> float:
    return max(each.entry.age_s for each in seen)


def _since(seen: Sequence[Seen]) -> str:
    entry, age = seen[0].entry, _age(seen)
    return f"room {entry.room} (rid {entry.rid}{f', {seconds(age)}' if age >= 0 else ''})"


def _client(seen: Sequence[Seen]) -> str:
    clients = {each.entry.client for each in seen}
    if clients == {0}:
        return "nobody waits for it"
    return "its client waits" if clients == {1} else "its client is not known"


def _rids(gone: Sequence[Sequence[Seen]]) -> str:
    named = ", ".join(f"rid {seen[0].entry.rid}" for seen in gone[:NAMED])
    return named + (f" and {len(gone) - NAMED} more" if len(gone) > NAMED else "")


def _verb(count: int, one: str, many: str) -> str:
    return one if count == 1 else many
