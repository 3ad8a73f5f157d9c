"""One look at ranks that all probes of a command share: each question is asked at most once, of all ranks at the same time.

What a rank's silent agent does not tell is read from outside in its place, where that is possible, for every probe alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pdctl.probes import endings, parting, service_processes, service_threads, standing, turns
from pdctl.probes.asking import Asking
from pdctl.probes.endings import Endings
from pdctl.probes.parting import Recorded
from pdctl.probes.processes import ending, noted, now_ns, unsettled, with_look
from pdctl.probes.turns import STOOD_S, Looked, Loop, Turn
from pdctl.protocol.model import Frame, Moment, Status
from pdctl.protocol.processes import look
from pdctl.protocol.rank import Answer, FoundRank
from pdctl.protocol.requests import Rooms
from pdctl.targets.client import Client
from pdctl.targets.fallback import apply_fallback
from pdctl.targets.find import Found

if TYPE_CHECKING:
    from pdctl.report.findings import Finding

_PY_SPY_S = 2.0
_TURN_S = 0.5
_MOST_LOOKS = 14
"""Looks at a loop that may stand: so far apart, and no more than so many."""


class View(Asking):
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
        super().__init__(found, client, anything=anything)
        self.others = others
        self.recorded = recorded
        self._turns: list[Turn] | None = None
        self._endings: Endings | None = None

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

    def again(self) -> View:
        """Return another look at the same ranks, now: nothing is known in it yet but what dead ranks recorded."""
        view = View(self.found, self.client, others=self.others, recorded=self.recorded, anything=self._anything)
        view._recordings = {key: answer for key, answer in self._recordings.items() if not answer.rank.live}
        return view

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
        answers: list[Answer[Status] | Answer[Moment] | None] = [None] * len(self.ranks)
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
            later = {id(answer.rank): answer for answer in self.again().moments(asked)}
            answers = [later.get(id(rank)) for rank in self.ranks]
            after_s = time.monotonic() - begun
            looked = [
                with_look(one, rank, answer, after_s)
                for one, (rank, answer) in zip(looked, self._pairs(answers), strict=True)
            ]
            judged = [turns.judge(one) for one in looked]
        return judged

    def _pairs(
        self, answers: Sequence[Answer[Status] | Answer[Moment] | None]
    ) -> list[tuple[FoundRank, Answer[Status] | Answer[Moment] | None]]:
        return list(zip(self.ranks, answers, strict=True))

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
