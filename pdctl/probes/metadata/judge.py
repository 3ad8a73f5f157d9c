"""Says of every metadata slot whose room is in it, and of every rank whether rows can be late there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from pdctl.probes.metadata.model import (
    History,
    MetadataDocument,
    Mismatch,
    RankReport,
    RankRows,
    SlotReport,
    TensorReport,
    WrongKV,
)
from pdctl.probes.metadata.safety import safety
from pdctl.probes.queues.formatting import names
from pdctl.probes.queues.formatting import rooms as some_rooms
from pdctl.probes.servers import told_apart
from pdctl.protocol.durations import seconds
from pdctl.protocol.metadata import NOT_READ, Holder, Metadata, SlotRow
from pdctl.protocol.model import Action, KVPoll, poll_name
from pdctl.report.findings import Finding, finding

RECENT_S = 900.0
"""How far back a recorded mismatch is still a finding."""
MOST_EVIDENCE = 16
_TO_COME = ("decode.pending", "decode.prealloc", "decode.transfer")
"""Queues of requests whose metadata has not been taken yet."""


_Sent = tuple[str, int, int, int]


@dataclass(frozen=True)
class Whose:
    """Whose room a slot holds that is not its owner's. verdict: as SlotReport's."""

    verdict: str
    text: str


def judge(views: Sequence[RankRows], *, now_s: float, every: bool = True) -> MetadataDocument:
    """Return the document of these ranks.

    now_s: wall clock. every: report all slots; without it
    only those that are not as they should be, which is all that findings need.
    """
    reports, slots, findings, problems = [], [], [], []
    sent = _sent(views) if every else {}
    apart = told_apart([v.identity for v in views], [f"{v.identity.label} {v.identity.cluster}" for v in views])
    for view, server in zip(views, apart, strict=True):
        if view.silence == "not asked":
            continue
        reports.append(msgspec.structs.replace(_rank(view), server=server))
        findings += _unsafe(reports[-1])
        findings += _recorded(view, views, now_s)
        if _silent(view):
            problems.append(f"{view.identity.label}: {view.silence}")
        if view.state == "recorded" and view.history is not None:
            problems += [f"{view.identity.label}: {problem}" for problem in view.history.problems]
        if view.silence:
            continue
        assert view.body is not None
        if view.body.not_read:
            problems.append(f"{view.identity.label}: {view.body.not_read}")
        if view.body.left_out:
            problems.append(f"{view.identity.label}: {view.body.left_out} more slots were not read")
        if view.unconfirmed:
            problems.append(
                f"{view.identity.label}: slots that seem wrong were not read a second time: {view.unconfirmed}"
            )
        chosen = view.body.rows if every else _odd(view.body)
        owners = _owners(view.body) if chosen else {}
        rows = [_slot(view, row, owners.get(row.slot, []), views, sent, now_s) for row in chosen]
        if view.history is None and any(row.verdict == "another room" for row in rows):
            problems.append(f"{view.identity.label}: {view.history_off}: earlier owners of its slots are not known")
        slots += rows
        findings += _live(view, rows)
    findings += _wrong_kv([view for view in views if view.silence != "not asked"], now_s)
    return MetadataDocument(
        ranks=tuple(reports),
        slots=tuple(slots),
        findings=tuple(findings),
        partial=any(_silent(view) for view in views)
        or any(v.state == "recorded" and v.history is not None and v.history.problems for v in views)
        or any(r.not_read for r in reports)
        or any(view.unconfirmed for view in views)
        or any(v.body.left_out for v in views if v.body is not None)
        or any(slot.verdict == "another room" for slot in slots),
        problems=tuple(problems),
    )


def _silent(view: RankRows) -> bool:
    """Whether a rank was asked and said nothing; one of which only the recording was wanted was not asked."""
    return view.silence not in ("", "not asked") and view.state != "recorded"


def odd(view: RankRows) -> list[int]:
    """Return the slots of a decode rank that are a finding if they are still the same at a second look."""
    body = view.body
    if body is None or view.identity.role != "decode":
        return []
    return [row.slot for row in _odd(body)]


def _odd(body: Metadata) -> list[SlotRow]:
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


# ---- a rank ----------------------------------------------------------------------------------------------------------


def _rank(view: RankRows) -> RankReport:
    i, body = view.identity, view.body
    report = RankReport(
        rank=i.label,
        role=i.role,
        cluster=i.cluster,
        engine=i.engine,
        version=i.engine_version,
        state=view.state,
        service=i.service,
        instance=i.instance,
        silence=view.silence,
    )
    if body is None:
        return report
    safe, why = safety(i, body)
    return msgspec.structs.replace(
        report,
        device=body.device,
        aux=body.aux,
        aux_why=body.aux_why,
        gate=body.gate,
        zeroed=body.zeroed,
        safe=safe,
        why=why,
        slots=body.slots,
        taken=sum(row.held_s != 0.0 for row in body.rows),
        tensors=tuple(TensorReport(t.name, t.dtype, t.row_bytes) for t in body.tensors),
        not_read=body.not_read,
    )


def _unsafe(report: RankReport) -> list[Finding]:
    if report.safe != "no":
        return []
    return [
        finding(
            "PD130",
            f"{report.rank}: {report.why}",
            ranks=(report.rank,),
            evidence=(f"tensors on {report.device}", f"aux path: {report.aux} ({report.aux_why})", "gate: none"),
        )
    ]


# ---- a slot ----------------------------------------------------------------------------------------------------------


def _owners(body: Metadata) -> dict[int, list[Holder]]:
    """Return slot → the requests that hold it; one is listed once, in whatever places it is."""
    owners: dict[int, list[Holder]] = {}
    for holder in body.holders:
        if holder.slot < 0:
            continue
        held = owners.setdefault(holder.slot, [])
        if not held or all(holder.rid != other.rid for other in held):
            held.append(holder)
    return owners


def _slot(
    view: RankRows,
    row: SlotRow,
    held: Sequence[Holder],
    views: Sequence[RankRows],
    sent_at: Mapping[_Sent, float],
    now_s: float,
) -> SlotReport:
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
    return _whose(view, row.slot, row.found, views, now_s)


def _whose(view: RankRows, slot: int, room: int, views: Sequence[RankRows], now_s: float) -> Whose:
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


def _sent(views: Sequence[RankRows]) -> dict[_Sent, float]:
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


# ---- findings --------------------------------------------------------------------------------------------------------


def _live(view: RankRows, slots: Iterable[SlotReport]) -> list[Finding]:
    """Return what is wrong in slots that were the same at both looks."""
    if view.again is None or view.body is None:
        return []
    doubtful = set(odd(view))
    if not doubtful:
        return []
    still = {row.slot: row for row in view.again.rows}
    before = {row.slot: row for row in view.body.rows}
    owners, later = _owners(view.body), _owners(view.again)
    found = []
    for slot in slots:
        old, new = before.get(slot.slot), still.get(slot.slot)
        if slot.slot not in doubtful or old is None or new is None:
            continue
        same_owners = [h.rid for h in owners[slot.slot]] == [h.rid for h in later.get(slot.slot, [])]
        if (old.found, old.allocation) != (new.found, new.allocation) or not same_owners:
            continue
        code = _code(slot.verdict, committing=slot.state == poll_name(KVPoll.SUCCESS))
        if code:
            found.append(_bad(code, view, slot))
    return found


def _code(verdict: str, *, committing: bool) -> str:
    """Return the code of a slot's verdict. A stale room is harmless until its owner is about to take the row."""
    if verdict == "stale owner":
        return "PD131" if committing else ""
    return {"collision": "PD132", "foreign room": "PD133"}.get(verdict, "PD133" if committing else "")


def _bad(code: str, view: RankRows, slot: SlotReport) -> Finding:
    rooms = tuple(room for room in (slot.expected, slot.found or 0) if room)
    return finding(
        code,
        f"slot {slot.slot} on {slot.rank} belongs to room {slot.expected} ({slot.state}) and holds another:"
        f" {slot.text}",
        rooms=tuple(dict.fromkeys(rooms)),
        ranks=(slot.rank,),
        evidence=(f"{slot.verdict}: {slot.text}", "the same at two looks", *_faults(view, rooms)),
        next_step=_next_step(code, view),
        units=(view.identity.unit,),
    )


def _next_step(code: str, view: RankRows) -> str:
    """Return the next step for a stale slot on a rank that zeroes freed ones, "" for the catalogue's."""
    zeroed = view.body.zeroed if view.body is not None else None
    if code != "PD131" or not zeroed:
        return ""
    return (
        "Find why the row came late, and what wrote the old room after the slot was freed (pdctl story of both rooms)."
        " This rank zeroes freed slots: an upgrade for that is not needed."
    )


def _recorded(view: RankRows, views: Sequence[RankRows], now_s: float) -> list[Finding]:
    """Return the latest decision of each slot that was made while it held another room."""
    if view.history is None or view.identity.role != "decode":
        return []
    latest: dict[int, Mismatch] = {m.slot: m for m in view.history.mismatches if now_s - m.when_s <= RECENT_S}
    found = []
    for m in latest.values():
        whose = _whose(view, m.slot, m.found, views, now_s)
        did = "aborted" if m.action == Action.ABORTED else "took over"
        code = {"stale owner": "PD131", "collision": "PD132"}.get(whose.verdict, "PD133")
        found.append(
            finding(
                code,
                f"slot {m.slot} on {view.identity.label} held room {m.found} when its owner, room {m.room}, was decided on;"
                f" the rank {did} it {seconds(max(0.0, now_s - m.when_s))} ago. {whose.verdict.capitalize()}: {whose.text}",
                rooms=(m.room, m.found),
                ranks=(view.identity.label,),
                evidence=(
                    f"recorded: expected room {m.room}, found {m.found}",
                    whose.text,
                    *_faults(view, (m.room, m.found)),
                ),
                next_step=_next_step(code, view),
                units=(view.identity.unit,),
            )
        )
    return found


def _wrong_kv(views: Sequence[RankRows], now_s: float) -> Iterator[Finding]:
    """Yield, for each data-parallel rank, the requests whose KV the engine has found wrong by its checksum."""
    units: dict[str, list[tuple[RankRows, WrongKV]]] = {}
    for view in views:
        for wrong in view.history.wrong_kv.values() if view.history is not None else ():
            if now_s - wrong.when_s <= RECENT_S:
                units.setdefault(view.identity.unit, []).append((view, wrong))
    for unit, ones in units.items():
        rooms = tuple(dict.fromkeys(wrong.room for _, wrong in sorted(ones, key=lambda one: -one[1].when_s)))
        there = [view for view, wrong in ones if wrong.here] or [view for view, _ in ones]
        ranks = tuple(dict.fromkeys(view.identity.label for view in there))
        known = any(wrong.here for _, wrong in ones)
        where = f"on {names(ranks)}" if known else f"on a rank of the group of {names(ranks)}"
        last_s = max(0.0, now_s - max(wrong.when_s for _, wrong in ones))
        many = f"{len(rooms)} requests ({some_rooms(rooms)})" if len(rooms) > 1 else f"room {rooms[0]}"
        when = f"the last one {seconds(last_s)} ago" if len(rooms) > 1 else f"{seconds(last_s)} ago"
        yield finding(
            "PD138",
            f"The KV of {many} was not what prefill sent {where}: its checksum was wrong. The engine dropped"
            f" {'them' if len(rooms) > 1 else 'it'}, {when}.",
            rooms=rooms,
            ranks=ranks,
            evidence=(
                *(_checked(view, wrong, now_s) for view, wrong in ones[:MOST_EVIDENCE]),
                *(dict.fromkeys(line for view, wrong in ones for line in _faults(view, (wrong.room,)))),
            ),
            units=(unit,),
        )


def _checked(view: RankRows, wrong: WrongKV, now_s: float) -> str:
    said = "wrong here" if wrong.here else "wrong on another rank of its group"
    return f"{view.identity.label}: room {wrong.room} {said}, {seconds(max(0.0, now_s - wrong.when_s))} ago"


def _faults(view: RankRows, rooms: Iterable[int]) -> tuple[str, ...]:
    fired = view.history.faults if view.history is not None else {}
    return tuple(f"pdctl's fault {fired[room]} fired on room {room}" for room in rooms if room in fired)
