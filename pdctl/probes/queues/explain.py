"""From the first round that differs to its cause: which rooms, what each rank knew of them, which finding it is. Pure."""

from __future__ import annotations

from pdctl.probes.queues import formatting
from pdctl.probes.queues.compare import Difference, Kind
from pdctl.probes.queues.formatting import ACTIONS, diverged
from pdctl.probes.queues.formatting import names as named
from pdctl.probes.queues.groups import Group
from pdctl.probes.queues.model import RankView, RoomSide, RoomSplit
from pdctl.protocol.model import EventKind, Identity, Phase
from pdctl.protocol.versions import within
from pdctl.recording.reader import Event, Item, Run
from pdctl.report.findings import Finding, finding

MOST_ROOMS = 20
"""Rooms told in full; a list that differs in more has a common cause."""

NOT_THERE = "not on its list"
UNREADABLE = "not readable"
"""The rank's recording shows that it differs, but its requests in that round are cut off or overwritten."""


def splits(group: Group, queue: str, difference: Difference) -> tuple[RoomSplit, ...]:
    """Return the rooms on which the ranks differ in the round, at most MOST_ROOMS, in the order of the first list."""
    sides: list[dict[int, tuple[str, Item | None]] | None] = []
    views = [group.members[n] for n in group.judged]
    for view, run in zip(views, difference.runs, strict=True):
        sides.append(_known(view, queue, group.info.kind, run, difference.ordinal))
    order: dict[int, None] = {}
    for known in sides:
        order.update(dict.fromkeys(known or {}))
    found = []
    for room in order:
        acts = [known[room][0] if room in known else NOT_THERE for known in sides if known is not None]
        if difference.kind is Kind.LISTS:  # then what matters is who has it, not how far each rank got with it
            acts = [act if act == NOT_THERE else "" for act in acts]
        left = None in sides and difference.kind is Kind.ACTIONS and any(act != "kept" for act in acts)
        if len(set(acts)) > 1 or left or difference.kind is Kind.SKIPPED:
            found.append(
                RoomSplit(
                    room,
                    _rid(views, room),
                    tuple(
                        _side(queue, group.place(n), view, room, *_of(known, room))
                        for n, view, known in zip(group.judged, views, sides, strict=True)
                        if view is not None
                    ),
                )
            )
        if len(found) == MOST_ROOMS:
            break
    return tuple(found)


def _known(
    view: RankView | None, queue: str, kind: str, run: Run | None, ordinal: int
) -> dict[int, tuple[str, Item | None]] | None:
    """Return room → (action, item) of one rank in the round; None where the requests are lost from its recording."""
    stream = view.recording.stream(queue, kind) if view is not None and view.recording is not None else None
    if stream is None or run is None:
        return {}
    items = stream.items(run)
    if items is None:
        return None
    last = ordinal == run.last
    return {item.room: (_act(item, run, last=last), item) for item in items}


def _of(known: dict[int, tuple[str, Item | None]] | None, room: int) -> tuple[str, Item | None]:
    if known is None:
        return UNREADABLE, None
    return known.get(room) or (NOT_THERE, None)


def _act(item: Item, run: Run, *, last: bool) -> str:
    if last and run.phase is not Phase.APPLIED:
        return "undecided"
    return ACTIONS.get(item.action, "kept")


def _side(queue: str, rank: str, view: RankView, room: int, action: str, item: Item | None) -> RoomSide:
    slot = item.slot if item else -1
    return RoomSide(
        rank=rank,
        action=action,
        local=formatting.value(queue, item.local) if item else "-",
        gated=formatting.value(queue, item.gated) if item else "-",
        slot=slot,
        found=item.found if item else None,
        landed_s=_landed(view, room, slot),
        where=where_now(view, room),
    )


def _landed(view: RankView, room: int, slot: int) -> float | None:
    if view.recording is None:
        return None
    table = view.recording.event_table()
    meant = (table["kind"] == int(EventKind.LANDED)) & (table["slot"] == slot)
    landed = table["a"][meant & ((table["room"] == room) | (table["b"] == room))]
    return int(landed[0]) / 1e9 if len(landed) else None


def _enqueued(view: RankView, room: int) -> list[Event]:
    return view.recording.events_told((EventKind.ENQUEUE,), (room,)) if view.recording is not None else []


def where_now(view: RankView, room: int) -> str:
    """Return the queue a room is in on a rank now, "" when it is in none or the rank does not answer."""
    if view.snapshot is None:
        return ""
    for queue, entries in view.snapshot.queues.items():
        if any(entry.room == room for entry in entries):
            return queue
    return ""


def _rid(views: list[RankView | None], room: int) -> str:
    for view in views:
        if view is None:
            continue
        if view.snapshot is not None:
            for entries in view.snapshot.queues.values():
                for entry in entries:
                    if entry.room == room and entry.rid:
                        return entry.rid
        for event in _enqueued(view, room):
            if event.text:
                return event.text
    return ""


def difference(group: Group, queue: str, diff: Difference, found: tuple[RoomSplit, ...]) -> Finding:
    """Return the finding that this first difference is."""
    code, summary = _classify(group, queue, diff, found)
    one = group.known[0].identity
    versions, next_step = _advice(code, one)
    return finding(
        code,
        summary,
        group=group.title,
        rooms=tuple(split.room for split in found),
        ranks=_odd_ranks(group, diff, found),
        evidence=tuple(_evidence(queue, diff, found)),
        versions=versions,
        next_step=next_step,
        units=(one.unit,),
    )


def _classify(group: Group, queue: str, diff: Difference, found: tuple[RoomSplit, ...]) -> tuple[str, str]:
    names = [group.place(n) for n in group.judged]
    lost = [names[n] for n, lost in enumerate(_lost(group, queue, diff)) if lost]
    if lost:
        code, what = ("PD104", "lists") if diff.kind is Kind.LISTS else ("PD108", "outcomes")
        if diff.kind is not Kind.SKIPPED:
            return code, (
                f"In round {diff.ordinal} of {queue} the {what} differ; what {named(lost)} had can't be read from its"
                " recording any more, so the cause can't be told."
            )
    pending = _pending(group, found) if queue == "decode.prealloc" else {}
    if pending:
        room, ranks = next(iter(pending.items()))
        others = [name for name in names if name not in ranks]
        return (
            "PD106",
            f"Room {room} is still pending on {named(ranks)} and in the handshake on {named(others)}.",
        )
    if diff.kind is Kind.SKIPPED:
        odd = [names[n] for n in diff.odd]
        lengths = {run.n for run in diff.runs if run is not None}
        polls = "/".join(map(str, sorted(lengths)))
        rest = [name for name in names if name not in odd]
        return "PD103", (
            f"{named(odd)} had nothing in {queue} and skipped the collective of round {diff.ordinal};"
            f" {named(rest)} entered it with {formatting.counted(queue, polls)}."
        )
    if diff.kind is Kind.LISTS:
        counts = [f"{name} {run.n}" for name, run in zip(names, diff.runs, strict=True) if run is not None]
        if found:
            return (
                "PD104",
                f"In round {diff.ordinal} of {queue} the lists differ ({', '.join(counts)}): {diverged(diff, found)}.",
            )
        return "PD105", f"In round {diff.ordinal} of {queue} the same requests stand in another order."
    return _by_action(queue, diff, found)


def _lost(group: Group, queue: str, diff: Difference) -> list[bool]:
    views = [group.members[n] for n in group.judged]
    return [
        _known(view, queue, group.info.kind, run, diff.ordinal) is None
        for view, run in zip(views, diff.runs, strict=True)
    ]


def _by_action(queue: str, diff: Difference, found: tuple[RoomSplit, ...]) -> tuple[str, str]:
    for split in found:
        foreign = [s for s in split.sides if s.found not in (None, 0, split.room)]
        if foreign:
            return "PD107", (
                f"Room {split.room}: on {named(s.rank for s in foreign)} slot {foreign[0].slot} held room"
                f" {foreign[0].found}."
            )
        # Code with a gate aborts it, older code keeps it.
        late = [s for s in split.sides if s.action in ("kept", "aborted")]
        committed = [s for s in split.sides if s.action == "committed"]
        if late and committed and all(s.found == 0 for s in late):
            return "PD101", (
                f"Metadata of room {split.room} landed on {named(s.rank for s in committed)} before"
                f" {named(s.rank for s in late)}, and no gate held {named(s.rank for s in committed)} back."
                " The collective they wait in now is a victim."
            )
    return (
        "PD108",
        f"In round {diff.ordinal} of {queue} the same polls led to different actions: {diverged(diff, found)}.",
    )


def _pending(group: Group, found: tuple[RoomSplit, ...]) -> dict[int, list[str]]:
    """Return rooms that a rank without them in the handshake has in decode.pending: by its queues now, or its events."""
    pending: dict[int, list[str]] = {}
    for split in found:
        for n in group.judged:
            view = group.members[n]
            side = next((s for s in split.sides if s.rank == group.place(n)), None)
            if view is None or side is None or side.action != NOT_THERE:
                continue
            if _is_pending(view, split.room):
                pending.setdefault(split.room, []).append(group.place(n))
    return pending


def _is_pending(view: RankView, room: int) -> bool:
    """Return whether the rank has (or, without a live answer, had) the room in decode.pending and never in the handshake.

    A receiver that is enqueued on arrival (SGLang from 0.5.10.post1 on) enters decode.prealloc and decode.pending at once.
    """
    entered = _enqueued(view, room)
    was = {event.queue for event in entered if event.text == entered[-1].text}  # of the newest request with this room
    now = was
    if view.snapshot is not None:
        queues = view.snapshot.queues
        now = {name for name, entries in queues.items() if any(entry.room == room for entry in entries)}
    return "decode.pending" in now and not (was | now) & {"decode.prealloc", "decode.transfer"}


def _odd_ranks(group: Group, diff: Difference, found: tuple[RoomSplit, ...]) -> tuple[str, ...]:
    names = [group.place(n) for n in group.judged]
    if diff.odd:
        return tuple(names[n] for n in diff.odd)
    odd: dict[str, None] = {}
    for split in found:
        by_action: dict[str, list[str]] = {}
        for s in split.sides:
            by_action.setdefault(s.action, []).append(s.rank)
        fewest = min(len(ranks) for ranks in by_action.values())
        for ranks in by_action.values():
            if len(ranks) == fewest:
                odd.update(dict.fromkeys(ranks))
    return tuple(name for name in names if name in odd) or tuple(names)


def _evidence(queue: str, diff: Difference, found: tuple[RoomSplit, ...]) -> list[str]:
    lines = [f"first difference: round {diff.ordinal} of {queue}"]
    for split in found[:5]:
        for s in split.sides:
            did, knew = formatting.side(s)
            lines.append(f"room {split.room}: {s.rank} {did}" + (f"; {knew}" if knew else ""))
    return lines


_RESTART = "Restart this decode server now: its group can't recover by itself."
_GATE, _ZEROING = "gate", "zero-on-free"
_GATED = "0.5.13"
"""The release from which on SGLang has both."""
_PATCHED = "Find what took the gate out of this build, a patch or a setting, and install the release as it is."


def _advice(code: str, identity: Identity) -> tuple[str, str]:
    """Return what the code of this rank's engine has to do with it, and the next step that fits; "" for the catalogue's."""
    if code not in ("PD101", "PD107"):
        return "", ""
    engine = {"sglang": "SGLang"}.get(identity.engine, identity.engine)
    name, old = f"{engine} {identity.engine_version}".strip(), _GATE in identity.lacks
    taken_out = old and engine == "SGLang" and bool(within(identity.engine_version, f">={_GATED}"))
    if code == "PD101":
        if taken_out:
            said = f"this {name} has no metadata gate, though its release has one (PR 26394)."
            return said, f"{_RESTART} {_PATCHED}"
        if old:
            return f"{name} has no metadata gate; SGLang has one from {_GATED} on (PR 26394).", ""
        said = f"{name} has a metadata gate, and yet this happened: report it with this output."
        return said, f"{_RESTART} Keep the recordings (pdctl record): an upgrade that would prevent it is not known."
    # SGLang zeroes slots from the version on that has the gate.
    if taken_out:
        return f"this {name} lacks the metadata gate of its release, and may not zero slots.", f"{_RESTART} {_PATCHED}"
    if _ZEROING in identity.lacks or (identity.engine == "sglang" and old):
        return f"{name} does not zero slots when it frees them; SGLang does from {_GATED} on.", ""
    late = (
        f"{_RESTART} pdctl story of the room found there shows how it ended: a request that is aborted while prefill"
        " writes its metadata may be written late."
    )
    return f"{name} zeroes slots when it frees them: the room was written after that, late.", late
