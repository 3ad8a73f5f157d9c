"""A decode rank's heartbeats: Mooncake's own KV manager of this version, without memory, against a real HTTP server.

Run in the engine's environment; prints one JSON line of what happened. What is the engine's: the thread that sends heartbeats,
its pool of sessions, what it does when a server does not answer. What stands in: the constructor, which wants pools and
a transfer engine.
"""

from __future__ import annotations

import http.server
import json
import os
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import requests
import zmq
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager

from pdctl.engines.base import Hooks
from pdctl.engines.sglang import faults
from pdctl.faults.fault import AimedRank, Fault
from pdctl.faults.table import FaultTable

LIMIT_S = 60.0


class Health(http.server.BaseHTTPRequestHandler):
    """Answers every heartbeat, and counts them."""

    protocol_version = "HTTP/1.1"
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


def make_manager(address: str, room: int) -> Any:
    """Make a manager that knows one prefill server and has one room of it."""
    socket = zmq.Context.instance().socket(zmq.PULL)
    socket.bind_to_random_port("tcp://127.0.0.1")
    manager = MooncakeKVManager.__new__(MooncakeKVManager)
    manager.__dict__.update(
        server_socket=socket,
        request_status={room: KVPoll.WaitingForInput},
        failure_records={},
        failure_lock=threading.Lock(),
        connection_pool={},
        connection_lock=threading.Lock(),
        prefill_info_table={address: object()},
        heartbeat_failures={},
        session_pool=defaultdict(requests.Session),
        session_pool_lock=threading.Lock(),
        addr_to_rooms_tracker=defaultdict(set, {address: {room}}),
        heartbeat_interval=0.1,
        max_failures=2,
        server_args=SimpleNamespace(enable_pd_role_switch=False),
        disaggregation_mode="decode",
        deferred_bootstrap=None,
        _heartbeat_shutdown=threading.Event(),
        _stopped=False,
        _worker_threads=[],
    )
    return manager


def until(what: str, look: Callable[[], Any]) -> None:
    end = time.monotonic() + LIMIT_S
    while not look():
        if time.monotonic() > end:
            raise AssertionError(f"never came: {what}")
        time.sleep(0.01)


def more_heartbeats(count: int) -> None:
    wanted = Health.asked + count
    until(f"{count} heartbeats", lambda: Health.asked >= wanted)


def run() -> dict[str, Any]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, room, table = f"127.0.0.1:{server.server_port}", 7, FaultTable(True)
    manager = make_manager(address, room)
    hooks, backend = Hooks(), SimpleNamespace(manager=manager, deadly_abort=lambda _: "")
    before = {seam.name: seam.present for seam in faults.install(Hooks(), "decode", backend, FaultTable(False))}
    manager.start_decode_thread()
    seams = {seam.name: seam for seam in faults.install(hooks, "decode", backend, table)}
    more_heartbeats(3)
    quiet = int(manager.request_status[room])
    now = time.monotonic()
    table.arm(Fault("f", "silence-heartbeat", 500.0, now + 500, None, "test", (AimedRank(),)))
    until("the room fails", lambda: manager.request_status[room] == KVPoll.Failed)
    until("the server is forgotten", lambda: address not in manager.prefill_info_table)
    asked = Health.asked
    manager.prefill_info_table[address] = object()  # as the next request has it
    until("it is given up again", lambda: address not in manager.prefill_info_table)
    fired = table.status()[0].fired
    silent = Health.asked - asked
    table.heal()
    manager.prefill_info_table[address] = object()
    more_heartbeats(3)
    until("it counts as answered", lambda: manager.heartbeat_failures.get(address) == 0)
    return {
        "without_thread": before["fault.silence-heartbeat"],
        "present": seams["fault.silence-heartbeat"].present,
        "before": quiet,
        "fired": fired,
        "sent_while_silent": silent,
        "reason": manager.failure_records[room],
        "errors": hooks.errors(),
    }


if __name__ == "__main__":
    status = 1
    try:
        print(json.dumps(run()), flush=True)
        status = 0
    except BaseException:  # noqa: BLE001  # said, then the process ends
        traceback.print_exc()
    finally:
        os._exit(status)  # the engine's threads are no daemons in every version
