"""``kubectl pdctl`` on the two sides of a deployment: twelve pods, of which three can't be looked into.

Kubernetes is a stand-in: ``kubectl`` does what it is told in real namespaces. What the real one does is in docs/kubernetes.md.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_server import ApiServer
from tests.support.curve import Keyring
from tests.support.hosts import Hosts, why_not
from tests.support.patience import patience
from tests.support.pods import NAMESPACE, TOOLS, Pods
from tests.support.tiny_ranks import patient

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]
LWS, RBG = "leaderworkerset.sigs.k8s.io/name", "rolebasedgroup.workloads.x-k8s.io"
PORT = 29_531
ON = ("-n", NAMESPACE)
SHUT = {"no-agent": "decode-3", "not-ready": "decode-4", "forbidden": "decode-5"}


@pytest.fixture
def pods(tmp_path: Path, ring: Keyring) -> Iterator[Pods]:
    """Six prefill servers, three decode pods that are one server with a real group over their network, and three others."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Hosts(3, delay_ms=0, loss=0) as hosts, Pods(tmp_path, hosts) as made:
        for n in range(6):
            listens = {"PDCTL_LISTEN": "tcp://127.0.0.1:7311-7313", **ring.env} if n < 2 else {}
            role = {"TINY_ROLE": "prefill", "TINY_SERVICE": f"prefill-{n}", "TINY_WORLD": f"prefill-{n}"}
            app = "listens" if listens else "prefill"
            made.begin(f"prefill-{n}", {LWS: "r1-prefill", "app": app}, "--count", 2, **role, **listens)
        labels = {f"{RBG}/name": "r1", f"{RBG}/role": "decode", "app": "decode"}
        for n in range(3):
            group = ("--rank", n, "--size", 3, "--port", PORT, "--host", Hosts.address(1), "--then", "loop")
            made.begin(f"decode-{n}", labels, *group, host=n + 1, GLOO_SOCKET_IFNAME="eth0")
        made.begin(SHUT["no-agent"], labels, "--count", 1, image=False, TINY_SERVICE="bare")
        made.begin(SHUT["not-ready"], labels, state={"waiting": {"reason": "ImagePullBackOff", "message": "back-off"}})
        made.begin(SHUT["forbidden"], labels, "--count", 1, forbidden=True, TINY_SERVICE="closed")
        made.ready()
        yield made


def shown(done: Any, code: int) -> dict[str, Any]:
    assert done.returncode == code, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_two_sides_in_twelve_pods_are_one_cluster(pods: Pods, ring: Keyring) -> None:
    rows = shown(pods.kubectl("ranks", *ON, "-o", "json", *patient()), 3)["ranks"]
    assert len(rows) == 12
    live = {row["host"]: row for row in rows if row["state"] == "live"}
    assert sorted(live) == [*(f"decode-{n}" for n in range(3)), *(f"prefill-{n}" for n in range(6))]
    assert {row["role"] for row in live.values()} == {"prefill", "decode"}
    silent = {row["rank"]: row["reason"] for row in rows if row["state"] == "silent"}
    assert len(silent) == 3
    assert "no pdctl in container engine; --debug-image" in silent[f"pod/{SHUT['no-agent']}"]
    assert "not ready: container engine has not started (ImagePullBackOff" in silent[f"pod/{SHUT['not-ready']}"]
    assert "forbidden: " in silent[f"pod/{SHUT['forbidden']}"]
    assert "create pods/exec" in silent[f"pod/{SHUT['forbidden']}"]

    # Ranks in different pods are compared round by round, from their recordings.
    seen = shown(pods.kubectl(*ON, "diff-queues", "-o", "json", *patient()), 3)
    [group] = [group for group in seen["groups"] if len(group["ranks"]) == 3]
    assert group["verdict"] == "AGREE"
    assert {problem.partition(":")[0] for problem in seen["problems"]} >= {f"pod/{name}" for name in SHUT.values()}

    # Some of them, by their own labels: nothing is missing then.
    some = shown(pods.kubectl("ranks", "-l", "app=listens", *ON, "-o", "json", *patient()), 0)["ranks"]
    assert {row["host"] for row in some} == {"prefill-0", "prefill-1"}

    # By an ephemeral container that shares the pod's processes, where the image has no pdctl.
    beside = pods.kubectl("ranks", f"--debug-image={TOOLS}", "-l", "app=decode", *ON, "-o", "json", *patient())
    rows = shown(beside, 3)["ranks"]
    assert SHUT["no-agent"] in {row["host"] for row in rows if row["state"] == "live"}
    assert "patch pods/ephemeralcontainers" in "".join(row["reason"] for row in rows)

    # By the ports of the agents that listen: of three in their range one is used in each pod, and that is all there is.
    keys = ("--server-key", ring.server.public, "--key", "alice")
    ports = ("--port-forward=auto", "-l", "app=listens")
    limits = ("--timeout", f"{patience(60):.0f}", "--rank-timeout", f"{patience(3):.0f}")  # the others are waited for
    rows = shown(pods.kubectl(*keys, "ranks", *ON, *ports, "-o", "json", *limits, **ring.env), 0)["ranks"]
    assert {row["host"] for row in rows} == {"prefill-0", "prefill-1"}

    # What concerns no pod, and what is none of kubectl's pods.
    nothing = pods.kubectl("ranks", "-n", "empty")
    assert (nothing.returncode, nothing.stdout) == (4, "")
    assert "namespace empty: it has no pod" in nothing.stderr
    gone = pods.kubectl("ranks", "--context", "gone")
    assert gone.returncode == 4
    assert "the cluster is not reached: Unable to connect to the server" in gone.stderr
    wrong = pods.kubectl("attach", *ON)
    assert wrong.returncode == 2
    assert "kubectl exec -it POD" in wrong.stderr


REAL = shutil.which("kubectl")


@pytest.mark.skipif(REAL is None, reason="no kubectl here")
def test_the_real_kubectl_finds_the_plug_in_and_carries_the_bridge(tmp_path: Path) -> None:
    assert REAL is not None
    reason = why_not()
    if reason:
        pytest.skip(reason)
    labels = {"llm-d.ai/role": "decode"}
    with Pods(tmp_path) as pods:
        pods.begin("decode-0", labels, "--count", 3)
        pods.begin("decode-1", labels, "--count", 1, image=False)
        pods.begin("decode-2", labels, "--count", 1, forbidden=True)
        pods.ready()
        with ApiServer(pods, tmp_path) as server:
            path = f"{Path(REAL).parent}:{pods.bin}:{pods.env['PATH']}"
            where = ("--kubeconfig", str(server.kubeconfig), *ON)
            rows = shown(pods.kubectl("ranks", *where, "-o", "json", *patient(), real=REAL, PATH=path), 3)["ranks"]
            said = {row["host"] or row["rank"]: row["reason"] or row["state"] for row in rows}
            assert said.keys() == {"decode-0", "pod/decode-1", "pod/decode-2"}
            assert said["decode-0"] == "live"
            assert "no pdctl in container engine" in said["pod/decode-1"]
            assert "forbidden: Error from server (Forbidden)" in said["pod/decode-2"]
            # An ephemeral container, to which kubectl attaches once it runs.
            beside = ("ranks", f"--debug-image={TOOLS}", *where, "-o", "json", *patient())
            rows = shown(pods.kubectl(*beside, real=REAL, PATH=path), 3)["ranks"]
            assert {row["host"] for row in rows if row["state"] == "live"} >= {"decode-0", "decode-1"}
            # Its whole recording comes through.
            file = tmp_path / "pods.pdtrace"
            kept = pods.kubectl("record", str(file), *where, "-o", "json", *patient(), real=REAL, PATH=path)
            ranks = shown(kept, 3)["trace"]["ranks"]
            assert sorted(one["kept"] for one in ranks) == ["missing", "missing", "whole"]
            assert file.stat().st_size > 0
