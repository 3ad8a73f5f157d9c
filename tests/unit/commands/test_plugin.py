"""``kubectl pdctl``: kubectl's options among pdctl's own."""

from __future__ import annotations

import pytest

from pdctl.commands.plugin import REFUSED, refuse, split_arguments
from pdctl.probes.registry import abouts
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.targets.pods import PodQuery
from pdctl.targets.reach import Reach


@pytest.mark.parametrize(
    "words",
    [
        ["diff-queues", "-n", "prod", "-o", "json", "-l", "app=x"],
        ["-nprod", "diff-queues", "--selector=app=x", "-o", "json"],
        ["--namespace=prod", "-l=app=x", "diff-queues", "-o", "json"],
    ],
)
def test_kubectls_options_stand_anywhere(words: list[str]) -> None:
    pods, left = split_arguments(words)
    assert pods == PodQuery(namespace="prod", selector="app=x")
    assert pods.flags == ("--namespace=prod",)
    assert left == ["diff-queues", "-o", "json"]


def test_all_that_kubectl_is_told() -> None:
    line = "--context c --kubeconfig k -n prod -c engine --port-forward 7311-7312 ranks -- -n x"
    pods, left = split_arguments(line.split())
    assert pods.flags == ("--kubeconfig=k", "--context=c", "--namespace=prod")
    assert (pods.container, pods.ports) == ("engine", (7311, 7312))
    assert left == ["ranks", "--", "-n", "x"]
    assert str(pods) == "pods of namespace prod"


@pytest.mark.parametrize(
    "line",
    ["ranks -n", "ranks -n --all", "ranks --namespace=", "--debug-image i --port-forward auto", "--port-forward 0"],
)
def test_what_can_t_be_meant(line: str) -> None:
    with pytest.raises(PdctlError) as error:
        split_arguments(line.split())
    assert error.value.code is Exit.USAGE


def test_commands_of_one_host_say_how_to_run_them_in_a_pod() -> None:
    for name in REFUSED:
        if name not in abouts():
            with pytest.raises(PdctlError) as error:
                refuse(name)
            assert "kubectl exec -it POD" in error.value.next_step
    refuse("diff-queues")


def test_pods_are_the_only_place_then() -> None:
    env = {
        "PDCTL_ENDPOINT": "h:1",
        "PDCTL_RUN_DIR": "/a",
        "PDCTL_SERVER_KEY": "ab" * 32,
        "XDG_CONFIG_HOME": "/nonexistent",
    }
    places = Reach(pods=PodQuery(namespace="prod")).places(env)
    assert places.elsewhere == ("pods of namespace prod",)
    assert not places.run_dir_named
    assert places.server_key == "ab" * 32
    assert places.here().elsewhere == ()
