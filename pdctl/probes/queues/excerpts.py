"""Reads of far recordings only what ``diff-queues`` needs: digests prove that rounds are equal, the rest is read.

The judges get recordings in which runs are left out, all of them proven equal on every rank of a group that was asked. Where
that can't be proven, or an answer is odd, the whole recordings of the group are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pdctl.probes.parting import MOST_RUNS
from pdctl.probes.queues.compare import Polled, compare
from pdctl.probes.queues.gate import LONG_S, LOOK_BACK, MOST_BACK, holding
from pdctl.probes.queues.groups import groups_of
from pdctl.probes.queues.judge import has_rounds, judge
from pdctl.probes.queues.model import RankView
from pdctl.protocol.model import COMPARED_QUEUES, EventKind
from pdctl.recording.digest import Digests, whole
from pdctl.recording.excerpt import GATED, Excerpt, Part, Wanted, digests_of
from pdctl.recording.reader import BadRecording, Recording
from pdctl.recording.streams import Stream

if TYPE_CHECKING:
    from pdctl.probes.queues.groups import Group

CUTS = 16
"""Parts that a range with a difference is divided into, by one question."""
_MOST_QUESTIONS = 20

Ask = Callable[[Mapping[int, Wanted]], Mapping[int, Part | None]]
"""Takes what is wanted of the views with these numbers. Returns their answers, None without one."""


def first_of(view: RankView) -> Wanted:
    """Return what is wanted first of the recording of this rank."""
    pipeline = view.identity.pp_size > 1
    return Wanted(
        newest=MOST_RUNS if pipeline else 1,
        held=(LOOK_BACK, MOST_BACK),
        kinds=[int(EventKind.FAILURE)] if pipeline else [],
    )


@dataclass
class _Compared:
    """One queue of a group. streams: of the views with these numbers. first, last: the rounds that all have, of which those
    before ``last`` are compared by digests; there is a difference in lo..hi, where lo < hi. at: the first round that differs.
    """

    queue: str
    kind: str
    members: tuple[int, ...]
    first: int = 0
    last: int = -1
    lo: int = 0
    hi: int = 0
    at: int | None = None
    cuts: list[int] = field(default_factory=list)

    @property
    def found(self) -> bool:
        """Whether the first round with a difference is known: it is ``lo``."""
        return self.hi - self.lo == 1


class Reading:
    """Reads what is needed of the recordings behind ``excerpts``, by the number of their view.

    views: with the recordings that were read whole, and those of ``excerpts``. whole: the numbers of the views whose whole
    recordings have to be read instead.
    """

    def __init__(self, views: Sequence[RankView], excerpts: dict[int, Excerpt], ask: Ask) -> None:
        self.views = [self._with(view, excerpts.get(n)) for n, view in enumerate(views)]
        self.whole: set[int] = set()
        self._excerpts = excerpts
        self._ask = ask
        self._number = {id(view): n for n, view in enumerate(self.views)}
        self._digests: dict[tuple[int, int], Digests] = {}

    @staticmethod
    def _with(view: RankView, excerpt: Excerpt | None) -> RankView:
        return view if excerpt is None else replace(view, recording=excerpt.recording)

    def read(self) -> None:
        """Ask until every comparison of ``views`` can be judged."""
        groups = groups_of(self.views)
        numbers = {
            group.info.key: tuple(self._number[id(view)] for view in group.known if has_rounds(view))
            for group in groups
        }
        jobs = [job for group in groups for job in self._jobs(group, numbers[group.info.key])]
        self._ends(jobs)
        self._bisect([job for job in jobs if job.lo < job.hi])
        self._lists([job for job in jobs if not self.whole.intersection(job.members)])
        self._rooms(jobs)
        for members in numbers.values():  # what is read whole goes further than what was proven of the others
            if self.whole.intersection(members):
                self.whole.update(members)

    def _recording(self, n: int) -> Recording | None:
        return self._excerpts[n].recording if n in self._excerpts else self.views[n].recording

    def _stream(self, job: _Compared, n: int) -> Stream | None:
        recording = self._recording(n)
        return recording.stream(job.queue, job.kind) if recording is not None else None

    def _jobs(self, group: Group, members: tuple[int, ...]) -> list[_Compared]:
        if len(members) < 2 or not any(n in self._excerpts for n in members):
            return []
        jobs = []
        for queue in COMPARED_QUEUES:
            job = _Compared(queue, group.info.kind, members)
            streams = [self._stream(job, n) for n in members]
            there = [stream for stream in streams if stream is not None]
            if there:
                job.first = max(stream.first for stream in there)
                job.last = min(stream.last if stream is not None else -1 for stream in streams)
                jobs.append(job)
        return jobs

    def _asked(self, jobs: Sequence[_Compared], wanted: Callable[[_Compared, int], dict[str, list[int]]]) -> None:
        """Ask the far members of these jobs; what ``wanted`` returns of one is of its stream. Take what is answered.

        wanted: takes a job and the number of a view.
        """
        asked: dict[int, dict[str, dict[int, list[int]]]] = {}
        for job in jobs:
            for n in job.members:
                stream = self._stream(job, n) if n in self._excerpts else None
                for name, rounds in wanted(job, n).items() if stream is not None else ():
                    if rounds:
                        asked.setdefault(n, {}).setdefault(name, {})[stream.number] = rounds  # type: ignore[union-attr]
        self._parts = self._take({n: Wanted(**one) for n, one in asked.items()})  # type: ignore[arg-type]

    def _take(self, asked: Mapping[int, Wanted]) -> Mapping[int, Part]:
        parts = {}
        for n, part in (self._ask(asked) if asked else {}).items():
            if part is None or part.whole:
                self.whole.add(n)
                continue
            try:
                self._excerpts[n].add(part)
            except BadRecording:
                self.whole.add(n)
            else:
                parts[n] = part
        return parts

    def _differs(self, job: _Compared) -> list[bool] | None:
        """Return for each range between the cuts of a job whether its members differ in it, None where that is not known."""
        each = []
        for n in job.members:
            stream = self._stream(job, n)
            if stream is None:
                return None
            if n in self._excerpts:
                part = self._parts.get(n)
                found = digests_of(part, stream.number, len(job.cuts) - 1) if part is not None else None
            else:
                found = self._near(n, stream, job)
            if found is None:
                return None
            each.append(found)
        return [len(set(those)) > 1 for those in zip(*each, strict=True)]

    def _near(self, n: int, stream: Stream, job: _Compared) -> list[bytes] | None:
        """Return the digests of a recording that was read whole."""
        if not whole(stream.table):
            return None
        key = (n, stream.number)
        if key not in self._digests:
            self._digests[key] = Digests(stream.table)
        return self._digests[key].of(job.first, job.cuts)

    def _ends(self, jobs: Sequence[_Compared]) -> None:
        """Read the first and last rounds that ranks have in common, and compare those before the last."""

        def wanted(job: _Compared, n: int) -> dict[str, list[int]]:
            if job.last < 0:  # one has never polled it, and may have skipped the first round
                return {"rounds": self._lacks(job, n, [0])}
            if job.first > job.last:
                return {}
            ends = self._lacks(job, n, [job.first, job.last, job.last + 1])
            return {"rounds": ends, "cuts": [job.first, *job.cuts] if job.cuts else []}

        for job in jobs:
            job.cuts = [job.first, job.last] if job.first < job.last else []
        self._asked(jobs, wanted)
        for job in jobs:
            if job.cuts:
                self._narrow(job, self._differs(job), equal=True)

    def _lacks(self, job: _Compared, n: int, rounds: Sequence[int]) -> list[int]:
        """Return those of ``rounds`` that a far member has entered and its excerpt does not have: its first part has most."""
        stream = self._stream(job, n)
        return [one for one in rounds if stream is not None and one <= stream.last and stream.index(one) < 0]

    def _narrow(self, job: _Compared, differs: list[bool] | None, *, equal: bool) -> None:
        if differs is None or not (equal or any(differs)):
            self.whole.update(job.members)
            job.lo = job.hi = job.first
        elif any(differs):
            at = differs.index(True)
            job.lo, job.hi = job.cuts[at], job.cuts[at + 1]

    def _bisect(self, jobs: Sequence[_Compared]) -> None:
        for _ in range(_MOST_QUESTIONS):
            open_jobs = [job for job in jobs if job.hi - job.lo > 1]
            if not open_jobs:
                return
            for job in open_jobs:
                length = job.hi - job.lo
                job.cuts = sorted({job.lo + length * n // CUTS for n in range(CUTS + 1)})
            self._asked(open_jobs, lambda job, _: {"cuts": [job.first, *job.cuts]})
            for job in open_jobs:
                self._narrow(job, self._differs(job), equal=False)
        for job in jobs:
            if job.hi - job.lo > 1:
                self.whole.update(job.members)

    def _lists(self, jobs: Sequence[_Compared]) -> None:
        """Read the runs, with their lists, of the first round that differs."""
        self._asked([job for job in jobs if job.found], lambda job, _: {"lists": [job.lo]})
        for job in jobs:
            job.at = self._difference(job)
            if job.found and job.at != job.lo:
                self.whole.update(job.members)
        later = [job for job in jobs if job.at is not None and not job.found]
        self._asked(later, lambda job, _: {"lists": [job.at or 0]})
        for job in later:  # in a round that was going on, and has gone on since the first answers
            if not all(self._listed(job, n) for n in job.members if n in self._excerpts):
                self.whole.update(job.members)

    def _listed(self, job: _Compared, n: int) -> bool:
        """Return whether a far member's requests in the round that differs are there, where it has entered that round."""
        stream = self._stream(job, n)
        run = stream.at(job.at) if stream is not None and job.at is not None else None
        return stream is None or run is None or stream.items(run) is not None

    def _difference(self, job: _Compared) -> int | None:
        recordings = [self._recording(n) for n in job.members]
        ranks = [Polled(r.stream(job.queue, job.kind), r.visits.get(job.queue)) for r in recordings if r is not None]
        found = compare(ranks).difference
        return None if found is None else found.ordinal

    def _rooms(self, jobs: Sequence[_Compared]) -> None:
        """Read the events of the rooms that differ, and of all that know those that are held for long: who wrote, to whom."""
        self._refresh()
        sound = [job for job in jobs if job.at is not None and not self.whole.intersection(job.members)]
        parted = {n for job in sound for n in job.members}
        rooms: dict[int, set[int]] = {}
        if parted:
            split = judge([view for n, view in enumerate(self.views) if n in parted], holds=False)
            named = {one.room for group in split.groups for one in group.splits}
            rooms = {n: set(named) for n in parted if named}
        for room, cluster in self._held():
            for n, view in enumerate(self.views):
                if view.identity.cluster == cluster:
                    rooms.setdefault(n, set()).add(room)
        self._take({n: Wanted(rooms=sorted(those)) for n, those in rooms.items() if n in self._excerpts})
        self._refresh()

    def _held(self) -> set[tuple[int, str]]:
        found: set[tuple[int, str]] = set()
        for view in self.views if self._excerpts else ():
            stream = view.recording.stream(GATED) if view.recording is not None else None
            if stream is not None:
                held = holding([("", stream)])
                found |= {(one.room, view.identity.cluster) for one in held if one.now and one.seconds >= LONG_S}
        return found

    def _refresh(self) -> None:
        self.views = [self._with(view, self._excerpts.get(n)) for n, view in enumerate(self.views)]
