"""The faults of a rank: stored, decided and ended here, on the monotonic clock. Standard library and msgspec only.

With no fault in place a site costs one attribute load and a truth test: ``if table.any: …``.
A fault ends at the first of these: its TTL, the lease of its client, its hit count, ``heal``.
When a fault ends, it releases every held write at once. So no request waits for ever.

A site that acts at once uses the table so, on any thread of the engine::

    if table.any:                                                 # a fault is in place, or still holds something
        fault = table.decide(FLIP_POLL, room, rid=rid)            # counted as fired
        if fault is not None:
            return fault.value

A site that holds a write back::

    if table.any:
        fault = table.offer((DELAY_METADATA, DROP_METADATA), room, dp=dp, tp=tp, address=address, place=place)
        if fault is not None:
            write = copy_of_the_row()                             # now: the engine reuses the source row
            if table.hold(fault, write, room=room, tp=tp, place=place, still_wanted=room_is_there):
                return 0
    return original(...)

No site waits for the table longer than SITE_PATIENCE_S: a write that can't be decided in that time passes. The table calls
release, still_wanted and the recorder without holding its lock. Each release runs on its own thread: one that is stuck in a
dead connection does not keep another fault from ending.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress

from pdctl.faults.fault import USED_UP, Fault, Held
from pdctl.faults.kinds import METADATA_KINDS
from pdctl.protocol.model import FaultStatus

SITE_PATIENCE_S = 0.05
SLICE_S = 0.02
MAX_HELD = 64
HISTORY = 32

Recorder = Callable[[str, Fault, int, str], None]
"""Called as (``armed | fired | released | dropped | failed | ended``, fault, room, text), on any thread."""

_Note = tuple[str, Fault, int, str]


class FaultTable:
    """The faults of one rank. The engine's threads call it at sites; the agent's thread arms and heals."""

    def __init__(self, armed: bool, record: Recorder | None = None) -> None:
        self.armed = armed
        self.any: tuple[Fault, ...] = ()
        """All faults that are in place or still hold something; sites test it before anything else."""
        self.metadata: tuple[Fault, ...] = ()
        """Those of them whose site is the metadata write."""
        self._record = record
        self._faults: dict[str, Fault] = {}
        self._held: list[Held] = []
        self._releasing: list[Held] = []
        self._ended: deque[Fault] = deque(maxlen=HISTORY)
        self._count = 0
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    # ---- agent side -----------------------------------------------------------------------------------------------

    def arm(self, fault: Fault, *, limit: int = 1) -> str:
        """Place ``fault`` unless the rank has ``limit`` faults already. Return "" or why it was not placed.

        An ended fault that still holds a write counts. The caller has checked that the rank is armed and the site exists.
        Raises RuntimeError if the rank can't start the thread that ends the fault; nothing is placed then.
        """
        with self._lock:
            there = self._there()
            if fault.id in there:
                return f"fault {fault.id} is in place already"
            if len(there) >= limit:
                others = ", ".join(f"{f.id} of {f.owner or 'unknown'}" for f in there.values())
                return f"another fault is in place: {others}"
            self._start()
            self._count += 1
            fault.number = self._count
            self._faults[fault.id] = fault
            self._publish()
            self._wake.notify_all()
        self._tell([("armed", fault, fault.room, fault.kind)])
        return ""

    def renew(self, fault_id: str, lease_s: float) -> bool:
        """Extend a fault's lease to ``lease_s`` seconds from now; 0 removes the lease. False if the fault is not in place.

        An expired lease can't be renewed, even if the fault has not been removed yet.
        """
        now = time.monotonic()
        with self._lock:
            fault = self._faults.get(fault_id)
            if fault is None or fault.ends <= now:
                return False
            if fault.lease_expires is not None:
                fault.lease_expires = now + lease_s if lease_s else None
                self._wake.notify_all()
            return True

    def heal(self, fault_id: str | None = None, why: str = "heal") -> list[str]:
        """End one fault (or all), and release its held writes. Return the ids ended now. Idempotent; does not wait."""
        with self._lock:
            ids = [fault_id] if fault_id is not None else list(self._faults)
            ended = [known for known in ids if known in self._faults]
            notes = [self._end(self._faults[known], why) for known in ended]
            self._try_start()
        self._tell(notes)
        return ended

    def status(self) -> tuple[FaultStatus, ...]:
        """Return the faults in place and those that have ended but still hold a write (``ended`` says why)."""
        now = time.monotonic()
        with self._lock:
            return tuple(fault.status(now, self._pending(fault)) for fault in self._there().values())

    def history(self) -> tuple[FaultStatus, ...]:
        """Return the last faults that ended, oldest first, at most HISTORY of them."""
        now = time.monotonic()
        with self._lock:
            return tuple(fault.status(now, self._pending(fault)) for fault in self._ended)

    # ---- site side ------------------------------------------------------------------------------------------------

    def decide(
        self, kind: str, room: int, *, dp: int = -1, tp: int = -1, address: str = "", rid: str = ""
    ) -> Fault | None:
        """Return the fault of ``kind`` that takes this visit of ``room``, counted as fired; None to let it pass.

        For sites that act at once. dp, tp, address: the decode rank written to. rid: the request. -1 and "" if the site
        doesn't know them.
        """
        found = self.offer((kind,), room, dp=dp, tp=tp, address=address, rid=rid)
        return found if found is not None and self.fire(found, room, tp=tp) else None

    def offer(
        self,
        kinds: Collection[str],
        room: int,
        *,
        dp: int = -1,
        tp: int = -1,
        address: str = "",
        rid: str = "",
        place: Hashable = None,
    ) -> Fault | None:
        """Return the fault of one of ``kinds`` that may take this visit of ``room``, None to let it pass.

        dp -1 and address "" mean that the site doesn't know them (:meth:`AimedRank.is_at`). Only a following :meth:`hold` or
        :meth:`fire` takes the visit. ``place``: destination of a row. If another room writes to the same place, the held
        write is dropped: the row has a new owner.
        """
        now = time.monotonic()
        if not self._lock.acquire(timeout=SITE_PATIENCE_S):
            return None
        try:
            self._try_start()  # whoever ended the keeper: what is due is let go from here on
            if place is not None:
                self._make_way(place, room)
            takes = None
            for fault in self._faults.values():
                if fault.kind not in kinds:
                    continue
                fault.visits += 1
                if fault.ends <= now or not fault.aims_at(room, dp, tp, address, rid) or fault.has_harmed(room, tp):
                    continue
                fault.eligible += 1
                if fault.picks(room) and takes is None:
                    if self._may_take(fault, room):
                        takes = fault
                    else:
                        fault.passed += 1
            return takes
        finally:
            self._lock.release()

    def fire(self, fault: Fault, room: int, *, tp: int = -1) -> bool:
        """Take the visit that :meth:`offer` returned, at once. False: the fault has ended, and the site does nothing."""
        if not self._lock.acquire(timeout=SITE_PATIENCE_S):
            return False
        try:
            now = time.monotonic()
            if fault.ended or fault.ends <= now or fault.has_harmed(room, tp) or not self._may_take(fault, room):
                return False
            fault.take(room, now, tp)
            if fault.is_used_up() or fault.of.spans:
                self._wake.notify_all()
        finally:
            self._lock.release()
        self._tell([("fired", fault, room, f"tp{tp}" if tp >= 0 else "")])
        return True

    def linger(self, fault: Fault) -> float:
        """Sleep for the fault's duration, or until it ends if that is sooner; returns the seconds slept.

        For a site whose delay is the fault. It runs on the engine's own thread and does not hold the GIL meanwhile.
        """
        began = time.monotonic()
        while (left := min(began + fault.delay_s, fault.ends) - time.monotonic()) > 0 and not fault.ended:
            time.sleep(min(SLICE_S, left))
        return time.monotonic() - began

    def hold(
        self,
        fault: Fault,
        release: Callable[[], object],
        *,
        room: int,
        tp: int = -1,
        place: Hashable = None,
        still_wanted: Callable[[], bool] | None = None,
    ) -> bool:
        """Hold a write: run ``release`` when the delay is over or the fault ends. False: the site must do the write now.

        A kind without a duration holds until the fault ends, so no write is lost.

        release runs once, on a thread of the table. It owns the data that it writes: a copy of the row made before this call.
        It is not run if ``still_wanted``, called just before, returns False, or if :meth:`gone` or a later write to ``place``
        has shown that the room is over: a write may be dropped only if its room no longer waits.
        One room at a time: while a write of another room is held or being released, the result is False.
        """
        now = time.monotonic()
        if not self._lock.acquire(timeout=SITE_PATIENCE_S):
            return False
        try:
            if fault.ended or fault.ends <= now or not self._may_take(fault, room) or not self._try_start():
                return False
            fault.take(room, now)
            due = math.inf if fault.of.to_the_end else now + fault.delay_s
            self._held.append(Held(due, fault, room, release, still_wanted, place))
            self._wake.notify_all()
        finally:
            self._lock.release()
        self._tell([("fired", fault, room, f"tp{tp}" if tp >= 0 else "")])
        return True

    def gone(self, room: int) -> None:
        """Drop the held writes of ``room``: an ABORT message shows that decode no longer waits."""
        if self.any and self._lock.acquire(timeout=SITE_PATIENCE_S):
            try:
                self._drop(lambda held: held.room == room, "the room was aborted")
            finally:
                self._lock.release()

    def room_failed(self, room: int) -> None:
        """Count a failed room of this rank, for the stop condition ``failed:N`` of the faults."""
        if not self.any or not self._lock.acquire(timeout=SITE_PATIENCE_S):
            return
        notes: list[_Note] = []
        try:
            for fault in list(self._faults.values()):
                if fault.stop_failed:
                    fault.lost.add(room)
                    if len(fault.lost) >= fault.stop_failed:
                        notes.append(self._end(fault, f"stop condition: {len(fault.lost)} rooms have failed"))
            self._try_start()
        finally:
            self._lock.release()
        self._tell(notes)

    # ---- under the lock -------------------------------------------------------------------------------------------

    def _all_held(self) -> list[Held]:
        return self._held + self._releasing

    def _there(self) -> dict[str, Fault]:
        """Return id → fault, of those in place and those that have ended and still hold a write."""
        return {fault.id: fault for fault in (*self._faults.values(), *(held.fault for held in self._all_held()))}

    def _pending(self, fault: Fault) -> int:
        return sum(held.fault is fault for held in self._all_held())

    def _may_take(self, fault: Fault, room: int) -> bool:
        held = self._all_held()
        return len(held) < MAX_HELD and fault.may_take(room, {one.room for one in held if one.fault is fault})

    def _drop(self, over: Callable[[Held], bool], why: str) -> None:
        found = [held for held in self._held if over(held)]
        for held in found:
            held.why_dropped, held.due = why, 0.0
        if found:
            self._wake.notify_all()

    def _make_way(self, place: Hashable, room: int) -> None:
        def old(held: Held) -> bool:
            return held.place == place and held.room != room

        self._drop(old, "its slot has a new owner")
        if any(old(held) for held in self._releasing):  # being written right now: the new owner's row must come last
            self._wake.wait_for(lambda: not any(old(held) for held in self._releasing), SITE_PATIENCE_S)

    def _end(self, fault: Fault, why: str) -> _Note:
        fault.ended = why
        self._faults.pop(fault.id, None)
        self._ended.append(fault)
        for held in self._held:
            if held.fault is fault:
                held.due = 0.0
        self._publish()
        self._wake.notify_all()
        return ("ended", fault, 0, why)

    def _publish(self) -> None:
        self.any = tuple(self._there().values())
        self.metadata = tuple(fault for fault in self.any if fault.kind in METADATA_KINDS)

    # ---- own threads ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the keeper thread. The caller holds the lock. Raises RuntimeError if no thread can be started."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._keep, name="pdctl-faults", daemon=True)
            thread.start()
            self._thread = thread

    def _try_start(self) -> bool:
        try:
            if self._faults or self._held:
                self._start()
        except RuntimeError:
            return False
        return True

    def _keep(self) -> None:
        while True:
            with self._lock:
                notes, due = self._turn(time.monotonic())
                if not notes and not due:
                    if not self._faults and not self._held:
                        self._thread = None
                        return
                    times = [fault.ends for fault in self._faults.values()] + [held.due for held in self._held]
                    self._wake.wait(min(1.0, max(0.0, min(times) - time.monotonic())))
            self._let_go(due)
            self._tell(notes)

    def _turn(self, now: float) -> tuple[list[_Note], list[Held]]:
        notes = []
        for fault in list(self._faults.values()):
            if fault.ends <= now:
                notes.append(self._end(fault, fault.why_over(now)))
            elif fault.is_used_up() and not self._pending(fault):
                notes.append(self._end(fault, USED_UP))
        due = [held for held in self._held if held.due <= now]
        if due:
            self._held = [held for held in self._held if held.due > now]
            self._releasing += due
        return notes, due

    def _let_go(self, due: list[Held]) -> None:
        while due:  # and keep no reference: a row may be given back when its write is forgotten
            held = due.pop(0)
            try:
                threading.Thread(target=self._settle, args=(held,), name="pdctl-release", daemon=True).start()
            except RuntimeError:  # no thread to be had: late is better than never
                self._settle(held)

    def _settle(self, held: Held) -> None:
        what, text = "failed", ""
        try:
            if not held.why_dropped and not _wanted(held):
                held.why_dropped = "nobody waits for it any more"
            if held.why_dropped:
                what, text = "dropped", held.why_dropped
            else:
                held.release()
                what = "released"
        except BaseException as error:  # noqa: BLE001 - engine code on our thread: said, never raised further
            text = f"late write failed: {type(error).__name__}: {error}"
        with self._lock:
            self._releasing.remove(held)
            setattr(held.fault, what, getattr(held.fault, what) + 1)
            self._publish()
            self._wake.notify_all()
        self._tell([(what, held.fault, held.room, text)])

    def _tell(self, notes: list[_Note]) -> None:
        if self._record is None:
            return
        for note in notes:
            with suppress(Exception):  # a recording that can't be written keeps no fault from ending
                self._record(*note)


def _wanted(held: Held) -> bool:
    try:
        return held.still_wanted is None or held.still_wanted()
    except Exception:  # noqa: BLE001 - a check that can't tell must not leave a living request waiting for ever
        return True
