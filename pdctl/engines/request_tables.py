"""Read a rank's data about its rooms, in engines with SGLang's structure: clocks, KV held, tables keyed by room.

It runs on the agent's thread beside a working scheduler. Lists and tables are copied first, and nothing is polled. The engine's
adapter gives the locations (:class:`Places`). A missing location gives "unknown", never a guess.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pdctl.engines import peers
from pdctl.engines.shared import table_of
from pdctl.engines.sites import transfer_of
from pdctl.protocol.model import UNKNOWN, KVPoll, QueueEntry
from pdctl.protocol.requests import (
    MAX_REASON,
    MAX_TABLE,
    NO_LIMIT,
    NOT_KNOWN,
    PREFILL_FACTS,
    Cover,
    Deferred,
    RoomEntry,
    Rooms,
    RoomTable,
    Space,
)

T = TypeVar("T")

TABLES = (
    "request_status",
    "transfer_statuses",  # NIXL, decode, up to 0.5.22
    "exceptions",  # NIXL, prefill, up to 0.5.22
    "transfer_infos",
    "req_to_decode_prefix_len",
    "required_prefill_response_num_table",
    "prefill_response_tracker",
)
"""Tables of a KV manager whose keys are rooms."""
_TRACKER = "addr_to_rooms_tracker"
"""A table whose values are sets of rooms."""
_BEAT_S = 5.0
_HEARTBEATS = 3
"""The heartbeat of a decode rank takes rooms out of the tracker (``heartbeat_checker``, up to 0.5.22); one may be late."""
_AT_A_STRETCH = 100
_PAUSE_S = 2e-5

BOOTSTRAP_TIMEOUT = "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"
WAITING_TIMEOUT = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"


@dataclass(frozen=True)
class Ends:
    """Which of the engine's time-outs end a request: prefill's for a handshake, decode's for what it told prefill."""

    bootstrap: bool
    waiting: bool


@dataclass(frozen=True)
class Places:
    """Locations in an engine. queues: name → the engine's list. manager: the KV manager. running: requests being computed.

    ends: the time-outs that this transfer backend's polls look at, None unknown. prealloc: a decode rank's queue that asks
    bootstrap servers, None on prefill. client: whether somebody waits for a request's answer, as
    ``RoomEntry.client`` has it. deferred: failed requests whose memory is kept.
    """

    role: str
    manager: Any
    queues: Mapping[str, Callable[[], list[Any]]]
    space: Callable[[], Space]
    ends: Ends | None
    running: Callable[[], list[Any]]
    client: Callable[[Any], int]
    prealloc: Any = None
    deferred: Callable[[], tuple[Deferred, ...]] = tuple


def read(places: Places, queues: dict[str, list[QueueEntry]], missing: dict[str, str], ticks: int) -> Rooms:
    """Return what the rank knows of its rooms; ``queues`` are the same queues as the queue reader gives them."""
    known = {(name, entry.rid, entry.room): entry for name, entries in queues.items() for entry in entries}
    now = time.time()
    rooms: list[RoomEntry] = []
    receivers: list[tuple[int, Any]] = []
    for name, get in places.queues.items():
        try:
            entries = list(get())
        except (AttributeError, KeyError, TypeError):
            continue  # said in ``missing`` by the queue reader
        for start in range(0, len(entries), _AT_A_STRETCH):
            if start:
                time.sleep(_PAUSE_S)
            stretch = entries[start : start + _AT_A_STRETCH]
            rooms += [_entry(places, name, entry, known, now) for entry in stretch]
            receivers += [(_room(entry), entry.kv_receiver) for entry in stretch if hasattr(entry, "kv_receiver")]
    for name in queues.keys() - places.queues.keys():  # running: what is computed is in no queue
        clients: dict[str, int] = _guarded(lambda: {req.rid: places.client(req) for req in places.running()}, {})
        rooms += [
            RoomEntry(name, e.room, e.rid, e.slot, e.state, e.age, client=clients.get(e.rid, -1)) for e in queues[name]
        ]
    manager = places.manager
    return Rooms(
        mono_ns=time.monotonic_ns(),
        ticks=ticks,
        rooms=RoomTable.of(rooms, between=lambda: time.sleep(_PAUSE_S)),
        covers=covers(places),
        space=places.space(),
        tables=_tables(manager),
        failures={
            room: str(reason)[:MAX_REASON]
            for room, reason in list(dict(getattr(manager, "failure_records", None) or {}).items())[:1000]
        },
        missing=missing,
        prefills=_prefills(manager),
        lingers={_TRACKER: _HEARTBEATS * _beat(manager)} if hasattr(manager, _TRACKER) else {},
        peers=_guarded(lambda: peers.peers(manager, receivers), None),
        lookups=_guarded(lambda: peers.lookups(manager, places.prealloc), {}),
        deferred=_guarded(places.deferred, ()),
    )


def _guarded(read: Callable[[], T], otherwise: T) -> T:
    """Return what is read of tables that the engine's threads change meanwhile, ``otherwise`` where that goes wrong."""
    try:
        return read()
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        return otherwise


def _beat(manager: Any) -> float:
    interval = getattr(manager, "heartbeat_interval", None)
    return float(interval) if isinstance(interval, int | float) else _BEAT_S


def _room(entry: Any) -> int:
    return getattr(entry, "req", entry).bootstrap_room or 0


def _entry(
    places: Places, queue: str, entry: Any, known: Mapping[tuple[str, str, int], QueueEntry], now: float
) -> RoomEntry:
    req = getattr(entry, "req", entry)
    room = _room(entry)
    seen = known.get((queue, req.rid, room)) or QueueEntry(room, req.rid)
    transfer = transfer_of(entry)
    clock = _clock(places.role, seen.state, transfer)
    return RoomEntry(
        queue=queue,
        room=seen.room,
        rid=seen.rid,
        slot=seen.slot,
        state=seen.state,
        age_s=seen.age,
        clock_s=-1.0 if clock is None else max(0.0, now - clock),
        tokens=len(req.origin_input_ids),
        kv=kv_of(req),
        dp=_dp(places, transfer),
        bootstrap=_bootstrap(places, transfer),
        pinned=_pinned(req),
        locked=_locked(places.role, queue, req),
        client=_guarded(lambda: places.client(req), -1),
    )


def _pinned(req: Any) -> int:
    dp = getattr(req, "disagg_prefill_dp_rank", None)
    return dp if isinstance(dp, int) else -1


def _prefills(manager: Any) -> dict[str, dict[str, str]]:
    """Return the facts that a decode rank got from each prefill server; {} on prefill."""
    table = getattr(manager, "prefill_info_table", None)
    if not isinstance(table, dict):
        return {}
    return {str(address): prefill_facts(info) for address, info in list(table.items())}


def prefill_facts(info: Any) -> dict[str, str]:
    """Return the facts of a ``PrefillServerInfo`` that it has, as text."""
    found = {name: getattr(info, name, None) for name in PREFILL_FACTS}
    return {name: str(value)[:200] for name, value in found.items() if value is not None}


def _bootstrap(places: Places, transfer: Any) -> str:
    for owner, name in (
        (transfer, "bootstrap_addr"),
        (transfer, "bootstrap_server_url"),
        (places.manager, "bootstrap_addr"),
    ):
        found = getattr(owner, name, None)
        if found:
            return str(found)
    return ""


def _clock(role: str, state: int, transfer: Any) -> float | None:
    """Return when the clock of the time-out for this state was started (``time.time()``), None where none runs."""
    if role == "prefill":
        if state != KVPoll.BOOTSTRAPPING:
            return None
        if getattr(getattr(transfer, "kv_mgr", None), "defer_decode_allocation", False):  # an option of 0.5.23
            return getattr(transfer, "_prefill_complete_time", None)
        return getattr(transfer, "init_time", None)
    if state == KVPoll.BOOTSTRAPPING:
        return getattr(transfer, "_prefill_wait_start", None)  # an option of 0.5.23
    return getattr(transfer, "init_time", None) if state == KVPoll.WAITING_FOR_INPUT else None


def kv_of(req: Any) -> int:
    """Return the tokens of KV space that a request holds, -1 unknown."""
    held = getattr(req, "kv", None)
    return len(held) if isinstance(held, list) else _length(req, "kv_allocated_len")


def _length(req: Any, name: str) -> int:
    """Return a length that a request keeps, -1 without it; newer engines (0.5.23) keep them in its ``kv``."""
    owner = req if hasattr(req, name) else getattr(req, "kv", None)
    length = getattr(owner, name, None)
    return length if isinstance(length, int) else -1


_LOCKS = {"prefill": ("prefill.inflight",), "decode": ("decode.transfer", "waiting")}
"""Queues in which a request has locked its prefix: before them it has only matched it, and the node's lock is another's."""


def _locked(role: str, queue: str, req: Any) -> int:
    """Return how many tokens of the prefix cache ``req`` keeps from eviction by its lock on a tree node."""
    if hasattr(req, "lock"):  # 0.5.23: what it got for the lock
        return _length(req, "cache_protected_len") if req.lock is not None else 0
    if not hasattr(req, "last_node"):
        return -1
    node = req.last_node
    if node is None or queue not in _LOCKS.get(role, ()):
        return 0
    if not hasattr(node, "lock_ref"):  # no tree of Python's
        return -1
    if node.parent is None or node.lock_ref <= 0:  # the root is locked for ever, and holds nothing
        return 0
    return _length(req, "cache_protected_len")


def _dp(places: Places, transfer: Any) -> int:
    if places.role == "prefill":
        own = getattr(places.manager, "attn_dp_rank", None)
        if own is None:
            own = getattr(getattr(places.manager, "kv_args", None), "dp_rank", None)
        return own if isinstance(own, int) else -1
    dp = getattr(transfer, "prefill_dp_rank", None)
    return dp if isinstance(dp, int) else -1


def _tables(manager: Any) -> dict[str, list[int]]:
    found = {}
    for name in TABLES:
        table = getattr(manager, name, None)
        if table is not None:
            found[name] = _rooms_of(table_of(table))
    tracker = getattr(manager, _TRACKER, None)
    if tracker is not None:
        found[_TRACKER] = sorted({room for rooms in list(tracker.values()) for room in list(rooms)})[:MAX_TABLE]
    return found


def _rooms_of(table: Iterable[Any]) -> list[int]:
    return [key for key in list(table)[:MAX_TABLE] if isinstance(key, int)]


def covers(places: Places) -> tuple[Cover, ...]:
    """Return the time-out for each queue and state, from the attributes of this rank's manager."""
    manager = places.manager
    if places.ends is None:
        return tuple(Cover(queue, UNKNOWN, NOT_KNOWN) for queue in places.queues)
    if places.role == "prefill":
        limit = _limit(manager, "bootstrap_timeout")
        handshake = Cover("prefill.bootstrap", KVPoll.BOOTSTRAPPING, limit, BOOTSTRAP_TIMEOUT, "when it arrived")
        return (
            *([handshake] if places.ends.bootstrap else ()),
            Cover("prefill.bootstrap", UNKNOWN, NO_LIMIT),
            Cover("waiting", UNKNOWN, NO_LIMIT),
            Cover("prefill.inflight", UNKNOWN, NO_LIMIT),
        )
    limit = _limit(manager, "waiting_timeout")
    started = "when its KV space was told to prefill"
    waits = (
        Cover("decode.prealloc", KVPoll.WAITING_FOR_INPUT, limit, WAITING_TIMEOUT, started),
        Cover("decode.prealloc", KVPoll.BOOTSTRAPPING, limit, WAITING_TIMEOUT, "when prefill was asked"),
        Cover("decode.transfer", KVPoll.WAITING_FOR_INPUT, limit, WAITING_TIMEOUT, started),
    )
    return (
        Cover("decode.pending", UNKNOWN, NO_LIMIT),
        *(waits if places.ends.waiting else ()),
        Cover("decode.transfer", UNKNOWN, NO_LIMIT),
        Cover("decode.retracted", UNKNOWN, NO_LIMIT),
    )


def _limit(manager: Any, name: str) -> float:
    limit = getattr(manager, name, None)
    return float(limit) if isinstance(limit, int | float) else NOT_KNOWN
