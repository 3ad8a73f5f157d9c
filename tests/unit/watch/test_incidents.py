"""Incidents from looks: told once, with their cause, over with a witness, folded where they flap, and bounded."""

from __future__ import annotations

import pytest

from pdctl.report.causes import connect
from pdctl.report.findings import Finding, finding
from pdctl.watch import incidents
from pdctl.watch.incidents import LINES, Change, Incidents
from pdctl.watch.lines import line
from pdctl.watch.model import GroupState, RankState, WatchState

DECODE, PREFILL = "decode dp0 of d/1", "prefill dp0 of p/1"
GROUP = "decode dp0 pp0 · attention-TP group of 2"
LATE = finding("PD101", "Metadata of room 7 was late.", group=GROUP, rooms=(7,), units=(DECODE,))
SKIPPED = finding("PD103", "Rank 1 skipped.", group=GROUP, rooms=(7,), units=(DECODE,))
WAITS = finding("PD143", "Room 8 waits.", rooms=(8,), ranks=("decode dp0 pp0 tp0",), units=(DECODE,))
FULL = finding("PD140", "Decode is full.", rooms=(9,), units=(DECODE,))
BROKEN = finding("PD117", "A thread has ended.", ranks=("prefill dp0 pp0 tp0",), units=(PREFILL,))


class World:
    """Looks, one second apart. ``checked``: a whole check has ended since the look before, took_s: after so long."""

    def __init__(self) -> None:
        self.incidents = Incidents()
        self.at = 1_000.0
        self.checked = (self.at - 1.0, self.at)

    def look(
        self,
        *found: Finding,
        after_s: float = 1.0,
        checked: bool = False,
        took_s: float = 0.5,
        instance: str = "d/1",
    ) -> list[Change]:
        self.at += after_s
        if checked:
            self.checked = (self.at - took_s, self.at)
        ranks = tuple(
            RankState(rank=f"{role} dp0 pp0 tp0", role=role, state="live", instance=start)
            for role, start in (("decode", instance), ("prefill", "p/1"))
        )
        parted = GroupState(title=GROUP, kind="polls", verdict="DIVERGED", queue="decode.transfer", round=12)
        state = WatchState(
            at_wall_ns=int(self.at * 1e9),
            took_s=0.0,
            ranks=ranks,
            groups=(parted,),
            findings=connect(found),
            checked_wall_ns=int(self.checked[1] * 1e9),
            checked_began_wall_ns=int(self.checked[0] * 1e9),
        )
        return [one for one in self.incidents.see(state) if one.change != "ranks"]

    def told(self, *found: Finding, after_s: float = 1.0, checked: bool = False) -> list[tuple[str, str]]:
        return [(one.change, one.code) for one in self.look(*found, after_s=after_s, checked=checked)]


def test_an_error_is_told_once_with_its_round_and_its_rooms_and_when_it_is_over() -> None:
    world = World()
    assert world.look() == []
    [alarm] = world.look(LATE)
    assert (alarm.change, alarm.code, alarm.queue, alarm.round, alarm.rooms) == (
        "began", "PD101", "decode.transfer", 12, (7,),
    )  # fmt: skip
    assert alarm.next_step.startswith("Restart this decode server")
    assert world.look(LATE) == world.look(LATE, checked=True) == []
    [over] = world.look(checked=True)
    assert (over.change, over.incident, over.since_wall_ns) == ("over", alarm.incident, alarm.at_wall_ns)
    assert world.incidents.standing == 0


def test_other_rooms_of_the_same_ranks_are_the_same_incident() -> None:
    world = World()
    world.look(LATE)
    later = finding("PD101", "Metadata of room 9 was late.", group=GROUP, rooms=(9,), units=(DECODE,))
    assert world.look(later) == []
    [over] = world.look()
    assert over.rooms == (9, 7)


def test_a_warning_counts_when_a_second_check_has_it() -> None:
    world = World()
    assert world.look(WAITS) == world.look(WAITS) == []
    assert world.told(WAITS, checked=True) == [("began", "PD143")]
    world = World()
    world.look(WAITS)
    assert world.look(checked=True) == []  # gone before
    assert world.look(WAITS) == []


def test_the_end_of_the_check_that_found_a_warning_is_no_second_check() -> None:
    world = World()
    assert world.look(WAITS) == []  # a check that is under way has found it
    assert world.look(WAITS, checked=True, took_s=5.0) == []
    [alarm] = world.look(WAITS, checked=True)
    assert alarm.change == "began"


def test_hosts_and_pods_that_give_no_rank_are_not_counted_as_ranks() -> None:
    def said(*hosts: str, ranks: int = 2) -> str:
        there = [RankState(rank=f"decode dp0 pp0 tp{n}", role="decode", state="live") for n in range(ranks)]
        there += [RankState(rank=name, role="unknown", state="silent", host=True) for name in hosts]
        [change] = Incidents().see(WatchState(at_wall_ns=1, took_s=0.0, ranks=tuple(there)))
        return change.summary

    assert said("gpu2", "gpu1") == "2 ranks: 2 live; none seen on hosts gpu1, gpu2"
    assert said("pod/llm-5", ranks=0) == "no ranks; none seen on pod llm-5"
    assert said("gpu1", "pod/llm-6", "pod/llm-5").endswith("none seen on host gpu1, and on pods llm-5, llm-6")
    assert said(*(f"gpu{n}" for n in range(1, 9)), ranks=1).endswith(
        "1 rank: 1 live; none seen on hosts gpu1, gpu2, gpu3, gpu4, gpu5 and 3 more"
    )


def test_what_is_only_information_is_no_alarm_and_hides_what_follows_from_it() -> None:
    world = World()
    for _ in range(4):
        assert world.look(FULL, checked=True) == []


def test_an_alarm_gets_its_cause_on_a_second_line_and_no_other() -> None:
    world = World()
    assert world.told(SKIPPED) == [("began", "PD103")]
    assert world.told(LATE) == [("cause", "PD101")]
    stale = finding("PD131", "A stale slot.", rooms=(7,), ranks=("decode dp0 pp0 tp1",), units=(DECODE,))
    world = World()
    wrong = finding("PD107", "Another request's room.", group=GROUP, rooms=(7,), units=(DECODE,))
    assert world.told(wrong) == [("began", "PD107")]
    assert world.told(wrong, stale) == [("cause", "PD131")]
    assert world.told(wrong, stale, checked=True) == []
    assert world.told(checked=True) == [("over", "PD131")]
    assert world.incidents.standing == 0


def test_consequences_are_no_incidents_of_their_own() -> None:
    world = World()
    waits = finding("PD142", "Room 7 waits.", rooms=(7,), ranks=("prefill dp0 pp0 tp0",), units=(PREFILL, DECODE))
    assert world.told(LATE, waits) == [("began", "PD101")]
    assert world.told(LATE, waits, BROKEN) == [("began", "PD117")]


def test_two_alarms_of_one_cause_become_one() -> None:
    world = World()
    waits = finding("PD142", "Room 7 waits.", rooms=(7,), ranks=("prefill dp0 pp0 tp0",), units=(PREFILL, DECODE))
    assert world.told(waits) == [("began", "PD142")]
    assert world.told(waits, LATE) == [("cause", "PD101")]
    assert world.told() == [("over", "PD101")]


def test_a_cause_that_is_not_seen_any_more_leaves_no_new_alarm_behind() -> None:
    stale = finding("PD131", "A stale slot.", rooms=(7,), ranks=("decode dp0 pp0 tp1",), units=(DECODE,))
    wrong = finding("PD107", "Another request's room.", group=GROUP, rooms=(7,), units=(DECODE,))
    stands = finding("PD160", "They stand.", ranks=("decode dp0 pp0 tp0",), units=(DECODE,))
    world = World()
    assert world.told(wrong) == [("began", "PD107")]
    assert world.told(wrong, stale, stands) == [("cause", "PD131")]
    assert world.told(wrong, stands) == []  # its rank has ended
    assert world.told(stands) == []
    assert world.told(wrong, stale, stands) == []
    assert world.told() == [("over", "PD131")]
    assert world.incidents.standing == 0
    assert world.told(stands) == [("began", "PD160")]


def test_a_server_that_is_gone_has_not_recovered() -> None:
    world = World()
    world.look(LATE)
    [ended] = world.look(instance="d/2")
    assert ended.change == "ended"


def test_what_flaps_is_folded_and_told_at_the_end_of_a_minute() -> None:
    world = World()
    told = [one for _ in range(20) for found in ((LATE,), ()) for one in world.look(*found)]
    assert [one.change for one in told] == ["began", "over"] * (LINES // 2)
    assert told[-1].incident == told[0].incident
    [often] = world.look(after_s=60.0)
    assert (often.change, often.times) == ("often", 40 - LINES)
    assert "over" in line(often)
    assert world.look(after_s=120.0) == []
    [again] = world.look(LATE, after_s=60.0)
    assert (again.change, again.count) == ("began", 21)


def test_weeks_of_incidents_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 50
    monkeypatch.setattr(incidents, "MOST", most)
    world = World()
    for number in range(3 * most):
        one = finding("PD117", "A thread has ended.", ranks=(f"decode dp{number} pp0 tp0",), units=(DECODE,))
        assert "began" in [change.change for change in world.look(one)]
    assert len(world.incidents._all) <= most
    many = [
        finding("PD117", "A thread has ended.", ranks=(f"prefill dp{n} pp0 tp0",), units=(f"prefill dp{n} of p/1",))
        for n in range(3 * most)
    ]
    world.look(*many)
    assert len(world.incidents._all) <= most


def test_a_line_has_no_end_of_line_in_it_and_says_what_and_where() -> None:
    world = World()
    [alarm] = world.look(LATE)
    assert " ALARM #1 PD101 decode dp0 pp0" in line(alarm)
    assert "round 12 of decode.transfer · room 7: Metadata of room 7 was late. Next: Restart" in line(alarm)
    [over] = world.look()
    assert line(over).endswith("it is not seen any more; it stood for 1.0 s")
