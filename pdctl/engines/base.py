"""The interface of an engine adapter to the agent, and the guarded hooks of an adapter.

A hook can't harm the engine: pdctl's code around an engine function runs inside a Site. A Site catches and counts every
exception, and removes itself after the third. The engine's own exceptions pass unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pdctl.agent.sinks import Recorder
from pdctl.faults.table import FaultTable
from pdctl.protocol.metadata import Metadata, Wanted
from pdctl.protocol.model import Frame, Identity, QueueEntry, Seam, ServiceThread, SlotEntry
from pdctl.protocol.requests import Rooms, Settings

MAX_ERRORS = 3


class Site:
    """One hooked place. ``on`` is False once it has removed itself.

    ``with site:`` runs pdctl's own code: an exception in it is counted, and goes no further.
    """

    __slots__ = ("errors", "name", "on")

    def __init__(self, name: str) -> None:
        self.name = name
        self.on = True
        self.errors = 0

    def failed(self) -> None:
        """Count an exception that pdctl's own code raised here; the third one switches the site off."""
        self.errors += 1
        if self.errors >= MAX_ERRORS:
            self.on = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self.failed()
        return True


Maker = Callable[[Callable[..., Any], Site], Callable[..., Any]]
"""Takes the engine's function and its site, returns the function to put in its place."""


def before(see: Callable[..., object]) -> Maker:
    """Return a maker of hooks that call ``see`` with what the engine's function is called with, before it."""

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if site.on:
                try:
                    see(*args, **kwargs)
                except Exception:
                    site.failed()
            return original(*args, **kwargs)

        return hooked

    return make


def after(see: Callable[..., object]) -> Maker:
    """Return a maker of hooks that call ``see`` with what the engine's function has returned, and was called with."""

    def make(original: Callable[..., Any], site: Site) -> Callable[..., Any]:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if site.on:
                try:
                    see(result, *args, **kwargs)
                except Exception:
                    site.failed()
            return result

        return hooked

    return make


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


class Adapter(Protocol):
    """One engine in one rank, as the agent uses it.

    ``identity`` and ``install`` run on the thread that starts the agent. All other methods run on the agent's own thread while
    the engine runs. An adapter may also have ``poll_awaited() -> bool``. The agent calls it about four times a second, and
    every 20 ms while it returns True, to see late metadata land (EventKind.LANDED).
    On ranks that receive metadata it should have ``transfer_address() -> str``: the address of this rank at the sender's fault
    site (Mooncake: the session id), "" if unknown. Only this address distinguishes two servers.
    A rank with the site of a fault has a present Seam ``fault.<kind>`` (``fault.delay-metadata`` for metadata writes); its
    detail is the engine's function. If the function is missing, the Seam is there and not present.
    """

    hooks: Hooks

    def identity(self) -> Identity:
        """Return the rank's identity. The agent itself fills in pid, start times, ``armed`` and ``loaded_by``."""

    def install(self, recorder: Recorder, faults: FaultTable) -> None:
        """Install the hooks. Rounds and events go to ``recorder``; the fault sites call ``faults``."""

    def seams(self) -> tuple[Seam, ...]:
        """Return what was looked for in the engine's code and whether it is there."""

    def ticks(self) -> tuple[int, int]:
        """Return (turns of the scheduler so far, monotonic ns of the last)."""

    def ordinals(self) -> dict[str, int]:
        """Return ``queue/group kind`` → ordinal of the last round entered."""

    def queues(self) -> tuple[dict[str, list[QueueEntry]], dict[str, str]]:
        """Return the present queues, and the reason for each queue that can't be read."""

    def slots(self) -> list[SlotEntry]:
        """Return the metadata slots that belong to a request now."""

    def rooms(self) -> Rooms:
        """Return what the rank knows of its rooms beyond its queues. Nothing is polled."""

    def metadata(self, wanted: Wanted) -> Metadata:
        """Return the metadata slots asked for, and every request of this rank; never what is in a row."""

    def settings(self) -> Settings:
        """Return the settings that both sides must agree on, and the engine's environment variables that are set."""

    def threads(self) -> tuple[ServiceThread, ...]:
        """Return the threads that the engine runs beside its scheduler for transfers."""

    def step_of(self, stack: tuple[Frame, ...]) -> str:
        """Return the engine's own step the stack is in (innermost frame first), "" when it can't be told."""

    def group_kind(self, group: Any) -> str:
        """Return GroupInfo.kind of a torch process group of this rank, "" for an unknown one."""
