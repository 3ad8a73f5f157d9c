"""The directory that a trace is unpacked into: of this user alone, and removed with the process that made it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pdctl.protocol.errors import PdctlError
from pdctl.protocol.processes import look

_FOLDER = "pdctl-trace"


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a directory of mode 0700, which is removed at the end. Directories left by a killed pdctl are removed now."""
    _sweep(Path(tempfile.gettempdir()))
    me = os.getpid()
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}-{_namespace()}-{me}-{look(me).start}-"))
    except OSError as error:
        where = tempfile.gettempdir()
        raise PdctlError(
            f"{where} can't be written: {error.strerror}", "Set TMPDIR to a directory with room."
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _namespace() -> int:
    """Return the inode of this container's pid namespace: other containers may share the directory."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _sweep(where: Path) -> None:
    """Remove directories that killed processes of this user left."""
    prefix = f"{_FOLDER}-{_namespace()}-"
    for folder in where.glob(f"{prefix}*"):
        try:
            pid, start, _ = folder.name.removeprefix(prefix).split("-", 2)
            mine = folder.lstat().st_uid == os.geteuid() and not folder.is_symlink()
            if mine and not look(int(pid)).runs_since(int(start)):
                shutil.rmtree(folder, ignore_errors=True)
        except (OSError, ValueError):
            continue
