"""Paths of a rank's socket, registration and recording. Agents create these files; clients read them.

    run directory     <pid>-<start>.json   who the rank is and how to reach it, written atomically
                      <pid>-<start>.sock   its control socket
                      <pid>-<start>.stacks  its stacks, from when it was asked for them by a signal
    record directory  <pid>-<start>.pdrec  its recording

``start`` is the process's start time in clock ticks since boot. So a reused pid is not mistaken for the rank.
All files belong to one user, and no other user can open them. Standard library and msgspec only.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from pdctl.protocol import structs
from pdctl.protocol.files import read_regular
from pdctl.protocol.model import Identity

REGISTRATION_SUFFIX = ".json"
SOCKET_SUFFIX = ".sock"
RECORDING_SUFFIX = ".pdrec"
STACKS_SUFFIX = ".stacks"
MAX_REGISTRATION = 64 * 1024
SOCKET_PATH_MAX = 107
"""Bytes that fit into ``sun_path`` of a Unix socket address, without its closing zero byte."""
_UNSET = {"XDG_CONFIG_HOME": ".config", "XDG_CACHE_HOME": ".cache", "XDG_STATE_HOME": ".local/state"}
_STEM = re.compile(r"([0-9]{1,10})-([0-9]{1,19})", re.ASCII)
_SHARED = Path("/dev/shm/pdctl")  # noqa: S108  # trusted below only where nobody else can change what is in it


class Registration(msgspec.Struct, frozen=True):
    """The registration of a rank: a file in its run directory, and its answer to ``hello``.

    endpoint: the control socket as ZeroMQ writes it; "" if there is none, and ``endpoint_off`` says why.
    tcp: the socket for other hosts; "" if none was requested, or if ``tcp_off`` says why it is missing. server_key: the
    agent's public key at that socket; "" if the socket is open to every user of the host. store: HOST:PORT of the job's
    TCPStore as this rank reaches it; "" if it has none, or must not use it.
    recording: path of the recording; "" if there is none, and ``recording_off`` says why. recording_size: bytes. log: path of
    what the rank's standard error or output is, "" if neither has one; who reads it checks that it is a file.
    """

    protocol: int
    identity: Identity
    endpoint: str = ""
    endpoint_off: str = ""
    recording: str = ""
    recording_size: int = 0
    recording_off: str = ""
    tcp: str = ""
    tcp_off: str = ""
    server_key: str = ""
    store: str = ""
    log: str = ""


def read_registration(path: Path) -> Registration:
    """Return the registration in ``path``. Raises OSError, ValueError as :func:`registration`."""
    return registration(path.name, read_regular(path, MAX_REGISTRATION, owners=owners()))


def registration(name: str, raw: bytes) -> Registration:
    """Return the registration ``raw`` of a file called ``name``.

    Raises ValueError (msgspec's errors are ValueErrors) if it is no registration, or if its process is not that of the name.
    """
    r = structs.from_json(raw, Registration)
    if parse_stem(name) != (r.identity.pid, r.identity.proc_start):
        raise ValueError(
            f"it claims to be of pid {r.identity.pid}, started at {r.identity.proc_start}, which its name does not say"
        )
    return r


def owners() -> Collection[int]:
    """Return the user ids that files of this user's ranks may belong to."""
    return (os.geteuid(), 0)


def run_dirs(env: Mapping[str, str]) -> list[Path]:
    """Return the run directories in order of preference. If PDCTL_RUN_DIR is set it is the only one."""
    if env.get("PDCTL_RUN_DIR"):
        return [Path(env["PDCTL_RUN_DIR"]).absolute()]
    found = []
    if env.get("XDG_RUNTIME_DIR"):
        found.append(Path(env["XDG_RUNTIME_DIR"]) / "pdctl")
    return [*found, Path(f"/tmp/pdctl-{os.getuid()}")]  # noqa: S108  # checked by private_dir before use


def record_dir(env: Mapping[str, str]) -> Path:
    """Return the directory of recordings: PDCTL_RECORD_DIR, else one in shared memory, which outlives every process.

    The default is ``/dev/shm/pdctl/UID``. It is ``/dev/shm/pdctl-UID`` if a user other than root and this one made
    ``/dev/shm/pdctl``: that user could replace the directory at any time.
    """
    if env.get("PDCTL_RECORD_DIR"):
        return Path(env["PDCTL_RECORD_DIR"]).absolute()
    aside = _SHARED.with_name(f"{_SHARED.name}-{os.getuid()}")
    return _SHARED / str(os.getuid()) if not _others(_SHARED) and not _is_ours(aside) else aside


def user_dir(env: Mapping[str, str], variable: str) -> Path:
    """Return pdctl's directory in one of the user's: ``variable`` is XDG_CONFIG_HOME, XDG_CACHE_HOME or XDG_STATE_HOME.

    A relative value counts as unset, as the XDG specification says. Raises RuntimeError where there is no home.
    """
    given = env.get(variable, "")
    home = Path(given) if given.startswith("/") else Path(env.get("HOME") or "~").expanduser() / _UNSET[variable]
    return home / "pdctl"


def _others(folder: Path) -> bool:
    """Return whether users other than root and this one could rename files in ``folder``; False if it does not exist."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    return not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners() or bool(shared)


def _is_ours(folder: Path) -> bool:
    try:
        return not not_private(folder)
    except OSError:
        return False


def stem(pid: int, proc_start: int) -> str:
    """Return the part of the file names that names one process."""
    return f"{pid}-{proc_start}"


def parse_stem(name: str) -> tuple[int, int] | None:
    """Return (pid, start) from a file name made with :func:`stem`, None for any other file."""
    found = _STEM.fullmatch(name.partition(".")[0])
    return (int(found[1]), int(found[2])) if found is not None else None


def not_private(path: Path) -> str:
    """Return why ``path`` is not a private directory of this user, "" if it is. Raises OSError if it does not exist."""
    return why_not_private(path, path.lstat())


def why_not_private(path: Path, found: os.stat_result) -> str:
    """Judge as :func:`not_private` does, from a directory's status. path: its name, for the text."""
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is not a directory"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to uid {found.st_uid}, not to uid {os.geteuid()}"
    if found.st_mode & 0o077:
        return f"{path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}, needs 0700)"
    return ""


def private_dir(path: Path) -> Path:
    """Create the directory ``path`` with mode 0700, and its missing parents. Return ``path``.

    An existing directory is never changed: it may be shared on purpose. Raises OSError if the directory can't be made, and
    PermissionError if ``path`` belongs to another user, is open to other users, or is no directory.
    """
    if not path.parent.exists():
        _make_shared(path.parent)
    try:
        path.mkdir(mode=0o700)
        path.chmod(0o700)  # whatever the umask took, or a directory above adds
    except FileExistsError:
        pass
    why = not_private(path)
    if not why and path.parent == _SHARED and _others(_SHARED):
        why = f"{_SHARED} belongs to others, who could put another directory in the place of {path}"
    if why:
        raise PermissionError(why)
    return path


def _make_shared(path: Path) -> None:
    """Make the directory that holds one directory for each user, for instance ``/dev/shm/pdctl``."""
    if not path.parent.exists():
        _make_shared(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        return
    if path.parent in (Path("/dev/shm"), Path("/tmp")):  # noqa: S108
        path.chmod(0o1777)


def write_private(path: Path, data: bytes) -> None:
    """Put ``data`` into ``path`` (mode 0600), whole or not at all. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)
            file.write(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
