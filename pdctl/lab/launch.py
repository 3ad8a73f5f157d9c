"""Start, look at and end a lab, from any other process."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from pdctl.lab import rank, state
from pdctl.lab.config import LabConfig
from pdctl.protocol import extras, paths
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import open_lock

START_TIMEOUT_S = 90.0
_LONGEST_SOCKET = len("/load-4194304-ffffff.reply")


@contextmanager
def _one_at_a_time(run_dir: Path) -> Iterator[None]:
    """Keep two starts or ends of labs of one user apart."""
    with os.fdopen(open_lock(run_dir / ".labs.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def expected(config: LabConfig) -> list[str]:
    """Return the labels of the processes that a lab has besides its supervisor, in order."""
    labels = sorted(set(config.bootstraps.values()))
    for server in config.servers:
        labels += rank.labels_of(config, server)
    return labels


def up(
    config: LabConfig, timeout_s: float = START_TIMEOUT_S, note: Callable[[str], None] = lambda _: None
) -> list[state.Process]:
    """Start a lab and return its processes once all are ready. note: takes what the user should know of one that died before.

    Raises PdctlError when the name is in use, a process does not get ready in time, or there is no torch; nothing is left then.
    """
    extras.require("lab", "a lab")
    if config.transport == "mooncake":
        extras.require("mooncake-cpu", "--transport mooncake")
    folder = config.state_dir
    too_long = len(os.fsencode(folder)) + _LONGEST_SOCKET - paths.SOCKET_PATH_MAX
    if too_long > 0:
        raise PdctlError(
            f"the run directory's path is {too_long} bytes too long for sockets in it: {config.run_dir}",
            "set PDCTL_RUN_DIR (or --run-dir) to a shorter one",
            Exit.USAGE,
        )
    with state.usable(Path(config.run_dir)), _one_at_a_time(Path(config.run_dir)):
        if (folder / "lab.json").exists():
            if any(process.alive for process in state.processes(folder)):
                raise PdctlError(
                    f"a lab {config.name!r} is running",
                    f"end it with `pdctl lab down --name {config.name}`, or choose another --name",
                    Exit.REFUSED,
                )
            down(folder, recordings=False)
            note(
                f"lab {config.name!r} had died. Its recordings stay: pdctl ranks --all shows them, pdctl clean removes them"
            )
        try:
            paths.private_dir(folder)
            state.publish(folder / "lab.json", msgspec.json.encode(config).decode())
            log = os.open(folder / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    try:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "pdctl.lab.supervisor", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    try:
        return _until_ready(config, expected(config), time.monotonic() + timeout_s, supervisor)
    except BaseException:
        if supervisor.poll() is None:
            supervisor.kill()  # its ranks die with it
        supervisor.wait()
        down(folder)
        raise


def _until_ready(
    config: LabConfig, labels: list[str], deadline: float, supervisor: subprocess.Popen[bytes] | None = None
) -> list[state.Process]:
    folder = config.state_dir
    while True:
        found = state.processes(folder)
        by_label = {process.label: process for process in found}
        for process in found:
            if process.label in labels and process.state in (state.FAILED, state.ENDED):
                raise PdctlError(
                    f"{process.label} did not start: {process.detail}", _tail(folder, process.label), Exit.UNREACHABLE
                )
        if all(label in by_label and by_label[label].state == state.READY for label in labels):
            return found
        if supervisor is not None and supervisor.poll() is not None:
            raise PdctlError("the lab's supervisor ended", _tail(folder, "supervisor"), Exit.UNREACHABLE)
        if time.monotonic() > deadline:
            missing = [label for label in labels if label not in by_label or by_label[label].state != state.READY]
            raise PdctlError(
                f"not ready in time: {', '.join(missing)}", "the machine may be busy: try again", Exit.DEADLINE
            )
        time.sleep(0.02)


def _tail(folder: Path, label: str) -> str:
    try:
        lines = (folder / f"{label.replace(' ', '-')}.log").read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "its log ends with: " + " / ".join(lines[-3:]) if lines else ""


def status(name: str, env: dict[str, str]) -> tuple[LabConfig, list[state.Process]]:
    """Return a lab's configuration and processes. Raises PdctlError (UNREACHABLE) when there is no such lab.

    A default directory that another user could have made tells of no lab: whoever ends it would end what that user likes.
    """
    run_dir = paths.run_dirs(env)[0]
    folder = run_dir / f"lab-{name}"
    with suppress(OSError):  # what can't be looked at can't be read, which says why
        why = "" if env.get("PDCTL_RUN_DIR") else paths.not_private(run_dir)
        if why:
            raise PdctlError(f"lab {name!r} is not looked for: {why}", "name a directory of yours with --run-dir")
    return state.read_config(folder), state.processes(folder)


def down(folder: Path, *, recordings: bool = True) -> tuple[list[state.Process], list[str]]:
    """End every process of a lab and remove its files; returns the processes that were ended, and which files are left and why.

    recordings: whether they go, too.
    Works without the supervisor, and on ranks that hang or are stopped. Raises PdctlError when there is no such lab, or
    when a process is still there after SIGKILL.
    """
    config = state.read_config(folder)
    if not config.state_dir.exists() or not config.state_dir.samefile(folder):
        raise PdctlError(
            f"{folder} says that its lab is in {config.state_dir}", "nothing was ended, and nothing removed"
        )
    known: dict[tuple[int, int], state.Process] = {}
    ended: list[state.Process] = []
    while True:  # ranks that were forked while the supervisor was being ended have written their files by now
        fresh = [p for p in state.processes(folder) if (p.pid, p.start) not in known]
        if not fresh:
            break
        known.update({(p.pid, p.start): p for p in fresh})
        ended += [process for process in fresh if process.alive]
        left = state.end(fresh)
        if left:
            raise PdctlError(
                f"still there after SIGKILL: {', '.join(f'{p.label} (pid {p.pid})' for p in left)}",
                "they wait in the kernel; try again",
                Exit.PARTIAL,
            )
    return ended, state.remove_files(config, [*known.values(), *state.past(folder)], recordings=recordings)


def restart(config: LabConfig, name: str, timeout_s: float = START_TIMEOUT_S) -> list[state.Process]:
    """Restart a server or a bootstrap server of a lab that runs; returns all processes once the new ones are ready.

    Raises PdctlError when there is none of that name, nobody is there to do it, or a process does not get ready in time.
    """
    folder = config.state_dir
    deadline = time.monotonic() + timeout_s
    known = (*config.servers, *sorted(set(config.bootstraps.values())))
    if name not in known:
        raise PdctlError(
            f"{name[:80]!r} can't be restarted",
            f"the ranks of a server start together; this lab has {', '.join(known)}",
            Exit.USAGE,
        )
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.settimeout(timeout_s)
            control.connect(str(state.control_socket(folder)))
            control.send(name.encode())
            said = control.recv(1000)
    except TimeoutError:
        raise PdctlError(
            f"{name} was not restarted in time", "the machine may be busy: try again", Exit.DEADLINE
        ) from None
    except OSError as error:
        raise PdctlError(
            f"the supervisor of lab {config.name!r} does not answer: {error.strerror or error}",
            f"pdctl lab down --name {config.name}, then up",
            Exit.UNREACHABLE,
        ) from None
    if said != state.DONE:
        why = said.decode("utf-8", "replace") or "the supervisor ended"
        raise PdctlError(f"{name} was not restarted: {why}", f"pdctl lab status --name {config.name} shows what runs")
    labels = [name] if name not in config.servers else rank.labels_of(config, name)
    return _until_ready(config, labels, deadline)
