"""Where ranks are looked for, and with which keys: one value, parsed once from the environment.

Nothing is opened or connected here. :meth:`pdctl.targets.reach.Reach.places` makes it for a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.protocol import keys, paths
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.targets import hostlist

if TYPE_CHECKING:
    from pdctl.targets.pods import PodQuery

MAX_ENDPOINTS = 8192
_ADDRESS = re.compile(r"(tcp://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})", re.ASCII)
_OFF = ("off", "no", "0", "none")
_SWITCH = {"": True, "on": True, "yes": True, "1": True, **dict.fromkeys(_OFF, False)}
HOST = "{host}"
"""What stands for the host in ``--via``."""
_LONGEST_PID = 7  # Linux gives none over 2^22


@dataclass(frozen=True)
class Store:
    """The address of a TCPStore."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class OutsideSetting:
    """The parsed PDCTL_OUTSIDE. how: ``near``, ``all``, ``off`` or ``pids``; pids has the pids then."""

    how: str = "near"
    pids: tuple[int, ...] = ()

    def means(self, pid: int) -> bool:
        """Return whether a process known as a rank of this cluster may be read from outside."""
        return pid in self.pids if self.how == "pids" else self.how != "off"


OFF = OutsideSetting("off")


@dataclass(frozen=True)
class Places:
    """Where ranks are looked for. run_dirs: in order of preference. run_dir_named, record_dir_named: not the default ones.

    endpoints: ``tcp://HOST:PORT``. server_key: the only key to accept of agents elsewhere, "" for any that a store names.
    key: the name of this user's key pair in ``keys_dir``, "" for the only one. cache: the file of endpoints that answered.
    hosts: those whose own pdctl is asked, by the command ``via``; () for the default one. pods: those that kubectl leads to.
    keys_dir, cache: None where this user has no home. containers: whether those of this host are searched.
    """

    run_dirs: tuple[Path, ...]
    record_dir: Path
    run_dir_named: bool = False
    record_dir_named: bool = False
    endpoints: tuple[str, ...] = ()
    stores: tuple[Store, ...] = ()
    hosts: tuple[str, ...] = ()
    via: tuple[str, ...] = ()
    server_key: str = ""
    key: str = ""
    keys_dir: Path | None = None
    cache: Path | None = None
    outside: OutsideSetting = OutsideSetting()
    containers: bool = True
    pods: PodQuery | None = None

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The endpoints, stores, hosts and pods, in words."""
        hosts = (hostlist.fold(self.hosts),) if self.hosts else ()
        pods = (str(self.pods),) if self.pods is not None else ()
        return (*self.endpoints, *(f"store {store}" for store in self.stores), *hosts, *pods)

    def here(self) -> Places:
        """Return the places on this host: no endpoint, no store, no other host, no pod."""
        return replace(self, endpoints=(), stores=(), hosts=(), pods=None)

    def only_pods(self, pods: PodQuery) -> Places:
        """Return the same keys for these pods, and no other place."""
        return replace(self.here(), pods=pods, run_dir_named=False, record_dir_named=False)

    def named(self, folder: Path) -> bool:
        """Return whether the user named ``folder``. Any other is a default, which another user could have made first."""
        return (self.run_dir_named and folder in self.run_dirs) or (self.record_dir_named and folder == self.record_dir)

    def own_keys(self) -> keys.Pair:
        """Return the key pair of this user's commands. Raises PdctlError as :func:`pdctl.protocol.keys.load_own`."""
        if self.keys_dir is None:
            raise PdctlError("no directory of keys: this user has no home", "set PDCTL_KEYS to one")
        return keys.load_own(self.keys_dir, self.key)


def parse_places(env: Mapping[str, str], *, pods: bool = False) -> Places:
    """Return what the variables of ``env`` say. Raises PdctlError (USAGE) for one with an invalid value.

    pods: ranks in pods are looked for, and a server key is theirs.
    """
    outside = parse_outside(env.get("PDCTL_OUTSIDE", ""))
    containers = _parse_containers(env.get("PDCTL_CONTAINERS", ""))
    endpoints = parse_endpoints(env.get("PDCTL_ENDPOINT", ""))
    stores = parse_stores(env.get("PDCTL_STORE", ""), env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", ""))
    server_key = env.get("PDCTL_SERVER_KEY", "") if endpoints or stores or pods else ""
    return Places(
        run_dirs=tuple(paths.run_dirs(env)),
        record_dir=paths.record_dir(env),
        run_dir_named=bool(env.get("PDCTL_RUN_DIR")),
        record_dir_named=bool(env.get("PDCTL_RECORD_DIR")),
        endpoints=endpoints,
        stores=stores,
        hosts=hostlist.parse_hosts(env.get("PDCTL_HOSTS", "")),
        via=parse_via(env.get("PDCTL_VIA", "")),
        server_key=keys.parse_public(server_key) if server_key else "",
        key=env.get("PDCTL_KEY", ""),
        keys_dir=_of_home(keys.folder, env),
        cache=_of_home(_cache, env),
        outside=outside,
        containers=containers,
    )


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Return the endpoints that the words of ``text`` name, each once: ``tcp://gpu[001-064]:7000-7007`` is many.

    Raises PdctlError (USAGE) for a word that names none, or over MAX_ENDPOINTS.
    """
    found: dict[str, None] = {}
    for word in hostlist.words(text):
        hosts = hostlist.expand(word, "endpoint", MAX_ENDPOINTS) if hostlist.has_bracket(word) else [word]
        for one in (port for host in hosts for port in hostlist.expand_ports(host, MAX_ENDPOINTS)):
            found[parse_endpoint(one)] = None
            if len(found) > MAX_ENDPOINTS:
                raise PdctlError(f"over {MAX_ENDPOINTS} endpoints", "name fewer of them", Exit.USAGE)
    return tuple(found)


def parse_via(text: str) -> tuple[str, ...]:
    """Return the words of the command that runs pdctl on another host. Raises PdctlError (USAGE) if no host is in it."""
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise PdctlError(f"--via {text[:80]!r}: {error}", "close its quotes", Exit.USAGE) from None
    if found and not any(HOST in word for word in found):
        raise PdctlError(
            f"--via {text[:80]!r} has no {HOST}", f"write it where the host goes: ssh {HOST} /opt/bin/pdctl", Exit.USAGE
        )
    return found


def parse_endpoint(text: str) -> str:
    """Return ``tcp://HOST:PORT`` from that, or from ``HOST:PORT``. Raises PdctlError (USAGE)."""
    host, port = _host_port(text.strip(), "endpoint of a rank", "write tcp://HOST:PORT")
    return f"tcp://{host}:{port}"


def parse_stores(text: str, master_addr: str = "", master_port: str = "") -> tuple[Store, ...]:
    """Return the stores that the words of ``text`` name; ``env`` means torchrun's own. Raises PdctlError (USAGE)."""
    found: list[Store] = []
    for word in _words(text):
        if word.lower() == "off":  # what an agent understands: publish nothing
            continue
        if word == "env" and not (master_addr and master_port):
            raise PdctlError(
                "--store env needs MASTER_ADDR and MASTER_PORT", "torchrun sets them in its workers", Exit.USAGE
            )
        address = f"{master_addr}:{master_port}" if word == "env" else word
        host, port = _host_port(address, "address of a store", "write HOST:PORT, or env")
        found.append(Store(host.strip("[]"), int(port)))
    return tuple(dict.fromkeys(found))


def _host_port(text: str, what: str, next_step: str) -> tuple[str, str]:
    """Return host and port as they are written. Raises PdctlError (USAGE)."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise PdctlError(f"{text[:80]!r} is no {what}", next_step, Exit.USAGE)
    return match["host"], match["port"]


def parse_outside(text: str) -> OutsideSetting:
    """Return what a value of PDCTL_OUTSIDE says. Raises PdctlError (USAGE) for what it can't say."""
    said = text.strip()
    word = said.lower()
    if not word:
        return OutsideSetting()
    if word in _OFF:
        return OFF
    if word == "all":
        return OutsideSetting("all")
    parts = [part.strip() for part in said.split(",") if part.strip()]
    if parts and all(_is_pid(part) for part in parts):
        return OutsideSetting("pids", tuple(dict.fromkeys(map(int, parts))))
    raise PdctlError(
        f"PDCTL_OUTSIDE={said[:80]!r} is none of: all, off, pids with commas between them",
        "Unset PDCTL_OUTSIDE to have it as usual: docs/attach.md.",
        Exit.USAGE,
    )


def _parse_containers(text: str) -> bool:
    said = text.strip()
    if said.lower() not in _SWITCH:
        raise PdctlError(
            f"PDCTL_CONTAINERS={said[:80]!r} is none of: on, off",
            "Unset PDCTL_CONTAINERS to have it as usual, which is on.",
            Exit.USAGE,
        )
    return _SWITCH[said.lower()]


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _is_pid(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) <= _LONGEST_PID and int(part) > 0


def _cache(env: Mapping[str, str]) -> Path:
    return paths.user_dir(env, "XDG_CACHE_HOME") / "reached.json"


def _of_home(folder: Callable[[Mapping[str, str]], Path], env: Mapping[str, str]) -> Path | None:
    try:
        return folder(env)
    except RuntimeError:  # nobody's home: a container's user may have none
        return None
