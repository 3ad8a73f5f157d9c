"""Hooks that write what happens to single requests: queues entered, states, commits, dp ranks registered and asked for.

For SGLang's functions, and for those of the lab that have their names and shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pdctl.engines.base import Maker, Site, after
from pdctl.engines.sglang import seams
from pdctl.protocol.model import QUEUES, Action, EventKind

if TYPE_CHECKING:
    from pdctl.agent.tap import QueueTap
    from pdctl.engines.landing import Landings
    from pdctl.engines.sglang.queues import QueueReader

Event = Callable[..., None]
"""``Recorder.event``."""

_MAX_ANSWERS = 4096


def entering(queue: str, attribute: str, reader: QueueReader, event: Event) -> Maker:
    """Return a maker of the hook at a method that appends to ``queue``, which its owner keeps as ``attribute``."""
    code, describe = QUEUES.index(queue), reader.describe

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def enters(self_: Any, *args: Any, **kwargs: Any) -> Any:
            before = len(getattr(self_, attribute, ()))
            result = original(self_, *args, **kwargs)
            if site.on:
                with site:
                    for entry in getattr(self_, attribute)[before:]:
                        room, slot = describe(entry)
                        event(
                            EventKind.ENQUEUE,
                            queue=code,
                            room=room,
                            slot=slot,
                            text=getattr(entry, "req", entry).rid,
                        )
            return result

        return enters

    return make


def states(event: Event) -> Maker:
    """Return a maker of the hook at a KV manager's ``update_status``."""

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def updates(self_: Any, bootstrap_room: int, status: Any, *args: Any, **kwargs: Any) -> Any:
            before = self_.request_status.get(bootstrap_room)
            result = original(self_, bootstrap_room, status, *args, **kwargs)
            if site.on:
                with site:
                    after = self_.request_status.get(bootstrap_room)
                    if after is not None and after != before:
                        event(EventKind.STATE, room=bootstrap_room, a=int(after))
            return result

        return updates

    return make


def commits(reader: QueueReader, landings: Landings, tap: QueueTap, aborted: Callable[[Any], bool]) -> Maker:
    """Return a maker of the hook at ``_commit_transfer_to_req``. aborted: whether a request was aborted in it."""

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def commits(self_: Any, decode_req: Any, *args: Any, **kwargs: Any) -> Any:
            if not site.on:
                return original(self_, decode_req, *args, **kwargs)
            slot, found = -1, None
            with site:
                slot = seams.slot_of(decode_req)
                found = reader.room_in(slot)
            result = original(self_, decode_req, *args, **kwargs)
            with site:
                # Up to 0.5.12.post1 False means: the slot read 0, the request stays.
                if result is False:
                    tap.decided(decode_req, Action.KEPT, 0)
                    landings.expect(slot, seams.room_of(decode_req.req))
                    return result
                if not found:
                    found = reader.room_in(slot)  # it landed between the two looks
                tap.decided(decode_req, Action.ABORTED if aborted(decode_req.req) else Action.COMMITTED, found)
                landings.seen(slot, found or 0)
            return result

        return commits

    return make


def held(landings: Landings) -> Callable[[list[int], list[int], Any], None]:
    """Return what expects the metadata of requests whose polls the gate lowered."""

    def expect(before: list[int], after: list[int], entries: Any) -> None:
        for index, entry in enumerate(entries):
            if before[index] != after[index]:
                landings.expect(seams.slot_of(entry), seams.room_of(entry.req))

    return expect


def registers(event: Event) -> Maker:
    """Return a maker of the hook at a sender's ``_register_prefill_dp_rank``."""

    def registers(_: object, sender: Any, *__: Any, **___: Any) -> None:
        event(EventKind.DP_REGISTER, room=sender.bootstrap_room, a=int(sender.kv_mgr.attn_dp_rank))

    return after(registers)


def queries(event: Event) -> Maker:
    """Return a maker of the hook at a receiver's static ``query_prefill_dp_ranks``."""
    answers: dict[int, int] = {}

    def queries(result: Any, bootstrap_addr: str, bootstrap_rooms: list[int], *_: Any, **__: Any) -> None:
        if len(answers) > _MAX_ANSWERS:
            answers.clear()
        for room in bootstrap_rooms:  # asked every turn while unknown: only what is new is an event
            if room not in answers:
                event(EventKind.DP_QUERY, room=room, text=str(bootstrap_addr))
            answer = int(result.get(str(room), -1))
            if answers.get(room) != answer:
                answers[room] = answer
                event(EventKind.DP_ANSWER, room=room, a=answer)

    return after(queries)


def lookups(event: Event) -> Maker:
    """Return a maker of the hook at a decode KV manager's ``try_ensure_parallel_info``: at most one call a second."""
    missed: dict[str, int] = {}

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def looks_up(self_: Any, bootstrap_addr: str, *args: Any, **kwargs: Any) -> Any:
            known = True
            if site.on:
                with site:
                    known = bootstrap_addr in getattr(self_, "prefill_info_table", ())
            result = original(self_, bootstrap_addr, *args, **kwargs)
            if not known:
                with site:
                    if len(missed) > _MAX_ANSWERS:
                        missed.clear()
                    if result:
                        missed.pop(bootstrap_addr, None)
                        event(EventKind.LOOKUP, a=0, text=str(bootstrap_addr))
                    else:
                        times = missed[bootstrap_addr] = missed.get(bootstrap_addr, 0) + 1
                        if times == 1 or times % 5 == 0:  # the engine gives up after 15, and begins anew
                            event(EventKind.LOOKUP, a=times, text=str(bootstrap_addr))
            return result

        return looks_up

    return make
