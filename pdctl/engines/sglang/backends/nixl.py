"""The NIXL backend. Its metadata write is recorded, and delayed, changed or failed for a fault.

``NixlKVManager.send_aux`` posts one row of MetadataBuffers to a decode rank and returns NIXL's handle of the transfer; the
worker waits for the handle. Up to 0.5.22 a notification is bound to the row (``{room}_aux``), and it is all that decode
hears. NIXL delivers it after the row, so a row that comes after its notification, as a held one does, is what NIXL never does
by itself. Since 0.5.23 nothing is bound to it: the worker sends a status message when the handle is done, as Mooncake's does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pdctl.engines import sites
from pdctl.engines.base import Hooks, Site
from pdctl.engines.sglang.backends import rows, slot_owner, status
from pdctl.engines.sglang.backends.base import ABORT_HANDLER, Backend, constants
from pdctl.engines.sites import Write
from pdctl.faults.kinds import FAIL_TRANSFER, HELD_METADATA
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import EventKind, KVPoll, Seam

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder

_WAIT_S = 0.002
_LONGEST_WAIT_S = 60.0
"""A late write that NIXL has not ended by then is given up, as failed."""
_BREAKS = "breaks NIXL's own order: it delivers a row before the notification that is bound to it"


class Nixl(Backend):
    """NIXL."""

    prefix = "Nixl"

    @property
    def notifies(self) -> bool:
        """Whether decode hears of the end of a transfer by the notification that is bound to the row (up to 0.5.22)."""
        return hasattr(self.kind, "update_transfer_status")

    def lacks(self) -> tuple[str, ...]:
        """Return ``aborts`` where an ABORT of decode ends prefill's bootstrap thread, which asserts that none comes.

        That is so in 0.5.13 to 0.5.15. ``failures`` where prefill does not tell decode of a failed transfer (up to 0.5.18).
        """
        aborts = self.sends_aborts() and not hasattr(self.kind, ABORT_HANDLER) and not self._hears_aborts()
        return (*(["aborts"] if aborts else []), *([] if status.message_of(self.kind) else ["failures"]))

    def _hears_aborts(self) -> bool:
        code = getattr(getattr(self.kind, "_start_bootstrap_thread", None), "__code__", None)
        return code is None or any(const in (b"ABORT", "ABORT") for const in constants(code))

    def aux(self, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
        """Return (``bound`` or ``rdma``, the evidence)."""
        del environ
        if self.notifies:
            return "bound", "send_aux writes into the row, and what decode hears is bound to that write"
        return "rdma", "send_aux writes into the row"

    def install(self, hooks: Hooks, recorder: Recorder, faults: FaultTable, role: str) -> list[Seam]:
        """Hook what a prefill rank writes and tells, or what a decode rank hears. Return the seams of events and sites."""
        if role == "decode":
            return self._heard(hooks, recorder) if self.notifies else []  # elsewhere the status of the room changes
        why_not = rows.why_not(self, "kv_args", "decode_kv_args_table", "transfer_infos", "agent")
        writes = _Writes(self.scheduler, recorder, faults, possible=not why_not)
        there = hooks.wrap(self.kind, "send_aux", "metadata", writes.make)
        can = there and not why_not
        if can and faults.armed:
            hooks.wrap(self.manager.agent, "check_xfer_state", "metadata", _check)
        detail = f"{self.kind.__name__}.send_aux"
        order = f"{detail}; {_BREAKS}" if self.notifies else detail
        rest = [kind for kind in sites.WRITE_KINDS if kind not in HELD_METADATA and kind != FAIL_TRANSFER]
        found = [
            Seam("events.metadata", there, detail),
            *sites.seams(HELD_METADATA, can, why_not or order),
            *sites.seams(rest, can, why_not or detail),
        ]
        left = self.left_waiting()
        found += sites.seams([FAIL_TRANSFER], can and not left, why_not or left or detail)
        message, where = status.install(hooks, self.kind, faults)
        if self.notifies:
            where = f"{detail}, the notification bound to the row"
            if "aborts" in self.lacks():
                where += f"; where it is held for longer than decode waits, {DEADLY}"
            message, where = can, why_not or where
        found += sites.seams(sites.STATUS_KINDS, message, where)
        return [*found, slot_owner.watch_aborts(hooks, self, faults)]

    def deadly_abort(self, role: str) -> str:
        """Return why no abort must be made on a rank of this role."""
        return self.left_waiting() if role == "prefill" else DEADLY if "aborts" in self.lacks() else ""

    def left_waiting(self) -> str:
        """Return why a room that only prefill has failed must not be made here, "" where it may be.

        Decode is not told, waits for its time-out, and then sends the ABORT that ends prefill's bootstrap thread.
        """
        if {"aborts", "failures"} <= set(self.lacks()):
            return f"decode is not told of it here, and after its time-out {DEADLY}"
        return ""

    def _heard(self, hooks: Hooks, recorder: Recorder) -> list[Seam]:
        """Record that a decode rank has heard the end of a transfer: it changes no status, only what the receiver concludes."""
        method = "check_transfer_done"
        there = hooks.wrap(self.kind, method, "transfer-done", lambda f, site: _done(f, site, recorder.event))
        return [Seam("events.transfer-done", there, f"{self.kind.__name__}.{method}")]


DEADLY = "decode's ABORT message ends prefill's bootstrap thread for good (SGLang 0.5.13 to 0.5.15 over NIXL)"


def _done(original: Callable[..., Any], site: Site, event: Callable[..., None]) -> Callable[..., Any]:
    def check_transfer_done(self_: Any, room: int, *args: Any, **kwargs: Any) -> Any:
        result = original(self_, room, *args, **kwargs)
        if result and site.on:
            with site:
                event(EventKind.STATE, room=room, a=int(KVPoll.SUCCESS))
        return result

    return check_transfer_done


class _Handle:
    """The handle of a transfer that the engine is told is done."""

    def release(self) -> None:
        """Nothing is kept."""


DONE = _Handle()


def _check(original: Callable[..., Any], _site: Site) -> Callable[..., Any]:
    return lambda handle, *args, **kwargs: "DONE" if handle is DONE else original(handle, *args, **kwargs)


class FailedWriteError(RuntimeError):
    """What a write that a fault fails raises in the engine's transfer worker, as a write that NIXL rejects does."""


class _Writes(rows.RowHook):
    """The hook at ``send_aux``."""

    def make(self, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        """Return the function to put in place of ``send_aux``."""

        def send_aux(self_: Any, peer: str, index: int, targets: Any, slot: int, *args: Any, **kwargs: Any) -> Any:
            handle, write = None, None
            notif = _notification(args, kwargs)
            if site.on:
                try:
                    write = _write(self_, peer, slot, notif)
                    if self._faults.any and self._possible and write is not None:
                        handle = self._faulty(original, self_, write, index, targets, notif)
                except FailedWriteError:
                    raise
                except Exception:  # the write goes its usual way
                    site.failed()
            if handle is not None:
                return handle
            handle = original(self_, peer, index, targets, slot, *args, **kwargs)
            if write is not None and site.on:
                with site:
                    self._sent(write)
            return handle

        return send_aux

    def _sent(self, write: Write) -> None:
        self._event(EventKind.META_SENT, room=write.room, slot=write.place[1], a=write.tp, b=0)
        if self._faults.armed:
            self._sites.done(write)

    def _faulty(
        self, send_aux: Callable[..., Any], manager: Any, write: Write, index: int, targets: Any, notif: str
    ) -> Any:
        """Return the handle that the engine gets of a write that a fault took, None where none did."""
        if self._sites.fails(write):
            raise FailedWriteError("KVSender failed to post transfer (a fault of pdctl)")
        fault = self._sites.holds(write)
        if fault is not None:
            return self._hold(fault, manager, write, index, targets, notif)
        wrong = self._sites.wrong_room(write)
        if wrong:
            late = LateWrite(manager, write, index, targets)
            if not late.set_room(self._rooms, wrong):
                return None
            late(notif)
            self._sent(write)
            return DONE
        return self._silence(send_aux, manager, write, index, targets, notif) if notif else None

    def _hold(self, fault: Any, manager: Any, write: Write, index: int, targets: Any, notif: str) -> Any:
        late = LateWrite(manager, write, index, targets)

        def write_now() -> None:
            late("")
            self._sent(write)

        room, slot = write.room, write.place[1]
        still_wanted = slot_owner.check(manager, write.address, room, slot)
        if not self._faults.hold(
            fault, write_now, room=room, tp=write.tp, place=write.place, still_wanted=still_wanted
        ):
            return None
        if notif:
            manager.agent.send_notif(write.address, notif.encode("ascii"))
        return DONE

    def _silence(
        self, send_aux: Callable[..., Any], manager: Any, write: Write, index: int, targets: Any, notif: str
    ) -> Any:
        """Write the row without its notification where a fault holds that back; it is sent by itself later."""
        fault = self._faults.offer(sites.STATUS_KINDS, write.room, dp=write.dp, tp=write.tp, address=write.address)
        if fault is None:
            return None

        def tell() -> None:
            manager.agent.send_notif(write.address, notif.encode("ascii"))

        if not self._faults.hold(fault, tell, room=write.room, tp=write.tp):
            return None
        handle = send_aux(manager, write.address, index, targets, write.place[1], "")
        self._sent(write)
        return handle


def _notification(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    notif = args[0] if args else kwargs.get("notif", "")
    return notif if isinstance(notif, str) else ""


def _write(manager: Any, peer: str, slot: int, notif: str) -> Write | None:
    """Return the write; its notification names the room, and without one (0.5.23) the slot tells it."""
    if notif:
        room = int(notif.partition("_")[0])
    else:
        rooms = [
            room
            for room, infos in list(manager.transfer_infos.items())
            if peer in infos and infos[peer].dst_aux_index == slot
        ]
        if not rooms:
            return None
        room = rooms[-1]
    return Write(room, -1, status.tp_of(manager.decode_kv_args_table[peer]), peer, (peer, slot))


class LateWrite(rows.RowCopy):
    """A metadata write for later: a copy of the present row, sent with NIXL's own functions.

    Calling the object does the write. It raises RuntimeError if NIXL reports a failure, or does not end it.
    """

    def __init__(self, manager: Any, write: Write, index: int, targets: Any) -> None:
        super().__init__(manager.kv_args, index, len(targets))
        slot = write.place[1]
        self._agent, self._peer = manager.agent, write.address
        self._sources = [(pointer, length, 0) for pointer, length in zip(self.pointers, self.lengths, strict=True)]
        self._places = [(base + length * slot, length, 0) for base, length in zip(targets, self.lengths, strict=False)]

    def __call__(self, notif: str = "") -> None:
        """Do the write, with what is bound to it, on any thread."""
        agent = self._agent
        registered = agent.register_memory([(self.start, self.length, 0, "")], "DRAM")
        try:
            handle = agent.initialize_xfer(
                "WRITE",
                agent.get_xfer_descs(self._sources, "DRAM"),
                agent.get_xfer_descs(self._places, "DRAM"),
                self._peer,
                notif.encode("ascii"),
            )
            state = agent.transfer(handle)
            until = time.monotonic() + _LONGEST_WAIT_S
            while state == "PROC" and time.monotonic() < until:
                time.sleep(_WAIT_S)
                state = agent.check_xfer_state(handle)
            agent.release_xfer_handle(handle)
        finally:
            agent.deregister_memory(registered)
        if state != "DONE":
            raise RuntimeError(f"NIXL says {state} of the late write")
