"""From what the operator asked to what each rank is told: pure, so ``--dry-run`` shows exactly what would be done.

A metadata row is written by prefill ranks into a decode rank: the fault is placed on prefill ranks and aims at decode
ranks. Everything that could widen the blast radius is refused unless named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pdctl import selectors
from pdctl.errors import Exit, PdctlError
from pdctl.inject.faults import DELAY_METADATA, NOBODY, Target
from pdctl.inject.messages import FaultsBody, InjectArgs
from pdctl.inject.sites import check_site
from pdctl.model import Identity


@dataclass(frozen=True)
class Known:
    """A rank as discovery and one question to it know it.

    state: ``live``, ``dead`` or ``no agent`` (:class:`pdctl.discovery.FoundRank`). faults: its answer, None with
    ``silent`` saying why there is none.
    """

    identity: Identity
    state: str = "live"
    faults: FaultsBody | None = None
    silent: str = ""


@dataclass(frozen=True)
class Wish:
    """What the operator asked for, in seconds. allow_ranks, allow_rooms: blast radius, 1 unless widened by name."""

    patterns: tuple[selectors.Selector, ...]
    delay_s: float
    ttl_s: float
    fault_id: str
    owner: str
    kind: str = DELAY_METADATA
    room: int = 0
    hits: int = 0
    allow_ranks: int = 1
    allow_rooms: int = 1


@dataclass(frozen=True)
class Plan:
    """targets: decode ranks aimed at. on: prefill ranks that are told ``args``. notes: what the operator must know."""

    targets: tuple[Identity, ...]
    on: tuple[Identity, ...]
    args: InjectArgs
    notes: tuple[str, ...] = field(default=())


def plan(ranks: Sequence[Known], wish: Wish) -> Plan:
    """Return what to tell whom.

    Raises PdctlError: PARTIAL when a pattern means no rank, REFUSED when a safety rule says no, UNREACHABLE when a rank
    that must be told does not answer, USAGE when the wish contradicts itself.
    """
    if wish.delay_s > wish.ttl_s:
        raise PdctlError(
            f"the delay of {wish.delay_s:g} s is longer than the fault lives ({wish.ttl_s:g} s)",
            "what a fault holds is let go when it ends: make --for at least as long as the delay",
            Exit.USAGE,
        )
    targets = _targets(ranks, wish)
    writers, notes = _writers(ranks, targets, wish)
    for writer in writers:
        _check(writer, wish)
    args = InjectArgs(
        id=wish.fault_id,
        kind=wish.kind,
        delay_s=wish.delay_s,
        target=", ".join(target.identity.selector for target in targets),
        targets=_aims(ranks, targets),
        ttl_s=wish.ttl_s,
        room=wish.room,
        hits=wish.hits,
        owner=wish.owner,
    )
    on = tuple(writer.identity for writer in writers)
    return Plan(tuple(target.identity for target in targets), on, args, tuple(notes))


# ---- the decode ranks that are meant ---------------------------------------------------------------------------------


def _targets(ranks: Sequence[Known], wish: Wish) -> list[Known]:
    decode = [rank for rank in ranks if rank.identity.role == "decode" and rank.state != "dead"]
    found: list[Known] = []
    for pattern in wish.patterns:
        if pattern.role == "prefill":
            raise PdctlError(
                f"{pattern.text} means prefill ranks",
                "name the decode rank that shall wait; the fault is placed on the prefill ranks that write to it",
                Exit.USAGE,
            )
        meant = [rank for rank in decode if pattern.matches(rank.identity)]
        if not meant:
            there = ", ".join(rank.identity.selector for rank in decode[:8]) or "none"
            raise PdctlError(f"no decode rank matches {pattern.text}", f"decode ranks here: {there}", Exit.PARTIAL)
        found += [rank for rank in meant if rank not in found]
    if len(found) > wish.allow_ranks:
        names = ", ".join(_name(rank.identity, found) for rank in found[:8]) + (" …" if len(found) > 8 else "")
        raise PdctlError(
            f"this would hit {len(found)} ranks, {wish.allow_ranks} allowed: {names}",
            f"name one rank, or widen with --allow-ranks {len(found)}",
            Exit.REFUSED,
        )
    if len({rank.identity.cluster for rank in found}) > 1:
        raise PdctlError("these ranks are of different clusters", "one fault stays in one cluster", Exit.REFUSED)
    return found


def _name(identity: Identity, among: Sequence[Known]) -> str:
    twins = sum(rank.identity.selector == identity.selector for rank in among)
    return identity.selector if twins == 1 else f"{identity.selector} ({identity.service}, pid {identity.pid})"


def _aims(ranks: Sequence[Known], targets: Sequence[Known]) -> tuple[Target, ...]:
    """Return how a site knows the targets. Raises PdctlError where it would take another rank for one of them."""
    aims = []
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
            names = ", ".join(_name(rank.identity, [*twins, target]) for rank in twins[:4])
            why = target.silent or "its engine does not tell its address"
            raise PdctlError(
                f"{one.selector} can't be told from {names} by a prefill rank ({why})",
                f"the fault would hit {len(twins) + 1} ranks",
                Exit.REFUSED,
            )
        aims.append(Target(one.dp, NOBODY if twins else one.tp, address))
    return tuple(aims)


# ---- the prefill ranks that write to them ----------------------------------------------------------------------------


def _could_share(one: Identity, other: Identity) -> bool:
    """Return whether both may belong to one cluster: the same name, or names missing on one host."""
    if one.cluster and other.cluster:
        return one.cluster == other.cluster
    return one.host == other.host


def _writers(ranks: Sequence[Known], targets: Sequence[Known], wish: Wish) -> tuple[list[Known], list[str]]:
    """Return the prefill ranks to tell, and what the operator must know about the choice."""
    notes: list[str] = []
    one = targets[0].identity
    prefill = [rank for rank in ranks if rank.identity.role == "prefill" and rank.state != "dead"]
    writers = [rank for rank in prefill if one.cluster and rank.identity.cluster == one.cluster]
    if not writers:
        writers = [rank for rank in prefill if not rank.identity.cluster and _could_share(one, rank.identity)]
        if writers:
            services = sorted({rank.identity.service for rank in writers})
            notes.append(
                f"no cluster name on {'the prefill side' if one.cluster else one.selector}: every prefill server of "
                f"this host without one is taken to serve it ({', '.join(services)}); PDCTL_CLUSTER names a cluster"
            )
    if not writers:
        raise PdctlError(
            f"no prefill rank was found that serves {one.selector}",
            "the fault is placed on prefill ranks: run pdctl where they are, pdctl ranks shows what it finds",
            Exit.PARTIAL,
        )
    streams: dict[tuple[str, str, int], list[Known]] = {}
    for rank in writers:
        key = (rank.identity.service, rank.identity.instance, rank.identity.dp)
        streams.setdefault(key, []).append(rank)
    if wish.room or len(streams) <= wish.allow_rooms:
        return writers, notes
    chosen = sorted(streams)[: wish.allow_rooms]
    notes.append(
        f"one room at a time: placed on {', '.join(f'dp{dp} of {service}' for service, _, dp in chosen)} only, of "
        f"{len(streams)} that take requests each by itself; rooms of the others pass (--room R or --allow-rooms "
        f"{len(streams)} for all)"
    )
    return [rank for key in chosen for rank in streams[key]], notes


def _check(writer: Known, wish: Wish) -> None:
    name = writer.identity.selector
    if writer.state == "no agent":
        raise PdctlError(
            f"{name} has no agent, and it may write the row as well", "start all of it with PDCTL_ARM=1", Exit.REFUSED
        )
    if writer.faults is None:
        raise PdctlError(f"{name} must be told and does not answer: {writer.silent}", "pdctl ranks shows all of them")
    if not writer.faults.armed:
        raise PdctlError(
            f"{name} was not armed when it started",
            "faults are possible only on ranks started with PDCTL_ARM=1",
            Exit.REFUSED,
        )
    check_site(wish.kind, writer.faults.sites, name)
    if writer.faults.left:
        there = writer.faults.left[0]
        raise PdctlError(
            f"{name} holds fault {there.id} of {there.owner or 'unknown'} already",
            f"pdctl heal {there.id} ends it",
            Exit.REFUSED,
        )
