"""As much of a Kubernetes API server as the real ``kubectl`` asks for ``get pods``, ``exec`` and ``debug``.

Streams are WebSockets (v5.channel.k8s.io). Programs run in the namespaces of :class:`tests.support.pods.Pods`, by the stand-in
kubectl.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.parse import parse_qs, urlsplit

from tests.support.pods import NAMESPACE, Pods

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_PROTOCOL = "v5.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _ERROR, _CLOSE = 0, 1, 2, 3, 255


class ApiServer:
    """Serves the pods on loopback until the ``with`` block ends. kubeconfig: the file that leads kubectl here."""

    def __init__(self, pods: Pods, folder: Path) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"pods": pods, "started": {}}))
        self._server.daemon_threads = True
        self.kubeconfig = folder / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self._server.server_port}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "eve", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "eve"}}],
        }
        self.kubeconfig.write_text(json.dumps(config))

    def __enter__(self) -> ApiServer:  # noqa: PYI034
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pods: Pods
    started: dict[str, subprocess.Popen[bytes]]
    """Ephemeral containers that run, by name."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        base = f"/api/v1/namespaces/{NAMESPACE}/pods"
        if url.path == "/api":
            return self._json({"kind": "APIVersions", "versions": ["v1"]})
        if url.path == "/apis":
            return self._json({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})
        if url.path == "/api/v1":
            pod = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]}
            return self._json({"kind": "APIResourceList", "groupVersion": "v1", "resources": [pod]})
        if url.path == base:
            query = parse_qs(url.query)
            if "watch" in query:
                return self._nothing_happens()
            wanted = query.get("fieldSelector", [""])[0].removeprefix("metadata.name=")
            listed = [one for one in self.pods.listed if wanted in ("", one["metadata"]["name"])]
            items = [{"apiVersion": "v1", "kind": "Pod", **one} for one in listed]
            return self._json(
                {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}
            )
        name, _, verb = url.path.removeprefix(f"{base}/").partition("/")
        pod = next((one for one in self.pods.listed if one["metadata"]["name"] == name), None)
        if pod is None:
            return self._refused(404, "NotFound", f'pods "{name}" not found')
        if not verb:
            return self._json({"apiVersion": "v1", "kind": "Pod", **pod})
        if self.pods.forbids(name):
            why = f'pods "{name}" is forbidden: User "eve" cannot create resource "pods/exec" in the namespace "{NAMESPACE}"'
            return self._refused(403, "Forbidden", why)
        query = parse_qs(url.query)
        beside = self.started.get(query["container"][0])
        return self._stream(beside or self._start(name, "exec", query["command"]))

    def do_PATCH(self) -> None:
        """Start an ephemeral container."""
        name = urlsplit(self.path).path.split("/")[-2]
        [pod] = [one for one in self.pods.listed if one["metadata"]["name"] == name]
        [new] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["spec"]["ephemeralContainers"]
        assert new["targetContainerName"] == "engine"
        assert new["stdin"]
        self.started[new["name"]] = self._start(name, "debug", [f"--image={new['image']}", "--", *new["command"]])
        running = {"name": new["name"], "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        pod["spec"].setdefault("ephemeralContainers", []).append(new)
        pod["status"].setdefault("ephemeralContainerStatuses", []).append(running)
        self._json({"apiVersion": "v1", "kind": "Pod", **pod})

    def _nothing_happens(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.flush()
        self.rfile.read(1)

    def do_POST(self) -> None:
        """Refuse SPDY, which kubectl tries where WebSocket is refused, in the same words."""
        self.do_GET()

    def _json(self, document: dict[str, Any], code: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refused(self, code: int, reason: str, message: str) -> None:
        self._json(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "message": message,
                "reason": reason,
                "code": code,
            },
            code,
        )

    def _start(self, name: str, verb: str, words: list[str]) -> subprocess.Popen[bytes]:
        rest = words if "--" in words else ["--", *words]
        run = [str(self.pods.bin / "kubectl"), f"--namespace={NAMESPACE}", verb, "--stdin", name, *rest]
        return subprocess.Popen(
            run, env=self.pods.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )

    def _stream(self, process: subprocess.Popen[bytes]) -> None:
        self.close_connection = True
        key = self.headers["Sec-WebSocket-Key"]
        accept = base64.b64encode(hashlib.sha1(f"{key}{_GUID}".encode()).digest()).decode()
        self.send_response(101)
        for header, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
            self.send_header(header, value)
        self.send_header("Sec-WebSocket-Protocol", _PROTOCOL)
        self.end_headers()
        self.wfile.flush()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        lock = threading.Lock()
        pumps = [
            threading.Thread(target=self._pump, args=(channel, pipe, lock), daemon=True)
            for channel, pipe in ((_STDOUT, process.stdout), (_STDERR, process.stderr))
        ]
        for pump in pumps:
            pump.start()
        threading.Thread(target=self._feed, args=(process.stdin,), daemon=True).start()
        for pump in pumps:
            pump.join()
        code = process.wait()
        status: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            message = f"command terminated with non-zero exit code: exit status {code}"
            status = {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": message,
                "details": {"causes": causes},
            }
        self._send(_ERROR, json.dumps(status).encode(), lock)
        with lock:
            self.connection.sendall(b"\x88\x02\x03\xe8")
        self.connection.shutdown(socket.SHUT_WR)

    def _pump(self, channel: int, pipe: IO[bytes], lock: threading.Lock) -> None:
        while data := pipe.read(1 << 15):
            self._send(channel, data, lock)

    def _send(self, channel: int, data: bytes, lock: threading.Lock) -> None:
        payload = bytes([channel]) + data
        size = len(payload)
        head = struct.pack("!BB", 0x82, size) if size < 126 else struct.pack("!BBH", 0x82, 126, size)
        with lock:
            self.connection.sendall(head + payload)

    def _feed(self, stdin: IO[bytes]) -> None:
        """Hand what the client sends to the process, until the client closes its input or the connection."""
        try:
            while True:
                first, second = self.rfile.read(2)
                size = second & 0x7F
                if size >= 126:
                    size = int.from_bytes(self.rfile.read(2 if size == 126 else 8), "big")
                mask = self.rfile.read(4)
                data = bytes(byte ^ mask[n % 4] for n, byte in enumerate(self.rfile.read(size)))
                if first & 0x0F == 8 or data[:2] == bytes([_CLOSE, _STDIN]):
                    break
                if data[:1] == bytes([_STDIN]):
                    stdin.write(data[1:])
        except (OSError, ValueError):
            pass
        finally:
            stdin.close()
