"""The ranks that are read from outside. Each is opened once. Many are asked in parallel, each within its time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from pdctl.introspect.find import Candidate
from pdctl.introspect.sglang import OutsideRank
from pdctl.introspect.target import OpenProcess, UnreadableError
from pdctl.protocol import durations, structs
from pdctl.protocol.metadata import Wanted
from pdctl.protocol.model import Identity, Status
from pdctl.protocol.rank import Answer, FoundRank, Silence

T = TypeVar("T")
U = TypeVar("U")

AT_ONCE = 16
"""Ranks read at the same time: a py-spy each."""

_opened: dict[tuple[int, int], OutsideRank | UnreadableError] = {}
_locks: dict[tuple[int, int], threading.Lock] = {}


def open_rank(pid: int, start: int, timeout_s: float) -> OutsideRank:
    """Return the process as a rank that can be asked, the same one every time. Raises UnreadableError.

    A permanent failure (a refusal, an unreadable Python) is not tried again.
    """
    key = (pid, start)
    known = _opened.get(key)
    if isinstance(known, OutsideRank):
        return known
    if known is not None and known.silence in (Silence.NOT_AUTHORISED, Silence.DEAD):
        raise known
    try:
        opened = _opened[key] = OutsideRank(OpenProcess(pid, timeout_s))
    except UnreadableError as error:
        _opened[key] = error
        raise
    return opened


def found_ranks(candidates: Sequence[Candidate], timeout_s: float) -> list[FoundRank]:
    """Return a rank for every candidate within ``timeout_s``: with its identity, or with the reason why it can't be read."""
    begun = time.monotonic()

    def identify(one: Candidate) -> FoundRank:
        try:
            opened = open_rank(one.pid, one.process.start, timeout_s - (time.monotonic() - begun))
        except UnreadableError as error:
            return unknown(one, error.silence, error.reason)
        except Exception as error:  # noqa: BLE001  # one process that is not understood hides no other
            return unknown(one, Silence.GARBAGE, f"can't be read: {type(error).__name__}: {error}"[:200])
        return FoundRank(opened.identity, "outside", process=one.process, recording_off="no agent is in it")

    found = _at_once(candidates, identify, timeout_s)
    late = _late("read", timeout_s)
    return [
        unknown(one, Silence.TIMED_OUT, late) if rank is None else rank
        for one, rank in zip(candidates, found, strict=True)
    ]


def readable(ranks: Sequence[FoundRank], timeout_s: float) -> list[bool]:
    """Return of every rank whether it can be read from outside, found out within ``timeout_s``."""
    end = time.monotonic() + timeout_s

    def can(rank: FoundRank) -> bool:
        who = rank.identity
        try:
            return open_rank(who.pid, who.proc_start, end - time.monotonic()).target.process.start == who.proc_start
        except Exception:  # noqa: BLE001  # then it is as silent as it was
            return False

    return [bool(one) for one in _at_once(ranks, can, timeout_s)]


def unknown(one: Candidate, silence: Silence, reason: str) -> FoundRank:
    """Return a rank known only by its process's title, with the reason; a dead rank if the process has ended."""
    identity = Identity(
        engine="", engine_version="", pdctl_version="", role="unknown", host="", pid=one.pid,
        proc_start=one.process.start, started_wall_ns=0, started_mono_ns=0, instance="", service=f"pid {one.pid}",
        cluster="", world="", world_rank=0, dp=one.place("DP"), pp=one.place("PP"), tp=one.place("TP"),
    )  # fmt: skip
    off = "no agent is in it"
    state = "dead" if silence is Silence.DEAD else "outside"
    return FoundRank(
        identity, state, process=one.process, recording_off=off, silent=silence, silent_why=f"pid {one.pid}: {reason}"
    )


class Asking:
    """A question to ranks that are read from outside. The constructor starts it; :meth:`answers` waits for it."""

    def __init__(self, questions: Sequence[tuple[FoundRank, dict[str, Any]]], op: str, timeout_s: float) -> None:
        self._questions = questions
        self._end = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._work = _Work(questions, lambda question: _answer(*question, op, self._end))

    def answers(self) -> list[Answer[Any]]:
        """Return one answer for each question, in order: the data, or the reason without data, for instance the deadline."""
        late = _late("read from outside", self._timeout_s)
        return [
            Answer(rank, None, Silence.TIMED_OUT, late) if answer is None else answer
            for (rank, _), answer in zip(self._questions, self._work.wait(self._end - time.monotonic()), strict=True)
        ]


def _late(what: str, timeout_s: float) -> str:
    """Describe an expired time limit, with the option that sets it."""
    if timeout_s < 0.001:
        return f"no time was left for it to be {what} (--timeout, --rank-timeout)"
    return f"could not be {what} within {durations.show(timeout_s)} (--timeout, --rank-timeout)"


def _answer(rank: FoundRank, args: dict[str, Any], op: str, end: float) -> Answer[Any]:
    begun = time.monotonic()
    pid, start = rank.identity.pid, rank.identity.proc_start
    if rank.silent is not Silence.NONE:  # nobody could say who it is, so what it holds can't be judged
        return Answer(rank, None, rank.silent, rank.silent_why)
    lock = _locks.setdefault((pid, start), threading.Lock())
    if not lock.acquire(timeout=max(0.0, end - begun)):
        return Answer(rank, None, Silence.TIMED_OUT, "the last look at it is not over yet")
    try:
        opened = open_rank(pid, start, end - time.monotonic())
        read = _OPS.get(op)
        if read is None:
            return Answer(
                rank,
                None,
                Silence.NO_AGENT,
                f"{rank.agent_off or 'no agent is in it'}: {_WORDS.get(op, op)} can't be had from outside",
            )
        body = read(opened, args, end - time.monotonic())
        if rank.agent_off and isinstance(body, Status):  # what its agent registered of it still holds
            body = msgspec.structs.replace(
                body, identity=rank.identity, recording=str(rank.recording or ""), recording_off=rank.recording_off
            )
    except UnreadableError as error:
        return Answer(rank, None, error.silence, error.reason, error.next_step)
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        return Answer(
            rank, None, Silence.GARBAGE, f"{op} can't be read from outside: {type(error).__name__}: {error}"[:200]
        )
    finally:
        lock.release()
    return Answer(rank, body)


_OPS: dict[str, Callable[[OutsideRank, dict[str, Any], float], Any]] = {
    "status": lambda rank, _, left_s: rank.status(left_s),
    "queues": lambda rank, *_: rank.queues(),
    "rooms": lambda rank, *_: rank.rooms(),
    "settings": lambda rank, *_: rank.settings(),
    "metadata": lambda rank, args, _: rank.metadata(structs.convert(args, Wanted)),
}
_WORDS = {
    "flight_recorder": "its flight recorder",
    "recording": "rounds",
    "inject": "faults",
    "renew": "faults",
    "heal": "faults",
    "faults": "faults",
}


class _Work:
    """Run one function for many inputs, on daemon threads."""

    def __init__(self, inputs: Sequence[T], function: Callable[[T], U]) -> None:
        self._results: list[U | None] = [None] * len(inputs)
        self._inputs = list(enumerate(inputs))
        self._left = len(inputs)
        self._done = threading.Condition()
        self._function = function
        for _ in range(min(AT_ONCE, len(inputs))):
            threading.Thread(target=self._run, daemon=True, name="pdctl-outside").start()

    def _run(self) -> None:
        while True:
            with self._done:
                if not self._inputs:
                    return
                index, given = self._inputs.pop(0)
            result = None
            try:
                result = self._function(given)
            finally:
                with self._done:
                    self._results[index] = result
                    self._left -= 1
                    self._done.notify_all()

    def wait(self, timeout_s: float) -> list[Any]:
        """Return the results available by then, None for the others. Inputs not started yet are dropped."""
        with self._done:
            self._done.wait_for(lambda: self._left == 0, max(0.0, timeout_s))
            self._inputs.clear()
            return list(self._results)


def _at_once(inputs: Sequence[T], function: Callable[[T], U], timeout_s: float) -> list[U | None]:
    return _Work(inputs, function).wait(timeout_s)


def refusal_of(one: Candidate) -> UnreadableError | None:
    """Return why a process can't be read, None if it can, or if only the time was too short."""
    opened = _opened.get((one.pid, one.process.start))
    return opened if isinstance(opened, UnreadableError) else None


def identity_of(one: Candidate) -> Identity | None:
    """Return who a process is, None where that is not known."""
    opened = _opened.get((one.pid, one.process.start))
    return opened.identity if isinstance(opened, OutsideRank) else None


def python_of(one: Candidate) -> str:
    """Return the version of a process's Python, "" where it is not known."""
    opened = _opened.get((one.pid, one.process.start))
    return opened.target.python if isinstance(opened, OutsideRank) else ""


def stops(ranks: Iterable[FoundRank]) -> dict[int, float]:
    """Return pid → longest stop of its main thread by this process so far, in milliseconds."""
    found = {}
    for rank in ranks:
        opened = _opened.get((rank.identity.pid, rank.identity.proc_start))
        if isinstance(opened, OutsideRank):
            found[rank.identity.pid] = opened.target.longest_stop_ms
    return found
