"""Decoding into structs, from any thread.

msgspec (0.18 to 0.22) builds its information about a struct at the first use. It shows it to other threads before it is
complete: two threads that decode a type for the first time can end the process by SIGSEGV. Here one thread at a time builds.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_DEEP = "nested too deep"
_lock = threading.Lock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  # another thread of the parent may have held it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of JSON into ``kind``; any number of threads may use it."""
    found = _json.get(kind)
    if found is None:
        with _lock:
            found = _json.setdefault(kind, msgspec.json.Decoder(kind))
    return found


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Return the decoder of msgpack into ``kind``; any number of threads may use it."""
    found = _msgpack.get(kind)
    if found is None:
        with _lock:
            found = _msgpack.setdefault(kind, msgspec.msgpack.Decoder(kind))
    return found


def from_json(raw: bytes | str, kind: type[T]) -> T:
    """Return what JSON ``raw`` holds as ``kind``. Raises msgspec.DecodeError, ValidationError (ValueErrors)."""
    try:
        return json_decoder(kind).decode(raw)
    except RecursionError:
        raise msgspec.DecodeError(_DEEP) from None


def from_msgpack(raw: bytes, kind: type[T]) -> T:
    """Return what msgpack ``raw`` holds as ``kind``. Raises as :func:`from_json` does."""
    try:
        return msgpack_decoder(kind).decode(raw)
    except RecursionError:
        raise msgspec.DecodeError(_DEEP) from None


def convert(value: Any, kind: type[T]) -> T:
    """Return plain ``value`` (dicts, lists, numbers, text) as ``kind``. Raises msgspec.ValidationError."""
    json_decoder(kind)  # msgspec learns the type here, one thread at a time
    return msgspec.convert(value, kind)
