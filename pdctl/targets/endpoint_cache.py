"""The identity of a rank at a silent endpoint: from a registration on this host, or from its last answer.

Ranks that answer are cached in ``$XDG_CACHE_HOME/pdctl/reached.json`` (``~/.cache`` if unset): endpoint, server key and
identity, nothing secret. The cache only names silent ranks. It is never used for a rank that answers, nor to judge whether a
silent rank holds a fault.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from pdctl.protocol import paths, structs
from pdctl.protocol.files import names, read_regular
from pdctl.protocol.model import Identity
from pdctl.protocol.paths import Registration
from pdctl.protocol.processes import look
from pdctl.protocol.rank import FoundRank
from pdctl.targets.places import Places
from pdctl.targets.resolve import host_of

MAX_KEPT = 8192
MAX_FILE = 32 << 20
REFRESH_S = 3600.0
KEEP_S = 30 * 86400.0
"""How long an endpoint that was not reached any more is remembered."""
_LOOK_S = 1.0
"""How long a directory of this host is looked through for who a silent endpoint is."""


class CachedEndpoint(msgspec.Struct, frozen=True):
    """One endpoint that answered. server_key: its agent's key, "" for none. wall_ns: time of its last answer."""

    endpoint: str
    server_key: str
    identity: Identity
    wall_ns: int


def load(file: Path | None) -> dict[tuple[str, str], CachedEndpoint]:
    """Return the cache in ``file`` by endpoint and key; empty if it can't be read."""
    if file is None:
        return {}
    try:
        raw = read_regular(file, MAX_FILE, follow=True, owners=(os.geteuid(),))
        kept = structs.from_json(raw, list[CachedEndpoint])
    except (OSError, ValueError):
        return {}
    return {(one.endpoint, one.server_key): one for one in kept}


def store(file: Path, ranks: Iterable[FoundRank], known: Mapping[tuple[str, str], CachedEndpoint]) -> None:
    """Store ``ranks``, which answered, in ``file`` if that is out of date. known: the result of :func:`load`."""
    now = time.time_ns()
    fresh: dict[tuple[str, str], CachedEndpoint] = {}
    for rank in ranks:
        before = known.get(_of(rank))
        if (
            before is None
            or _process(before.identity) != _process(rank.identity)
            or not 0 <= now - before.wall_ns < REFRESH_S * 1e9
        ):
            fresh[_of(rank)] = CachedEndpoint(*_of(rank), rank.identity, now)
    if not fresh:
        return
    kept = sorted({**known, **fresh}.values(), key=lambda one: -one.wall_ns)[:MAX_KEPT]
    young = [one for one in kept if now - one.wall_ns < KEEP_S * 1e9]
    with suppress(OSError):  # a home that can't be written to: then the next command does not know
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.write_private(file, msgspec.json.encode(young))


def apply_identities(places: Places, ranks: Sequence[FoundRank]) -> list[FoundRank]:
    """Return ``ranks``. A rank known only by its endpoint gets its identity, if one is found.

    It is left out if another of ``ranks`` has the same endpoint and a name from a store. Ranks that answered are stored in the
    cache.
    """
    nameless = [rank for rank in ranks if _nameless(rank)]
    others = [rank for rank in ranks if not _nameless(rank)]
    answered = [rank for rank in others if not rank.silent and rank.access is not None]
    known = load(places.cache)
    if places.cache is not None:
        store(places.cache, answered, known)
    if not nameless:
        return list(ranks)
    taken = {rank.endpoint for rank in others}
    here = list(_registrations(places.run_dirs))
    found = []
    for rank in ranks:
        if not _nameless(rank):
            found.append(rank)
        elif rank.endpoint not in taken:
            found.append(_by_registration(rank, here) or _by_memory(rank, known.get(_of(rank)), answered) or rank)
    return found


def _nameless(rank: FoundRank) -> bool:
    return rank.identity.tp < 0 and bool(rank.endpoint)


def _of(rank: FoundRank) -> tuple[str, str]:
    return rank.endpoint, rank.access.server_key if rank.access is not None else ""


def _process(one: Identity) -> tuple[object, ...]:
    return one.host, one.pid, one.proc_start, one.instance, one.armed


def _by_registration(rank: FoundRank, here: Iterable[Registration]) -> FoundRank | None:
    for r in here:
        if r.server_key == _of(rank)[1] and _is_at(r.tcp, rank.endpoint):
            return replace(rank, identity=r.identity, tcp=r.tcp, store=r.store)
    return None


def _by_memory(rank: FoundRank, then: CachedEndpoint | None, answered: Iterable[FoundRank]) -> FoundRank | None:
    """Return ``rank`` with its identity of the last answer, None if ranks that answer now contradict it."""
    if then is None:
        return None
    who = then.identity
    for other in (one.identity for one in answered):
        if (other.cluster, other.service) == (who.cluster, who.service):
            place = (other.instance, other.dp, other.pp, other.cp, other.tp)
            if other.instance != who.instance or place == (who.instance, who.dp, who.pp, who.cp, who.tp):
                return None
    age = max(0.0, (time.time_ns() - then.wall_ns) / 1e9)
    said = f"{age:.0f} s" if age < 600 else f"{age / 60:.0f} min" if age < 36000 else f"{age / 3600:.0f} h"
    why = f"{rank.silent_why}; last reached {said} ago: pid {who.pid} on {who.host}"
    return replace(rank, identity=who, silent_why=why, remembered=True)


def _registrations(folders: Iterable[Path]) -> Iterable[Registration]:
    """Yield the registrations of live ranks on this host, also if its run directories are not searched for ranks."""
    for folder in folders:
        try:
            if paths.not_private(folder):
                continue
            found, _ = names(folder, paths.REGISTRATION_SUFFIX, MAX_KEPT, time.monotonic() + _LOOK_S)
        except OSError:
            continue
        for name in found:
            with suppress(OSError, ValueError):
                r = paths.read_registration(folder / name)
                if r.tcp and look(r.identity.pid).runs_since(r.identity.proc_start):
                    yield r


def _is_at(tcp: str, endpoint: str) -> bool:
    """Return whether a socket of this host that is bound to ``tcp`` is what ``endpoint`` leads to."""
    if tcp.rpartition(":")[2] != endpoint.rpartition(":")[2]:
        return False
    bound, host = host_of(tcp), host_of(endpoint)
    host = "127.0.0.1" if host == "localhost" else host
    try:
        wanted = ipaddress.ip_address(host)
        if wanted == ipaddress.ip_address(bound):
            return True
        if not ipaddress.ip_address(bound).is_unspecified:
            return False
        with socket.socket(socket.AF_INET6 if wanted.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))  # only an address of this host can be bound
    except (OSError, ValueError):
        return False
    return True
