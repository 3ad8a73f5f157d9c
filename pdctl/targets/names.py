"""Which names of hosts, pods and networks a command may tell: those it was given, and those of the ranks it found. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pdctl.targets.places import HOST, Places
from pdctl.trace.hostforms import HASHED, host_of
from pdctl.trace.hostnames import told

if TYPE_CHECKING:
    from pdctl.targets.find import Found

_LEADS = re.compile(r"-[JWnw]|--(?:namespace|context|nodelist|host)|(?:-o)?proxyjump", re.IGNORECASE)
"""What the next word of a command line that leads to a host is a name behind."""
_PROXY = re.compile(r"(?:-o)?proxyjump=|--(?:namespace|context|nodelist|host)=", re.IGNORECASE)
_NAME = re.compile(r"\w[\w.-]{0,252}")


def site_names(places: Places | None, found: Found) -> tuple[str, ...]:
    """Return the names of hosts, pods and networks that the texts of a command may hold, each once; hashes are none.

    places: where it looked, None for recordings.
    """
    texts = [
        *found.problems,
        *(text for one in found.ranks for text in (one.silent_why, one.endpoint_off, one.tcp_off)),
    ]
    named = (
        *(_asked(places) if places is not None else ()),
        *(host_of(tcp) for one in found.ranks for tcp in (one.endpoint, one.tcp) if tcp.startswith("tcp://")),
        *(host_of(one.store) for one in found.ranks),
        *(one.identity.host for one in found.ranks),
        *(one.via.removeprefix("pod/").rpartition("@")[2] for one in found.ranks),
        *(one.identity.service.removeprefix("pod/") for one in found.ranks if one.identity.service.startswith("pod/")),
        *told(texts),
    )
    return tuple(dict.fromkeys(name for name in named if name and not (found.salts and HASHED.fullmatch(name))))


def _asked(places: Places) -> Iterator[str]:
    yield from (host.rpartition("@")[2] for host in places.hosts)
    yield from _of_command(places.via)
    yield from map(host_of, places.endpoints)
    yield from (store.host for store in places.stores)
    if places.pods is not None:
        yield from (places.pods.namespace, places.pods.context)


def _of_command(via: Iterable[str]) -> Iterator[str]:
    """Yield the names of hosts in the command that leads to one: ``ssh -J jump,bob@second {host}``."""
    before = ""
    for number, word in enumerate(via):
        led = _LEADS.fullmatch(before) is not None or _PROXY.match(word) is not None
        value = _PROXY.sub("", word, count=1)
        before = word
        for one in value.split(","):
            host = one.rpartition("@")[2].partition(":")[0]
            looks = led or "@" in one or (number > 0 and any(map(str.isdigit, host)) and not host.isdecimal())
            if looks and HOST not in one and _NAME.fullmatch(host):
                yield host
