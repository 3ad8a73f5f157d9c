"""Tells servers apart whose ranks have the same name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pdctl.protocol.model import Identity


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
