"""Tells servers apart whose ranks have the same name. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.model import Identity


def told_apart(identities: Sequence[Identity], names: Sequence[str]) -> list[str]:
    """Return what to say of each rank's server, "" where its name is its own.

    names: what the ranks, or the groups they stand for, are called, one each. Said is as little as tells them apart: the
    service; of one service, the host (``on HOST``); of one host, which start of it this is (``#1`` the older one).
    """
    return [_words(n, identities, names) for n in range(len(identities))]


def _words(n: int, identities: Sequence[Identity], names: Sequence[str]) -> str:
    one = identities[n]
    alike = [other for other, name in zip(identities, names, strict=True) if name == names[n]]
    words = []
    if len({other.service for other in alike}) > 1:
        words.append(one.service)
        alike = [other for other in alike if other.service == one.service]
    if len({other.host for other in alike}) > 1:
        words.append(f"on {one.host or 'an unknown host'}")
        alike = [other for other in alike if other.host == one.host]
    starts = {other.instance: other.started_wall_ns for other in alike}
    if len(starts) > 1:
        order = sorted(starts, key=lambda instance: (starts[instance], instance))
        words.append(f"#{order.index(one.instance) + 1}")
    return " ".join(words)
