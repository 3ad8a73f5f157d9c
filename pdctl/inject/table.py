"""Faults inside a rank: kept, decided and ended here, on the monotonic clock. Standard library only.

With no fault armed a site costs one attribute load and a truth test: ``if table.metadata: …``.
Whatever ends first ends a fault: its TTL, the lease of the client that placed it, its hit count, ``heal``.
Everything a fault holds back (a deferred write) is let go the moment the fault ends, so that no request waits for ever.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pdctl.model import FaultStatus

MAX_TTL_S = 900.0
DEFAULT_TTL_S = 60.0

Recorder = Callable[[str, "Fault", int, str], None]
"""Called as (``armed`` | ``fired`` | ``ended``, fault, room, text)."""


@dataclass
class Fault:
    """One fault in one rank. target_tp / target_dp select the decode rank aimed at, -1 for any. Times are monotonic s."""

    id: str
    kind: str
    delay_s: float
    expires: float
    lease_expires: float | None
    target: str
    target_dp: int = -1
    target_tp: int = -1
    room: int = 0
    hits: int = 0
    owner: str = ""
    visits: int = 0
    eligible: int = 0
    fired: int = 0
    number: int = 0
    ended: str = ""


@dataclass(order=True)
class _Held:
    due: float
    order: int
    fault: Fault = field(compare=False)
    release: Callable[[], None] = field(compare=False)


class FaultTable:
    """The faults of one rank. Sites ask from the engine's threads, the agent's thread arms and heals."""

    def __init__(self, armed: bool, record: Recorder | None = None) -> None:
        self.armed = armed
        self.metadata: tuple[Fault, ...] = ()
        self._record = record or (lambda what, fault, room, text: None)
        self._faults: dict[str, Fault] = {}
        self._numbers = itertools.count(1)
        self._order = itertools.count()
        self._held: list[_Held] = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    # ---- agent side -----------------------------------------------------------------------------------------------

    def arm(self, fault: Fault) -> None:
        """Place ``fault``. The caller has checked that the rank is armed and the site exists."""
        with self._wake:
            fault.number = next(self._numbers)
            self._faults[fault.id] = fault
            self._publish()
            self._start()
            self._wake.notify()
        self._record("armed", fault, fault.room, fault.kind)

    def renew(self, fault_id: str, lease_s: float) -> bool:
        """Extend a fault's lease to ``lease_s`` seconds from now; False when the fault is no longer there."""
        fault = self._faults.get(fault_id)
        if fault is None:
            return False
        if fault.lease_expires is not None:
            fault.lease_expires = time.monotonic() + lease_s
        return True

    def heal(self, fault_id: str | None = None, why: str = "heal") -> list[str]:
        """End one fault (or all) and let go of what it holds; returns the ids ended. Idempotent."""
        with self._wake:
            ids = [fault_id] if fault_id is not None else list(self._faults)
            ended = [self._end(self._faults[i], why) for i in ids if i in self._faults]
        return ended

    def status(self) -> tuple[FaultStatus, ...]:
        """Return the faults in place, with what is still held back."""
        now = time.monotonic()
        with self._wake:
            pending: dict[str, int] = {}
            for held in self._held:
                pending[held.fault.id] = pending.get(held.fault.id, 0) + 1
            return tuple(
                FaultStatus(
                    id=f.id, kind=f.kind, target=f.target, delay_s=f.delay_s, left_s=max(0.0, _ends(f) - now),
                    visits=f.visits, eligible=f.eligible, fired=f.fired, pending=pending.get(f.id, 0), owner=f.owner,
                    room=f.room, hits=f.hits,
                )
                for f in self._faults.values()
            )

    # ---- site side ------------------------------------------------------------------------------------------------

    def metadata_fault(self, room: int, dp: int, tp: int) -> Fault | None:
        """Return the fault that takes this metadata write (room; decode rank it goes to), None to let it pass.

        A dp of -1 means the site can't tell it; such a write matches a fault that names no dp or dp 0 only.
        """
        now = time.monotonic()
        for fault in self.metadata:
            fault.visits += 1
            if fault.ended or _ends(fault) <= now:
                continue
            if fault.room and fault.room != room:
                continue
            if fault.target_tp not in (-1, tp) or fault.target_dp not in (-1, max(dp, 0)):
                continue
            fault.eligible += 1
            if fault.hits and fault.fired >= fault.hits:
                continue
            fault.fired += 1
            self._record("fired", fault, room, f"tp{tp}")
            return fault
        return None

    def hold(self, fault: Fault, release: Callable[[], None]) -> None:
        """Run ``release`` on the table's own thread when the fault's delay is over or the fault ends, whichever is first."""
        with self._wake:
            if fault.ended:
                due = 0.0
            else:
                due = time.monotonic() + fault.delay_s
            heapq.heappush(self._held, _Held(due, next(self._order), fault, release))
            self._start()
            self._wake.notify()

    # ---- own thread -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="pdctl-faults", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            due: list[_Held] = []
            with self._wake:
                now = time.monotonic()
                for fault in list(self._faults.values()):
                    if _ends(fault) <= now:
                        self._end(fault, "lease lost" if fault.expires > now else "time is up")
                    elif fault.hits and fault.fired >= fault.hits and not any(h.fault is fault for h in self._held):
                        self._end(fault, "hit count reached")
                while self._held and self._held[0].due <= now:
                    due.append(heapq.heappop(self._held))
                if not due:
                    if not self._faults and not self._held:
                        self._thread = None
                        return
                    waits = [_ends(fault) - now for fault in self._faults.values()]
                    waits += [held.due - now for held in self._held[:1]]
                    self._wake.wait(min(1.0, max(0.0, min(waits))))
            for held in due:
                try:
                    held.release()
                except Exception as error:  # the engine's write failed: say so, keep the thread
                    self._record("ended", held.fault, 0, f"late write failed: {error}"[:72])

    def _end(self, fault: Fault, why: str) -> str:
        """Take the fault out; caller holds the lock. What it held becomes due now."""
        fault.ended = why
        self._faults.pop(fault.id, None)
        self._publish()
        for held in self._held:
            if held.fault is fault:
                held.due = 0.0
        heapq.heapify(self._held)
        self._wake.notify()
        self._record("ended", fault, 0, why)
        return fault.id

    def _publish(self) -> None:
        self.metadata = tuple(f for f in self._faults.values() if f.kind == "delay-metadata")


def _ends(fault: Fault) -> float:
    return fault.expires if fault.lease_expires is None else min(fault.expires, fault.lease_expires)
