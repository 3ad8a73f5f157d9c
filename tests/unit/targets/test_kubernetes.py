"""How kubectl is called, and what its answers mean; what it does then is in tests/system/test_kubectl.py."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.rank import FoundRank, Silence
from pdctl.targets import children
from pdctl.targets.children import Child
from pdctl.targets.places import parse_places
from pdctl.targets.pods import Pod, PodQuery
from pdctl.targets.registration import nameless
from pdctl.targets.sources import kubernetes
from tests.support.patience import until

POD = Pod("decode-0", container="engine")


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes.shutil, "which", lambda name: f"/bin/{name}")


@pytest.mark.usefixtures("there")
def test_pdctl_runs_in_the_container_or_beside_it() -> None:
    query = PodQuery(namespace="prod", context="c", kubeconfig="/k")
    start = "/bin/kubectl --kubeconfig=/k --context=c --namespace=prod"
    inside = kubernetes.far_of(POD, query)
    assert " ".join(inside.argv) == f"{start} exec --stdin --container=engine decode-0 -- pdctl bridge"
    assert inside.name == "pod/decode-0"
    beside = kubernetes.far_of(POD, replace(query, image="tools:1"))
    run = "debug decode-0 --stdin --quiet --image=tools:1 --target=engine --profile=general -- pdctl bridge"
    assert " ".join(beside.argv) == f"{start} {run}"


@pytest.mark.usefixtures("there")
def test_an_older_pdctl_in_the_pod_is_said_to_be_that() -> None:
    far = kubernetes.far_of(POD, PodQuery())
    assert "older than this one" in far.explain(Exit.USAGE, "pdctl: No such command: bridge")
    assert "pods/exec" in far.explain(1, "Error from server (Forbidden): no")


def test_without_kubectl_there_is_a_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes.shutil, "which", lambda _: None)
    with pytest.raises(PdctlError, match="no kubectl on PATH") as error:
        kubernetes.find(parse_places({}), PodQuery(), 4.0, 1.0, [])
    assert "docs/kubernetes.md" in error.value.next_step


def test_a_port_at_which_nobody_listens_is_no_rank_where_another_answers() -> None:
    def at(port: int, silent: Silence = Silence.NONE, why: str = "") -> FoundRank:
        return FoundRank(nameless(f"port {port}"), "live", silent=silent, silent_why=why)

    nobody = (Silence.NOT_AUTHORISED, "not authorised or not reachable: no handshake")
    stranger = (Silence.NOT_AUTHORISED, "not authorised: its agent does not know this key")
    other = Pod("decode-1")
    answers = [
        (at(1), POD),
        (at(2, *nobody), POD),
        (at(3, *stranger), POD),
        (at(4, *nobody), other),
        (at(5, *nobody), other),
    ]
    found = kubernetes.answering(answers)
    assert [rank.identity.service for rank in found] == ["port 1", "port 3", "pod/decode-1"]
    assert found[2].silent_why.startswith("no agent answers at the forwarded ports: not authorised or not reachable")


def program(file: Path, text: str) -> str:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def test_port_forwards_that_fail_are_ended_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path / "kubectl", "trap '' TERM; echo failed >&2; sleep 600; sleep 600")
    monkeypatch.setattr(kubernetes, "kubectl", lambda _: (path,))
    monkeypatch.setattr(kubernetes, "_FORWARDING", {})
    served: list[int] = []
    forget = Child._forget

    def forgotten(child: Child) -> None:
        served.append(sum(not one.ended for one in children._running))
        forget(child)

    monkeypatch.setattr(Child, "_forget", forgotten)
    pods = [Pod(f"decode-{n}", container="engine", ports=(7311,)) for n in range(3)]
    rows = kubernetes._forwarded(pods, parse_places({}), PodQuery(ports=()), time.monotonic() + 0.2, 1.0)
    assert len(rows) == 3
    assert served == [0, 0, 0], "the others"


def test_a_port_forward_is_not_stopped_by_what_it_prints_of_each_connection(tmp_path: Path) -> None:
    lines = "yes 'Handling connection for 7311' | head -c 300000"
    path = program(tmp_path / "kubectl", f"echo 'Forwarding from 127.0.0.1:4001 -> 7311'; {lines}; touch {tmp_path}/on")
    one = kubernetes._Kubectl((path,), kubernetes.MAX_SAID)
    until("it goes on", lambda: one.take() or (tmp_path / "on").exists())
    assert one.full
    assert len(one.out) == kubernetes.MAX_SAID + 1
    assert kubernetes._FORWARDS.findall(one.out) == [b"4001"]
    one.child.close()


def test_a_kubectl_that_is_no_program_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kubectl"
    file.write_bytes(b"\x7fELF")
    file.chmod(0o755)
    monkeypatch.setattr(kubernetes, "kubectl", lambda _: (str(file),))
    with pytest.raises(PdctlError, match="kubectl can't be run"):
        kubernetes.list_pods(PodQuery(), 4.0)
