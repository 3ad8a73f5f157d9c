"""The state of a process, from /proc. It is used for ranks that do not answer. Standard library only."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process. state: the letter in /proc/PID/stat (R S D T t Z X), "" if there is no such process.

    start: clock ticks since boot; with the pid it names one process for as long as the host is up. state is F for a process
    that is frozen, from :func:`look_closely` only. exit_status: of a zombie, as waitpid gives it, where this user may read it;
    else 0. wait: of one in state D, from :func:`look_closely` only: the kernel's function that it waits in, "" where this user
    may not read it. switches: how often its main thread has been taken off a processor then, which stays the same in one wait.
    """

    state: str = ""
    start: int = 0
    exit_status: int = 0
    wait: str = ""
    switches: int = 0

    def runs_since(self, start: int) -> bool:
        """Return whether this is the process that started at ``start`` and it has not ended (a zombie has)."""
        return not self.ended and self.start == start

    @property
    def ended(self) -> bool:
        """Return whether the process has ended; a zombie has, and so has one that is not there."""
        return self.state in ("", "Z", "X")

    @property
    def held(self) -> bool:
        """Return whether something holds the process: it is stopped, frozen, or its main thread waits in the kernel."""
        return self.state in _HELD

    @property
    def why_silent(self) -> str:
        """Describe the state, for a user who waits for this process's answer."""
        return {
            "": "no such process",
            "T": "process is stopped (SIGSTOP or a job control signal)",
            "t": "process is stopped by a debugger",
            "Z": "process has ended and is a zombie: its parent has not reaped it",
            "X": "process has ended",
            "F": "process is frozen with its cgroup, as in a paused container",
            "D": f"process is {in_kernel(self.wait)}",
        }.get(
            self.state, "process runs, but its agent does not: something holds the GIL, or the agent's thread has ended"
        )


NO_PROCESS = Process()
_HELD = frozenset("TtFD")


@dataclass(frozen=True)
class Child:
    """A process with the name that the kernel has for it, 15 bytes of its title at most, and its parent's pid."""

    name: str = ""
    parent: int = 0
    process: Process = NO_PROCESS


def in_kernel(wait: str) -> str:
    """Return where a process in state D is, in words. wait: the kernel's function, "" unknown."""
    return "in an uninterruptible wait in the kernel" + (f" ({wait})" if wait else "")


def look(pid: int) -> Process:
    """Return what /proc says about ``pid`` now."""
    return look_with_parent(pid).process


def look_with_parent(pid: int) -> Child:
    """Return what /proc says about ``pid`` now, with its name and its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return Child()
    # The name in parentheses may hold anything, so fields are counted from its end.
    head, _, rest = stat.rpartition(b")")
    fields = rest.split()
    if len(fields) <= 19:
        return Child()
    process = Process(fields[0].decode(), int(fields[19]), int(fields[49]) if len(fields) > 49 else 0)
    return Child(head.partition(b"(")[2].decode(errors="replace"), int(fields[1]), process)


def look_closely(pid: int) -> Process:
    """Return what :func:`look` does, whether the process is frozen, which its state does not tell, and what it waits for."""
    process = look(pid)
    if process.state in ("S", "D") and _frozen(pid):
        return replace(process, state="F")
    return replace(process, wait=_wait(pid), switches=_switches(pid)) if process.state == "D" else process


def _wait(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/wchan").read_text(errors="replace")
    except OSError:
        return ""
    return name if re.fullmatch(r"[A-Za-z_][\w.]{0,79}", name, re.ASCII) else ""


def _switches(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/status").read_text(errors="replace")
    except OSError:
        return 0
    return sum(map(int, re.findall(r"^(?:non)?voluntary_ctxt_switches:\s*([0-9]+)$", text, re.MULTILINE)))


def _frozen(pid: int, root: Path = Path("/")) -> bool:
    """Return whether the cgroup of a process is frozen, or one that it is in. root: of the file system."""
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        _, controllers, path = line.split(":", 2) if line.count(":") > 1 else ("", "-", "")
        if "freezer" in controllers.split(","):
            states = {f"sys/fs/cgroup/freezer{path}/freezer.state": "FROZEN"}
        elif not controllers:
            states = {f"sys/fs/cgroup{at}{path}/cgroup.events": "frozen 1" for at in ("", "/unified")}
        else:
            continue
        for file, word in states.items():
            try:
                if word in (root / file).read_text(errors="replace").splitlines():
                    return True
            except OSError:
                continue
    return False


def age_s(start: int) -> float | None:
    """Return how many seconds ago a process started that /proc says started ``start`` ticks after boot, None if unknown."""
    try:
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(0.0, up_s - start / os.sysconf("SC_CLK_TCK"))


def network_of(pid: int) -> str:
    """Return the name of a process's network namespace (``net:[4026531840]``), "" when it can't be read."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""
