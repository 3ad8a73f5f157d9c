"""SGLang's own poll and reduction over polls that a replay dictates (``sglang.srt.disaggregation.utils``)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

_ARGS = SimpleNamespace(disaggregation_transfer_backend="mooncake")


class NoEngine(RuntimeError):  # noqa: N818
    """Why the installed engine can't be used, in words."""


def functions() -> tuple[Any, bool]:
    """Return ``poll_and_all_reduce`` and whether it takes what the metadata gate needs. Raises NoEngine."""
    try:
        from sglang.srt.disaggregation import utils
    except ImportError as error:
        raise NoEngine(f"SGLang can't be imported here: {error}") from None
    function = utils.poll_and_all_reduce
    return function, "decode_reqs" in inspect.signature(function).parameters


def _fake_host() -> str:
    from sglang.srt.disaggregation import utils

    return str(getattr(utils, "FAKE_BOOTSTRAP_HOST", "2.2.2.2"))


class _Poller:
    """A receiver whose poll is given."""

    require_staging = False

    def __init__(self) -> None:
        self.value = 0

    def poll(self) -> int:
        return self.value


class EnginePoll:
    """The engine's ``poll_and_all_reduce``, with its ``_apply_metadata_gate`` where ``gate``. Raises NoEngine.

    rows: the tensor (slots, columns) of rooms that the gate looks at. group: None for the default group.
    """

    def __init__(self, rows: Any, group: Any, *, gate: bool) -> None:
        import torch.distributed as dist

        self._function, has_gate = functions()
        if gate and not has_gate:
            raise NoEngine("this SGLang has no metadata gate")
        self._fake = _fake_host()
        self._group = group if group is not None else dist.group.WORLD
        self._buffers = SimpleNamespace(bootstrap_room=rows)
        self._gate = gate
        self._takes_args = "server_args" in inspect.signature(self._function).parameters
        self._pollers: list[_Poller] = []

    def reduced(self, polls: Sequence[int], slots: Sequence[int], rooms: Sequence[int]) -> list[int]:
        """Return what the engine makes of a rank's polls of the requests in these slots, with these rooms."""
        while len(self._pollers) < len(polls):
            self._pollers.append(_Poller())
        pollers = self._pollers[: len(polls)]
        for poller, value in zip(pollers, polls, strict=True):
            poller.value = value
        if not self._gate:
            return list(self._function(pollers, self._group))
        entries = [
            SimpleNamespace(
                # Without a room it is a warm-up, which the engine knows by its host and which no gate holds.
                req=SimpleNamespace(bootstrap_host="127.0.0.1" if room else self._fake, bootstrap_room=room),
                metadata_buffer_index=slot,
                kv_receiver=poller,
            )
            for slot, room, poller in zip(slots, rooms, pollers, strict=True)
        ]
        more = (_ARGS,) if self._takes_args else ()
        return list(self._function(pollers, self._group, entries, self._buffers, *more))
