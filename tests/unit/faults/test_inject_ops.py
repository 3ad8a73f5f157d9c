"""What a rank says to the fault ops, whoever asks."""

from __future__ import annotations

import msgspec
import pytest

from pdctl.faults import ops
from pdctl.faults.fault import AimedRank
from pdctl.faults.messages import FaultsBody, HealBody, InjectArgs, InjectBody, RenewBody
from pdctl.faults.table import FaultTable
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import Seam


class Rank:
    def __init__(self, *seams: Seam, address: str = "") -> None:
        self.found = seams or (Seam("fault.delay-metadata", True, "send_aux"), Seam("gate", True))
        self.transfer_address = lambda: address

    def seams(self) -> tuple[Seam, ...]:
        return self.found


@pytest.fixture
def table():
    made = FaultTable(True)
    yield made
    made.heal()


def args(**changed) -> dict:
    fields = {"id": "f", "kind": "delay-metadata", "delay_s": 5.0, "target": "tp1", "targets": (AimedRank(tp=1),)}
    return msgspec.to_builtins(InjectArgs(**{**fields, **changed}))


def refused(code: Exit, says: str, given: dict, table: FaultTable, rank: Rank | None = None) -> None:
    with pytest.raises(PdctlError) as error:
        ops.handle("inject", given, table, rank or Rank())
    assert error.value.code is code
    assert says in error.value.message
    assert table.metadata == ()


def test_placed_renewed_listed_and_healed(table):
    placed = ops.handle("inject", args(ttl_s=900.0, owner="ann"), table, Rank())
    assert isinstance(placed, InjectBody)
    assert placed.fault.leased
    assert 0 < placed.fault.left_s <= 3, "its lease is what ends it first"
    renewed = ops.handle("renew", {"id": "f", "lease_s": 0}, table, Rank())
    assert isinstance(renewed, RenewBody)
    assert renewed.renewed
    assert renewed.fault is not None
    assert not renewed.fault.leased
    assert renewed.fault.left_s > 800, "detached: only the TTL is left"
    listed = ops.handle("faults", {}, table, Rank(address="h:1"))
    assert isinstance(listed, FaultsBody)
    assert (listed.armed, listed.address, [f.owner for f in listed.left]) == (True, "h:1", ["ann"])
    assert [seam.name for seam in listed.sites] == ["fault.delay-metadata"]
    healed = ops.handle("heal", {}, table, Rank())
    assert healed == HealBody(("f",), (), ("ann",))
    assert ops.handle("heal", {"id": "f"}, table, Rank()) == HealBody((), ())
    after = ops.handle("renew", {"id": "f", "lease_s": 3}, table, Rank())
    assert isinstance(after, RenewBody)
    assert not after.renewed
    assert after.fault is not None
    assert after.fault.ended == "heal"
    assert ops.handle("renew", {"id": "g", "lease_s": 3}, table, Rank()) == RenewBody(False, None)


def test_an_unarmed_rank_refuses_whatever_the_client_thinks():
    refused(Exit.REFUSED, "not armed", args(), FaultTable(False))


def test_a_missing_site_is_named(table):
    refused(Exit.REFUSED, "no site", args(), table, Rank(Seam("gate", True)))
    refused(Exit.REFUSED, "send_aux", args(), table, Rank(Seam("fault.delay-metadata", False, "no send_aux here")))


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"kind": "drop-everything"}, Exit.REFUSED),
        ({"delay_s": 0.0}, Exit.REFUSED),
        ({"delay_s": -1.0}, Exit.REFUSED),
        ({"delay_s": float("nan")}, Exit.REFUSED),
        ({"delay_s": float("inf")}, Exit.REFUSED),
        ({"ttl_s": 900.1}, Exit.REFUSED),
        ({"ttl_s": float("nan")}, Exit.REFUSED),
        ({"lease_s": 0.0}, Exit.REFUSED),
        ({"lease_s": 1e9}, Exit.REFUSED),
        ({"id": ""}, Exit.USAGE),
        ({"id": "x" * 65}, Exit.USAGE),
        ({"id": "a\nb"}, Exit.USAGE),
        ({"targets": ()}, Exit.USAGE),
        ({"room": -1}, Exit.USAGE),
        ({"hits": -1}, Exit.USAGE),
        ({"limit": 0}, Exit.USAGE),
        ({"limit": 99}, Exit.USAGE),
    ],
)
def test_a_rank_checks_every_number_itself(table, changed, code):
    refused(code, "", args(**changed), table)


def test_a_kind_about_no_single_room_takes_none(table):
    silence = {"kind": "silence-heartbeat", "delay_s": 1.0}
    refused(Exit.USAGE, "no single room", args(room=7, **silence), table)
    refused(Exit.USAGE, "no single room", args(rid="r", **silence), table)


def test_what_makes_no_sense_is_refused(table):
    refused(Exit.USAGE, "not understood", {"id": 7}, table)
    refused(Exit.USAGE, "not understood", {}, table)
    with pytest.raises(PdctlError):
        ops.handle("explode", {}, table, Rank())
    for lease in (-1.0, float("nan"), 61.0):
        with pytest.raises(PdctlError):
            ops.handle("renew", {"id": "f", "lease_s": lease}, table, Rank())


def test_a_second_fault_is_refused_and_the_first_ones_owner_named(table):
    ops.handle("inject", args(owner="ann@host:1"), table, Rank())
    with pytest.raises(PdctlError) as error:
        ops.handle("inject", args(id="g"), table, Rank())
    assert error.value.code is Exit.REFUSED
    assert "ann@host:1" in error.value.message
