"""Ask many ranks in parallel, within a deadline. Each rank gives an answer or the reason for its silence."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pdctl.protocol import structs, wire
from pdctl.protocol.errors import Exit
from pdctl.protocol.processes import look_closely
from pdctl.protocol.rank import Answer, FoundRank, Silence
from pdctl.targets.far_connections import FarConnections
from pdctl.targets.lines import AGAIN_S, Line, LocalLine
from pdctl.targets.recordings import Recordings
from pdctl.targets.silence import ended, no_connection, not_asked, stopped
from pdctl.targets.waiting import SMALL, Question, Watch

if TYPE_CHECKING:
    from pdctl.introspect.ranks import Asking
    from pdctl.targets.bridges import BridgeLine

TIMEOUT_S = 10.0
RANK_TIMEOUT_S = 2.0
STOPPED_S = 0.5
"""How long a rank whose process is stopped is waited for: it can't answer before something lets it go on."""
MAX_ERROR = 2000
"""Characters of an agent's error that are passed on."""
MAX_LARGE = 16 << 20
"""Bytes of all larger answers to one question together."""
DEAR = frozenset(("flight_recorder",))
"""Questions that may take a rank longer than others: one that passes is no sign that the rank will not answer the next.

They are waited for longer than ``rank_timeout_s`` where there is time: up to half of what is left of the deadline.
"""
HELD_UP_S = 0.5
"""A wait that ends later than this was held up: this process, or its whole machine, was stopped meanwhile."""
MOST_HELD_UP = 10
"""So many late waits of a client count as stops. More are of a machine that is always late: its time counts."""
_TICK_S = 0.002
"""What a poll that counts milliseconds may leave of a deadline that it waited for: none."""
_CUT_OFF = "connected, but nothing comes back: its host is cut off, its process is stopped, or something holds the GIL"
FAIR_S = 2.0
"""In this time a rank that is well answers, as long as its machine has any time for it."""
_CUT_SHORT = "it had less than {:.3g} s to answer, and may be well"

_TOO_LARGE = f"its answer can't be read: answers over {SMALL >> 10} KiB may take {MAX_LARGE >> 20} MiB together"
_BROKEN = frozenset((Silence.GARBAGE, Silence.REFUSED, Silence.DEAD, Silence.NOT_AUTHORISED))
"""After these a connection is made anew."""

T = TypeVar("T")


class Deadline:
    """The time at which all waiting ends."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, most: float) -> float:
        """Return the seconds left, at most ``most``, at least 0."""
        return max(0.0, min(most, self._end - time.monotonic()))

    def move(self, seconds: float) -> None:
        """End later by this much."""
        self._end += seconds


class Client:
    """Keeps one connection to each rank. ``timeout_s`` covers all questions, from the client's construction on.

    Time in which this process was stopped while it waited (Ctrl-Z, a machine that paused) does not count.

    spent_s: the part of it used before, for instance to find the ranks. rank_timeout_s: how long one question waits for one
    rank; all ranks are waited for at the same time. One whose process is stopped is waited for STOPPED_S at most,
    and as long as any other where the client ``acts`` on ranks: it may go on, and then has to be healed.
    far: connections to other hosts that stay open when this client is closed; without them it has its own.
    """

    def __init__(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        rank_timeout_s: float = RANK_TIMEOUT_S,
        spent_s: float = 0.0,
        acts: bool = False,
        far: FarConnections | None = None,
    ) -> None:
        self._local: dict[str, LocalLine] = {}
        self._carried: dict[str, BridgeLine] = {}
        self._far = FarConnections() if far is None else far
        self._shares = far is not None
        self._timeout_s = timeout_s
        self.rank_timeout_s = rank_timeout_s
        self._spent_s = spent_s
        self._acts = acts
        self.deadline = Deadline(timeout_s - spent_s)
        self._held_up = 0
        self._given_up: dict[str, Answer[Any]] | None = None
        self.recordings = Recordings(self.ask_each)

    def __enter__(self) -> Client:  # noqa: PYI034  # typing.Self is newer than Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections that are this client's own. Unanswered questions are dropped."""
        for connection in [*self._local, *self._carried]:
            self._drop(connection)
        if not self._shares:
            self._far.close()

    def restart(self) -> None:
        """Begin the overall deadline anew, for a command that follows ranks and asks again and again."""
        self.deadline = Deadline(self._timeout_s - self._spent_s)
        self._held_up = 0

    def pause(self, seconds: float) -> None:
        """Wait for this long before asking again, and not beyond the deadline."""
        time.sleep(self.deadline.left(seconds))

    @property
    def over(self) -> str:
        """Return a sentence if the deadline has passed, "" if not."""
        return "" if self.deadline.left(1.0) >= _TICK_S else f"no time left of {self._timeout_s:g} s (--timeout)"

    def give_up_on_silent(self) -> None:
        """From now on wait only once for a silent rank. Later questions to it get the same reason at once.

        Unless the question that it let pass was a dear one.
        """
        self._given_up = self._given_up or {}

    def ask(
        self, ranks: Iterable[FoundRank], op: str, kind: type[T], args: dict[str, Any] | None = None
    ) -> list[Answer[T]]:
        """Ask every rank ``op`` and return one answer a rank, in the order given. Never raises for a rank's fault."""
        return self.ask_each([(rank, args or {}) for rank in ranks], op, kind)

    def ask_each(
        self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str, kind: type[T]
    ) -> list[Answer[T]]:
        """Ask each rank ``op`` with arguments of its own; otherwise as :meth:`ask`. No rank may be in it twice."""
        answers: dict[int, Answer[T]] = {}
        outside = [index for index, (rank, _) in enumerate(questions) if _from_outside_here(rank)]
        asking = self._from_outside([questions[index] for index in outside], op) if outside else None
        wait_s = max(self.rank_timeout_s, self.deadline.left(self._timeout_s) / 2 if op in DEAR else 0.0)
        left_s = self.deadline.left(wait_s)
        patience, fair_s = Deadline(left_s), min(wait_s, FAIR_S)
        waiting: list[Question] = []
        for index, (rank, args) in enumerate(questions):
            if _from_outside_here(rank):
                continue
            if self._given_up and rank.connection in self._given_up:
                answers[index] = self._given_up[rank.connection]
                continue
            question = Question(index, rank, op, args, wait_s, cut_s=fair_s if left_s < fair_s else 0.0)
            silent = (None if _of_file(rank, op) else not_asked(rank)) or self._begin(question)
            if silent is not None:
                answers[index] = Answer(rank, None, *silent)
            else:
                waiting.append(question)
        for question in self._wait(waiting, answers, kind, patience):
            answers[question.index] = self._timed_out(question)
        if asking is not None:
            answers.update(zip(outside, asking.answers(), strict=True))
        return [answers[index] for index in range(len(questions))]

    def _begin(self, question: Question) -> tuple[Silence, str] | None:
        """Send a question; returns why it can't be, None where it is on its way."""
        rank = question.rank
        question.number = next(self._far.numbers)
        request = wire.Request(question.op, id=question.number, args=question.args, packs=_over_tcp(rank))
        payload = wire.encode(request)
        try:
            question.line = self._line(rank, self.deadline.left(question.wait_s))
            question.line.begin(payload, question.limit)
        except OSError as error:
            not_through = self._drop(rank.connection)  # a far side may refuse before the question is sent
            return (Silence.NOT_AUTHORISED, not_through) if not_through else no_connection(rank, error)
        return None

    def _wait(
        self, waiting: list[Question], answers: dict[int, Answer[T]], kind: type[T], patience: Deadline
    ) -> list[Question]:
        """Collect answers into ``answers``. Return the questions that are unanswered after the time limit."""
        memory = None
        if any(_over_tcp(question.rank) for question in waiting):
            from pdctl.targets.far_lines import Memory  # only where something is remote

            memory = Memory()
        watch = Watch(far=memory is not None)
        for question in waiting:
            watch.look(question)
        large = 0
        grace = None if self._acts else Deadline(STOPPED_S)
        while watch.open:
            left_s = patience.left(AGAIN_S if memory is not None or watch.ticking else 3600.0)
            left_s = left_s if grace is None else grace.left(left_s)
            if memory is not None:
                memory.waits()
            began = time.monotonic()
            ready = watch.ready(left_s)
            held_up_s = time.monotonic() - began - left_s
            if held_up_s > HELD_UP_S and self._held_up < MOST_HELD_UP:
                # Nobody listened: a rank whose answer is missing now was not silent for so long.
                self._held_up += 1
                patience.move(held_up_s)
                self.deadline.move(held_up_s)
            if memory is not None and memory.waited():
                return self._flooded(list(watch.open.values()), answers, kind, patience)
            for question in ready:
                answer, size = self._heard(question, kind, MAX_LARGE - large)
                large += size if size > SMALL else 0
                if answer is None and watch.held(question) > MAX_LARGE - large:
                    answer = Answer(question.rank, None, Silence.GARBAGE, _TOO_LARGE)
                if answer is None:
                    watch.look(question)
                    continue
                answers[question.index] = answer
                watch.forget(question)
                if answer.silence in _BROKEN:
                    self._drop(question.rank.connection)
            if patience.left(1.0) < _TICK_S:
                break
            if grace is not None and grace.left(1.0) < _TICK_S:
                grace = None
                for question in [one for one in watch.open.values() if stopped(one.rank)]:
                    question.wait_s = STOPPED_S
                    answers[question.index] = self._timed_out(question)
                    watch.forget(question)
        return list(watch.open.values())

    def _heard(self, question: Question, kind: type[T], room: int) -> tuple[Answer[T] | None, int]:
        """Return the answer to a question, None while there is none, and the bytes it had. room: for a large one."""
        rank = question.rank
        try:
            while (payload := question.line.turn()) is not None:
                if len(payload) > SMALL and len(payload) > room:
                    return Answer(rank, None, Silence.GARBAGE, _TOO_LARGE), 0
                answer = _read(payload, question, kind)
                if answer is not None:
                    return answer, len(payload)
                if question.line.poll_on is not None:
                    break  # an answer to an older question; others are waited for as well
        except OSError as error:
            return Answer(rank, None, *no_connection(rank, error)), 0
        except ValueError as error:
            return Answer(rank, None, Silence.GARBAGE, f"its answer can't be read: {error}"[:200]), 0
        return None, 0

    def _flooded(
        self, waiting: list[Question], answers: dict[int, Answer[T]], kind: type[T], patience: Deadline
    ) -> list[Question]:
        """Recover after too much data came from other hosts. The sender is unknown, so ask one rank at a time."""
        from pdctl.targets.far_lines import MAX_HELD, give_back

        far = [question for question in waiting if _over_tcp(question.rank)]
        for question in far:
            self._drop(question.rank.connection)
        give_back()
        if len(far) == 1:
            why = f"its answer can't be read: over {MAX_HELD >> 20} MiB came, and no end"
            answers[far[0].index] = Answer(far[0].rank, None, Silence.GARBAGE, why)
            far = []
        unanswered = []
        for number, question in enumerate(far):
            silent = self._begin(question)
            if silent is not None:
                answers[question.index] = Answer(question.rank, None, *silent)
                continue
            share = Deadline(patience.left(3600.0) / (len(far) - number))
            unanswered += self._wait([question], answers, kind, share)
        near = [question for question in waiting if not _over_tcp(question.rank)]
        return unanswered + self._wait(near, answers, kind, patience)

    def _from_outside(self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str) -> Asking:
        from pdctl.introspect.ranks import Asking  # knows the engine: only where there is such a rank

        return Asking(questions, op, self.deadline.left(self.rank_timeout_s))

    def _line(self, rank: FoundRank, wait_s: float) -> Line:
        """Return the connection to ``rank``, made where there is none. wait_s: how long its answer is waited for."""
        if rank.via:
            from pdctl.targets import bridges  # only where something is remote

            carried = self._carried.get(rank.connection)
            if carried is None:
                carried = self._carried[rank.connection] = bridges.line(rank)
            carried.wait_s = wait_s
            return carried
        if rank.access is None:
            return self._local.setdefault(rank.connection, LocalLine(rank.endpoint.removeprefix("ipc://")))
        return self._far.line(rank)

    def _drop(self, connection: str) -> str:
        """Close a connection. Return why it was not established, "" if it was, or if it is local."""
        local, carried = self._local.pop(connection, None), self._carried.pop(connection, None)
        if carried is not None:
            carried.close()
        if local is not None:
            local.close()
        return self._far.drop(connection)

    def _timed_out(self, question: Question) -> Answer[Any]:
        rank = question.rank
        # A late answer to this question must not meet the next one on a full queue: the connection is made anew.
        not_through = self._drop(rank.connection)
        if rank.access is not None:
            why = _CUT_SHORT.format(question.cut_s) if question.cut_s else _CUT_OFF
            return self._without_answer(question, not_through or why, not_through)
        process = look_closely(rank.identity.pid)
        gone = ended(rank, process)
        if gone:
            return Answer(rank, None, Silence.DEAD, gone)
        if not process.state:
            return self._without_answer(question, "its process can't be seen from here")
        if question.cut_s and not process.held:
            return self._without_answer(question, _CUT_SHORT.format(question.cut_s))
        return self._without_answer(question, process.why_silent)

    def _without_answer(self, question: Question, why: str, not_through: str = "") -> Answer[Any]:
        rank = question.rank
        silence = Silence.NOT_AUTHORISED if not_through else Silence.TIMED_OUT
        if self.over:
            return Answer(rank, None, silence, f"no answer within {self._timeout_s:g} s overall: {why}")
        answer = Answer[Any](rank, None, silence, f"no answer within {question.wait_s:.3g} s: {why}")
        if self._given_up is not None and question.op not in DEAR:
            self._given_up[rank.connection] = answer
        return answer


def _from_outside_here(rank: FoundRank) -> bool:
    return rank.state == "outside" and not rank.via


def _of_file(rank: FoundRank, op: str) -> bool:
    """Return whether a far side answers for a rank that has ended, from its recording."""
    return op == "recording" and rank.state == "dead" and bool(rank.via and rank.recording_size)


def _over_tcp(rank: FoundRank) -> bool:
    return rank.access is not None and not rank.via


def _read(payload: bytes, question: Question, kind: type[T]) -> Answer[T] | None:
    """Return the answer that ``payload`` is, None when it is one to an older question."""
    rank = question.rank
    try:
        reply = wire.decode_reply(payload)
        if reply.id not in (question.number, 0):
            return None
        if reply.error:
            text, _, next_step = reply.error[: 2 * MAX_ERROR].partition("\n")
            silence = Silence.NOT_AUTHORISED if text.startswith(wire.NOT_AUTHORISED) else Silence.ERROR
            return Answer(rank, None, silence, _cut(text), _cut(next_step), reply.code or Exit.UNREACHABLE)
        body = structs.from_msgpack(reply.body, kind)
    except wire.ProtocolMismatch as error:
        return Answer(
            rank,
            None,
            Silence.PROTOCOL,
            f"its agent speaks protocol {error.version}, this pdctl speaks {wire.PROTOCOL}",
        )
    except (ValueError, TypeError) as error:
        return Answer(rank, None, Silence.GARBAGE, f"its answer can't be read: {error}"[:200])
    return Answer(rank, body)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} …"


__all__ = ["Answer", "Client", "Deadline", "Silence"]
