"""Reductions beside the polls of queues: flags that the ranks of a group agree on, one entry each, in one order.

A function that reduces is hooked as a caller. One call of it is a turn of its tap; each reduction over a group in that call is
a round. The collective itself is hooked in :mod:`pdctl.engines.polls`, which asks :attr:`Reductions.current`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from types import ModuleType
from typing import Any

from pdctl.agent.tap import QueueTap
from pdctl.engines.base import Hooks, Site

MOST = 4096
"""Entries of a reduction that is recorded; what has more is no list of requests."""
_GREATEST = 254
_BEYOND = bytes([_GREATEST + 1])

Entries = Callable[..., Sequence[Any]]
"""Gets what a caller is called with, returns what it reduces about, one object an entry."""


class ByRoom:
    """How a tap reads what is reduced about: requests, or what carries one, by their rooms (it is their QueueView)."""

    def describe(self, entry: Any) -> tuple[int, int]:
        """Return (room, -1); room 0 where it can't be told."""
        return getattr(getattr(entry, "req", entry), "bootstrap_room", 0) or 0, -1

    def found(self, slots: Sequence[int]) -> Sequence[int] | None:  # noqa: ARG002
        """Return None: nothing is decided by slots here."""
        return None


class Call:
    """One call of a function that reduces. pollers: what a poll function in it was given, None without one.

    steady: the function is called equally often on all ranks, so that a call without a reduction counts as well.
    """

    def __init__(self, tap: QueueTap, entries: Callable[[], Sequence[Any]], *, steady: bool) -> None:
        self.tap = tap
        self.pollers: list[Any] | None = None
        self._entries = entries
        self._steady = steady
        self._about: list[Any] = []
        self._entered: list[int] = []

    def begins(self, group: int, count: int) -> bool:
        """Begin a reduction of ``count`` numbers over a group; returns whether it is a round."""
        if not 0 < count <= MOST:
            return False
        if group in self._entered:  # once more over the same group: a round of its own
            self.ends()
        if not self._entered:
            about = list(self._entries() if self.pollers is None else self.pollers)
            self._about = about if len(about) == count else [None] * count
            self.tap.visit(self._about)
            self.tap.polled(_requests(self._about))
        self._entered.append(group)
        return True

    def ends(self) -> None:
        """End the turn."""
        if self._entered:
            self.tap.leave(self._about)
            self._entered.clear()
        elif self._steady:
            self.tap.visit(())


_request = attrgetter("req")


def _requests(about: list[Any]) -> list[Any]:
    """Return what stays the same from turn to turn: an entry may be made anew around its request."""
    try:
        return list(map(_request, about))
    except AttributeError:
        return about


class Reductions:
    """The callers of one rank that are hooked. current: the call that is under way, None outside of any."""

    def __init__(self, hooks: Hooks) -> None:
        self.current: Call | None = None
        self._hooks = hooks

    def caller(
        self,
        owner: Any,
        attribute: str,
        site_name: str,
        tap: QueueTap,
        entries: Entries,
        *,
        steady: bool,
        module: ModuleType | None = None,
        torch: Any = None,
    ) -> bool:
        """Hook a function that reduces. steady: see :class:`Call`.

        module, torch: of a function that calls ``torch.distributed`` itself: its module has this torch while it runs.
        """
        names: dict[str, Any] = {} if module is None or torch is None else vars(module)

        def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
            def reduces(*args: Any, **kwargs: Any) -> Any:
                if not site.on:
                    return original(*args, **kwargs)
                before, call = self.current, Call(tap, lambda: entries(*args, **kwargs), steady=steady)
                self.current, was = call, names.get("torch")
                if names:
                    names["torch"] = torch
                try:
                    result = original(*args, **kwargs)
                finally:
                    self.current = before
                    if names:
                        names["torch"] = was
                try:
                    call.ends()
                except Exception:
                    site.failed()
                return result

            return reduces

        return self._hooks.wrap(owner, attribute, site_name, make)


def reader(tensor: Any) -> Callable[[], bytes] | None:
    """Return a function that reads the numbers in ``tensor``, None for one that can't be read without waiting, or is no list.

    Greater numbers than one byte holds are read as the greatest.
    """
    if not tensor.is_cpu or tensor.is_floating_point():
        return None

    values = tensor.tolist if tensor.dim() == 1 else lambda: tensor.flatten().tolist()

    def read() -> bytes:
        numbers = values()
        try:
            found = bytes(numbers)
        except ValueError:
            found = _BEYOND
        return found if _BEYOND not in found else bytes(min(max(number, 0), _GREATEST) for number in numbers)

    return read
