"""Says of a metadata slot whose room is in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdctl.probes.metadata.model import History, RankRows, SlotReport
from pdctl.protocol.durations import seconds
from pdctl.protocol.metadata import NOT_READ, Holder, Metadata, SlotRow
from pdctl.protocol.model import poll_name

_TO_COME = ("decode.pending", "decode.prealloc", "decode.transfer")
"""Queues of requests whose metadata has not been taken yet."""


_Sent = tuple[str, int, int, int]


@dataclass(frozen=True)
class Whose:
    """Whose room a slot holds that is not its owner's. verdict: as SlotReport's."""

    verdict: str
    text: str


def odd(view: RankRows) -> list[int]:
    """Return the slots of a decode rank that are a finding if they are still the same at a second look."""
    body = view.body
    if body is None or view.identity.role != "decode":
        return []
    return [row.slot for row in odd_rows(body)]


def odd_rows(body: Metadata) -> list[SlotRow]:
    """Return the rows that hold another room than their owner's, or have several owners. Quick: rows are many."""
    rooms: dict[int, int] = {}
    several: set[int] = set()
    for holder in body.holders:
        slot = holder.slot
        if slot >= 0 and rooms.setdefault(slot, holder.room) != holder.room:
            several.add(slot)
    get = rooms.get
    return [
        row
        for row in body.rows
        if (row.found > 0 and get(row.slot, row.found) != row.found) or (several and row.slot in several)
    ]


def owners_of(body: Metadata) -> dict[int, list[Holder]]:
    """Return slot → the requests that hold it; one is listed once, in whatever places it is."""
    owners: dict[int, list[Holder]] = {}
    for holder in body.holders:
        if holder.slot < 0:
            continue
        held = owners.setdefault(holder.slot, [])
        if not held or all(holder.rid != other.rid for other in held):
            held.append(holder)
    return owners


def slot_of(
    view: RankRows,
    row: SlotRow,
    held: Sequence[Holder],
    views: Sequence[RankRows],
    sent_at: Mapping[_Sent, float],
    now_s: float,
) -> SlotReport:
    """Return the report of a slot that the rank's answer has. held: its owners. sent_at: as :func:`sent_of` gives it."""
    body = view.body
    assert body is not None
    owner = held[0] if held else None
    whose = _verdict(view, row, held, views, now_s)
    sent, landed, late = _times(view, row, owner, sent_at, now_s)
    return SlotReport(
        rank=view.identity.label,
        slot=row.slot,
        verdict=whose.verdict,
        text=whose.text,
        rid=owner.rid if owner else "",
        expected=owner.room if owner else 0,
        found=None if row.found == NOT_READ else row.found,
        where=owner.where if owner else "",
        state=poll_name(owner.state) if owner else "-",
        sent_s=sent,
        landed_s=landed,
        late_s=late,
        held_s=row.held_s if row.held_s > 0 else None,
        changing=row.changing,
        sums={t.name: f"{crc:08x}" for t, crc in zip(body.tensors, row.sums, strict=False)},
        cluster=view.identity.cluster,
        service=view.identity.service,
        instance=view.identity.instance,
    )


def _verdict(view: RankRows, row: SlotRow, held: Sequence[Holder], views: Sequence[RankRows], now_s: float) -> Whose:
    if row.found == NOT_READ:
        return Whose("not read", "")
    if not held:
        kept = f"keeps room {row.found}" if row.found else ""
        return Whose("free" if row.held_s == 0.0 else "no owner", kept)
    if len(held) > 1:
        return Whose("collision", "held by " + " and ".join(f"room {h.room} (rid {h.rid})" for h in held))
    owner = held[0]
    if view.identity.role != "decode":  # its own rows are filled when the last chunk is sent, and never cleared
        return Whose("filled" if row.found == owner.room else "not filled", "")
    if row.found == owner.room:
        return Whose("landed", "")
    if row.found == 0:
        return Whose("not written", "")
    return whose_room(view, row.slot, row.found, views, now_s)


def whose_room(view: RankRows, slot: int, room: int, views: Sequence[RankRows], now_s: float) -> Whose:
    """Return whose room this is that a slot holds and its owner is not."""
    past = view.history or History()
    ago = f" {seconds(max(0.0, now_s - past.ended[room]))} ago" if room in past.ended else ""
    if room in past.owners.get(slot, ()):
        return Whose("stale owner", f"room {room} owned this slot before" + (f"; it ended{ago}" if ago else ""))
    holders = view.body.holders if view.body is not None else []
    live = next((h for h in holders if h.room == room and h.where in _TO_COME), None)
    if live is not None:
        return Whose("collision", f"room {room} is in {live.where} with slot {live.slot}")
    if any(h.room == room for h in holders) or room in past.ended:
        return Whose("stale owner", f"room {room} was here" + (f" and ended{ago}" if ago else ", its transfer is over"))
    if not past.whole:  # it may have owned this slot before the recording begins
        return Whose("another room", f"room {room}: the recording does not reach back to tell whose")
    if room in past.rooms:
        return Whose("collision", f"room {room} is known here, and never owned this slot")
    elsewhere = [v.identity.label for v in views if v is not view and _same(v, view) and _knows(v, room)]
    known = f"; {' and '.join(elsewhere[:3])} {'knows' if len(elsewhere) == 1 else 'know'} it" if elsewhere else ""
    return Whose("foreign room", f"room {room} was never on this rank{known}")


def _same(one: RankRows, other: RankRows) -> bool:
    """Whether two ranks are of one cluster, and not of groups that share their rooms (tp ranks of one group do)."""
    a, b = one.identity, other.identity
    return a.cluster == b.cluster and (a.role, a.service, a.dp, a.pp) != (b.role, b.service, b.dp, b.pp)


def _knows(view: RankRows, room: int) -> bool:
    if view.history is not None and room in view.history.rooms:
        return True
    return view.body is not None and any(h.room == room for h in view.body.holders)


def sent_of(views: Sequence[RankRows]) -> dict[_Sent, float]:
    """Return (cluster, room, slot, decode tp) → when prefill wrote the row, of all recordings of prefill ranks."""
    return {
        (view.identity.cluster, *key): when
        for view in views
        if view.history is not None
        for key, when in view.history.sent.items()
    }


def _times(
    view: RankRows, row: SlotRow, owner: Holder | None, sent: Mapping[_Sent, float], now_s: float
) -> tuple[float | None, float | None, float | None]:
    """Return seconds since prefill wrote the owner's row, since it was seen landing, and from Success until then."""
    if owner is None or view.identity.role != "decode":
        return None, None, None
    landed = view.history.landed.get((row.slot, owner.room)) if view.history is not None else None
    written = sent.get((view.identity.cluster, owner.room, row.slot, view.identity.tp))
    return (
        max(0.0, now_s - written) if written is not None else None,
        max(0.0, now_s - landed[0]) if landed else None,
        landed[1] if landed else None,
    )
