"""The fault sites of an SGLang rank except its metadata writes: polls, messages between stages, entering requests.

A message held back is sent later with the engine's own function, on a thread of pdctl.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from pdctl.engines import sites, stages
from pdctl.engines.base import Hooks, Site
from pdctl.engines.sglang import seams
from pdctl.engines.sglang.late import ManagerProxy
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import Seam

_REGISTER, _QUERY = "_register_prefill_dp_rank", "query_prefill_dp_ranks"
_ONLY_WHERE = "called with dp_size > 1 and a load balancing that does not follow the room"


def install_query(hooks: Hooks, faults: FaultTable) -> list[Seam]:
    """Install the hook at a decode rank's queries for dp ranks. Return its seam.

    Call this before installing the recording hook. The recording hook then sees the answer as the fault changed it.
    """
    owner = getattr(seams.module(seams.COMMON), "CommonKVReceiver", None)
    there = owner is not None and hasattr(owner, _QUERY)
    if there and faults.armed:
        hooks.wrap(owner, _QUERY, "query", sites.query(faults))
    detail = f"CommonKVReceiver.{_QUERY}, {_ONLY_WHERE}" if there else f"no CommonKVReceiver.{_QUERY}"
    return sites.seams(sites.QUERY_KINDS, there, detail)


def install(hooks: Hooks, role: str, manager: Any, faults: FaultTable) -> list[Seam]:
    """Install the other hooks on an armed rank. Return the seams of the sites, on every rank.

    Call this after installing the recording hook. The recording hook then sees registrations as the fault changed them.
    """
    found = sites.seams(sites.POLL_KINDS, True, "the poll functions of disaggregation/utils.py")
    if role == "decode":
        return found + sites.seams(stages.HEARTBEAT_KINDS, *_heartbeats(hooks, manager, faults))
    owner = getattr(seams.module(seams.COMMON), "CommonKVSender", None)
    there = owner is not None and hasattr(owner, _REGISTER)
    if there and faults.armed:
        hooks.wrap(owner, _REGISTER, "registration", sites.registration(faults))
    detail = f"CommonKVSender.{_REGISTER}, {_ONLY_WHERE}" if there else f"no CommonKVSender.{_REGISTER}"
    found += sites.seams(sites.REGISTRATION_KINDS, there, detail)
    return found + sites.seams(sites.STATUS_KINDS, *_status(hooks, manager, faults))


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
            try:
                if self._beats.silent(address):
                    return _Unanswered()
            except Exception:
                self._site.failed()
        return super().__getitem__(address)


class _Unanswered:
    """A session to a server that does not answer. It fails at once, so the engine's thread does not wait."""

    def get(self, url: str, **_: Any) -> Any:
        raise TimeoutError(f"{url}: no answer (a fault of pdctl)")


# ---- the message that tells a decode rank how a transfer ended -------------------------------------------------------


def _status(hooks: Hooks, manager: Any, faults: FaultTable) -> tuple[bool, str]:
    mooncake = getattr(seams.module(seams.MOONCAKE), "MooncakeKVManager", None)
    if mooncake is None or not isinstance(manager, mooncake):
        return False, "only Mooncake's status messages are known"
    makers: dict[str, Callable[..., Any]] = {
        "sync_status_to_decode_endpoint": _to_one,
        "send_kv_status_message": _to_several,
    }  # the second: 0.5.23
    for name, maker in makers.items():
        if hasattr(mooncake, name):
            if faults.armed:
                hooks.wrap(mooncake, name, "status", functools.partial(maker, faults))
            return True, f"MooncakeKVManager.{name}"
    return False, f"no MooncakeKVManager.{' or '.join(makers)}"


def _held(
    faults: FaultTable, manager: Any, room: int, status: Any, where: tuple[str, int], send: Callable[[], None]
) -> bool:
    """Return whether a fault holds back the message to ``where`` (host and port of a decode rank)."""
    for session, info in list(manager.decode_kv_args_table.items()):
        if (info.endpoint, int(info.dst_port)) == (where[0], int(where[1])):
            tp = int(info.dst_tp_rank)
            fault = sites.status_fault(faults, room, int(status), dp=-1, tp=tp, address=session)
            return fault is not None and faults.hold(fault, send, room=room, tp=tp)
    return False


def _to_one(faults: FaultTable, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
    def sync_status(self_: Any, remote: str, dst_port: int, room: int, status: Any, *args: Any, **kwargs: Any) -> Any:
        if faults.any and site.on:
            try:

                def send() -> None:
                    own = ManagerProxy(self_)  # the engine's sockets belong to its threads
                    try:
                        original(own, remote, dst_port, room, status, *args, **kwargs)
                    finally:
                        own.close()

                if _held(faults, self_, room, status, (remote, dst_port), send):
                    return None
            except Exception:
                site.failed()
        return original(self_, remote, dst_port, room, status, *args, **kwargs)

    return sync_status


def _to_several(faults: FaultTable, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
    def send_status(self_: Any, *, targets: Any, bootstrap_room: int, status: Any, **kwargs: Any) -> Any:
        if faults.any and site.on:
            try:
                passing = []
                for target in targets:

                    def send(target: Any = target) -> None:  # takes the lock of the socket itself
                        original(self_, targets=[target], bootstrap_room=bootstrap_room, status=status, **kwargs)

                    if not _held(faults, self_, bootstrap_room, status, target, send):
                        passing.append(target)
                targets = passing
            except Exception:
                site.failed()
        return original(self_, targets=targets, bootstrap_room=bootstrap_room, status=status, **kwargs)

    return send_status
