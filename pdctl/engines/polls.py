"""Hooks at the polls, for all engines with SGLang's structure: methods that poll a queue, poll functions, the metadata gate,
the collective.

They run in every turn of the scheduler, with cold caches. So each call and each object costs time, and a turn that equals the
one before uses as few as possible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pdctl.agent.tap import QueueTap
from pdctl.engines.base import Hooks, Site
from pdctl.engines.reductions import Reductions, reader
from pdctl.engines.sites import transfer_of

if TYPE_CHECKING:
    from pdctl.engines.sites import PollSites


class PollHooks:
    """The poll hooks of one rank, for all engines with SGLang's structure.

    group_index: returns the index of a torch process group in Identity.groups, negative for a group that is not recorded.
    One poll may reduce over several groups, and twice over the same group: that is one round of the group.
    sites: the fault sites at polls, None on a rank that takes no faults.
    The scheduler is single-threaded, so one variable holds the current tap.
    """

    def __init__(self, hooks: Hooks, group_index: Callable[[Any], int], sites: PollSites | None = None) -> None:
        self._hooks = hooks
        self._sites = sites
        self.room_failed = None if sites is None else sites.table.room_failed
        """What a tap tells of rooms that failed: the stop condition of faults."""
        self._queue: list[Any] = []
        self._part: set[int] = set()
        """Entries of the queue that are polled in this turn, by id(), where not all are; else empty."""
        self._group_index = group_index
        self.current: QueueTap | None = None
        """The tap whose queue is about to be polled; None outside of a queue's method and after its poll."""
        self.polling: QueueTap | None = None
        """The tap whose queue's poll is running."""
        self._entered: list[int] = []
        self.reductions = Reductions(hooks)
        """What is reduced besides the polls of queues."""

    def poll_method(
        self,
        owner: Any,
        attribute: str,
        site_name: str,
        tap: QueueTap,
        queue_of: Callable[[Any], list[Any]],
        *,
        leaves: bool = True,
    ) -> bool:
        """Hook a method that polls one queue once a turn. ``leaves``: the method also removes what is done.

        queue_of gets what the method is called on and returns the engine's list.
        """

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            return self._turn(original, site, tap, queue_of, leaves=leaves)

        return self._hooks.wrap(owner, attribute, site_name, make)

    def _turn(
        self,
        original: Callable[..., Any],
        site: Site,
        tap: QueueTap,
        queue_of: Callable[[Any], list[Any]],
        *,
        leaves: bool = True,
    ) -> Callable[..., Any]:
        """Return ``original`` as a turn of the scheduler at the queue of ``tap``."""
        entered, sites = self._entered, self._sites

        def polls_queue(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if not site.on:
                return original(self_, *args, **kwargs)
            try:
                self._queue = queue = queue_of(self_)
                if sites is not None and sites.table.any:
                    sites.before(queue)
                tap.visit(queue)
                self.current = tap
                entered.clear()
            except Exception:
                site.failed()
            try:
                result = original(self_, *args, **kwargs)
            finally:
                self.current = self.polling = None
            # Not where the engine raised: that round has not been applied, and its recording says so.
            if leaves:
                try:
                    tap.leave(self._polled_of(queue_of(self_)))
                except Exception:
                    site.failed()
            return result

        return polls_queue

    def _polled_of(self, queue: list[Any]) -> list[Any]:
        """Return what is left of the entries that were polled in this turn."""
        if not self._part:
            return queue
        kept = [entry for entry in queue if id(entry) in self._part]
        self._part = set()
        return kept

    def _polled(self, tap: QueueTap, pollers: list[Any]) -> None:
        """Tell the tap who is polled: the whole queue, or a part of it (0.5.18, of requests that no other stage decided on)."""
        if len(pollers) != len(self._queue):
            asked = set(map(id, pollers))
            part = [entry for entry in self._queue if id(transfer_of(entry)) in asked]
            if len(part) == len(pollers):
                tap.about(part)
                self._part = set(map(id, part))
        tap.polled(pollers)

    def picking_method(
        self, owner: Any, attribute: str, site_name: str, pick: Callable[..., tuple[QueueTap | None, list[Any]]]
    ) -> bool:
        """Hook a method that polls the queue it is given, one of several. pick gets its arguments and returns the tap of
        that queue, None for one that pdctl does not follow, and its list, which the method leaves as it is.

        It polls an empty list, too. That is a turn, and no round: each would be a run of its own, turn for turn.
        """

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def polls_a_queue(*args: Any, **kwargs: Any) -> Any:
                tap, queue = None, list[Any]()
                try:
                    if site.on:
                        tap, queue = pick(*args, **kwargs)
                    if tap is not None and not queue:
                        tap.visit(queue)
                        tap = None
                except Exception:
                    site.failed()
                turn = original if tap is None else self._turn(original, site, tap, lambda _: queue)
                return turn(*args, **kwargs)

            return polls_a_queue

        return self._hooks.wrap(owner, attribute, site_name, make)

    def leave_method(
        self, owner: Any, attribute: str, site_name: str, tap: QueueTap, queue_of: Callable[[Any], list[Any]]
    ) -> bool:
        """Hook the outer method that removes from a queue which an inner one polled (``leaves=False`` there)."""

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def leaves_queue(self_: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(self_, *args, **kwargs)
                if site.on:
                    try:
                        tap.leave(queue_of(self_))
                    except Exception:
                        site.failed()
                return result

            return leaves_queue

        return self._hooks.wrap(owner, attribute, site_name, make)

    def poll_function(
        self, owner: Any, attribute: str, pollers_of: Callable[..., list[Any]] | None, group_of: Callable[..., Any]
    ) -> bool:
        """Hook a module-level poll function. pollers_of / group_of pick the pollers and the group from its arguments;
        None for pollers_of: they are the first one.

        A group of None means that this rank reduces nothing (it gets its polls from another stage): this is no round. Only the
        first poll function called in a queue's method polls the queue; later reductions don't count.
        """
        sites = self._sites

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def polls(*args: Any, **kwargs: Any) -> Any:
                tap = self.current
                if tap is None or not site.on:
                    call = self.reductions.current
                    if call is not None and site.on:
                        try:
                            call.pollers = args[0] if pollers_of is None else pollers_of(*args, **kwargs)
                        except Exception:
                            site.failed()
                    return original(*args, **kwargs)
                self.current = None
                self.polling = tap
                try:
                    try:
                        pollers = args[0] if pollers_of is None else pollers_of(*args, **kwargs)
                        self._polled(tap, pollers)
                        if sites is not None and sites.table.any and group_of(*args, **kwargs) is not None:
                            sites.flip(tap.queue, self._queue, pollers)
                    except Exception:
                        site.failed()
                    result = original(*args, **kwargs)
                finally:
                    self.polling = None
                    if sites is not None and sites.flipped:
                        sites.unflip()
                try:
                    if not self._entered:
                        # a group of one: the engine may skip the collective, the round is still a round
                        self._alone(tap, result, group_of(*args, **kwargs))
                except Exception:
                    site.failed()
                return result

            return polls

        return self._hooks.wrap(owner, attribute, "poll", make)

    def _alone(self, tap: QueueTap, polls: list[int], group: Any) -> None:
        if group is None:
            return
        data = bytes(polls)
        number = self._group_index(group)
        if number >= 0:
            tap.entering(number, data, 1)
            tap.left(number, data, 1)

    def gate_function(
        self, owner: Any, attribute: str, held: Callable[[list[int], list[int], Any], None] | None = None
    ) -> bool:
        """Hook the metadata gate. Its arguments are this rank's own polls, which it changes in place, and the polled entries.

        held: called if the gate has changed polls, with the polls before and after, and the entries.
        """

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def gate(polls: list[int], entries: Any, *args: Any, **kwargs: Any) -> Any:
                tap = self.polling
                if tap is None or not site.on:
                    return original(polls, entries, *args, **kwargs)
                before = polls
                try:
                    before = tap.raw(polls)
                except Exception:
                    site.failed()
                result = original(polls, entries, *args, **kwargs)
                if held is not None and before != polls:
                    try:
                        held(before, polls, entries)
                    except Exception:
                        site.failed()
                return result

            return gate

        return self._hooks.wrap(owner, attribute, "gate", make)

    def collective(self, owner: Any) -> bool:
        """Replace ``owner.dist`` (the module's name for torch.distributed) by a wrapper that records all_reduce.

        The engine's all_reduce of polls is recorded before and after, and so is one that a hooked caller makes
        (:attr:`reductions`). Any other call passes directly.
        """
        return self._hooks.wrap(owner, "dist", "collective", self._dist)

    def torch_of(self, module: Any) -> Any:
        """Return the torch of a module that calls ``torch.distributed`` by this name, with an all_reduce that is recorded.

        None where the module has no torch. It stands in the module only while a function runs that reduces: each use costs an
        attribute more, and most of the module's functions use torch for other things.
        """
        torch = getattr(module, "torch", None)
        if torch is None:
            return None
        site = self._hooks.sites.setdefault("collective", Site("collective"))
        return _Torch(torch, self._dist(torch.distributed, site))

    def _dist(self, dist: Any, site: Site) -> Any:
        """Return torch.distributed with an all_reduce that is recorded."""
        entered, group_index = self._entered, self._group_index
        numbers: dict[Any, int] = {}  # torch's groups are compared as objects
        all_reduces, reductions = dist.all_reduce, self.reductions
        total = getattr(getattr(dist, "ReduceOp", None), "SUM", None)

        # torch's own parameters, by name: to pass on whatever comes costs as much as all else here
        def all_reduce(tensor: Any, op: Any = total, group: Any = None, async_op: bool = False) -> Any:
            if not site.on:
                return all_reduces(tensor, op, group, async_op)
            tap = self.polling or self._unknown_poll(site, tensor)
            if tap is None:
                if reductions.current is None or async_op:
                    return all_reduces(tensor, op, group, async_op)
                return self._reduce(site, all_reduces, tensor, op, group)
            read = None
            number = width = 0
            try:
                found = numbers.get(group)
                if found is None:
                    found = numbers[group] = group_index(group)
                number = found
                if number >= 0 and number not in entered:
                    width = tensor.itemsize
                    entered.append(number)  # first: whatever fails, one collective is one round
                    read = _reader(tensor)
                    tap.entering(number, read(), width)
            except Exception:
                read = None
                site.failed()
            result = all_reduces(tensor, op, group, async_op)
            if read is not None:
                try:
                    tap.left(number, read(), width)
                except Exception:
                    site.failed()
            return result

        return _Distributed(dist, all_reduce)

    def _unknown_poll(self, site: Site, tensor: Any) -> QueueTap | None:
        """Return the tap of the queue whose polls are reduced here, by a function that is no known poll function."""
        tap, queue = self.current, self._queue
        if tap is None or not queue:
            return None
        try:
            if tensor.numel() != len(queue):
                return None
            self.current = None
            tap.polled(list(queue))
        except Exception:
            site.failed()
            return None
        self.polling = tap
        return tap

    def _reduce(self, site: Site, all_reduces: Callable[..., Any], tensor: Any, op: Any, group: Any) -> Any:
        """Make the collective of a hooked caller, and record it where its group is known and its numbers can be read."""
        call, read, number = self.reductions.current, None, -1
        try:
            if call is not None and (readable := reader(tensor)) is not None:
                number = self._known(group)
                if number >= 0 and call.begins(number, tensor.numel()):
                    call.tap.entering(number, readable(), 1)
                    read = readable
        except Exception:
            site.failed()
        result = all_reduces(tensor, op, group)
        if call is not None and read is not None:
            try:
                call.tap.left(number, read(), 1)
            except Exception:
                site.failed()
        return result

    def _known(self, group: Any) -> int:
        try:
            return self._group_index(group)
        except KeyError:
            return -1


_SHORT = 64
"""Up to so many polls are read as the engine itself reads them after the collective, by code that is at hand then."""


def _reader(tensor: Any) -> Callable[[], Any]:
    """Return a function that reads the present polls in ``tensor``: as a list if they are few, as bytes if many.

    Raises TypeError for a tensor on a device: a read would wait for the device.
    """
    if not tensor.is_cpu:
        raise TypeError(f"polls are on {tensor.device}")
    return tensor.tolist if tensor.numel() <= _SHORT else tensor.numpy().tobytes  # type: ignore[no-any-return]


class _Distributed:
    """torch.distributed for the hooked module: all attributes are the original's, only all_reduce is recorded."""

    def __init__(self, dist: Any, all_reduce: Callable[..., Any]) -> None:
        self.__dict__.update(_dist=dist, all_reduce=all_reduce)
        if hasattr(dist, "ReduceOp"):
            self.__dict__["ReduceOp"] = dist.ReduceOp  # asked for in every poll; a class of torch's that never changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dist, name)


class _Torch:
    """torch for a module that calls ``torch.distributed``: all else is the original's."""

    def __init__(self, torch: Any, distributed: _Distributed) -> None:
        self.__dict__.update(_torch=torch, distributed=distributed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)
