"""Reads a lab rank's queues and metadata slots, which are where SGLang's are. What a request is differs."""

from __future__ import annotations

from typing import Any

from pdctl.engines.sglang import queues
from pdctl.protocol.model import UNKNOWN, QueueEntry


class QueueReader(queues.QueueReader):
    """The queues of one lab rank. Ages are seconds since the rank got the request."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler, scheduler.role)

    def running(self) -> list[Any]:
        """Return the requests that are computed."""
        return list({id(req): req for req in (*self._scheduler.running_batch, *self._scheduler.cur_batch)}.values())

    @staticmethod
    def _entries(entries: list[Any], age: str, statuses: Any, now: float) -> list[QueueEntry]:
        del age  # a request's only time is that of its arrival, on the same clock
        return [
            QueueEntry(
                req.bootstrap_room,
                req.rid,
                entry.metadata_buffer_index,
                int(statuses.get(req.bootstrap_room, UNKNOWN)),
                now - req.entered,
            )
            for entry in entries
            for req in (getattr(entry, "req", entry),)
        ]
