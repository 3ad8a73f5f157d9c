"""What the collectives of a group say: who is in which, and whether two ranks are in different ones with one number. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pdctl.model import FlightEntry, GroupInfo
from pdctl.probes.queues.model import RankView
from pdctl.probes.queues.words import names


def pairing(info: GroupInfo, members: Mapping[str, RankView]) -> tuple[str, ...]:
    """Return sentences about the collectives of one group; ``members``: its ranks by name."""
    return (*_mispaired(info, members), *_flights(info, members))


def _mispaired(info: GroupInfo, members: Mapping[str, RankView]) -> Iterable[str]:
    """Say it when ranks sit in different operations, or different sizes of one, with the same number in the group."""
    at: dict[int, dict[str, list[str]]] = {}
    for name, view in members.items():
        call = view.status.call if view.status is not None else None
        if call is None or not call.op or call.group != info.kind or call.seq < 0:
            continue
        size = f" of {call.elements}" if call.elements >= 0 else ""
        at.setdefault(call.seq, {}).setdefault(f"{call.op}{size}", []).append(name)
    for seq, ops in at.items():
        if len(ops) > 1:
            said = ", ".join(f"{names(ranks)} in {op}" for op, ranks in ops.items())
            yield f"mispaired: collective #{seq} of group {info.kind} has {said}"


def _flights(info: GroupInfo, members: Mapping[str, RankView]) -> Iterable[str]:
    """Say the last collective of the group that each rank's flight recorder has."""
    for name, view in members.items():
        mine = [g for g in view.identity.groups if g.key == info.key]
        entries = [e for e in view.flight if mine and mine[0].fr_id >= 0 and e.pg_id == mine[0].fr_id]
        if entries:
            last = max(entries, key=lambda e: e.seq)
            yield f"flight recorder of {name}: {_last(last)} last in group {info.kind}"


def _last(entry: FlightEntry) -> str:
    size = ", ".join("x".join(map(str, shape)) or "1" for shape in entry.sizes)
    return f"#{entry.seq} {entry.op}" + (f" of {size}" if size else "")
