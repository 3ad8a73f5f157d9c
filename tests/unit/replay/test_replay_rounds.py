"""Plans from recordings, and what is said of how they went: a trace of real SGLang, and workers' logs made up for each end."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

from pdctl.commands.replay_rounds import enough
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.model import Action, KVPoll
from pdctl.recording.reader import read
from pdctl.replay.emit import NothingToShow, source
from pdctl.replay.judge import judge
from pdctl.replay.model import Worked
from pdctl.replay.plan import NotReplayable, Plan, RankPlan, Request, Step, plan
from pdctl.replay.position import Position, Where
from pdctl.replay.simulate import parting
from pdctl.replay.worker_log import Line, Options
from pdctl.trace.reader import open_trace
from tests.unit.probes.test_queue_judge import Rank, turn

REAL = Path(__file__).parents[2] / "data" / "sglang-0.5.12.post1-c1.pdtrace"
ROOM = 16851422098683615
SUCCESS, WAITING = int(KVPoll.SUCCESS), int(KVPoll.WAITING_FOR_INPUT)
COMMITTED = int(Action.COMMITTED)


@pytest.fixture(scope="module")
def real() -> Plan:
    with open_trace(REAL) as there:
        folder = there.folder
        found = [read(path) for path in folder.glob("*.pdrec")]
        ranks = sorted((r for r in found if r.identity.role == "decode"), key=lambda r: r.identity.tp)
        return plan(ranks, "decode.transfer", "decode")


def test_a_trace_of_real_sglang(real: Plan) -> None:
    assert (real.element, real.gated, real.rounds, real.left_out) == ("uint8", False, 248, 0)
    parted = parting(real, gate=False)
    assert parted is not None
    assert real.ordinals[parted.round] == 247
    number = next(n for n, request in enumerate(real.requests) if request.room == ROOM)
    assert [number in of for of in parted.lists] == [False, True]
    assert parting(real, gate=True) is None


def test_equal_rounds_can_be_left_out_and_nothing_else_changes() -> None:
    with open_trace(REAL) as there:
        folder = there.folder
        found = sorted((read(path) for path in folder.glob("*.pdrec")), key=lambda r: r.identity.tp)
        ranks = [r for r in found if r.identity.role == "decode"]
        whole = plan(ranks, "decode.transfer", "decode")
        short = plan(ranks, "decode.transfer", "decode", repeats=1)
        with pytest.raises(NotReplayable, match="no rank has rounds of"):
            plan(ranks, "prefill.inflight", "decode")
    assert short.rounds < whole.rounds
    assert short.left_out == whole.rounds - short.rounds
    parted = parting(short, gate=False)
    assert parted is not None
    assert short.ordinals[parted.round] == 247


@pytest.mark.parametrize("reduced", [False, True])
def test_a_round_that_one_rank_was_still_in_parts_nobody(tmp_path: Path, reduced: bool) -> None:
    """Recordings are read one after the other: what a rank does at the end of its last round may be in the others' only."""
    ranks = [Rank(n, 2, tmp_path, queue_name="decode.prealloc") for n in range(2)]
    for rank in ranks:
        rank.arrive(7)
        rank.slots[7] = 7
    for _ in range(3):
        assert turn(ranks)
    slow, quick = ranks
    assert slow.enter({7: SUCCESS}, gate=False) == quick.enter({7: SUCCESS}, gate=False)
    if reduced:
        slow.tap.left(0, bytes([SUCCESS]), 1)
    quick.apply([SUCCESS])
    made = plan([read(rank.path) for rank in ranks], "decode.prealloc", "decode")
    assert parting(made, gate=False) is None
    if not reduced:
        slow.tap.left(0, bytes([SUCCESS]), 1)
    slow.tap.decided(slow.queue[0], Action.COMMITTED, 7)
    slow.tap.leave([])
    ended = plan([read(rank.path) for rank in ranks], "decode.prealloc", "decode")
    assert [sum(len(step.acts) for step in rank.steps.values()) for rank in (*made.ranks, *ended.ranks)] == [0, 0, 1, 1]


def one_request(*, late: int = 2) -> Plan:
    """One request on two ranks, Success in round 1; its row lands on tp1 ``late`` rounds after that."""

    def steps(lands: int, *acts: tuple[int, int]) -> dict[int, Step]:
        found = {
            0: Step(arrive=[0], polls=[(0, WAITING)]),
            1: Step(polls=[(0, SUCCESS)], rows=[(0, 0)], acts=list(acts)),
        }
        found.setdefault(lands, Step()).rows = [(0, 7)]
        return found

    ranks = (
        RankPlan("decode dp0 pp0 tp0", "tp0", False, steps(1, (0, COMMITTED))),
        RankPlan("decode dp0 pp0 tp1", "tp1", False, steps(1 + late)),
    )
    return Plan("decode.transfer", "decode", "uint8", (Request(7, (0, 0)),), ranks, (10, 11), 8, decides=True)


def done(*lines: Line, at: int = 10) -> Worked:
    return Worked((*lines, Line("end", at)), Position(at, 0, Where.DONE), 0)


CAME = Line("came", 0, list=(0,))
LEFT = Line("changed", 1, ((0, COMMITTED),))


def test_ranks_that_part_and_hang() -> None:
    hung = Worked((CAME, Line("hung", 2, list=(0,))), Position(2, 1, Where.IN_COLLECTIVE), 70)
    result = judge(one_request(), Options(gate=False), [done(CAME, LEFT), hung])
    assert (result.verdict, result.round, result.rooms) == ("DIVERGES", 11, (7,))
    assert "tp0 committed room 7, tp1 kept it" in result.text
    assert "The collective hung: tp0 done, tp1 in round 12 with 1 poll" in result.text


def test_a_request_that_came_on_one_rank_only() -> None:
    plan = one_request()
    hung = Worked((CAME, Line("hung", 0, list=(0,))), Position(0, 1, Where.IN_COLLECTIVE), 70)
    result = judge(plan, Options(gate=False), [done(), hung])
    assert (result.verdict, result.round, result.rooms) == ("DIVERGES", 10, (7,))
    assert "tp0 never had room 7, tp1 has it" in result.text


def test_a_rank_that_is_still_in_the_round_has_not_parted() -> None:
    behind = Worked((CAME,), Position(1, 1, Where.IN_COLLECTIVE), -9)
    assert judge(one_request(), Options(gate=False), [done(CAME, LEFT), behind]).verdict == "FAILED"


def test_ranks_that_part_and_abort() -> None:
    died = Worked((CAME, LEFT), Position(2, 0, Where.IN_COLLECTIVE), -6)
    other = Worked((CAME,), Position(2, 1, Where.IN_COLLECTIVE), -9)
    result = judge(one_request(), Options(gate=False), [died, other])
    assert result.verdict == "DIVERGES"
    assert "tp0 and tp1 died by SIGABRT" in result.text


def test_as_recorded_and_in_step_but_otherwise() -> None:
    plan = one_request()
    same = Worked((CAME, LEFT), Position(10, 0, Where.DONE), 0)
    both = judge(plan, Options(gate=True), [done(CAME, Line("changed", 3, ((0, COMMITTED),), held=(0,)))] * 2)
    assert (both.verdict, both.round, both.held) == ("DIFFERS", 11, (7,))
    assert "tp0 kept room 7, which it had committed; the ranks stay in step" in both.text
    recorded = RankPlan("decode dp0 pp0 tp1", "tp1", False, plan.ranks[0].steps)
    twin = Plan(
        "decode.transfer", "decode", "uint8", plan.requests, (plan.ranks[0], recorded), (10, 11), 8, decides=True
    )
    assert judge(twin, Options(gate=False), [same, same]).verdict == "AS RECORDED"


def test_a_worker_that_is_killed_is_no_divergence() -> None:
    killed = Worked((CAME,), Position(0, 1, Where.BETWEEN), -9)
    cut_off = Worked(
        (CAME, Line("failed", 1, text="Connection closed by peer")), Position(1, 1, Where.IN_COLLECTIVE), 71
    )
    result = judge(one_request(), Options(gate=False), [killed, cut_off])
    assert result.verdict == "FAILED"
    assert "tp0 died by SIGKILL" in result.text


def test_what_the_engine_makes_of_it_is_compared() -> None:
    differs = Line("differs", 1, text="the engine's functions reduced to [3], ours to [4]")
    result = judge(one_request(), Options(gate=True, engine="sglang"), [done(CAME, differs, LEFT), done(CAME, LEFT)])
    assert result.engine_differs == ("tp0, round 11: the engine's functions reduced to [3], ours to [4]",)


def test_the_emitted_test_has_the_recorded_rooms_and_is_python(real: Plan) -> None:
    text = source(real)
    assert "SGLang 0.5.12.post1 recorded" in text
    script = next(
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "SCRIPT"
    )
    assert script["ranks"] == 2
    late = script["requests"][0]
    assert late["room"] == ROOM
    assert late["rows"][0] == [[late["polls"][0][-1][0], ROOM]], "landed on tp0 with its Success"
    assert late["rows"][1][0][1] == 0, "and not on tp1"
    assert "/" not in text.split('"""')[1].replace("pdctl", ""), "no path of the machine it was made on"


def test_fewer_devices_than_ranks_are_refused_for_nccl(real: Plan) -> None:
    enough(2, [real])
    with pytest.raises(PdctlError, match="for each of 2 ranks, and torch sees 1 here"):
        enough(1, [real])


def test_a_recorded_abort_over_a_stale_row_is_not_forced_on_a_gate_that_holds_the_request() -> None:
    made = one_request()
    stale = {
        0: Step(arrive=[0], polls=[(0, WAITING)]),
        1: Step(polls=[(0, SUCCESS)], rows=[(0, 6001)], acts=[(0, int(Action.ABORTED))]),
        3: Step(rows=[(0, 7)]),
    }
    ranks = (RankPlan("decode dp0 pp0 tp0", "tp0", False, stale), made.ranks[1])
    mixed = Plan("decode.transfer", "decode", "uint8", made.requests, ranks, (10, 11), 8, decides=True)
    assert parting(mixed, gate=True) is None, "tp1 reads 0, so nobody gets to decide before both rows are there"
    assert parting(mixed, gate=False) is not None


def test_a_slot_with_its_former_owners_room_is_emitted_with_that_owner() -> None:
    """Whether a slot that is taken anew still holds that room is left to the engine that the test runs on."""
    aborted, committed = int(Action.ABORTED), int(Action.COMMITTED)

    def steps(found: int, action: int) -> dict[int, Step]:
        return {
            0: Step(arrive=[0], polls=[(0, SUCCESS)], rows=[(0, 7)], acts=[(0, committed)]),
            2: Step(arrive=[1], polls=[(1, WAITING)]),
            3: Step(polls=[(1, SUCCESS)], rows=[(1, found)], acts=[(1, action)]),
        }

    ranks = tuple(
        RankPlan(f"decode dp0 pp0 tp{n}", f"tp{n}", False, steps(*how))
        for n, how in enumerate([(8, committed), (7, aborted)])
    )
    made = Plan(
        "decode.transfer",
        "decode",
        "uint8",
        (Request(7, (4, 4)), Request(8, (4, 4))),
        ranks,
        (1, 2, 3, 4),
        8,
        decides=True,
    )
    text = source(made)
    script = ast.literal_eval(text.partition("SCRIPT = ")[2].partition('\n"""')[0])
    assert (script["slots"], [request["room"] for request in script["requests"]]) == (1, [7, 8])
    former, later = script["requests"]
    assert former["rows"] == [[[0, 7]], [[0, 7]]]
    turn = later["polls"][0][-1][0]
    assert later["rows"][0] == [[turn, 8]]
    [[lands, room]] = later["rows"][1]
    assert (room, lands > turn) == (8, True)
    others = tuple(Request(room, (slot, slot)) for room, slot in ((7, 3), (8, 4)))
    with pytest.raises(NothingToShow, match="former owner"):
        source(msgspec.structs.replace(made, requests=others))


def test_nothing_is_emitted_of_ranks_in_step() -> None:
    late = one_request(late=0)
    ranks = (late.ranks[0], RankPlan("decode dp0 pp0 tp1", "tp1", False, late.ranks[0].steps))
    with pytest.raises(NothingToShow):
        source(Plan("decode.transfer", "decode", "uint8", late.requests, ranks, (10, 11), 8, decides=True))
