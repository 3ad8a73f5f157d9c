"""One request in a server (SGLang: ``managers/schedule_batch.py``)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdctl.lab.engine.sender import KVSender


@dataclass(eq=False)
class Req:
    """One request in a server. kv: places in the KV pool, in order of position. tag: the client's connection."""

    rid: str
    bootstrap_room: int
    origin_input_ids: list[int]
    max_new_tokens: int
    reply: str
    bootstrap_host: str = ""
    bootstrap_port: int = 0
    tag: int = 0
    req_pool_idx: int | None = None
    output_ids: list[int] = field(default_factory=list)
    kv: list[int] = field(default_factory=list)
    saved_kv: Any = None
    metadata_buffer_index: int = -1
    disagg_kv_sender: KVSender | None = None
    finished_reason: str = ""
    is_aborted: bool = False
    entered: float = field(default_factory=time.monotonic)

    def abort(self, reason: str) -> None:
        """Mark the request as ended for ``reason`` (SGLang: ``prepare_abort``)."""
        self.is_aborted = True
        self.finished_reason = reason
