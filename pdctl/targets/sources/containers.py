"""Ranks with an agent in containers of this host: through ``/proc/PID/root``, from the host or from a sidecar.

An agent in a container has its files in that container's ``/tmp`` and ``/dev/shm``. They are visible through the root directory
of any process of the container. A registration has the container's own paths and pids; they are translated to this process's.

Processes in a container are not trusted. Every directory and file is resolved inside that root, opened once, and checked by its
descriptor. Only files of this process's user are used. Files of other users are reported, and not used.
"""

from __future__ import annotations

import math
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from pdctl.protocol import paths
from pdctl.protocol.files import names, open_folder, read_regular, status
from pdctl.protocol.processes import NO_PROCESS, Process, look
from pdctl.protocol.rank import FoundRank
from pdctl.targets import registration
from pdctl.targets.registration import Claim

_RUN = "tmp"
_RUN_DIR = re.compile(r"pdctl-[0-9]{1,10}", re.ASCII)
MAX_NAMES = 65_536
MAX_FOLDERS = 64
"""Run directories of one container that are looked at."""


@dataclass(frozen=True)
class Container:
    """Processes in another mount namespace. pids: pid in their own pid namespace → pid here.

    mine: whether one of them runs as this process's user, so that ranks of this user are possible.
    """

    root: Path
    pids: Mapping[int, int]
    mine: bool

    def process(self, pid: int, start: int) -> tuple[int, Process]:
        """Return its pid here and what /proc says of it, (``pid``, no process) where it has ended."""
        here = self.pids.get(pid, 0)
        process = look(here) if here else NO_PROCESS
        return (here, process) if process.runs_since(start) else (pid, NO_PROCESS)


def find(problems: list[str], others: list[str], claims: list[Claim], until: float = math.inf) -> Iterable[FoundRank]:
    """Yield the ranks that registered in the usual directories of containers whose processes this one can see.

    problems: gets a line if the time or a limit was exceeded. others: gets unused files, with the reason. claims: gets the
    servers that unused registrations name. until: monotonic time at which to stop.
    """
    for container in _containers():
        if time.monotonic() >= until:
            problems.append("there was no time to look into all containers")
            return
        for name, folder, why in _folders(container, others, until):
            if why:
                others.append(why)
                claims += _claims(name, folder, why, registration.MAX_CLAIMS - len(claims), until)
            else:
                yield from _ranks(container, name, folder, problems, others, claims, until)


def _folders(container: Container, others: list[str], until: float) -> Iterator[tuple[Path, int, str]]:
    """Yield the run directories in a container's ``/tmp``: path, descriptor, and why it is not used, "" if it is used.

    If no process there belongs to this user, the files belong to other users or to ended ranks.
    """
    place = container.root / _RUN
    try:
        with _held(place) as tmp:
            there = [name for name in names(tmp, "", MAX_NAMES, until)[0] if _RUN_DIR.fullmatch(name)]
            likely = (f"pdctl-{os.geteuid()}", "pdctl-0")  # the second where another user is its root
            there.sort(key=lambda name: name not in likely)
            if len(there) > MAX_FOLDERS:
                others.append(f"{place} has {len(there)} run directories; {MAX_FOLDERS} were looked at")
            for name in there[:MAX_FOLDERS]:
                path = place / name
                try:
                    with _held(name, tmp) as folder:
                        found = os.fstat(folder)
                        if not _same(Path("/", _RUN, name), found):
                            yield path, folder, paths.why_not_private(path, found)
                except OSError as error:
                    others.append(f"{path} {error.strerror}")
    except OSError:
        return  # it has ended, or has no such directory


def _ranks(
    container: Container,
    name: Path,
    folder: int,
    problems: list[str],
    others: list[str],
    claims: list[Claim],
    until: float,
) -> Iterable[FoundRank]:
    """Yield the ranks registered in an opened private directory of this user.

    The directory may belong to an untrusted user of the container, for instance its root. So an unusable registration counts as
    another user's: it matters only if it names a server that was found.
    """
    found, whole = names(folder, paths.REGISTRATION_SUFFIX, registration.MAX_RANKS, until)
    for number, file in enumerate(found):
        if time.monotonic() >= until:
            whole, found = False, found[:number]
            break
        try:
            raw = read_regular(file, paths.MAX_REGISTRATION, dir_fd=folder, owners=(os.geteuid(),))
            r = paths.registration(file, raw)
        except FileNotFoundError:
            continue  # the rank ended while we looked
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else f"is not a registration this pdctl reads: {error}"
            others.append(f"{name / file} {why}")
            claims += registration.claim(name / file, file, folder, f"it {why}", registration.MAX_CLAIMS - len(claims))
        else:
            yield _rank(container, r)
    if not whole:
        problems.append(f"{name}: more than {len(found)} registrations; the others were not read")


def _claims(name: Path, folder: int, why: str, most: int, until: float) -> Iterator[Claim]:
    """Yield the claims of registrations in an unused directory."""
    try:
        found, _ = names(folder, paths.REGISTRATION_SUFFIX, max(0, most), until)
    except OSError:
        return
    for file in found:
        if time.monotonic() >= until:
            return
        yield from registration.claim(name / file, file, folder, why, most)


def _rank(container: Container, r: paths.Registration) -> FoundRank:
    pid, process = container.process(r.identity.pid, r.identity.proc_start)
    recording = _inside(container, r.recording)
    rank = registration.rank_of(r, "live" if process.state else "dead", recording, process, (os.geteuid(),))
    socket = _inside(container, r.endpoint.removeprefix("ipc://"))
    why = (
        _unfit_socket(socket) if socket is not None else "its socket is at no path of its container" * bool(r.endpoint)
    )
    return replace(
        rank,
        identity=msgspec.structs.replace(r.identity, pid=pid),
        endpoint=f"ipc://{socket}" if socket is not None and not why else "",
        endpoint_off=why or rank.endpoint_off,
        log=None,  # its path is one of the container's, and so are pids in it
    )


def _unfit_socket(path: Path) -> str:
    """Return why pdctl does not connect to a container's socket, "" if it may."""
    try:
        there, reached = status(path), path.stat()
    except FileNotFoundError:
        return f"{path} is gone"
    except (OSError, ValueError) as error:
        return f"{path} can't be looked at: {error.strerror if isinstance(error, OSError) else error}"
    if not stat.S_ISSOCK(there.st_mode):
        return f"{path} is no socket"
    if (there.st_dev, there.st_ino) != (reached.st_dev, reached.st_ino):
        return f"{path} leads out of its container"
    return "" if there.st_uid == os.geteuid() else f"{path} belongs to uid {there.st_uid}"


def _inside(container: Container, path: str) -> Path | None:
    """Return the path here for a path of the container; None for "", and for a path that leads out of the container."""
    if not path.startswith("/") or ".." in Path(path).parts:
        return None
    return container.root / path.removeprefix("/")


def _containers() -> list[Container]:
    """Return the mount namespaces other than this process's own that have processes, with these.

    Those with processes of this user come first: only there ranks of this user live.
    """
    try:
        own = Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:
        return []
    found: dict[int, tuple[int, dict[int, int]]] = {}
    mine: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            namespace = (entry / "ns/mnt").stat().st_ino
            if namespace == own:
                continue
            inner, uid = _inner(entry)
        except (OSError, ValueError):
            continue  # it has ended, or may not be looked at
        found.setdefault(namespace, (int(entry.name), {}))[1][inner] = int(entry.name)
        if uid == os.geteuid():
            mine.add(namespace)
    made = [Container(Path(f"/proc/{one}/root"), pids, space in mine) for space, (one, pids) in found.items()]
    return sorted(made, key=lambda container: not container.mine)


@contextmanager
def _held(path: Path | str, folder: int | None = None) -> Iterator[int]:
    fd = open_folder(path, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def _same(mine: Path, found: os.stat_result) -> bool:
    """Return whether a container's directory is this process's own. Its files are found without the container."""
    try:
        here = mine.stat()
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (found.st_dev, found.st_ino)


def _inner(entry: Path) -> tuple[int, int]:
    """Return a process's pid in its own pid namespace, and the user it runs as."""
    pid, uid = int(entry.name), -1
    for line in (entry / "status").read_text(errors="replace").splitlines():
        if line.startswith("NSpid:"):
            pid = int(line.split()[-1])
        elif line.startswith("Uid:"):
            uid = int(line.split()[2])
    return pid, uid
