"""What the ranks of a server over several nodes are called: they are of one server, wherever they run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pdctl.engines.sglang import seams
from pdctl.engines.sglang.identity import Around, identify
from pdctl.protocol.model import Identity
from pdctl.targets.nodeset import server


def rank(host: str, agreed: str, *, nodes: int) -> Identity:
    args = SimpleNamespace(port=30000, nnodes=nodes, disaggregation_transfer_backend="fake", dp_size=1)
    around = Around(
        host, 7, 5, (6, 4), 0, ranks_of=lambda _: (0,), number_of=lambda _: -1, agreed=lambda mine: agreed or mine, modules={}
    )  # fmt: skip
    return identify(SimpleNamespace(server_args=args), around)[0]


@pytest.fixture(autouse=True)
def decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams, "role_of", lambda *_: "decode")


def test_ranks_of_several_nodes_are_of_one_server() -> None:
    first = rank("node0", "", nodes=2)
    second: Any = rank("node1", first.instance, nodes=2)
    assert first.service == "decode@node0:30000"
    assert server(first) == server(second)
    assert (first.host, second.host) == ("node0", "node1")


def test_one_that_changes_its_role_keeps_its_place() -> None:
    assert rank("node1", "prefill@node0:30000/b.1.2", nodes=2).service == "decode@node0:30000"


def test_servers_of_one_node_are_apart() -> None:
    assert server(rank("node0", "", nodes=1)) != server(rank("node1", "x", nodes=1))
