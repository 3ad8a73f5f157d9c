"""The parts common to both sides of a transfer (SGLang: ``sglang/srt/disaggregation/common/conn.py``).

A room's status lives in the rank's manager and only ever rises, except that Failed wins. Messages between ranks are
msgpack maps over ZeroMQ PUSH/PULL; the data itself goes through :mod:`pdctl.lab.engine.transport`.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from pdctl.lab.config import KV_CACHE_DTYPE, PAGE_SIZE, LabConfig
from pdctl.lab.engine.memory import KVPool
from pdctl.lab.engine.transport import HOST, Transport
from pdctl.lab.engine.utils import MetadataBuffers
from pdctl.protocol.model import KVPoll

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KVArgs:
    """A rank's place in its server and the memory that its peers write to. dp_rank and dp_size are the server's."""

    engine_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    dp_rank: int
    dp_size: int
    pool: KVPool
    metadata: MetadataBuffers


class UnexpectedMessageError(Exception):
    """A message that this rank has no code for. The engine asserts that none comes."""


class CommonKVManager:
    """Status of rooms, the rank's message socket, and writes to peers."""

    role = ""

    def __init__(self, args: KVArgs, config: LabConfig, bootstrap_addr: str, transport: Transport) -> None:
        self.kv_args = args
        self.attn_dp_rank = args.dp_rank
        self.config = config
        self.bootstrap_addr = bootstrap_addr
        self.engine = transport
        self.local_ip = HOST
        self.request_status: dict[int, KVPoll] = {}
        self.failure_records: dict[int, str] = {}
        self.failure_lock = threading.Lock()
        self.aux_ptrs, self.aux_lens, self.aux_item_lens = args.metadata.get_buf_infos()
        self.kv_ptrs = args.pool.data_ptrs()
        if config.metadata_device == "cpu":
            for pointer, length in zip(self.aux_ptrs, self.aux_lens, strict=True):
                transport.register(pointer, length)
        for pointer in self.kv_ptrs:
            transport.register(pointer, args.pool.size * args.pool.item_len)
        self.context = zmq.Context()
        self.server_socket = self.context.socket(zmq.PULL)
        self.rank_port = self.server_socket.bind_to_random_port(f"tcp://{HOST}")
        self._peers: dict[str, zmq.Socket[bytes]] = {}
        self._peers_lock = threading.Lock()

    def kv_format(self) -> tuple[int, str]:
        """Return (page size, KV cache dtype) that this side says it has."""
        told = self.config.settings(self.role)
        return int(told.get("page_size", PAGE_SIZE)), told.get("kv_cache_dtype", KV_CACHE_DTYPE)

    def check_status(self, bootstrap_room: int) -> KVPoll:
        """Return the status of a room. Raises KeyError for an unknown one."""
        return self.request_status[bootstrap_room]

    def update_status(self, bootstrap_room: int, status: KVPoll) -> None:
        """Raise a room's status; Failed wins, and does not bring back a room that was cleared."""
        old = self.request_status.get(bootstrap_room)
        if old is None:
            if status != KVPoll.FAILED:
                self.request_status[bootstrap_room] = status
        elif status == KVPoll.FAILED:
            self.request_status[bootstrap_room] = status
        else:
            self.request_status[bootstrap_room] = max(old, status)

    def record_failure(self, bootstrap_room: int, failure_reason: str) -> None:
        """Keep the reason of a failure until somebody asks for it."""
        with self.failure_lock:
            self.failure_records[bootstrap_room] = failure_reason

    def failure_of(self, bootstrap_room: int) -> str:
        """Take the reason of a room's failure."""
        with self.failure_lock:
            return self.failure_records.pop(bootstrap_room, "failed for an unknown reason on another rank")

    def tell(self, port: int, message: dict[str, Any]) -> None:
        """Send a message to the rank that listens on ``port``. Any thread."""
        endpoint = f"tcp://{HOST}:{port}"
        with self._peers_lock:
            peer = self._peers.get(endpoint)
            if peer is None:
                peer = self.context.socket(zmq.PUSH)
                peer.setsockopt(zmq.LINGER, 0)
                peer.connect(endpoint)
                self._peers[endpoint] = peer
            peer.send(msgspec.msgpack.encode(message))

    def serve(self) -> None:
        """Handle messages from peers, one at a time. Raises UnexpectedMessageError, which ends its thread."""
        while True:
            data = self.server_socket.recv()
            try:
                self.handle(msgspec.msgpack.decode(data))
            except UnexpectedMessageError:
                raise
            except Exception:
                log.exception("a message of %d bytes was not handled", len(data))

    def handle(self, message: dict[str, Any]) -> None:
        """Act on one message from a peer."""
        raise NotImplementedError
