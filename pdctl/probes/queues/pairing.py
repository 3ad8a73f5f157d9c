"""What the collectives of a group say: who is in which, and whether two ranks are in different ones with one number. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pdctl.probes.collectives import entry_words, mispaired, newest
from pdctl.probes.queues.formatting import names
from pdctl.probes.queues.model import RankView
from pdctl.protocol.model import Call, GroupInfo


def pairing(info: GroupInfo, members: Mapping[str, RankView]) -> tuple[str, ...]:
    """Return sentences about the collectives of one group; ``members``: its ranks by name."""
    return (*_mispaired(info, members), *_flights(info, members))


def _mispaired(info: GroupInfo, members: Mapping[str, RankView]) -> Iterable[str]:
    """Say it when ranks sit in different operations, or different sizes of one, with the same number in the group."""
    calls: dict[
        str, dict[str, Call]
    ] = {}  # a group of torch at a time: two may be of one kind, and count for themselves
    for name, view in members.items():
        moves = view.turn is not None and view.turn.stood_s == 0  # then its operation and its number are of two moments
        call = view.status.call if view.status is not None and not moves else None
        if call is not None and call.group == info.kind:
            calls.setdefault(call.pg, {})[name] = call
    for of_one in calls.values():
        for seq, ops in mispaired(of_one).items():
            listed = ", ".join(f"{names(ranks)} in {op}" for op, ranks in ops.items())
            yield f"mispaired: collective #{seq} of group {info.kind} has {listed}"


def _flights(info: GroupInfo, members: Mapping[str, RankView]) -> Iterable[str]:
    """Say the last collective of the group that each rank's flight recorder has."""
    for name, view in members.items():
        mine = [g for g in view.identity.groups if g.key == info.key]
        last = newest(view.flight, mine[0].fr_id) if mine else None
        if last is not None:
            yield f"flight recorder of {name}: {entry_words(last)} last in group {info.kind}"
        elif view.flight_off:
            yield f"flight recorder of {name}: not read, {view.flight_off}"
