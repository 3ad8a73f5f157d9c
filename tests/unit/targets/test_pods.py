"""Which pods serve a prefill/decode deployment, by what kubectl lists of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.targets import pods
from pdctl.targets.pods import MAX_PODS, MAX_PROBLEMS, Pod, PodQuery, parse_ports, select_pods, why_not

RBG = "rolebasedgroup.workloads.x-k8s.io"
DYNAMO = "nvidia.com/dynamo"
ENGINE = "python3 -m sglang.launch_server --model-path M"


def pod(
    name: str,
    labels: dict[str, str] | None = None,
    command: str = ENGINE,
    state: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    container = {"name": "engine", "command": ["sh", "-c", command]}
    status = {
        "name": "engine",
        "state": state if state is not None else {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    return {
        "metadata": {"name": name, "namespace": "prod", "labels": labels or {}, **more.pop("metadata", {})},
        "spec": {"containers": [*more.pop("before", []), container]},
        "status": {"phase": "Running", "containerStatuses": [status], **more},
    }


def listed(*items: dict[str, Any], **query: Any) -> Any:
    return select_pods(json.dumps({"kind": "List", "items": items}).encode(), PodQuery(**query))


@pytest.mark.parametrize(
    ("labels", "command", "side"),
    [
        ({"leaderworkerset.sigs.k8s.io/name": "r1-prefill-main"}, ENGINE, "prefill"),
        ({f"{RBG}/name": "r1", f"{RBG}/role": "decode"}, ENGINE, "decode"),
        ({"rbg.workloads.x-k8s.io/group-name": "r1", "rbg.workloads.x-k8s.io/role-name": "prefill"}, "start.sh", "prefill"),
        ({"llm-d.ai/role": "decode"}, "start.sh", "decode"),
        ({"llm-d.ai/role": "prefill-decode"}, ENGINE, ""),
        ({f"{DYNAMO}-graph-deployment-name": "d", f"{DYNAMO}-sub-component-type": "decode"}, "start.sh", "decode"),
        ({f"{DYNAMO}-graph-deployment-name": "d", f"{DYNAMO}-component-type": "prefill"}, "start.sh", "prefill"),
        ({"app": "x"}, f"{ENGINE} --disaggregation-mode decode", "decode"),
        ({"app": "x"}, f"{ENGINE} --disaggregation-mode=prefill", "prefill"),
    ],
)  # fmt: skip
def test_pods_of_known_deployments_are_found_with_their_side(labels: dict[str, str], command: str, side: str) -> None:
    others = [
        pod("router", {f"{RBG}/role": "router", f"{RBG}/name": "r"},
            "python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://prefill --decode http://decode"),
        pod("front", {f"{DYNAMO}-graph-deployment-name": "d", f"{DYNAMO}-component-type": "frontend"},
            "python3 -m dynamo.frontend"),
        pod("web-prefill", {"app": "web"}, "nginx"),
        pod("db", {"leaderworkerset.sigs.k8s.io/name": "db"}, "postgres"),
    ]  # fmt: skip
    found = listed(pod("engine-0", labels, command), *others)
    assert [(one.name, one.side, one.container, one.off) for one in found.pods] == [("engine-0", side, "engine", "")]


def test_the_container_that_serves_is_taken_and_not_what_stands_beside_it() -> None:
    beside = [{"name": "watch", "command": ["pdctl", "watch"]}]
    labels = {"llm-d.ai/role": "decode"}
    assert listed(pod("a", labels, before=beside)).pods[0].container == "engine"
    note = {"annotations": {"kubectl.kubernetes.io/default-container": "engine"}}
    assert listed(pod("a", labels, "start.sh", before=beside, metadata=note)).pods[0].container == "engine"
    [named] = listed(pod("a", labels, before=beside), container="sglang").pods
    assert named.off == "it has no container sglang; it has watch, engine"


def test_a_pod_that_is_not_ready_is_looked_into_where_its_container_runs() -> None:
    labels = {"llm-d.ai/role": "decode"}
    not_ready = [{"type": "Ready", "status": "False", "message": "containers with unready status: [engine]"}]
    assert listed(pod("a", labels, conditions=not_ready)).pods[0].off == ""
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    off = listed(pod("a", labels, state=waiting, conditions=not_ready)).pods[0].off
    assert off.startswith("not ready: container engine has not started (CrashLoopBackOff: back-off 5m0s)")
    pending = pod(
        "a", labels, phase="Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": "0/9 nodes"}]
    )
    del pending["status"]["containerStatuses"]
    assert "has not started (0/9 nodes); kubectl describe pod a" in listed(pending).pods[0].off
    over = {"terminated": {"reason": "Error", "exitCode": 137}}
    assert "container engine has ended (Error)" in listed(pod("a", labels, state=over)).pods[0].off


def test_what_has_ended_or_goes_is_no_row() -> None:
    labels = {"llm-d.ai/role": "decode"}
    goes = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    found = listed(
        pod("a", labels),
        pod("evicted", labels, phase="Failed", state={}),
        pod("goes", labels, state={"terminated": {"exitCode": 0}}, metadata=goes),
        pod("still-there", labels, metadata=goes),
    )
    assert [one.name for one in found.pods] == ["a", "still-there"]


def test_a_selector_means_all_of_its_pods() -> None:
    assert [one.name for one in listed(pod("b", command="x"), pod("a-decode", command="x"), selector="app=x").pods] == [
        "a-decode",
        "b",
    ]


def test_names_go_into_command_lines_and_are_checked() -> None:
    labels = {"llm-d.ai/role": "decode"}
    found = listed(pod("--all", labels), pod("a\n", labels), pod("ok", labels))
    assert [one.name for one in found.pods] == ["ok"]
    assert len(found.problems) == 2
    odd = pod("ok", labels)
    odd["spec"]["containers"][0]["name"] = "-rf"
    assert listed(odd).pods[0].off == "it has no container"


def test_more_pods_than_one_client_looks_into_are_said() -> None:
    found = listed(*(pod(f"d{n}", {"llm-d.ai/role": "decode"}) for n in range(MAX_PODS + 1)))
    assert len(found.pods) == MAX_PODS
    assert "-l selects some" in found.problems[0]


@pytest.mark.parametrize(("limit", "most"), [("MAX_VALUES", 50), ("MAX_ITEMS", 2)])
def test_a_list_over_a_limit_is_not_read(monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(pods, limit, most)
    labels = {"llm-d.ai/role": "decode"}
    assert len(listed(pod("a", labels)).pods) == 1
    with pytest.raises(PdctlError, match=r"over 50 values|3 pods; pdctl reads 2") as error:
        listed(*(pod(f"a{n}", labels, before=[{"name": "b", "env": [{}] * 9}]) for n in range(3)))
    assert "-l" in error.value.next_step


def test_a_pod_that_is_too_large_or_none_hides_no_other() -> None:
    labels = {"llm-d.ai/role": "decode"}
    found = listed(pod("large", labels, "x" * pods.MAX_ITEM), {"metadata": 3}, pod("a", labels), pod("a", labels))
    assert [one.name for one in found.pods] == ["a"]
    assert ["allowed" in found.problems[0], "can't be read" in found.problems[1], "twice" in found.problems[2]] == [
        True
    ] * 3
    many = listed(pod("a", labels), *[{}] * (MAX_PROBLEMS + 5))
    assert len(many.problems) == MAX_PROBLEMS + 1
    assert many.problems[-1].startswith("5 more pods")
    other = listed(pod("a", labels, before=[{"name": "b" * 10_000}]), container="c").pods[0].off
    assert len(other) < 200


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"items": 3}', b"No resources found"])
def test_a_list_that_is_none_is_said(raw: bytes) -> None:
    with pytest.raises(PdctlError, match="can't be read"):
        select_pods(raw, PodQuery())


def test_no_pod_has_its_next_step() -> None:
    with pytest.raises(PdctlError, match="namespace prod: it has no pod") as none:
        listed(namespace="prod")
    assert none.value.code is Exit.UNREACHABLE
    with pytest.raises(PdctlError, match="1 pods are there") as other:
        listed(pod("web", command="nginx"))
    assert "LeaderWorkerSet" in other.value.next_step


def test_ports_are_those_given_or_those_of_the_pod() -> None:
    one = pod("a", {"llm-d.ai/role": "decode"})
    one["spec"]["containers"][0]["env"] = [{"name": "PDCTL_LISTEN", "value": "tcp://*:7311-7313"}]
    assert listed(one).pods[0].ports == (7311, 7312, 7313)
    assert parse_ports("7311-7313,7320") == (7311, 7312, 7313, 7320)
    assert parse_ports("auto") == ()
    for wrong in ("", "0", "7311-7310", "1-65535", "a", "7311,", "-1", "99999"):
        with pytest.raises(PdctlError):
            parse_ports(wrong)


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [
        (1, 'Error from server (Forbidden): pods "a" is forbidden: User "eve" cannot', "forbidden: "),
        (1, "error: You must be logged in to the server (Unauthorized)", "not authorised: "),
        (127, "sh: pdctl: not found", "no pdctl in container engine"),
        (1, 'error: exec failed: exec: "pdctl": executable file not found in $PATH', "no pdctl in container engine"),
        (1, 'Error from server (NotFound): pods "a" not found', "it is gone since"),
        (1, "Unable to connect to the server: dial tcp: i/o timeout", "the cluster is not reached"),
        (1, "The connection to the server localhost:8080 was refused - did you", "the cluster is not reached"),
        (None, "", "no answer in time: kubectl has said nothing"),
        (3, "ImportError: x", "kubectl ended with code 3: ImportError: x"),
        (1, "", "kubectl ended with code 1: it has said nothing"),
    ],
)  # fmt: skip
def test_why_a_pod_gives_nothing(code: int | None, said: str, why: str) -> None:
    assert why_not(Pod("a", container="engine"), code, said).startswith(why)
