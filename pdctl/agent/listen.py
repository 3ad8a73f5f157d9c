"""Where an agent is to listen for other hosts, its own keys, and the list of those who may come in."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pdctl import keys

LOOK_AGAIN_S = 1.0
"""How often, at most, the list of clients is looked at while somebody asks."""
_LISTEN = re.compile(
    r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|\*|[A-Za-z0-9._-]+)(:(?P<first>\d{1,5}|\*)(-(?P<last>\d{1,5}))?)?", re.ASCII
)


@dataclass(frozen=True)
class Listen:
    """Where to listen. host: as ZeroMQ takes it (an address, ``*``, or an interface). ports: to be tried in turn; 0 any."""

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


class Authorised:
    """The clients in the agent's list, read again when the file has changed: looked at once a second at most."""

    def __init__(self, folder: Path, note: Callable[[str, str], None]) -> None:
        self._path = folder / keys.AUTHORIZED
        self._note = note
        self._stamp: tuple[int, ...] = ()
        self._looked = 0.0
        self._clients: dict[str, keys.Client] = {}
        self.why = ""
        self._read()

    def clients(self) -> dict[str, keys.Client]:
        """Return the clients by public key; none while the file is missing, open to others or can't be read."""
        now = time.monotonic()
        if now - self._looked >= LOOK_AGAIN_S:
            self._looked = now
            if self._now() != self._stamp:
                self._read()
                self._note(f"list {self._stamp}", self.why or f"{len(self._clients)} client keys are authorised now")
        return self._clients

    def _now(self) -> tuple[int, ...]:
        return _stamp(self._path)

    def _read(self) -> None:
        self._stamp, self._looked = self._now(), time.monotonic()
        try:
            self._clients, problems = keys.read_authorized(self._path)
            self.why = "" if self._clients else f"no client key is authorised in {self._path}"
        except FileNotFoundError:
            self._clients, problems, self.why = {}, [], f"no client key is authorised: there is no {self._path}"
        except (OSError, ValueError) as error:
            self._clients, problems, self.why = {}, [], f"no client key is used: {error}"
        for problem in problems:
            self._note(problem, problem)


class OwnKeys:
    """The agents' own pair, and whether another one has taken its place in its file: looked at once a second at most."""

    def __init__(self, folder: Path, note: Callable[[str, str], None]) -> None:
        """Read it. Raises ValueError with the reason where there is none that can be used."""
        self._path = _server_file(folder)
        self._note = note
        self._stamp, self._looked = _stamp(self._path), time.monotonic()
        self.pair = _server_pair(self._path)

    def changed(self) -> bool:
        """Return whether ``pair`` is another one now. What can't be used changes nothing, and is noted."""
        now = time.monotonic()
        if now - self._looked < LOOK_AGAIN_S:
            return False
        self._looked = now
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            pair = _server_pair(self._path)
        except ValueError as error:
            self._note(f"own key {stamp}", f"goes on with the key it has: {error}")
            return False
        before, self.pair = self.pair, pair
        return pair != before


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes whenever the file does."""
    try:
        found = path.stat()
    except OSError as error:
        return (error.errno or -1,)
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


def _server_file(folder: Path) -> Path:
    return folder / f"{keys.SERVER}{keys.KEY_SUFFIX}"


def _server_pair(path: Path) -> keys.Pair:
    try:
        return keys.read_pair(path)
    except FileNotFoundError:
        raise ValueError(f"there is no {path}; pdctl keys new {keys.SERVER} makes it") from None
    except OSError as error:
        raise ValueError(str(error) if error.strerror is None else f"{path}: {error.strerror}") from None
