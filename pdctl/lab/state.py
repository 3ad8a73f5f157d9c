"""The files of a lab: its configuration and its processes. Standard library and msgspec only.

<run dir>/lab-<name>/   lab.json           configuration
                        supervisor.json    Process of the supervisor
                        proc-<label>.json  Process of each rank and of each bootstrap server
                        past-<stem>.json   Process that another one with its label came after
                        control.sock       socket of the supervisor
                        *.port *.req *.log ports, request sockets, logs
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pdctl.lab.config import LabConfig
from pdctl.protocol import paths, structs
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import read_regular
from pdctl.protocol.processes import look

MAX_FILE = 1 << 20
DONE = b"done"
"""Answer of the supervisor to an order that it carried out."""
STARTING, READY, FAILED, ENDED = "starting", "ready", "failed", "ended"


class Process(msgspec.Struct, frozen=True):
    """One process of a lab. start: clock ticks since boot; with the pid it names one process.

    state: ``starting``, ``ready``, ``failed`` or ``ended``; detail says why. transport: how a rank moves KV and
    metadata.
    """

    label: str
    pid: int
    start: int
    state: str = STARTING
    detail: str = ""
    transport: str = ""
    endpoint: str = ""

    @property
    def alive(self) -> bool:
        """Whether that very process is still there (a zombie is not)."""
        return look(self.pid).runs_since(self.start)


def me(label: str, state: str = STARTING, **more: str) -> Process:
    """Return this process."""
    return Process(label, os.getpid(), look(os.getpid()).start, state, **more)


def write(folder: Path, process: Process) -> None:
    """Put ``process`` into its file."""
    paths.write_private(_file(folder, process.label), msgspec.json.encode(process))


def publish(path: Path, text: str) -> None:
    """Put ``text`` into ``path``, whole or not at all."""
    paths.write_private(path, text.encode())


def _file(folder: Path, label: str) -> Path:
    return folder / ("supervisor.json" if label == "supervisor" else f"proc-{label.replace(' ', '-')}.json")


def processes(folder: Path) -> list[Process]:
    """Return all processes of the lab that have told who they are, the supervisor first, ranks in order."""
    return _read([folder / "supervisor.json", *sorted(folder.glob("proc-*.json"))])


def past(folder: Path) -> list[Process]:
    """Return the processes that ended before another one of the same label was started."""
    return _read(sorted(folder.glob("past-*.json")))


def retire(folder: Path, process: Process) -> None:
    """Keep a process that has ended as one of the past, so that its label is free."""
    name = f"past-{paths.stem(process.pid, process.start)}.json"
    paths.write_private(folder / name, msgspec.json.encode(process))
    _file(folder, process.label).unlink(missing_ok=True)


def _read(files: Iterable[Path]) -> list[Process]:
    found = []
    for path in files:
        try:
            found.append(structs.from_json(read_regular(path, MAX_FILE), Process))
        except (OSError, ValueError):
            continue
    return found


def control_socket(folder: Path) -> Path:
    """Return the socket that the supervisor takes orders from."""
    return folder / "control.sock"


def read_config(folder: Path) -> LabConfig:
    """Return the configuration of the lab in ``folder``. Raises PdctlError when there is none to read."""
    try:
        return structs.from_json(read_regular(folder / "lab.json", MAX_FILE), LabConfig)
    except (OSError, ValueError) as error:
        name = folder.name.removeprefix("lab-")
        if isinstance(error, PermissionError):
            raise PdctlError(
                f"lab {name!r} can't be read: {folder}: {error.strerror}",
                "run pdctl as the user whose lab it is, or give the directory mode 0700",
                Exit.UNREACHABLE,
            ) from error
        raise PdctlError(
            f"there is no lab {name!r}", f"start it: pdctl lab up --name {name}", Exit.UNREACHABLE
        ) from error


def run_dir(env: dict[str, str]) -> Path:
    """Return the run directory that this user's labs are in, made private. Raises PdctlError (USAGE) where that can't be."""
    folder = paths.run_dirs(env)[0]
    with usable(folder):
        return paths.private_dir(folder)


def record_dir(env: dict[str, str]) -> Path:
    """Return the directory that the ranks' recordings go to, made private. Raises PdctlError (USAGE) where that can't be."""
    folder = paths.record_dir(env)
    with usable(folder, "record directory", "PDCTL_RECORD_DIR (or --record-dir)"):
        paths.private_dir(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return folder


@contextmanager
def usable(folder: Path, what: str = "run directory", variable: str = "PDCTL_RUN_DIR (or --run-dir)") -> Iterator[None]:
    """Turn an OSError in this block into PdctlError (USAGE): ``folder``, a directory of a lab, can't be used."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else os.fspath(folder)
        inside = where != os.fspath(folder) and where.startswith(os.fspath(folder))
        raise PdctlError(
            f"the {what} {folder} can't be used: {f'{where}: ' if inside else ''}{error.strerror or error}",
            f"give it mode 0700, or set {variable} to one that you may write to, with room in it",
            Exit.USAGE,
        ) from None


def labs(env: dict[str, str]) -> list[str]:
    """Return the names of this user's labs."""
    try:
        found = sorted(paths.run_dirs(env)[0].glob("lab-*/lab.json"))
    except OSError:
        return []
    return [path.parent.name.removeprefix("lab-") for path in found]


def end(victims: Iterable[Process], grace_s: float = 1.0) -> list[Process]:
    """End processes: SIGTERM, after ``grace_s`` SIGKILL; returns those that are still there after another 10 s.

    A stopped process and one that hangs in a collective do not see SIGTERM; SIGKILL ends both.
    """
    left = [process for process in victims if process.alive]
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
        for process in left:
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + patience
        while True:
            left = [process for process in left if process.alive]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.01)
    return left


def remove_files(config: LabConfig, ended: Iterable[Process], *, recordings: bool = True) -> list[str]:
    """Remove what the lab's processes left, and its directory; returns what stays against its will, and why.

    recordings: whether their recordings go, too.
    """
    run_dir, record_dir = Path(config.run_dir), Path(config.record_dir)
    left = []
    for process in ended:
        stem = paths.stem(process.pid, process.start)
        suffixes = (paths.REGISTRATION_SUFFIX, paths.SOCKET_SUFFIX, paths.STACKS_SUFFIX)
        for file in (
            *(run_dir / f"{stem}{suffix}" for suffix in suffixes),
            *([record_dir / f"{stem}{paths.RECORDING_SUFFIX}"] if recordings else []),
        ):
            try:
                file.unlink(missing_ok=True)
            except NotADirectoryError:
                pass  # the directory is gone, and a file has its name
            except OSError as error:
                left.append(f"{file}: {error.strerror}")
    shutil.rmtree(config.state_dir, ignore_errors=True)
    if os.path.lexists(config.state_dir):
        left.append(f"{config.state_dir}: it can't be removed")
    return left
