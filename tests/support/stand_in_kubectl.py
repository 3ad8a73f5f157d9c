"""A stand-in for ``kubectl``: does what it is told in the namespaces of pods that :mod:`tests.support.pods` has made.

It is copied to a file called ``kubectl`` and run with the standard library alone. KUBECTL_STAND_IN names a JSON file: pods by
name, each with pid (of its first process, 0: none runs), path (of the programs of its image) and forbidden; ``images``
by name, and ``list``, what ``get pods`` prints. Its words are those of kubectl 1.32.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

_CLONE_NEWNET = 0x40000000


def fail(text: str, code: int = 1) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(code)


def options(words: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the options, the other words, and what is after ``--``."""
    at = words.index("--") if "--" in words else len(words)
    given = dict(word.removeprefix("--").partition("=")[::2] for word in words[:at] if word.startswith("--"))
    return given, [word for word in words[:at] if not word.startswith("--")], words[at + 1 :]


def main(words: list[str]) -> None:
    if words[:1] == ["pdctl"]:  # as kubectl finds its plug-ins
        os.execvp("kubectl-pdctl", ["kubectl-pdctl", *words[1:]])
    world: dict[str, Any] = json.loads(Path(os.environ["KUBECTL_STAND_IN"]).read_text())
    given, (verb, *names), command = options(words)
    if given.get("context") == "gone":
        fail("Unable to connect to the server: dial tcp: lookup gone: no such host")
    if verb == "get":
        assert names == ["pods"], names
        return listed(world, given)
    [name] = [name.removeprefix("pod/") for name in names if not name.startswith(":")]
    pod = world["pods"].get(name) if given.get("namespace") == world["namespace"] else None
    if pod is None:
        fail(f'Error from server (NotFound): pods "{name}" not found')
    if pod["forbidden"]:
        what = {"exec": "exec", "debug": "ephemeralcontainers", "port-forward": "portforward"}[verb]
        fail(
            f'Error from server (Forbidden): pods "{name}" is forbidden: User "eve" cannot create resource "pods/{what}" '
            f'in API group "" in the namespace "{world["namespace"]}"'
        )
    if not pod["pid"]:
        fail(f'error: unable to upgrade connection: container not found ("{given.get("container", "")}")')
    if verb == "port-forward":
        return forward(pod, [int(one[1:]) for one in names if one.startswith(":")])
    assert given["stdin"] == "", given
    run(pod, command, tools=world["images"][given["image"]] if verb == "debug" else "")
    return None


def listed(world: dict[str, Any], given: dict[str, str]) -> None:
    items = world["list"] if given.get("namespace") == world["namespace"] else []
    key, _, value = given.get("selector", "").partition("=")
    chosen = [one for one in items if not key or one["metadata"]["labels"].get(key) == value]
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": chosen}))


def run(pod: dict[str, Any], command: list[str], *, tools: str) -> None:
    """Become the command in a pod. tools: the programs of a container of its own, which shares the pod's processes only."""
    inside = ["nsenter", f"--target={pod['pid']}", "--pid", "--net", "--uts"]
    path, env = (f"{tools}:/usr/bin:/bin", {}) if tools else (f"{pod['path']}:/usr/bin:/bin", pod["env"])
    inside += ["unshare", "--mount", "--mount-proc"] if tools else ["--mount"]
    found = [Path(folder, command[0]) for folder in path.split(":") if Path(folder, command[0]).exists()]
    if not found:
        fail(
            f'error: Internal error occurred: error executing command in container: exec: "{command[0]}": executable file '
            "not found in $PATH"
        )
    os.chdir("/")
    os.execvpe(inside[0], [*inside, "--", str(found[0]), *command[1:]], {"PATH": path, "HOME": "/root", **env})


def forward(pod: dict[str, Any], ports: list[int]) -> None:
    """Relay a free port of loopback to each port of the pod's own loopback."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    theirs = os.open(f"/proc/{pod['pid']}/ns/net", os.O_RDONLY)
    for port in ports:
        listening = socket.create_server(("127.0.0.1", 0))
        print(f"Forwarding from 127.0.0.1:{listening.getsockname()[1]} -> {port}", flush=True)
        threading.Thread(target=accept, args=(listening, port, own, theirs), daemon=True).start()
    while True:
        time.sleep(1000)


def accept(listening: socket.socket, port: int, own: int, theirs: int) -> None:
    libc = ctypes.CDLL(None)
    while True:
        near, _ = listening.accept()
        assert not libc.setns(theirs, _CLONE_NEWNET)  # of this thread
        far = socket.socket()
        assert not libc.setns(own, _CLONE_NEWNET)
        try:
            far.connect(("127.0.0.1", port))
        except OSError as error:
            print(f"E0101 an error occurred forwarding: connect to 127.0.0.1:{port}: {error}", file=sys.stderr)
            near.close()
            continue
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=relay, args=(one, other), daemon=True).start()


def relay(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
