"""The rounds of one queue over one group, as a recording holds them: a table of runs, and the requests of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pdctl.model import QUEUES, UNKNOWN, GroupInfo, Phase
from pdctl.recording import format as f
from pdctl.recording.source import Source

ITEM = np.dtype(f.ITEM_DTYPE)
ROUND = np.dtype(f.ROUND_DTYPE)


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


class Stream:
    """All rounds of one queue over one group that the file still holds, oldest first.

    table: one row a run (:data:`pdctl.recording.format.ROUND_DTYPE`), sorted by ordinal. Runs are numbered by their row.
    """

    def __init__(self, group: GroupInfo, table: NDArray[Any], source: Source, items: tuple[int, int]) -> None:
        self.queue = QUEUES[int(table["queue"][-1])]
        self.group = group
        self.table = table
        self.ends: NDArray[np.int64] = (table["ordinal"] + table["repeat"] - 1).astype(np.int64)
        self._source = source
        self._items_offset, self._items_capacity = items
        self._cache: dict[int, NDArray[Any] | None] = {}

    def __len__(self) -> int:
        return len(self.table)

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

    def sightings(self, room: int) -> list[tuple[int, Item]]:
        """Return (row, item) for each run that says something of ``room`` itself, oldest first.

        From one to the next nothing changed for the room, unless its action is not KEPT or rounds between are lost. One
        search of the items instead of a rebuilt list for every run: what a recording says of one room costs little.
        """
        data = self._source.read(self._items_offset, self._items_capacity * f.ITEM_SIZE)
        rooms = np.frombuffer(data, ITEM, len(data) // f.ITEM_SIZE)["room"]
        places = np.flatnonzero(rooms == np.uint64(room)).astype(np.int64)
        starts, counts = self.table["items_start"].astype(np.int64), self.table["items_count"].astype(np.int64)
        if not len(places) or not counts.any():
            return []
        end = int((starts + counts).max())  # a place of the ring stands for the last item number before this
        numbers = places + self._items_capacity * ((end - 1 - places) // self._items_capacity)
        order = np.flatnonzero(counts > 0)
        order = order[np.argsort(starts[order], kind="stable")]
        at = np.searchsorted(starts[order], numbers, "right") - 1
        rows = order[at[at >= 0]]
        named = np.unique(rows[numbers[at >= 0] < starts[rows] + counts[rows]])
        found = []
        for row in named.tolist():
            batch = self._batch(row)
            if batch is not None:
                run = self.run(row)
                found += [(row, _item(record, run)) for record in batch[batch["room"] == np.uint64(room)].tolist()]
        return found

    def rows(self, index: int) -> NDArray[Any] | None:
        """Return the requests of the run in row ``index`` as format.ITEM_DTYPE, None where they can't be rebuilt.

        Fields the run's phase has not reached yet are not meaningful in it; :meth:`items` hides them.
        """
        start = index
        while start > 0 and start not in self._cache and not self._full(start) and self._follows(start):
            start -= 1
        for row in range(start, index + 1):
            if row not in self._cache:
                self._cache[row] = self._step(row)
        return self._cache[index]

    def _full(self, index: int) -> bool:
        return bool(self.table["flags"][index] >> 4 & f.FLAG_FULL)

    def _follows(self, index: int) -> bool:
        return int(self.table["ordinal"][index]) == int(self.ends[index - 1]) + 1

    def _batch(self, index: int) -> NDArray[Any] | None:
        row = self.table[index]
        start, count = int(row["items_start"]), int(row["items_count"])
        if count > self._items_capacity:
            return None
        at = start % self._items_capacity
        head = min(count, self._items_capacity - at)
        data = self._source.read(self._items_offset + at * f.ITEM_SIZE, head * f.ITEM_SIZE)
        if head < count:
            data += self._source.read(self._items_offset, (count - head) * f.ITEM_SIZE)
        if len(data) != count * f.ITEM_SIZE or crc32(data) != int(row["items_crc"]):
            return None
        return np.frombuffer(data, ITEM)

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
        rows = np.zeros(n, ITEM)
        rows[: len(kept)] = kept
        rows["index"] = np.arange(n, dtype=np.uint32)
        rows[batch["index"]] = batch
        return rows


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
