"""One round as a tap sees it, and its run of equal rounds: the changes, and their records."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from operator import is_
from typing import Any

import numpy as np

from pdctl.agent.sinks import Live
from pdctl.protocol.model import UNKNOWN, Action, KVPoll, Phase
from pdctl.recording import format as f

Polls = bytes | list[int]
"""Polls as they went into a collective or came out of it: their memory, or the numbers."""

_ENTERED = int(Phase.ENTERED)
_pack_tail = f.ROUND_TAIL.pack
_pack_item = f.ITEM.pack
_FULL = f.FLAG_FULL << 4
_MANY = 48
"""From this many items on, numpy builds them faster than struct."""


def list_hash(rooms: array[int]) -> int:
    """Return a 64-bit hash of a queue's rooms in order; equal lists have equal hashes, the empty list has 0."""
    return int.from_bytes(blake2b(rooms, digest_size=8).digest(), "little") if rooms else 0


def outcome_hash(kept: array[int], actions: dict[int, int]) -> int:
    """Return a 64-bit hash of what a round led to: the rooms kept, in order, and the action on each index that left."""
    if not actions:
        return list_hash(kept)
    left = b"".join(index.to_bytes(4, "little") + bytes([action]) for index, action in sorted(actions.items()))
    return int.from_bytes(blake2b(kept.tobytes() + left, digest_size=8).digest(), "little")


class Seen:
    """What is known of the requests of a round, one byte (or sparse entry) a request in queue order."""

    __slots__ = ("actions", "found", "gated", "local", "reduced")

    def __init__(self, gated: bytes, local: bytes) -> None:
        self.gated = gated
        self.local = local
        self.reduced = b""
        self.actions: dict[int, int] = {}
        self.found: dict[int, int] = {}

    def without(self, gone: list[int]) -> Seen:
        """Return the same for the requests that stay."""
        kept = Seen(_cut(self.gated, gone), _cut(self.local, gone))
        kept.reduced = _cut(self.reduced, gone)
        if self.found:
            left = set(gone)
            kept.found = {
                index - sum(g < index for g in gone): room for index, room in self.found.items() if index not in left
            }
        return kept

    def changed_since(self, known: Seen, phase: int) -> list[int]:
        """Return the indices at which a reader that knows ``known`` lacks or has a wrong value."""
        changed = set(range(len(known.gated), len(self.gated)))
        changed.update(_differ(known.gated, self.gated))
        if self.local is not self.gated or known.local is not known.gated:
            changed.update(_differ(known.local, self.local))
        if phase > _ENTERED:
            changed.update(_differ(known.reduced, self.reduced))
            changed.update(self.actions)
            if self.found != known.found:
                changed.update(i for i, room in self.found.items() if known.found.get(i) != room)
                changed.update(i for i in known.found if i not in self.found)
        return sorted(changed)


class Stream:
    """The rounds of one queue over one group: the current run, and the state that a reader knows before it."""

    __slots__ = (
        "after_hash",
        "data",
        "due",
        "full",
        "gone",
        "group",
        "hash",
        "id",
        "items_count",
        "items_crc",
        "items_start",
        "known",
        "live",
        "members",
        "mergeable",
        "merging",
        "n",
        "n_after",
        "ordinal",
        "phase",
        "prev_enter",
        "queue",
        "raw",
        "reduced_data",
        "repeat",
        "runs_since_full",
        "seen",
        "since_full",
        "stored",
        "t_done",
        "t_enter",
        "t_first",
        "visit",
    )

    def __init__(self, stream_id: int, queue: int, group: int, live: Live) -> None:
        self.id = stream_id
        self.queue = queue
        self.group = group
        self.live = live
        self.seen = Seen(b"", b"")
        self.known: Seen | None = None
        self.gone: list[int] = []
        self.members = -1
        self.data: Polls = b""
        self.reduced_data: Polls = b""
        self.raw: list[int] | None = None
        self.ordinal = 0
        self.repeat = 0
        self.visit = 0
        self.due = 0  # the turn in which the next round of this run would be
        self.phase = 0
        self.stored = 0  # the phase that was written last, 0 when the run is not in the file
        self.full = True
        self.mergeable = False
        self.merging = False
        self.t_first = self.t_enter = self.t_done = 0
        self.prev_enter = 0
        self.n = 0
        self.hash = self.after_hash = 0
        self.n_after = 0
        self.items_start = self.items_count = self.items_crc = 0
        self.since_full = 0
        self.runs_since_full = 0

    def head(self) -> tuple[int, ...]:
        """Return the head of its record, without the sequence number."""
        flags = self.phase | _FULL if self.full else self.phase
        return self.id, self.queue, self.group, flags, self.repeat, self.t_enter, self.t_done

    def tail(self) -> bytes:
        """Return the packed tail of its record."""
        return _pack_tail(
            self.n,
            self.n_after,
            self.ordinal,
            self.visit,
            self.t_first,
            self.hash,
            self.after_hash,
            self.items_start,
            self.items_count,
            self.items_crc,
        )


def items_of(rooms: array[int], slots: array[int], seen: Seen, picked: Sequence[int]) -> bytes:
    """Return the item records of the requests at these indices."""
    found, actions = seen.found, seen.actions
    reduced = seen.reduced or bytes([UNKNOWN]) * len(seen.gated)
    if len(picked) < _MANY:
        return b"".join(
            _pack_item(
                rooms[i],
                found.get(i, 0),
                slots[i],
                i,
                seen.local[i],
                seen.gated[i],
                reduced[i],
                actions.get(i, 0),
                f.ITEM_FOUND_KNOWN if i in found else 0,
            )
            for i in picked
        )
    rows = np.zeros(len(picked), f.ITEM_DTYPE)
    at = np.asarray(picked)
    rows["index"] = at
    rows["room"] = np.frombuffer(rooms, np.uint64)[at]
    rows["slot"] = np.frombuffer(slots, np.int32)[at]
    for name, values in (("local", seen.local), ("gated", seen.gated), ("reduced", reduced)):
        rows[name] = np.frombuffer(values, np.uint8)[at]
    place = {index: n for n, index in enumerate(picked)} if found or actions else {}
    for index, room in found.items():
        if index in place:
            rows["found"][place[index]] = room
            rows["flags"][place[index]] = f.ITEM_FOUND_KNOWN
    for index, action in actions.items():
        rows["action"][place[index]] = action
    return rows.tobytes()


def narrow(data: Polls, width: int) -> bytes:
    """Return polls, as numbers or of ``width`` bytes each, as one byte each."""
    if isinstance(data, list):
        return bytes(data)
    return data if width == 1 else np.frombuffer(data, f"<i{width}").astype(np.uint8).tobytes()


def _differ(old: bytes, new: bytes) -> list[int]:
    count = min(len(old), len(new))
    if old == new or old == new[:count]:
        return []
    # xor of two big integers: for a few differences far cheaper than numpy on arrays of this size
    bits = int.from_bytes(old[:count], "little") ^ int.from_bytes(new[:count], "little")
    different: list[int] = []
    while bits and len(different) < _MANY:
        at = (bits & -bits).bit_length() - 1 >> 3
        different.append(at)
        bits &= ~(255 << (at << 3))
    if bits:
        unequal = np.frombuffer(old, np.uint8, count) != np.frombuffer(new, np.uint8, count)
        return [int(i) for i in np.flatnonzero(unequal)]
    return different


def indices_of(polls: bytes, wanted: Iterable[bytes]) -> list[int]:
    """Return where any of the wanted polls (one byte each) stands, ascending."""
    found = []
    for poll in wanted:
        at = polls.find(poll)
        while at >= 0:
            found.append(at)
            at = polls.find(poll, at + 1)
    return sorted(found)


def _cut(values: bytes, gone: list[int]) -> bytes:
    kept = bytearray(values)
    for index in reversed(gone):
        del kept[index : index + 1]
    return bytes(kept)


def gone_from(before: Sequence[Any], after: Sequence[Any]) -> list[int]:
    """Return the indices of ``before`` that are not in ``after``, which is ``before`` without them."""
    missing = len(before) - len(after)
    if missing <= 0:
        return []
    if missing > 8:
        still = set(map(id, after))
        return [index for index, entry in enumerate(before) if id(entry) not in still]
    gone: list[int] = []
    start = 0
    while len(gone) < missing:
        same = list(map(is_, islice(before, start, None), islice(after, start - len(gone), None)))
        step = same.index(False) if False in same else len(same)
        gone.append(start + step)
        start += step + 1
    return gone


def action_of(reduced: int) -> int:
    """Infer, from the reduced poll, the Action for a request that left, if the engine's own decision was not seen."""
    if reduced == KVPoll.SUCCESS:
        return int(Action.COMMITTED)
    if reduced == KVPoll.FAILED:
        return int(Action.FAILED)
    if reduced == KVPoll.WAITING_FOR_INPUT:
        return int(Action.MOVED)
    return int(Action.ABORTED)
