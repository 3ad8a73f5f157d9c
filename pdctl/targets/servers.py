"""Servers and places among the ranks found: who belongs together, who is of an earlier start, who is missing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product

import msgspec

from pdctl.protocol import paths
from pdctl.protocol.model import Identity
from pdctl.protocol.rank import FoundRank

MAX_ABSENT = 4096
"""Rows for ranks that never registered; sizes come from files and may be damaged."""


def order(identity: Identity) -> tuple[str, int, str, int, int, int, int]:
    """Return the sort key of ranks: cluster, prefill before decode, service, then dp, pp, cp, tp."""
    i = identity
    return (i.cluster, 0 if i.role == "prefill" else 1, f"{i.role} {i.service} {i.instance}", i.dp, i.pp, i.cp, i.tp)


def process_key(identity: Identity) -> str:
    """Return what tells one process from every other, on whatever host."""
    if not identity.pid:
        return identity.service  # one of which only the address is known
    return f"{identity.host}|{paths.stem(identity.pid, identity.proc_start)}"


def select_current(ranks: list[FoundRank]) -> tuple[list[FoundRank], int]:
    """Leave out dead ranks of earlier starts.

    Kept are the instances with a live rank and, where no instance of a service lives, its newest one.
    """
    services: dict[tuple[str, str], list[FoundRank]] = {}
    for rank in ranks:
        services.setdefault((rank.identity.cluster, rank.identity.service), []).append(rank)
    kept: list[FoundRank] = []
    for members in services.values():
        instances = {rank.identity.instance for rank in members if rank.live}
        if not instances:
            instances = {max(members, key=lambda rank: rank.identity.started_wall_ns).identity.instance}
        kept += [rank for rank in members if rank.identity.instance in instances]
    return kept, len(ranks) - len(kept)


def absent_ranks(ranks: list[FoundRank], why: str) -> list[FoundRank]:
    """Return a row for each rank that a server's sizes promise and that was not found."""
    servers: dict[tuple[str, str, str], list[FoundRank]] = {}
    for rank in ranks:
        servers.setdefault(server_of(rank.identity), []).append(rank)
    absent: list[FoundRank] = []
    for members in servers.values():
        if members[0].identity.role == "unknown":
            continue  # its place is from its process's title, which tells no sizes
        seen = {place(rank.identity) for rank in members}
        one = members[0].identity
        sizes = (one.dp_size, one.pp_size, one.cp_size, one.tp_size)
        for dp, pp, cp, tp in product(*(range(min(size, MAX_ABSENT)) for size in sizes)):
            if len(absent) >= MAX_ABSENT:
                break
            if (dp, pp, cp, tp) not in seen:
                identity = msgspec.structs.replace(
                    one,
                    dp=dp,
                    pp=pp,
                    cp=cp,
                    tp=tp,
                    pid=0,
                    proc_start=0,
                    world_rank=-1,
                    host="",
                    pdctl_version="",
                    groups=(),
                    armed=False,
                    loaded_by="",
                )
                absent.append(FoundRank(identity, "no agent", endpoint_off=why))
    return absent


def server_of(identity: Identity) -> tuple[str, str, str]:
    """Return a rank's server: cluster, service, instance."""
    return identity.cluster, identity.service, identity.instance


def rank_place(identity: Identity) -> tuple[tuple[str, str, str], tuple[int, int, int, int]]:
    """Return a rank's server, and its place there."""
    return server_of(identity), place(identity)


def place(identity: Identity) -> tuple[int, int, int, int]:
    """Return a rank's place in its server: dp, pp, cp, tp."""
    return identity.dp, identity.pp, identity.cp, identity.tp


def told_apart(identities: Sequence[Identity], names: Sequence[str]) -> list[str]:
    """Return what to say of each rank's server, "" where its name is its own.

    names: what the ranks, or the groups they stand for, are called, one each. Said is as little as tells them apart: the
    service; of one service, the host (``on HOST``); of one host, which start of it this is (``#1`` the older one).
    """
    words: list[list[str]] = [[] for _ in names]
    for same_name in _by(range(len(names)), lambda n: names[n]):
        services = _by(same_name, lambda n: identities[n].service)
        for same_service in services:
            hosts = _by(same_service, lambda n: identities[n].host)
            for same_host in hosts:
                starts = {identities[n].instance: identities[n].started_wall_ns for n in same_host}
                order = sorted(starts, key=lambda instance: (starts[instance], instance))
                place = {instance: number for number, instance in enumerate(order, start=1)}
                for n in same_host:
                    one = identities[n]
                    words[n] += [one.service] if len(services) > 1 else []
                    words[n] += [f"on {one.host or 'an unknown host'}"] if len(hosts) > 1 else []
                    words[n] += [f"#{place[one.instance]}"] if len(order) > 1 else []
    return [" ".join(parts) for parts in words]


def _by(numbers: Iterable[int], key: Callable[[int], str]) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for number in numbers:
        found.setdefault(key(number), []).append(number)
    return list(found.values())
