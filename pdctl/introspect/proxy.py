"""Proxies for objects of another process. With them the engine's readers work from outside as they do inside a rank.

A proxy has the attributes of its object. Their values are Python's own numbers, strings, None, lists and dicts, and proxies for
everything else. Nothing can be called. Properties and methods are missing: they raise AttributeError, which readers take as
"this engine lacks it".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, overload

from pdctl.introspect import layouts
from pdctl.introspect.objects import Objects

_CODE = ("property", "cached_property", "functools.cached_property", "getset_descriptor", "member_descriptor",
         "method_descriptor", "wrapper_descriptor", "classmethod", "enum.property", "types.DynamicClassAttribute",
         "DynamicClassAttribute")  # fmt: skip
_TENSORS = ("Tensor", "torch.Tensor", "Parameter")


class World:
    """One sample of one process. The same object has the same proxy throughout."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self._known: dict[int, Any] = {}

    def at(self, address: int) -> Any:
        """Return the object at ``address``: a value, or a proxy."""
        known = self._known.get(address)
        if known is None:
            known = self._make(address)
            self._known[address] = known
        return known

    def _make(self, address: int) -> Any:
        objects = self.objects
        kind = objects.type_of(address)
        flags, name = objects.flags(kind), objects.type_name(kind)
        if name == "NoneType":
            return None
        if name == "bool":
            return bool(objects.integer(address))
        if flags & layouts.LONG:
            return objects.integer(address)
        if name == "float":
            return objects.real(address)
        if flags & layouts.STR:
            return objects.string(address)
        if flags & layouts.BYTES:
            return objects.binary(address)
        if flags & layouts.DICT:
            return {self.at(key): self.at(value) for key, value in objects.pairs(address)}
        if flags & layouts.TUPLE:
            return tuple(map(self.at, objects.items(address)))
        if flags & layouts.LIST or name == "collections.deque":
            return Items(self, address)
        if name == "array.array":
            return Numbers(objects.count(address))
        if name in ("set", "frozenset"):
            return self._set(address)
        if name == "module":
            return Module(self, address)
        if name == "function":
            return Function(self, address)
        if name == "code":
            return Code(self, address)
        if name == "cell":
            return Cell(self, address)
        if flags & layouts.TYPE:
            return Class(self, address)
        return Proxy(self, address)

    def _set(self, address: int) -> frozenset[Any]:
        # PySetObject: fill, used, mask, table of (key, hash); a removed entry's hash is -1
        mask, table = self.objects.word(address + 32), self.objects.word(address + 40)
        entries = self.objects.words(table, 2 * (mask + 1))
        gone = (1 << 64) - 1
        filled = zip(entries[::2], entries[1::2], strict=True)
        return frozenset(self.at(key) for key, number in filled if key and number != gone)


class Proxy:
    """An instance. Equal to itself only."""

    __slots__ = ("pdctl_address", "pdctl_own", "pdctl_world")  # names that no engine uses

    def __init__(self, world: World, address: int) -> None:
        self.pdctl_world = world
        self.pdctl_address = address
        self.pdctl_own: dict[str, int] | None = None

    def __getattr__(self, name: str) -> Any:
        world, address = self.pdctl_world, self.pdctl_address
        own = self.pdctl_own
        if own is None:
            own = self.pdctl_own = world.objects.attributes(address)
        found = own.get(name)
        if found is None and f"_{name}_" in own:
            found = own[f"_{name}_"]  # an Enum's member keeps its value and its name so
        if found is not None:
            return world.at(found)
        return _of_class(world, world.objects.type_of(address), name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Its class in the other process, for readers that ask an object for its class."""
        return Class(self.pdctl_world, self.pdctl_world.objects.type_of(self.pdctl_address))

    def __dir__(self) -> list[str]:
        return sorted(attributes_of(self))

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{type_name(self)} at {self.pdctl_address:#x}>"


class Class(Proxy):
    """A class: its attributes are those that it and its bases define."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name == "__name__":
            return self.pdctl_world.objects.type_name(self.pdctl_address).rpartition(".")[2]
        return _of_class(self.pdctl_world, self.pdctl_address, name)


class Module(Proxy):
    """A module."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        own = self.pdctl_own
        if own is None:
            own = self.pdctl_own = self.pdctl_world.objects.module_dict(self.pdctl_address)
        if name not in own:
            raise AttributeError(name)
        return self.pdctl_world.at(own[name])


class Function(Proxy):
    """A function: its code, its globals, and the cells of what it encloses, None for none."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        code, names, closure = self.pdctl_world.objects.layout.function
        offset = {"__code__": code, "__globals__": names, "__closure__": closure}.get(name)
        if offset is None:
            raise AttributeError(name)
        there = self.pdctl_world.objects.word(self.pdctl_address + offset)
        return self.pdctl_world.at(there) if there else None

    @property
    def globals(self) -> dict[str, int]:
        """Name → address of what is in the function's module."""
        offset = self.pdctl_world.objects.layout.function[1]
        named: dict[str, int] = self.pdctl_world.objects.named(
            self.pdctl_world.objects.word(self.pdctl_address + offset)
        )
        return named


class Code(Proxy):
    """A function's code: the constants and the names in it."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        consts, names = self.pdctl_world.objects.layout.code
        offset = {"co_consts": consts, "co_names": names}.get(name)
        if offset is None:
            raise AttributeError(name)
        return self.pdctl_world.at(self.pdctl_world.objects.word(self.pdctl_address + offset))


class Cell(Proxy):
    """What a function encloses."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        held = self.pdctl_world.objects.word(self.pdctl_address + 16) if name == "cell_contents" else 0
        if not held:
            raise AttributeError(name)
        return self.pdctl_world.at(held)


class Items(Sequence[Any]):
    """A list or a deque. Items are read when they are used; the length is known."""

    def __init__(self, world: World, address: int) -> None:
        self._world = world
        self._length = world.objects.count(address)
        self._address = address
        self._addresses: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._world.at(address) for address in self._all()[index]]
        return self._world.at(self._all()[index])

    def __iter__(self) -> Iterator[Any]:
        return map(self._world.at, self._all())

    def _all(self) -> tuple[int, ...]:
        if self._addresses is None:
            self._addresses = self._world.objects.items(self._address)
        return self._addresses


class Numbers:
    """An ``array``: its length, not its content."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


class Modules(Mapping[str, Any]):
    """The loaded modules of the other process, by ``named`` (name → address)."""

    def __init__(self, world: World, named: Mapping[str, int]) -> None:
        self._world = world
        self._named = named

    def __getitem__(self, name: str) -> Any:
        return self._world.at(self._named[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


def _of_class(world: World, kind: int, name: str) -> Any:
    for base in world.objects.mro(kind):
        found = world.objects.type_dict(base).get(name)
        if found is None:
            continue
        sort = world.objects.type_name(world.objects.type_of(found))
        if sort in _CODE:
            break
        if sort == "staticmethod":
            return world.at(world.objects.word(found + 16))
        return world.at(found)
    raise AttributeError(name)


def type_name(value: Any) -> str:
    """Return the class name of a proxy's object, without the module; for a value the name of its Python class."""
    if not isinstance(value, Proxy):
        return type(value).__name__
    objects: Objects = value.pdctl_world.objects
    return objects.type_name(objects.type_of(value.pdctl_address)).rpartition(".")[2]


def attributes_of(value: Proxy) -> dict[str, int]:
    """Return name → address of the attributes of a proxy's object."""
    named: dict[str, int] = value.pdctl_world.objects.attributes(value.pdctl_address)
    return named


def address_of(value: Proxy) -> int:
    """Return the address of a proxy's object."""
    address: int = value.pdctl_address
    return address


def is_tensor(value: Any) -> bool:
    """Return whether this is a torch tensor."""
    return isinstance(value, Proxy) and type_name(value) in _TENSORS


def modules(world: World, start: Proxy, wanted: Collection[str]) -> dict[str, int]:
    """Return name → address of the ``wanted`` modules that the process has loaded.

    ``sys.modules`` is found through the modules of the classes of ``start``. An engine has many thousands of modules, so only
    names with the length of a wanted name are read. Raises LookupError if no module near ``start`` has imported ``sys`` or
    ``os``.
    """
    objects = world.objects
    for base in objects.mro(objects.type_of(address_of(start))):
        for value in objects.type_dict(base).values():
            if objects.type_name(objects.type_of(value)) != "function":
                continue
            table = _sys_modules(world, Function(world, value).globals)
            if table:
                lengths = {len(name) for name in wanted}
                named = [(key, value) for key, value in objects.pairs(table) if objects.count(key) in lengths]
                return {name: value for key, value in named if (name := objects.string(key)) in wanted}
            break
    raise LookupError("no module of this class has imported sys")


def _sys_modules(world: World, names: dict[str, int]) -> int:
    objects = world.objects
    for name in ("sys", "os", "logging", "threading"):
        there = names.get(name)
        if there is None or objects.type_name(objects.type_of(there)) != "module":
            continue
        held = objects.module_dict(there)
        if name != "sys":
            inner = held.get("sys") or held.get("_sys")
            held = objects.module_dict(inner) if inner is not None else {}
        if "modules" in held:
            return held["modules"]
    return 0
