"""Parse PDCTL_LISTEN: the address at which an agent listens for other hosts. Standard library only."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_LISTEN = re.compile(
    r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|\*|[A-Za-z0-9._-]+)(:(?P<first>\d{1,5}|\*)(-(?P<last>\d{1,5}))?)?", re.ASCII
)


@dataclass(frozen=True)
class Listen:
    """An address to listen at. host: an address, ``*``, or an interface, as in ZeroMQ. ports: tried in order; 0 means any."""

    host: str
    ports: range

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach it."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "lo"


def parse_listen(text: str) -> Listen:
    """Return what PDCTL_LISTEN asks for. Raises ValueError, whose text says what was expected."""
    match = _LISTEN.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"PDCTL_LISTEN={text[:80]!r}: write tcp://ADDRESS, tcp://ADDRESS:PORT or tcp://ADDRESS:FIRST-LAST"
        )
    host = "127.0.0.1" if match["host"] == "localhost" else match["host"]
    first = 0 if match["first"] in (None, "*") else int(match["first"])
    last = int(match["last"] or first)
    if not first <= last <= 65535 or (match["last"] and not first):
        raise ValueError(f"PDCTL_LISTEN={text[:80]!r}: ports are 1 to 65535, the first one first")
    return Listen(host, range(first, last + 1))
