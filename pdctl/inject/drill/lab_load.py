"""The requests of a drill on an embedded cluster."""

from __future__ import annotations

import threading

from pdctl.inject.drill.records import LoadLine
from pdctl.inject.drill.schema import LabLoad
from pdctl.lab.client import Client, Load, Outcome, Request
from pdctl.lab.config import LabConfig
from pdctl.protocol import durations
from pdctl.protocol.errors import Exit, PdctlError

FOR_EVER_S = 86_400.0
"""A load has no time of its own: the drill gives it up."""


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
    def answered(self) -> int:
        """Requests answered so far, whatever the answer."""
        return self._client.sent - len(self._client.waiting)

    @property
    def failed(self) -> int:
        """Requests that failed so far."""
        return self._client.failed + self._client.wrong

    @property
    def rooms(self) -> tuple[int, ...]:
        """Rooms of the requests sent."""
        return tuple(self._client.rooms)

    def finish(self, at: float, step: str, ended: str) -> LoadLine:
        """Give up an unfinished load, and return the result."""
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


def plain(spec: LabLoad) -> LabLoad:
    """Return a harmless load of about the same size."""
    return LabLoad(requests=min(spec.requests, 8), prompt_tokens=spec.prompt_tokens, new_tokens=spec.new_tokens)
