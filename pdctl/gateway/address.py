"""Where a gateway listens: an address of the host, one of its interfaces by name, or all of them."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from pdctl.protocol.listen import Listen

_SIOCGIFADDR = 0x8915
_BACKLOG = 512
"""Whoever waits here is taken in turn: fewer would lose to those who try again most often."""
_RECEIVES = 64 * 1024
_SENDS = 256 * 1024
"""What the kernel keeps of a connection in each direction: memory too, though not the gateway's."""


def listen_at(listen: Listen) -> tuple[socket.socket, str]:
    """Return a socket that listens, and its endpoint: ``tcp://HOST:PORT``. Raises OSError with the reason."""
    first = listen.ports[0]
    for port in listen.ports:
        try:
            made = _listening(listen.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == listen.ports[-1]:
                ports = port if error.errno != errno.EADDRINUSE or len(listen.ports) == 1 else f"{first}-{port}"
                why = error.strerror or error
                raise OSError(f"can't listen on tcp://{listen.host}:{ports or '*'}: {why}") from None
        else:
            host, bound = made.getsockname()[:2]
            return made, f"tcp://[{host}]:{bound}" if ":" in host else f"tcp://{host}:{bound}"
    raise AssertionError("a range of ports is never empty")


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVES)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENDS)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((_address(host, made), port))
        made.setblocking(False)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _address(host: str, any_socket: socket.socket) -> str:
    if host == "*":
        return "0.0.0.0"  # that is what was asked for
    if host.startswith("["):
        return host.strip("[]")
    try:
        return socket.inet_ntoa(socket.inet_aton(host)) if host.count(".") == 3 else _of_interface(host, any_socket)
    except OSError as error:
        raise OSError(error.errno or errno.ENODEV, error.strerror or os.strerror(errno.ENODEV)) from None


def _of_interface(name: str, any_socket: socket.socket) -> str:
    """Return the first IPv4 address of an interface. Raises OSError where there is none of that name, or it has none."""
    asked = struct.pack("256s", name.encode()[:15])
    return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, asked)[20:24])
