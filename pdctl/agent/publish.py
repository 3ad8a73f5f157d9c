"""Publish the agent's endpoint in the job's own TCPStore. So one address is enough to find all ranks.

The publisher has its own thread and its own connection. A blocking call of the store's client holds that client's lock. If the
store's host accepts and never answers, the call never returns, whatever its timeout (torch 2.13); then only this thread
is lost. torch is used as the rank has loaded it. An agent that does not listen for other hosts publishes nothing.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pdctl.protocol import store_schema
from pdctl.protocol.paths import Registration
from pdctl.protocol.store_schema import BEAT_EVERY_S, Beat, Entry

TIMEOUT_S = 2.0
_LONGEST_PAUSE_S = 120.0
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})", re.ASCII)


def store_address(env: Mapping[str, str]) -> tuple[str, int] | None:
    """Return host and port of the job's TCPStore, None where there is none or PDCTL_STORE=off.

    PDCTL_STORE=HOST:PORT names one. Otherwise it is the store that torch.distributed was initialised with, from any source
    (SGLang's dist_init_addr or nccl port, an init method, torchrun's environment). Only the store's address is read.
    """
    wish = env.get("PDCTL_STORE", "").strip()
    if wish.lower() == "off":
        return None
    given = _ADDRESS.fullmatch(wish)
    if given is not None:
        return given["host"].strip("[]"), int(given["port"])
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return None
    try:
        store = c10d._get_default_store()
        while not hasattr(store, "port"):
            store = store.underlying_store
        return str(store.host), int(store.port)
    except Exception:  # not initialised, or a store that is no TCPStore
        return None


def reachable(r: Registration, store_host: str, env: Mapping[str, str]) -> str:
    """Return the rank's TCP endpoint as other hosts reach it, "" where it has none.

    PDCTL_ADVERTISE replaces the address, if set. For a rank that listens on every address it is this host's source address
    towards the store, or the default source address if the store is on this host. No packet is sent to find this out.
    """
    if not r.tcp:
        return ""
    host, _, port = r.tcp.removeprefix("tcp://").rpartition(":")
    advertised = env.get("PDCTL_ADVERTISE", "").strip()
    if advertised:
        return f"tcp://{advertised}:{port}"
    if not ipaddress.ip_address(host.strip("[]")).is_unspecified:
        return r.tcp
    for other in (store_host, "192.0.2.1", "2001:db8::1"):
        mine = _from_here(other)
        if mine and not ipaddress.ip_address(mine).is_loopback:
            return f"tcp://[{mine}]:{port}" if ":" in mine else f"tcp://{mine}:{port}"
    return f"tcp://127.0.0.1:{port}"


def _from_here(other: str) -> str:
    """Return this host's source address towards ``other``, "" if there is no route."""
    try:
        [(family, *_), *_] = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))
            mine = str(probe.getsockname()[0]).removeprefix("::ffff:")
            return mine.partition("%")[0]
    except (OSError, ValueError):
        return ""


class Publisher:
    """One daemon thread. note: told once why nothing is published.

    registration: what is published; another one is taken with the next sign of life.
    """

    def __init__(self, registration: Registration, env: Mapping[str, str], note: Callable[[str], None]) -> None:
        self.registration = registration
        self._env = dict(env)
        self._note = note
        self._noted = False
        self._over = threading.Event()
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="pdctl-store", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write the end of the agent into the store, and end. A store that does not answer is not waited for."""
        self._over.set()
        self._thread.join(timeout=0.5)

    def _run(self) -> None:
        pause = BEAT_EVERY_S
        while not self._over.is_set():
            try:
                self._published()
                return
            except Exception as error:
                if not self._noted:
                    self._noted = True
                    self._note(
                        f"not published: {type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
                    )
            self._over.wait(pause)
            pause = min(_LONGEST_PAUSE_S, 2 * pause)

    def _published(self) -> None:
        """Publish and go on giving signs of life until the end. Raises what the store's client raises."""
        address = store_address(self._env)
        if address is None:
            return
        host, port = address
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        timeout = datetime.timedelta(seconds=TIMEOUT_S)
        store = TCPStore(host, port, None, False, timeout=timeout, wait_for_workers=False)
        r = self.registration
        name = store_schema.name(r.identity)

        def put() -> None:
            entry = Entry(r, reachable(r, host, self._env))
            store.set(name, msgspec.json.encode(entry).decode())

        put()
        self._beat(store, name)
        store.set(store_schema.index(store.add(store_schema.COUNT, 1)), name)
        while not self._over.wait(BEAT_EVERY_S):
            if r is not self.registration:
                r = self.registration
                put()
            self._beat(store, name)
        self._beat(store, name, ended=True)

    def _beat(self, store: Any, name: str, *, ended: bool = False) -> None:
        self._number += 1
        beat = Beat(self._number, time.time_ns(), ended)
        store.set(store_schema.beat(name), msgspec.json.encode(beat).decode())
