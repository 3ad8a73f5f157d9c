"""From what was asked to what each rank is told."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from pdctl.faults.fault import NOBODY, AimedRank
from pdctl.faults.messages import FaultsBody
from pdctl.inject.plan import Plan, plan
from pdctl.inject.wish import Known, Wish
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import FaultStatus, Identity, Seam
from pdctl.targets.selectors import parse

SITE = (Seam("fault.delay-metadata", True, "send_aux"),)
_pids = itertools.count(100)
BASE = Identity(
    engine="lab", engine_version="1", pdctl_version="1", role="decode", host="a", pid=1, proc_start=1,
    started_wall_ns=1, started_mono_ns=1, instance="i", service="s", cluster="c", world="w", world_rank=0,
)  # fmt: skip


def rank(role: str, *, address: str = "", armed: bool = True, sites=None, left=(), **fields) -> Known:
    fields = {"role": role, "pid": next(_pids), "service": role, "instance": role, **fields}
    sites = (SITE if role == "prefill" else ()) if sites is None else sites
    return Known(msgspec.structs.replace(BASE, **fields), "live", FaultsBody(armed, tuple(left), (), sites, address))


def wish(*patterns: str, **changed) -> Wish:
    given = tuple(parse(pattern) for pattern in patterns or ("decode:tp1",))
    return Wish(**{"patterns": given, "delay_s": 5, "ttl_s": 60, "fault_id": "f", "owner": "ann", **changed})


def refused(code: Exit, says: str, ranks: list[Known], wanted: Wish | None = None) -> None:
    with pytest.raises(PdctlError) as error:
        plan(ranks, wanted or wish())
    assert (error.value.code, says in error.value.message + error.value.next_step) == (code, True), error.value.message


def pids(planned: Plan) -> set[int]:
    return {identity.pid for identity in planned.on}


DECODE = [rank("decode", tp=0, address="h:0"), rank("decode", tp=1, address="h:1")]
PREFILL = rank("prefill")


def test_a_prefill_rank_is_told_of_a_decode_rank():
    planned = plan([*DECODE, PREFILL], wish(room=7, hits=2))
    assert [target.tp for target in planned.targets] == [1]
    assert pids(planned) == {PREFILL.identity.pid}
    assert planned.args.targets == (AimedRank(0, 1, "h:1"),)
    assert (planned.args.target, planned.args.room, planned.args.hits) == ("decode dp0 pp0 tp1", 7, 2)
    assert planned.notes == ()


@pytest.mark.parametrize("kind", ["drop-status", "stall-transfer", "delay-metadata"])
@pytest.mark.parametrize("lacks", [(), ("aborts", "failures")])
def test_what_keeps_decode_waiting_must_end_before_its_time_out_where_that_does_harm(kind: str, lacks: tuple[str, ...]):
    prefill = rank("prefill", lacks=lacks, sites=(Seam(f"fault.{kind}", True, "send_aux"),))
    notes = plan([*DECODE, prefill], wish(kind=kind)).notes
    assert ["SGLANG_DISAGGREGATION_WAITING_TIMEOUT" in note for note in notes] == (
        [True] if lacks and kind != "delay-metadata" else []
    )


def test_all_prefill_ranks_of_one_server_are_told():
    others = [rank("prefill", tp=tp, pp=pp) for tp in range(2) for pp in range(2)]
    assert pids(plan([*DECODE, *others], wish())) == {known.identity.pid for known in others}


def test_one_room_at_a_time_means_one_dp_rank_unless_widened():
    streams = [rank("prefill", dp=dp, tp=tp) for dp in range(2) for tp in range(2)]
    planned = plan([*DECODE, *streams], wish())
    assert {identity.dp for identity in planned.on} == {0}
    assert "--allow-rooms 2" in planned.notes[0]
    assert len(plan([*DECODE, *streams], wish(allow_rooms=2)).on) == 4
    assert len(plan([*DECODE, *streams], wish(room=7)).on) == 4, "one room can be on one dp rank only"


def test_only_ranks_of_the_same_cluster():
    other = [rank("prefill", cluster="d"), rank("prefill", cluster="")]
    assert pids(plan([*DECODE, PREFILL, *other], wish())) == {PREFILL.identity.pid}
    refused(Exit.PARTIAL, "no prefill rank", [*DECODE, rank("prefill", cluster="d")])
    mixed = [DECODE[1], rank("decode", tp=1, cluster="d", address="x"), PREFILL]
    refused(Exit.REFUSED, "different clusters", mixed, wish(allow_ranks=2))


@pytest.mark.parametrize(("decode", "prefill"), [("", ""), ("c", "")])
def test_without_names_the_host_decides_and_it_is_said(decode, prefill):
    one = rank("decode", tp=1, address="h:1", cluster=decode)
    here, there = rank("prefill", cluster=prefill), rank("prefill", cluster=prefill, host="b")
    planned = plan([one, here, there, rank("prefill", cluster="d")], wish())
    assert pids(planned) == {here.identity.pid}
    assert "PDCTL_CLUSTER" in planned.notes[0]


def test_two_decode_servers_are_told_apart_by_address_or_not_at_all():
    twin = rank("decode", tp=1, address="h:9", service="decode 2", instance="decode 2")
    planned = plan([*DECODE, twin, PREFILL], wish("decode:tp1", allow_ranks=2))
    assert {target.address for target in planned.args.targets} == {"h:1", "h:9"}
    refused(Exit.REFUSED, "--allow-ranks 2", [*DECODE, twin, PREFILL])
    dp = [rank("decode", tp=1, dp=dp, address=f"h:{dp}") for dp in range(2)]
    (only,) = plan([*dp, PREFILL], wish("decode:dp1:tp1")).args.targets
    assert only == AimedRank(1, NOBODY, "h:1")
    assert not only.is_at(1, 1, "")
    silent = [dp[0], rank("decode", tp=1, dp=1)]
    refused(Exit.REFUSED, "can't be told from", [*silent, PREFILL], wish("decode:dp1:tp1"))


def test_a_decode_rank_without_an_agent_can_be_aimed_at():
    mute = Known(msgspec.structs.replace(DECODE[1].identity, pid=0), "no agent", None, "no agent")
    assert plan([DECODE[0], mute, PREFILL], wish()).args.targets == (AimedRank(0, 1, ""),)


def test_a_dead_rank_is_no_rank():
    dead = Known(DECODE[1].identity, "dead", None, "process has ended")
    refused(Exit.UNREACHABLE, "no live decode rank matches", [DECODE[0], dead, PREFILL])
    gone = Known(PREFILL.identity, "dead", None, "process has ended")
    refused(Exit.PARTIAL, "no prefill rank", [*DECODE, gone])


def test_every_safety_rule_says_why():
    fault = FaultStatus("g", "delay-metadata", "tp0", 1, 1, 0, 0, 0, 0, owner="bob")
    refused(Exit.USAGE, "decode:dp0:pp0:tp0", [*DECODE, PREFILL], wish("decode:tp7"))
    refused(Exit.REFUSED, "--allow-ranks 2", [*DECODE, PREFILL], wish("decode"))
    refused(Exit.REFUSED, "not armed", [*DECODE, rank("prefill", armed=False)])
    refused(Exit.REFUSED, "not armed", [*DECODE, PREFILL, rank("prefill", tp=1, armed=False)])
    refused(Exit.REFUSED, "no site", [*DECODE, rank("prefill", sites=())])
    refused(Exit.REFUSED, "no send_aux", [*DECODE, rank("prefill", sites=(Seam(SITE[0].name, False, "no send_aux"),))])
    refused(Exit.REFUSED, "bob", [*DECODE, rank("prefill", left=[fault])])
    refused(Exit.USAGE, "longer than", [*DECODE, PREFILL], wish(delay_s=61))
    refused(Exit.USAGE, "decode rank that shall feel it", [*DECODE, PREFILL], wish("prefill:tp0"))
    silent = Known(rank("prefill", tp=1).identity, "live", None, "timed out")
    refused(Exit.UNREACHABLE, "timed out", [*DECODE, PREFILL, silent])
    absent = Known(rank("prefill", tp=1).identity, "no agent", None, "")
    refused(Exit.REFUSED, "has no agent", [*DECODE, PREFILL, absent])


def on(kind: str) -> list[Known]:
    return [rank("decode", tp=tp, sites=(Seam(f"fault.{kind}", True, "there"),)) for tp in range(2)]


def test_a_kind_about_no_single_room_takes_none():
    decode = on("silence-heartbeat")
    silence = {"kind": "silence-heartbeat", "delay_s": 10}
    assert [known.tp for known in plan(decode, wish(**silence)).on] == [1]
    refused(Exit.USAGE, "no single room", decode, wish(room=7, **silence))
    refused(Exit.USAGE, "no single room", decode, wish(rid="r", **silence))
    refused(Exit.USAGE, "means prefill ranks", decode, wish("prefill", **silence))


def test_ranks_that_must_take_the_same_request_are_told_which():
    decode = on("duplicate-room")
    duplicate = {"kind": "duplicate-room", "delay_s": 0, "allow_ranks": 2}
    refused(Exit.REFUSED, "--rid", decode, wish("decode", **duplicate))
    for named in ({"room": 7}, {"rid": "r"}):
        planned = plan(decode, wish("decode", **named, **duplicate))
        assert len(planned.on) == 2
        assert planned.args.hits == 1
    assert len(plan(decode, wish("decode:tp1", **duplicate)).on) == 1, "one rank may take the next"


def status(name: str, owner: str, target: str, *, ended: str = "") -> FaultStatus:
    return FaultStatus(
        id=name, kind="skew-poll", target=target, delay_s=1, left_s=9, visits=0, eligible=0, fired=0, pending=0,
        owner=owner, ended=ended,
    )  # fmt: skip


def test_ranks_hit_are_counted_in_the_cluster_whoever_hits_them():
    bob = rank("decode", tp=0, address="h:0", left=[status("f-1", "bob", "decode:dp0:pp0:tp0")])
    ranks = [bob, DECODE[1], PREFILL]
    refused(Exit.REFUSED, "hit by f-1 of bob already", ranks)
    refused(Exit.REFUSED, "--allow-ranks 2", ranks)
    [(where, fault)] = plan(ranks, wish(allow_ranks=2)).others
    assert (where.tp, fault.owner) == (0, "bob")
    over = rank("decode", tp=0, address="h:0", left=[status("f-1", "bob", "decode:dp0:pp0:tp0", ended="heal")])
    assert plan([over, DECODE[1], PREFILL], wish()).others == ()
    other = rank("decode", tp=0, cluster="d", left=[status("f-1", "bob", "decode:dp0:pp0:tp0")])
    assert plan([other, *DECODE, PREFILL], wish()).others == (), "another cluster's is not counted"
