"""What a recording can witness of requests that came to its rank, or did not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pdctl.recording import format as f
from pdctl.recording.rings import events

if TYPE_CHECKING:
    from pdctl.protocol.model import Identity
    from pdctl.recording.reader import Recording

SAME_S = 2.0
"""How much later than on the other side a request may come to this one."""
INPUT_QUEUE = {"prefill": "prefill.bootstrap", "decode": "decode.prealloc"}
"""The polled queue that a turn of the scheduler visits right after it has taken in new requests, by role."""
_BEING_WRITTEN = 8
T = TypeVar("T")


def takers(those: Iterable[T], identity_of: Callable[[T], Identity]) -> Iterator[list[T]]:
    """Yield the ranks that take in requests from outside, those together that take in the same: first stages, by dp rank."""
    parts: dict[tuple[str, int], list[T]] = {}
    for one in those:
        parts.setdefault(part(identity_of(one)), []).append(one)
    for members in parts.values():
        first = min(identity_of(one).pp for one in members)
        yield [one for one in members if identity_of(one).pp == first]


def part(identity: Identity) -> tuple[str, int]:
    """Return which requests a rank takes in: those of its server and dp rank."""
    return identity.service, identity.dp


@dataclass(frozen=True)
class Witness:
    """What a recording is a witness of. Times are ns of the rank's monotonic clock.

    since_ns: it has every request that came from then on, None where it may lack any. why: what begins then, or why it
    may lack any, in words. took_in_ns: when the rank last took in new requests, 0 unknown.
    """

    since_ns: int | None
    why: str
    took_in_ns: int


def witness(recording: Recording) -> Witness:
    """Return what ``recording`` is a witness of."""
    visits = recording.visits.get(INPUT_QUEUE.get(recording.identity.role, ""))
    took_in = visits.mono_ns if visits is not None else recording.tick_mono_ns
    _, _, _, _, offset, capacity = recording.rings
    if recording.state == "stopped":
        return Witness(None, "its recording has stopped", took_in)
    if recording.source.size < offset + capacity * f.EVENT_SIZE:
        return Witness(None, "its recording is cut off", took_in)
    kept = events(recording.source, offset, capacity, oldest)
    if len(kept) and kept["seq"].min() > 1:
        return Witness(int(kept["mono_ns"].min()), "what was before is overwritten", took_in)
    return Witness(recording.start_mono_ns, "it begins there", took_in)


def oldest(table: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which records are the oldest of a part of the ring: of the very oldest, one may be being overwritten."""
    numbers = table["seq"]
    there: NDArray[np.bool_] = numbers > 0
    if not there.any():
        return there
    there &= numbers <= numbers[there].min() + np.uint64(_BEING_WRITTEN)
    return there
