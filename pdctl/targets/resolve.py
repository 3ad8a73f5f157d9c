"""Resolve host names before any connection is made, with a time limit, and with the reason for a failure."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Iterable


def unresolved(hosts: Iterable[str], timeout_s: float) -> dict[str, str]:
    """Return those of ``hosts`` that can't be resolved, each with the reason; addresses are none of them.

    All look-ups run at the same time, for at most ``timeout_s``. A longer look-up is abandoned: the system's resolver can't be
    interrupted.
    """
    reasons: dict[str, str] = {}
    threads: dict[str, threading.Thread] = {}
    for host in dict.fromkeys(hosts):
        if not _is_address(host):
            threads[host] = threading.Thread(target=_look_up, args=(host, reasons), daemon=True)
    for thread in threads.values():
        thread.start()
    end = time.monotonic() + timeout_s
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    late = f"the name {{}} is not resolved within {round(timeout_s, 3):g} s: its name server does not answer"
    said = {host: late.format(host) for host, thread in threads.items() if thread.is_alive()}
    return {**said, **{host: reason for host, reason in dict(reasons).items() if host not in said}}


def host_of(endpoint: str) -> str:
    """Return the host of ``tcp://HOST:PORT``, without the brackets of an IPv6 address."""
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(host: str, reasons: dict[str, str]) -> None:
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reasons[host] = f"the name {host} can't be resolved: {why}"
