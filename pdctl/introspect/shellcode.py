"""Machine code that starts a thread in another process and restores the thread that ran it. x86-64.

It works without further help, even if pdctl is killed. A thread pointed at it saves every register, copies the code of the new
thread to a page of its own, calls ``pthread_create``, restores every register and goes on where it was. The new thread removes
that page when it ends.
"""

from __future__ import annotations

import struct

from pdctl.introspect.memory import PAGE

_OF_THE_THREAD = (
    "pthread_self", "pthread_detach", "Py_IsInitialized", "PyGILState_Ensure", "PyRun_SimpleStringFlags",
    "PyGILState_Release", "munmap",
)  # fmt: skip
FUNCTIONS = ("pthread_create", *_OF_THE_THREAD)
STACK = 12_288 + 1024
"""Bytes of the hijacked thread's stack: room for all vector registers, and for ``pthread_create``."""
_VECTORS = 12_288
_ALIGN = 64


class _Code:
    """Machine code with references to data that follow it."""

    def __init__(self) -> None:
        self.code = bytearray()
        self._fixes: list[tuple[int, str]] = []
        self._marks: dict[str, int] = {}

    def add(self, *parts: str | bytes) -> None:
        for part in parts:
            self.code += bytes.fromhex(part) if isinstance(part, str) else part

    def relative(self, before: str, name: str) -> None:
        """Add an instruction that ends in the 32-bit distance to ``name``."""
        self.add(before, b"\0\0\0\0")
        self._fixes.append((len(self.code), name))

    def mark(self, name: str) -> None:
        self._marks[name] = len(self.code)

    def value(self, name: str, number: int) -> None:
        self.mark(name)
        self.add(struct.pack("<Q", number & (1 << 64) - 1))

    def done(self) -> bytes:
        for end, name in self._fixes:
            self.code[end - 4 : end] = struct.pack("<i", self._marks[name] - end)
        return bytes(self.code)


def build(functions: dict[str, int], source: bytes, *, rip: int, rsp: int, vectors: bool) -> bytes:
    """Return the code. The hijacked thread starts at its first instruction, with ``rsp`` below the red zone.

    source: Python that the new thread runs with the GIL, once it gets it. rip, rsp: where the hijacked thread goes on.
    vectors: the processor has ``xsave``; without it the older ``fxsave`` is used.
    """
    thread = _thread(functions, source)
    size = struct.pack("<I", (len(thread) + PAGE - 1) & ~(PAGE - 1))
    code = _Code()
    # All registers onto the stack. rax is what the kernel would have put there.
    code.add("9c 50 53 51 52 56 57 55 41 50 41 51 41 52 41 53 41 54 41 55 41 56 41 57")
    code.add("fc 48 89 e5")  # cld; mov rbp, rsp
    code.add("48 81 ec", struct.pack("<i", _VECTORS + _ALIGN), "48 83 e4 c0")  # sub rsp, …; and rsp, -64
    if vectors:
        code.add("31 c0 b9 08 00 00 00 48 8d bc 24 00 02 00 00 f3 48 ab")  # zero the 64 bytes of xsave's header
        code.add("b8 ff ff ff ff ba ff ff ff ff 0f ae 24 24")  # xsave [rsp]
    else:
        code.add("0f ae 04 24")  # fxsave [rsp]
    # Into r12, by mmap: private memory to read and write, for all that the new thread runs.
    code.add("b8 09 00 00 00 31 ff be", size, "ba 03 00 00 00 41 ba 22 00 00 00 49 c7 c0 ff ff ff ff 45 31 c9 0f 05")
    code.add("49 89 c4 48 3d 00 f0 ff ff")  # cmp rax, -4096
    code.relative("0f 87", "restore")  # no memory: nothing happens
    code.relative("48 8d 35", "thread")
    code.add("4c 89 e7 b9", struct.pack("<I", len(thread)), "f3 a4")  # copy it there
    code.add("b8 0a 00 00 00 4c 89 e7 be", size, "ba 05 00 00 00 0f 05")  # mprotect(r12, size, READ | EXEC)
    code.add("48 89 e3 48 83 ec 40")  # mov rbx, rsp; sub rsp, 64
    code.add("48 8d 3c 24 31 f6 4c 89 e2 4c 89 e1")  # (its name's place, no attributes, r12, r12)
    code.relative("ff 15", "pthread_create")
    code.add("48 89 dc")  # mov rsp, rbx
    code.mark("restore")
    if vectors:
        code.add("b8 ff ff ff ff ba ff ff ff ff 0f ae 2c 24")  # xrstor [rsp]
    else:
        code.add("0f ae 0c 24")  # fxrstor [rsp]
    code.add("48 89 ec")  # mov rsp, rbp
    code.add("41 5f 41 5e 41 5d 41 5c 41 5b 41 5a 41 59 41 58 5d 5f 5e 5a 59 5b 58 9d")
    code.relative("48 8b 25", "rsp")  # mov rsp, its own
    code.relative("ff 25", "rip")  # jmp to where it was
    code.add(b"\xcc" * (-len(code.code) % 8))
    code.value("rip", rip)
    code.value("rsp", rsp)
    code.value("pthread_create", functions["pthread_create"])
    code.mark("thread")
    code.add(thread)
    return code.done()


def _thread(functions: dict[str, int], source: bytes) -> bytes:
    """Return what the new thread runs: it is called with the address that this was copied to."""
    code = _Code()
    code.add("53 41 54 48 83 ec 08 49 89 fc")  # push rbx, r12; sub rsp, 8; mov r12, rdi
    code.relative("ff 15", "pthread_self")
    code.add("48 89 c7")  # nobody will join it
    code.relative("ff 15", "pthread_detach")
    code.relative("ff 15", "Py_IsInitialized")
    code.add("85 c0")
    code.relative("0f 84", "over")
    code.relative("ff 15", "PyGILState_Ensure")
    code.add("89 c3")
    code.relative("48 8d 3d", "source")
    code.add("31 f6")
    code.relative("ff 15", "PyRun_SimpleStringFlags")
    code.add("89 df")
    code.relative("ff 15", "PyGILState_Release")
    code.mark("over")
    # munmap(r12, size) as the last thing: it returns to where this would have.
    code.add("4c 89 e7 be")
    sized = len(code.code)
    code.add(b"\0\0\0\0", "48 83 c4 08 41 5c 5b")
    code.relative("ff 25", "munmap")
    code.add(b"\xcc" * (-len(code.code) % 8))
    for name in _OF_THE_THREAD:
        code.value(name, functions[name])
    code.mark("source")
    code.add(source, b"\0")
    code.code[sized : sized + 4] = struct.pack("<I", (len(code.code) + PAGE - 1) & ~(PAGE - 1))
    return code.done()
