"""The logs that a bundle has the ends of."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from pdctl.protocol.files import open_regular
from pdctl.protocol.paths import owners

LOG_BYTES = 1 << 20
"""Bytes at the end of a log that are taken."""
MOST_LOGS = 32


def open_log(path: Path) -> int:
    """Return a descriptor for reading the log at ``path``. A link is followed where this user or root made it.

    Who may write into a directory of logs could link to what only the bundle's maker can read. Raises OSError as
    :func:`pdctl.protocol.files.open_regular`.
    """
    found = path.lstat()
    return open_regular(path, follow=stat.S_ISLNK(found.st_mode) and found.st_uid in owners())


def tail(path: Path) -> list[str]:
    """Return the last lines of a log, LOG_BYTES of it. Raises OSError where it can't be read or is no regular file."""
    with os.fdopen(open_log(path), "rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        data = file.read(LOG_BYTES)
    if size > LOG_BYTES:
        data = data.partition(b"\n")[2]  # the first line is cut
    return data.decode("utf-8", "replace").splitlines()


def log_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the files among ``paths``, and of each directory its ``*.log``."""
    found: dict[Path, None] = {}
    for path in paths:
        found.update(dict.fromkeys(sorted(path.glob("*.log")) if path.is_dir() else (path,)))
    return tuple(found)[:MOST_LOGS]
