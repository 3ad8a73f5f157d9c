"""A rank's rooms beyond its queues: time-out clocks, memory held, tables that know the room. And the rank's settings.

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
    clock_s: how long its time-out has been running, -1.0 if none runs. tokens: length of the prompt. kv: tokens of KV space
    held, -1 unknown. dp: prefill dp rank of the request as this rank sees it (on prefill: its own), -1 not known yet.
    bootstrap: ``host:port`` of its bootstrap server, "" unknown. pinned: prefill dp rank given with the request, which no
    formula and no query overrules, -1 without one. locked: tokens of its prompt that it locks in the prefix cache (a lock on
    their tree node), 0 for none, -1 unknown. client: 1 where somebody waits for its answer, 0 where nobody does (it is aborted,
    or its client is gone), -1 where the engine does not tell.
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
    client: int = -1


_TYPES = {
    "queue": "H", "room": "Q", "slot": "i", "state": "B", "age_s": "d", "clock_s": "d", "tokens": "q", "kv": "q", "dp": "h",
    "bootstrap": "H", "pinned": "h", "locked": "q", "client": "b",
}  # fmt: skip
_NAMED = ("queue", "bootstrap")
_LATER = {"client": -1}
"""Columns that older agents do not send, and what they stand for then."""
_rids = structs.msgpack_decoder(list[str])


class RoomTable(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Requests in queues, one column a field. Many thousands are cheap to send, and two tables are cheap to compare.

    Iterating gives :class:`RoomEntry`. Columns are the entries' fields as packed little-endian numbers (``array`` types in
    _TYPES). Only rids differ: a list of strings in msgpack. queue and bootstrap are indices into names. names are in order of
    first occurrence, so equal entries have equal columns.
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
    client: bytes = b""

    def __post_init__(self) -> None:
        """Raises ValueError for columns of different length."""
        for field, kind in _TYPES.items():
            if field in _LATER and not getattr(self, field):
                continue
            if len(getattr(self, field)) != len(self.state) * array(kind).itemsize:
                raise ValueError(f"column {field} is of another length than the others")

    @classmethod
    def of(cls, entries: Iterable[RoomEntry], between: Callable[[], None] | None = None) -> RoomTable:
        """Return the table of these entries, in their order. Raises OverflowError for a number too large for its column.

        between: called after each column, so that the agent's thread can give way to the engine.
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
        if field in _LATER and not getattr(self, field):
            return array(_TYPES[field], [_LATER[field]]) * len(self)
        numbers: array[Any] = array(_TYPES[field])
        numbers.frombytes(getattr(self, field))
        return numbers

    def rows(self, *fields: str) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over these fields of every entry."""
        return zip(*map(self.column, fields), strict=True)

    def key(self, *fields: str) -> tuple[object, ...]:
        """Return something that is equal for two tables where these fields of all entries are."""
        return (self.names if any(field in _NAMED for field in fields) else (), *(getattr(self, f) for f in fields))


class Deferred(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Memory of a request that has failed on decode, kept while prefill may still write there. It waits for prefill's words.

    slot: -1 without one. kv: tokens of KV space, -1 unknown. held_s: seconds since it failed. left_s: until the memory is given
    back without all of prefill's words, -1.0 for never. acks: prefill ranks that have said that they write no more; needed: how
    many have to, 0 where this rank waits for its group alone, -1 unknown.
    """

    room: int
    rid: str
    slot: int = -1
    kv: int = -1
    held_s: float = -1.0
    left_s: float = -1.0
    acks: int = -1
    needed: int = -1


class Cover(msgspec.Struct, frozen=True):
    """Which time-out ends a request in a queue and state, by this rank's own code.

    state: KVPoll; UNKNOWN means every state. limit_s: seconds; NO_LIMIT: no time-out ends it; NOT_KNOWN: pdctl does not know
    this backend's code. name: the environment variable that sets the limit, "" without one. clock: the event that starts the
    clock, in words. Before that event no time-out covers the request.
    """

    queue: str
    state: int
    limit_s: float
    name: str = ""
    clock: str = ""


class Space(msgspec.Struct, frozen=True):
    """Memory of a rank. Counts; -1 where unknown.

    slots: metadata slots. kv: token places in the KV pool. evictable: places kept only for reuse. reserved: free places kept
    back for earlier requests. requests: rows for running requests. batch: requests that decode runs at a time. head: room of
    the first request that waits for space, 0 for none. needs: KV tokens it waits for. protected: places that the prefix cache
    keeps from eviction. countable: every place that is not free, evictable or protected belongs to a request; if False the
    pool has parts outside these numbers.
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
    batch: int = -1


class Peer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One rank of the other side, as this rank would reach it. "" and -1: unknown.

    host, port: where it takes messages. session: on prefill, its name as the destination of transfers. bootstrap: on decode,
    the address of the bootstrap server that told of it. dp, cp, tp, pp: its place in its server. rooms: of the requests in
    queues that go by it (the first MAX_PEER_ROOMS). used: how many those are.
    """

    host: str
    port: int
    session: str = ""
    bootstrap: str = ""
    dp: int = -1
    cp: int = -1
    tp: int = -1
    pp: int = -1
    rooms: tuple[int, ...] = ()
    used: int = 0


class Lookup(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How far a decode rank is with asking one bootstrap server for its prefill server. -1: unknown.

    attempts: in a row without an answer, most: with so many it gives up. every_s: seconds between two. last_s: since the last.
    missed: heartbeats in a row without an answer, most_missed: with so many it gives the prefill server up.
    """

    attempts: int = 0
    most: int = -1
    every_s: float = -1.0
    last_s: float = -1.0
    missed: int = 0
    most_missed: int = -1

    @property
    def left_s(self) -> float | None:
        """Seconds until the requests that wait for it are failed, at most; None where it is not asked in vain."""
        if self.attempts <= 0 or self.most <= 0 or self.every_s <= 0:
            return None
        return max(0, self.most - self.attempts) * self.every_s


class Rooms(msgspec.Struct, frozen=True):
    """A live rank's answer to ``rooms``.

    tables: the engine's own tables keyed by room, each with its rooms (the first MAX_TABLE).
    failures: reasons that the engine keeps for failed rooms. missing: parts that could not be read, with the reason.
    prefills: on decode, the answer of each prefill server to the rank's first query: address of its bootstrap server → sizes
    and other facts by the engine's names (PREFILL_FACTS), as text.
    lingers: table → seconds that the engine keeps a room in it after the request has ended; a table not listed: 0.
    peers: the ranks of the other side that this rank sends to (the first MAX_PEERS), None where it does not tell of them.
    lookups: on decode, address of a bootstrap server → how far asking it is, of those that have not answered lately.
    deferred: on decode, failed requests whose memory is kept for prefill (the first MAX_DEFERRED).
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
    peers: tuple[Peer, ...] | None = None
    lookups: dict[str, Lookup] = {}
    deferred: tuple[Deferred, ...] = ()


class Settings(msgspec.Struct, frozen=True):
    """A live rank's answer to ``settings``: the settings that both sides must share, and those that routing uses.

    values: by the engine's own names; "" where this rank has no such setting. env: environment variables of the engine
    that are set, by name.
    """

    values: dict[str, str]
    env: dict[str, str]


PREFILL_FACTS = (
    "attn_tp_size", "attn_cp_size", "dp_size", "pp_size", "page_size", "kv_cache_dtype", "follow_bootstrap_room",
)  # fmt: skip
"""What a bootstrap server tells of its prefill server, by the names of SGLang's ``PrefillServerInfo``."""

DEFERRED = "decode.deferred"
RELEASE_TIMEOUT = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT"

FORCE_QUERY = "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK"
ENTRY_CLEANUP = "SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL"

NOTES_CONFLICTS = "registration.conflicts"
REGISTERS_EVERY_ROOM = "registration.every-room"
QUERY_FORCED = "query.forced"
"""Seams of routing: a prefill rank notices a room that was routed against ``room % dp_size`` (it registers or fails it);
with FORCE_QUERY it registers every room, not only those; a decode rank heeds FORCE_QUERY. Not among a rank's seams where
its code could not be made out."""

MAX_TABLE = 20_000
MAX_PEERS = 512
MAX_PEER_ROOMS = 200
MAX_LOOKUPS = 256
MAX_DEFERRED = 1000
MAX_REASON = 200
