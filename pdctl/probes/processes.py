"""What this machine and its recording tell of a rank's process: whether it runs, turns, or how it ended."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.probes import service_threads, turns
from pdctl.probes.endings import Ending
from pdctl.probes.turns import OUTSIDE_S, STOOD_S, Looked, Pulse, Turn
from pdctl.protocol.model import EventKind, Moment, Status
from pdctl.protocol.notes import SCHEDULER_ENDED
from pdctl.protocol.processes import NO_PROCESS, Process
from pdctl.protocol.rank import Answer, FoundRank
from pdctl.recording.header import read_header
from pdctl.targets import logs
from pdctl.targets.find import refresh

if TYPE_CHECKING:
    from pdctl.recording.reader import Recording

_SAME_BOOT_NS = 60_000_000_000


def unsettled(turn: Turn, *, first: bool) -> bool:
    """Return whether another look at a loop tells more: it may stand, and has not been seen to stand for long."""
    if turn.turned or turn.state in turns.GONE:
        return False
    if turn.state in turns.HALTED or turn.in_kernel:
        return turn.stood_s < STOOD_S
    if not turn.doing or turn.computing or turn.idle:
        return first
    return turn.stood_s < (STOOD_S if turn.age_s is not None else OUTSIDE_S)


def with_look(one: Looked, rank: FoundRank, answer: Answer[Status] | Answer[Moment] | None, after_s: float) -> Looked:
    """Return the looks at a rank's loop with one more, now: ``after_s`` seconds after the first."""
    statuses = () if answer is None or answer.body is None else (answer.body,)
    pulses = () if statuses and not one.outside else _pulses(rank)
    process, now = _process(rank, answered=bool(statuses))
    same = (process, now.wait, now.switches) == (one.process, one.seen.wait, one.seen.switches)
    return replace(
        one,
        statuses=(*one.statuses, *statuses),
        pulses=(*one.pulses, *pulses),
        process=process,
        seen=now,
        since_s=one.since_s if same else after_s,
        stopped_s=after_s - one.since_s if same else 0.0,
    )


def _pulses(rank: FoundRank) -> tuple[Pulse, ...]:
    """Return what the recording of a rank says of its turns now, nothing where it can't be read."""
    if rank.recording is None or rank.access is not None:
        return ()
    try:
        header = read_header(rank.recording)
    except (OSError, ValueError):
        return ()
    return (Pulse(header.ticks, header.tick_mono_ns, now_ns(rank, header.wall_ns, header.mono_ns)),)


_HALTS = {"T": turns.STOPPED, "t": turns.TRACED, "F": turns.FROZEN, "D": turns.KERNEL}


def _process(rank: FoundRank, *, answered: bool) -> tuple[str, Process]:
    """Return the state of a rank's process now, in a trace as it was when that was made, and what /proc says of it."""
    if rank.state == "dead" and rank.access is not None:
        return turns.LOST, NO_PROCESS
    if rank.state == "dead" or (rank.seen_ns and rank.seen_live is False):
        return turns.ENDED, NO_PROCESS
    if rank.seen_live or rank.access is not None or not rank.live:
        return turns.RUNNING if rank.seen_live or answered else turns.UNSEEN, NO_PROCESS
    now = refresh(rank)
    process = now.process if now.process.runs_since(rank.identity.proc_start) else NO_PROCESS
    if answered and rank.state != "outside":  # its agent runs, so nothing holds it but the kernel
        return (turns.KERNEL if process.state == "D" else turns.RUNNING), process
    if now.state == "dead":
        return turns.ENDED, process
    return _HALTS.get(process.state) or (turns.RUNNING if process.state or answered else turns.UNSEEN), process


def noted(rank: FoundRank, recording: Recording | None) -> list[service_threads.Ended]:
    """Return the threads that have ended by a recording."""
    if recording is None:
        return []
    now = now_ns(rank, recording.start_wall_ns, recording.start_mono_ns)
    notes = recording.events_of((0,), (EventKind.NOTE,))
    return service_threads.recorded(
        rank.identity, ((one.text, None if now is None else max(0.0, (now - one.mono_ns) / 1e9)) for one in notes)
    )


def ending(rank: FoundRank, recording: Recording | None) -> Ending:
    """Return how a rank ended, as its recording, the kernel and the engine's log have it."""
    process = rank.process if rank.access is None else NO_PROCESS
    logged = logs.ending(rank.log, rank.identity.pid) if rank.access is None else logs.Logged()
    said = Ending(
        rank.identity,
        status=process.exit_status or logged.status,
        logged=bool(logged.status and not process.exit_status),
        service=logged.service,
        service_status=logged.service_status,
    )
    if recording is None:
        return said
    from pdctl.recording.requests import last_sign_ns, rooms_of  # loads numpy

    last = last_sign_ns(recording)
    now = now_ns(rank, recording.start_wall_ns, recording.start_mono_ns)
    notes = recording.events_of((0,), (EventKind.NOTE,))
    return replace(
        said,
        last_ns=last + recording.start_wall_ns - recording.start_mono_ns,
        age_s=None if now is None else max(0.0, (now - last) / 1e9),
        recorded=recording.state,
        raised=next((note.text for note in notes if note.text.startswith(SCHEDULER_ENDED)), ""),
        held=frozenset(rooms_of(recording, last).rooms.column("room")) - {0},
        known=frozenset(recording.event_table()["room"].tolist()) - {0},
    )


def now_ns(rank: FoundRank, start_wall_ns: int, start_mono_ns: int) -> int | None:
    """Return the present on the clock of a rank's recording, None where that clock can't be read from here.

    start_wall_ns, start_mono_ns: of the recording. In a trace the present is when it was made.
    """
    if rank.seen_ns:
        return rank.seen_ns
    now = time.monotonic_ns()
    here = rank.identity.host == socket.gethostname() or bool(rank.process.state)
    # Both clocks started together: their difference is the same now as when the recording began, give or take a step.
    same_boot = abs(time.time_ns() - now - (start_wall_ns - start_mono_ns)) < _SAME_BOOT_NS
    return now if here and start_mono_ns <= now and same_boot else None
