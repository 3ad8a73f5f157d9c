"""Open files that other users may have made. Opening never waits. It checks the opened file itself, not its name.

A name can stand for a FIFO that nobody writes, for a device that acts when it is opened, or for a link out of its directory.
So the file is first held without being opened (O_PATH). Then its type is checked. Only then the same file is opened. A path
through ``/proc/PID/root`` is resolved inside that root: links in a container can't lead out of it. Standard library only:
ranks use it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pdctl.protocol.errors import Exit, PdctlError

_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory", stat.S_IFLNK: "a link",
}  # fmt: skip
_INSIDE = re.compile(r"/proc/[1-9][0-9]{0,9}/root(?=/)")
_OPENAT2 = 437
"""The system call's number, on every architecture of Linux that Python runs on but Alpha."""
_NO_MAGICLINKS, _IN_ROOT = 0x02, 0x10
_LEFT_S = 60.0
"""What is written of a file, and was not written to for this long, is left over."""
_MISSING = (errno.ENOSYS, errno.EPERM)
"""What openat2 answers on kernels before 5.6, and under seccomp filters that do not know it."""


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def describe_type(mode: int) -> str:
    """Return what a file of this ``st_mode`` is, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "a file")


# ---- reading ---------------------------------------------------------------------------------------------------------


def open_regular(path: str | Path, *, follow: bool = False, dir_fd: int | None = None) -> int:
    """Return a descriptor for reading the regular file at ``path``; who calls this closes it.

    follow: whether a link at the end of the path is followed; only for files that the user named. Raises OSError: EINVAL for
    anything but a regular file (the text names its type), ELOOP for a link that is not followed.
    """
    place = _hold(path, follow=follow, dir_fd=dir_fd)
    try:
        return _opened(place, path, os.O_RDONLY)
    finally:
        os.close(place)


def read_regular(
    path: str | Path, limit: int, *, follow: bool = False, dir_fd: int | None = None, owners: Collection[int] = ()
) -> bytes:
    """Return the bytes of the regular file at ``path``, at most ``limit`` of them.

    owners: user ids that the file may belong to; any user if empty. Raises OSError as :func:`open_regular`, EFBIG if the file
    is larger, and PermissionError if the file belongs to another user.
    """
    with os.fdopen(open_regular(path, follow=follow, dir_fd=dir_fd), "rb") as file:
        found = os.fstat(file.fileno())
        if owners and found.st_uid not in owners:
            raise PermissionError(errno.EACCES, f"belongs to uid {found.st_uid}", str(path))
        data = file.read(limit + 1) if found.st_size <= limit else b"\0" * (limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"is over the limit of {limit} bytes", str(path))
    return data


def read_head(path: str | Path, size: int) -> bytes:
    """Return the first ``size`` bytes of the regular file at ``path``, fewer where it ends. Raises as :func:`open_regular`."""
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        return file.read(size)


def status(path: str | Path, *, dir_fd: int | None = None) -> os.stat_result:
    """Return the status of ``path`` itself; a link at its end is not followed. Raises OSError."""
    place = _hold(path, follow=False, dir_fd=dir_fd)
    try:
        return os.fstat(place)
    finally:
        os.close(place)


def open_folder(path: str | Path, *, dir_fd: int | None = None) -> int:
    """Return a descriptor of the directory at ``path``, which is no link; who calls this closes it. Raises OSError."""
    place = _hold(path, follow=False, dir_fd=dir_fd)
    try:
        mode = os.fstat(place).st_mode
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, f"is {describe_type(mode)}, not a directory", str(path))
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)


def names(folder: int | Path, ending: str, most: int, until: float) -> tuple[list[str], bool]:
    """Return the sorted names with this ending in a directory, without hidden files, and whether the list is complete.

    folder: a directory, or a descriptor of one. most: how many at most. until: on the monotonic clock, when to stop.
    Raises OSError.
    """
    found: list[str] = []
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number % 256 == 255 and time.monotonic() >= until:
                return sorted(found), False
            if entry.name.endswith(ending) and not entry.name.startswith("."):
                if len(found) >= most:
                    return sorted(found), False
                found.append(entry.name)
    return sorted(found), True


def _hold(path: str | Path, *, follow: bool, dir_fd: int | None) -> int:
    """Return an O_PATH descriptor of ``path``: the file is held, not opened."""
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    inside = _INSIDE.match(os.fspath(path)) if dir_fd is None else None
    if inside is None:
        return os.open(path, flags, dir_fd=dir_fd)
    root = os.open(inside[0], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _in_root(root, os.fspath(path)[inside.end() :], flags)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(root)


def _opened(place: int, path: str | Path, flags: int) -> int:
    """Open the regular file that is held as ``place``."""
    mode = os.fstat(place).st_mode
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "is a link, which is not followed", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"is {describe_type(mode)}, not a regular file", str(path))
    try:
        return os.open(f"/proc/self/fd/{place}", flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _in_root(root: int, path: str, flags: int) -> int:
    """Open ``path`` as a process with root directory ``root`` would, with its links; magic links are not followed."""
    how = _How(flags, 0, _IN_ROOT | _NO_MAGICLINKS)
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(16):
        ctypes.set_errno(0)
        fd = libc.syscall(_OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number in _MISSING:
            return _walk(root, path, flags)
        if number != errno.EAGAIN:  # else something was renamed meanwhile
            break
    raise OSError(number, os.strerror(number), path)


def _walk(root: int, path: str, flags: int) -> int:
    """Open ``path`` as :func:`_in_root` does, without openat2: one part after the other, and through no link."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or not parts:
        raise OSError(errno.ELOOP, "leads up, which is not followed", path)
    here = os.dup(root)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=here)
    finally:
        os.close(here)


# ---- writing ---------------------------------------------------------------------------------------------------------


def open_append(path: Path) -> int:
    """Return a descriptor for appending to the regular file at ``path``, made (mode 0600) where it is missing.

    Raises OSError as :func:`open_regular`; a link is not followed.
    """
    return _open_own(path, os.O_WRONLY | os.O_APPEND)


def open_lock(path: Path) -> int:
    """Return a descriptor of the regular file at ``path`` for locking it, made (mode 0600) where it is missing.

    Raises OSError as :func:`open_regular`; a link is not followed.
    """
    return _open_own(path, os.O_RDWR)


def _open_own(path: Path, flags: int) -> int:
    for _ in range(16):
        with suppress(FileExistsError):
            return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            place = _hold(path, follow=False, dir_fd=None)
        except FileNotFoundError:
            continue  # whoever had it removed it meanwhile
        try:
            return _opened(place, path, flags)
        finally:
            os.close(place)
    raise OSError(errno.EAGAIN, "comes and goes", str(path))


def check_target(path: Path, *, force: bool) -> None:
    """Raise PdctlError (USAGE) if no file can be created at ``path``. Nothing is written yet.

    force: an existing regular file may be replaced. Links, FIFOs and devices are never replaced or written through.
    """
    try:
        _check_target(path, force=force)
    except OSError as error:
        raise PdctlError(
            f"{path} can't be written: {error.strerror}", "Give a path you may write to.", Exit.USAGE
        ) from None


def _check_target(path: Path, *, force: bool) -> None:
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    if stat.S_ISDIR(mode) or path.is_dir():
        raise PdctlError(f"{path} is a directory", "Name a file in it.", Exit.USAGE)
    if mode and not force:
        raise PdctlError(f"{path} exists", "Give --force to replace it, or another name.", Exit.USAGE)
    if mode and not stat.S_ISREG(mode):
        raise PdctlError(
            f"{path} is {describe_type(mode)}, which is neither replaced nor written through",
            "Give another name.",
            Exit.USAGE,
        )
    if not path.parent.is_dir():
        raise PdctlError(f"{path.parent} is not a directory", "Make it, or give another path.", Exit.USAGE)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PdctlError(f"{path.parent} can't be written to", "Give a path you may write to.", Exit.USAGE)


@contextmanager
def atomic_file(path: Path, *, force: bool = False, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a file for writing and reading. When the block ends it appears at ``path``, complete or not at all.

    force: as in :func:`check_target`, with the same errors. mode: permissions, reduced by the umask. Raises PdctlError: USAGE
    if something was created at ``path`` meanwhile, PARTIAL if the file can't be written, for instance on a full disk.
    """
    check_target(path, force=force)
    # Not the process's number alone: in a container the next process has the same one.
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.{os.getpid()}.part")
    try:
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            with os.fdopen(fd, "w+b") as file:
                yield file
                file.flush()
                os.fsync(fd)
            if not force:
                _claim(path, part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except FileExistsError:
        raise PdctlError(f"{path} exists", "Give --force to replace it, or another name.", Exit.USAGE) from None
    except OSError as error:
        raise PdctlError(
            f"{path} can't be written: {error.strerror or error}",
            "Nothing was left there. Is the disk full? Give a path on another one.",
            Exit.PARTIAL,
        ) from None
    _sync(path.parent)


def sweep_parts(path: Path) -> None:
    """Remove what processes that were killed had written of ``path``; none of it that may still be under way."""
    with suppress(OSError):
        for part in path.parent.iterdir():
            if part.name.startswith(f".{path.name}.") and part.suffix == ".part":
                there = part.lstat()
                old = there.st_mtime < time.time() - _LEFT_S
                if old and stat.S_ISREG(there.st_mode) and there.st_uid == os.geteuid():
                    part.unlink(missing_ok=True)


def write_new(path: Path, data: bytes, *, force: bool = False) -> None:
    """Write ``data`` to ``path``, completely or not at all. force and errors are those of :func:`atomic_file`."""
    with atomic_file(path, force=force) as file:
        file.write(data)


def _claim(path: Path, part: Path) -> None:
    """Give the file its name ``path``. Raises FileExistsError if something was created there meanwhile."""
    try:
        os.link(part, path)  # whole from its first moment on
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _sync(folder: Path) -> None:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        with suppress(OSError):  # not every file system can; the file itself is safe
            os.fsync(fd)
    finally:
        os.close(fd)


def is_folder(source: Path) -> bool:
    """Return whether ``source`` is a directory. Raises PdctlError (UNREACHABLE) if ``source`` can't be examined."""
    try:
        return stat.S_ISDIR(source.stat().st_mode)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        text = str(source)
        text = text if len(text) <= 300 else f"…{text[-200:]}"
        raise PdctlError(
            f"{text} can't be read: {why}", "Give a trace that pdctl record made, or a directory."
        ) from None
