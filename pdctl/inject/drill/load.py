"""The requests of a drill: sent by pdctl to an embedded cluster, or by the operator's command."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pdctl import durations
from pdctl.errors import Exit, PdctlError
from pdctl.inject.drill.records import LoadLine
from pdctl.inject.drill.schema import LabLoad
from pdctl.lab.client import Client, Load, Outcome, Request
from pdctl.lab.config import LabConfig

PLAIN = "PDCTL_DRILL_PLAIN"
NO_HARM = 3
FOR_EVER_S = 86_400.0
"""A load has no time of its own: the drill gives it up."""


class Running(Protocol):
    """A load on its way."""

    @property
    def over(self) -> bool:
        """Whether every request has been answered."""

    @property
    def failed(self) -> int:
        """Requests that failed so far."""

    @property
    def rooms(self) -> tuple[int, ...]:
        """Rooms of the requests sent, where pdctl chose them."""

    def finish(self, at: float, step: str, ended: str) -> LoadLine:
        """Give it up where it is not over, and return what came of it."""


class _Noting(Client):
    """Keeps the rooms it sends, and counts those sent against ``room % dp_size``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rooms: list[int] = []
        self.misrouted = 0

    def send(self) -> Request:
        request = super().send()
        self.rooms.append(request.room)
        follows = self.config.load_balance == "follow_bootstrap_room"
        self.misrouted += follows and request.room % self.config.prefill.dp != request.prefill_dp
        return request


class LabRunning:
    """Requests to an embedded cluster, sent on a thread of its own."""

    def __init__(self, config: LabConfig, spec: LabLoad, seed: int) -> None:
        if spec.prefill_dp >= config.prefill.dp:
            raise PdctlError(
                f"there is no prefill dp {spec.prefill_dp}", f"this lab has {config.prefill.dp}", Exit.USAGE
            )
        abort = durations.parse(spec.abort_after, most_s=FOR_EVER_S) if spec.abort_after else 0.0
        self._load = Load(
            requests=spec.requests, concurrency=spec.concurrency, rate=spec.rate, seconds=FOR_EVER_S,
            prompt_tokens=spec.prompt_tokens, new_tokens=spec.new_tokens, room=spec.room, prefill_dp=spec.prefill_dp,
            to=spec.to, abort_after_s=abort, seed=seed,
        )  # fmt: skip
        self._client = _Noting(config, self._load)
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pdctl-load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._client.run()
        except BaseException as error:  # noqa: BLE001 - raised again by finish(), on the drill's thread
            self._error = error
        finally:
            self._client.close()

    @property
    def over(self) -> bool:
        """Whether every request has been answered."""
        return not self._thread.is_alive()

    @property
    def failed(self) -> int:
        """Requests that failed so far."""
        return self._client.failed + self._client.wrong

    @property
    def rooms(self) -> tuple[int, ...]:
        """Rooms of the requests sent."""
        return tuple(self._client.rooms)

    def finish(self, at: float, step: str, ended: str) -> LoadLine:
        """Give it up where it is not over, and return what came of it."""
        self._client.stopping = True
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        o = self._outcome
        return LoadLine(
            at=at, step=step, ended=ended, sent=o.sent, completed=o.completed, failed=o.failed, wrong=o.wrong,
            unfinished=o.unfinished, aborted=o.aborted, misrouted=self._client.misrouted, errors=o.errors,
            rooms=self.rooms[:1000],
        )  # fmt: skip


class CommandRunning:
    """An operator's command: one load, good when it exits with 0. Its output goes where pdctl's notes go.

    PLAIN in its environment is 1 where the load must do no harm (steady state, afterwards), 0 where it is the drill's own.
    Where it is the drill's cause, exit status NO_HARM says that it could not do its harm.
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
    def failed(self) -> int:
        """1 when it has exited with another status than 0."""
        return int(self._process.poll() not in (None, 0))

    def finish(self, at: float, step: str, ended: str) -> LoadLine:
        """End it where it has not exited, and return what came of it."""
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


@dataclass(frozen=True)
class Sender:
    """Starts a drill's loads. lab: the embedded cluster they go to, None where there is none."""

    drill_load: LabLoad | tuple[str, ...] | None
    lab: LabConfig | None
    seed: int

    def start(self, number: int, *, plain: bool) -> Running | None:
        """Start the ``number``-th load; ``plain``: without what makes it a cause of damage. None: the operator sends."""
        if self.drill_load is None:
            return None
        if isinstance(self.drill_load, tuple):
            return CommandRunning(self.drill_load, plain=plain)
        if self.lab is None:
            raise PdctlError(
                "this drill sends its requests to an embedded cluster, and these ranks are of none",
                "--lab starts one; --load none relies on your own traffic; or write load: {command: […]}",
                Exit.USAGE,
            )
        spec = self.drill_load
        if plain:
            spec = LabLoad(requests=min(spec.requests, 8), prompt_tokens=spec.prompt_tokens, new_tokens=spec.new_tokens)
        return LabRunning(self.lab, spec, 3 * self.seed + number)
