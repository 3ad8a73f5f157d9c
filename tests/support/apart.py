"""Runs a program on what looks like a machine of its own: the workers of a test run don't see each other's processes.

Half of what pdctl does is to look at all processes of a host, at ``/dev/shm`` and at ``/tmp/pdctl-UID``. Tests of that run
beside others only where each worker has namespaces of its own (processes, mounts, network, IPC). They end with the worker,
and so does every process in them: a killed run leaves none behind.

``python -m tests.support.apart PROGRAM…`` runs a program in such namespaces; it needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

NAMESPACES = ("mnt", "pid", "net", "ipc")
_CLONE = {"mnt": 0x00020000, "ipc": 0x08000000, "pid": 0x20000000, "net": 0x40000000}
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_HOST_NETWORK = "PDCTL_TESTS_HOST_NETWORK"
"""Names the network that the worker has left, for tests that ask a package index."""


def why_not() -> str:
    """Return why this machine can't keep workers apart, "" where it can."""
    if os.geteuid() != 0:
        return "not root"
    command = [sys.executable, "-m", __name__, "true"]
    tried = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else tried.stderr.strip().rpartition("\n")[2] or f"exit {tried.returncode}"


def host_network() -> tuple[str, ...]:
    """Return what runs a command in the machine's own network, from within a worker too."""
    path = os.environ.get(_HOST_NETWORK)
    return ("nsenter", f"--net={path}") if path and shutil.which("nsenter") else ()


def main(program: list[str]) -> int:
    """Run ``program`` apart and return its exit status."""
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    _call("unshare", sum(_CLONE[name] for name in NAMESPACES))
    os.environ["TMPDIR"] = own = tempfile.mkdtemp(prefix="pdw-")  # names that are made of a pid are this worker's alone
    first = os.fork()
    if first:
        try:
            return _status(os.waitpid(first, 0)[1])
        finally:
            shutil.rmtree(own, ignore_errors=True)
    ctypes.CDLL(None).prctl(
        1, signal.SIGKILL
    )  # PR_SET_PDEATHSIG: process 1 ends with its parent, and all others with it
    _own_mounts()
    loopback_up()
    os.environ[_HOST_NETWORK] = f"/proc/1/fd/{network}"
    child = os.fork()
    if not child:
        os.execvp(program[0], program)
    while True:  # process 1 is the parent of every orphan
        ended, status = os.wait()
        if ended == child:
            return _status(status)


def _own_mounts() -> None:
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _call("mount", b"proc", b"/proc", b"proc", 0, None)
    own = Path(f"/tmp/pdctl-{os.getuid()}")
    for path, mode in ((own, "0700"), (Path("/dev/shm"), "1777"), (Path("/run/netns"), "0755")):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        _call("mount", b"tmpfs", os.fsencode(path), b"tmpfs", 0, f"mode={mode}".encode())


def loopback_up() -> None:
    """Bring the loopback interface of this process's network up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def _status(waited: int) -> int:
    code = os.waitstatus_to_exitcode(waited)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
