"""Decide whether a decode rank still waits for a held metadata row, from facts that the prefill rank can see.

A prefill rank forgets a room as soon as it believes that the row was sent (``CommonKVSender.clear``). So its own status of the
room shows nothing. These cheap signs remain:

- a new request of the same decode rank names the same slot (``transfer_infos``: the addresses come before any row);
- the decode server behind the session has started anew (``decode_kv_args_table``: other addresses of the rows);
- decode sends ``ABORT`` for the room (SGLang >= 0.5.13); :func:`watch_aborts` receives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pdctl.engines.base import Hooks, Site
from pdctl.engines.sglang.backends.base import ABORT_HANDLER, Backend
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import Seam


def check(manager: Any, peer: str, room: int, slot: int) -> Callable[[], bool]:
    """Return a function that tells, at the late write to ``peer`` (session or agent), whether ``room`` still owns its slot."""
    rows = list(manager.decode_kv_args_table[peer].dst_aux_ptrs)

    def still_wanted() -> bool:
        if list(manager.decode_kv_args_table[peer].dst_aux_ptrs) != rows:
            return False
        for other, infos in list(manager.transfer_infos.items()):
            info = infos.get(peer)
            if other != room and info is not None and info.dst_aux_index == slot:
                return False
        return True

    return still_wanted


def watch_aborts(hooks: Hooks, backend: Backend, faults: FaultTable) -> Seam:
    """Tell ``faults`` about rooms that decode aborts, if faults are possible here.

    Newer versions have a method for aborts. The bootstrap thread of the others reads ``manager.server_socket`` anew for every
    message. So a proxy of the socket sees all messages but the one that the thread waits for at installation.
    """
    name, manager, kind = "events.abort-message", backend.manager, backend.kind.__name__
    if not faults.armed:
        return Seam(name, False, "not looked for: this rank is not armed")
    if hooks.wrap(manager, ABORT_HANDLER, "abort-message", lambda f, site: _method(f, site, faults)):
        return Seam(name, True, f"{kind}.{ABORT_HANDLER}")
    if not backend.sends_aborts():
        return Seam(name, False, "this version's decode ranks do not tell of aborts")
    hooks.wrap(manager, "server_socket", "abort-message", lambda socket, site: _heard(socket, site, faults))
    return Seam(name, True, f"{kind}.server_socket")


def _hear(frames: Any, site: Site, faults: FaultTable) -> None:
    if site.on and faults.metadata:
        with site:
            if bytes(frames[0]) == b"ABORT":
                faults.gone(int(bytes(frames[1]).decode("ascii")))


def _method(original: Callable[..., Any], site: Site, faults: FaultTable) -> Callable[..., Any]:
    def handle(msg: Any, *args: Any, **kwargs: Any) -> Any:
        _hear(msg, site, faults)
        return original(msg, *args, **kwargs)

    return handle


def _heard(socket: Any, site: Site, faults: FaultTable) -> Any:
    return _Heard(socket, site, faults)


class _Heard:
    """A proxy of the bootstrap thread's socket. It watches incoming messages; all else is the socket's own."""

    def __init__(self, socket: Any, site: Site, faults: FaultTable) -> None:
        self.__dict__.update(_socket=socket, _site=site, _faults=faults)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._socket, name, value)

    def recv_multipart(self, *args: Any, **kwargs: Any) -> Any:
        frames = self._socket.recv_multipart(*args, **kwargs)
        _hear(frames, self._site, self._faults)
        return frames
