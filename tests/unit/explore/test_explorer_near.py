"""From recordings back to schedules: what was recorded, and what is near it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.explore.near import MOST_ROOMS, as_recorded, policies_for, recorded, space_near
from pdctl.explore.policies import POLICIES, Policy
from pdctl.explore.recordings import write
from pdctl.explore.rules import run
from pdctl.explore.space import Cell, Model, Schedule, space_of
from pdctl.protocol.errors import PdctlError
from pdctl.recording.reader import Recording, read

LANDED, LATE, STALE = Cell(0, 0), Cell(0, 1), Cell(0, 1, 1)


def recordings(policy: Policy, schedule: Schedule, folder: Path) -> list[Recording]:
    write(policy, schedule, folder)
    return [read(path) for path in sorted(folder.iterdir())]


def apart(policy: Policy, schedule: Schedule) -> dict[str, set[int]]:
    return {
        split.name: {schedule.rooms[r] for r in requests} for split, requests in run(policy, schedule).splits.items()
    }


@pytest.mark.parametrize("name", ["no-gate", "gate-zero", "gate-zero-unzeroed", "gate-expected", "receiver-old"])
def test_what_was_recorded_parts_in_the_same_way_on_the_same_rooms(name: str, tmp_path: Path) -> None:
    """Random schedules of three ranks, written and read back; those that part late are seen through the window."""
    policy, pick = POLICIES[name], random.Random(4)
    space = space_of(policy, Model(3, 3, 6, arrivals=3))
    for n in range(15):
        schedule = space.schedule(space.digits(pick.randrange(space.size)))
        outcome = run(policy, schedule)
        if not any(done.lists[0] for done in outcome.rounds):
            continue
        window = recorded(recordings(policy, schedule, tmp_path / str(n)))
        assert window.parted == outcome.diverged, schedule
        assert policy in policies_for(window)
        if outcome.splits:
            again = as_recorded(policy, window)
            assert apart(policy, again) == apart(policy, schedule), (schedule, again)
            assert window.first + run(policy, again).diverged == outcome.diverged


def test_near_is_the_recorded_schedule_and_everything_a_round_off(tmp_path: Path) -> None:
    schedule = Schedule(3, (0,), ((Cell(1, 1),), (Cell(1, 2),)))
    policy = POLICIES["no-gate"]
    window = recorded(recordings(policy, schedule, tmp_path / "t"))
    assert window.parted == 1
    assert window.schedule.cells == ((Cell(1, 1),), (Cell(1, 2),))
    assert space_near(policy, window, 0).size == 1
    space = space_near(policy, window, 1)
    # Success in rounds 0 to 2 and the row up to a round after, on both ranks.
    assert set(space.cells[0]) == {Cell(a, b) for a in range(3) for b in range(a, 3)}
    assert set(space.cells[1]) == {Cell(a, b) for a in range(3) for b in range(max(a, 1), 4)}
    parting = [n for n in range(space.size) if run(policy, space.schedule(space.digits(n))).splits]
    assert 0 < len(parting) < space.size


def test_a_former_owners_room_is_left_out_where_slots_are_zeroed(tmp_path: Path) -> None:
    schedule = Schedule(2, (0,), ((LANDED,), (STALE,)))
    window = recorded(recordings(POLICIES["gate-zero-unzeroed"], schedule, tmp_path / "t"))
    assert as_recorded(POLICIES["gate-zero-unzeroed"], window).cells[1] == (STALE,)
    assert as_recorded(POLICIES["gate-zero"], window).cells[1] == (LATE,)
    assert all(cell.flag == 0 for cells in space_near(POLICIES["gate-zero"], window, 1).cells for cell in cells)


def test_a_long_list_is_cut_and_keeps_what_the_ranks_part_on(tmp_path: Path) -> None:
    count = MOST_ROOMS + 8
    rows = tuple(tuple(LATE if n == count - 1 and rank else LANDED for n in range(count)) for rank in range(2))
    window = recorded(recordings(POLICIES["no-gate"], Schedule(1, (0,) * count, rows), tmp_path / "t"))
    assert len(window.schedule.rooms) == MOST_ROOMS
    assert window.left_out == 8
    assert 7001 + count - 1 in window.schedule.rooms


def test_without_two_ranks_of_a_group_there_is_nothing_to_start_from(tmp_path: Path) -> None:
    schedule = Schedule(1, (0,), ((LANDED,), (LATE,)))
    made = recordings(POLICIES["no-gate"], schedule, tmp_path / "t")
    with pytest.raises(PdctlError, match="no two ranks"):
        recorded(made[:1])
    with pytest.raises(PdctlError, match="no two ranks"):
        recorded([])
    stages = recordings(POLICIES["pp-filter-old"], Schedule(2, (0,), ((Cell(0),), (Cell(1),))), tmp_path / "p")
    with pytest.raises(PdctlError, match="no two ranks"):
        recorded(stages)


def test_a_trace_of_real_sglang_parts_as_recorded_and_would_not_have_with_the_gate() -> None:
    trace = Path(__file__).parents[2] / "data" / "sglang-0.5.12.post1-c1.pdtrace"
    code, text = explore(trace, "-o", "json")
    judged = CliRunner().invoke(app, ["diff-queues", "--from", str(trace), "-o", "json"])
    [parted] = [group for group in json.loads(judged.stdout)["groups"] if group["verdict"] == "DIVERGED"]
    document = json.loads(text)
    assert code == 1
    assert f"they part in round {parted['round']};" in document["bound"]
    assert {r["policy"]: (r["verdict"], r["as_recorded"]) for r in document["results"]} == {
        "no-gate": ("BROKEN", True),
        "gate-zero": ("HOLDS", False),
        "gate-zero-unzeroed": ("HOLDS", False),
        "gate-expected": ("HOLDS", False),
    }
    [kept] = document["results"][0]["counterexamples"]
    assert kept["way"] == "kept"


def explore(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["explore", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_command_on_recordings(tmp_path: Path) -> None:
    schedule = Schedule(3, (0, 0), ((Cell(1, 1), Cell(0, 0)), (Cell(1, 2), Cell(0, 0))), (91, 92))
    recordings(POLICIES["no-gate"], schedule, tmp_path / "t")
    code, text = explore(tmp_path / "t", "-o", "json")
    document = json.loads(text)
    assert code == 1
    assert {r["policy"]: (r["verdict"], r["as_recorded"]) for r in document["results"]} == {
        "no-gate": ("BROKEN", True),
        "gate-zero": ("HOLDS", False),
        "gate-zero-unzeroed": ("HOLDS", False),
        "gate-expected": ("HOLDS", False),
    }
    assert "they part in round 1" in document["bound"]
    [kept] = document["results"][0]["counterexamples"]
    assert {part["room"] for part in kept["parts"]} == {91}
    code, text = explore(tmp_path / "t", "--policy", "gate-zero", "--write", tmp_path / "out")
    assert (code, list((tmp_path / "out").iterdir())) == (0, [])
    assert "they agree" in text
    code, text = explore(tmp_path / "t", "--policy", "pp-filter-old")
    assert code == 2
    assert "gate-expected" in text
    code, text = explore(tmp_path / "nothing")
    assert code == 4
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.pdrec").write_bytes(b"PDCTLREC" + bytes(100))
    code, text = explore(tmp_path / "bad")
    assert code == 4
    assert "Traceback" not in text
