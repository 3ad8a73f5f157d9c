"""Looks at all ranks again and again. A look reads what is new in their recordings, and asks those that are to be asked.

The whole check runs beside it (:mod:`.checking`): at intervals, and at once when a look sees something new. A look never waits
for it, nor for a rank that is silent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pdctl.probes.processes import now_ns
from pdctl.probes.queues.model import RankView
from pdctl.probes.queues.now import age_of
from pdctl.probes.run import Asked, choose
from pdctl.probes.turns import Looked, Turn, place
from pdctl.probes.turns import judge as judge_turn
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.model import Snapshot, Status
from pdctl.protocol.rank import Answer, FoundRank, Silence
from pdctl.targets.client import Client
from pdctl.targets.find import Found, discover, refresh
from pdctl.targets.servers import process_key
from pdctl.targets.silence import not_asked
from pdctl.watch.checking import Checker
from pdctl.watch.merging import NOT_READ, PARTED, Look, merged, suspicions
from pdctl.watch.model import WatchState

if TYPE_CHECKING:
    from pdctl.probes.queues.model import QueuesDocument
    from pdctl.recording.reader import Recording
    from pdctl.recording.tail import Tail
    from pdctl.targets.places import Places

FIND_S = 2.0
"""Between two searches for ranks on this host, or FIND_SHARE times what one takes, if that is longer."""
FIND_SHARE = 20.0
SOON_S, SOON_SHARE, MOST_S = 0.5, 5.0, 1.0
"""The same where a directory of ranks has changed, and no longer than MOST_S."""
NEAR_S, FAR_S = 0.3, 1.0
"""How long a look waits for ranks of this host and of others."""
AGAIN_S = 5.0
"""After this long a rank that let a question pass is asked again."""
ASK_S = 0.3
"""How old the last turn of a stage's loop must be for it to be asked where it is, though its recording is read."""
_STEP_S = 0.2
"""After this long at most a look that waits hears that it is over: a signal ends no wait."""
_MOST_PROBLEMS = 50


class Eye:
    """Looks every ``every_s`` seconds, and has everything checked every ``check_s``.

    asks: also ask ranks whose recordings can be read here, for queues, ages and slots. Without it a look costs them nothing.
    over: an event after which nothing is looked at any more.
    Raises PdctlError (USAGE) for places that are none.
    """

    def __init__(
        self,
        asked: Asked,
        *,
        every_s: float = 0.5,
        check_s: float = 10.0,
        asks: bool = True,
        over: threading.Event | None = None,
    ) -> None:
        self._asked, self._every_s, self._asks = asked, every_s, asks
        self._places = asked.reach.places()
        if self._places.hosts or self._places.pods is not None:
            from pdctl.targets import bridges  # only where something is remote

            bridges.relay()  # looks, checks and details are threads: one may read what another waits for
        self._news = threading.Event()
        self._checker = Checker(asked, self._places, check_s, self._news)
        wait_s = FAR_S if self._places.elsewhere else NEAR_S
        self._client = Client(timeout_s=3 * wait_s, rank_timeout_s=wait_s)
        self._found = Found()
        self._problems: tuple[str, ...] = ()
        self._checked: Found | None = None
        self._find_at = self._soonest = self._due = 0.0
        self._stamps: tuple[int, ...] = ()
        self._tails: dict[str, Tail] = {}
        self._stood: dict[str, Status] = {}
        self._deaf: dict[str, float] = {}
        self._silent: dict[str, tuple[float, Answer[Any]]] = {}
        self._last = Look()
        self._over = over or threading.Event()
        self._state: WatchState | None = None
        self.checked = False
        """Whether a whole check had come to an end before the last look, though it may have failed."""

    def __enter__(self) -> Eye:  # noqa: PYI034  # typing.Self is newer than Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the checks, and close all connections and files."""
        self._checker.close()
        self._client.close()
        self._tails.clear()

    def next(self) -> WatchState:
        """Wait until the next look is due, or a check has news; look, and return what there is now.

        Once it is over, return what the last look gave. Never raises for a rank's fault: what could not be seen is among the
        problems.
        """
        self._wait()
        if self._over.is_set() and self._state is not None:
            return self._state
        self._news.clear()
        began = time.monotonic()
        self._due = began + self._every_s
        try:
            look = self._look(began)
        except Exception as error:  # noqa: BLE001  # a watch of weeks does not end for one look
            look = replace(self._last, problems=(f"a look failed: {type(error).__name__}: {error}",))
        self._checker.parted = any(found.code in PARTED for found in look.document.findings)
        if suspicions(look, self._last):
            self._checker.tell()
        now = self._checker.now  # read before the last one: a check that ends meanwhile is in one of them
        last = self._checker.last
        look, state = merged(look, self._last, last, now)
        self._last = look
        self.checked = bool(last.ended_wall_ns or last.problems)
        took_s = time.monotonic() - began
        self._state = WatchState(
            at_wall_ns=time.time_ns(),
            took_s=round(took_s, 4),
            ranks=state.ranks,
            groups=state.groups,
            findings=state.findings,
            problems=tuple(dict.fromkeys(state.problems))[:_MOST_PROBLEMS],
            checked_wall_ns=last.ended_wall_ns,
            checked_began_wall_ns=last.began_wall_ns,
        )
        return self._state

    def _wait(self) -> None:
        while (left_s := self._due - time.monotonic()) > 0 and not self._over.is_set():
            if self._news.wait(min(left_s, _STEP_S)):
                return

    # ---- who is there ------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> Look:
        self._find(now)
        ranks = self._found.ranks
        self._client.restart()
        statuses = self._ask(now, ranks, "status", Status)
        answering = [rank for rank, answer in zip(ranks, statuses, strict=True) if answer and answer.body is not None]
        snapshots = {
            id(answer.rank): answer.body
            for answer in self._ask(now, answering, "queues", Snapshot)
            if answer is not None
        }
        views = []
        for rank, answer in zip(ranks, statuses, strict=True):
            recording, off = self._recording(rank)
            views.append(_view(rank, answer, snapshots.get(id(rank)), recording, off))
        stood = self._ask_standing(now, ranks, views)
        views = [
            replace(view, turn=self._waits(view, stood.get(id(rank)))) for rank, view in zip(ranks, views, strict=True)
        ]
        return Look(
            at=now,
            ranks=ranks,
            answers=tuple(answer or Answer(rank) for rank, answer in zip(ranks, statuses, strict=True)),
            views=tuple(views),
            document=_judged(views),
            problems=self._problems,
        )

    def _find(self, now: float) -> None:
        """Look who is there, where that is due; else only whether the processes still run."""
        if self._places.elsewhere:
            checked = self._checker.now or self._checker.last
            if checked.found is not self._checked:
                self._checked, self._problems = checked.found, ()
                self._take(checked.found or Found())
        else:
            fresh = tuple(map(refresh, self._found.ranks))
            if any(one.state != before.state for one, before in zip(fresh, self._found.ranks, strict=True)):
                self._find_at = now
            self._found = replace(self._found, ranks=fresh)
            if now >= self._find_at or (now >= self._soonest and _stamps(self._places) != self._stamps):
                self._search(now)
        there = {process_key(rank.identity) for rank in self._found.ranks}
        for kept in (self._tails, self._stood, self._deaf, self._silent):
            for key in kept.keys() - there:
                del kept[key]

    def _search(self, now: float) -> None:
        self._stamps = _stamps(self._places)  # before: what comes meanwhile is looked for again
        try:
            found = discover(
                self._places,
                every_start=self._asked.every_start,
                timeout_s=self._asked.timeout_s,
                rank_timeout_s=self._asked.rank_timeout_s,
            )
            self._take(found)
            self._problems = found.problems
            if not found.ranks:
                found.require()
        except PdctlError as error:
            self._found, self._problems = Found(), (error.message,)
        took_s = time.monotonic() - now
        self._soonest = now + min(MOST_S, max(SOON_S, SOON_SHARE * took_s))
        self._find_at = now + max(FIND_S, FIND_SHARE * took_s)

    def _take(self, found: Found) -> None:
        try:
            self._found, _ = choose(found, self._asked.selection)
        except PdctlError as error:  # those ranks are not there now
            self._found, self._problems = replace(found, ranks=()), (error.message,)

    # ---- what they say and have written ------------------------------------------------------------------------------

    def _ask(self, now: float, ranks: Sequence[FoundRank], op: str, kind: Any) -> list[Answer[Any] | None]:
        """Return an answer a rank, None for one that is not to be asked. One that was silent is not asked for AGAIN_S."""
        answers: dict[int, Answer[Any]] = {}
        asked = []
        for rank in ranks:
            why = not_asked(rank)
            at, silent = self._silent.get(process_key(rank.identity), (0.0, None))
            if why is not None:
                answers[id(rank)] = Answer(rank, None, *why)
            elif silent is not None and now < at + AGAIN_S:
                answers[id(rank)] = replace(silent, rank=rank)
            elif self._asks or rank.recording is None:
                asked.append(rank)
        for answer in self._client.ask(asked, op, kind):
            answers[id(answer.rank)] = answer
            key = process_key(answer.rank.identity)
            if answer.silence is Silence.TIMED_OUT:
                self._silent[key] = (now, answer)
            else:
                self._silent.pop(key, None)
        return [answers.get(id(rank)) for rank in ranks]

    def _ask_standing(self, now: float, ranks: Sequence[FoundRank], views: Sequence[RankView]) -> dict[int, Status]:
        """Return where the ranks of pipelines are whose loops, by their recordings, have not turned for ASK_S."""
        asked = []
        for rank, view in zip(ranks, views, strict=True):
            deaf_s = now - self._deaf.get(process_key(rank.identity), -AGAIN_S)
            stands = view.status is None and view.recording is not None and (age_of(view) or 0.0) >= ASK_S
            if view.identity.pp_size > 1 and stands and deaf_s >= AGAIN_S and not_asked(rank) is None:
                asked.append(rank)
        found = {}
        for answer in self._client.ask(asked, "status", Status) if asked else ():
            if answer.body is not None:
                found[id(answer.rank)] = answer.body
            else:
                self._deaf[process_key(answer.rank.identity)] = now
        return found

    def _waits(self, view: RankView, status: Status | None = None) -> Turn | None:
        """Return how a rank of a pipeline waits for others, None where it does not, or nothing is known of it."""
        if view.identity.pp_size < 2:
            return None
        key, status = process_key(view.identity), status or view.status
        if status is None:
            self._stood.pop(key, None)
            return None
        first = self._stood.get(key)
        if first is None or place(first) != place(status):
            first = self._stood[key] = status  # of those that found it at this place the oldest
        turn = judge_turn(Looked((first, status) if first is not status else (first,)))
        return turn if turn.waiting and turn.turned is False else None

    def _recording(self, rank: FoundRank) -> tuple[Recording | None, str]:
        """Return what a rank has recorded lately, and why there is nothing, "" where there is."""
        if rank.recording is None or rank.access is not None:
            return None, rank.recording_off or NOT_READ
        from pdctl.recording.reader import BadRecording  # loads numpy: only where there is something to read
        from pdctl.recording.tail import Tail

        key = process_key(rank.identity)
        try:
            tail = self._tails.get(key)
            if tail is None:
                tail = self._tails[key] = Tail(rank.recording, rank.identity.pid, rank.identity.proc_start)
            return tail.read(), ""
        except BadRecording as error:
            return None, f"{rank.recording_name}: {error}"
        except OSError as error:
            return None, f"{rank.recording_name}: {error.strerror}"


def _view(
    rank: FoundRank, answer: Answer[Status] | None, snapshot: Snapshot | None, recording: Recording | None, off: str
) -> RankView:
    status = answer.body if answer is not None else None
    silence = answer.reason or rank.state if answer is not None and status is None else ""
    if answer is None and recording is None:
        silence = off
    now = status.mono_ns if status is not None else None
    if now is None and recording is not None:
        now = now_ns(rank, recording.start_wall_ns, recording.start_mono_ns)
    return RankView(
        identity=status.identity if status is not None else rank.identity,
        state=rank.state,
        silence=silence,
        ended=rank.state == "dead",
        status=status,
        snapshot=snapshot,
        recording=recording,
        recording_off=off,
        now_ns=now,
    )


def _stamps(places: Places) -> tuple[int, ...]:
    """Return when something last came into the directories of ranks, or went; 0 for one that can't be looked at."""
    found = []
    for folder in (*places.run_dirs, places.record_dir):
        try:
            found.append(folder.stat().st_mtime_ns)
        except OSError:
            found.append(0)
    return tuple(found)


def _judged(views: Sequence[RankView]) -> QueuesDocument:
    from pdctl.probes.queues.judge import judge

    return judge(views, stalled_s=float("inf"), confirmed=False, holds=False)
