"""Ranks on other hosts, over TCP. Each is verified by its agent's key, and asked for its identity before any other question.

PDCTL_ENDPOINT (``--endpoint``, a context's ``endpoints``) names addresses. PDCTL_STORE names a job's store with the addresses
that agents published. PDCTL_SERVER_KEY is the agents' key. A command uses the key pair that PDCTL_KEY names, or the only one
(:mod:`pdctl.protocol.keys`).
"""

from __future__ import annotations

import errno
import ipaddress
import re
import select
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pdctl.protocol import keys
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import Identity
from pdctl.protocol.rank import Access, FoundRank, Silence
from pdctl.targets import endpoint_cache, registration
from pdctl.targets.resolve import host_of, unresolved

if TYPE_CHECKING:
    from pdctl.protocol.store_schema import Beat

_ENDPOINT = re.compile(r"(tcp://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})", re.ASCII)
MAX_ENDPOINTS = 8192
REFUSED_S = 0.3
"""How long hosts of ranks that did not answer have to say that nobody listens there."""


@dataclass(frozen=True)
class Endpoint:
    """One place to look for a rank. endpoint: ``tcp://HOST:PORT``. server_key: the key its agent must have, "" for none."""

    endpoint: str
    server_key: str = ""


def targets(env: Mapping[str, str]) -> list[Endpoint]:
    """Return the places that the environment names. Raises PdctlError (USAGE) for one that makes no sense."""
    words = env.get("PDCTL_ENDPOINT", "").replace(",", " ").split()
    if len(words) > MAX_ENDPOINTS:
        raise PdctlError(f"{len(words)} endpoints: at most {MAX_ENDPOINTS}", code=Exit.USAGE)
    server_key = keys.parse_public(env["PDCTL_SERVER_KEY"]) if env.get("PDCTL_SERVER_KEY") else ""
    return [Endpoint(endpoint(word), server_key) for word in dict.fromkeys(words)]


def endpoint(text: str) -> str:
    """Return ``tcp://HOST:PORT`` from that, or from ``HOST:PORT``. Raises PdctlError (USAGE)."""
    match = _ENDPOINT.fullmatch(text.strip())
    if match is None or not 0 < int(match["port"]) < 65536:
        raise PdctlError(f"{text[:80]!r} is no endpoint of a rank", "write tcp://HOST:PORT", Exit.USAGE)
    return f"tcp://{match['host']}:{match['port']}"


def access(target: Endpoint, env: Mapping[str, str]) -> Access:
    """Return the keys for ``target``. Raises PdctlError if it needs a key and this user has none."""
    if not target.server_key:
        return Access()
    own = keys.load_own(env)
    return Access(target.server_key, own.public, own.secret)


def find(env: Mapping[str, str], timeout_s: float, rank_timeout_s: float, problems: list[str]) -> list[FoundRank]:
    """Return the ranks at the endpoints and in the stores that the environment names, each asked who it is.

    Silent ranks are included, with the reason. Stores get at most half of ``timeout_s``. All ranks together get rank_timeout_s,
    at most a quarter of ``timeout_s``. The rest is for the command's own questions. An unreadable store is one of
    ``problems``. Raises PdctlError for an invalid variable, and if a rank needs a key and this user has none.
    """
    ranks = [unknown_rank(target.endpoint, access(target, env)) for target in targets(env)]
    beats: list[Beat | None] = [None] * len(ranks)
    published = 0
    if env.get("PDCTL_STORE"):
        from pdctl.targets.sources import stores

        wanted, pinned = stores.stores(env), stores.server_key(env)
        for store, answer in zip(wanted, stores.read(wanted, timeout_s / 2), strict=True):
            if answer.error:
                problems.append(f"store {store}: {answer.error}")
            elif not answer.entries:
                problems.append(f"store {store}: no agent has published itself there")
            for entry, beat in stores.entries(answer.entries, problems):
                rank = stores.rank_of_entry(entry, beat, pinned)
                if not rank.silent:
                    target = Endpoint(rank.endpoint, entry.registration.server_key)
                    rank = replace(rank, access=access(target, env))
                ranks.append(rank if rank.access is not None else replace(rank, access=Access()))
                beats.append(beat)
                published += 1
    found = _asked(ranks, beats, min(rank_timeout_s, timeout_s / 4), len(ranks) - published)
    return endpoint_cache.apply_identities(env, found)


def _asked(ranks: Sequence[FoundRank], beats: Sequence[Beat | None], timeout_s: float, unnamed: int) -> list[FoundRank]:
    """Return the ranks with the identities that they report. unnamed: number of ranks at the start known by address only."""
    from pdctl.protocol.paths import Registration
    from pdctl.targets.client import Answer, Client

    # Before anything connects: the connection would look the name up again and again, and never say that it fails.
    began = time.monotonic()
    nowhere = unresolved((host_of(rank.endpoint) for rank in ranks if not rank.silent), timeout_s / 2)
    ranks = [_nowhere(rank, nowhere) for rank in ranks]
    spent = time.monotonic() - began
    timeout_s = round(max(timeout_s / 2, timeout_s - spent), 2) if spent > 0.05 else timeout_s
    with Client(timeout_s=timeout_s + 1.0, rank_timeout_s=timeout_s) as client:
        each = {rank.connection: rank for rank in ranks if not rank.silent}
        heard = dict(zip(each, client.ask(each.values(), "hello", Registration), strict=True))
    answers = [
        Answer[Registration](rank, None, rank.silent, rank.silent_why)
        if rank.silent
        else replace(heard[rank.connection], rank=rank)
        for rank in ranks
    ]
    quiet = [a.rank.endpoint for a in answers if a.body is None and not a.rank.silent]
    nobody = refused(quiet, REFUSED_S)
    found: list[FoundRank] = []
    for number, (answer, beat) in enumerate(zip(answers, beats, strict=True)):
        rank = answer.rank
        if answer.body is not None and (number < unnamed or _same(rank.identity, answer.body.identity)):
            found.append(
                replace(registration.apply_registration(rank, answer.body), silent=Silence.NONE, silent_why="")
            )
        elif answer.body is not None:
            other = answer.body.identity
            why = f"another process is at its endpoint now: {other.label}, pid {other.pid} on {other.host}"
            found.append(replace(rank, state="dead", silent=Silence.DEAD, silent_why=why))
        elif rank.silent:
            found.append(rank)
        else:
            gone = rank.endpoint in nobody
            why = f"not authorised or not reachable: nobody listens at {rank.endpoint}" if gone else answer.reason
            rank = replace(rank, silent=Silence.REFUSED if gone else answer.silence, silent_why=why)
            if number >= unnamed:
                from pdctl.targets.sources import stores

                rank = stores.silent_rank(rank, beat, refused=gone, now_ns=time.time_ns())
            found.append(rank)
    return found


def _nowhere(rank: FoundRank, unresolved: Mapping[str, str]) -> FoundRank:
    """Return ``rank``, marked silent if its host name can't be resolved."""
    why = "" if rank.silent else unresolved.get(host_of(rank.endpoint), "")
    return replace(rank, silent=Silence.NOT_AUTHORISED, silent_why=f"not reachable: {why}") if why else rank


def _same(one: Identity, other: Identity) -> bool:
    return (one.host, one.pid, one.proc_start, one.instance) == (
        other.host,
        other.pid,
        other.proc_start,
        other.instance,
    )


def refused(endpoints: Iterable[str], wait_s: float) -> set[str]:
    """Return the ``endpoints`` that refuse a connection at once. Host names are not resolved."""
    tried: dict[socket.socket, str] = {}
    found: set[str] = set()
    try:
        for where in dict.fromkeys(endpoints):
            host, _, port = where.removeprefix("tcp://").rpartition(":")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            probe = socket.socket(family, socket.SOCK_STREAM)
            tried[probe] = where
            probe.setblocking(False)
            try:
                code = probe.connect_ex((str(ipaddress.ip_address(host.strip("[]"))), int(port)))
            except ValueError:
                del tried[probe]
                probe.close()
            else:
                if code == errno.ECONNREFUSED:
                    found.add(where)
        end = time.monotonic() + wait_s
        waiting = [probe for probe, where in tried.items() if where not in found]
        while waiting and time.monotonic() < end:
            _, ready, _ = select.select([], waiting, [], max(0.0, end - time.monotonic()))
            for probe in ready:
                waiting.remove(probe)
                if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED:
                    found.add(tried[probe])
    finally:
        for probe in tried:
            probe.close()
    return found


def unknown_rank(where: str, how: Access) -> FoundRank:
    """Return a rank known by its address only."""
    return FoundRank(registration.nameless(where), "live", endpoint=where, access=how)


__all__ = ["Endpoint", "access", "endpoint", "find", "refused", "targets", "unknown_rank"]
