"""Check a layout against the running interpreter: read objects of this process as if they were in another process."""

from __future__ import annotations

import array
import functools
import os
import sys
import sysconfig
import threading
from collections import OrderedDict, deque
from enum import Enum
from typing import Any

from pdctl.introspect.layouts import LAYOUTS, Layout
from pdctl.introspect.memory import BadAddressError, Memory
from pdctl.introspect.objects import Objects
from pdctl.introspect.proxy import Items, Proxy, World, modules


class _Side(Enum):
    PREFILL = "prefill"


class _Slotted:
    __slots__ = ("empty", "room", "side")

    def __init__(self) -> None:
        self.room = 2**62 + 1
        self.side = _Side.PREFILL


def _enclosing(method: Any) -> Any:
    def enclosing(self: Any) -> Any:
        return method(self)

    return enclosing


class _Derived(_Slotted):
    constant = "of the class"

    def __init__(self) -> None:
        super().__init__()
        self.text = "añ日𝄞"

    def method(self) -> str:
        return sys.version

    enclosing = _enclosing(method)


class _Text(str):
    __slots__ = ("mark",)


class _Plain:
    def __init__(self, depth: int) -> None:
        self.none = None
        self.yes, self.no = True, False
        self.numbers = [0, -1, 2**30, -(2**90), 255]
        self.real = 1.5
        self.names = ("room", "slot")
        self.table = {7: "seven", "eight": 8, (1, 2): None}
        self.rows = deque(range(200), maxlen=150)
        self.raw = b"\0\1"
        self.ids = array.array("q", range(9))
        self.tracked = {3, 4}
        self.ordered = OrderedDict(a=1, b=2)
        self.word = _Text("wide")
        self.derived = _Derived()
        if depth:
            self.inner = _Plain(depth - 1)


class _Grown(_Plain):
    def __init__(self) -> None:
        super().__init__(1)
        vars(self)["late"] = 1  # its attributes become a dict of its own
        for number in range(40):
            setattr(self, f"more{number}", number)
        del self.none


def check(layout: Layout) -> str:
    """Return which object is read wrongly with ``layout`` in this interpreter, "" if none is."""
    if layout.version != sys.version_info[:2]:
        return (
            f"this is Python {sys.version_info[0]}.{sys.version_info[1]}, not {layout.version[0]}.{layout.version[1]}"
        )
    for made in (_Plain(2), _Grown()):
        world = World(Objects(Memory(os.getpid()), layout))
        try:
            wrong = _differs(made, world.at(id(made)), "")
        except (BadAddressError, AttributeError, LookupError) as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            return f"{type(made).__name__}{wrong}"
    return ""


VERSION = sys.version_info[:2]


_once = threading.Lock()
_TRIES = 3


def own() -> str:
    """Return why this interpreter's own objects can't be read, "" when they can."""
    with _once:
        return _own()


@functools.cache
def _own() -> str:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this interpreter has no GIL"
    layout = LAYOUTS.get(sys.version_info[:2])
    if layout is None:
        return "no layout of this version"
    # Other threads of this process go on meanwhile, and may load a module: as with any process that is not stopped.
    wrong = ""
    for _ in range(_TRIES):
        wrong = check(layout)
        if not wrong:
            break
    return wrong


def _differs(here: Any, there: Any, path: str) -> str:
    if isinstance(here, _Plain | _Derived):
        if not isinstance(there, Proxy) or not modules(there.pdctl_world, there, ("sys",)):
            return f"{path}: an instance is not seen"
        for name, value in _attributes(here).items():
            wrong = _differs(value, getattr(there, name), f"{path}.{name}")
            if wrong:
                return wrong
        if hasattr(there, "empty") or (isinstance(here, _Grown) and hasattr(there, "none")):
            return f"{path}: an attribute is seen that is not there"
        if isinstance(here, _Derived):
            code = there.method.__code__
            [cell] = there.enclosing.__closure__
            named = (tuple(code.co_names), tuple(cell.cell_contents.__code__.co_names), there.method.__closure__)
            if there.constant != here.constant or named != (*[_Derived.method.__code__.co_names] * 2, None):
                return f"{path}: its class is not seen"
        return ""
    if isinstance(here, Enum):
        same: object = there.value == here.value
    elif isinstance(here, array.array):
        same = len(there) == len(here)
    elif isinstance(here, list | deque):
        same = isinstance(there, Items) and len(there) == len(here) and list(there) == list(here)
    else:
        same = there == here and (
            isinstance(here, str) or type(there) is type(here) or isinstance(here, OrderedDict | set)
        )
    return "" if same else f"{path}: {here!r} is read as {there!r}"[:200]


def _attributes(here: Any) -> dict[str, Any]:
    slots = {"room": here.room, "side": here.side} if isinstance(here, _Slotted) else {}
    return {**vars(here), **slots}
