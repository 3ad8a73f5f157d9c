"""The file of a recording, as its rank writes it: by calls that can fail, never by stores into a mapping.

If another process truncates a mapped file, a store into the mapping ends this process by SIGBUS. A write call returns an
error instead: the recording stops, and the engine goes on. Written data is in the kernel's page cache and outlives the process.

The calls keep the GIL. They take less than a microsecond, and a scheduler that releases the GIL may wait milliseconds for
it. Standard library only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import weakref
from collections.abc import Callable

_LIBC = ctypes.PyDLL(None)
_put = _LIBC["pwrite"]
_put.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long]
_put.restype = ctypes.c_ssize_t
_put_prepared = _LIBC["pwrite"]  # for arguments that are C values already, which is a third faster
_put_prepared.restype = ctypes.c_ssize_t

_LOOK_EVERY = 256
"""Writes of a window after which the file is looked at, a few times a second in a rank that polls."""
_HIGH = 900
"""Descriptors from here on are not given to what the engine opens next, should it close what it does not know."""
_BLOCK = 512  # bytes in a unit of st_blocks, whatever the file system


class Store:
    """One file of ``size`` bytes, open for reading and writing at ``fd``. This object owns ``fd`` from now on.

    farewell: (offset, bytes), written if possible when an error stops the writing. stopped: called once with the reason when
    that happens; it must not raise. reason: the same reason, "" while writing works.
    """

    def __init__(self, fd: int, size: int, farewell: tuple[int, bytes]) -> None:
        self.size = size
        self.reason = ""
        self.stopped: Callable[[str], None] | None = None
        self._farewell = farewell
        self._fd = fd
        self._out = ctypes.c_int(fd)  # -1 once nothing is written any more; all that write share it
        found = os.fstat(fd)
        self._file = (found.st_dev, found.st_ino)
        self._reserved = found.st_blocks * _BLOCK >= size
        _stores.add(self)

    def __del__(self) -> None:
        self.end()
        if self._fd >= 0:
            os.close(self._fd)

    def put(self, offset: int, data: bytes) -> None:
        """Write ``data`` at ``offset``. Never raises. If the write fails, writing stops."""
        if _put(self._out, data, len(data), offset) != len(data):
            self._failed(offset, data)

    def window(self, offset: int, buffer: bytearray) -> Callable[[], None]:
        """Return a function that writes the current content of ``buffer`` at ``offset``. That function never raises."""
        held = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        length = len(buffer)
        out, start, count, at = (
            self._out,
            ctypes.c_void_p(ctypes.addressof(held)),
            ctypes.c_size_t(length),
            ctypes.c_long(offset),
        )
        put = _put_prepared
        looks = 0

        def write(held: object = held) -> None:  # noqa: ARG001  # what is written stays where it is
            nonlocal looks
            if put(out, start, count, at) != length:
                self._failed(offset, bytes(buffer))
            looks += 1
            if looks == _LOOK_EVERY:
                looks = 0
                self.look()

        return write

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file, fewer where it ends, none in a child of the rank. Raises OSError."""
        return os.pread(self._fd, length, offset) if self._fd >= 0 else b""

    def look(self) -> None:
        """Stop writing if the file was truncated, got holes, or is no longer open at this descriptor.

        Never raises. A removed or renamed file is still written: clients can read it through the control socket.
        """
        if self._out.value < 0:
            return
        try:
            found = os.fstat(self._fd)
        except OSError as error:
            self.stop(error.strerror or str(error))
            return
        if (found.st_dev, found.st_ino) != self._file:
            self._fd = -1  # the engine closed it, and has opened something else there
            self.stop("its descriptor was closed")
        elif found.st_size < self.size:
            self.stop(f"somebody cut its file off at {found.st_size} of {self.size} bytes")
        elif self._reserved and found.st_blocks * _BLOCK < self.size:
            self.stop("somebody took blocks out of its file")

    def stop(self, reason: str) -> None:
        """Stop writing, and report the reason to the ``stopped`` callback. Never raises."""
        if self._out.value < 0:
            return
        self._out.value = -1
        self.reason = reason
        offset, data = self._farewell
        try:
            if self._fd >= 0 and os.fstat(self._fd).st_size == self.size:
                os.pwrite(self._fd, data, offset)
        except OSError:
            pass
        if self.stopped is not None:
            self.stopped(reason)

    def end(self) -> None:
        """Stop writing. The file can still be read."""
        self._out.value = -1

    def forked(self) -> None:
        """Release the file in a forked child: it belongs to the parent."""
        self.end()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _failed(self, offset: int, data: bytes) -> None:
        """Repeat a write that failed or was incomplete. If it fails again, stop with the reason."""
        if self._out.value < 0:
            return
        try:
            while data:
                done = os.pwrite(self._fd, data, offset)
                if not done:
                    self.stop("nothing can be written to its file")
                    return
                offset, data = offset + done, data[done:]
        except OSError as error:
            self.stop(error.strerror or str(error))


def out_of_the_way(fd: int) -> int:
    """Move ``fd`` to a high descriptor number and return that; return ``fd`` itself if this fails.

    Some libraries close all descriptors when they start a daemon. The engine must not get this number for a file of its own.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft <= _HIGH:
        return fd
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:
        return fd
    os.close(fd)
    return high


def survive_file_limits() -> None:
    """Ensure that a write beyond RLIMIT_FSIZE is an error and does not end the process. Python does this at its start.

    Raises OSError if the signal has its default action and can't be ignored from here.
    """
    if signal.getsignal(signal.SIGXFSZ) is not signal.SIG_DFL:
        return
    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    except ValueError:
        raise OSError("SIGXFSZ would end this process, and only its main thread can ignore it") from None


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _forked() -> None:
    for store in list(_stores):
        store.forked()
    _stores.clear()


os.register_at_fork(after_in_child=_forked)
