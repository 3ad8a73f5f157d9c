"""A counterexample's recordings, as the commands that read recordings judge and tell them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.explore.policies import POLICIES, Policy, Split
from pdctl.explore.recordings import FORMER, write
from pdctl.explore.rules import run
from pdctl.explore.search import search
from pdctl.explore.shrink import shrink
from pdctl.explore.space import ROOM, Cell, Model, Schedule, space_of
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.model import Action, EventKind
from pdctl.recording.reader import Recording, read

# Policy, way to part, what diff-queues calls it, and how many requests the schedule has before it is shrunk.
FINDINGS = [
    ("no-gate", Split.KEPT, "PD101"),
    ("no-gate", Split.MIXED, "PD107"),
    ("no-gate", Split.ABORTED, "PD107"),
    ("gate-zero-unzeroed", Split.MIXED, "PD107"),
    ("receiver-old", Split.SKIPPED, "PD106"),
    ("receiver-old", Split.LISTS, "PD106"),
]


def invoke(folder: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*arguments, "--from", str(folder)])
    return done.exit_code, done.stdout


def judged(folder: Path) -> tuple[int, dict[str, object], list[dict[str, object]]]:
    code, text = invoke(folder, "diff-queues", "-o", "json")
    document = json.loads(text)
    [group] = document["groups"]
    return code, group, document["findings"]


def example(policy: Policy, split: Split, model: Model) -> Schedule:
    """A counterexample as the search found it, not yet shrunk."""
    sampled = search(space_of(policy, model), schedules=20_000, seed=5)
    return sampled.examples[split][1]


@pytest.mark.parametrize(("name", "split", "code"), FINDINGS, ids=lambda v: getattr(v, "name", v))
def test_diff_queues_finds_the_explorers_round_and_story_tells_the_room(
    name: str, split: Split, code: str, tmp_path: Path
) -> None:
    policy = POLICIES[name]
    large = example(policy, split, Model(3, 4, 5, arrivals=2))
    for label, schedule in (("small", shrink(policy, large, split)), ("large", large)):
        folder = tmp_path / label
        outcome = write(policy, schedule, folder)
        assert outcome == run(policy, schedule)
        exit_code, group, findings = judged(folder)
        assert (exit_code, group["verdict"]) == (1, "DIVERGED")
        assert (group["queue"], group["round"]) == (policy.queue, outcome.diverged)
        assert len(group["ranks"]) == schedule.ranks  # type: ignore[arg-type]
        if label == "small" or len(outcome.splits) == 1:
            assert [f["code"] for f in findings] == [code]
        apart = {ROOM + request for requests in outcome.splits.values() for request in requests}
        assert {split["room"] for split in group["splits"]} >= apart  # type: ignore[attr-defined,call-overload]
        for room in apart:
            told, text = invoke(folder, "story", str(room))
            assert told == 0
            assert f"room {room}" in text
            assert "tp1" in text


def at(recording: Recording, queue: str, ordinal: int) -> dict[int, tuple[int, int | None]]:
    """Room → action and room found, in one round."""
    stream = recording.stream(queue, "attn-tp")
    assert stream is not None
    round_ = stream.at(ordinal)
    assert round_ is not None
    return {item.room: (item.action, item.found) for item in stream.items(round_) or []}


def test_the_recordings_hold_what_each_rank_saw(tmp_path: Path) -> None:
    schedule = Schedule(2, (0,), ((Cell(0, 0),), (Cell(0, 1),), (Cell(0, 1, 1),)))
    write(POLICIES["no-gate"], schedule, tmp_path / "t")
    seen = {}
    for path in sorted((tmp_path / "t").iterdir()):
        recording = read(path)
        assert (recording.state, recording.problems) == ("closed", [])
        seen[recording.identity.tp] = at(recording, "decode.transfer", 0)[ROOM]
        landed = [e for e in recording.events() if e.kind is EventKind.LANDED]
        assert [(e.room, e.b, e.a > 0) for e in landed] == ([(ROOM, ROOM, True)] if recording.identity.tp == 1 else [])
    assert seen == {0: (Action.COMMITTED, ROOM), 1: (Action.KEPT, 0), 2: (Action.ABORTED, FORMER)}


def test_an_orphan_is_told_by_story_and_is_no_difference_within_a_stage(tmp_path: Path) -> None:
    policy = POLICIES["pp-filter-old"]
    schedule = shrink(policy, example(policy, Split.ORPHAN, Model(3, 3, 4)), Split.ORPHAN)
    folder = tmp_path / "t"
    write(policy, schedule, folder)
    code, text = invoke(folder, "story", str(ROOM))
    assert code == 0
    assert "failed in round 0 of prefill.bootstrap" in text
    assert "state Bootstrapping → Failed" in text
    assert "last seen in round 4 of prefill.bootstrap: kept" in text
    stages = {}
    for path in folder.iterdir():
        recording = read(path)
        stream = recording.stream("prefill.bootstrap")
        assert stream is not None
        stages[recording.identity.pp] = (stream.last, at(recording, "prefill.bootstrap", stream.last)[ROOM][0])
    # The first stage fails it in round 0; the second goes on polling what is Failed and told to nobody.
    assert stages[0] == (0, Action.FAILED)
    assert stages[1][0] > 1
    assert stages[1][1] == Action.KEPT
    assert invoke(folder, "diff-queues")[0] == 0


def test_a_clean_schedule_is_recorded_as_agreement(tmp_path: Path) -> None:
    cells = (Cell(0, 2), Cell(1, 1))
    write(POLICIES["gate-zero"], Schedule(3, (0, 1), (cells, cells[::-1])), tmp_path / "t")
    code, group, findings = judged(tmp_path / "t")
    assert (code, group["verdict"], findings) == (0, "AGREE", [])


def test_a_directory_that_exists_is_left_alone(tmp_path: Path) -> None:
    schedule = Schedule(1, (0,), ((Cell(0, 0),), (Cell(0, 0),)))
    with pytest.raises(PdctlError, match="exists"):
        write(POLICIES["no-gate"], schedule, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(PdctlError, match="can't be written"):
        write(POLICIES["no-gate"], schedule, tmp_path / "file" / "t")
