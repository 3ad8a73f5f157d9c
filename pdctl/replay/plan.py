"""The plan of a replay: the rounds of one queue over one group, rank by rank, from recordings. Pure.

A recorded round is executed with the rank's own inputs: its polls, and the room in each metadata slot. The replay computes the
consequences (gate, reduction, commit). Independent events (arrivals, requests lost or aborted from outside, decisions of queues
that wait for memory) happen as recorded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from pdctl.engines.sglang.elements import INT32, UINT8, poll_type
from pdctl.protocol.model import UNKNOWN, Action, EventKind, Identity, KVPoll, Phase

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording
    from pdctl.recording.streams import Item, Run, Stream

HAS_ROWS = "decode.transfer"
"""The queue whose requests wait for a row in their metadata slot."""
DECIDED_BY_POLLS = (HAS_ROWS, "prefill.inflight")
"""Queues that a request leaves because of its reduced poll alone; with pipeline stages, which agree first, not the second."""
REPEATS = 1000
MAX_ROUNDS = 1 << 21
"""Rounds that are executed at most, where fewer repeats of each run make that possible."""
MAX_SLOTS = 1 << 20
MAX_RANKS = 128
"""Processes that are started for one group at most."""
TAIL = 16
"""Rounds after the last recorded one, at least."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A request of the queue. Numbered by its place in the plan. slots: by rank, -1 without one."""

    room: int
    slots: tuple[int, ...]


class Step(msgspec.Struct, array_like=True):
    """What changes on one rank before a round. Requests are numbers.

    arrive: appended, in order. lost: gone without a decision. polls: (request, own poll) from here on. rows: (request, room
    in its slot) from here on. acts: (request, Action) that the rank took in this round, other than KEPT.
    """

    arrive: list[int] = []
    lost: list[int] = []
    polls: list[tuple[int, int]] = []
    rows: list[tuple[int, int]] = []
    acts: list[tuple[int, int]] = []


class RankPlan(msgspec.Struct, frozen=True):
    """One rank: ``steps`` by round of the replay. gate: whether its code has the metadata gate."""

    label: str
    place: str
    gate: bool
    steps: dict[int, Step]


class Plan(msgspec.Struct, frozen=True):
    """The rounds of one queue over one group.

    rounds: executed rounds that were recorded, ``ordinals`` their numbers there; tail: rounds after them, in which the rest
    lands. left_out: recorded rounds equal to the one before that are not executed. element: type of the reduced tensor.
    slots: metadata slots. missing: ranks of the group without a recording. engine: that recorded them, with its version.
    decides: requests leave because of their reduced polls alone; otherwise as recorded.
    """

    queue: str
    title: str
    element: str
    requests: tuple[Request, ...]
    ranks: tuple[RankPlan, ...]
    ordinals: tuple[int, ...]
    tail: int
    left_out: int = 0
    slots: int = 1
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    engine: str = ""
    decides: bool = False

    @property
    def rounds(self) -> int:
        """Executed rounds that were recorded."""
        return len(self.ordinals)

    @property
    def gated(self) -> bool:
        """Whether every rank's code has the gate."""
        return all(rank.gate for rank in self.ranks)


class NotReplayable(ValueError):  # noqa: N818  # as BadRecording: it is the trace that is not
    """Why these rounds can't be executed again, in words."""


def plan(
    recordings: Sequence[Recording],
    queue: str,
    title: str,
    *,
    repeats: int = REPEATS,
    missing: tuple[str, ...] = (),
) -> Plan:
    """Return the plan of a queue's rounds over the group of these ranks, in group order.

    repeats: of rounds that are equal on every rank, execute at most so many in a row. Raises
    NotReplayable where the rounds, or the requests in them, are not known.
    """
    streams = [recording.stream(queue) for recording in recordings]
    known = [stream for stream in streams if stream is not None]
    if not known:
        raise NotReplayable(f"no rank has rounds of {queue}")
    if len(recordings) > MAX_RANKS:
        raise NotReplayable(f"it has {len(recordings)} ranks, and at most {MAX_RANKS} processes are started")
    begin, end = _span(known)
    views = [_View(recording, stream, begin, end) for recording, stream in zip(recordings, streams, strict=True)]
    identity = recordings[0].identity
    decides = queue in DECIDED_BY_POLLS and (queue == HAS_ROWS or identity.pp_size == 1)
    under_way = min((stream.last for stream in known if stream.newest.phase is not Phase.APPLIED), default=end + 1)
    for view in views:
        view.forget_acts(under_way, forced(decides=decides))
    rooms = list(dict.fromkeys(room for view in views for room in view.rooms))
    numbers = {room: number for number, room in enumerate(rooms)}
    marks = sorted({begin, *(at for view in views for at in view.changes if begin <= at <= end)})
    repeats = max(1, min(repeats, MAX_ROUNDS // len(marks)))
    ordinals: list[int] = []
    places: dict[int, int] = {}
    for mark, after in zip(marks, [*marks[1:], end + 1], strict=True):
        places[mark] = len(ordinals)
        ordinals += range(mark, min(after, mark + max(1, repeats)))
    late = sorted({at for view in views for at in view.later})
    places.update({at: len(ordinals) + 1 + number for number, at in enumerate(late)})
    ranks = []
    for view, recording in zip(views, recordings, strict=True):
        i = recording.identity
        steps = {places[at]: view.step(at, numbers) for at in {*marks, *view.later} if at in places}
        kept = {place: step for place, step in steps.items() if step != Step()}
        ranks.append(RankPlan(i.label, f"tp{i.tp}", "gate" not in i.lacks, kept))
    slots = tuple(tuple(view.slots.get(room, -1) for view in views) for room in rooms)
    highest = max((slot for of in slots for slot in of), default=0)
    if highest >= MAX_SLOTS:
        raise NotReplayable(f"a request of its rounds is said to be in metadata slot {highest}; no engine has so many")
    return Plan(
        queue=queue,
        title=title,
        element=_element(identity),
        requests=tuple(Request(room, of) for room, of in zip(rooms, slots, strict=True)),
        ranks=tuple(ranks),
        ordinals=tuple(ordinals),
        tail=len(late) + TAIL,
        left_out=end + 1 - begin - len(ordinals),
        slots=1 + highest,
        missing=missing,
        notes=tuple(dict.fromkeys(note for view in views for note in view.notes)),
        engine=f"{'SGLang' if identity.engine == 'sglang' else identity.engine} {identity.engine_version}",
        decides=decides,
    )


def forced(*, decides: bool) -> tuple[int, ...]:
    """Return the actions that are executed as recorded, in a queue whose polls decide or do not (:attr:`Plan.decides`)."""
    return (int(Action.MOVED),) if decides else tuple(map(int, Action))


def _element(identity: Identity) -> str:
    if identity.element in (UINT8, INT32):
        return identity.element
    return poll_type(identity.engine_version) if identity.engine == "sglang" else UINT8


def _span(streams: Sequence[Stream]) -> tuple[int, int]:
    """Return the first and last ordinal of the newest stretch that every rank knows without a gap."""
    begin = 0
    for stream in streams:
        row = len(stream) - 1
        while row > 0 and int(stream.table["ordinal"][row]) == int(stream.ends[row - 1]) + 1:
            row -= 1
        while row < len(stream) and stream.rows(row) is None:
            row += 1  # its requests can't be rebuilt
        if row == len(stream):
            raise NotReplayable("the requests of its rounds can't be rebuilt: the recording has overwritten them")
        begin = max(begin, stream.run(row).ordinal)
    end = max(stream.last for stream in streams)
    if begin > end:
        raise NotReplayable("no round is known on every rank")
    return begin, end


class _View:
    """One rank's rounds as changes by ordinal. later: moments after the last round, as numbers past its ordinal."""

    def __init__(self, recording: Recording, stream: Stream | None, begin: int, end: int) -> None:
        self.rooms: dict[int, None] = {}
        self.slots: dict[int, int] = {}
        self.notes: list[str] = []
        self._steps: dict[int, _Raw] = {}
        self._label = recording.identity.label
        if stream is not None:
            runs = [
                (run, stream.items(run))
                for run in (stream.run(row) for row in range(len(stream)))
                if run.last >= begin and run.ordinal <= end
            ]
            left = self._read(runs, begin)
            visits = recording.visits.get(stream.queue)
            if left and stream.last < end and visits is not None and visits.empty:
                # It found its queue empty after its last round: what was in it was lost without a round to show it.
                self._at(stream.last + 1).lost += left
            if stream.queue == HAS_ROWS:
                self._land(recording, runs, end)
        self.changes = {at for at in self._steps if at <= end}
        self.later = {at for at in self._steps if at > end}

    def forget_acts(self, begin: int, actions: Collection[int]) -> None:
        """Forget these actions from round ``begin`` on, that a rank was still in when it was read: what it did is unknown."""
        for at, raw in self._steps.items():
            if at >= begin:
                raw.acts = {room: action for room, action in raw.acts.items() if action not in actions}

    def step(self, ordinal: int, numbers: dict[int, int]) -> Step:
        """Return what changes before round ``ordinal``."""
        raw = self._steps.get(ordinal)
        if raw is None:
            return Step()
        return Step(
            [numbers[room] for room in raw.arrive],
            [numbers[room] for room in raw.lost],
            [(numbers[room], value) for room, value in raw.polls.items()],
            [(numbers[room], value) for room, value in raw.rows.items()],
            [(numbers[room], value) for room, value in raw.acts.items()],
        )

    def _at(self, ordinal: int) -> _Raw:
        return self._steps.setdefault(ordinal, _Raw())

    def _read(self, runs: Iterable[tuple[Run, list[Item] | None]], begin: int) -> list[int]:
        """Take in the rounds; returns the rooms that are left after the last one."""
        present: dict[int, None] = {}
        local: dict[int, int] = {}
        for run, items in runs:
            if items is None:
                raise NotReplayable(f"{self._label}: the requests of round {run.ordinal} can't be rebuilt")
            at = max(run.ordinal, begin)
            listed = dict.fromkeys(item.room for item in items)
            if len(listed) < len(items):
                raise NotReplayable(f"{self._label}: round {run.ordinal} has one room twice")
            raw = self._at(at)
            raw.lost += [room for room in present if room not in listed]
            raw.arrive += [room for room in listed if room not in present]
            if list(listed) != [*(room for room in present if room in listed), *raw.arrive]:
                self.notes.append(f"{self._label} changed the order of its list in round {run.ordinal}: not replayed")
            self.rooms.update(listed)
            for item in items:
                self.slots.setdefault(item.room, item.slot)
                if local.get(item.room) != item.local:
                    raw.polls[item.room] = local[item.room] = item.local
            present = listed
            for item in items:
                if item.action not in (int(Action.KEPT), UNKNOWN) and run.phase is Phase.APPLIED:
                    self._at(run.last).acts[item.room] = item.action
                    present.pop(item.room)
        return list(present)

    def _land(self, recording: Recording, runs: Sequence[tuple[Run, list[Item] | None]], end: int) -> None:
        """Note the room of each slot: from reads of the slot, from the gate's effect, and from landing events."""
        landed = {
            event.room: event
            for event in recording.events()
            if event.kind is EventKind.LANDED and event.room in self.rooms
        }
        known: dict[int, int] = {}
        for run, items in runs:
            for item in items or ():
                if item.local != KVPoll.SUCCESS or item.slot < 0:  # its slot has not been looked at
                    continue
                held = item.gated == KVPoll.TRANSFERRING
                event = landed.get(item.room)
                if item.found is not None:
                    value = item.found
                elif held or (event is not None and item.room not in known):
                    value = 0
                elif item.room in known:
                    continue
                else:
                    value = item.room
                if known.get(item.room) != value:
                    self._at(run.ordinal).rows[item.room] = known[item.room] = value
        late = 0
        for room, event in sorted(landed.items(), key=lambda pair: pair[1].mono_ns):
            if known.get(room) == room:
                continue
            at = _round_of(event.mono_ns, [run for run, _ in runs])
            if at is None or at > end:
                late += 1
                at = end + late
            self._at(at).rows[room] = event.b or room


def _round_of(mono_ns: int, runs: Sequence[Run]) -> int | None:
    """Return the ordinal of the first round that was entered at or after a moment, None after the last."""
    index = bisect_left([run.t_enter for run in runs], mono_ns)
    if index == len(runs):
        return None
    run = runs[index]
    if run.repeat == 1 or mono_ns <= run.t_first:
        return run.ordinal
    share = (mono_ns - run.t_first) / max(1, run.t_enter - run.t_first)
    return run.ordinal + min(run.repeat - 1, 1 + int(share * (run.repeat - 1)))


class _Raw:
    """A step by rooms instead of numbers."""

    def __init__(self) -> None:
        self.arrive: list[int] = []
        self.lost: list[int] = []
        self.polls: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        self.acts: dict[int, int] = {}
