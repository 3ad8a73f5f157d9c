"""CPython's objects by their addresses: types, numbers, strings, containers, attributes. Nothing is called, only read."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from pdctl.introspect import layouts
from pdctl.introspect.layouts import Layout
from pdctl.introspect.memory import BadAddressError, Memory

MAX_ITEMS = 1 << 22
MAX_TEXT = 1 << 20
_DIGIT_BITS = 30
_DEQUE_BLOCK = 64


class Objects:
    """One process's objects. What concerns its classes is kept for as long as this lives."""

    def __init__(self, memory: Memory, layout: Layout) -> None:
        self.memory = memory
        self.layout = layout
        self._names: dict[int, str] = {}
        self._flags: dict[int, int] = {}
        self._mros: dict[int, tuple[int, ...]] = {}
        self._members: dict[int, dict[str, int]] = {}
        self._dicts: dict[int, dict[str, int]] = {}

    # ---- words -------------------------------------------------------------------------------------------------------

    def word(self, address: int) -> int:
        """Return the 64-bit unsigned number at ``address``."""
        return int.from_bytes(self.memory.read(address, 8), "little")

    def _signed(self, address: int) -> int:
        return int.from_bytes(self.memory.read(address, 8), "little", signed=True)

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """Return ``count`` such numbers."""
        if not 0 <= count <= MAX_ITEMS:
            raise BadAddressError(f"{count} items at {address:#x}")
        return struct.unpack(f"<{count}Q", self.memory.read(address, 8 * count)) if count else ()

    def _text(self, address: int) -> str:
        found = b""
        while len(found) < 200 and b"\0" not in found:
            at = address + len(found)
            found += self.memory.read(at, min(64, 4096 - at % 4096))
        return found.split(b"\0")[0].decode("utf-8", "replace")

    # ---- types -------------------------------------------------------------------------------------------------------

    def type_of(self, address: int) -> int:
        """Return the address of an object's type."""
        return self.word(address + 8)

    def type_name(self, kind: int) -> str:
        """Return ``tp_name``: with its module for types that are written in C, without for others."""
        name = self._names.get(kind)
        if name is None:
            name = self._names[kind] = self._text(self.word(kind + 24))
        return name

    def flags(self, kind: int) -> int:
        """Return ``tp_flags``."""
        found = self._flags.get(kind)
        if found is None:
            found = self._flags[kind] = self.word(kind + 168)
        return found

    def mro(self, kind: int) -> tuple[int, ...]:
        """Return the addresses of a type and its bases, in the order in which attributes are looked up."""
        found = self._mros.get(kind)
        if found is None:
            found = self._mros[kind] = self.items(self.word(kind + 344))
        return found

    def type_dict(self, kind: int) -> dict[str, int]:
        """Return name → address of what a class written in Python defines itself; {} for one written in C."""
        found = self._dicts.get(kind)
        if found is None:
            heap = self.flags(kind) & layouts.HEAP_TYPE
            found = self._named(self.pairs(self.word(kind + 264))) if heap else {}
            self._dicts[kind] = found
        return found

    def _slots(self, kind: int) -> dict[str, int]:
        """Return name → offset of the ``__slots__`` of a class and its bases."""
        found = self._members.get(kind)
        if found is None:
            found = {}
            for base in self.mro(kind):
                for name, value in self.type_dict(base).items():
                    if self.type_name(self.type_of(value)) == "member_descriptor":
                        member = self.word(value + 40)
                        sort = int.from_bytes(self.memory.read(member + 8, 4), "little", signed=True)
                        if sort in layouts.OBJECT_MEMBERS:
                            found.setdefault(name, self.word(member + 16))
            self._members[kind] = found
        return found

    # ---- values ------------------------------------------------------------------------------------------------------

    def integer(self, address: int) -> int:
        """Return the value of an int, or of an instance of a subclass of it."""
        tag = self._signed(address + 16)
        if self.layout.tagged_int:
            count, negative = (tag & (1 << 64) - 1) >> 3, tag & 3 == 2
        else:
            count, negative = abs(tag), tag < 0
        if count > 1024:
            raise BadAddressError(f"an int of {count} digits at {address:#x}")
        digits = struct.unpack(f"<{count}I", self.memory.read(address + 24, 4 * count))
        value: int = sum(digit << (_DIGIT_BITS * n) for n, digit in enumerate(digits))
        return -value if negative else value

    def real(self, address: int) -> float:
        """Return the value of a float."""
        return float(struct.unpack("<d", self.memory.read(address + 16, 8))[0])

    def string(self, address: int) -> str:
        """Return a str, of MAX_TEXT characters at most."""
        length = min(self.word(address + 16), MAX_TEXT)
        state = int.from_bytes(self.memory.read(address + 32, 4), "little")
        kind, compact, ascii_only = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        coding = {1: "ascii" if ascii_only else "latin-1", 2: "utf-16-le", 4: "utf-32-le"}.get(kind)
        if coding is None:
            raise BadAddressError(f"a str of kind {kind} at {address:#x}")
        if compact:
            start = address + self.layout.compact[0 if ascii_only else 1]
        else:
            start = self.word(address + self.layout.wide)
        return self.memory.read(start, length * kind).decode(coding, "replace")

    def binary(self, address: int) -> bytes:
        """Return a bytes object, its first MAX_TEXT at most."""
        return self.memory.read(address + 32, min(self.word(address + 16), MAX_TEXT))

    # ---- containers --------------------------------------------------------------------------------------------------

    def count(self, address: int) -> int:
        """Return ``ob_size``: how many items a list, tuple, deque or array has."""
        return self.word(address + 16)

    def items(self, address: int) -> tuple[int, ...]:
        """Return the addresses of what is in a list, a tuple or a deque."""
        kind = self.type_of(address)
        flags, count = self.flags(kind), self.count(address)
        if flags & layouts.LIST:
            return self.words(self.word(address + 24), count)
        if flags & layouts.TUPLE:
            return self.words(address + 24, count)
        if any(self.type_name(base) == "collections.deque" for base in self.mro(kind)):
            return self._deque(address, count)
        raise BadAddressError(f"a {self.type_name(kind)} at {address:#x} is no sequence")

    def _deque(self, address: int, count: int) -> tuple[int, ...]:
        if count > MAX_ITEMS:
            raise BadAddressError(f"{count} items at {address:#x}")
        block, index = self.word(address + 24), self.word(address + 40)
        found: list[int] = []
        while len(found) < count:
            if index >= _DEQUE_BLOCK:
                raise BadAddressError(f"a deque at {address:#x}")
            here = min(_DEQUE_BLOCK - index, count - len(found))
            found += self.words(block + 8 + 8 * index, here)
            block, index = self.word(block + 8 + 8 * _DEQUE_BLOCK), 0
        return tuple(found)

    def pairs(self, address: int) -> list[tuple[int, int]]:
        """Return the addresses of keys and values of a dict, in its order."""
        keys, values = self._keys(self.word(address + 32)), self.word(address + 40)
        return self._filled(keys, values) if values else [(key, value) for key, value in keys if key and value]

    def _filled(self, keys: list[tuple[int, int]], block: int) -> list[tuple[int, int]]:
        values = self.words(block + self.layout.values, len(keys))
        return [(key, value) for (key, _), value in zip(keys, values, strict=True) if key and value]

    def _keys(self, address: int) -> list[tuple[int, int]]:
        """Return (key, value) of each entry in a table of keys; a table that instances share has no values."""
        if not self.layout.keys_log2:
            size, used = self.word(address + 8), self.word(address + 32)
            indices = size * (1 if size <= 0xFF else 2 if size <= 0xFFFF else 4)
            return self._entries(address + 40 + indices, used, hashes=True)
        _, indices_log2, kind = self.memory.read(address + 8, 3)
        if indices_log2 > 40:
            raise BadAddressError(f"a dict's keys at {address:#x}")
        return self._entries(address + 32 + (1 << indices_log2), self.word(address + 24), hashes=kind == 0)

    def _entries(self, address: int, count: int, *, hashes: bool) -> list[tuple[int, int]]:
        width = 3 if hashes else 2
        if count > MAX_ITEMS:
            raise BadAddressError(f"a dict of {count} entries at {address:#x}")
        found = self.words(address, width * count)
        return list(zip(found[width - 2 :: width], found[width - 1 :: width], strict=True))

    # ---- attributes --------------------------------------------------------------------------------------------------

    def attributes(self, address: int) -> dict[str, int]:
        """Return name → address of an instance's own attributes: of its dict and its slots."""
        kind = self.type_of(address)
        found = {}
        for name, offset in self._slots(kind).items():
            value = self.word(address + offset)
            if value:
                found[name] = value
        found.update(self._named(self._instance_dict(address, kind)))
        return found

    def _instance_dict(self, address: int, kind: int) -> list[tuple[int, int]]:
        flags, managed = self.flags(kind), self.layout.managed
        if not managed or not flags & layouts.MANAGED_DICT:
            offset = self._signed(kind + 288)
            there = self.word(address + offset) if offset > 0 else 0
            return self.pairs(there) if there else []
        values = there = 0
        if managed == "pair":
            values, there = self.word(address - 32), self.word(address - 24)
        elif managed == "tagged":
            either = self.word(address - 24)
            values, there = (either + 1, 0) if either & 1 else (0, either)
        else:
            there = self.word(address - 24)
            if not there and flags & layouts.INLINE_VALUES:
                values = address + self.word(kind + 32)
        if values:
            return self._filled(self._keys(self.word(kind + self.layout.cached_keys)), values)
        return self.pairs(there) if there else []

    def module_dict(self, address: int) -> dict[str, int]:
        """Return name → address of what a module holds."""
        return self._named(self.pairs(self.word(address + 16)))

    def named(self, address: int) -> dict[str, int]:
        """Return name → address of a dict whose keys are strings; other keys are left out."""
        return self._named(self.pairs(address))

    def _named(self, pairs: Iterable[tuple[int, int]]) -> dict[str, int]:
        return {self.string(key): value for key, value in pairs if self.flags(self.type_of(key)) & layouts.STR}
