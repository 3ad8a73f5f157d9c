"""Whether each rank's scheduler loop turns, and where its main thread is. Pure; the view collects what is judged here.

A turn that takes long is no hang. While the main thread computes, the loop can't turn, and the ranks that wait for this one
can't either. What a rank does is known only from its own answer, or from its stack as it is read from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pdctl.protocol.model import NEXT_STAGE, STAGE_BEFORE, Call, Frame, Identity, Moment
from pdctl.protocol.processes import NO_PROCESS, Process, in_kernel

RECENT_S = 1.0
"""A loop whose last turn began less than this ago turns, unless its process has ended or is halted."""
STOOD_S, OUTSIDE_S = 2.0, 5.0
"""For how long several looks must find a loop at one place before it stands; read from outside, where its age is not known."""
RUNNING, STOPPED, TRACED, FROZEN, KERNEL, ENDED, LOST, UNSEEN = (
    "running", "stopped", "traced", "frozen", "in the kernel", "ended", "lost", "",
)  # fmt: skip
"""States of a rank's process. TRACED: a debugger has stopped it. FROZEN: its cgroup's freezer holds it. KERNEL: its main
thread is in one uninterruptible wait there. LOST: it is on another host, and nobody listens for it there, or its heartbeat has
stopped: it has ended, or its agent has. UNSEEN: it can't be seen from here, and it has not answered."""
GONE = (ENDED, LOST)
"""States in which it will not answer, however long it is looked at."""
HALTED = {
    STOPPED: "stopped (SIGSTOP)", TRACED: "stopped by a debugger", FROZEN: "frozen with the cgroup, as in a paused container",
}  # fmt: skip
"""States in which no thread of it runs until somebody lets it go on, in words: "its process is …"."""

COMPUTES = ("model forward", "sampling", "process_batch_result", "process_input_requests", "scheduler loop")
"""Steps of a turn that take as long as their work does. In ``process_batch_result``, and with pipeline stages in the loop
itself, the main thread waits for its device. ``process_input_requests`` carries out control requests, such as new weights."""
_STAGES = (NEXT_STAGE, STAGE_BEFORE)
IDLE = "idle"
TAKES_IN = (IDLE, "recv_requests")
"""Steps in which, outside of a collective, no request that has come before lies unread."""


@dataclass(frozen=True)
class Pulse:
    """Turns so far as a rank's recording counts them, and when the last began. now_ns: of the same clock, None unknown."""

    ticks: int
    tick_mono_ns: int
    now_ns: int | None = None


@dataclass(frozen=True)
class Looked:
    """What was seen of a rank's loop: its answers and the pulses of its recording, oldest first.

    outside: the answers were read from outside, where ``ticks`` counts how often the main thread was given a processor.
    process: its state, one of the above. seen: what /proc said of it. since_s: seconds after the first look at which it was
    first seen so, without a change since. stopped_s: over how many seconds the newest looks found it so.
    """

    statuses: tuple[Moment, ...] = ()
    pulses: tuple[Pulse, ...] = ()
    outside: bool = False
    process: str = UNSEEN
    seen: Process = NO_PROCESS
    since_s: float = 0.0
    stopped_s: float = 0.0


@dataclass(frozen=True)
class Turn:
    """What is known of a rank's scheduler loop.

    turned: whether a turn began between two looks, or less than RECENT_S before the last; None unknown.
    age_s: seconds since the last turn began, None unknown. doing: where the main thread is, in words, "" unknown.
    computing: it works in a step that takes as long as its work; it waits for nobody. idle: it is in the engine's idle step.
    state: of the process, one of the above. stood_s: seconds over which several looks found it at one place,
    without a turn, a round or a collective in between, or stopped. call: the call it is in, as it said last. outside: it was
    read from outside, where turns are not counted.
    """

    turned: bool | None = None
    age_s: float | None = None
    doing: str = ""
    computing: bool = False
    idle: bool = False
    state: str = UNSEEN
    stood_s: float = 0.0
    call: Call = field(default_factory=Call)
    outside: bool = False
    wait: str = ""
    """Of one in KERNEL: the kernel's function that it waits in, "" unknown."""

    @property
    def halted(self) -> str:
        """Why no thread of its process, or not its main thread, can run: "its process is …", "" where it can."""
        return in_kernel(self.wait) if self.state == KERNEL else HALTED.get(self.state, "")

    @property
    def in_kernel(self) -> bool:
        """Whether its main thread has been in one wait in the kernel, for ``stood_s``."""
        return self.state == KERNEL

    @property
    def waiting(self) -> bool:
        """Whether its main thread is in a collective, or waits for another pipeline stage."""
        return bool(self.call.op) or self.call.inside in _STAGES


@dataclass(frozen=True)
class Loop:
    """A rank and what is known of its scheduler loop."""

    identity: Identity
    turn: Turn = field(default_factory=Turn)


def judge(looked: Looked) -> Turn:
    """Return what these looks at one rank tell of its loop."""
    last = looked.statuses[-1] if looked.statuses else None
    age_s = _age_s(looked)
    held_s = looked.stopped_s if looked.process in (*HALTED, KERNEL) else 0.0
    state = RUNNING if looked.process == KERNEL and not held_s else looked.process  # every process is there for moments
    turned = _turned(looked, age_s)
    common = Turn(turned=turned, age_s=age_s, state=state, stood_s=held_s, wait=looked.seen.wait)
    if last is None:
        return common
    return replace(
        common,
        doing=", ".join(filter(None, (call_words(last.call, last.stack), common.halted if common.in_kernel else ""))),
        computing=not last.call.op and last.call.inside in COMPUTES,
        idle=not last.call.op and last.call.inside == IDLE,
        stood_s=held_s if common.in_kernel else _stood_s(looked.statuses),
        call=last.call,
        outside=looked.outside,
    )


def _age_s(looked: Looked) -> float | None:
    if looked.statuses and not looked.outside:
        last = looked.statuses[-1]
        return max(0.0, (last.mono_ns - last.tick_mono_ns) / 1e9) if last.tick_mono_ns else None
    for pulse in reversed(looked.pulses):
        if pulse.tick_mono_ns and pulse.now_ns is not None:
            return max(0.0, (pulse.now_ns - pulse.tick_mono_ns) / 1e9)
    return None


def _turned(looked: Looked, age_s: float | None) -> bool | None:
    statuses = () if looked.outside else looked.statuses
    counts = [status.ticks for status in statuses] or [pulse.ticks for pulse in looked.pulses]
    if not any(counts):  # an engine whose loop has no seam of its own
        return True if len({_progress(status) for status in statuses}) > 1 else None
    recent = age_s is not None and age_s < RECENT_S and looked.process not in (ENDED, *HALTED)
    if len(set(counts)) > 1 or recent:
        return True
    return False if len(counts) > 1 else None


def _stood_s(statuses: Sequence[Moment]) -> float:
    """Return over how many seconds the newest looks found the same stack and no progress."""
    last = statuses[-1]
    since = last.mono_ns
    for status in reversed(statuses):
        if place(status) != place(last):
            break
        since = status.mono_ns
    return max(0.0, (last.mono_ns - since) / 1e9)


def place(status: Moment) -> tuple[object, ...]:
    """Return what is the same in two looks between which a loop has gone nowhere."""
    return status.stack, status.call, _progress(status)


def _progress(status: Moment) -> tuple[object, ...]:
    return status.ticks, tuple(status.rounds.items()), status.counts


def call_words(call: Call, stack: Sequence[Frame] = ()) -> str:
    """Return where a main thread is, in words: the engine's step, the collective in it, else the innermost frame."""
    parts = [call.inside] if call.inside else []
    if call.op:
        size = f" of {call.elements}" if call.elements >= 0 else ""
        group = f", group {call.group}" if call.group else ""
        number = f" (#{call.seq})" if call.seq >= 0 else ""
        parts.append(f"{call.op}{size}{group}{number}")
    if not parts and stack:
        parts.append(f"{stack[0].function} ({stack[0].file}:{stack[0].line})")
    return ": ".join(parts)
