"""A slow and lossy cable between two network namespaces, in user space: many kernels have no netem.

usage: python -m tests.support.slow_link NAMESPACE DEVICE NAMESPACE DEVICE DELAY_MS LOSS

It makes a TAP device at each end, prints ``ready``, and carries frames between them until its standard input ends. Each frame
takes DELAY_MS, and of all frames the share LOSS is dropped.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque
from pathlib import Path

TUN = Path("/dev/net/tun")
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_LONGEST = 65536
_MOST_WAITING = 1000
"""Frames on their way in one direction; what comes beyond them is dropped, as a router's queue does."""


def tap(namespace: str, device: str) -> int:
    """Make a TAP device in a named network namespace, and go there. Return the descriptor that has its frames."""
    with Path(f"/run/netns/{namespace}").open() as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns: {namespace}")
    fd = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI))
    return fd


def carry(ends: tuple[int, int], delay_s: float, loss: float) -> None:
    """Carry frames until standard input ends."""
    chance = random.Random(7)
    waiting: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}
    poll = select.poll()
    for fd in (0, *ends):
        poll.register(fd, select.POLLIN)
    while True:
        due = min((frames[0][0] for frames in waiting.values() if frames), default=None)
        left_s = 1.0 if due is None else max(0.0, due - time.monotonic())
        for fd, _ in poll.poll(left_s * 1000 + (due is not None)):
            if fd == 0:
                if not os.read(0, 1):
                    return
                continue
            frame = _read(fd)
            to = waiting[ends[1] if fd == ends[0] else ends[0]]
            if frame and chance.random() >= loss and len(to) < _MOST_WAITING:
                to.append((time.monotonic() + delay_s, frame))
        for end, frames in waiting.items():
            while frames and frames[0][0] <= time.monotonic():
                _write(end, frames.popleft()[1])


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _LONGEST)
    except OSError:
        return b""  # the device is down, still


def _write(fd: int, frame: bytes) -> None:
    try:
        os.write(fd, frame)
    except OSError:
        pass  # lost, as frames are where a device is down


def main(arguments: list[str]) -> None:
    """Be the cable."""
    namespace, device, other, its_device, delay_ms, loss = arguments
    ends = (tap(namespace, device), tap(other, its_device))
    print("ready", flush=True)
    carry(ends, float(delay_ms) / 1000, float(loss))


if __name__ == "__main__":
    main(sys.argv[1:])
