"""The memory layout of CPython's objects: 64-bit builds with a GIL, 3.10 to 3.13. Offsets in bytes.

Source: ``Include/cpython`` and ``Include/internal`` of those versions. :mod:`pdctl.introspect.selftest` checks them against
the running interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass

LONG, LIST, TUPLE, BYTES, STR, DICT = (1 << bit for bit in (24, 25, 26, 27, 28, 29))
TYPE = 1 << 31
"""``Py_TPFLAGS_*_SUBCLASS``."""
HEAP_TYPE = 1 << 9
INLINE_VALUES = 1 << 2
MANAGED_DICT = 1 << 4
OBJECT_MEMBERS = (6, 16)
"""``T_OBJECT`` and ``T_OBJECT_EX``: a slot that holds a reference (``__slots__``)."""


@dataclass(frozen=True)
class Layout:
    """One minor version.

    compact: offsets of the characters of a str that fits its header, ASCII and other. wide: of the pointer to them, for
    those that do not (instances of subclasses). tagged_int: the size of an int is shifted by three bits. keys_log2: a
    table of dict keys gives its size as a power of two. managed: how an instance of a class without ``__slots__`` keeps
    its attributes: "" (a dict at tp_dictoffset), ``pair`` (values and dict before the object), ``tagged`` (either, told by
    the lowest bit), ``inline`` (values after the object). values: offset of the first value in a block of them.
    cached_keys: offset of ht_cached_keys. function: offsets of a function's code, globals
    and closure; code: of its consts, names.
    """

    version: tuple[int, int]
    compact: tuple[int, int]
    wide: int
    tagged_int: bool
    keys_log2: bool
    managed: str
    values: int
    cached_keys: int
    function: tuple[int, int, int]
    code: tuple[int, int]


LAYOUTS = {
    layout.version: layout
    for layout in (
        Layout((3, 10), (48, 72), 72, False, False, "", 0, 872, (48, 16, 72), (56, 64)),
        Layout((3, 11), (48, 72), 72, False, True, "pair", 0, 872, (48, 16, 72), (24, 32)),
        Layout((3, 12), (40, 56), 56, True, True, "tagged", 0, 880, (48, 16, 72), (24, 32)),
        Layout((3, 13), (40, 56), 56, True, True, "inline", 8, 880, (48, 16, 72), (24, 32)),
    )
}
OLDEST, NEWEST = min(LAYOUTS), max(LAYOUTS)
