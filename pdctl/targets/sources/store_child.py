"""Reads what agents published from one TCPStore, and writes it as JSON to standard output.

``python -m pdctl.targets.sources.store_child HOST PORT SECONDS`` is a separate process, because torch's client can't be
interrupted: it waits for ever for a store that accepts and does not answer. The parent process ends it. Nothing is written into
the store.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from typing import Any

import msgspec

from pdctl.protocol.store_schema import COUNT, MAX_ENTRIES, MAX_READ, MAX_VALUE, RawEntry, Read, beat, index

LOADED = "\n"
"""Written when torch is loaded, before the store is asked: what is missing then is the store's answer."""
_AT_ONCE = 256


def read(host: str, port: int, seconds: float) -> Read:
    """Return the entries in a store. Raises what torch's client raises."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    sys.stdout.write(LOADED)
    sys.stdout.flush()
    timeout = datetime.timedelta(seconds=seconds)
    store = TCPStore(host, port, None, False, timeout=timeout, wait_for_workers=False)
    if not store.check([COUNT]):
        return Read()
    count = int(store.get(COUNT))
    error = ""
    if count > MAX_ENTRIES:
        error = f"it has {count} entries, of which the last {MAX_ENTRIES} are read"
    numbers = range(max(1, count - MAX_ENTRIES + 1), count + 1)
    names = [name.decode(errors="replace") for name in _there(store, [index(number) for number in numbers]).values()]
    names = list(dict.fromkeys(name for name in names if name.startswith("pdctl/")))
    entries = _there(store, names)
    beats = _there(store, [beat(name) for name in entries])
    read_ns = time.time_ns()
    found = [RawEntry(name, value, beats.get(beat(name), b"")) for name, value in entries.items()]
    return Read([one for one in found if len(one.entry) <= MAX_VALUE and len(one.beat) <= MAX_VALUE], error, read_ns)


def _there(store: Any, names: list[str]) -> dict[str, bytes]:
    """Return the values of the existing keys. A read of a missing key would wait for it."""
    found: dict[str, bytes] = {}
    size = 0
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        if not store.check(some):
            some = [name for name in some if store.check([name])]
        if some:
            values = [bytes(value) for value in store.multi_get(some)]
            size += sum(map(len, values))
            if size > MAX_READ:
                raise ValueError(f"its entries have more than {MAX_READ >> 20} MiB")
            found.update(zip(some, values, strict=True))
    return found


def main(arguments: list[str]) -> None:
    """Print the JSON of a :class:`~pdctl.protocol.store_schema.Read`, and exit without waiting for torch."""
    host, port, seconds = arguments
    try:
        answer = read(host, int(port), float(seconds))
    except Exception as error:  # noqa: BLE001  # torch's own kinds of errors are many
        text = str(error).splitlines()[0] if str(error) else ""
        answer = Read(error=f"{type(error).__name__}: {text}"[:300])
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
