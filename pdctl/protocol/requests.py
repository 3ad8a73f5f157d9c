"""What a rank says of its rooms beyond its queues: clocks, what is held, who else knows of them; and its settings.

Data only, as :mod:`pdctl.protocol.model`: used inside the rank, on the wire and by the judges.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from pdctl.protocol import structs
from pdctl.protocol.model import UNKNOWN

NO_LIMIT = 0.0
NOT_KNOWN = -1.0


class RoomEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One request in a queue of a rank. Ages and clocks in seconds.

    slot: metadata slot, -1 without one. state: KVPoll or UNKNOWN. age_s: since the request entered the queue, -1.0 unknown.
    clock_s: how long the time-out that may end it has been running, -1.0 where none runs. tokens: length of the prompt.
    kv: tokens of KV space held, -1 unknown. dp: prefill dp rank that this rank takes it to be on (a prefill rank: its
    own), -1 not known yet. bootstrap: ``host:port`` of the bootstrap server it is asked from, "" unknown. pinned: prefill
    dp rank that came with the request, which no formula and no query overrules, -1 without one. locked: tokens of its prompt
    that it keeps in the prefix cache (a lock on their tree node), 0 without one, -1 unknown.
    """

    queue: str
    room: int
    rid: str
    slot: int = -1
    state: int = UNKNOWN
    age_s: float = -1.0
    clock_s: float = -1.0
    tokens: int = -1
    kv: int = -1
    dp: int = -1
    bootstrap: str = ""
    pinned: int = -1
    locked: int = -1


_TYPES = {
    "queue": "H", "room": "Q", "slot": "i", "state": "B", "age_s": "d", "clock_s": "d", "tokens": "q", "kv": "q", "dp": "h",
    "bootstrap": "H", "pinned": "h", "locked": "q",
}  # fmt: skip
_NAMED = ("queue", "bootstrap")
_rids = structs.msgpack_decoder(list[str])


class RoomTable(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Requests in queues, a column each: many thousands cost little to send, and nothing to compare as a whole.

    Iterating gives :class:`RoomEntry`. Columns are the entries' fields as packed little-endian numbers (``array`` types in
    _TYPES), but for rids: a list of strings in msgpack. queue and bootstrap are places in names, which has them in the
    order in which they first occur: equal entries have equal columns.
    """

    names: tuple[str, ...] = ()
    rid: bytes = b"\x90"
    queue: bytes = b""
    room: bytes = b""
    slot: bytes = b""
    state: bytes = b""
    age_s: bytes = b""
    clock_s: bytes = b""
    tokens: bytes = b""
    kv: bytes = b""
    dp: bytes = b""
    bootstrap: bytes = b""
    pinned: bytes = b""
    locked: bytes = b""

    def __post_init__(self) -> None:
        """Raises ValueError for columns of different length."""
        for field, kind in _TYPES.items():
            if len(getattr(self, field)) != len(self.state) * array(kind).itemsize:
                raise ValueError(f"column {field} is of another length than the others")

    @classmethod
    def of(cls, entries: Iterable[RoomEntry], between: Callable[[], None] | None = None) -> RoomTable:
        """Return the table of these entries, in their order. Raises OverflowError for a number that has no place in it.

        between: called after each column, so that a thread next to a working engine can make way.
        """
        rows = list(entries)
        names: dict[str, int] = {}
        columns: dict[str, bytes] = {}
        for field, kind in _TYPES.items():
            values = [getattr(row, field) for row in rows]
            if field in _NAMED:
                values = [names.setdefault(value, len(names)) for value in values]
            columns[field] = array(kind, values).tobytes()
            if between is not None:
                between()
        return cls(names=tuple(names), rid=msgspec.msgpack.encode([row.rid for row in rows]), **columns)

    def __len__(self) -> int:
        return len(self.state)

    def __iter__(self) -> Iterator[RoomEntry]:
        return map(RoomEntry, *map(self.column, RoomEntry.__struct_fields__))

    def column(self, field: str) -> list[Any]:
        """Return one field of all entries."""
        if field == "rid":
            return _rids.decode(self.rid)
        values = self._numbers(field).tolist()
        return list(map(self.names.__getitem__, values)) if field in _NAMED else values

    def distinct(self, field: str) -> list[Any]:
        """Return the values that a field has, each once, in order of their first entry."""
        if field not in _NAMED:
            return list(dict.fromkeys(self.column(field)))
        return [self.names[place] for place in dict.fromkeys(self._numbers(field))]

    def _numbers(self, field: str) -> array[Any]:
        numbers: array[Any] = array(_TYPES[field])
        numbers.frombytes(getattr(self, field))
        return numbers

    def rows(self, *fields: str) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over these fields of every entry."""
        return zip(*map(self.column, fields), strict=True)

    def key(self, *fields: str) -> tuple[object, ...]:
        """Return something that is equal for two tables where these fields of all entries are."""
        return (self.names if any(field in _NAMED for field in fields) else (), *(getattr(self, f) for f in fields))


class Cover(msgspec.Struct, frozen=True):
    """Which time-out ends a request in a queue and state, by this rank's own code.

    state: KVPoll, UNKNOWN for every one. limit_s: seconds, NO_LIMIT: nothing ends it, NOT_KNOWN: this backend's code is not
    known. name: the environment variable that sets it, "" without one. clock: what starts its clock, in words; where
    that has not happened the request is not covered.
    """

    queue: str
    state: int
    limit_s: float
    name: str = ""
    clock: str = ""


class Space(msgspec.Struct, frozen=True):
    """Memory of a rank. Counts; -1 where unknown.

    slots: metadata slots. kv: token places in the KV pool. evictable: of those not free, kept only for reuse. reserved:
    free places kept back for the requests that are ahead. requests: rows for running requests. head: room first in line
    for space, 0 for none; needs: KV tokens it waits for. protected: places that the prefix cache keeps from eviction.
    countable: what is not free, evictable or protected belongs to requests; where False the pool has parts that these
    numbers do not tell of.
    """

    slots: int = -1
    slots_free: int = -1
    kv: int = -1
    kv_free: int = -1
    evictable: int = 0
    reserved: int = 0
    requests: int = -1
    requests_free: int = -1
    head: int = 0
    needs: int = -1
    page_size: int = 1
    protected: int = 0
    countable: bool = False


class Rooms(msgspec.Struct, frozen=True):
    """A live rank's answer to ``rooms``.

    tables: the engine's own tables that know rooms, each with the rooms in it (a prefix of MAX_TABLE).
    failures: reasons the engine keeps for failed rooms. missing: what could not be read, with the reason.
    prefills: on decode, what the rank was told of each prefill server when it first asked: address of its bootstrap
    server → sizes and the like, by the engine's names (PREFILL_FACTS), as text.
    lingers: table → seconds for which the engine keeps a room in it after its request, by its own code; 0 unnamed.
    """

    mono_ns: int
    ticks: int
    rooms: RoomTable
    covers: tuple[Cover, ...]
    space: Space
    tables: dict[str, list[int]]
    failures: dict[int, str]
    missing: dict[str, str]
    prefills: dict[str, dict[str, str]] = {}
    lingers: dict[str, float] = {}


class Settings(msgspec.Struct, frozen=True):
    """A live rank's answer to ``settings``: what both sides must agree on, and what routing follows.

    values: by the engine's own names; "" where this rank has no such setting. env: environment variables of the engine
    that are set, by name.
    """

    values: dict[str, str]
    env: dict[str, str]


PREFILL_FACTS = (
    "attn_tp_size", "attn_cp_size", "dp_size", "pp_size", "page_size", "kv_cache_dtype", "follow_bootstrap_room",
)  # fmt: skip
"""What a bootstrap server tells of its prefill server, by the names of SGLang's ``PrefillServerInfo``."""

FORCE_QUERY = "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK"
ENTRY_CLEANUP = "SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL"

NOTES_CONFLICTS = "registration.conflicts"
REGISTERS_EVERY_ROOM = "registration.every-room"
QUERY_FORCED = "query.forced"
"""Seams of routing: a prefill rank notices a room that was routed against ``room % dp_size`` (it registers or fails it);
with FORCE_QUERY it registers every room, not only those; a decode rank heeds FORCE_QUERY. Not among a rank's seams where
its code could not be made out."""

MAX_TABLE = 20_000
MAX_REASON = 200
