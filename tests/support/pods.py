"""Pods: namespaces of processes, mounts, names and network, with a tiny rank in each, and a ``kubectl`` that leads there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.hosts import Hosts
from tests.support.patience import patience
from tests.support.tiny_ranks import ROOT

NAMESPACE = "prod"
TOOLS = "pdctl-tools"
"""An image that has pdctl and no engine."""
_KUBECTL = Path(__file__).with_name("stand_in_kubectl.py")
_UNSHARE = ("unshare", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc")


class Pods:
    """Pods of one namespace. hosts: network namespaces that some of them are in, else each has one of its own."""

    def __init__(self, folder: Path, hosts: Hosts | None = None) -> None:
        self.hosts = hosts
        self.bin, self.image = folder / "bin", folder / "image"
        self._world = folder / "kubectl.json"
        self._pods: dict[str, dict[str, Any]] = {}
        self.listed: list[dict[str, Any]] = []
        """What ``get pods`` lists."""
        self._processes: dict[str, subprocess.Popen[str]] = {}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PDCTL_", "TORCH_FR", "XDG_", "KUBE"))}
        self.env = {
            **kept,
            "PATH": f"{self.bin}:{kept['PATH']}",
            "KUBECTL_STAND_IN": str(self._world),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "COLUMNS": "120",
        }
        for place in (self.bin, self.image):
            place.mkdir()
        self._program(self.bin / "kubectl", f"#!{sys.executable} -IS\n{_KUBECTL.read_text()}")
        for file, name in ((self.bin / "kubectl-pdctl", "kubectl"), (self.image / "pdctl", "main")):
            text = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom pdctl.__main__ import {name}\n{name}()\n"
            self._program(file, f"#!{sys.executable}\n{text}")

    def __enter__(self) -> Pods:  # noqa: PYI034
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.communicate()

    def begin(
        self, name: str, labels: dict[str, str], *args: object, host: int = 0, image: bool = True, forbidden: bool = False,
        state: dict[str, Any] | None = None, **env: str,
    ) -> None:  # fmt: skip
        """Start a pod with a tiny rank. host: whose network it has. image: whether pdctl is in it. state: instead of a rank."""
        container = {"name": "engine", "command": ["python3", "-m", "sglang.launch_server"], "env": []}
        container["env"] = [{"name": key, "value": value} for key, value in env.items() if key == "PDCTL_LISTEN"]
        status = {"name": "engine", "state": state or {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        self.listed.append(
            {
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
                "spec": {"containers": [container]},
                "status": {"phase": "Pending" if state else "Running", "containerStatuses": [status]},
            }
        )
        own = {"TINY_HOST": name, "PDCTL_OUTSIDE": "off", **env}
        self._pods[name] = {"pid": 0, "forbidden": forbidden, "path": str(self.image) if image else "/none", "env": own}
        if state is None:
            run = f"/tmp/pdctl-{os.getuid()}"  # not all of /tmp: this test may be in there
            script = (
                f"mkdir -p -m 0700 {run} && mount -t tmpfs -o mode=0700 tmpfs {run} && mount -t tmpfs tmpfs /dev/shm && "
                f'hostname {name} && ip link set lo up && exec "$@"'
            )
            box: tuple[str, ...] = (*_UNSHARE, "--net")
            if host:
                assert self.hosts is not None
                box = (*self.hosts.inside(host), *_UNSHARE)
            tiny = [sys.executable, "-m", "tests.system.targets.tiny", *map(str, args)]
            self._processes[name] = subprocess.Popen(
                [*box, "sh", "-c", script, "sh", *tiny],
                cwd=ROOT, env={**self.env, **own}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip

    def forbids(self, name: str) -> bool:
        """Return whether nobody may run a thing in a pod."""
        return bool(self._pods[name]["forbidden"])

    def ready(self) -> None:
        """Wait for all ranks, and tell kubectl of the pods."""
        for name, process in self._processes.items():
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready"), name
            [first] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            self._pods[name]["pid"] = int(first)
        world = {"namespace": NAMESPACE, "pods": self._pods, "images": {TOOLS: str(self.image)}, "list": self.listed}
        self._world.write_text(json.dumps(world))

    def kubectl(self, *words: str, real: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``kubectl pdctl``. real: by this kubectl, which has to come first on PATH."""
        return subprocess.run(
            [real or str(self.bin / "kubectl"), "pdctl", *words],
            cwd=ROOT, env={**self.env, **env}, capture_output=True, text=True, timeout=patience(120), check=False,
        )  # fmt: skip

    @staticmethod
    def _program(file: Path, text: str) -> None:
        file.write_text(text)
        file.chmod(0o755)
