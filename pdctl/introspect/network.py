"""The network namespace of another process, for the calling thread: what is 127.0.0.1 there, and what can be reached."""

from __future__ import annotations

import ctypes
import os

_CLONE_NEWNET = 0x40000000


def enter(pid: int) -> None:
    """Move the calling thread into the network namespace of a process. It stays there: give it a thread of its own.

    Raises OSError: as opening the namespace does, PermissionError where this user may not enter it.
    """
    inside = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(inside, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise PermissionError(number, os.strerror(number))
    finally:
        os.close(inside)
