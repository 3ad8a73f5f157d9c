"""The requests of a drill: sent by pdctl to an embedded cluster or to real servers, or by the operator's command."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pdctl.inject.drill import engine_load, lab_load
from pdctl.inject.drill.engine_load import EngineRunning, Tokens
from pdctl.inject.drill.lab_load import LabRunning
from pdctl.inject.drill.records import LoadLine
from pdctl.inject.drill.schema import LabLoad
from pdctl.inject.drill.servers import Pair
from pdctl.lab.config import LabConfig
from pdctl.protocol.errors import Exit, PdctlError

PLAIN = "PDCTL_DRILL_PLAIN"
NO_HARM = 3


class Running(Protocol):
    """A load on its way."""

    @property
    def over(self) -> bool:
        """Whether every request has been answered."""

    @property
    def answered(self) -> int:
        """Requests answered so far, whatever the answer."""

    @property
    def failed(self) -> int:
        """Requests that failed so far."""

    @property
    def rooms(self) -> tuple[int, ...]:
        """Rooms of the requests sent, where pdctl chose them."""

    def finish(self, at: float, step: str, ended: str) -> LoadLine:
        """Give up an unfinished load, and return the result."""


class CommandRunning:
    """An operator's command: one load, good when it exits with 0. Its output goes where pdctl's notes go.

    PLAIN in its environment is 1 if the load must be harmless (steady state, afterwards), 0 for the drill's own load.
    If the load is the drill's cause, exit status NO_HARM means that it could not break anything.
    """

    rooms: tuple[int, ...] = ()

    def __init__(self, command: Sequence[str], *, plain: bool) -> None:
        self._plain = plain
        env = {**os.environ, PLAIN: str(int(plain))}
        try:
            self._process = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=2, env=env)
        except OSError as error:
            raise PdctlError(
                f"the load {command[0]!r} can't be started: {error.strerror}", "see load.command", Exit.USAGE
            ) from None

    @property
    def over(self) -> bool:
        """Whether it has exited."""
        return self._process.poll() is not None

    @property
    def answered(self) -> int:
        """Requests answered so far, whatever the answer."""
        return int(self.over)

    @property
    def failed(self) -> int:
        """1 when it has exited with another status than 0."""
        return int(self._process.poll() not in (None, 0))

    def finish(self, at: float, step: str, ended: str) -> LoadLine:
        """End the command if it runs, and return the result."""
        status = self._process.poll()
        if status is None:
            self._process.kill()
            self._process.wait()
        errors = {} if status in (None, 0) else {f"exit status {status}": 1}
        harm = "" if self._plain or status == NO_HARM else "what the load's command does"
        return LoadLine(
            at=at, step=step, ended=ended, sent=1, completed=int(status == 0), failed=self.failed * (status is not None),
            unfinished=int(status is None), errors=errors, harm=harm,
        )  # fmt: skip


class Patience:
    """The waiting time for a load: ``settle_s`` from its start, or from the last answered request.

    So a slow machine, or a large load, does not count as a hang.
    """

    def __init__(self, load: Running | None, settle_s: float, now: float) -> None:
        self._load, self._settle_s = load, settle_s
        self._answered = load.answered if load is not None else 0
        self._end = now + settle_s

    def over(self, now: float) -> bool:
        """Return whether it has been waited for long enough at ``now`` (``time.monotonic``)."""
        answered = self._load.answered if self._load is not None else 0
        if answered != self._answered:
            self._answered, self._end = answered, now + self._settle_s
        return now >= self._end


@dataclass(frozen=True)
class Sender:
    """Starts a drill's loads. to: the embedded cluster or the servers that they go to, None where there are none."""

    drill_load: LabLoad | tuple[str, ...] | None
    to: LabConfig | Pair | None
    seed: int
    tokens: Tokens = field(default_factory=Tokens)

    def start(self, number: int, *, plain: bool) -> Running | None:
        """Start the ``number``-th load; ``plain``: without what makes it a cause of damage. None: the operator sends."""
        if self.drill_load is None:
            return None
        if isinstance(self.drill_load, tuple):
            return CommandRunning(self.drill_load, plain=plain)
        if self.to is None:
            raise PdctlError(
                "this drill sends requests, and it is not known where to: these ranks are of no embedded cluster",
                "--prefill-url and --decode-url name your servers; --lab starts an embedded cluster; "
                "--load none relies on your own traffic; or write load: {command: […]}",
                Exit.USAGE,
            )
        seed = 3 * self.seed + number
        if isinstance(self.to, Pair):
            if plain:  # rooms of its own every time: a server may remember the last run's
                return EngineRunning(self.to, engine_load.plain(self.drill_load), None, self.tokens, learn=number == 0)
            return EngineRunning(self.to, self.drill_load, seed, self.tokens, learn=False)
        return LabRunning(self.to, lab_load.plain(self.drill_load) if plain else self.drill_load, seed)
