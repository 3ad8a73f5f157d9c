"""One state from a look and the last check: what stands, what a look disproves, and what has to be checked at once."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from pdctl.probes.check.model import Outcome
from pdctl.probes.queues.judge import judge
from pdctl.probes.queues.model import GroupReport, QueuesDocument, RankView
from pdctl.protocol.model import Call, GroupInfo, QueueEntry, SlotEntry, Snapshot, Status
from pdctl.protocol.rank import Access, Answer, FoundRank, Silence
from pdctl.report.findings import Finding, finding
from pdctl.targets.bridges import unreached
from pdctl.targets.registration import nameless
from pdctl.watch.checking import Checked, with_parts
from pdctl.watch.merging import NOT_READ, Look, merged, suspicions
from tests.unit.agent.test_tap_recording import IDENTITY

GROUP = "decode dp0 pp0 · attention-TP group of 2"
UNIT = "decode dp0 of i"
PARTED = finding("PD104", "They differ.", group=GROUP, rooms=(7,), units=(UNIT,))
STANDS = finding("PD114", "It stands.", ranks=("decode dp0 pp0 tp1",), units=(UNIT,))


def look(
    at: float,
    *found: Finding,
    age_s: float = 0.1,
    rounds: tuple[int, int] = (5, 5),
    off: str = "",
    silent: bool = False,
) -> Look:
    """A look at two decode ranks whose last turn is so old."""
    ranks, answers, views = [], [], []
    for n in (0, 1):
        who = msgspec.structs.replace(
            IDENTITY, tp=n, tp_size=2, world_rank=n, pid=100 + n, groups=(GroupInfo("attn-tp", (0, 1), "w"),)
        )
        now = int(at * 1e9)
        status = Status(
            identity=who, mono_ns=now, ticks=9, tick_mono_ns=now - int(age_s * 1e9), call=Call(), stack=(),
            rounds={"decode.transfer/attn-tp": rounds[n]}, seams=(), recording="", recording_off="", hook_errors={},
            hooks_removed=(), faults=(), agent_cpu_s=0.0,
        )  # fmt: skip
        rank = FoundRank(who, "live")
        answer = Answer(rank, None, Silence.TIMED_OUT, "no answer") if silent else Answer(rank, status)
        ranks.append(rank)
        answers.append(answer)
        views.append(RankView(who, "live", status=answer.body, silence=answer.reason, recording_off=off))
    verdict = "DIVERGED" if any(one.code == "PD104" for one in found) else "AGREE"
    report = GroupReport(title=GROUP, ranks=("tp0", "tp1"), verdict=verdict, role="decode", cluster="c")
    document = QueuesDocument(groups=(report,), findings=found, problems=("tp0: no rounds",))
    return Look(at, tuple(ranks), tuple(answers), tuple(views), document)


def checked(began: float, *found: Finding, took_s: float = 2.0) -> Checked:
    ended = int((began + took_s) * 1e9) if took_s else 0
    return Checked(int(began * 1e9), ended, ended, (Outcome("stacks", "", found),))


def codes(state: object) -> list[str]:
    return [one.code for one in state.findings]  # type: ignore[attr-defined]


def test_ranks_that_parted_stand_until_a_check_that_began_later_does_not_find_it() -> None:
    before, state = merged(look(10.0, PARTED), Look(), Checked(), None)
    assert codes(state) == ["PD104"]
    assert [(one.verdict, one.ranks) for one in state.groups] == [
        ("DIVERGED", ("decode dp0 pp0 tp0", "decode dp0 pp0 tp1"))
    ]
    later, state = merged(look(11.0), before, checked(9.5), None)  # that check began before it was seen
    assert codes(state) == ["PD104"]
    later, state = merged(look(12.0), later, checked(11.5, took_s=0), None)
    assert codes(state) == ["PD104"]
    _, state = merged(look(15.0), later, checked(11.5), None)
    assert codes(state) == []


def test_a_far_side_without_ranks_is_a_host_and_an_endpoint_is_a_rank() -> None:
    seen = look(10.0, silent=True)
    far = unreached("gpu2", Silence.REFUSED, "ssh can't get there")
    endpoint = FoundRank(nameless("tcp://gpu3:7000"), "live", endpoint="tcp://gpu3:7000", access=Access())
    for rank in (far, endpoint):
        seen = replace(
            seen,
            ranks=(*seen.ranks, rank),
            answers=(*seen.answers, Answer(rank, None, Silence.REFUSED, "refused")),
            views=(*seen.views, RankView(rank.identity, "live", silence="refused")),
        )
    _, state = merged(seen, Look(), Checked(), None)
    assert [(one.rank, one.host) for one in state.ranks] == [
        ("decode dp0 pp0 tp0", False), ("decode dp0 pp0 tp1", False), ("gpu2", True), ("tcp://gpu3:7000", False),
    ]  # fmt: skip


def test_of_a_group_that_has_parted_the_check_tells_the_cause() -> None:
    cause = finding("PD101", "Metadata was late.", group=GROUP, rooms=(7,), units=(UNIT,))
    _, state = merged(look(10.0, PARTED), Look(), checked(7.0, cause), None)
    assert codes(state) == ["PD101"]


def test_another_start_of_the_server_parts_anew() -> None:
    before = finding("PD104", "They differ.", group=GROUP, rooms=(7,), units=("decode dp0 of an earlier start",))
    _, state = merged(look(10.0, PARTED), Look(), checked(7.0, before), None)
    assert codes(state) == ["PD104", "PD104"]


def test_what_a_check_under_way_has_found_counts_already() -> None:
    under_way = Checked(int(9e9), outcomes=(Outcome("stacks", "", (STANDS,)),))
    _, state = merged(look(10.0, age_s=8.0), Look(), checked(3.0), under_way)
    assert codes(state) == ["PD114"]
    _, state = merged(look(10.0, age_s=8.0), Look(), checked(3.0, STANDS), Checked(int(9e9)))
    assert codes(state) == ["PD114"]  # until that stage has looked


def test_a_loop_that_has_turned_since_stands_no_more() -> None:
    _, state = merged(look(10.0, age_s=8.0), Look(), checked(5.0, STANDS), None)
    assert codes(state) == ["PD114"]
    _, state = merged(look(10.0, age_s=0.1), Look(), checked(5.0, STANDS), None)
    assert codes(state) == []
    _, state = merged(look(10.0, silent=True), Look(), checked(5.0, STANDS), None)
    assert codes(state) == ["PD114"]


def test_what_a_check_that_ended_early_has_found_is_as_old_as_that_check() -> None:
    ended_early = Checked(int(10e9), outcomes=(Outcome("ranks", "", (STANDS,)),))
    last = with_parts(checked(1.0), ended_early)
    assert (last.began_ns, last.began_wall_ns) == (int(1e9), int(1e9))
    _, state = merged(look(12.0, age_s=2.5), Look(), last, None)
    assert codes(state) == ["PD114"]
    _, state = merged(look(12.0, age_s=1.5), Look(), last, None)
    assert codes(state) == []


def test_the_stages_of_one_server_are_no_members_of_another_ones_pipeline() -> None:
    def pipeline(server: str) -> list[RankView]:
        who = [
            msgspec.structs.replace(
                IDENTITY, role="decode", pp=pp, pp_size=2, world_rank=pp, service=server, instance=f"{server}/1"
            )
            for pp in (0, 1)
        ]
        return [RankView(one, "live") for one in who]

    views = (*pipeline("a:30001"), *pipeline("b:30001"))
    _, state = merged(Look(), Look(), Checked(views=views, groups=judge(views).groups), None)
    stages = [(one.service, len(one.ranks)) for one in state.groups if one.kind == "stages"]
    assert stages == [("a:30001", 2), ("b:30001", 2)]


def test_what_only_the_gate_holds_is_counted_with_its_time() -> None:
    waits = {
        "decode.transfer": [QueueEntry(7, "a", 0, 4, 1.0), QueueEntry(8, "b", 1, 4, 2.0), QueueEntry(9, "c", 2, 3)]
    }
    snapshot = Snapshot(0, 9, waits, [SlotEntry(0, 7, 0), SlotEntry(1, 8, 8), SlotEntry(2, 9, 0)], {})
    before = Look()
    for at in (10.0, 12.5):
        seen = look(at)
        seen = replace(seen, views=(replace(seen.views[0], snapshot=snapshot), seen.views[1]))
        before, state = merged(seen, before, Checked(), None)
    [one, other] = state.ranks
    assert (one.gated, one.gated_s, one.slots_used, one.queues["decode.transfer"]) == (1, 2.5, 3, 3)
    assert one.oldest_s == {"decode.transfer": 2.0}
    assert (other.gated, other.gated_s, other.slots_used) == (None, None, None)
    assert [group.verdict for group in state.groups] == ["HELD"]


def test_what_is_new_in_a_look_is_checked_at_once() -> None:
    calm = look(10.0)
    assert not suspicions(look(10.5), calm)
    assert suspicions(look(10.5, PARTED), calm)
    assert suspicions(calm, look(9.5, PARTED))
    assert suspicions(look(10.5, silent=True), calm)
    assert suspicions(look(10.5, age_s=3.1), calm)
    assert not suspicions(look(11.0, age_s=3.6), look(10.5, age_s=3.1))
    assert suspicions(look(13.5, age_s=6.1), look(13.0, age_s=5.6))


def test_rounds_that_differ_are_suspicious_once_they_stand() -> None:
    assert not suspicions(look(10.5, rounds=(6, 5)), look(10.0, rounds=(5, 5)))
    assert not suspicions(look(10.5, rounds=(7, 6)), look(10.0, rounds=(6, 5)))
    assert suspicions(look(10.5, rounds=(6, 5)), look(10.0, rounds=(6, 5)))


def test_that_recordings_elsewhere_are_not_read_in_a_look_is_no_problem() -> None:
    _, state = merged(look(10.0), Look(), Checked(), None)
    assert state.problems == ("tp0: no rounds",)
    _, state = merged(look(10.0, off=NOT_READ), Look(), Checked(), None)
    assert state.problems == ()
    assert [(one.state, one.ticks, one.rounds) for one in state.ranks] == [
        ("live", 9, {"decode.transfer/attn-tp": 5})
    ] * 2
