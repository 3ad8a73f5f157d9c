"""The prefill server's bootstrap server: the routes of SGLang's ``CommonKVBootstrapServer`` (``common/conn.py``).

``GET /health`` · ``PUT /route`` registers a rank · ``GET /route?prefill_dp_rank=&prefill_cp_rank=&target_tp_rank=&
target_pp_rank=`` finds one (all -1: sizes of the server, 503 until every rank has registered) · ``POST
/register_dp_rank`` · ``POST /query_dp_ranks``. Standard library only.
"""

from __future__ import annotations

import http.client
import http.server
import json
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pdctl.lab.engine.transport import HOST

_SIZES = ("attn_tp_size", "attn_cp_size", "pp_size")


class Directory:
    """What the bootstrap server knows: where each prefill rank listens and which dp rank registered for a room."""

    def __init__(self, entry_cleanup_s: float) -> None:
        self._lock = threading.Lock()
        self._cleanup = entry_cleanup_s
        self._info: dict[str, Any] = {}
        self._ranks: dict[tuple[int, int, int, int], dict[str, Any]] = {}
        self._rooms: dict[int, tuple[int, float]] = {}

    def put_route(self, data: dict[str, Any]) -> None:
        """Register a rank. Raises KeyError for a missing field."""
        plain_dp = data["system_dp_size"] != 1
        place = (
            int(data["system_dp_rank"] if plain_dp else data["attn_dp_rank"]),
            int(data["attn_cp_rank"]),
            int(data["attn_tp_rank"]),
            int(data["pp_rank"]),
        )
        balance = data.get("load_balance_method", "follow_bootstrap_room")
        with self._lock:
            for key in _SIZES:
                self._info.setdefault(key, int(data[key]))
            self._info.setdefault("dp_size", int(data["system_dp_size"] if plain_dp else data["attn_dp_size"]))
            self._info.setdefault("page_size", data["page_size"])
            self._info.setdefault("kv_cache_dtype", data["kv_cache_dtype"])
            self._info.setdefault("follow_bootstrap_room", balance == "follow_bootstrap_room")
            self._ranks[place] = {"rank_ip": data["rank_ip"], "rank_port": int(data["rank_port"])}

    def get_route(self, dp: int, cp: int, tp: int, pp: int) -> tuple[int, Any]:
        """Return (status, body) of a route query."""
        with self._lock:
            info = self._info
            expected = 1
            for key in (*_SIZES, "dp_size"):
                expected *= info.get(key, 0)
            if not info or len(self._ranks) < expected:
                return 503, f"Prefill server not fully registered yet ({len(self._ranks)} workers registered)."
            if (dp, cp, tp, pp) == (-1, -1, -1, -1):
                return 200, dict(info)
            found = self._ranks.get((dp, cp, tp, pp))
        if found is None:
            return 404, f"Bootstrap info not found for dp_rank={dp} cp_rank={cp} tp_rank={tp} pp_rank={pp}"
        return 200, found

    def register_dp_rank(self, room: int, dp_rank: int) -> None:
        """Note which dp rank has a room; entries that are too old go."""
        now = time.monotonic()
        with self._lock:
            self._rooms[room] = (dp_rank, now)
            for old in [key for key, (_, since) in self._rooms.items() if now - since > self._cleanup]:
                del self._rooms[old]

    def query_dp_ranks(self, rooms: list[int]) -> dict[str, int]:
        """Return the dp rank of every room that has one; the others are left out."""
        with self._lock:
            return {str(room): self._rooms[room][0] for room in rooms if room in self._rooms}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    directory: Directory
    slow_s = 0.0

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def _answer(self, status: int, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> dict[str, Any]:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if not isinstance(body, dict):
            raise TypeError("an object is wanted")
        return body

    def do_GET(self) -> None:
        """Health and routes."""
        time.sleep(self.slow_s)
        url = urlsplit(self.path)
        if url.path == "/health":
            self._answer(200, "OK")
        elif url.path == "/route":
            query = parse_qs(url.query)
            try:
                dp, cp, tp, pp = (
                    int(query[key][0])
                    for key in ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
                )
            except (KeyError, ValueError):
                self._answer(400, "Missing inputs for bootstrap server.")
                return
            self._answer(*self.directory.get_route(dp, cp, tp, pp))
        else:
            self._answer(404, "Not found")

    def do_PUT(self) -> None:
        """Registration of a rank."""
        try:
            self.directory.put_route(self._body())
        except (KeyError, TypeError, ValueError) as error:
            self._answer(400, f"{type(error).__name__}: {error}")
            return
        self._answer(200, "OK")

    def do_POST(self) -> None:
        """Registration and query of dp ranks."""
        time.sleep(self.slow_s)
        try:
            data = self._body()
            if self.path == "/register_dp_rank":
                self.directory.register_dp_rank(int(data["bootstrap_room"]), int(data["dp_rank"]))
                self._answer(200, "OK")
            elif self.path == "/query_dp_ranks":
                self._answer(200, self.directory.query_dp_ranks([int(room) for room in data["bootstrap_rooms"]]))
            else:
                self._answer(404, "Not found")
        except (KeyError, TypeError, ValueError) as error:
            self._answer(400, f"{type(error).__name__}: {error}")


class CommonKVBootstrapServer(http.server.ThreadingHTTPServer):
    """The server, on ``port`` or on a free one (0): ``server_port``. Call ``serve_forever``.

    slow_s: seconds before an answer to anything but the registration of a rank. Raises OSError where the port can't be had.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, entry_cleanup_s: float, port: int = 0, slow_s: float = 0.0) -> None:
        handler = type("Handler", (_Handler,), {"directory": Directory(entry_cleanup_s), "slow_s": slow_s})
        super().__init__((HOST, port), handler)


def call(address: str, method: str, path: str, body: Any = None, timeout_s: float = 5.0) -> tuple[int, Any]:
    """Ask a bootstrap server; returns (status, decoded body, or its text for anything but JSON). Raises OSError."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        data = response.read()
    except http.client.HTTPException as error:
        raise OSError(f"{address} does not speak HTTP: {error}") from error
    finally:
        connection.close()
    text = data.decode("utf-8", "replace")
    return response.status, json.loads(text) if "json" in response.headers.get("Content-Type", "") else text
