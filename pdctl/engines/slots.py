"""Record when metadata slots are allocated and freed, to distinguish one allocation from the next."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pdctl.engines.base import Hooks, after, before
from pdctl.protocol.model import EventKind

if TYPE_CHECKING:
    from pdctl.agent.sinks import Recorder


class SlotWatch:
    """Hooks ``alloc`` and ``free`` of a ReqToMetadataIdxAllocator. owners: slot → room of the request seen in it last."""

    def __init__(self, recorder: Recorder, owners: Mapping[int, int]) -> None:
        self._event = recorder.event
        self._owners = owners
        self.taken: dict[int, int] = {}
        """Slot → monotonic ns at which it was taken, of those taken since the hooks are in and not given back."""

    def install(self, hooks: Hooks, allocator: Any) -> bool:
        """Put the hooks in; False where the allocator has no such methods."""
        return hooks.wrap(allocator, "alloc", "events.slots", after(self._allocates)) and hooks.wrap(
            allocator, "free", "events.slots", before(self._frees)
        )

    def _allocates(self, slot: int | None, *_: Any, **__: Any) -> None:
        if slot is not None:
            self.taken[slot] = now = time.monotonic_ns()
            # Whose it is, the next ENQUEUE or META_SENT with this slot says.
            self._event(EventKind.SLOT_ALLOC, slot=slot, mono_ns=now)

    def _frees(self, free_index: int, *_: Any, **__: Any) -> None:
        self.taken.pop(free_index, None)
        self._event(EventKind.SLOT_FREE, slot=free_index, room=self._owners.get(free_index, 0))
