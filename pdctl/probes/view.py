"""One look at ranks that all probes of a command share: each question is asked at most once, of all ranks at the same time.

What a rank's silent agent does not tell is read from outside in its place, where that is possible, for every probe alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pdctl.probes import endings, parting, service_processes, service_threads, standing, turns
from pdctl.probes.endings import Endings
from pdctl.probes.parting import Recorded
from pdctl.probes.processes import ending, noted, now_ns, unsettled, with_look
from pdctl.probes.turns import STOOD_S, Looked, Loop, Turn
from pdctl.protocol.metadata import Metadata
from pdctl.protocol.model import EventKind, FlightEntry, Frame, Snapshot, Status
from pdctl.protocol.processes import look
from pdctl.protocol.rank import Answer, FoundRank, Silence
from pdctl.protocol.requests import Rooms, Settings
from pdctl.targets.client import Client
from pdctl.targets.fallback import apply_fallback
from pdctl.targets.find import Found
from pdctl.targets.recordings import recording_file

if TYPE_CHECKING:
    from pdctl.recording.excerpt import Excerpt, Part, Wanted
    from pdctl.recording.reader import Event, Recording
    from pdctl.report.findings import Finding

T = TypeVar("T")
MOST_KEPT = 16
"""Recordings that a view keeps once they are read: they are large."""
_PY_SPY_S = 2.0
_TURN_S = 0.5
_MOST_LOOKS = 14
"""Looks at a loop that may stand: so far apart, and no more than so many."""


class View:
    """The ranks found, what each has answered so far, and its recording. found, ranks: those that are looked at.

    others: ranks that were found and not chosen. recorded: recordings are all there is, and nobody is asked.
    """

    def __init__(
        self,
        found: Found,
        client: Client,
        *,
        others: tuple[FoundRank, ...] = (),
        recorded: bool = False,
        anything: list[bool] | None = None,
    ) -> None:
        self.found = found
        self.client = client
        self.others = others
        self.recorded = recorded
        self._anything = [] if anything is None else anything
        self._answers: dict[tuple[str, bytes], dict[int, Answer[Any]]] = {}
        self._recordings: dict[tuple[int, bool, bool], Answer[Recording]] = {}
        self._turns: list[Turn] | None = None
        self._endings: Endings | None = None
        self._once: dict[str, Any] = {}

    @classmethod
    def open(
        cls,
        found: Found,
        client: Client,
        *,
        others: tuple[FoundRank, ...] = (),
        recorded: bool = False,
        asks: bool = True,
    ) -> View:
        """Return the first look. asks: the ranks will be asked, so those with a silent agent are read from outside."""
        if recorded or not asks:
            return cls(found, client, others=others, recorded=recorded)
        found, statuses = apply_fallback(found, client)
        view = cls(found, client, others=others)
        ranks = {id(rank) for rank in found.ranks}
        view._keep("status", {}, [answer for answer in statuses if id(answer.rank) in ranks])
        return view

    @property
    def ranks(self) -> tuple[FoundRank, ...]:
        """The ranks that are looked at."""
        return self.found.ranks

    @property
    def seen(self) -> bool:
        """Whether any rank has answered anything, or any recording could be read, in this look or one after it."""
        return bool(self._anything)

    def again(self) -> View:
        """Return another look at the same ranks, now: nothing is known in it yet but what dead ranks recorded."""
        view = View(self.found, self.client, others=self.others, recorded=self.recorded, anything=self._anything)
        view._recordings = {key: answer for key, answer in self._recordings.items() if not answer.rank.live}
        return view

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
        for answer in answers:
            self._of(op, args)[id(answer.rank)] = answer

    def _note(self, *answers: Answer[Any]) -> None:
        if not self._anything and any(answer.body is not None for answer in answers):
            self._anything.append(True)

    def status(self, ranks: Iterable[FoundRank] | None = None) -> list[Answer[Status]]:
        """Return who each rank is, where its main thread is, and its counters."""
        return self.ask("status", Status, ranks)

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

    # ---- scheduler loops ---------------------------------------------------------------------------------------------

    def turns(self) -> list[Turn]:
        """Return whether each rank's scheduler loop turns, in the view's order.

        One look is enough where every loop has turned a moment ago. Else more are taken, within the deadline.
        """
        if self._turns is None:
            self._turns = self._watch_turns()
        return self._turns

    def loops(self) -> list[Loop]:
        """Return the loop of each rank that was found: first of those looked at, then of others, of which nothing is known."""
        judged = [Loop(rank.identity, turn) for rank, turn in zip(self.ranks, self.turns(), strict=True)]
        return [*judged, *(Loop(rank.identity) for rank in self.others)]

    def stage_recordings(self) -> dict[int, Recorded]:
        """Return the recordings of pipelines in which a loop stands, by the number of the rank."""
        found = {}
        for n in parting.stages(self.loops()):
            recording = self.recording(self.ranks[n], sockets=False).body if n < len(self.ranks) else None
            if recording is not None:
                now = now_ns(self.ranks[n], recording.start_wall_ns, recording.start_mono_ns)
                found[n] = Recorded(recording, now)
        return found

    def endings(self) -> Endings:
        """Return the ranks whose process has ended, with what their recordings tell, and the rooms of those that live.

        A process on another host that is said to have ended is left out.
        """
        if self._endings is None:
            gone = [turn.state == turns.ENDED for turn in self.turns()]
            living = [rank for rank, ended in zip(self.ranks, gone, strict=True) if not ended and _there(rank)]
            ended = [
                ending(rank, self.recording(rank, sockets=False).body)
                for rank, is_gone in zip(self.ranks, gone, strict=True)
                if is_gone
            ]
            rooms = self._rooms_of(living) if ended else {}
            others = [rank for rank in self.others if _there(rank)]
            self._endings = Endings(ended, [rank.identity for rank in (*living, *others)], rooms)
        return self._endings

    @cached_property
    def underlying(self) -> tuple[Finding, ...]:
        """What is wrong with what all requests rest on: processes that run, and scheduler loops that turn."""
        loops = self.loops()
        return (
            *endings.judge(self.endings()),
            *parting.judge(loops, self.stage_recordings()),
            *standing.judge(loops),
            *service_threads.judge(self.ended_threads()),
            *service_processes.judge(self.held_services()),
        )

    def ended_threads(self) -> list[service_threads.Ended]:
        """Return the threads beside schedulers that have ended, as live ranks say, and the recordings of others that run."""
        found: list[service_threads.Ended] = []
        asked = [] if self.recorded else [rank for rank in self.ranks if not self._timed_out(rank)]
        answers = {id(answer.rank): answer.body for answer in self.status(asked)}
        for rank in self.ranks:
            status = answers.get(id(rank))
            if status is not None and rank.state != "outside" and not rank.agent_off:
                for one in status.threads:
                    if one.ended:
                        age_s = max(0.0, (status.mono_ns - one.ended_mono_ns) / 1e9) if one.ended_mono_ns else None
                        found.append(service_threads.Ended(status.identity, one, age_s))
            elif rank.state != "dead" and rank.seen_live is not False:
                found += noted(rank, self.recording(rank, sockets=False).body)
        return found

    def held_services(self) -> list[service_processes.Serving]:
        """Return processes beside schedulers of this host that have ended or are stopped, in two looks where one shows any."""
        there = {rank.identity.pid: rank for rank in self.ranks if not self.recorded and _serves(rank)}
        if not there:
            return []
        from pdctl.introspect import services  # knows the engine

        first = services.held(there)
        if not first or self.left(STOOD_S) < STOOD_S:
            return []
        self.pause(STOOD_S)
        return [
            service_processes.Serving(there[pid].identity, one)
            for pid, found in services.held(first).items()
            for one in found
            if one in first[pid] and _serves(there[pid])
        ]

    def _rooms_of(self, living: Sequence[FoundRank]) -> dict[int, Rooms]:
        """Return what these ranks say of their rooms, by their number; of recordings what they show at their end."""
        if not self.recorded:
            answers = self.rooms([rank for rank in living if not self._timed_out(rank)])
            said = {id(answer.rank): answer.body for answer in answers}
            return {n: body for n, rank in enumerate(living) if (body := said.get(id(rank))) is not None}
        from pdctl.recording.requests import last_sign_ns, rooms_of  # loads numpy

        recordings = [self.recording(rank, sockets=False).body for rank in living]
        return {n: rooms_of(one, last_sign_ns(one)) for n, one in enumerate(recordings) if one is not None}

    def _watch_turns(self) -> list[Turn]:
        answers: list[Answer[Status] | None] = [None] * len(self.ranks)
        if not self.recorded:
            now = {id(answer.rank): answer for answer in self.status([r for r in self.ranks if not self._timed_out(r)])}
            answers = [now.get(id(rank)) for rank in self.ranks]
        begun = time.monotonic()
        looked = [with_look(Looked(outside=rank.state == "outside"), rank, a, 0.0) for rank, a in self._pairs(answers)]
        judged = [turns.judge(one) for one in looked]
        for number in range(_MOST_LOOKS):
            if self.recorded or not any(unsettled(one, first=not number) for one in judged):
                break
            if self.left(_TURN_S) < _TURN_S:
                break
            self.pause(_TURN_S)
            asked = [rank for rank, answer in self._pairs(answers) if answer is not None and answer.body is not None]
            now = {id(answer.rank): answer for answer in self.again().status(asked)}
            answers = [now.get(id(rank)) for rank in self.ranks]
            after_s = time.monotonic() - begun
            looked = [
                with_look(one, rank, answer, after_s)
                for one, (rank, answer) in zip(looked, self._pairs(answers), strict=True)
            ]
            judged = [turns.judge(one) for one in looked]
        return judged

    def _timed_out(self, rank: FoundRank) -> bool:
        """Return whether a rank has let a question of this view pass, so that it is not worth to wait for it again."""
        answers = (known.get(id(rank)) for known in self._answers.values())
        return any(answer is not None and answer.silence is Silence.TIMED_OUT for answer in answers)

    def _pairs(self, answers: Sequence[Answer[Status] | None]) -> list[tuple[FoundRank, Answer[Status] | None]]:
        return list(zip(self.ranks, answers, strict=True))

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
        from pdctl.recording.excerpt import opened

        found: list[Answer[Excerpt]] = []
        for answer in self.parts(wanted) if wanted else ():
            if answer.body is None and answer.silence is not Silence.ERROR:
                found.append(Answer(answer.rank, None, answer.silence, answer.reason, answer.next_step, answer.code))
            else:
                excerpt = opened(answer.body, answer.rank.identity) if answer.body is not None else None
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

    # ---- from outside ------------------------------------------------------------------------------------------------

    def stack_from_outside(self, rank: FoundRank) -> tuple[Frame, ...]:
        """Return the frames of a rank's main thread as py-spy reads them, innermost first; nothing where that can't be had."""
        pid, left_s = rank.identity.pid, self.left(_PY_SPY_S)
        if (
            left_s <= 0
            or rank.access is not None
            or not rank.live
            or not look(pid).runs_since(rank.identity.proc_start)
        ):
            return ()
        from pdctl.introspect import interpreter, pyspy  # only where a rank is silent

        try:
            command = pyspy.find(pid, interpreter.environments(interpreter.mapped_files(pid)))
            return pyspy.main_thread(command, pid, left_s).frames
        except (OSError, pyspy.PySpyError):
            return ()


def _serves(rank: FoundRank) -> bool:
    """Return whether a rank is a scheduler of SGLang that runs on this host now."""
    one = rank.identity
    return rank.access is None and one.engine == "sglang" and rank.live and look(one.pid).runs_since(one.proc_start)


def _there(rank: FoundRank) -> bool:
    """Return whether a rank runs, or ran when it was recorded; one that was not found at all is not there."""
    return rank.live or bool(rank.seen_live)
