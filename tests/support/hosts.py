"""Network namespaces as hosts: each with an address of its own on one bridge, and a cable that can be pulled."""

from __future__ import annotations

import os
import subprocess
from types import TracebackType

NET = "10.77.31"


def why_not() -> str:
    """Return why this machine makes no namespaces, "" where it does."""
    if os.geteuid() != 0:
        return "not root: no network namespaces"
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
    """``count`` hosts with the addresses 10.77.31.1 and so on, and one in the middle for whoever asks; all gone at exit."""

    def __init__(self, count: int) -> None:
        self.hub = f"pdh-{os.getpid()}-hub"
        self.names = [f"pdh-{os.getpid()}-{n}" for n in range(1, count + 1)]

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
        _ip("-n", self.hub, "addr", "add", f"{NET}.100/24", "dev", "br0")
        _ip("-n", self.hub, "link", "set", "br0", "up")
        for n, name in enumerate(self.names, 1):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", self.hub, "link", "add", f"port{n}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", self.hub, "link", "set", f"port{n}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{self.address(n)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for name in (*self.names, self.hub):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    @staticmethod
    def address(n: int) -> str:
        """Return the address of host ``n``, from 1 on."""
        return f"{NET}.{n}"

    def inside(self, n: int) -> tuple[str, ...]:
        """Return what runs a command on host ``n``, 0 for the one in the middle."""
        return ("ip", "netns", "exec", self.names[n - 1] if n else self.hub)

    def pull(self, n: int) -> None:
        """Pull the cable of a host: nothing comes through any more, and nobody is told."""
        _ip("-n", self.hub, "link", "set", f"port{n}", "down")

    def plug(self, n: int) -> None:
        """Put it back."""
        _ip("-n", self.hub, "link", "set", f"port{n}", "up")


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (args, done.stderr)
