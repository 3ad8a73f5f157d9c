"""Find the prefill ranks for a fault that is aimed at decode ranks, and the targets' names at their sites. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.faults.fault import NOBODY, AimedRank
from pdctl.inject.wish import Known, Wish, name
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import Identity


def aims(ranks: Sequence[Known], targets: Sequence[Known]) -> tuple[AimedRank, ...]:
    """Return the targets as a site identifies them.

    Raises PdctlError (REFUSED) if a site would confuse another rank with one of them.
    """
    found = []
    for target in targets:
        one = target.identity
        address = target.faults.address if target.faults else ""
        twins = [
            rank
            for rank in ranks
            if rank.identity.role == "decode"
            and rank.state != "dead"
            and rank not in targets
            and rank.identity.tp == one.tp
            and _could_share(one, rank.identity)
        ]
        if twins and not address:
            names = ", ".join(name(rank.identity, [*twins, target]) for rank in twins[:4])
            why = target.silent or "its engine does not tell its address"
            raise PdctlError(
                f"{one.label} can't be told from {names} by a prefill rank ({why})",
                f"the fault would hit {len(twins) + 1} ranks",
                Exit.REFUSED,
            )
        found.append(AimedRank(one.dp, NOBODY if twins else one.tp, address))
    return tuple(found)


def writers(ranks: Sequence[Known], targets: Sequence[Known], wish: Wish) -> tuple[list[Known], int, list[str]]:
    """Return the prefill ranks that write to the targets, the number of their request streams, and notes for the operator.

    A stream is a dp rank of a prefill server, which takes requests by itself. Raises PdctlError (PARTIAL) if there is none.
    """
    notes: list[str] = []
    one = targets[0].identity
    prefill = [rank for rank in ranks if rank.identity.role == "prefill" and rank.state != "dead"]
    found = [rank for rank in prefill if one.cluster and rank.identity.cluster == one.cluster]
    if not found:
        found = [rank for rank in prefill if not rank.identity.cluster and _could_share(one, rank.identity)]
        if found:
            services = sorted({rank.identity.service for rank in found})
            notes.append(
                f"no cluster name on {'the prefill side' if one.cluster else one.label}: every prefill server of "
                f"this host without one is taken to serve it ({', '.join(services)}); PDCTL_CLUSTER names a cluster"
            )
    if not found:
        raise PdctlError(
            f"no prefill rank was found that serves {one.label}",
            "the fault is placed on prefill ranks: run pdctl where they are, pdctl ranks shows what it finds",
            Exit.PARTIAL,
        )
    streams: dict[tuple[str, str, int], list[Known]] = {}
    for rank in found:
        key = (rank.identity.service, rank.identity.instance, rank.identity.dp)
        streams.setdefault(key, []).append(rank)
    if wish.room or len(streams) <= wish.allow_rooms:
        return found, len(streams), notes
    chosen = sorted(streams)[: wish.allow_rooms]
    notes.append(
        f"one room at a time: placed on {', '.join(f'dp{dp} of {service}' for service, _, dp in chosen)} only, of "
        f"{len(streams)} that take requests each by itself; rooms of the others pass (--room R or --allow-rooms "
        f"{len(streams)} for all)"
    )
    return [rank for key in chosen for rank in streams[key]], len(chosen), notes


def _could_share(one: Identity, other: Identity) -> bool:
    """Return whether both may belong to one cluster: the same name, or names missing on one host."""
    if one.cluster and other.cluster:
        return one.cluster == other.cluster
    return one.host == other.host
