"""A process whose threads are the first to decode a type, all in the same moment, again and again; run by test_structs."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import msgspec

from pdctl.protocol import structs

SHAPES = """
from __future__ import annotations
import msgspec

class Inner(msgspec.Struct):
    number: int
    names: list[str]
    more: dict[str, float] | None = None

class Outer(msgspec.Struct):
    one: Inner
    many: list[Inner]
    text: str = ""
"""
INNER: dict[str, Any] = {"number": 1, "names": ["a"]}
OUTER = {"one": INNER, "many": [INNER], "text": "x"}
RAW, PACKED = msgspec.json.encode(OUTER), msgspec.msgpack.encode(OUTER)


def main() -> None:
    sys.setswitchinterval(1e-6)
    for turn in range(150):
        shapes = sys.modules[f"shapes{turn}"] = ModuleType(f"shapes{turn}")
        exec(SHAPES, vars(shapes))  # types that nobody has decoded yet
        uses = [
            lambda kind=shapes.Outer: structs.from_json(RAW, kind),
            lambda kind=shapes.Outer: structs.from_msgpack(PACKED, kind),
            lambda kind=shapes.Outer: structs.convert(OUTER, kind),
            lambda kind=shapes.Inner: structs.convert(INNER, kind),
        ]
        start = threading.Barrier(2 * len(uses))

        def use(turn: Any, start: threading.Barrier = start) -> None:
            start.wait()
            turn()

        threads = [threading.Thread(target=use, args=(one,)) for one in uses * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("through")


if __name__ == "__main__":
    main()
