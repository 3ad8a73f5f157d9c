"""Short names of ranks: the role and the coordinates that tell ranks apart here. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pdctl.protocol.model import Identity

_AXES = ("dp", "pp", "cp", "tp")


def short_names(identities: Sequence[Identity]) -> list[str]:
    """Return a name for each rank, no two alike: ``decode tp1``, ``decode dp1 tp0``, with more where that is not enough.

    Ranks of two starts of one server end in ``#1``, ``#2``, the older first; those of two servers are told apart by host
    and port.
    """
    names = [_name(identity) for identity in identities]
    for more in (_services(identities), _starts(identities)):
        twice = {name for name, count in Counter(names).items() if count > 1}
        names = [f"{name} {said}".rstrip() if name in twice else name for name, said in zip(names, more, strict=True)]
    seen: set[str] = set()
    for n, name in enumerate(names):
        if name in seen:
            names[n] = f"{name} pid {identities[n].pid}"
        seen.add(names[n])
    return names


def _name(identity: Identity) -> str:
    sizes = {axis: getattr(identity, f"{axis}_size") for axis in _AXES}
    axes = [axis for axis in _AXES if sizes[axis] > 1 or axis == "tp"]
    return " ".join([identity.role, *(f"{axis}{getattr(identity, axis)}" for axis in axes)])


def _services(identities: Sequence[Identity]) -> list[str]:
    """Return the service of each rank, "" where its role has but one."""
    of: dict[str, set[str]] = {}
    for one in identities:
        of.setdefault(one.role, set()).add(one.service)
    return [one.service.removeprefix(f"{one.role} ") if len(of[one.role]) > 1 else "" for one in identities]


def _starts(identities: Sequence[Identity]) -> list[str]:
    """Return which start of its server each rank is of, "" where there is but one."""
    starts: dict[tuple[str, str], dict[str, int]] = {}
    for one in identities:
        of = starts.setdefault((one.service, one.cluster), {})
        of[one.instance] = min(one.started_wall_ns, of.get(one.instance, one.started_wall_ns))
    place = {
        server: {instance: number for number, instance in enumerate(sorted(of, key=lambda i: of[i]), start=1)}
        for server, of in starts.items()
    }
    of_all = [place[one.service, one.cluster] for one in identities]
    return [f"#{of[one.instance]}" if len(of) > 1 else "" for of, one in zip(of_all, identities, strict=True)]
