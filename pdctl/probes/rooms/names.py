"""Short names of ranks: the role and the coordinates that tell ranks apart here. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pdctl.model import Identity

_AXES = ("dp", "pp", "cp", "tp")


def short_names(identities: Sequence[Identity]) -> list[str]:
    """Return a name for each rank, no two alike: ``decode tp1``, ``decode dp1 tp0``, with more where that is not enough.

    Ranks of two starts of one server end in ``#1``, ``#2``, the older first; those of two servers are told apart by host
    and port.
    """
    names = [_name(identity) for identity in identities]
    for more in (_service, _start):
        twice = {name for name, count in Counter(names).items() if count > 1}
        names = [
            f"{name} {more(identity, identities)}".rstrip() if name in twice else name
            for name, identity in zip(names, identities, strict=True)
        ]
    for n, name in enumerate(names):
        if name in names[:n]:
            names[n] = f"{name} pid {identities[n].pid}"
    return names


def _name(identity: Identity) -> str:
    sizes = {axis: getattr(identity, f"{axis}_size") for axis in _AXES}
    axes = [axis for axis in _AXES if sizes[axis] > 1 or axis == "tp"]
    return " ".join([identity.role, *(f"{axis}{getattr(identity, axis)}" for axis in axes)])


def _service(identity: Identity, among: Sequence[Identity]) -> str:
    alike = {other.service for other in among if other.role == identity.role}
    return identity.service.removeprefix(f"{identity.role} ") if len(alike) > 1 else ""


def _start(identity: Identity, among: Sequence[Identity]) -> str:
    starts: dict[str, int] = {}
    for other in among:
        if (other.service, other.cluster) == (identity.service, identity.cluster):
            starts[other.instance] = min(other.started_wall_ns, starts.get(other.instance, other.started_wall_ns))
    order = sorted(starts, key=lambda instance: starts[instance])
    return f"#{order.index(identity.instance) + 1}" if len(order) > 1 else ""
