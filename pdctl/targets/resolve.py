"""Resolve host names before any connection is made, with a time limit, and with the reason for a failure."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

MAX_ADDRESSES = 4096
"""Addresses of one name that are used."""


@dataclass(frozen=True)
class Resolved:
    """What a host name stands for. addresses: all of one family, () where it can't be resolved; why: the reason then."""

    addresses: tuple[str, ...] = ()
    why: str = ""


def unresolved(hosts: Iterable[str], timeout_s: float) -> dict[str, str]:
    """Return those of ``hosts`` that can't be resolved, each with the reason. Limits: as :func:`look_up`."""
    return {host: found.why for host, found in look_up(hosts, timeout_s).items() if found.why}


def look_up(hosts: Iterable[str], timeout_s: float) -> dict[str, Resolved]:
    """Return what each of ``hosts`` stands for; addresses are left out.

    All look-ups run at the same time, for at most ``timeout_s``. A longer look-up is abandoned: the system's resolver can't be
    interrupted.
    """
    found: dict[str, Resolved] = {}
    threads: dict[str, threading.Thread] = {}
    for host in dict.fromkeys(hosts):
        if not _is_address(host):
            threads[host] = threading.Thread(target=_look_up, args=(host, found), daemon=True)
    for thread in threads.values():
        thread.start()
    end = time.monotonic() + timeout_s
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    late = f"is not resolved within {round(timeout_s, 3):g} s: its name server does not answer"
    there = dict(found)
    return {host: there.get(host) or Resolved(why=f"the name {host} {late}") for host in threads}


def host_of(endpoint: str) -> str:
    """Return the host of ``tcp://HOST:PORT``, without the brackets of an IPv6 address."""
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def at_address(endpoint: str, address: str) -> str:
    """Return ``tcp://HOST:PORT`` with this address in the place of its host."""
    return f"tcp://{f'[{address}]' if ':' in address else address}:{endpoint.rpartition(':')[2]}"


def one_family(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of the family that has more of them, of the first one's where both have as many.

    A host with an address of each kind would be two hosts otherwise.
    """
    each = list(dict.fromkeys(addresses))
    families: dict[bool, list[str]] = {}
    for address in each:
        families.setdefault(":" in address, []).append(address)
    return tuple(max(families.values(), key=len)[:MAX_ADDRESSES]) if families else ()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(host: str, found: dict[str, Resolved]) -> None:
    try:
        there = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        found[host] = Resolved(why=f"the name {host} can't be resolved: {why}")
    else:
        found[host] = Resolved(one_family(str(address[0]) for *_, address in there))
