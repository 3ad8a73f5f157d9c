"""Another process's memory, page by page, by ``process_vm_readv``: the process is not stopped and does not notice."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Sequence

PAGE = 4096
MAX_READ = 64 << 20
"""No object that is read here is larger; what says so has been read wrongly."""
_LOWEST, _HIGHEST = 1 << 16, 1 << 56
_AT_ONCE = 1024  # the kernel's UIO_MAXIOV


class BadAddressError(Exception):
    """An address is not mapped, or its content is not the expected object: the memory changed meanwhile."""


class NotPermittedError(Exception):
    """The kernel does not let this process read the other one's memory."""


class GoneError(Exception):
    """The process has ended."""


class IoVec(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _readv(library: ctypes.CDLL) -> ctypes._NamedFuncPointer:
    function = library.process_vm_readv
    function.restype = ctypes.c_ssize_t
    function.argtypes = [
        ctypes.c_int,
        ctypes.POINTER(IoVec),
        ctypes.c_ulong,
        ctypes.POINTER(IoVec),
        ctypes.c_ulong,
        ctypes.c_ulong,
    ]
    return function


_libc = ctypes.CDLL(None, use_errno=True)
_process_vm_readv = _readv(_libc)
_readv_with_gil = _readv(ctypes.PyDLL(None, use_errno=True))


class Memory:
    """The memory of one process. Pages are read once and kept until :meth:`forget`. pid: of its main thread.

    reads: how many times the kernel was asked.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.reads = 0
        self._pages: dict[int, bytes] = {}

    @property
    def pages(self) -> list[int]:
        """Addresses of the pages that were read."""
        return sorted(self._pages)

    def forget(self) -> None:
        """Forget all pages: later reads read them again."""
        self._pages.clear()

    def put(self, pages: dict[int, bytes]) -> None:
        """Take the content of these pages as given."""
        self._pages.update(pages)

    def read(self, address: int, length: int) -> bytes:
        """Return ``length`` bytes. Raises BadAddressError, NotPermittedError, GoneError."""
        if not (_LOWEST <= address < _HIGHEST and 0 <= length <= MAX_READ):
            raise BadAddressError(f"{length} bytes at {address:#x}")
        page, offset = address & ~(PAGE - 1), address & (PAGE - 1)
        if offset + length <= PAGE:
            return self._page(page)[offset : offset + length]
        last = (address + length - 1) & ~(PAGE - 1)
        self._load([p for p in range(page, last + PAGE, PAGE) if p not in self._pages])
        whole = b"".join(self._pages[p] for p in range(page, last + PAGE, PAGE))
        return whole[offset : offset + length]

    def _page(self, page: int) -> bytes:
        found = self._pages.get(page)
        if found is None:
            self._load([page])
            found = self._pages[page]
        return found

    def _load(self, pages: Sequence[int]) -> None:
        for start in range(0, len(pages), _AT_ONCE):
            part = pages[start : start + _AT_ONCE]
            copy = Bulk(part)
            self.reads += 1
            got = copy.read(self.pid)
            if got != len(part):
                raise BadAddressError(f"nothing is mapped at {part[max(got, 0)]:#x}")
            self._pages.update(copy.pages())


class Bulk:
    """A fast copy of many pages: one system call for a thousand pages, into memory that was allocated and touched before."""

    def __init__(self, pages: Iterable[int]) -> None:
        self._wanted = list(pages)
        size = PAGE * len(self._wanted)
        self._buffer = ctypes.create_string_buffer(size)
        ctypes.memset(self._buffer, 1, size)  # no page fault of our own while the other process stands
        base = ctypes.addressof(self._buffer)
        self._parts: list[tuple[IoVec, ctypes.Array[IoVec], int]] = []
        for start in range(0, len(self._wanted), _AT_ONCE):
            part = self._wanted[start : start + _AT_ONCE]
            here = IoVec(base + PAGE * start, PAGE * len(part))
            self._parts.append((here, (IoVec * len(part))(*[IoVec(p, PAGE) for p in part]), len(part)))
        self._got = 0

    def read(self, pid: int, *, keep_gil: bool = False) -> int:
        """Copy the pages and return how many there are, fewer than asked for where one is not mapped.

        keep_gil: no other thread of this process runs meanwhile. Raises NotPermittedError, GoneError.
        """
        call = _readv_with_gil if keep_gil else _process_vm_readv
        self._got = 0
        for here, there, count in self._parts:
            done = call(pid, ctypes.byref(here), 1, there, count, 0)
            if done < 0:
                code = ctypes.get_errno()
                if code == errno.EPERM:
                    raise NotPermittedError(os.strerror(code))
                if code == errno.ESRCH:
                    raise GoneError("process has ended")
                if code != errno.EFAULT:
                    raise OSError(code, f"process_vm_readv: {os.strerror(code)}")
                done = 0
            self._got += done // PAGE
            if done != PAGE * count:
                break
        return self._got

    def pages(self) -> dict[int, bytes]:
        """Return what was copied."""
        raw = self._buffer.raw
        return {page: raw[PAGE * n : PAGE * (n + 1)] for n, page in enumerate(self._wanted[: self._got])}
