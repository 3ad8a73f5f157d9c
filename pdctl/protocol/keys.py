"""Keys for control sockets over TCP: key files, their permissions, and roles. Standard library; pyzmq to make keys.

    NAME.key      a pair of CURVE keys: ``public HEX`` and ``secret HEX``, a line each
    server.key    the pair of the agents: its public half is what clients know an agent by
    authorized    who may ask agents: ``ROLE PUBLIC NAME``, a line a client

All files are in one directory: PDCTL_KEYS, else ``$XDG_CONFIG_HOME/pdctl/keys``. The directory has mode 0700, each file 0600.
A file that other users could read or change is not used. A key has 32 bytes, written as 64 hexadecimal digits. A public key
may also be given in ZeroMQ's own form of 40 characters (Z85).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pdctl.protocol import paths
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import open_lock, open_regular

ROLES = ("observe", "inject")
"""What a client may do: ask, or also place and end faults."""

SERVER = "server"
AUTHORIZED = "authorized"
KEY_SUFFIX = ".key"
MAX_FILE = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class Pair:
    """A pair of CURVE keys, each as 64 hexadecimal digits."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Client:
    """A client that may ask agents: a name for people, one of ROLES, and the public key."""

    name: str
    role: str
    public: str


def folder(env: Mapping[str, str]) -> Path:
    """Return the directory of keys, which may not exist."""
    if env.get("PDCTL_KEYS"):
        return Path(env["PDCTL_KEYS"]).absolute()
    return paths.user_dir(env, "XDG_CONFIG_HOME") / "keys"


def parse_public(text: str) -> str:
    """Return a public key as 64 hexadecimal digits, from these or from Z85. Raises PdctlError (USAGE) for anything else."""
    text = text.strip()
    if _HEX.fullmatch(text.lower()):
        return text.lower()
    if len(text) == 40:
        from zmq.utils import z85

        try:
            return z85.decode(text.encode("ascii")).hex()
        except Exception:  # noqa: BLE001, S110  # pyzmq raises what its conversion happens to meet
            pass
    raise PdctlError(
        f"{text[:80]!r} is no public key", "64 hexadecimal digits, as pdctl keys list shows them", Exit.USAGE
    )


def is_public(text: str) -> bool:
    """Return whether ``text`` is a key as 64 hexadecimal digits."""
    return _HEX.fullmatch(text) is not None


def check_name(name: str) -> str:
    """Return ``name`` where it can name a key. Raises PdctlError (USAGE)."""
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise PdctlError(f"{name!r} can't name a key", "letters, digits, _ . @ and - only", Exit.USAGE)
    return name


# ---- files -----------------------------------------------------------------------------------------------------------


def read_private(path: Path) -> str:
    """Return the text of a file that only this user (or root) can have read or changed.

    Raises FileNotFoundError, PermissionError (it names the wrong mode or owner), OSError, and ValueError if it is not text.
    """
    try:
        fd = open_regular(path, follow=True)  # Kubernetes mounts a secret's files as links
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise PermissionError(f"{path} {error.strerror}") from None
        raise
    with os.fdopen(fd, "rb") as file:
        _check(path, os.fstat(fd))
        _check_folder(path.parent)
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise ValueError(f"{path} is over {MAX_FILE} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text") from None


def _check(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"{path} belongs to uid {found.st_uid}, not to uid {os.geteuid()}")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise PermissionError(f"{path} is open to others (mode {mode:04o}, needs 0600): chmod 600 {path}")


def _check_folder(path: Path) -> None:
    """Raise PermissionError if other users can change the files in ``path``, or can list this user's own directory.

    A directory that root made, as Kubernetes does for a mounted secret, may be readable and sticky.
    """
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"{path} belongs to uid {found.st_uid}, not to uid {os.geteuid()}")
    mounted = found.st_uid == 0 and (not mode & 0o022 or mode & stat.S_ISVTX)
    if mode & 0o077 and not mounted:
        raise PermissionError(f"{path} is open to others (mode {mode:04o}, needs 0700): chmod 700 {path}")


def read_pair(path: Path) -> Pair:
    """Return the pair in a key file. Raises as :func:`read_private`, ValueError also for what is no pair of keys."""
    found: dict[str, str] = {}
    for line in read_private(path).splitlines():
        name, _, value = line.strip().partition(" ")
        found[name] = value.strip()
    public, secret = found.get("public", ""), found.get("secret", "")
    if not (_HEX.fullmatch(public) and _HEX.fullmatch(secret)):
        raise ValueError(f"{path} holds no pair of keys: it needs lines `public HEX` and `secret HEX`")
    if _public_of(secret) != public:
        raise ValueError(f"{path} holds no pair of keys: its public key is not that of its secret one")
    return Pair(public, secret)


def _public_of(secret: str) -> str:
    """Return the public key of a secret one, both hexadecimal. Raises ValueError where this pyzmq has no CURVE."""
    import zmq
    from zmq.utils import z85

    try:
        return z85.decode(zmq.curve_public(z85.encode(bytes.fromhex(secret)))).hex()
    except zmq.ZMQError as error:
        raise ValueError(f"pyzmq can't use keys: {error.strerror}") from None


def read_authorized(path: Path) -> tuple[dict[str, Client], list[str]]:
    """Return the clients by public key, and the lines that could not be parsed. Raises as :func:`read_private`."""
    clients: dict[str, Client] = {}
    problems: list[str] = []
    for number, line in enumerate(read_private(path).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) not in (2, 3) or words[0] not in ROLES or not _HEX.fullmatch(words[1]):
            problems.append(f"{path}:{number} is no line `observe|inject PUBLIC NAME`")
            continue
        clients[words[1]] = Client(words[2] if len(words) == 3 else words[1][:8], words[0], words[1])
    return clients, problems


def make(path: Path, name: str, *, replace: bool = False) -> Pair:
    """Make a pair of keys in ``path``/NAME.key. Raises PdctlError where the name is taken or the file can't be written.

    replace: overwrite the existing pair of that name. There must be one, and it is lost.
    """
    import zmq
    from zmq.utils import z85

    pair = Pair(*(z85.decode(key).hex() for key in zmq.curve_keypair()))
    with changing(path):
        file = path / f"{check_name(name)}{KEY_SUFFIX}"
        if file.exists() and not replace:
            raise PdctlError(
                f"there is a key {name!r} already",
                "another name, or --replace: the one that is there can't be made again",
                Exit.USAGE,
            )
        if replace and not file.exists():
            raise PdctlError(f"there is no key {name!r} to replace", f"in {path}", Exit.USAGE)
        text = f"# pdctl key {name}: whoever has this file is {name}\npublic {pair.public}\nsecret {pair.secret}\n"
        paths.write_private(file, text.encode())
    return pair


def names(path: Path) -> list[str]:
    """Return the names of the pairs in ``path``, sorted; none where there is no such directory.

    Raises PdctlError (USAGE) where it can't be read.
    """
    try:
        files = [file.name for file in path.iterdir() if file.suffix == KEY_SUFFIX and _NAME.fullmatch(file.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PdctlError(
            f"{path} holds no keys: {error.strerror or error}", "PDCTL_KEYS names a directory", Exit.USAGE
        ) from None
    return sorted(file.removesuffix(KEY_SUFFIX) for file in files)


def write_authorized(path: Path, clients: Mapping[str, Client]) -> None:
    """Replace the list of clients in ``path``. Raises OSError."""
    lines = ["# role public-key name; agents read this again when it changes"]
    lines += [f"{c.role} {c.public} {c.name}" for c in sorted(clients.values(), key=lambda c: (c.name, c.public))]
    paths.write_private(path / AUTHORIZED, ("\n".join(lines) + "\n").encode())


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Hold the lock of the key directory: only one command changes keys at a time. A missing directory is made (mode 0700).

    Raises PdctlError (USAGE), with the reason, if the directory can't be used.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.private_dir(path)
        with os.fdopen(open_lock(path / ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise PdctlError(
            f"keys can't be changed: {error.strerror or error}", f"the directory is {path}", Exit.USAGE
        ) from None


# ---- the client's own ------------------------------------------------------------------------------------------------


def load_own(path: Path, name: str = "") -> Pair:
    """Return the key pair of this user's commands in the directory ``path``: the one called ``name``, else the only one.

    Raises PdctlError (UNREACHABLE) if there is no pair, if there are several and none is named, or if the file can't be used.
    """
    if not name:
        there = [one for one in names(path) if one != SERVER]
        if not there:
            raise PdctlError(
                f"no key of this user's is in {path}",
                "pdctl keys new NAME makes one; its public half has to be authorised where the ranks run",
            )
        if len(there) > 1:
            raise PdctlError(
                f"{path} has several keys: {', '.join(there)}", "choose one: pdctl --key NAME …", Exit.USAGE
            )
        [name] = there
    file = path / f"{check_name(name)}{KEY_SUFFIX}"
    try:
        return read_pair(file)
    except FileNotFoundError:
        there = [one for one in names(path) if one != SERVER]
        raise PdctlError(
            f"no key {name!r} is in {path}", f"there are: {', '.join(there) or 'none'}", Exit.USAGE
        ) from None
    except OSError as error:
        raise PdctlError(f"the key {name!r} is not used: {error.strerror or error}") from None
    except ValueError as error:
        raise PdctlError(str(error)) from None
