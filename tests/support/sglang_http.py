"""What SGLang's HTTP servers and bootstrap server answer before any traffic, on real sockets and without an engine."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SERVER_INFO = {
    "version": "0.5.13.post1", "model_path": "/models/tiny-llama", "served_model_name": "tiny-llama", "tp_size": 1,
    "dp_size": 1, "pp_size": 1, "attn_cp_size": 1, "enable_dp_attention": False, "page_size": 1, "kv_cache_dtype": "auto",
    "disaggregation_transfer_backend": "mooncake", "load_balance_method": "follow_bootstrap_room", "host": "0.0.0.0",
    "speculative_algorithm": None, "enable_hisparse": False, "api_key": "a secret", "internal_states": [{"load": 0}],
}  # fmt: skip
MODEL_INFO = {"model_path": "/models/tiny-llama", "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
ROUTE = {
    "attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 1, "kv_cache_dtype": "auto",
    "follow_bootstrap_room": True,
}  # fmt: skip
Answer = tuple[int, Any]


@dataclass
class Served:
    """One server. answers: path → status and value, or what makes them; bytes are sent as they are. asked: paths, in order."""

    answers: dict[str, Answer | Callable[[BaseHTTPRequestHandler], Answer]]
    port: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(answers: Mapping[str, Any]) -> Iterator[Served]:
    """Serve these answers on a port of loopback; any other path is not found."""
    served = Served(dict(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            served.asked.append(path)
            answer = served.answers.get(path, (404, {"detail": "Not Found"}))
            status, value = answer(self) if callable(answer) else answer
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # who asked may have gone
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        served.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()


def engine(role: str, **changes: Any) -> dict[str, Any]:
    """Return the answers of a healthy server of a role."""
    info = {**SERVER_INFO, "disaggregation_mode": role, **changes}
    return {"/server_info": (200, info), "/model_info": (200, MODEL_INFO), "/health": (200, b"")}


def bootstrap(**changes: Any) -> dict[str, Any]:
    """Return the answers of a bootstrap server that knows all ranks of its prefill server."""

    def route(request: BaseHTTPRequestHandler) -> Answer:
        every = parse_qs(urlsplit(request.path).query)["prefill_dp_rank"] == ["-1"]
        return (200, {**ROUTE, **changes}) if every else (200, {"rank_ip": "10.0.0.1", "rank_port": 4000})

    return {"/route": route, "/health": (200, b"OK")}


@contextlib.contextmanager
def pair(
    prefill: Mapping[str, Any] | None = None,
    decode: Mapping[str, Any] | None = None,
    table: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Served, Served, Served]]:
    """Serve a prefill server, a decode server and the bootstrap server that prefill names."""
    with serving(table or bootstrap()) as known:
        named = {"disaggregation_bootstrap_port": known.port}
        with (
            serving(prefill or engine("prefill", **named)) as first,
            serving(decode or engine("decode", **named)) as second,
        ):
            yield first, second, known
