"""Authorisation at a gateway: its own keys, and its clients with their roles. Both files are read again when they change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pdctl.protocol import keys, wire
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.listen import Listen

LOOK_AGAIN_S = 1.0
"""How often, at most, the list of clients is looked at while somebody asks."""
CHANGES = frozenset(("inject", "renew", "heal", "leave"))
"""What takes the role ``inject``."""


class Allowed:
    """The authorised clients and their roles. pair: the agents' own keys, None if every user of this host may connect."""

    def __init__(self, listen: Listen, env: Mapping[str, str], note: Callable[[str, str], None]) -> None:
        """Read keys and list. Raises ValueError, with the reason, if no client, or too many clients, could connect."""
        self._note = note
        self._own: OwnKeys | None = None
        self._authorised: Authorised | None = None
        self._open = env.get("PDCTL_LISTEN_OPEN", "")
        if self._open:
            if self._open not in keys.ROLES:
                raise ValueError(f"PDCTL_LISTEN_OPEN={self._open[:20]!r}: write {' or '.join(keys.ROLES)}")
            if not listen.loopback:
                raise ValueError(f"PDCTL_LISTEN_OPEN is for loopback addresses only, {listen.host} is none")
            return
        folder = keys.folder(env)
        self._own = OwnKeys(folder, note)
        self._authorised = Authorised(folder, note)
        if self._authorised.why:
            raise ValueError(f"{self._authorised.why}; pdctl keys authorize adds one")

    @property
    def pair(self) -> keys.Pair | None:
        """The keys to shake hands with."""
        return self._own.pair if self._own is not None else None

    def changed(self) -> bool:
        """Return whether ``pair`` has changed since the last call."""
        return self._own is not None and self._own.changed()

    def knows(self, public: str) -> bool:
        """Return whether the client with this public key may connect now."""
        return self._client(public) is not None

    def check(self, user: str, op: str) -> None:
        """Raise PdctlError (UNREACHABLE) unless the client with this public key ("" where all are open) may do ``op`` now."""
        client = self._client(user) if self._authorised is not None else keys.Client("everybody", self._open, "")
        if client is None:
            self._note(f"gone {user}", f"refused {op[:40]}: the key {user} is not authorised any more")
            raise PdctlError(
                f"{wire.NOT_AUTHORISED}this key was taken off its list", "pdctl keys authorize, where the rank runs"
            )
        if op in CHANGES and client.role != "inject":
            who = f"key {client.name} ({user[:8]}…)" if user else "whoever comes in by PDCTL_LISTEN_OPEN"
            self._note(f"role {user}", f"refused {op}: {who} has the role {client.role}")
            raise PdctlError(
                f"{wire.NOT_AUTHORISED}{who} has the role {client.role}, {op} takes the role inject",
                "pdctl keys authorize PUBLIC --role inject, where the rank runs",
            )

    def _client(self, public: str) -> keys.Client | None:
        return self._authorised.clients().get(public) if self._authorised is not None else None


class Authorised:
    """The clients in the agent's list. The file is checked at most once a second, and read again when it has changed."""

    def __init__(self, folder: Path, note: Callable[[str, str], None]) -> None:
        self._path = folder / keys.AUTHORIZED
        self._note = note
        self._stamp: tuple[int, ...] = ()
        self._looked = 0.0
        self._clients: dict[str, keys.Client] = {}
        self.why = ""
        self._read()

    def clients(self) -> dict[str, keys.Client]:
        """Return the clients by public key; none while the file is missing, unreadable, or open to other users."""
        now = time.monotonic()
        if now - self._looked >= LOOK_AGAIN_S:
            self._looked = now
            if _stamp(self._path) != self._stamp:
                self._read()
                self._note(f"list {self._stamp}", self.why or f"{len(self._clients)} client keys are authorised now")
        return self._clients

    def _read(self) -> None:
        self._stamp, self._looked = _stamp(self._path), time.monotonic()
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
    """The agents' own key pair. The file is checked for a new pair at most once a second."""

    def __init__(self, folder: Path, note: Callable[[str, str], None]) -> None:
        """Read the pair. Raises ValueError, with the reason, if there is no usable pair."""
        self._path = _server_file(folder)
        self._note = note
        self._stamp, self._looked = _stamp(self._path), time.monotonic()
        self.pair = _server_pair(self._path)

    def changed(self) -> bool:
        """Return whether ``pair`` has changed. An unusable file changes nothing, and is noted."""
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
    """Return a stamp that changes whenever the file changes."""
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
