"""Ranks with an agent in containers of this host: through ``/proc/PID/root``, from the host or from a sidecar.

An agent in a container has its files in that container's ``/tmp`` and ``/dev/shm``. Whoever sees its processes sees these
through the root directory of one of them. What the rank says of itself is in the container's own terms, paths and pids,
and is told here in this process's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from pdctl import registered
from pdctl.agent import paths
from pdctl.errors import Exit, PdctlError
from pdctl.observed import FoundRank
from pdctl.processes import NO_PROCESS, Process, look

NAME = "PDCTL_CONTAINERS"
_RUN = "tmp"
_SAYS = {"": True, "on": True, "yes": True, "1": True, "off": False, "no": False, "0": False, "none": False}


@dataclass(frozen=True)
class Container:
    """Processes that see other files than this one. pids: theirs in their own pid namespace → here."""

    root: Path
    pids: Mapping[int, int]

    def process(self, pid: int, start: int) -> tuple[int, Process]:
        """Return its pid here and what /proc says of it, (``pid``, no process) where it has ended."""
        here = self.pids.get(pid, 0)
        process = look(here) if here else NO_PROCESS
        return (here, process) if process.runs_since(start) else (pid, NO_PROCESS)


def wanted(env: Mapping[str, str]) -> bool:
    """Return whether PDCTL_CONTAINERS lets containers be looked into. Raises PdctlError (USAGE) for what it can't say."""
    said = env.get(NAME, "").strip()
    if said.lower() not in _SAYS:
        raise PdctlError(
            f"{NAME}={said[:80]!r} is none of: on, off", f"Unset {NAME} to have it as usual, which is on.", Exit.USAGE
        )
    return _SAYS[said.lower()]


def find(env: Mapping[str, str], problems: list[str]) -> Iterable[FoundRank]:
    """Yield the ranks that registered in the usual directories of containers whose processes this one can see.

    Not where ``PDCTL_RUN_DIR`` names a directory, nor with ``PDCTL_CONTAINERS=off``. problems: what could not be read.
    """
    if not wanted(env) or env.get("PDCTL_RUN_DIR"):
        return
    for container in _containers():
        for folder in _folders(container.root / _RUN, problems):
            try:
                files = sorted(folder.glob(f"*{paths.REGISTRATION_SUFFIX}"))
            except OSError:
                continue
            for path in files:
                rank = _rank(container, path, problems)
                if rank is not None:
                    yield rank


def _folders(place: Path, problems: list[str]) -> Iterable[Path]:
    """Yield the run directories in a container's ``/tmp`` that are this user's alone."""
    try:
        found = sorted(place.glob("pdctl-[0-9]*"))
    except OSError:
        return
    for folder in found:
        if _here(folder):
            continue
        try:
            why = paths.not_private(folder)
        except OSError as error:
            why = f"{folder} can't be looked at: {error.strerror}"
        if why:
            problems.append(why)
        else:
            yield folder


def _rank(container: Container, path: Path, problems: list[str]) -> FoundRank | None:
    try:
        if path.is_symlink():  # it would be followed from here, not from the container
            raise ValueError("a symbolic link is not followed into a container")
        r = paths.read_registration(path)
    except FileNotFoundError:
        return None  # the rank ended while we looked
    except (OSError, ValueError) as error:
        problems.append(f"{path}: {error}")
        return None
    pid, process = container.process(r.identity.pid, r.identity.proc_start)
    socket = _inside(container, r.endpoint.removeprefix("ipc://"))
    rank = registered.found(r, "live" if process.state else "dead", _inside(container, r.recording), process)
    endpoint = f"ipc://{socket}" if socket is not None else ""
    return replace(rank, identity=msgspec.structs.replace(r.identity, pid=pid), endpoint=endpoint)


def _inside(container: Container, path: str) -> Path | None:
    """Return where a path of the container is here, None for none, and for one that leads out of it."""
    if not path.startswith("/") or ".." in Path(path).parts:
        return None
    return container.root / path.removeprefix("/")


def _containers() -> list[Container]:
    """Return the mount namespaces other than this process's own that have processes, with these."""
    try:
        mine = Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:
        return []
    found: dict[int, tuple[int, dict[int, int]]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            namespace = (entry / "ns/mnt").stat().st_ino
            if namespace == mine:
                continue
            _, pids = found.setdefault(namespace, (int(entry.name), {}))
            pids[_inner(entry)] = int(entry.name)
        except OSError:
            continue  # it has ended, or may not be looked at
    return [Container(Path(f"/proc/{first}/root"), pids) for first, pids in found.values()]


def _here(folder: Path) -> bool:
    """Return whether a container's run directory is this process's own: what is in it is found without going through one."""
    try:
        mine, its = Path("/", _RUN, folder.name).stat(), folder.stat()
    except OSError:
        return False
    return (mine.st_dev, mine.st_ino) == (its.st_dev, its.st_ino)


def _inner(entry: Path) -> int:
    """Return a process's pid in its own pid namespace."""
    for line in (entry / "status").read_text(errors="replace").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return int(entry.name)
