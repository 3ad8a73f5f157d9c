"""Reads of far recordings only what ``story`` tells from.

That is the events and runs of the room, the newest list of a queue in which it may still be, the same of other rooms with its
request ids, aborts and ends of faults that may be its, and when its slots were taken. Of ranks with different clocks it is
also the messages between the sides, and all runs of queues that they share. Of ranks with one clock, digests prove that they
had the same rounds: then a few rounds tell whether they have one. Else all runs of the queue are read, and where an answer is
odd, the whole recording.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdctl.probes.story.find import known_rooms, meant, room_of
from pdctl.probes.story.judge import aligned
from pdctl.probes.story.sync import STEPS, clocks_of, shared_streams
from pdctl.protocol.model import UNKNOWN, Action, EventKind
from pdctl.recording.digest import Digests, whole
from pdctl.recording.excerpt import MAX_RIDS, Excerpt, Part, Wanted, digests_of
from pdctl.recording.format import kept_text
from pdctl.recording.reader import BadRecording, Recording

Ask = Callable[[Mapping[int, Wanted]], Mapping[int, "Part | None"]]
"""Takes what is wanted of the recordings with these numbers. Returns the answers, None without one."""
Read = Callable[[Sequence[int]], Mapping[int, "Recording | None"]]
"""Returns the whole recordings with these numbers."""
_AROUND = (EventKind.ABORT, EventKind.FAULT_ENDED)
"""Events without a room that may be of this one."""
_MOST_QUESTIONS = 10
_MOST = 2048
"""Rooms, and slots, of one question."""


def first_of(asked: str) -> Wanted:
    """Return what is wanted first of every recording."""
    number = room_of(asked)
    rooms = [number] if 0 < number < 1 << 64 else []
    return Wanted(
        newest=1,
        rooms=rooms,
        seen=bool(rooms),
        oldest=True,
        kinds=list(map(int, _AROUND)),
        rids=[kept_text(asked)],
        sound=True,
    )


@dataclass(frozen=True)
class _Shared:
    """A queue of one group. streams: the number of its stream in each recording. first, last: the rounds that all have."""

    streams: dict[int, int]
    first: int
    last: int


class Reading:
    """Reads what is needed of the recordings behind ``excerpts``, by number.

    recordings: those that were read whole; once :meth:`read` was called, all of them.
    """

    def __init__(
        self, asked: str, recordings: Mapping[int, Recording], excerpts: Mapping[int, Excerpt], ask: Ask, read: Read
    ) -> None:
        self.recordings = {**recordings, **{n: one.recording for n, one in excerpts.items()}}
        self._asked, self._ask, self._whole = asked, ask, read
        self._excerpts = dict(excerpts)
        self._rooms: list[int] = []
        first = first_of(asked)
        self._had: dict[tuple[int, str], set[Any]] = {
            (n, name): set(getattr(first, name)) for n in excerpts for name in ("rooms", "rids", "slots", "lists")
        }
        self._parts: dict[int, Part] = {}

    def read(self) -> None:
        """Ask until the story can be told."""
        more, shared = self._for_clocks()
        doubted = False
        for _ in range(_MOST_QUESTIONS):
            named = self._for_rooms()
            if named is None:
                break
            fields = {n: {**more.get(n, {}), **named.get(n, {})} for n in self._excerpts}
            asked = {n: Wanted(**one) for n, one in fields.items() if one}
            if asked:
                self._take(asked)
                more, shared = self._unproven(shared), []
            elif lacking := [n for n in self._excerpts if not self._listed(n)]:
                self._read_whole(lacking)
            else:
                more = self._contradicted() if self._excerpts and not doubted else {}
                doubted = True
                if not more:
                    return
        self._read_whole(list(self._excerpts))

    def _take(self, asked: Mapping[int, Wanted]) -> None:
        self._parts, odd = {}, []
        for n, part in self._ask(asked).items():
            if part is None or part.whole:
                odd.append(n)
                continue
            try:
                self._excerpts[n].add(part)
            except BadRecording:
                odd.append(n)
            else:
                self._parts[n] = part
                self.recordings[n] = self._excerpts[n].recording
        self._read_whole(odd)

    def _read_whole(self, those: Sequence[int]) -> None:
        found = self._whole(those) if those else {}
        for n in those:
            del self._excerpts[n], self.recordings[n]
            recording = found.get(n)
            if recording is not None:
                self.recordings[n] = recording

    # ---- rooms -------------------------------------------------------------------------------------------------------

    def _for_rooms(self) -> dict[int, dict[str, Any]] | None:
        """Return what was not asked for yet of the rooms that are meant, and of others with their ids.

        None where no recording knows a room, or that would be too much.
        """
        recordings = list(self.recordings.values())
        known = known_rooms(recordings)
        self._rooms = meant(self._asked, known, recordings)
        if not self._rooms:
            return None
        rids = {kept_text(self._asked)}.union(*(one.rids for one in known if one.room in self._rooms))
        rooms = {one.room for one in known if not rids.isdisjoint(one.rids)}.union(self._rooms)
        wanted: dict[int, dict[str, Any]] = {}
        for n, excerpt in self._excerpts.items():
            slots = _slots(excerpt.recording, set(self._rooms))
            for name, each, most in (("rooms", rooms, _MOST), ("rids", rids, MAX_RIDS), ("slots", slots, _MOST)):
                new = sorted(each - self._had[n, name])
                if len(new) > most:
                    return None
                self._had[n, name].update(new)
                if new:
                    wanted.setdefault(n, {})[name] = new
                    wanted[n]["seen"] = "rooms" in wanted[n]
            for number, last in _waited_in(excerpt.recording, rooms).items():
                if number not in self._had[n, "lists"]:
                    self._had[n, "lists"].add(number)
                    wanted.setdefault(n, {}).setdefault("lists", {})[number] = [last]
        return wanted

    def _listed(self, n: int) -> bool:
        """Return whether the newest lists that were asked for can be read: not where another client's look came between."""
        streams = self._excerpts[n].recording.streams
        return all(s.rows(len(s) - 1) is not None for s in streams if s.number in self._had[n, "lists"])

    # ---- clocks ------------------------------------------------------------------------------------------------------

    def _for_clocks(self) -> tuple[dict[int, dict[str, Any]], list[_Shared]]:
        """Return what tells how the clocks are apart, and the streams whose digests are asked for."""
        clocks = dict(zip(self.recordings, clocks_of(self.recordings.values()), strict=True))
        wanted = self._steps() if len(set(clocks.values())) > 1 else {}
        shared = []
        for one in self._streams():
            if len({clocks[n] for n in one.streams}) > 1 or one.first >= one.last:
                _join(wanted, self._all([one]))
                continue
            shared.append(one)
            for n in self._excerpts.keys() & one.streams.keys():
                number = one.streams[n]
                cuts, rounds = {number: [one.first, one.first, one.last]}, {number: [one.last]}
                _join(wanted, {n: {"cuts": cuts, "rounds": rounds}})
        return wanted, shared

    def _steps(self) -> dict[int, dict[str, Any]]:
        """Return a question for the messages between the sides."""
        return {n: {"kinds": list(map(int, STEPS))} for n in self._excerpts}

    def _streams(self) -> list[_Shared]:
        """Return the streams that several ranks share, of which one is not read whole."""
        numbers = list(self.recordings)
        found = []
        for members in shared_streams(self.recordings.values()):
            streams = {numbers[n]: stream for n, stream in members}
            if len(streams) > 1 and self._excerpts.keys() & streams.keys():
                first, last = max(s.first for s in streams.values()), min(s.last for s in streams.values())
                found.append(_Shared({n: stream.number for n, stream in streams.items()}, first, last))
        return found

    def _all(self, shared: Iterable[_Shared]) -> dict[int, dict[str, Any]]:
        """Return a question for all runs of these streams."""
        wanted: dict[int, dict[str, Any]] = {}
        for one in shared:
            _join(wanted, {n: {"runs": [one.streams[n]]} for n in self._excerpts.keys() & one.streams.keys()})
        return wanted

    def _unproven(self, shared: Iterable[_Shared]) -> dict[int, dict[str, Any]]:
        """Return a question for all runs of the streams whose digests are not equal, or not known."""
        unproven = []
        for one in shared:
            digests = {self._digest(n, one) for n in one.streams}
            if None in digests or len(digests) > 1:
                unproven.append(one)
        return self._all(unproven)

    def _digest(self, n: int, one: _Shared) -> bytes | None:
        """Return the digest of the rounds that all members have but the last."""
        if n in self._excerpts:
            part = self._parts.get(n)
            found = digests_of(part, one.streams[n], 1) if part is not None else None
        else:
            streams = self.recordings[n].streams if n in self.recordings else ()
            table = next((stream.table for stream in streams if stream.number == one.streams[n]), None)
            found = Digests(table).of(one.first, [one.first, one.last]) if table is not None and whole(table) else None
        return found[0] if found else None

    def _contradicted(self) -> dict[int, dict[str, Any]]:
        """Return a question for all that tells of clocks, where ranks of one host have several by their rounds."""
        recordings = [self.recordings[n] for n in sorted(self.recordings)]
        count = len(set(clocks_of(recordings)))
        if count == len(recordings) or all(
            len({time.clock for time in aligned(recordings, room)[1]}) == count for room in self._rooms
        ):
            return {}
        wanted = self._steps()
        _join(wanted, self._all(self._streams()))
        return wanted


def _join(wanted: dict[int, dict[str, Any]], more: Mapping[int, dict[str, Any]]) -> None:
    """Add to what is wanted of each recording more of the same, by stream."""
    for n, fields in more.items():
        for name, those in fields.items():
            before = wanted.setdefault(n, {}).setdefault(name, type(those)())
            wanted[n][name] = {**before, **those} if isinstance(those, dict) else [*before, *those]


def _waited_in(recording: Recording, rooms: Collection[int]) -> dict[int, int]:
    """Return the newest round of each stream in whose newest list one of these rooms may be, by the stream's number.

    It may be where nothing says that it was decided on in an earlier run.
    """
    found = {}
    for stream in recording.streams:
        last, kept = dict[int, int](), dict[int, int]()
        for row, item in stream.sightings(rooms):
            last[item.room] = row
            if item.action in (Action.KEPT, UNKNOWN):
                kept[item.room] = row
        if any(row in (kept.get(room), len(stream) - 1) for room, row in last.items()):
            found[stream.number] = stream.last
    return found


def _slots(recording: Recording, rooms: Collection[int]) -> set[int]:
    """Return the slots that these rooms had."""
    found = {e.slot for e in recording.events() if e.room in rooms or e.kind is EventKind.LANDED}
    found.update(item.slot for stream in recording.streams for _, item in stream.sightings(rooms))
    return {slot for slot in found if slot >= 0}
