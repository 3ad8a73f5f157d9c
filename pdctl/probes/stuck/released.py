"""Failed requests whose memory decode keeps until prefill has said that it writes there no more, or for a time. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pdctl.probes.stuck.model import Place, Waiting
from pdctl.probes.stuck.sides import Side, holds
from pdctl.protocol.requests import DEFERRED, RELEASE_TIMEOUT, Deferred


def acknowledged(acks: int, needed: int) -> str:
    """Return how many prefill ranks have said that they write no more, in words."""
    if needed < 0:
        return "its receiver drains"
    return f"{acks} of {needed} acks" if needed else "waits for its group"


def released(side: Side) -> Iterator[Waiting]:
    """Yield the requests of a side whose memory is kept: all ranks of a group give it back in the same turn."""
    found: dict[tuple[int, str], dict[str, Deferred]] = {}
    for look in side.looks:
        for one in look.second.deferred if look.second is not None else ():
            found.setdefault((one.room, one.rid), {})[f"tp{look.identity.tp}"] = one
    for (room, rid), by_rank in found.items():
        ones = list(by_rank.values())
        ends = all(one.left_s >= 0 for one in ones)
        yield Waiting(
            room=room,
            rid=rid,
            side=side.title,
            role=side.role,
            queue=DEFERRED,
            state=_state(ones),
            age_s=max(one.held_s for one in ones),
            ranks=tuple(
                Place((rank,), DEFERRED, acknowledged(one.acks, one.needed), one.held_s, one.slot, one.kv)
                for rank, one in by_rank.items()
            ),
            peer="it failed here: its memory is kept while prefill may still write there",
            cover=RELEASE_TIMEOUT if ends else "nothing",
            left_s=max(one.left_s for one in ones) if ends else None,
            holds=holds(ones[0].slot, ones[0].kv),
            cluster=side.cluster,
            unseen_s=side.unseen_s,
        )


def _state(ones: list[Deferred]) -> str:
    """Return what the rank says that lacks most."""
    least = max(ones, key=lambda one: one.needed - one.acks)
    return acknowledged(least.acks, least.needed)
