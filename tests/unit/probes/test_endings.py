"""Servers that have ended, and those that were restarted, replaced, or told to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdctl.probes.endings import Ending, Endings, how, judge
from pdctl.probes.processes import ending
from pdctl.protocol.model import UNKNOWN, Identity, KVPoll
from pdctl.protocol.processes import Process
from pdctl.protocol.rank import FoundRank
from pdctl.protocol.requests import Cover, Lookup, RoomEntry, Rooms, RoomTable, Space
from pdctl.report.findings import Level
from tests.support.identities import identity

S = 10**9
TIMEOUT = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
COVERS = (
    Cover("decode.transfer", int(KVPoll.WAITING_FOR_INPUT), 300.0, TIMEOUT),
    Cover("decode.transfer", UNKNOWN, 0.0),
)


def prefill(tp: int = 0, **changes: Any) -> Identity:
    fields = {"role": "prefill", "service": "prefill here:30000", "tp": tp, "tp_size": 2, "pid": 70 + tp}
    return identity(**fields | changes)


def ended(tp: int = 0, at_s: float = 100.0, **changes: Any) -> Ending:
    """Return a rank of prefill that gave its last sign at ``at_s`` and was killed."""
    fields = {
        "identity": prefill(tp, started_wall_ns=S), "last_ns": int(at_s * S), "age_s": 130.0 - at_s, "recorded": "writing",
    }  # fmt: skip
    return Ending(**fields | changes)


def waits(*entries: RoomEntry) -> Rooms:
    return Rooms(0, 9, RoomTable.of(entries), COVERS, Space(), {}, {}, {})


def entry(room: int, state: KVPoll = KVPoll.WAITING_FOR_INPUT, clock_s: float = 20.0, **changes: Any) -> RoomEntry:
    return RoomEntry(
        **{"queue": "decode.transfer", "room": room, "rid": f"r{room}", "state": int(state), "clock_s": clock_s}
        | changes
    )


DECODE = identity(pid=9)
LATER = {"started_wall_ns": 110 * S}


def test_who_went_first_when_how_and_what_waits_for_it() -> None:
    raised = ended(0, at_s=100.9, raised="scheduler ended: RuntimeError in broadcast, distributed_c10d.py:3151")
    rooms = waits(
        entry(5), entry(6, clock_s=50.0), entry(7, KVPoll.TRANSFERRING, -1.0), entry(7, KVPoll.TRANSFERRING, -1.0)
    )
    [found] = judge(Endings([raised, ended(1)], [DECODE], {0: rooms}))
    assert (found.code, found.level.value, found.rooms) == ("PD113", "error", (5, 6, 7))
    assert found.summary == (
        "Server prefill ended 30.0 s ago: prefill dp0 pp0 tp1 first, killed by somebody or by its own server, out of memory,"
        " or crashed: it had no time to close its recording (the engine's log or the kernel's may say more). 3 rooms of decode"
        f" wait for it; {TIMEOUT} ends 2 in 280.0 s at most, 1 has no time-out."
    )
    assert found.evidence[0].startswith(
        "prefill dp0 pp0 tp1 (pid 71): last sign 30.0 s ago at 1970-01-01 00:01:40 UTC, killed"
    )
    assert found.evidence[1].endswith("scheduler ended: RuntimeError in broadcast, distributed_c10d.py:3151")
    assert f"room 6: {TIMEOUT} in 250.0 s" in found.evidence
    assert found.units == ("prefill dp0 of first",)


def test_the_next_step_is_of_the_rooms_that_there_are() -> None:
    def next_step(*entries: RoomEntry) -> str:
        [found] = judge(Endings([ended(0, age_s=60.0)], [DECODE], {0: waits(*entries)}))
        return found.next_step

    assert next_step(entry(5)).endswith("pdctl story 5 tells what a request went through.")
    assert next_step(entry(5, KVPoll.TRANSFERRING)).endswith("Abort on decode the 1 room that no time-out ends.")
    [crashed] = judge(Endings([ended(0), ended(identity=identity(pid=9, tp_size=1))]))[:1]
    assert crashed.next_step == "Start this server again, as a whole; keep what it knew first: pdctl record FILE."


def test_what_waits_for_the_other_side_no_more_does_not_wait_for_a_server_that_ended() -> None:
    rooms = waits(entry(5), entry(6, KVPoll.SUCCESS, -1.0), entry(7, KVPoll.FAILED, -1.0))
    [found] = judge(Endings([ended(0)], [DECODE], {0: rooms}))
    assert found.rooms == (5,)
    [one] = judge(Endings([ended(0)], [DECODE], {0: waits(entry(5, KVPoll.TRANSFERRING, -1.0))}))
    assert "1 room of decode waits for it; no time-out ends it." in one.summary


def test_when_it_ended_is_told_by_the_clock_where_its_age_is_not_known() -> None:
    [found] = judge(Endings([ended(0, age_s=None)], [DECODE], {0: waits(entry(5))}))
    assert found.summary.startswith("Server prefill ended at 1970-01-01 00:01:40 UTC: prefill dp0 pp0 tp0 first")


@pytest.mark.parametrize("recorded", ["closed", "writing"])  # an engine that is told to end kills its ranks at last
@pytest.mark.parametrize(
    ("age_s", "held", "entries", "level"),
    [
        (5.0, (), [entry(5, age_s=3.0)], Level.WARNING),  # it may be back before what ends the request
        (5.0, (), [entry(5, age_s=9.0)], Level.ERROR),  # it was there before the server went
        (5.0, (5,), [entry(5, age_s=3.0)], Level.ERROR),
        (5.0, (4,), [], Level.ERROR),
        (60.0, (), [entry(5, age_s=3.0)], Level.ERROR),  # it does not come back
        (None, (), [entry(5, age_s=3.0)], Level.ERROR),
    ],
)
def test_a_gap_without_a_lost_request_is_no_error(
    recorded: str, age_s: float | None, held: tuple[int, ...], entries: list[RoomEntry], level: Level
) -> None:
    gone = ended(recorded=recorded, age_s=age_s, held=frozenset(held))
    [found] = judge(Endings([gone], [DECODE], {0: waits(*entries)}))
    assert found.level is level
    assert ("being restarted" in found.next_step) is (level is Level.WARNING)


def test_a_server_that_was_killed_and_that_nobody_waits_for_is_a_warning() -> None:
    [found] = judge(Endings([ended(age_s=300.0)], [DECODE], {0: waits()}))
    assert (found.level, "No request waits for it" in found.summary) == (Level.WARNING, True)


def test_nobody_is_told_to_start_a_server_whose_place_is_taken() -> None:
    seen = [DECODE, prefill(service="prefill here:30010", **LATER)]
    [found] = judge(Endings([ended(known=frozenset({5}))], seen, {0: waits(entry(5))}))
    assert found.next_step.startswith("Another server has taken its place: what waits here does not wait for that one.")


def test_last_signs_within_a_turn_tell_no_order() -> None:
    [found] = judge(Endings([ended(0), ended(1, at_s=100.1)], [DECODE], {0: waits(entry(5))}))
    assert "prefill dp0 pp0 tp0 or prefill dp0 pp0 tp1 first" in found.summary
    [found] = judge(Endings([ended(0), ended(1, at_s=100.1, status=9)], [DECODE], {0: waits(entry(5))}))
    assert "prefill dp0 pp0 tp1 first, killed by SIGKILL" in found.summary


def test_one_rank_is_gone_and_the_others_are_not_yet() -> None:
    [found] = judge(Endings([ended(1, recorded="closed")], [prefill(0), DECODE], {1: waits()}))
    assert found.summary.startswith("1 of 2 ranks of prefill ended 30.0 s ago: prefill dp0 pp0 tp1 first")
    assert "No request waits for it" in found.summary
    assert found.level is Level.ERROR, "what is left of it can't go on"
    assert "ROOM" not in found.next_step
    assert "Abort" not in found.next_step
    [unheard] = judge(Endings([ended(1)], [DECODE]))
    assert "Whether requests wait for it is not known: decode dp0 pp0 tp0 was not heard" in unheard.summary


def test_what_was_in_it_when_nothing_is_left() -> None:
    [found] = judge(Endings([ended(0, held=frozenset({4, 5}))], []))
    assert "2 rooms were in it" in found.summary
    assert judge(Endings([ended(0)], [])) == (), "old recordings of a cluster that is over"


def test_both_servers_were_killed_and_nothing_is_left() -> None:
    gone = ended(identity=identity(pid=9, tp_size=1))
    found = judge(Endings([ended(0), ended(1), gone]))
    assert [(one.code, one.group) for one in found] == [("PD113", "prefill"), ("PD113", "decode")]
    closed = ended(identity=identity(pid=9, tp_size=1), recorded="closed")
    assert judge(Endings([ended(0, recorded="closed"), ended(1, recorded="closed"), closed])) == ()


@pytest.mark.parametrize(
    ("one", "living"),
    [
        (ended(recorded="closed"), [DECODE]),  # told to end, with nothing in it
        (ended(), [DECODE, prefill(service="prefill here:30010", **LATER)]),  # another has taken its place
        (ended(held=frozenset({4})), [identity(cluster="other")]),  # left behind by a cluster that is over
        (ended(identity=identity(role="unknown")), [DECODE]),
    ],
)
def test_what_was_replaced_or_told_to_end_is_no_finding(one: Ending, living: list[Identity]) -> None:
    assert judge(Endings([one], living, {0: waits()})) == ()


def test_what_waits_for_another_server_does_not_wait_for_this_one() -> None:
    other = prefill(service="prefill here:30010", instance="second")
    seen = [DECODE, other]
    [found] = judge(Endings([ended(known=frozenset({5}))], seen, {0: waits(entry(5), entry(6))}))
    assert found.rooms == (5,)


def test_of_two_servers_that_ended_each_has_the_requests_that_it_knew() -> None:
    other = ended(identity=prefill(service="prefill here:30010", instance="second"), known=frozenset({6}))
    seen = Endings([ended(known=frozenset({5})), other], [DECODE], {0: waits(entry(5), entry(6), entry(7))})
    assert [found.rooms for found in judge(seen)] == [(5, 7), (6, 7)]  # of the last it is not known


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": 9}, "killed by SIGKILL"),
        ({"status": 256}, "with exit code 1"),
        ({"status": 9, "logged": True}, "killed by SIGKILL (the engine's log says so)"),
        ({"status": 256, "raised": "scheduler ended: ValueError in run"}, "scheduler ended: ValueError in run"),
        (
            {"service": "detokenizer", "service_status": 9},
            "by its own server, whose detokenizer had ended before, killed by SIGKILL (the engine's log says so)",
        ),
        (
            {"status": 9, "service": "detokenizer", "service_status": 256},
            "by its own server, whose detokenizer had ended before, with exit code 1 (the engine's log says so)",
        ),
        ({"status": 11, "service": "detokenizer", "service_status": 9}, "killed by SIGSEGV"),
        ({"recorded": "closed"}, "in good order, as one that is told to end"),
        ({"recorded": ""}, "how is not known (the engine's log or the kernel's may say more)"),
    ],
)
def test_how_a_rank_ended(changes: dict[str, Any], words: str) -> None:
    assert how(ended(**changes)) == words


def test_the_log_is_asked_for_a_rank_whose_exit_status_is_known(tmp_path: Path) -> None:
    """As where the first process of a container reaps nobody."""
    log = tmp_path / "server.log"
    log.write_text("Subprocess detokenizer (pid=99) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n")
    zombie = Process(state="Z", start=1, exit_status=9)
    seen = ending(FoundRank(prefill(), "dead", log=log, process=zombie), None)
    assert (seen.status, seen.logged, seen.service, seen.service_status) == (9, False, "detokenizer", 9)


def test_attempts_at_its_bootstrap_server_end_what_no_time_out_ends() -> None:
    asks = entry(5, KVPoll.BOOTSTRAPPING, -1.0, queue="decode.pending", bootstrap="10.0.0.1:8998")
    rooms = msgspec.structs.replace(waits(asks), lookups={"10.0.0.1:8998": Lookup(attempts=4, most=15, every_s=1.0)})
    [found] = judge(Endings([ended(0), ended(1)], [DECODE], {0: rooms}))
    assert "attempt 15 at its bootstrap server ends 1 in 11.0 s at most" in found.summary


def test_a_clock_that_has_not_begun_ends_nothing() -> None:
    """Nor will it begin, where a message of the server that ended begins it: what ``stuck`` says is said here, too."""
    [found] = judge(Endings([ended(0), ended(1)], [DECODE], {0: waits(entry(5, clock_s=-1.0))}))
    assert "no time-out ends it" in found.summary
    assert "Abort on decode the 1 room that no time-out ends" in found.next_step


@pytest.mark.parametrize(
    ("there", "began_s", "expected"),
    [
        ("10.0.0.2:8998", 1, (6,)),  # room 5 is of another pair of servers
        ("10.0.0.1:8998", 1, (5, 6)),
        ("", 1, (5, 6)),  # nothing tells whose it is
        ("10.0.0.2:8998", 110, (5, 6)),  # one that began later has no request of before
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_request_that_another_pair_of_servers_has_does_not_wait_for_this_one(
    role: str, there: str, began_s: int, expected: tuple[int, ...]
) -> None:
    queue = "prefill.inflight" if role == "decode" else "decode.transfer"
    taken = [entry(room, queue=queue, bootstrap="10.0.0.2:8998", age_s=50.0) for room in (5, 6)]
    gone = ended(identity=identity(role=role, instance="first"), known=frozenset({5, 6}))
    mate = identity(role=role, service="other", instance="second", started_wall_ns=began_s * S)
    asking = identity(role="prefill" if role == "decode" else "decode", service="asks", instance="third")
    [found] = judge(Endings([gone], [asking, mate], {0: waits(*taken), 1: waits(entry(5, bootstrap=there))}))
    assert found.rooms == expected
