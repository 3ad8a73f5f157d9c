"""Record when metadata slots are allocated and freed, to distinguish one allocation from the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pdctl.engines.base import Hooks, Site
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
        return hooks.wrap(allocator, "alloc", "events.slots", self._allocates) and hooks.wrap(
            allocator, "free", "events.slots", self._frees
        )

    def _allocates(self, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def alloc(*args: Any, **kwargs: Any) -> Any:
            slot = original(*args, **kwargs)
            if site.on and slot is not None:
                try:
                    now = time.monotonic_ns()
                    self.taken[slot] = now
                    # Whose it is, the next ENQUEUE or META_SENT with this slot says.
                    self._event(EventKind.SLOT_ALLOC, slot=slot, mono_ns=now)
                except Exception:
                    site.failed()
            return slot

        return alloc

    def _frees(self, original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def free(free_index: int, *args: Any, **kwargs: Any) -> Any:
            if site.on:
                try:
                    self.taken.pop(free_index, None)
                    self._event(EventKind.SLOT_FREE, slot=free_index, room=self._owners.get(free_index, 0))
                except Exception:
                    site.failed()
            return original(free_index, *args, **kwargs)

        return free
