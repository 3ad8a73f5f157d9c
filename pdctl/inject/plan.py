"""Turn the operator's request into the message for each rank. Pure: ``--dry-run`` shows exactly what would be done.

A kind that is aimed at a decode rank is placed on the prefill ranks that write to it (:mod:`.aim`). Any other kind is placed on
the named rank. A wider blast radius is refused unless an option allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pdctl.faults.capabilities import check_site
from pdctl.faults.fault import AimedRank
from pdctl.faults.kinds import HELD_STATUS, KINDS, Aim, Kind, Way
from pdctl.faults.messages import InjectArgs
from pdctl.inject import aim
from pdctl.inject.wish import Known, Wish, name
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import FaultStatus, Identity
from pdctl.report.escaping import argument


@dataclass(frozen=True)
class Plan:
    """targets: ranks that are hit. on: ranks that get ``args``. notes: notes for the operator.

    others: faults that are in place in the cluster already, each with a rank that holds it.
    """

    targets: tuple[Identity, ...]
    on: tuple[Identity, ...]
    args: InjectArgs
    notes: tuple[str, ...] = field(default=())
    others: tuple[tuple[Identity, FaultStatus], ...] = field(default=())


class NoSuchRankError(PdctlError):
    """A pattern means no rank that could be told."""


def plan(ranks: Sequence[Known], wish: Wish) -> Plan:
    """Return the plan: which ranks get which message.

    Raises PdctlError: REFUSED when a safety rule says no, UNREACHABLE when a rank that must be told is dead or does not
    answer, USAGE when a pattern means no rank (NoSuchRankError), or the wish contradicts itself.
    """
    kind = KINDS[wish.kind]
    if not kind.per_room and (wish.room or wish.rid):
        raise PdctlError(f"{kind.name} is about no single room", "leave --room and --rid out", Exit.USAGE)
    if wish.delay_s > wish.ttl_s:
        raise PdctlError(
            f"the delay of {wish.delay_s:g} s is longer than the fault lives ({wish.ttl_s:g} s)",
            "what a fault holds is let go when it ends: make --for at least as long as the delay",
            Exit.USAGE,
        )
    targets = _targets(ranks, wish, kind)
    if kind.alike and len(targets) > 1 and not wish.room and not wish.rid:
        raise PdctlError(
            f"{len(targets)} ranks would each take the next request that they see, not surely the same one",
            "name the request with --rid, or its room with --room",
            Exit.REFUSED,
        )
    notes: list[str] = []
    aims: tuple[AimedRank, ...] = (AimedRank(),)
    on, streams = targets, 1
    if kind.aim is Aim.AIMED_AT:
        on, streams, notes = aim.writers(ranks, targets, wish)
        aims = aim.aims(ranks, targets)
    for rank in on:
        _check(rank, wish, kind)
    if kind.name in HELD_STATUS and any("aborts" in rank.identity.lacks for rank in on):
        notes.append(_TIMES_OUT)
    others = _others(ranks, targets[0].identity.cluster)
    _check_all(targets, others, wish)
    hits = wish.hits
    if kind.way is Way.ONCE and not hits:
        hits = 1
        notes.append("one room only: --hits N takes more, one after the other")
    args = InjectArgs(
        id=wish.fault_id,
        kind=wish.kind,
        delay_s=wish.delay_s,
        value=wish.value,
        target=", ".join(target.identity.label for target in targets),
        targets=aims,
        ttl_s=wish.ttl_s,
        room=wish.room,
        rid=wish.rid,
        hits=hits,
        seed=wish.seed,
        share=wish.share,
        at_once=max(1, wish.allow_rooms // streams),
        stop_failed=wish.stop_failed,
        owner=wish.owner,
    )
    return Plan(
        tuple(target.identity for target in targets), tuple(rank.identity for rank in on), args, tuple(notes), others
    )


def _targets(ranks: Sequence[Known], wish: Wish, kind: Kind) -> list[Known]:
    role = kind.role
    there = [rank for rank in ranks if rank.state != "dead" and role in ("any", rank.identity.role)]
    role = "" if role == "any" else f"{role} "
    found: list[Known] = []
    for pattern in wish.patterns:
        if role and pattern.role in ("prefill", "decode") and pattern.role != role.strip():
            raise PdctlError(f"{pattern.text} means {pattern.role} ranks", _instead(kind), Exit.USAGE)
        meant = [rank for rank in there if pattern.matches(rank.identity)]
        if not meant:
            names = ", ".join(rank.identity.selector for rank in there[:8]) or "none"
            dead = any(rank.state == "dead" and pattern.matches(rank.identity) for rank in ranks)
            raise NoSuchRankError(
                f"no {'live ' * dead}{role}rank matches {pattern.text}",
                f"Live {role}ranks here: {names}.",
                Exit.UNREACHABLE if dead else Exit.USAGE,
            )
        found += [rank for rank in meant if rank not in found]
    if len(found) > wish.allow_ranks:
        names = ", ".join(name(rank.identity, found) for rank in found[:8]) + (" …" if len(found) > 8 else "")
        clusters = sorted({rank.identity.cluster for rank in found})
        one = f"{wish.patterns[0].text}:cluster={clusters[-1]}"
        raise PdctlError(
            f"this would hit {len(found)} ranks, {wish.allow_ranks} allowed: {names}",
            f"name one cluster's: {one}"
            if len(clusters) > 1
            else f"name one rank, or widen with --allow-ranks {len(found)}",
            Exit.REFUSED,
        )
    if len({rank.identity.cluster for rank in found}) > 1:
        raise PdctlError("these ranks are of different clusters", "one fault stays in one cluster", Exit.REFUSED)
    return found


def _others(ranks: Sequence[Known], cluster: str) -> tuple[tuple[Identity, FaultStatus], ...]:
    """Return the faults of the cluster that have not ended, each with every rank that holds it."""
    return tuple(
        (rank.identity, fault)
        for rank in ranks
        if rank.faults is not None and rank.identity.cluster == cluster
        for fault in rank.faults.left
        if not fault.ended
    )


def _check_all(targets: Sequence[Known], others: Sequence[tuple[Identity, FaultStatus]], wish: Wish) -> None:
    """Check the number of ranks hit, by this fault and by all faults in place, against the limit.

    A rank hit by both counts twice: either fault could cause its behaviour.
    """
    hit = {fault.id: len(fault.target.split(", ")) for _, fault in others}
    there = sum(hit.values())
    if there + len(targets) <= wish.allow_ranks or not there:
        return
    owners = {fault.id: fault.owner for _, fault in others}
    names = ", ".join(f"{name} of {owners[name] or 'unknown'}" for name in hit)
    raise PdctlError(
        f"{there} rank{'s'[: there != 1]} of this cluster {'is' if there == 1 else 'are'} hit by {names} already, "
        f"{wish.allow_ranks} allowed in all",
        f"wait for its end (pdctl faults), or widen with --allow-ranks {there + len(targets)}",
        Exit.REFUSED,
    )


def _instead(kind: Kind) -> str:
    if kind.aim is Aim.AIMED_AT:
        return "name the decode rank that shall feel it; the fault is placed on the prefill ranks that write to it"
    return f"{kind.name} sits in {kind.carrier} ranks: name one"


_TIMES_OUT = (
    "end it before decode's time-out of the room (SGLANG_DISAGGREGATION_WAITING_TIMEOUT): in this version decode then sends an "
    "ABORT, which ends prefill's bootstrap thread for good"
)
_PUT_IN = "put agents in: pdctl attach PID --inject-agent --arm"


def _check(rank: Known, wish: Wish, kind: Kind) -> None:
    what = rank.identity.label
    if rank.state == "no agent":
        why = ", and it may write the row as well" if kind.aim is Aim.AIMED_AT else ""
        raise PdctlError(f"{what} has no agent{why}", f"start all of it with PDCTL_ARM=1, or {_PUT_IN}", Exit.REFUSED)
    if rank.faults is None:
        raise PdctlError(f"{what} must be told and does not answer: {rank.silent}", "pdctl ranks shows all of them")
    if not rank.faults.armed:
        raise PdctlError(
            f"{what} was not armed when it started",
            f"pdctl attach {rank.identity.pid} --remove-agent, and then --inject-agent --arm"
            if rank.identity.loaded_by == "attach"
            else "faults are possible only on ranks started with PDCTL_ARM=1",
            Exit.REFUSED,
        )
    check_site(wish.kind, rank.faults.sites, what, rank.identity.role)
    if rank.faults.left:
        there = rank.faults.left[0]
        raise PdctlError(
            f"{what} holds fault {there.id} of {there.owner or 'unknown'} already",
            f"pdctl heal {argument(there.id)} ends it",
            Exit.REFUSED,
        )
