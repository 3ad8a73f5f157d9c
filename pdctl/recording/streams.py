"""The rounds of one queue over one group in a recording: a table of runs, and the requests of each run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pdctl.protocol.model import QUEUES, UNKNOWN, Action, GroupInfo, KVPoll, Phase
from pdctl.recording import format as f
from pdctl.recording.rings import ITEM, ItemSpan, among, distinct, hide, select_records
from pdctl.recording.source import Source

MAX_REBUILT = 1 << 26
"""Requests in the lists that one list may be built on; a rank writes a whole list long before."""
_LARGE = 1 << 15
"""Requests of a run from which on its place is searched for holes first: some bytes could name a list of a GiB of zeros."""
MAX_KEPT = 1 << 21
"""Requests in the lists that are kept for the next question, of 32 bytes each."""


@dataclass(frozen=True, slots=True)
class Run:
    """``repeat`` equal rounds of one stream, from round ``ordinal`` on. Times are ns of the rank's monotonic clock.

    visit: turn of the scheduler of the first round. n / hash: length and order-sensitive hash of the list polled.
    n_after: length of what was kept; after_hash: hash of that and of what was done with the rest.
    phase: how far the *last* of the rounds got; t_enter: when it began; t_done: when the first was applied (0: not yet).
    """

    queue: str
    group: int
    phase: Phase
    full: bool
    n: int
    n_after: int
    ordinal: int
    repeat: int
    visit: int
    t_first: int
    t_enter: int
    t_done: int
    hash: int
    after_hash: int
    items_start: int
    items_count: int
    items_crc: int

    @property
    def last(self) -> int:
        """Ordinal of the last round of the run."""
        return self.ordinal + self.repeat - 1


@dataclass(frozen=True, slots=True)
class Item:
    """One request in one round. found is None where the slot was not looked at; polls are KVPoll values or UNKNOWN."""

    room: int
    slot: int
    local: int
    gated: int
    reduced: int
    action: int
    found: int | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What runs say of their requests, in one table.

    first: row of the stream that the first of them is. items: rings.ITEM, in the order of runs and queue, UNKNOWN where
    the run's phase has not reached a field. row: the row of the stream that each item belongs to.
    known: for each run from ``first`` on, whether its list can be rebuilt; the others have no items here.
    """

    first: int
    items: NDArray[Any]
    row: NDArray[np.int64]
    known: NDArray[np.bool_]


class Stream:
    """All rounds of one queue over one group that the file still holds, oldest first.

    table: one row a run (:data:`pdctl.recording.format.ROUND_DTYPE`), sorted by ordinal. Runs are numbered by their row.
    tail: the row from which on no run was left out; only an excerpt leaves out any (:mod:`pdctl.recording.excerpt`).
    """

    def __init__(self, group: GroupInfo, table: NDArray[Any], source: Source, items: tuple[int, int]) -> None:
        self.queue = QUEUES[int(table["queue"][-1])]
        self.group = group
        self.table = table
        self.tail = 0
        self.ends: NDArray[np.int64] = (table["ordinal"] + table["repeat"] - 1).astype(np.int64)
        self._source = source
        self._items_offset, self._items_capacity = items
        self._cache: dict[int, NDArray[Any] | None] = {}
        self._kept = 0

    def __len__(self) -> int:
        return len(self.table)

    @property
    def number(self) -> int:
        """The number of the stream in its recording."""
        return int(self.table["stream"][-1])

    @property
    def first(self) -> int:
        """Ordinal of the oldest round known."""
        return int(self.table["ordinal"][0])

    @property
    def last(self) -> int:
        """Ordinal of the newest round entered."""
        return int(self.ends[-1])

    @property
    def newest(self) -> Run:
        """The run of the newest round."""
        return self.run(len(self.table) - 1)

    @property
    def runs(self) -> list[Run]:
        """All runs, oldest first; made anew at every call, so not for looking at one of them."""
        return [self.run(index) for index in range(len(self.table))]

    def run(self, index: int) -> Run:
        """Return a run by its row. Raises IndexError."""
        (
            _, _, queue, group, flags, repeat, t_enter, t_done, n, n_after, ordinal, visit, t_first, list_hash, after_hash,
            start, count, crc, _, _,
        ) = self.table[index].item()  # fmt: skip
        return Run(
            QUEUES[queue], group, Phase(flags & 15), bool((flags >> 4) & f.FLAG_FULL), n, n_after, ordinal, repeat, visit,
            t_first, t_enter, t_done, list_hash, after_hash, start, count, crc,
        )  # fmt: skip

    def index(self, ordinal: int) -> int:
        """Return the row of the run with round ``ordinal``, -1 where it is not (or no longer) in the file."""
        row = int(np.searchsorted(self.ends, ordinal))
        return row if row < len(self.table) and int(self.table["ordinal"][row]) <= ordinal else -1

    def at(self, ordinal: int) -> Run | None:
        """Return the run with round ``ordinal``, None where it is not (or no longer) in the file."""
        row = self.index(ordinal)
        return None if row < 0 else self.run(row)

    def items(self, run: Run) -> list[Item] | None:
        """Return the requests of a run in queue order, None where they can't be rebuilt."""
        rows = self.rows(self.index(run.ordinal))
        if rows is None:
            return None
        return [_item(record, run) for record in rows.tolist()]

    def sightings(self, rooms: Collection[int]) -> list[tuple[int, Item]]:
        """Return (row, item) for each item about one of ``rooms``, oldest first.

        Between two items of a room nothing changed for it, unless its action is not KEPT or rounds between are lost.
        This is one search of the items, without rebuilding the list of every run. So it is cheap for few rooms.
        """
        rows, items = self._sighted(rooms)
        return [(row, _item(record, self.run(row))) for row, record in zip(rows.tolist(), items.tolist(), strict=True)]

    def sighted(self, rooms: Collection[int]) -> NDArray[np.int64]:
        """Return the rows of the runs with an item about one of ``rooms``, each once, oldest first."""
        return distinct(self._sighted(rooms)[0])

    def _sighted(self, rooms: Collection[int]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the items about ``rooms``, and the row of each."""
        span = ItemSpan.read(self._source, self._items_offset, self._items_capacity, self.table)
        seen_at = np.flatnonzero(among(span.table["room"], rooms))
        if not len(seen_at):
            return np.zeros(0, np.int64), np.zeros(0, ITEM)
        numbers = span.numbers(seen_at)
        starts, counts = self.table["items_start"].astype(np.int64), self.table["items_count"].astype(np.int64)
        order = np.flatnonzero(counts > 0)
        order = order[np.argsort(starts[order], kind="stable")]
        at = np.searchsorted(starts[order], numbers, "right") - 1
        rows = order[at[at >= 0]]
        named = distinct(rows[numbers[at >= 0] < starts[rows] + counts[rows]])
        runs = self.table[named]
        items, row = span.of(runs, span.sound(runs))
        mine = among(items["room"], rooms)
        return named[row[mine]], items[mine]

    def changes(self, least: int | None = None) -> Changes:
        """Return the changes of the newest ``least`` runs (default: all), and of the earlier runs that they build on.

        The first run has its whole list, and so has the first run after an unreadable one. Each other run has the requests
        that differ from the run before. Every action other than KEPT is included, in its own run.
        """
        first = 0 if least is None else max(0, len(self.table) - least)
        full = (self.table["flags"] >> 4 & f.FLAG_FULL) > 0
        follows = np.zeros(len(full), np.bool_)
        follows[1:] = self.table["ordinal"][1:].astype(np.int64) == self.ends[:-1] + 1
        first = int(np.flatnonzero((full | ~follows)[: first + 1])[-1])
        table, full, follows = self.table[first:], full[first:], follows[first:]
        span = ItemSpan.read(self._source, self._items_offset, self._items_capacity, table)
        sound = span.sound(table)
        items, row = span.of(table, sound)
        known = _rebuilt(table, full, follows, sound, items, row)
        hide(items, table, row)
        kept = known[row]
        return Changes(first, items if kept.all() else select_records(items, kept), row[kept] + first, known)

    def rows(self, index: int) -> NDArray[Any] | None:
        """Return the requests of the run in row ``index`` as format.ITEM_DTYPE, None where they can't be rebuilt.

        Fields the run's phase has not reached yet are not meaningful in it; :meth:`items` hides them.
        """
        start, work = index, 0
        while start > 0 and start not in self._cache and not self._full(start) and self._follows(start):
            work += int(self.table["n"][start])
            if work > MAX_REBUILT:
                return None
            start -= 1
        for row in range(start, index + 1):
            if row not in self._cache:
                self._keep(row, self._step(row))
        return self._cache[index]

    def _keep(self, row: int, items: NDArray[Any] | None) -> None:
        self._kept += 0 if items is None else len(items)
        while self._kept > MAX_KEPT and self._cache:
            gone = self._cache.pop(next(iter(self._cache)))
            self._kept -= 0 if gone is None else len(gone)
        self._cache[row] = items

    def _full(self, index: int) -> bool:
        return bool(self.table["flags"][index] >> 4 & f.FLAG_FULL)

    def _follows(self, index: int) -> bool:
        return int(self.table["ordinal"][index]) == int(self.ends[index - 1]) + 1

    def _batch(self, index: int) -> NDArray[Any] | None:
        row = self.table[index]
        start, count = int(row["items_start"]), int(row["items_count"])
        if count > self._items_capacity:
            return None
        if not count:
            return np.zeros(0, ITEM) if int(row["items_crc"]) == 0 else None
        at = start % self._items_capacity
        head = min(count, self._items_capacity - at)
        if count > _LARGE and self._written(at, head) + self._written(0, count - head) != count * f.ITEM_SIZE:
            return None
        data = self._source.read(self._items_offset + at * f.ITEM_SIZE, head * f.ITEM_SIZE)
        if head < count:
            data += self._source.read(self._items_offset, (count - head) * f.ITEM_SIZE)
        if len(data) != count * f.ITEM_SIZE or crc32(data) != int(row["items_crc"]):
            return None
        return np.frombuffer(data, ITEM)

    def _written(self, at: int, count: int) -> int:
        """Return the bytes of ``count`` items from place ``at`` on that are no holes."""
        pieces = self._source.pieces(self._items_offset + at * f.ITEM_SIZE, count * f.ITEM_SIZE)
        return sum(length for _, length in pieces)

    def _step(self, index: int) -> NDArray[Any] | None:
        batch = self._batch(index)
        n = int(self.table["n"][index])
        if batch is None:
            return None
        if self._full(index):
            return batch if len(batch) == n else None
        before = self._cache.get(index - 1)
        if before is None or not self._follows(index):
            return None
        kept = before[before["action"] == 0]
        if len(kept) > n or (len(batch) and int(batch["index"].max()) >= n):
            return None
        if np.count_nonzero(batch["index"] >= len(kept)) != n - len(kept):
            return None  # nothing says what is at a new place
        rows = np.zeros(n, ITEM)
        rows[: len(kept)] = kept
        rows["index"] = np.arange(n, dtype=np.uint32)
        rows[batch["index"]] = batch
        return rows


def foreign(items: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which items are of a request that was decided on while its slot held the room of another one."""
    found: NDArray[np.bool_] = (items["flags"] & f.ITEM_FOUND_KNOWN != 0) & (items["found"] != 0)
    found &= (items["found"] != items["room"]) & np.isin(items["action"], (int(Action.COMMITTED), int(Action.ABORTED)))
    return found


def gated(items: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which items are of a request that the gate held: its own poll said Success, and it was sent in otherwise."""
    found: NDArray[np.bool_] = (items["local"] == int(KVPoll.SUCCESS)) & (items["gated"] == int(KVPoll.TRANSFERRING))
    return found


def _rebuilt(
    table: NDArray[Any],
    full: NDArray[np.bool_],
    follows: NDArray[np.bool_],
    sound: NDArray[np.bool_],
    items: NDArray[Any],
    row: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return for each run in ``table`` whether :meth:`Stream.rows` can rebuild its list.

    full: it has its list itself; follows: no round between it and the run before is lost; sound: its items, those of
    ``items`` with its ``row``, are in the file.
    """
    n, count = table["n"].astype(np.int64), table["items_count"].astype(np.int64)
    left = n - np.bincount(row[items["action"] != 0], minlength=len(table))
    fits = np.ones(len(table), np.bool_)
    fits[1:] = left[:-1] <= n[1:]
    before = np.r_[0, left[:-1]]
    fits &= np.bincount(row[items["index"] >= before[row]], minlength=len(table)) == n - before
    fits[row[items["index"] >= n[row]]] = False
    begins = sound & full & (count == n)
    builds = sound & ~full & follows & fits
    last = np.maximum.accumulate(np.where(begins | ~builds, np.arange(len(table)), 0))
    known: NDArray[np.bool_] = begins[last]
    return known


def _item(record: tuple[Any, ...], run: Run) -> Item:
    """Return an item of ``run`` without the fields that the run's phase has not reached yet."""
    room, found, slot, _, local, gated, reduced, action, flags, _ = record
    reduced_known = run.phase > Phase.ENTERED or run.repeat > 1
    applied = run.phase is Phase.APPLIED or run.repeat > 1
    return Item(
        room,
        slot,
        local,
        gated,
        reduced if reduced_known else UNKNOWN,
        action if applied else UNKNOWN,
        found if flags & f.ITEM_FOUND_KNOWN and reduced_known else None,
    )
