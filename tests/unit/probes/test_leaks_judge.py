"""What leaks, and what only looks like it for a moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pdctl.probes.leaks.judge import judge
from pdctl.probes.leaks.model import LeaksDocument, Look, RankWatch
from pdctl.probes.leaks.model import look as condensed
from pdctl.protocol.metadata import Holder, Metadata, SlotRow
from pdctl.protocol.model import KVPoll
from pdctl.protocol.requests import RoomEntry, Rooms, RoomTable, Space
from pdctl.report.findings import Level
from tests.support.identities import identity

FAILED = int(KVPoll.FAILED)


def look(
    n: int,
    *,
    rows: Iterable[SlotRow] = (),
    entries: Sequence[RoomEntry] = (),
    held: Sequence[Holder] = (),
    space: Space | None = None,
    tables: dict[str, list[int]] | None = None,
    lingers: dict[str, float] | None = None,
    ticks: int | None = None,
) -> Look:
    """The n-th look, a second after the one before; the loop turns ten times a second unless ``ticks`` says otherwise."""
    turns = 10 * n if ticks is None else ticks
    pool = space or Space(slots=16, slots_free=16, kv=100, kv_free=100, countable=True)
    rooms = Rooms(n * 10**9, turns, RoomTable.of(entries), (), pool, tables or {}, {}, {}, lingers=lingers or {})
    slots = Metadata(n * 10**9, turns, "cpu", (), "", "", True, True, 16, list(held), list(rows))
    return condensed(rooms, slots)


def watch(*looks: Look, silence: str = "", **who: object) -> RankWatch:
    return RankWatch(identity(**who), "live", silence, looks)


def said(*views: RankWatch) -> LeaksDocument:
    return judge(views, watch_s=3.0)


def codes(document: LeaksDocument) -> list[str]:
    return [found.code for found in document.findings]


def taken(slot: int, allocation: int = 5, room: int = 70) -> SlotRow:
    return SlotRow(slot, room, 9.0, allocation)


def test_a_slot_without_an_owner_at_every_look_is_lost() -> None:
    document = said(watch(*(look(n, rows=[taken(3)]) for n in range(3))))
    assert codes(document) == ["PD150"]
    assert [(s.slot, s.room, s.held_s) for s in document.slots] == [(3, 70, 9.0)]
    assert "has lost slot 3" in document.findings[0].summary


def test_a_slot_that_somebody_had_once_or_that_was_taken_anew_is_not() -> None:
    owned = Holder(70, "r70", 3, "decode.transfer", 3)
    once = watch(look(0, rows=[taken(3)]), look(1, rows=[taken(3)], held=[owned]), look(2, rows=[taken(3)]))
    anew = watch(look(0, rows=[taken(3, 5)]), look(1, rows=[taken(3, 6)]), look(2, rows=[taken(3, 7)]))
    freed = watch(look(0, rows=[taken(3)]), look(1, rows=[SlotRow(3, 70, 0.0)]), look(2, rows=[taken(3)]))
    queued = watch(*(look(n, rows=[taken(3)], entries=[RoomEntry("prefill.inflight", 70, "r", 3)]) for n in range(3)))
    for view in (once, anew, freed, queued):
        assert not said(view).findings


def test_a_rank_whose_loop_stands_is_not_judged() -> None:
    document = said(watch(*(look(n, rows=[taken(3)], ticks=4) for n in range(3))))
    assert not document.findings
    assert document.partial
    assert "its loop did not turn" in document.ranks[0].why
    looks = tuple(look(n, rows=[taken(3)], ticks=4) for n in range(3))
    idle = RankWatch(identity(), "live", "", looks, idle=True)
    assert codes(said(idle)) == ["PD150"]


def test_a_rank_in_a_long_forward_is_not_judged_and_no_problem() -> None:
    looks = tuple(look(n, rows=[taken(3)], ticks=4) for n in range(3))
    computes = RankWatch(identity(), "live", "", looks, computing=True)
    waits_for_it = RankWatch(identity(tp=1, world_rank=1), "live", "", looks)
    document = said(computes, waits_for_it)
    assert (document.findings, document.problems, document.partial) == ((), (), False)
    assert [rank.judged for rank in document.ranks] == [False, False]
    assert "one turn took the whole watch" in document.ranks[0].why
    it_has_ended = RankWatch(identity(), "live", "", looks, turned=True)
    assert said(it_has_ended, waits_for_it).problems == ()
    assert said(watch(*(look(n) for n in range(3))), waits_for_it).problems, "another turns, and this one stands"


def test_space_counts_on_a_rank_without_requests_only() -> None:
    gone = Space(slots=16, slots_free=16, kv=100, kv_free=60, evictable=10, protected=2, countable=True)
    document = said(watch(*(look(n, space=gone) for n in range(3))))
    assert codes(document) == ["PD151"]
    assert document.space[0].tokens == 28
    busy = [RoomEntry("running", 7, "r7")]
    assert not said(watch(look(0, space=gone), look(1, space=gone, entries=busy), look(2, space=gone))).findings
    coming_back = Space(slots=16, slots_free=16, kv=100, kv_free=100, countable=True)
    assert not said(watch(look(0, space=gone), look(1, space=gone), look(2, space=coming_back))).findings
    other = Space(slots=16, slots_free=16, kv=100, kv_free=60, countable=False)
    assert not said(watch(*(look(n, space=other) for n in range(3)))).findings


def orphan(n: int, state: int = FAILED) -> Look:
    return look(n, entries=[RoomEntry("prefill.bootstrap", 70, "r70", state=state, age_s=8.0)])


def stage(*looks: Look, pp: int, silence: str = "") -> RankWatch:
    return watch(*looks, silence=silence, role="prefill", pp=pp, pp_size=2)


def test_a_failed_request_that_only_the_later_stage_has_is_an_orphan() -> None:
    first = stage(*(look(n) for n in range(3)), pp=0)
    later = stage(*(orphan(n) for n in range(3)), pp=1)
    document = said(first, later)
    assert codes(document) == ["PD152"]
    assert (document.orphans[0].room, document.orphans[0].age_s) == (70, 8.0)
    assert "0.5.12.post1" in document.findings[0].versions


def test_stages_a_round_apart_are_no_orphans() -> None:
    later = stage(orphan(0), orphan(1), look(2), pp=1)  # drained in the end
    assert not said(stage(*(look(n) for n in range(3)), pp=0), later).findings
    stays = stage(*(orphan(n) for n in range(3)), pp=1)
    assert not said(stage(look(0), orphan(1), look(2), pp=0), stays).findings  # the first stage has it, too
    waits = stage(*(orphan(n, state=int(KVPoll.BOOTSTRAPPING)) for n in range(3)), pp=1)
    assert not said(stage(*(look(n) for n in range(3)), pp=0), waits).findings
    document = said(stage(pp=0, silence="timed out"), stays)
    assert not document.findings
    assert any("can't be asked whether it has them" in problem for problem in document.problems)


def test_rooms_left_in_tables_are_information() -> None:
    left = [watch(*(look(n, tables={"transfer_infos": [7, 8][: n + 1]}) for n in range(4)))]
    document = said(*left)
    assert [(f.code, f.level) for f in document.findings] == [("PD153", Level.INFO)]
    [leftover] = document.leftovers
    assert (leftover.rooms, leftover.count, leftover.new) == ((7, 8), 2, 1)


def test_a_room_that_any_rank_has_or_that_the_engine_keeps_for_a_while_is_not_left() -> None:
    prefill = watch(*(look(n, tables={"transfer_infos": [7]}) for n in range(3)), role="prefill")
    decode = watch(*(look(n, entries=[RoomEntry("decode.transfer", 7, "r7")]) for n in range(3)))
    assert not said(prefill, decode).findings
    assert not said(prefill, watch(silence="timed out")).findings  # it may be the silent rank's
    tracked = {"addr_to_rooms_tracker": [7]}
    beats = {"addr_to_rooms_tracker": 15.0}
    assert not said(watch(*(look(n, tables=tracked, lingers=beats) for n in range(3)))).findings
    assert codes(said(watch(*(look(n, tables=tracked, lingers=beats) for n in range(0, 40, 10))))) == ["PD153"]


def test_ranks_of_one_name_have_their_server_in_text_only_where_there_are_several() -> None:
    def lost(slot: int) -> list[Look]:
        return [look(n, rows=[taken(slot)], tables={"failed": [slot]}) for n in range(3)]

    there = [{"instance": name, "service": f"decode@{name}:1"} for name in ("a", "b")]
    document = said(*(watch(*lost(3 + n), **one) for n, one in enumerate(there)))
    assert codes(document) == ["PD150", "PD150", "PD153", "PD153"]
    label = identity().label
    for number, one in enumerate(("decode@a:1", "decode@b:1")):
        assert f"{label} of {one} has lost slot {3 + number}:" in document.findings[number].summary
        assert f"{label} of {one} keeps room {3 + number}" in document.findings[2 + number].summary
    assert len({found.units for found in document.findings}) == 2
    for rows in (document.ranks, document.slots, document.leftovers):
        assert [(row.rank, row.service, row.instance) for row in rows] == [
            (label, "decode@a:1", "a"),
            (label, "decode@b:1", "b"),
        ]
    assert [row.name for row in document.ranks] == [f"{label} of decode@a:1", f"{label} of decode@b:1"]
    alone = said(watch(*lost(3), **there[0]))
    assert [row.name for row in alone.ranks] == [label]
    assert alone.ranks[0].service == "decode@a:1"


def pair(name: str, address: str, room: int = 0, tables: dict[str, list[int]] | None = None) -> list[RankWatch]:
    """A prefill and a decode server whose requests name a bootstrap server; prefill has these tables."""
    views = []
    for role in ("prefill", "decode"):
        held = [RoomEntry(f"{role}.inflight", room, f"r{name}", bootstrap=address)] if room else []
        looks = [look(n, entries=held, tables=tables if role == "prefill" else {}) for n in range(3)]
        views.append(watch(*looks, role=role, service=f"{role}@{name}", instance=name))
    return views


def test_a_room_that_only_another_pair_of_servers_has_is_left() -> None:
    left = pair("a", "10.0.0.1:8998", room=9, tables={"transfer_infos": [7]})
    document = said(*left, *pair("b", "10.0.0.2:8998", room=7))
    assert codes(document) == ["PD153"]
    assert document.findings[0].summary.endswith(
        "no rank of its pair of servers has a request for them; another pair has room 7"
    )
    assert document.leftovers[0].service == "prefill@a"


def test_a_room_that_may_be_of_its_own_pair_is_not_left() -> None:
    left = pair("a", "10.0.0.1:8998", room=9, tables={"transfer_infos": [7]})
    prefill, decode = pair("b", "10.0.0.2:8998", room=7)
    for others in (
        [prefill],  # whose decode request has come to no queue yet
        [decode],
        pair("b", "127.0.0.1:8998", room=7),  # another server on each host
        pair("b", "None:8998", room=7),
        pair("b", "10.0.0.1:8998", room=7),  # another decode server of this prefill server
    ):
        assert not said(*left, *others).findings
