"""What a transfer backend answers about its KV manager; this much is known of each that builds on SGLang's common classes.

Everything is found in the code that is loaded, never by a version: which functions and names a class has, and what is reached
from its ``poll``. It works on proxies of another process, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pdctl.engines import sites
from pdctl.engines.base import Hooks
from pdctl.engines.request_tables import Ends
from pdctl.engines.sglang import seams
from pdctl.engines.threads import BOOTSTRAP
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import Seam

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder

ABORT_HANDLER = "_handle_abort_notification"
_MAX_FUNCTIONS = 64


class Backend:
    """The backend of one rank, ``scheduler``'s. modules: the loaded modules of the rank, if it is another process.

    prefix: how the names of its classes begin.
    """

    prefix = ""

    def __init__(self, scheduler: Any, modules: Mapping[str, Any] | None = None) -> None:
        self.scheduler = scheduler
        self.manager = seams.kv_manager(scheduler)
        self.kind: Any = self.manager.__class__  # a manager seen from outside says so of itself
        self._modules = modules

    def is_it(self) -> bool:
        """Return whether the rank's manager is of this backend."""
        return self.manager is not None and self.kind.__name__ == f"{self.prefix}KVManager"

    @property
    def name(self) -> str:
        """Return the backend's name as the engine's argument has it, ``?`` unknown."""
        return str(seams.server_arg(self.scheduler, "disaggregation_transfer_backend", "?"))

    def peer(self, role: str) -> Any:
        """Return the class of this backend's senders or receivers (``Sender``, ``Receiver``), None where it is not found."""
        own = str(self.kind.__name__).removesuffix("KVManager")
        for name in seams.CONNECTIONS:
            found = getattr(seams.module(name, self._modules), f"{own}KV{role}", None)
            if found is not None:
                return found
        return None

    # ---- what a rank is told, and what ends a wait -------------------------------------------------------------------

    def ends(self) -> Ends | None:
        """Return which time-outs the polls of this backend look at, None where its classes are not found."""
        sender, receiver = self.peer("Sender"), self.peer("Receiver")
        if sender is None or receiver is None:
            return None
        return Ends(
            bootstrap="bootstrap_timeout" in reached(sender, "poll"),
            waiting="waiting_timeout" in reached(receiver, "poll"),
        )

    def lacks(self) -> tuple[str, ...]:
        """Return the protections that this backend's code does not have, by the names of ``Identity.lacks``."""
        return ()

    def sends_aborts(self) -> bool:
        """Return whether decode tells prefill of a request that it gives up, with a message (since 0.5.13)."""
        receiver = self.peer("Receiver") or seams.common("CommonKVReceiver", self._modules)
        return hasattr(receiver, "_send_abort_notification")

    def deadly_abort(self, role: str) -> str:
        """Return why no abort must be made on a rank of this role, "" where one does no more than to end its room."""
        del role
        return ""

    def owed(self, role: str) -> str:
        """Return the function of a thread that a manager of this role always starts as it is made, "" unknown."""
        if role != "prefill":
            return ""
        made = getattr(getattr(self.kind, "__init__", None), "__code__", None)
        starts = [getattr(getattr(self.kind, name, None), "__code__", None) for name in getattr(made, "co_names", ())]
        inner = (const for code in starts if code is not None for const in constants(code))
        return BOOTSTRAP if any(getattr(const, "co_name", "") == BOOTSTRAP for const in inner) else ""

    def aux(self, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
        """Return (``rdma`` or ``tcp`` or "", the evidence): how metadata rows are written."""
        del environ
        return "", f"backend {self.name}: how it writes metadata is not known"

    # ---- hooks -------------------------------------------------------------------------------------------------------

    def install(self, hooks: Hooks, recorder: Recorder, faults: FaultTable, role: str) -> list[Seam]:
        """Hook metadata writes and the messages that tell how a transfer ended; return the seams of events and fault sites."""
        del hooks, recorder, faults
        if role != "prefill":
            return []
        why = f"backend {self.name}: its writes are not known"
        return [
            Seam("events.metadata", False, why),
            *sites.seams((*sites.WRITE_KINDS, *sites.STATUS_KINDS), False, why),
        ]


def reached(kind: Any, start: str) -> frozenset[str]:
    """Return the names used by a method of a class and by those of its methods that are reached from there."""
    names: set[str] = set()
    waiting = [start]
    seen = 0
    while waiting and seen < _MAX_FUNCTIONS:
        code = getattr(getattr(kind, waiting.pop(), None), "__code__", None)
        if code is None:
            continue
        seen += 1
        new = set(code.co_names) - names
        names |= new
        waiting += sorted(new)
    return frozenset(names)


def constants(code: Any) -> Iterator[Any]:
    """Yield the constants of a code object and of the functions in it."""
    for const in code.co_consts:
        yield const
        if hasattr(const, "co_consts"):
            yield from constants(const)
