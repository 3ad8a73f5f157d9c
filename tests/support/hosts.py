"""Network namespaces as hosts: each with an address of its own on one bridge, and a cable that can be pulled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.support import slow_link

NET = "10.77.31"
ROOT = Path(__file__).parents[2]


def why_not() -> str:
    """Return why this machine makes no namespaces, "" where it does."""
    if os.geteuid() != 0:
        return "not root: no network namespaces"
    if not slow_link.TUN.exists():
        return f"no {slow_link.TUN}: no slow link"
    name = f"pdh-try-{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "no `ip` command (package iproute2)"
    if made.returncode:
        return f"`ip netns add` failed: {made.stderr.strip()}"
    try:
        link = ["ip", "-n", name, "link", "add", "br0", "type", "bridge"]
        done = subprocess.run(link, capture_output=True, text=True, check=False)
        return f"no bridge can be made: {done.stderr.strip()}" if done.returncode else ""
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


class Hosts:
    """``count`` hosts with the addresses 10.77.31.1 and so on, and one far away for whoever asks; all gone at exit.

    The far one is reached over a link that delays each frame by ``delay_ms`` and loses a share ``loss`` of them.
    """

    def __init__(self, count: int, delay_ms: float, loss: float) -> None:
        self.hub, self.far = f"pdh-{os.getpid()}-hub", f"pdh-{os.getpid()}-far"
        self.names = [f"pdh-{os.getpid()}-{n}" for n in range(1, count + 1)]
        self._how = (str(delay_ms), str(loss))
        self._link: subprocess.Popen[str] | None = None

    def __enter__(self) -> Hosts:  # noqa: PYI034
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._remove()

    def _make(self) -> None:
        _ip("netns", "add", self.hub)
        _ip("-n", self.hub, "link", "set", "lo", "up")
        _ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.hub, "link", "set", "br0", "up")
        for n, name in enumerate(self.names, 1):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", self.hub, "link", "add", f"port{n}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", self.hub, "link", "set", f"port{n}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{self.address(n)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        _ip("netns", "add", self.far)
        self._link = subprocess.Popen(
            [sys.executable, "-m", slow_link.__name__, self.far, "eth0", self.hub, "far0", *self._how],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._link.stdout is not None
        assert self._link.stdout.readline() == "ready\n"
        _ip("-n", self.hub, "link", "set", "far0", "master", "br0", "up")
        _ip("-n", self.far, "link", "set", "lo", "up")
        _ip("-n", self.far, "addr", "add", f"{NET}.100/24", "dev", "eth0")
        _ip("-n", self.far, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        if self._link is not None:
            self._link.communicate("")
        for name in (*self.names, self.hub, self.far):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    @staticmethod
    def address(n: int) -> str:
        """Return the address of host ``n``, from 1 on."""
        return f"{NET}.{n}"

    def inside(self, n: int) -> tuple[str, ...]:
        """Return what runs a command on host ``n``, 0 for the one far away."""
        return ("ip", "netns", "exec", self.names[n - 1] if n else self.far)

    def pull(self, n: int) -> None:
        """Pull the cable of a host: nothing comes through any more, and nobody is told."""
        _ip("-n", self.hub, "link", "set", f"port{n}", "down")

    def plug(self, n: int) -> None:
        """Put it back."""
        _ip("-n", self.hub, "link", "set", f"port{n}", "up")


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (args, done.stderr)
