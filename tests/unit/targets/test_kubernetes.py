"""How kubectl is called, and what its answers mean; what it does then is in tests/system/test_kubectl.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.rank import FoundRank, Silence
from pdctl.targets.places import parse_places
from pdctl.targets.pods import Pod, PodQuery
from pdctl.targets.registration import nameless
from pdctl.targets.sources import kubernetes

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
