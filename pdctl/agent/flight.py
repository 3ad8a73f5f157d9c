"""PyTorch's flight recorder of this process, reduced to the last collectives of each group.

A dump covers the whole buffer; for 1,800 entries it took tens to hundreds of milliseconds. So it is taken on demand only, and
only if the buffer was switched on at start.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from pdctl.protocol import structs
from pdctl.protocol.model import FlightEntry

_BUFFER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
PER_GROUP = 8


class _Entry(msgspec.Struct):
    """An entry as ``_dump_fr_trace_json`` writes it (torch 2.4 to 2.13); fields not listed are skipped."""

    pg_id: int = -1
    process_group: tuple[str, ...] = ()
    collective_seq_id: int = -1
    p2p_seq_id: int = -1
    is_p2p: bool = False
    profiling_name: str = ""
    input_sizes: list[Any] = []
    state: str = ""
    retired: bool = False
    time_created_ns: int = 0


class _Dump(msgspec.Struct):
    entries: list[_Entry] = []


_decoder = structs.json_decoder(_Dump)


def off_because() -> str:
    """Return why there is no flight recorder here, "" when there is one."""
    if not any((os.environ.get(name) or "0").strip() not in ("", "0") for name in _BUFFER_VARIABLES):
        return f"the flight recorder's buffer is off ({_BUFFER_VARIABLES[0]} was not set when the rank started)"
    if _dump_function() is None:
        return "this torch has no flight recorder to read, or it isn't loaded"
    return ""


def last_entries() -> list[FlightEntry]:
    """Return the last PER_GROUP entries of each group, oldest first. Raises LookupError where it is off."""
    why = off_because()
    dump = _dump_function()
    if why or dump is None:
        raise LookupError(why)
    return reduce(dump(), PER_GROUP)


def reduce(dump: bytes | str, per_group: int) -> list[FlightEntry]:
    """Return the last ``per_group`` entries of each group of a JSON dump. Raises ValueError for another format."""
    kept: dict[int, list[_Entry]] = {}
    for entry in _decoder.decode(dump).entries:
        of_group = kept.setdefault(entry.pg_id, [])
        of_group.append(entry)
        if len(of_group) > per_group:
            del of_group[0]
    entries = sorted((entry for group in kept.values() for entry in group), key=lambda entry: entry.time_created_ns)
    return [
        FlightEntry(
            pg_id=entry.pg_id,
            pg_name=entry.process_group[-1] if entry.process_group else "",
            seq=entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id,
            op=entry.profiling_name.rpartition(":")[2],
            backend=entry.profiling_name.partition(":")[0],
            sizes=_sizes(entry.input_sizes),
            state=entry.state,
            retired=entry.retired,
            created_wall_ns=entry.time_created_ns,
        )
        for entry in entries
    ]


def _sizes(value: list[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(size) for size in value if isinstance(size, list) and all(isinstance(n, int) for n in size))


def _dump_function() -> Any:
    module = sys.modules.get("torch._C._distributed_c10d")
    return getattr(module, "_dump_fr_trace_json", None) or getattr(module, "_dump_nccl_trace_json", None)
