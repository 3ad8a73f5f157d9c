"""The fault sites of an SGLang rank that no transfer backend has for itself: polls, registrations, entering requests."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from pdctl.engines import sites, stages
from pdctl.engines.base import Hooks, Site
from pdctl.engines.sglang import seams
from pdctl.engines.sglang.backends.base import Backend
from pdctl.faults.kinds import ABORT
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import Seam

_REGISTER, _QUERY = "_register_prefill_dp_rank", "query_prefill_dp_ranks"
_ONLY_WHERE = "called with dp_size > 1 and a load balancing that does not follow the room"


def install_query(hooks: Hooks, faults: FaultTable) -> list[Seam]:
    """Install the hook at a decode rank's queries for dp ranks. Return its seam.

    Call this before installing the recording hook. The recording hook then sees the answer as the fault changed it.
    """
    owner = seams.common("CommonKVReceiver")
    there = hasattr(owner, _QUERY)
    if there and faults.armed:
        hooks.wrap(owner, _QUERY, "query", sites.query(faults))
    detail = f"CommonKVReceiver.{_QUERY}, {_ONLY_WHERE}" if there else f"no CommonKVReceiver.{_QUERY}"
    return sites.seams(sites.QUERY_KINDS, there, detail)


def install(hooks: Hooks, role: str, backend: Backend, faults: FaultTable) -> list[Seam]:
    """Install the other hooks on an armed rank. Return the seams of the sites, on every rank.

    Call this after installing the recording hook. The recording hook then sees registrations as the fault changed them.
    """
    detail = "the poll functions of disaggregation/utils.py"
    found = sites.seams([kind for kind in sites.POLL_KINDS if kind != ABORT], True, detail)
    deadly = backend.deadly_abort(role)
    found += sites.seams([ABORT], not deadly, deadly or detail)
    if role == "decode":
        return found + sites.seams(stages.HEARTBEAT_KINDS, *_heartbeats(hooks, backend.manager, faults))
    owner = seams.common("CommonKVSender")
    there = hasattr(owner, _REGISTER)
    if there and faults.armed:
        hooks.wrap(owner, _REGISTER, "registration", sites.registration(faults))
    detail = f"CommonKVSender.{_REGISTER}, {_ONLY_WHERE}" if there else f"no CommonKVSender.{_REGISTER}"
    return found + sites.seams(sites.REGISTRATION_KINDS, there, detail)


def install_entry(
    hooks: Hooks, role: str, scheduler: Any, queue: Callable[[str], Iterable[Any]], faults: FaultTable
) -> list[Seam]:
    """Hook the way of new requests into this stage; ``queue`` returns one of the rank's queues by its name."""
    name = "disagg_prefill_bootstrap_queue" if role == "prefill" else "disagg_decode_prealloc_queue"
    owner = getattr(scheduler, name, None)
    there = hasattr(owner, "add")
    if there and faults.armed:
        hooks.wrap(owner, "add", "entry", stages.entry(faults, lambda: stages.rooms(role, queue)))
    detail = f"{type(owner).__name__}.add" if there else f"no scheduler.{name}.add"
    return sites.seams(stages.ENTRY_KINDS, there, detail)


# ---- heartbeats to prefill servers ----------------------------------------------------------------------------------


def _heartbeats(hooks: Hooks, manager: Any, faults: FaultTable) -> tuple[bool, str]:
    """Hook the pool of sessions of the engine's heartbeat thread, one session for each prefill server.

    Only heartbeats use the pool (read in 0.5.10.post1 to 0.5.23). The thread takes a session from it for every heartbeat.
    """
    if not isinstance(getattr(manager, "session_pool", None), defaultdict):
        return False, "no session_pool of the KV manager: this backend sends no heartbeats"
    # heartbeat_checker is its function in all of these versions, HeartbeatChecker its name in 0.5.23
    if not any("heartbeat" in thread.name.lower() for thread in threading.enumerate()):
        return False, "no heartbeat thread runs: this backend sends no heartbeats"
    if faults.armed:
        beats = stages.Heartbeats(faults)

        def pool(original: Any, site: Site) -> Any:
            return _Pool(original, beats, site)

        hooks.wrap(manager, "session_pool", "heartbeat", pool)
    return True, f"{type(manager).__name__}.session_pool"


class _Pool(defaultdict[str, Any]):
    """The engine's sessions, one for each prefill server. A session that a fault silences sends no request."""

    def __init__(self, pool: Any, beats: stages.Heartbeats, site: Site) -> None:
        super().__init__(pool.default_factory, pool)
        self._beats = beats
        self._site = site

    def __getitem__(self, address: str) -> Any:
        if self._beats.table.any and self._site.on:
            with self._site:
                if self._beats.silent(address):
                    return _Unanswered()
        return super().__getitem__(address)


class _Unanswered:
    """A session to a server that does not answer. It fails at once, so the engine's thread does not wait."""

    def get(self, url: str, **_: Any) -> Any:
        raise TimeoutError(f"{url}: no answer (a fault of pdctl)")
