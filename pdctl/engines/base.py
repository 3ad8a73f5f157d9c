"""What an engine adapter gives to the agent, and the guarded hooks it is built from.

A hook can not hurt the engine: what pdctl does around an engine function runs inside a Site, which swallows and counts
every exception and removes itself after the third. The engine's own exceptions pass through untouched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pdctl.agent.sinks import Recorder
from pdctl.agent.tap import QueueTap
from pdctl.inject.table import FaultTable
from pdctl.model import Frame, Identity, QueueEntry, Seam, SlotEntry

if TYPE_CHECKING:
    from pdctl.engines.sites import PollSites

MAX_ERRORS = 3


class Site:
    """One hooked place. ``on`` is False once it has removed itself."""

    __slots__ = ("errors", "last_error", "name", "on")

    def __init__(self, name: str) -> None:
        self.name = name
        self.on = True
        self.errors = 0
        self.last_error = ""

    def failed(self, error: BaseException) -> None:
        """Count an exception that pdctl's own code raised here; the third one switches the site off."""
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}"[:200]
        if self.errors >= MAX_ERRORS:
            self.on = False


Maker = Callable[[Callable[..., Any], Site], Callable[..., Any]]
"""Takes the engine's function and its site, returns the function to put in its place."""


class Hooks:
    """All hooks of one rank: installs, counts and takes them out again."""

    def __init__(self) -> None:
        self.sites: dict[str, Site] = {}
        self._undo: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, attribute: str, name: str, make: Maker) -> bool:
        """Put ``make(original, site)`` in place of ``owner.attribute``; False when the engine has no such attribute.

        ``name`` is the site's; several attributes may share one site.
        """
        original = getattr(owner, attribute, None)
        if original is None:
            return False
        site = self.sites.setdefault(name, Site(name))
        raw = vars(owner).get(attribute)
        made: Any = make(original, site)
        if isinstance(raw, staticmethod):
            made = staticmethod(made)
        setattr(owner, attribute, made)
        self._undo.append((owner, attribute, raw))
        return True

    def remove_all(self) -> None:
        """Put every original back, the last hook first."""
        while self._undo:
            owner, attribute, raw = self._undo.pop()
            if raw is None:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, raw)

    def errors(self) -> dict[str, int]:
        """Return the sites with swallowed exceptions and how many there were."""
        return {name: site.errors for name, site in self.sites.items() if site.errors}

    def removed(self) -> tuple[str, ...]:
        """Return the names of the sites that switched themselves off."""
        return tuple(name for name, site in self.sites.items() if not site.on)


class PollHooks:
    """The part that every engine of SGLang's shape shares: methods that poll a queue, poll functions, the collective.

    group_index: gives the number (index into Identity.groups) of a torch process group, negative for one that is not
    worth recording. One poll may reduce over several groups, and over the same one twice: that is one round of it.
    sites: the fault sites at polls, None on a rank that takes no faults.
    The scheduler is single-threaded, so the tap that is being polled is one variable.
    """

    def __init__(self, hooks: Hooks, group_index: Callable[[Any], int], sites: PollSites | None = None) -> None:
        self._hooks = hooks
        self._sites = sites
        self._queue: list[Any] = []
        self._group_index = group_index
        self.current: QueueTap | None = None
        """The tap whose queue is about to be polled; None outside of a queue's method and after its poll."""
        self.polling: QueueTap | None = None
        """The tap whose queue's poll is running."""
        self._entered: list[int] = []

    def poll_method(
        self,
        owner: Any,
        attribute: str,
        site_name: str,
        tap_of: Callable[..., QueueTap | None],
        queue_of: Callable[..., list[Any]],
        *,
        leaves: bool = True,
    ) -> bool:
        """Hook a method that polls one queue once a turn. ``leaves``: the method also removes what is done.

        tap_of and queue_of get the method's arguments; a tap of None means that this call polls no queue pdctl follows.
        """

        entered, sites = self._entered, self._sites

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def polls_queue(self_: Any, *args: Any, **kwargs: Any) -> Any:
                if not site.on:
                    return original(self_, *args, **kwargs)
                tap = None
                try:
                    tap = tap_of(self_, *args, **kwargs)
                    if tap is not None:
                        queue = queue_of(self_, *args, **kwargs)
                        if sites is not None:
                            self._queue = queue
                            if sites.table.any:
                                sites.before(queue)
                        tap.visit(queue)
                        self.current = tap
                        entered.clear()
                except Exception as error:
                    site.failed(error)
                try:
                    result = original(self_, *args, **kwargs)
                finally:
                    self.current = None
                # Not where the engine raised: that round has not been applied, and its recording says so.
                if leaves and tap is not None:
                    try:
                        tap.leave(queue_of(self_, *args, **kwargs))
                    except Exception as error:
                        site.failed(error)
                return result

            return polls_queue

        return self._hooks.wrap(owner, attribute, site_name, make)

    def leave_method(
        self,
        owner: Any,
        attribute: str,
        site_name: str,
        tap_of: Callable[[Any], QueueTap],
        queue_of: Callable[[Any], list[Any]],
    ) -> bool:
        """Hook the outer method that removes from a queue which an inner one polled (``leaves=False`` there)."""

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def leaves_queue(self_: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(self_, *args, **kwargs)
                if site.on:
                    try:
                        tap_of(self_).leave(queue_of(self_))
                    except Exception as error:
                        site.failed(error)
                return result

            return leaves_queue

        return self._hooks.wrap(owner, attribute, site_name, make)

    def poll_function(
        self, owner: Any, attribute: str, pollers_of: Callable[..., list[Any]], group_of: Callable[..., Any]
    ) -> bool:
        """Hook a module-level poll function. pollers_of / group_of pick the pollers and the group from its arguments.

        A group of None means that this rank reduces nothing (its polls come from elsewhere): not a round. A queue's
        method polls its queue with the first poll function it calls; what it may reduce after that is something else.
        """
        sites = self._sites

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def polls(*args: Any, **kwargs: Any) -> Any:
                tap = self.current
                if tap is None or not site.on:
                    return original(*args, **kwargs)
                self.current = None
                self.polling = tap
                try:
                    try:
                        pollers = pollers_of(*args, **kwargs)
                        tap.polled(pollers)
                        if sites is not None and sites.table.any and group_of(*args, **kwargs) is not None:
                            sites.flip(tap.queue, self._queue, pollers)
                    except Exception as error:
                        site.failed(error)
                    result = original(*args, **kwargs)
                finally:
                    self.polling = None
                    if sites is not None and sites.flipped:
                        sites.unflip()
                try:
                    if not self._entered:
                        # a group of one: the engine may skip the collective, the round is still a round
                        self._alone(tap, result, group_of(*args, **kwargs))
                except Exception as error:
                    site.failed(error)
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

    def gate_function(self, owner: Any, attribute: str) -> bool:
        """Hook the metadata gate, whose first argument is this rank's own polls, changed in place."""

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def gate(polls: list[int], *args: Any, **kwargs: Any) -> Any:
                tap = self.polling
                if tap is not None and site.on:
                    try:
                        tap.raw(polls)
                    except Exception as error:
                        site.failed(error)
                return original(polls, *args, **kwargs)

            return gate

        return self._hooks.wrap(owner, attribute, "gate", make)

    def collective(self, owner: Any) -> bool:
        """Replace ``owner.dist`` (the module's name for torch.distributed) by one whose all_reduce is seen.

        The engine's all_reduce of polls is recorded before and after; any other goes straight through.
        """

        def make(dist: Any, site: Site) -> Any:
            entered, group_index = self._entered, self._group_index

            def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                tap = self.polling
                if tap is None or not site.on:
                    return dist.all_reduce(tensor, *args, **kwargs)
                polls = None
                number = width = 0
                try:
                    number = group_index(kwargs["group"] if "group" in kwargs else args[1])
                    if number >= 0 and number not in entered:
                        width = tensor.element_size()
                        polls = _memory(tensor, width)
                        tap.entering(number, polls.raw, width)
                        entered.append(number)
                except Exception as error:
                    polls = None
                    site.failed(error)
                result = dist.all_reduce(tensor, *args, **kwargs)
                if polls is not None:
                    try:
                        tap.left(number, polls.raw, width)
                    except Exception as error:
                        site.failed(error)
                return result

            return _Distributed(dist, all_reduce)

        return self._hooks.wrap(owner, "dist", "collective", make)


_ARRAYS: dict[int, Any] = {}
"""Array types by size, up to _SHORT bytes (ctypes keeps every array type for ever)."""
_SHORT = 512


class _Long:
    """The bytes of a long tensor, where numpy's fixed cost is small beside the copy."""

    __slots__ = ("_array",)

    def __init__(self, tensor: Any) -> None:
        self._array = tensor.numpy()

    @property
    def raw(self) -> bytes:
        return self._array.tobytes()  # type: ignore[no-any-return]


def _memory(tensor: Any, width: int) -> Any:
    """Return the tensor's own bytes, whose ``raw`` is a copy of what they are when it is asked for.

    For short tensors a third of the cost of ``tensor.numpy().tobytes()``, twice in every poll. Raises TypeError for a
    tensor that is not plain memory.
    """
    if not (tensor.is_cpu and tensor.is_contiguous()):
        raise TypeError(f"polls are not in plain memory: {tensor.device}")
    size = tensor.numel() * width
    kind = _ARRAYS.get(size)
    if kind is None:
        if size > _SHORT:
            return _Long(tensor)
        kind = _ARRAYS[size] = ctypes.c_char * size
    return kind.from_address(tensor.data_ptr())


class _Distributed:
    """torch.distributed as the hooked module sees it: everything is the original's, only all_reduce is watched."""

    def __init__(self, dist: Any, all_reduce: Callable[..., Any]) -> None:
        self.__dict__.update(_dist=dist, all_reduce=all_reduce)
        if hasattr(dist, "ReduceOp"):
            self.__dict__["ReduceOp"] = dist.ReduceOp  # asked for in every poll; a class of torch's that never changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dist, name)


class Adapter(Protocol):
    """One engine in one rank, as the agent uses it.

    ``identity`` and ``install`` run on the thread that starts the agent, the rest on the agent's own thread while the
    engine runs. An adapter may also have ``poll_awaited() -> bool``: the agent calls it about four times a second, and
    every 20 ms while it returns True, so that metadata that comes late is seen landing (EventKind.LANDED).
    On ranks that receive metadata it should have ``transfer_address() -> str``: the address under which the sending
    side's fault site knows this rank (Mooncake: the session id), "" where unknown: it alone tells two servers apart.
    A rank that carries the site of a fault has a present Seam ``fault.<kind>`` (``fault.delay-metadata`` where metadata
    is written), with the engine's function as its detail; the same Seam, not present, where the function is missing.
    """

    hooks: Hooks

    def identity(self) -> Identity:
        """Return who this rank is. The agent itself fills in pid, start times, ``armed`` and ``loaded_by``."""

    def install(self, recorder: Recorder, faults: FaultTable) -> None:
        """Put the hooks in: rounds and events go to ``recorder``, the fault sites ask ``faults``."""

    def seams(self) -> tuple[Seam, ...]:
        """Return what was looked for in the engine's code and whether it is there."""

    def ticks(self) -> tuple[int, int]:
        """Return (turns of the scheduler so far, monotonic ns of the last)."""

    def ordinals(self) -> dict[str, int]:
        """Return ``queue/group kind`` → ordinal of the last round entered."""

    def queues(self) -> tuple[dict[str, list[QueueEntry]], dict[str, str]]:
        """Return the queues as they are now and the reasons for those that can't be read."""

    def slots(self) -> list[SlotEntry]:
        """Return the metadata slots that belong to a request now."""

    def step_of(self, stack: tuple[Frame, ...]) -> str:
        """Return the engine's own step the stack is in (innermost frame first), "" when it can't be told."""

    def group_kind(self, group: Any) -> str:
        """Return GroupInfo.kind of a torch process group of this rank, "" for an unknown one."""
