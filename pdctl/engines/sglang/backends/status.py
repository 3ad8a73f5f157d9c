"""The fault site at the message that tells a decode rank how a transfer ended, with any backend that sends one.

A message held back is sent later with the engine's own function, on a thread of pdctl.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pdctl.engines import sites
from pdctl.engines.base import Hooks, Site
from pdctl.faults.table import FaultTable


def install(hooks: Hooks, kind: Any, faults: FaultTable) -> tuple[bool, str]:
    """Hook the message in a manager's class on an armed rank; return whether it is there, and its name or why it is not."""
    name = message_of(kind)
    if not name:
        return False, f"no {kind.__name__}.{' or '.join(_MAKERS)}"
    if faults.armed:
        hooks.wrap(kind, name, "status", functools.partial(_MAKERS[name], faults))
    return True, f"{kind.__name__}.{name}"


def message_of(kind: Any) -> str:
    """Return the function of a manager's class that tells decode how a transfer ended, "" where it has none."""
    return next((name for name in _MAKERS if hasattr(kind, name)), "")


def tp_of(info: Any) -> int:
    """Return the tp of the decode rank that a manager knows ``info`` of. NIXL names it otherwise than Mooncake."""
    return int(info.dst_tp_rank if hasattr(info, "dst_tp_rank") else info.decode_tp_rank)


def _held(
    faults: FaultTable, manager: Any, room: int, status: Any, where: tuple[str, int], send: Callable[[], None]
) -> bool:
    """Return whether a fault holds back the message to ``where`` (host and port of a decode rank)."""
    for session, info in list(manager.decode_kv_args_table.items()):
        if (info.endpoint, int(info.dst_port)) == (where[0], int(where[1])):
            tp = tp_of(info)
            fault = sites.status_fault(faults, room, int(status), dp=-1, tp=tp, address=session)
            return fault is not None and faults.hold(fault, send, room=room, tp=tp)
    return False


def _to_one(faults: FaultTable, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
    def sync_status(self_: Any, remote: str, dst_port: int, room: int, status: Any, *args: Any, **kwargs: Any) -> Any:
        if faults.any and site.on:
            with site:

                def send() -> None:
                    own = ManagerProxy(self_)  # the engine's sockets belong to its threads
                    try:
                        original(own, remote, dst_port, room, status, *args, **kwargs)
                    finally:
                        own.close()

                if _held(faults, self_, room, status, (remote, dst_port), send):
                    return None
        return original(self_, remote, dst_port, room, status, *args, **kwargs)

    return sync_status


def _to_several(faults: FaultTable, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
    def send_status(self_: Any, *, targets: Any, bootstrap_room: int, status: Any, **kwargs: Any) -> Any:
        if faults.any and site.on:
            with site:
                passing = []
                for target in targets:

                    def send(target: Any = target) -> None:  # takes the lock of the socket itself
                        original(self_, targets=[target], bootstrap_room=bootstrap_room, status=status, **kwargs)

                    if not _held(faults, self_, bootstrap_room, status, target, send):
                        passing.append(target)
                targets = passing
        return original(self_, targets=targets, bootstrap_room=bootstrap_room, status=status, **kwargs)

    return send_status


_MAKERS: dict[str, Callable[[FaultTable, Callable[..., Any], Site], Callable[..., Any]]] = {
    "sync_status_to_decode_endpoint": _to_one,
    "send_kv_status_message": _to_several,
}  # the second: since 0.5.22, in the common class


class ManagerProxy:
    """A proxy of the KV manager for its own functions on a thread of pdctl. It has its own sockets.

    kv_args: location of the row of a late write, None for the manager's own.

    The path that sends metadata in messages (``send_aux_tcp``) keeps ZeroMQ sockets which belong to the engine's
    threads; a late write runs on another one and opens its own.
    """

    def __init__(self, manager: Any, kv_args: Any = None) -> None:
        self._manager = manager
        self._sockets: list[Any] = []
        self.kv_args = manager.kv_args if kv_args is None else kv_args

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def send_aux_tcp(self, *args: Any, **kwargs: Any) -> Any:
        """Do as the manager does, through these sockets."""
        return type(self._manager).send_aux_tcp(self, *args, **kwargs)

    def send_aux_data_to_endpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Do as the manager does, through these sockets."""
        return type(self._manager).send_aux_data_to_endpoint(self, *args, **kwargs)

    def _connect(self, endpoint: str, is_ipv6: bool = False) -> Any:
        import zmq

        if not self._sockets:
            socket: Any = zmq.Context.instance().socket(zmq.PUSH)
            socket.setsockopt(zmq.LINGER, 10_000)
            if is_ipv6:
                socket.setsockopt(zmq.IPV6, 1)
            socket.connect(endpoint)
            self._sockets.append(socket)
        return self._sockets[0]

    def close(self) -> None:
        """Close the sockets; what was sent goes out first."""
        for socket in self._sockets:
            socket.close()
        self._sockets.clear()
