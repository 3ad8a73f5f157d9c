"""What ranks answer, and what they recorded: each question is asked at most once, of all ranks at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pdctl.protocol.metadata import Metadata
from pdctl.protocol.model import EventKind, FlightEntry, Moment, Snapshot, Status
from pdctl.protocol.rank import Answer, FoundRank, Silence
from pdctl.protocol.requests import Rooms, Settings
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from pdctl.targets.recordings import recording_file

if TYPE_CHECKING:
    from pdctl.recording.excerpt import Excerpt, Part, Wanted
    from pdctl.recording.reader import Event, Recording

T = TypeVar("T")
MOST_KEPT = 16
"""Recordings that are kept once they are read: they are large."""


class Asking:
    """The ranks found, what each has answered so far, and its recording. found, ranks: those that are looked at."""

    def __init__(self, found: Found, client: Client, *, anything: list[bool] | None = None) -> None:
        self.found = found
        self.client = client
        self._anything = [] if anything is None else anything
        self._answers: dict[tuple[str, bytes], dict[int, Answer[Any]]] = {}
        self._recordings: dict[tuple[int, bool, bool], Answer[Recording]] = {}
        self._once: dict[str, Any] = {}
        self._first: dict[str, float] = {}

    @property
    def ranks(self) -> tuple[FoundRank, ...]:
        """The ranks that are looked at."""
        return self.found.ranks

    @property
    def seen(self) -> bool:
        """Whether any rank has answered anything, or any recording could be read, in this look or one after it."""
        return bool(self._anything)

    def once(self, name: str, collect: Callable[[], T]) -> T:
        """Return what ``collect`` found when it was first asked for under ``name`` in this look."""
        if name not in self._once:
            self._once[name] = collect()
        found: T = self._once[name]
        return found

    # ---- time --------------------------------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Wait before another look, and not beyond the deadline."""
        self.client.pause(seconds)

    def left(self, most: float) -> float:
        """Return the seconds that are left until the deadline, at most ``most``."""
        return self.client.deadline.left(most)

    def since(self, op: str) -> float:
        """Return the seconds since ``op`` was first answered in this look, 0.0 where it was not asked yet."""
        now = time.monotonic()
        return now - self._first.get(op, now)

    @property
    def over(self) -> str:
        """Say that the deadline has passed, "" while there is time left."""
        return self.client.over

    # ---- answers -----------------------------------------------------------------------------------------------------

    def ask(
        self, op: str, kind: type[T], ranks: Iterable[FoundRank] | None = None, args: dict[str, Any] | None = None
    ) -> list[Answer[T]]:
        """Return what each of ``ranks`` (default: all) answers to ``op``, in their order; asked are those not asked yet."""
        return self.ask_each([(rank, args or {}) for rank in (self.ranks if ranks is None else ranks)], op, kind)

    def ask_each(
        self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str, kind: type[T]
    ) -> list[Answer[T]]:
        """Return what each rank answers to ``op`` with arguments of its own; otherwise as :meth:`ask`."""
        new = [(rank, args) for rank, args in questions if id(rank) not in self._of(op, args)]
        if new:
            for (_, args), answer in zip(new, self.client.ask_each(new, op, kind), strict=True):
                self._keep(op, args, [answer])
        answers = [self._of(op, args)[id(rank)] for rank, args in questions]
        self._note(*answers)
        return answers

    def _of(self, op: str, args: dict[str, Any]) -> dict[int, Answer[Any]]:
        return self._answers.setdefault((op, msgspec.json.encode(args, order="sorted")), {})

    def _keep(self, op: str, args: dict[str, Any], answers: Iterable[Answer[Any]]) -> None:
        self._first.setdefault(op, time.monotonic())
        for answer in answers:
            self._of(op, args)[id(answer.rank)] = answer

    def _note(self, *answers: Answer[Any]) -> None:
        if not self._anything and any(answer.body is not None for answer in answers):
            self._anything.append(True)

    def status(self, ranks: Iterable[FoundRank] | None = None) -> list[Answer[Status]]:
        """Return who each rank is, where its main thread is, and its counters."""
        return self.ask("status", Status, ranks)

    def moments(self, ranks: Iterable[FoundRank] | None = None) -> list[Answer[Moment]]:
        """Return how far each rank's loop is, and where its main thread is: what of a status changes, for further looks."""
        return self.ask("status", Moment, ranks, {"moment": True})

    def queues(self, ranks: Iterable[FoundRank] | None = None) -> list[Answer[Snapshot]]:
        """Return which rooms are in each queue."""
        return self.ask("queues", Snapshot, ranks)

    def rooms(self, ranks: Iterable[FoundRank] | None = None) -> list[Answer[Rooms]]:
        """Return every request of every queue, with its state."""
        return self.ask("rooms", Rooms, ranks)

    def settings(self, ranks: Iterable[FoundRank] | None = None) -> list[Answer[Settings]]:
        """Return with which settings each rank runs."""
        return self.ask("settings", Settings, ranks)

    def flights(self, ranks: Iterable[FoundRank] | None = None) -> list[Answer[list[FlightEntry]]]:
        """Return what is in each rank's flight recorder. Dear."""
        return self.ask("flight_recorder", list[FlightEntry], ranks)

    def metadata(
        self,
        ranks: Iterable[FoundRank] | None = None,
        *,
        slots: Sequence[int] = (),
        rooms: Sequence[int] = (),
        every: bool = False,
        sums: bool = True,
    ) -> list[Answer[Metadata]]:
        """Return the metadata slots. slots, rooms: only these. every: also free, empty ones. sums: with checksums."""
        args = {"slots": list(slots), "rooms": list(rooms), "every": every, "sums": sums}
        return self.ask("metadata", Metadata, ranks, args)

    def _timed_out(self, rank: FoundRank) -> bool:
        """Return whether a rank has let a question of this view pass, so that it is not worth to wait for it again."""
        answers = (known.get(id(rank)) for known in self._answers.values())
        return any(answer is not None and answer.silence is Silence.TIMED_OUT for answer in answers)

    # ---- recordings --------------------------------------------------------------------------------------------------

    @staticmethod
    def has_recording(rank: FoundRank) -> bool:
        """Return whether there is a recording of the rank, in a file or behind its socket."""
        return rank.recording is not None or rank.carries_recording

    def recording(self, rank: FoundRank, *, sockets: bool = True, files: bool = True) -> Answer[Recording]:
        """Return a rank's recording, or why it can't be read.

        sockets: through its socket where its file can't be read. files: False for its socket only. A file is read once,
        with as many others as MOST_KEPT.
        """
        [answer] = self.recordings([rank], sockets=sockets, files=files)
        return answer

    def recordings(
        self, ranks: Sequence[FoundRank], *, sockets: bool = True, files: bool = True
    ) -> list[Answer[Recording]]:
        """Return what :meth:`recording` does of each of these ranks, fetched from many at the same time."""
        known = {id(rank): self._known_recording(rank, sockets=sockets, files=files) for rank in ranks}
        new = [rank for rank in ranks if known[id(rank)] is None]
        if sockets:
            read = self.client.recordings.read(new, through_socket=not files)
        else:
            read = [recording_file(rank) for rank in new]
        self._note(*read)
        for answer in read:
            known[id(answer.rank)] = answer
            if len(self._recordings) < MOST_KEPT:
                self._recordings[id(answer.rank), sockets, files] = answer
        return [one for rank in ranks if (one := known[id(rank)]) is not None]

    def _known_recording(self, rank: FoundRank, *, sockets: bool, files: bool) -> Answer[Recording] | None:
        answer = self._recordings.get((id(rank), sockets, files))
        if answer is None and files:
            other = self._recordings.get((id(rank), not sockets, True))
            of_file = other is not None and other.body is not None and other.body.path == str(rank.recording)
            answer = other if of_file else None
        return answer

    @staticmethod
    def is_far(rank: FoundRank) -> bool:
        """Return whether a rank's recording is on another host, so that only a part of it is read where that is enough."""
        return rank.access is not None and rank.live and bool(rank.recording_size)

    def parts(self, wanted: Sequence[tuple[FoundRank, Wanted]]) -> list[Answer[Part]]:
        """Return what is wanted of the recordings of ranks on other hosts."""
        from pdctl.recording.excerpt import OP, Part  # loads numpy

        return self.client.ask_each([(rank, msgspec.to_builtins(one)) for rank, one in wanted], OP, Part)

    def excerpts(self, wanted: Sequence[tuple[FoundRank, Wanted]]) -> list[Answer[Excerpt]]:
        """Return excerpts of the recordings of ranks on other hosts, with their first parts.

        None with Silence.NONE: the whole recording has to be read, as of a rank whose agent does not know excerpts.
        """
        from pdctl.recording.excerpt import Together, opened

        together = Together()
        found: list[Answer[Excerpt]] = []
        for answer in self.parts(wanted) if wanted else ():
            if answer.body is None and answer.silence is not Silence.ERROR:
                found.append(Answer(answer.rank, None, answer.silence, answer.reason, answer.next_step, answer.code))
            else:
                identity = answer.rank.identity
                excerpt = opened(answer.body, identity, together) if answer.body is not None else None
                found.append(Answer(answer.rank, excerpt))
        self._note(*found)
        return found

    def events(
        self, rank: FoundRank, rooms: Collection[int] | None, kinds: Collection[EventKind]
    ) -> tuple[tuple[Event, ...], str]:
        """Return the events of these rooms (None: of all) and kinds in a recording, and why there are none, "" if there are."""
        if rank.recording is None:
            return (), rank.recording_off or "it has no recording"
        from pdctl.recording.reader import BadRecording, read_events  # loads numpy

        try:
            return tuple(read_events(rank.recording, rooms, kinds)), ""
        except (BadRecording, OSError) as error:
            return (), f"its recording can't be read: {error}"
