"""Opens files that others may have made: never waits for them, and looks at what was opened, not at what a name meant.

A name can stand for a FIFO that nobody writes, a device without an end, a link out of the directory it was found in. So a file
is opened once, without waiting, and judged by its descriptor. Standard library only: ranks use it too.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}  # fmt: skip


def open_regular(path: str | Path, *, follow: bool = False, dir_fd: int | None = None) -> int:
    """Return a descriptor for reading the regular file at ``path``; who calls this closes it.

    follow: whether a link at the end of the path is followed; only for files that the user named. Raises OSError, with EINVAL
    and a text that says what is there where it is no regular file, ELOOP where it is a link that is not followed.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "is a link, which is not followed", str(path)) from None
        if error.errno == errno.ENXIO:  # a socket
            raise OSError(errno.EINVAL, "is a socket, not a regular file", str(path)) from None
        raise
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        what = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"is {what}, not a regular file", str(path))
    return fd


def read_regular(path: str | Path, limit: int, *, follow: bool = False, dir_fd: int | None = None) -> bytes:
    """Return the bytes of the regular file at ``path``, at most ``limit`` of them.

    Raises OSError as :func:`open_regular`, and with EFBIG where there are more.
    """
    fd = open_regular(path, follow=follow, dir_fd=dir_fd)
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"is over the limit of {limit} bytes", str(path))
    return data


def read_head(path: str | Path, size: int) -> bytes:
    """Return the first ``size`` bytes of the regular file at ``path``, fewer where it ends. Raises as :func:`open_regular`."""
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        return file.read(size)
