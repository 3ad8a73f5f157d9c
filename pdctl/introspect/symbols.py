"""Find the addresses of functions, and unused space for code, in another process, from its mapped ELF files."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pdctl.introspect.memory import PAGE
from pdctl.protocol.files import read_regular

_MAX_FILE = 1 << 30
_MAGIC = b"\x7fELF\x02\x01"
_EM_X86_64 = 62
_PT_LOAD, _SHT_SYMTAB, _SHT_DYNSYM = 1, 2, 11
_PROGRAM, _SECTION, _SYMBOL = struct.Struct("<IIQQQQQQ"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")


class NotFoundError(Exception):
    """A function, or room for code, is not there, in words."""


@dataclass(frozen=True)
class Mapped:
    """A part of a file mapped into a process. rights as in ``/proc/PID/maps``; offset: in the file."""

    start: int
    end: int
    rights: str
    offset: int
    path: str


def mapped(pid: int) -> Iterator[Mapped]:
    """Yield the mapped files of a process, in the order of their addresses. Raises OSError."""
    for line in Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").splitlines():
        span, rights, offset, _, _, *path = line.split(None, 5)
        if path and path[0].startswith("/"):
            start, _, end = span.partition("-")
            yield Mapped(int(start, 16), int(end, 16), rights, int(offset, 16), path[0])


def addresses(pid: int, wanted: Iterable[str]) -> dict[str, int]:
    """Return where these functions are in a process, looked for in its Python and its C library. Raises NotFoundError."""
    missing = list(dict.fromkeys(wanted))
    found: dict[str, int] = {}
    program = os.fspath(Path(f"/proc/{pid}/exe").readlink())
    bases: dict[str, int] = {}
    for part in mapped(pid):
        if part.offset == 0:
            bases.setdefault(part.path, part.start)
    for path in sorted(bases, key=lambda path: _order(path, program)):
        name = Path(path).name
        if path != program and not name.startswith(("libpython", "libc.so", "libc-", "libpthread", "ld-musl")):
            continue
        try:
            data = read_regular(_file(pid, path, program), _MAX_FILE, follow=True)
            there = _Elf(data).functions(missing)
        except (OSError, ValueError, struct.error):
            continue
        found.update({name: bases[path] + value for name, value in there.items()})
        missing = [name for name in missing if name not in found]
        if not missing:
            return found
    if not any(name.startswith("Py") for name in found):
        raise NotFoundError("it is no Python process, or one that does not show where its functions are")
    raise NotFoundError(f"its Python and its C library do not show where {', '.join(missing)} is")


def _order(path: str, program: str) -> tuple[int, str]:
    return (0 if path == program else 1 if "libpython" in path else 2, path)


def _file(pid: int, path: str, program: str) -> Path:
    return Path(f"/proc/{pid}/exe") if path == program else Path(f"/proc/{pid}/root{path}")


class _Elf:
    """A 64-bit little-endian ELF file for x86-64. Raises ValueError for any other."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != _MAGIC or int.from_bytes(data[18:20], "little") != _EM_X86_64:
            raise ValueError("no ELF file for x86-64")
        self._data = data
        programs, sections = struct.unpack_from("<QQ", data, 32)
        program_count, _, section_count = struct.unpack_from("<HHH", data, 56)
        headers = [_PROGRAM.unpack_from(data, programs + n * _PROGRAM.size) for n in range(program_count)]
        loads = [header[3] for header in headers if header[0] == _PT_LOAD]
        self._first = min(loads, default=0) & ~(PAGE - 1)
        self._sections = [_SECTION.unpack_from(data, sections + n * _SECTION.size) for n in range(section_count)]

    def functions(self, names: Iterable[str]) -> dict[str, int]:
        """Return the distance of these symbols from where the file is mapped; those that are not in it are left out."""
        wanted = {name.encode(): name for name in names}
        found: dict[str, int] = {}
        for _, kind, _, _, offset, size, link, *_ in self._sections:
            if kind not in (_SHT_DYNSYM, _SHT_SYMTAB):
                continue
            strings = self._sections[link]
            text = self._data[strings[4] : strings[4] + strings[5]]
            for name, _, _, section, value, _ in _SYMBOL.iter_unpack(self._data[offset : offset + size]):
                if section and value:
                    symbol = wanted.get(text[name : text.find(b"\0", name)])
                    if symbol is not None:
                        found.setdefault(symbol, value - self._first)
        return found


def room(pid: int, length: int) -> int:
    """Return the address of ``length`` unused bytes at the end of some library's code. Raises NotFoundError, OSError.

    The last page of a library's code goes on after the code to the page's end; nothing runs or reads that.
    """
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for part in mapped(pid):
            if "x" not in part.rights or part.end - part.start < 2 * PAGE or "(deleted)" in part.path:
                continue
            try:
                page = os.pread(fd, PAGE, part.end - PAGE)
            except OSError:
                continue
            used = len(page.rstrip(b"\0"))
            start = (used + 15 + 16) & ~15  # not right behind what may be read as a whole by vector code
            if len(page) == PAGE and start + length <= PAGE:
                return part.end - PAGE + start
    finally:
        os.close(fd)
    raise NotFoundError(f"none of its libraries has {length} bytes of room at the end of its code")
