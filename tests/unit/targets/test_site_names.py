"""Which names the texts of a command may hold: those it was given, those of ranks, those that reasons tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdctl.protocol.rank import FoundRank
from pdctl.targets.find import Found
from pdctl.targets.names import site_names
from pdctl.targets.places import Places, parse_places
from pdctl.targets.pods import PodQuery
from pdctl.targets.registration import nameless
from tests.support.identities import identity


def places(**env: str) -> Places:
    return parse_places({"HOME": "/none", **env})


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ({"PDCTL_HOSTS": "bob@gpu[07-08],head"}, {"gpu07", "gpu08", "head"}),
        ({"PDCTL_ENDPOINT": "tcp://gpu9:7311,[fd00::7]:7311"}, {"gpu9", "[fd00::7]"}),
        ({"PDCTL_STORE": "master-a:29400"}, {"master-a"}),
        ({"PDCTL_VIA": "ssh -J jump,al@second:22 -p 2222 {host} /opt/v2/pdctl"}, {"jump", "second"}),
        ({"PDCTL_VIA": "ssh -o ProxyJump=jump -o ConnectTimeout=5 {host} pdctl"}, {"jump"}),
        ({"PDCTL_VIA": "kubectl --context=acme -n serving exec {host} -- pdctl"}, {"acme", "serving"}),
    ],
)
def test_what_a_command_was_given(env: dict[str, str], names: set[str]) -> None:
    assert set(site_names(places(**env), Found())) == names


def test_what_ranks_and_reasons_tell() -> None:
    ranks = (
        FoundRank(identity(host="gpu-1"), "live", endpoint="tcp://gpu-2:1", tcp="tcp://gpu-3:1", store="gpu-4:1"),
        FoundRank(nameless("pod/llm-5"), "live"),
        FoundRank(nameless("bob@gpu-6"), "live", via="bob@gpu-6"),
        FoundRank(nameless("x"), "live", silent_why="ssh can't get there: connect to host gpu-7 port 22: refused"),
    )
    found = Found(ranks=ranks, problems=("store gpu-8:29400: no connection",))
    assert set(site_names(None, found)) == {f"gpu-{n}" for n in (1, 2, 3, 4, 6, 7, 8)} | {"llm-5"}
    hashed = FoundRank(identity(host="host-10000001"), "live")
    assert site_names(None, Found(ranks=(hashed,))) == ("host-10000001",)
    assert site_names(None, Found(ranks=(hashed,), salts=("00",))) == ()
    pods = replace(places(), pods=PodQuery(namespace="serving", context="acme"))
    assert {"serving", "acme"} <= set(site_names(pods, found))
