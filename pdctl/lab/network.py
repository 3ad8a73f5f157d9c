"""A network of the lab's own, where the machine allows it. Standard library only.

Mooncake and torch's TCPStore listen on every address of the machine, so a lab is best kept in a network namespace
that holds a loopback device only. It lives as long as a process of the lab does and needs no cleaning up.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def _call(function: str, *args: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def new_network() -> None:
    """Move this process (one thread so far) into a new network namespace with only loopback, which is up.

    Raises OSError where the machine does not allow it (it takes CAP_SYS_ADMIN).
    """
    _call("unshare", _CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = bytearray(struct.pack("16sH22x", b"lo", 0))
        fcntl.ioctl(control, _SIOCGIFFLAGS, request)
        flags = struct.unpack_from("16sH", request)[1]
        struct.pack_into("16sH", request, 0, b"lo", flags | _IFF_UP)
        fcntl.ioctl(control, _SIOCSIFFLAGS, request)
