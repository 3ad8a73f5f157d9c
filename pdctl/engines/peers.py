"""Read which ranks of the other side a rank sends to, and how it gets on with bootstrap servers.

For engines with SGLang's structure. Like :mod:`pdctl.engines.request_tables` it runs beside a working scheduler: tables are
copied first, and bounded. What is missing is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pdctl.protocol.requests import MAX_LOOKUPS, MAX_PEER_ROOMS, MAX_PEERS, Lookup, Peer

_MAX_TEXT = 200
_MOST_WAYS = 8192
"""Ways of requests to ranks of the other side that are looked at: this runs beside a scheduler that has work to do."""
Place = tuple[int, int, int, int]
_NO_PLACE: Place = (-1, -1, -1, -1)


class _Peers:
    """Peers, each once, and the rooms that go by them."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[str, int, str, str, Place], list[int]] = {}
        self._used: dict[tuple[str, int, str, str, Place], int] = {}

    def add(
        self, host: Any, port: Any, *, session: str = "", bootstrap: str = "", place: Place = _NO_PLACE, room: int = 0
    ) -> None:
        try:
            number = int(port)
        except (TypeError, ValueError):
            return
        key = (str(host or "")[:_MAX_TEXT], number, session[:_MAX_TEXT], bootstrap[:_MAX_TEXT], place)
        if key not in self._rooms:
            if len(self._rooms) >= MAX_PEERS:
                return
            self._rooms[key] = []
        if room:
            self._used[key] = self._used.get(key, 0) + 1
            if len(self._rooms[key]) < MAX_PEER_ROOMS:
                self._rooms[key].append(room)

    def all(self) -> tuple[Peer, ...]:
        return tuple(
            Peer(host, port, session, bootstrap, *place, tuple(rooms), self._used.get(key, 0))
            for key, rooms in self._rooms.items()
            for host, port, session, bootstrap, place in [key]
        )


def peers(manager: Any, transfers: Iterable[tuple[int, Any]]) -> tuple[Peer, ...] | None:
    """Return the ranks of the other side that this rank sends to, None where the manager keeps no table of them.

    transfers: room and receiver of each request in a decode rank's queues.
    """
    pool = getattr(manager, "connection_pool", None)
    if isinstance(pool, dict):
        return _of_decode(manager, pool, transfers)
    table = getattr(manager, "decode_kv_args_table", None)
    return _of_prefill(manager, table) if isinstance(table, dict) else None


def _of_decode(manager: Any, pool: Mapping[Any, Any], transfers: Iterable[tuple[int, Any]]) -> tuple[Peer, ...]:
    """``connection_pool``: ``{bootstrap address}_{dp}_{cp}_{tp}`` → ``rank_ip`` and ``rank_port`` of each rank behind it."""
    found = _Peers()
    table = getattr(manager, "prefill_info_table", None)
    table = table if isinstance(table, dict) else {}
    for key, infos in list(pool.items())[:MAX_PEERS]:
        parts = str(key).rsplit("_", 3)
        if len(parts) != 4 or not parts[1].isdecimal() or not parts[2].isdecimal():
            continue
        address, dp, cp = parts[0], int(parts[1]), int(parts[2])
        for info, place in _placed(infos, dp, [cp], table.get(address)):
            found.add(info.get("rank_ip"), info.get("rank_port"), bootstrap=address, place=place)
    for room, server, info, place in islice(_used(table, transfers), _MOST_WAYS):
        found.add(info.get("rank_ip"), info.get("rank_port"), bootstrap=server, place=place, room=room)
    return found.all()


def _used(
    table: Mapping[Any, Any], transfers: Iterable[tuple[int, Any]]
) -> Iterator[tuple[int, str, dict[str, Any], Place]]:
    """Yield room, bootstrap address, and each rank that a request goes by with its place."""
    for room, receiver in islice(transfers, _MOST_WAYS):
        its, server = getattr(receiver, "bootstrap_infos", None), str(getattr(receiver, "bootstrap_addr", ""))
        to = getattr(receiver, "prefill_dp_rank", None)
        if not its or not server or not isinstance(to, int):
            continue
        known = table.get(server)
        for info, place in _placed(its, to, _numbers(known, "target_cp_ranks") or [0], known):
            yield room, server, info, place


def _placed(infos: Any, dp: int, cps: Sequence[int], known: Any) -> Iterator[tuple[dict[str, Any], Place]]:
    """Yield what is kept of each rank with its place. The engine asks for cp, tp and pp in this order, the last stage first."""
    there = [info for info in list(infos or ())[:MAX_PEERS] if isinstance(info, dict)]
    tps, pps = _numbers(known, "target_tp_ranks"), _numbers(known, "target_pp_ranks")
    order = [_NO_PLACE] * len(there)
    if len(cps) * len(tps) * len(pps) == len(there):
        order = [(dp, cp, tp, pp) for cp in cps for tp in tps for pp in reversed(pps)]
    yield from zip(there, order, strict=True)


def _numbers(known: Any, name: str) -> list[int]:
    found = getattr(known, name, None)
    return [number for number in list(found)[:MAX_PEERS] if isinstance(number, int)] if found is not None else []


def _of_prefill(manager: Any, table: Mapping[Any, Any]) -> tuple[Peer, ...]:
    """``decode_kv_args_table``: session → the decode rank's memory; ``transfer_infos``: room → session → where it wants it."""
    found = _Peers()
    known: dict[str, tuple[Any, Any, Place]] = {}
    for session, memory in list(table.items())[-MAX_PEERS:]:  # the newest
        tp = getattr(memory, "dst_tp_rank", getattr(memory, "decode_tp_rank", None))  # the second: NIXL
        place = (-1, -1, tp if isinstance(tp, int) else -1, -1)
        held = known[str(session)] = (getattr(memory, "endpoint", ""), getattr(memory, "dst_port", None), place)
        found.add(held[0], held[1], session=str(session), place=place)
    infos = getattr(manager, "transfer_infos", None)
    for room, session in islice(_wanted(infos if isinstance(infos, dict) else {}), _MOST_WAYS):
        if session in known:
            host, port, place = known[session]
            found.add(host, port, session=session, place=place, room=room)
    return found.all()


def _wanted(infos: Mapping[Any, Any]) -> Iterator[tuple[int, str]]:
    """Yield room and session of each transfer that decode ranks want, of the newest rooms."""
    for room, wanted in list(infos.items())[-_MOST_WAYS:]:
        if isinstance(wanted, dict) and isinstance(room, int):
            for session in list(wanted):
                yield room, str(session)


def session(manager: Any) -> str:
    """Return the name under which transfers reach this rank (Mooncake: session id, NIXL: name of the agent), "" unknown."""
    for owner, name in ((getattr(manager, "engine", None), "session_id"), (getattr(manager, "agent", None), "name")):
        found = getattr(owner, name, None)
        if isinstance(found, str):
            return found[:_MAX_TEXT]
    return ""


def lookups(manager: Any, prealloc: Any) -> dict[str, Lookup]:
    """Return how asking each bootstrap server goes that has not answered lately, by its address. {} on prefill."""
    counts, last = (
        _table(getattr(prealloc, name, None)) for name in ("_ensure_retry_count", "_ensure_last_attempt_time")
    )
    missed = {address: n for address, n in _table(getattr(manager, "heartbeat_failures", None)).items() if n}
    now = time.monotonic()
    found = {}
    for address in list(dict.fromkeys([*counts, *missed]))[:MAX_LOOKUPS]:
        since = last.get(address)
        found[str(address)[:_MAX_TEXT]] = Lookup(
            attempts=int(counts.get(address, 0)),
            most=_int(getattr(prealloc, "_max_ensure_retries", None)),
            every_s=_real(getattr(prealloc, "_ensure_retry_interval", None)),
            last_s=-1.0 if since is None else max(0.0, now - since),
            missed=int(missed.get(address, 0)),
            most_missed=_int(getattr(manager, "max_failures", None)),
        )
    return found


def _table(found: Any) -> dict[Any, Any]:
    there = list(found.items()) if isinstance(found, dict) else []
    return {key: value for key, value in there if isinstance(value, int | float)}


def _int(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _real(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else -1.0
