"""Which functions of SGLang reduce something beside the polls of queues. Found in the loaded code: whatever calls what reduces.

The table names those that are known, and says what they reduce about. One that is not in it is recorded all the same, without
the requests' rooms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from pdctl.engines.sglang import seams
from pdctl.protocol.model import OTHER, REDUCED_QUEUES, SPARE_QUEUES

_HOME = "sglang.srt.disaggregation."
_PIPELINES = "sglang.srt.managers.scheduler_pp_mixin"
_REDUCES = "all_reduce"


def reducers(utils: Any) -> set[str]:
    """Return the functions of ``disaggregation/utils.py`` that lead to the collective."""
    named = {name: seams.names_in(one) for name, one in vars(utils).items() if isinstance(one, FunctionType)}
    found: set[str] = set()
    while more := {name for name, uses in named.items() if name not in found and uses & {_REDUCES, *found}}:
        found |= more
    return found


@dataclass(frozen=True)
class Caller:
    """A function that reduces. owner: its class or module. direct: it calls torch itself. polls: only by poll functions."""

    module: ModuleType
    owner: Any
    name: str
    direct: bool
    polls: bool

    @property
    def title(self) -> str:
        """``DecodeTransferQueue.resolve_deferred_releases``."""
        return self.name if self.owner is self.module else f"{self.owner.__name__}.{self.name}"


def callers(role: str, modules: Mapping[str, Any] | None = None) -> list[Caller]:
    """Return the functions that reduce in this role, the same ones in the same order on all ranks with the same code.

    The methods that poll a queue are left out, but for what they reduce besides; and so are their helpers.
    """
    loaded = sys.modules if modules is None else modules
    utils = loaded.get(seams.UTILS)
    known = reducers(utils) if utils is not None else set[str]()
    plain = known - set(seams.POLL_FUNCTIONS)
    found, polling = [], {spec.method for spec in seams.POLL_METHODS}
    helpers: set[str] = set()
    for module in _modules(loaded, role):
        for owner in _owners(module):
            for name, one in list(vars(owner).items()):
                if not isinstance(one, FunctionType) or name in known or _imported(one, owner):
                    continue
                uses = seams.names_in(one)
                if name in polling:
                    helpers |= uses
                direct = {_REDUCES, "distributed"} <= uses
                if direct or uses & known:
                    found.append(Caller(module, owner, name, direct, polls=not direct and not uses & plain))
    # The polls of a queue are its own rounds, whether its method or a helper of that has them reduced.
    return [one for one in found if not (one.polls and one.name in polling | helpers)]


def _modules(loaded: Mapping[str, Any], role: str) -> Iterator[ModuleType]:
    other = OTHER.get(role, "?")
    for name in sorted(key for key in list(loaded) if key.startswith(_HOME) or key == _PIPELINES):
        module = loaded[name]
        if isinstance(module, ModuleType) and name != seams.UTILS and not name.removeprefix(_HOME).startswith(other):
            yield module


def _imported(function: FunctionType, owner: Any) -> bool:
    """Return whether a module only uses the function, which is another one's: the engine's tools reduce, too."""
    home = function.__module__ or ""
    return isinstance(owner, ModuleType) and home != owner.__name__ and home.startswith("sglang.")


def _owners(module: ModuleType) -> Iterator[Any]:
    yield module
    yield from (
        one for one in list(vars(module).values()) if isinstance(one, type) and one.__module__ == module.__name__
    )


# ---- what is reduced about -------------------------------------------------------------------------------------------


def _from_frame(name: str, local: str, request: Callable[[Any], Any]) -> Callable[..., Sequence[Any]]:
    """Return a function that reads a list that the caller called ``name`` has made: its variable ``local``."""

    def entries(*_: Any, **__: Any) -> Sequence[Any]:
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != name:
            frame = frame.f_back
        return [] if frame is None else [request(one) for one in frame.f_locals.get(local, ())]

    return entries


def _deferred(queue: Any, *_: Any, **__: Any) -> Sequence[Any]:
    return [entry[0] for entry in queue._deferred_releases]


def _host_deferred(queue: Any, *_: Any, **__: Any) -> Sequence[Any]:
    return [entry for entry in _deferred(queue) if queue.enable_host_receive and entry.host_staged]


def _batch(_scheduler: Any, batch: Any, *_: Any, **__: Any) -> Sequence[Any]:
    return list(batch.reqs)


def _nothing(*_: Any, **__: Any) -> Sequence[Any]:
    return ()


_KNOWN: dict[str, tuple[str, Callable[..., Sequence[Any]]]] = {
    # 0.5.23: transfers that failed, and whether their memory must be kept
    "pop_transferred": ("decode.held", _from_frame("pop_transferred", "failed", lambda one: one[1])),
    # 0.5.22 reduces only those that are received in host memory
    "resolve_deferred_releases": ("decode.deferred", _deferred),
    "_verify_kv_checksums": ("decode.checksum", _batch),
    "resolve_waiting_queue_bootstrap": ("prefill.waiting", _nothing),
    "check_bootstrap": ("prefill.chunk", _nothing),
}
assert {queue for queue, _ in _KNOWN.values()} == set(REDUCED_QUEUES)


@dataclass(frozen=True)
class Named:
    """A caller, and the name its rounds are recorded under. steady: it is called in every turn, or by all ranks alike."""

    caller: Caller
    queue: str
    entries: Callable[..., Sequence[Any]]
    steady: bool


def name(found: Iterable[Caller]) -> tuple[list[Named], list[str]]:
    """Return the callers with their names, and the titles of those that there is no name left for."""
    spare = iter(SPARE_QUEUES)
    named, left = [], []
    for one in found:
        queue, entries = _KNOWN.get(one.name, ("", _nothing))
        if one.name == "resolve_deferred_releases" and one.direct:
            entries = _host_deferred
        steady = bool(queue)
        queue = queue or next(spare, "")
        if queue:
            named.append(Named(one, queue, entries, steady))
        else:
            left.append(one.title)
    return named, left
