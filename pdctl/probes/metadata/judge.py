"""Says what is wrong with metadata slots, and of every rank whether rows can be late there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from pdctl.probes.metadata.model import (
    MetadataDocument,
    Mismatch,
    RankReport,
    RankRows,
    SlotReport,
    TensorReport,
    WrongKV,
)
from pdctl.probes.metadata.safety import safety
from pdctl.probes.metadata.slots import odd, odd_rows, owners_of, sent_of, slot_of, whose_room
from pdctl.probes.queues.formatting import names
from pdctl.probes.queues.formatting import rooms as some_rooms
from pdctl.protocol.durations import seconds
from pdctl.protocol.model import Action, KVPoll, poll_name
from pdctl.report.findings import Finding, finding
from pdctl.targets.servers import told_apart

RECENT_S = 900.0
"""How far back a recorded mismatch is still a finding."""
MOST_EVIDENCE = 16


def judge(views: Sequence[RankRows], *, now_s: float, every: bool = True) -> MetadataDocument:
    """Return the document of these ranks.

    now_s: wall clock. every: report all slots; without it
    only those that are not as they should be, which is all that findings need.
    """
    reports, slots, findings, problems = [], [], [], []
    sent = sent_of(views) if every else {}
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
        chosen = view.body.rows if every else odd_rows(view.body)
        owners = owners_of(view.body) if chosen else {}
        rows = [slot_of(view, row, owners.get(row.slot, []), views, sent, now_s) for row in chosen]
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
    owners, later = owners_of(view.body), owners_of(view.again)
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
        whose = whose_room(view, m.slot, m.found, views, now_s)
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
