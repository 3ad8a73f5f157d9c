"""Why the kernel refuses to let one process read another, in the order in which the kernel looks (``ptrace_may_access``)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pdctl.protocol.processes import look_with_parent

CAP_SYS_PTRACE = 19
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_DROPPED = "Run pdctl as root of the host, or give it CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE; in Kubernetes \
securityContext.capabilities.add: [SYS_PTRACE])."


@dataclass(frozen=True)
class Credentials:
    """The credentials of a process, from /proc/PID/status and the owner of its /proc entries.

    uids and gids: real, effective, saved. permitted: its capabilities as a bit set. seccomp: 0 none, 1 strict, 2 a filter.
    dumpable: whether its /proc entries belong to its own user; None for root, where this shows nothing. users, pids: names of
    its user and pid namespace, "" if unreadable.
    """

    uids: tuple[int, int, int]
    gids: tuple[int, int, int]
    permitted: int
    seccomp: int = 0
    dumpable: bool | None = True
    users: str = ""
    pids: str = ""


@dataclass(frozen=True)
class Refusal:
    """The kernel's condition that does not hold (``uid``, ``capabilities``, ``dumpable``, ``yama``, ``seccomp``,
    ``pid namespace``, ``unknown``), one sentence about it, and what helps."""

    what: str
    why: str
    cure: str


def explain(pid: int) -> Refusal:
    """Return why this process may not read ``pid``. Call it only after the kernel has said so."""
    try:
        me, target = credentials("self"), credentials(str(pid))
    except (OSError, ValueError, KeyError) as error:
        return Refusal("unknown", f"the kernel refuses, and /proc/{pid} can't be looked at: {error}", _DROPPED)
    return judge(me, target, yama=_yama(), descends=_descends(pid))


def judge(me: Credentials, target: Credentials, *, yama: int, descends: bool) -> Refusal:
    """Return the first of the kernel's conditions that does not hold.

    yama: ptrace_scope, 0 where the kernel has no Yama. descends: the target is a descendant of this process.
    """
    able = bool(me.permitted >> CAP_SYS_PTRACE & 1)
    strangers = bool(me.users) and me.users != target.users  # one that can't be seen is not ours
    able_there = able and not strangers
    mine = {*target.uids} == {me.uids[0]} and {*target.gids} == {me.gids[0]}
    if not able_there and not mine:
        return Refusal(
            "uid",
            f"it runs as uid {target.uids[0]} (gid {target.gids[0]}), pdctl as uid {me.uids[0]} (gid {me.gids[0]}), "
            "without CAP_SYS_PTRACE" + (" in its user namespace" if able else ""),
            f"Run pdctl as uid {target.uids[0]} (sudo -u '#{target.uids[0]}' pdctl …), or as root with CAP_SYS_PTRACE.",
        )
    more = target.permitted & ~me.permitted
    if not able_there and more:
        return Refusal(
            "capabilities",
            f"it has capabilities that pdctl has not (mask {more:016x}): it was started with more rights, as a privileged "
            "container is",
            _DROPPED,
        )
    if not able_there and target.dumpable is False:
        return Refusal(
            "dumpable",
            "it has made itself unreadable (PR_SET_DUMPABLE 0, or its executable may not be read)",
            _DROPPED,
        )
    if yama == 3 or (yama and not able_there and (yama == 2 or not descends)):
        return Refusal("yama", f"/proc/sys/kernel/yama/ptrace_scope is {yama}{_SCOPES.get(yama, '')}", _yama_cure(yama))
    if me.seccomp:
        return Refusal(
            "seccomp",
            "pdctl runs under a seccomp filter, which may forbid process_vm_readv and ptrace",
            "Run pdctl from the host, or with a profile that allows both (docker run --security-opt seccomp=unconfined).",
        )
    if me.pids and target.pids and me.pids != target.pids:
        return Refusal(
            "pid namespace", "it is in another pid namespace", "Run pdctl in that container, or as root of the host."
        )
    if not able_there and target.dumpable is None:
        return Refusal(
            "dumpable",
            "nothing else forbids it, so it has made itself unreadable (PR_SET_DUMPABLE 0), or a security module forbids it",
            _DROPPED,
        )
    return Refusal(
        "unknown",
        "the kernel refuses although user, capabilities, dumpable, Yama and seccomp would allow it: a security module "
        "(SELinux deny_ptrace, AppArmor) may forbid it",
        "Look for the denial in the kernel's log (dmesg, ausearch -m avc), or run pdctl as root of the host.",
    )


_SCOPES = {
    1: ": only a parent may read its children",
    2: ": only an administrator may read other processes",
    3: ": no process may read another",
}


def _yama_cure(yama: int) -> str:
    if yama == 3:
        return "It can't be lowered before the next boot; start the engine with pdctl's agent instead (pdctl run)."
    helps = (
        "Start the engine with pdctl's agent, which allows it, or give pdctl CAP_SYS_PTRACE" if yama == 1 else _DROPPED
    )
    return f"{helps.rstrip('.')}, or as root: sysctl kernel.yama.ptrace_scope={yama - 1}."


def credentials(pid: str) -> Credentials:
    """Return the credentials of a process. Raises OSError, ValueError, KeyError."""
    folder = Path("/proc", pid)
    fields = dict(
        line.split(":\t", 1) for line in (folder / "status").read_text(errors="replace").splitlines() if ":\t" in line
    )
    real, effective, saved, _ = map(int, fields["Uid"].split())
    group, effective_group, saved_group, _ = map(int, fields["Gid"].split())
    owner = (folder / "status").stat().st_uid
    return Credentials(
        uids=(real, effective, saved),
        gids=(group, effective_group, saved_group),
        permitted=int(fields["CapPrm"], 16),
        seccomp=int(fields.get("Seccomp", "0")),
        dumpable=None if effective == 0 else owner == effective,
        users=_link(folder / "ns/user"),
        pids=_link(folder / "ns/pid"),
    )


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _yama() -> int:
    try:
        return int(_YAMA.read_text())
    except (OSError, ValueError):
        return 0


def _descends(pid: int) -> bool:
    own = os.getpid()
    while pid > 1:
        if pid == own:
            return True
        pid = look_with_parent(pid).parent
    return False
