"""Ranks on other hosts, over TCP. Each is verified by its agent's key, and asked for its identity before any other question.

Endpoints (``--endpoint``, a context's ``endpoints``) are addresses, or names: a name with many addresses, as that of a headless
service, is all of them. A job's store has the addresses that agents published. The
server key is the agents'. A command uses the key pair of its user that is named, or the only one (:mod:`pdctl.protocol.keys`).
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import select
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.protocol.model import Identity
from pdctl.protocol.rank import Access, FoundRank, Silence
from pdctl.targets import endpoint_cache, registration
from pdctl.targets.places import Places
from pdctl.targets.resolve import Resolved, at_address, host_of, look_up

if TYPE_CHECKING:
    from pdctl.targets.far_connections import FarConnections

REFUSED_S = 0.3
"""How long hosts of ranks that did not answer have to say that nobody listens there."""

_AS_IT_IS = Resolved()


def find(
    places: Places,
    timeout_s: float,
    rank_timeout_s: float,
    problems: list[str],
    far: FarConnections | None = None,
) -> list[FoundRank]:
    """Return the ranks at the endpoints and in the stores of ``places``, each asked who it is.

    Silent ranks are included, with the reason. Stores get at most half of ``timeout_s``. All ranks together get rank_timeout_s,
    at most a quarter of ``timeout_s``. The rest is for the command's own questions. An unreadable store is one of
    ``problems``. far: connections to ask over, which stay open. Raises PdctlError if a rank needs a key and this user has none.
    """
    own = functools.cache(places.own_keys)

    def access(server_key: str) -> Access:
        return Access(server_key, own().public, own().secret) if server_key else Access()

    ranks = [unknown_rank(endpoint, access(places.server_key)) for endpoint in places.endpoints]
    ages = [float("inf")] * len(ranks)
    published = 0
    if places.stores:
        from pdctl.targets.sources import stores

        began = time.monotonic()
        names = look_up((store.host for store in places.stores), timeout_s / 8)
        spent = time.monotonic() - began
        each = [
            one
            for store in places.stores
            for one in stores.at_each_address(store, names.get(store.host, _AS_IT_IS).addresses, problems)
        ]
        for store, answer in zip(
            each, stores.read(each, timeout_s / 2 - (spent if spent > 0.05 else 0.0)), strict=True
        ):
            if answer.error:
                problems.append(f"store {store}: {answer.error}")
            elif not answer.entries:
                problems.append(f"store {store}: no agent has published itself there")
            for entry, beat in stores.entries(answer.entries, problems):
                rank = stores.rank_of_entry(entry, beat, places.server_key)
                ranks.append(replace(rank, access=access("" if rank.silent else entry.registration.server_key)))
                ages.append(stores.age_of(beat, answer.read_ns))
                published += 1
    found = _asked(ranks, ages, min(rank_timeout_s, timeout_s / 4), len(ranks) - published, far)
    return endpoint_cache.apply_identities(places, found)


def identified(endpoints: Sequence[str], places: Places, timeout_s: float) -> list[FoundRank]:
    """Return the ranks at addresses that lead there for now, each asked who it is; none of them is remembered."""
    own = places.own_keys() if places.server_key and endpoints else None
    how = Access(places.server_key, own.public, own.secret) if own is not None else Access()
    return _asked(
        [unknown_rank(where, how) for where in endpoints], [float("inf")] * len(endpoints), timeout_s, len(endpoints)
    )


def _asked(
    ranks: Sequence[FoundRank],
    ages: Sequence[float],
    timeout_s: float,
    unnamed: int,
    far: FarConnections | None = None,
) -> list[FoundRank]:
    """Return the ranks with the identities that they report. ages: of their heartbeats in a store when that was read,
    seconds. unnamed: number of ranks at the start known by address only."""
    from pdctl.protocol.paths import Registration
    from pdctl.targets.client import Answer, Client

    # Before anything connects: the connection would look the name up again and again, and never say that it fails.
    began = time.monotonic()
    names = look_up((host_of(rank.endpoint) for rank in ranks if not rank.silent), timeout_s / 2)
    named, ranks = ranks[:unnamed], [_nowhere(rank, names) for rank in ranks[unnamed:]]
    spread = {one.endpoint: (one, whose) for rank in named for one, whose in _at_each_address(rank, names)}
    ranks = [*(one for one, _ in spread.values()), *ranks]
    ages = [*(float("inf") for _ in spread), *ages[unnamed:]]
    unnamed = len(spread)
    spent = time.monotonic() - began
    timeout_s = round(max(timeout_s / 2, timeout_s - spent), 2) if spent > 0.05 else timeout_s
    with Client(timeout_s=timeout_s + 1.0, rank_timeout_s=timeout_s, far=far) as client:
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
    for number, (answer, age_s) in enumerate(zip(answers, ages, strict=True)):
        rank = answer.rank
        if answer.body is not None and (number < unnamed or _process(rank.identity) == _process(answer.body.identity)):
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
            if number < unnamed:
                why += spread[rank.endpoint][1]
            rank = replace(rank, silent=Silence.REFUSED if gone else answer.silence, silent_why=why)
            if number >= unnamed:
                from pdctl.targets.sources import stores

                rank = stores.silent_rank(rank, age_s, refused=gone)
            found.append(rank)
    return found


def _nowhere(rank: FoundRank, names: Mapping[str, Resolved]) -> FoundRank:
    """Return ``rank``, marked silent if its host name can't be resolved."""
    why = "" if rank.silent else names.get(host_of(rank.endpoint), _AS_IT_IS).why
    return replace(rank, silent=Silence.NOT_AUTHORISED, silent_why=f"not reachable: {why}") if why else rank


def _at_each_address(rank: FoundRank, names: Mapping[str, Resolved]) -> list[tuple[FoundRank, str]]:
    """Return a rank for each address of an endpoint's name, and the words that say whose address it is.

    A name with one address stays a name.
    """
    host = host_of(rank.endpoint)
    addresses = names.get(host, _AS_IT_IS).addresses
    if len(addresses) < 2:
        return [(_nowhere(rank, names), "")]
    whose = f" (one of the {len(addresses)} addresses of {host})"
    there = [at_address(rank.endpoint, address) for address in addresses]
    assert rank.access is not None
    return [(unknown_rank(where, rank.access), whose) for where in there]


def _process(one: Identity) -> tuple[object, ...]:
    return one.host, one.pid, one.proc_start, one.instance


def refused(endpoints: Iterable[str], wait_s: float) -> set[str]:
    """Return the ``endpoints`` that refuse a connection at once. Host names are not resolved."""
    tried: dict[socket.socket, str] = {}
    found: set[str] = set()
    try:
        for where in dict.fromkeys(endpoints):
            host, _, port = where.removeprefix("tcp://").rpartition(":")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                probe = socket.socket(family, socket.SOCK_STREAM)
            except OSError:  # no more files may be open
                break
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
        waiting = {probe.fileno(): probe for probe, where in tried.items() if where not in found}
        poll = select.poll()  # no select: connections to those that answered are open, with high descriptors
        for on in waiting:
            poll.register(on, select.POLLOUT)
        while waiting and (left_s := end - time.monotonic()) > 0:
            for on, _ in poll.poll(left_s * 1000):
                poll.unregister(on)
                probe = waiting.pop(on)
                if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED:
                    found.add(tried[probe])
    finally:
        for probe in tried:
            probe.close()
    return found


def unknown_rank(where: str, how: Access) -> FoundRank:
    """Return a rank known by its address only."""
    return FoundRank(registration.nameless(where), "live", endpoint=where, access=how)
