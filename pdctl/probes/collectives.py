"""What ranks say of the collectives of one process group, compared. Pure; shared by the probes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from pdctl.protocol.model import Call, FlightEntry, Identity

K = TypeVar("K")

POINT_TO_POINT = frozenset(
    ("batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list")
)
"""Operations of two ranks only, in which the members of a group differ by right."""

_SAME_SIZE = frozenset(("all_gather_into_tensor", "all_reduce", "broadcast", "reduce", "reduce_scatter_tensor"))
"""Operations whose tensor is as long on every member; others may be uneven."""


def is_collective(call: Call | None) -> bool:
    """Return whether the call is one that all members of its group have to join."""
    return call is not None and bool(call.op) and call.op not in POINT_TO_POINT


def said(call: Call) -> str:
    """Return ``all_reduce of 7``; without the size for operations in which it may differ."""
    return f"{call.op} of {call.elements}" if call.elements >= 0 and call.op in _SAME_SIZE else call.op


def mispaired(calls: Mapping[K, Call]) -> dict[int, dict[str, list[K]]]:
    """Return number → what is done under it → ranks, where ranks do different things under one number.

    calls: the calls of ranks in one process group, by rank. A call without a number, or of two ranks only, is left out.
    """
    at: dict[int, dict[str, list[K]]] = {}
    for rank, call in calls.items():
        if is_collective(call) and call.seq >= 0:
            at.setdefault(call.seq, {}).setdefault(said(call), []).append(rank)
    return {seq: ops for seq, ops in at.items() if len(ops) > 1}


def countable(identity: Identity, kind: str) -> bool:
    """Return whether equal numbers in a group of this kind mean the same collective on every member.

    With pipeline stages, groups also carry sends and receives, which Gloo counts (torch 2.13); those of one stage do not
    (SGLang 0.5.10.post1 to 0.5.23).
    """
    return identity.pp_size == 1 or kind in ("attn-tp", "attn-cp", "tp")


def newest(entries: Iterable[FlightEntry], fr_id: int) -> FlightEntry | None:
    """Return the newest collective of a group in a rank's flight recorder, None without one or without its number."""
    mine = [entry for entry in entries if fr_id >= 0 and entry.pg_id == fr_id]
    return max(mine, key=lambda entry: entry.seq, default=None)


def sizes(entry: FlightEntry) -> str:
    """Return the shapes of the input tensors: ``7``, ``2x16, 4``."""
    return ", ".join("x".join(map(str, shape)) or "1" for shape in entry.sizes)


def entry_words(entry: FlightEntry) -> str:
    """Return ``#5 all_reduce of 7``."""
    size = sizes(entry)
    return f"#{entry.seq} {entry.op}" + (f" of {size}" if size else "")
