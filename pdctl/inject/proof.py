"""One request after a fault has ended: whether it is answered, which no rank can say of itself."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdctl.inject.drill.engine_load import EngineRunning, Tokens
from pdctl.inject.drill.lab_load import LabRunning
from pdctl.inject.drill.own_lab import lab_of
from pdctl.inject.drill.schema import LabLoad
from pdctl.inject.drill.servers import Address, Pair, check_version
from pdctl.lab.config import LabConfig
from pdctl.protocol.durations import seconds
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.targets.find import FoundRank

ONE = LabLoad(requests=1, concurrency=1)
_LOOK_S = 0.02


@dataclass(frozen=True)
class Proof:
    """What became of the request. said: it in words. room: 0 where none was sent."""

    answered: bool
    said: str
    room: int = 0


def place(ranks: Sequence[FoundRank], address: Address | None, env: Mapping[str, str]) -> LabConfig | Pair:
    """Return where a request goes: to the servers named, else to the embedded cluster that the ranks are.

    Raises PdctlError: PARTIAL where that is not known, and what asking the servers raises.
    """
    live = [rank.identity for rank in ranks if rank.live]
    if address is not None:
        pair = address.reach()
        check_version(pair, {one.engine_version for one in live} - {""})
        return pair
    clusters = {one.cluster for one in live}
    config = lab_of(clusters.pop(), env) if len(clusters) == 1 else None
    if config is None:
        raise PdctlError(
            "it is not known where a request goes: these ranks are not of one embedded cluster",
            "--prefill-url and --decode-url name your servers",
            Exit.PARTIAL,
        )
    return config


def send(to: LabConfig | Pair, limit_s: float, *, what: str = "a request sent afterwards") -> Proof:
    """Send one request, wait for its answer for so many seconds, then give it up. what: how it is called."""
    began = time.monotonic()
    running: EngineRunning | LabRunning
    if isinstance(to, Pair):
        running = EngineRunning(to, ONE, None, Tokens(), learn=False)
    else:
        running = LabRunning(to, ONE, time.time_ns())
    while not running.over and time.monotonic() < began + limit_s:
        time.sleep(_LOOK_S)
    took = seconds(time.monotonic() - began)
    told = running.finish(0.0, "", "")
    room = f", room {told.rooms[0]}," if told.rooms else ""
    number = next(iter(told.rooms), 0)
    if told.completed:
        return Proof(True, f"{what}{room} was answered after {took}", number)
    why = next(iter(told.errors), "wrong tokens" if told.wrong else f"no answer within {seconds(limit_s)}")
    return Proof(False, f"{what}{room} was not answered: {why}", number)
