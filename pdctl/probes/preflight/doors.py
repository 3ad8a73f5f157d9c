"""Tries from the network of one rank whether a rank of the other side can be connected to. Nothing is sent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pdctl.introspect.network import enter
from pdctl.probes.preflight.model import Door

MOST = 256
"""Addresses that are tried in one look."""
TRY_S = 2.0
"""So long one is tried: a network that drops what it does not let through gives no answer."""


@dataclass(frozen=True)
class Try:
    """What to connect to. enter: pid whose network namespace to try from, 0 for this process's own."""

    origin: str
    to: str
    host: str
    port: int
    enter: int = 0

    @property
    def address(self) -> str:
        """The address as people write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def knock(tries: Sequence[Try], limit_s: float) -> list[Door]:
    """Return what became of each, in order, at the latest after so many seconds. One thread a namespace."""
    end = time.monotonic() + limit_s
    found: dict[int, Door] = {}
    threads = []
    for pid in dict.fromkeys(one.enter for one in tries):
        mine = [(n, one) for n, one in enumerate(tries[:MOST]) if one.enter == pid]
        thread = threading.Thread(target=_from, args=(pid, mine, end, found), name="preflight-doors", daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = "the time was over before it was tried"
    return [found.get(n) or Door(one.origin, one.to, one.address, late, tried=False) for n, one in enumerate(tries)]


def _from(pid: int, tries: Sequence[tuple[int, Try]], end: float, found: dict[int, Door]) -> None:
    why = ""
    if pid:
        try:
            enter(pid)
        except OSError as error:
            why = f"its network namespace can't be entered ({error.strerror}): run pdctl as root"
    for n, one in tries:
        if why:
            found[n] = Door(one.origin, one.to, one.address, why, tried=False)
            continue
        if end - time.monotonic() < TRY_S:
            return
        try:
            socket.create_connection((one.host, one.port), timeout=TRY_S).close()
        except TimeoutError:
            found[n] = Door(one.origin, one.to, one.address, f"no answer within {TRY_S:g} s")
        except OSError as error:
            found[n] = Door(one.origin, one.to, one.address, f"{error.strerror or error}".lower())
        except ValueError:  # of a rank that tells what can't be one
            found[n] = Door(one.origin, one.to, one.address, "that is no address")
        else:
            found[n] = Door(one.origin, one.to, one.address)
