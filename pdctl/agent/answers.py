"""The agent's answer to each op. It runs on the agent's thread, under the GIL, beside a working engine.

Answers are built from plain tuples and msgspec structs and encoded at once. So 1,000 requests take about 0.1 ms; a walk over
the engine's objects takes a hundred times as long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from pdctl.agent import flight
from pdctl.agent.stack import call_of, counts, frames_of, main_frame
from pdctl.faults import ops
from pdctl.protocol import structs
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.metadata import Wanted
from pdctl.protocol.model import ATTACHED, Call, FlightEntry, Moment, Snapshot, Status
from pdctl.protocol.paths import Registration
from pdctl.recording.writer import RecordingWriter

if TYPE_CHECKING:
    from pdctl.agent.core import Agent

MAX_CHUNK = 1 << 20
_ANSWER_S = 0.1
"""How long an agent that is told to leave gives its answer to go out."""
_FAULT_OPS = frozenset(("inject", "renew", "heal", "faults"))


class Answers:
    """Answers of one agent. cpu_s gives the CPU seconds of the agent's thread."""

    def __init__(self, agent: Agent, registration: Registration, cpu_s: Callable[[], float]) -> None:
        self._agent = agent
        self.registration = registration
        self._cpu_s = cpu_s
        self._ops: dict[str, Callable[[dict[str, Any]], Any]] = {
            "hello": lambda _: self.registration,
            "status": self._status,
            "queues": self._queues,
            "rooms": lambda _: self._agent.adapter.rooms(),
            "settings": lambda _: self._agent.adapter.settings(),
            "metadata": lambda args: self._agent.adapter.metadata(structs.convert(args, Wanted)),
            "recording": self._recording,
            "flight_recorder": self._flight_recorder,
            "leave": self._leave,
        }

    def answer(self, op: str, args: dict[str, Any]) -> Any:
        """Return what ``op`` asks for, ready to encode. Raises PdctlError, or whatever the adapter raises."""
        if op in _FAULT_OPS:
            return ops.handle(op, args, self._agent.faults, self._agent.adapter)
        known = self._ops.get(op)
        if known is None:
            raise PdctlError(f"this agent does not know {op[:40]!r}", "It may be of an older pdctl.", Exit.UNREACHABLE)
        return known(args)

    def _status(self, args: dict[str, Any]) -> Moment:
        adapter, r = self._agent.adapter, self.registration
        frame = main_frame()
        stack = frames_of(frame)
        call = call_of(frame, stack, adapter.group_kind, adapter.step_of) if frame is not None else Call()
        del frame  # a frame keeps its thread's locals alive
        ticks, tick_ns = adapter.ticks()
        if args.get("moment"):
            now_ns, rounds = time.monotonic_ns(), adapter.ordinals()
            return Moment(now_ns, ticks, tick_ns, call, stack, rounds, counts(adapter.group_kind))
        return Status(
            identity=r.identity,
            mono_ns=time.monotonic_ns(),
            ticks=ticks,
            tick_mono_ns=tick_ns,
            call=call,
            stack=stack,
            rounds=adapter.ordinals(),
            seams=adapter.seams(),
            recording=r.recording,
            recording_off=self._agent.recorder.reason,
            hook_errors=adapter.hooks.errors(),
            hooks_removed=adapter.hooks.removed(),
            faults=self._agent.faults.status(),
            agent_cpu_s=self._cpu_s(),
            counts=counts(adapter.group_kind),
            threads=adapter.threads(),
        )

    def _queues(self, _: dict[str, Any]) -> Snapshot:
        adapter = self._agent.adapter
        queues, missing = adapter.queues()
        ticks = adapter.ticks()[0]
        return Snapshot(time.monotonic_ns(), ticks, queues, adapter.slots(), missing)

    def _recording(self, args: dict[str, Any]) -> bytes:
        recorder = self._agent.recorder
        if not isinstance(recorder, RecordingWriter):
            raise PdctlError(f"recording is off: {recorder.reason}")
        span = structs.convert(args, _Span)
        return recorder.read(span.offset, min(span.length, MAX_CHUNK))

    def _leave(self, _: dict[str, Any]) -> str:
        """End an agent that was injected into a running rank. Its hooks, socket and thread are removed."""
        if self.registration.identity.loaded_by != ATTACHED:
            raise PdctlError(
                "this agent came with the engine and goes with it", "PDCTL_AGENT=off leaves it out.", Exit.REFUSED
            )
        threading.Thread(target=self._gone, daemon=True, name="pdctl-leaves").start()
        return "leaves"

    def _gone(self) -> None:
        time.sleep(_ANSWER_S)
        self._agent.stop()

    def _flight_recorder(self, _: dict[str, Any]) -> list[FlightEntry]:
        try:
            return flight.last_entries()
        except LookupError as error:
            raise PdctlError(str(error)) from None


_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Span(msgspec.Struct, forbid_unknown_fields=True):
    """Part of a recording, in bytes."""

    offset: _Size
    length: _Size
