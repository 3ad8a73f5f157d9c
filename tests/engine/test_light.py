"""The adapter against each version's own queues, polls, gate and commits; transfers are scripted.

What ends is given minutes, since the machine may be busy; what hangs is known to hang by what its recording shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from pdctl.introspect.sglang import OutsideRank
from pdctl.introspect.target import OpenProcess
from pdctl.probes.leaks.collect import collect as collect_leaks
from pdctl.probes.leaks.judge import judge as judge_leaks
from pdctl.probes.metadata.collect import collect as collect_rows
from pdctl.probes.metadata.judge import judge as judge_rows
from pdctl.probes.queues.collect import collect
from pdctl.probes.queues.judge import judge
from pdctl.probes.view import View
from pdctl.protocol.metadata import Metadata
from pdctl.protocol.model import UNKNOWN, Action, EventKind, KVPoll, Phase, Snapshot, Status
from pdctl.protocol.requests import QUERY_FORCED
from pdctl.recording.reader import Recording, Stream
from pdctl.targets.find import discover
from pdctl.targets.places import parse_places
from tests.engine import recipe
from tests.engine.conftest import EVERY_VERSION
from tests.engine.harness import client_of_tests
from tests.engine.light.host import LightHost, LightRun
from tests.support.patience import until

T = TypeVar("T")

HAS_GATE = {version: version not in ("0.5.10.post1", "0.5.11", "0.5.12.post1") for version in recipe.VERSIONS}
WITHOUT_GATE = [version for version, has in HAS_GATE.items() if not has]
WITH_GATE = [version for version, has in HAS_GATE.items() if has]

WAITING, TRANSFERRING, SUCCESS = KVPoll.WAITING_FOR_INPUT, KVPoll.TRANSFERRING, KVPoll.SUCCESS
BOOTSTRAPPING, FAILED = KVPoll.BOOTSTRAPPING, KVPoll.FAILED

# Room 7001 is Success on both ranks in turn 3; its metadata lands on tp1 17 turns later.
LATE = {
    "turns": 60,
    "requests": [
        {"room": 7001, "polls": [[WAITING, WAITING, TRANSFERRING, SUCCESS]], "lands": [0, 20]},
        {"room": 7002, "polls": [[WAITING, WAITING, *[TRANSFERRING] * 4, SUCCESS]]},
        {"room": 7003, "polls": [[BOOTSTRAPPING] * 4 + [FAILED]], "queue": "prealloc"},
    ],
}


@pytest.fixture(scope="module", params=EVERY_VERSION)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stream(recording: Recording, queue: str) -> Stream:
    found = recording.stream(queue, "attn-tp")
    assert found is not None, f"{recording.identity.label} has no rounds of {queue}"
    return found


def rooms_at(recording: Recording, queue: str, ordinal: int) -> list[int]:
    rounds = stream(recording, queue)
    run = rounds.at(ordinal)
    assert run is not None
    return [item.room for item in rounds.items(run) or []]


def test_both_ranks_record_the_same_rounds(version: str, finish: Callable[..., LightRun]) -> None:
    script = {"turns": 30, "requests": [{**LATE["requests"][1]}, {**LATE["requests"][2]}]}  # type: ignore[index]
    run = finish(script, "decode")
    recordings = run.recordings()
    assert set(recordings) == {"tp0", "tp1"}
    for recording in recordings.values():
        assert recording.identity.engine_version == version
        assert (recording.identity.role, recording.identity.tp_size) == ("decode", 2)
        assert recording.ticks == 30
        transfer = stream(recording, "decode.transfer")
        assert transfer.last == 6
        items = transfer.items(transfer.runs[-1])
        assert items is not None
        assert [(item.room, item.reduced, item.action) for item in items] == [(7002, SUCCESS, Action.COMMITTED)]
        assert items[0].found == 7002
        handshake = stream(recording, "decode.prealloc")
        last = handshake.items(handshake.runs[-1])
        assert last is not None
        assert [(item.room, item.reduced, item.action) for item in last] == [(7003, FAILED, Action.FAILED)]
        assert not recording.problems
    assert recordings["tp0"].identity.groups[0].key == recordings["tp1"].identity.groups[0].key
    assert [r.hash for r in stream(recordings["tp0"], "decode.transfer").runs] == [
        r.hash for r in stream(recordings["tp1"], "decode.transfer").runs
    ]
    document = verdict(run)
    assert [finding.code for finding in document.findings] == []


def test_prefill_rounds(version: str, finish: Callable[..., LightRun]) -> None:
    del version
    slow = [*[BOOTSTRAPPING] * 2, *[WAITING] * 12, SUCCESS]
    fast = [*[BOOTSTRAPPING] * 2, *[WAITING] * 9, SUCCESS]
    requests = [
        {"room": 5001, "polls": [[*[BOOTSTRAPPING] * 3, *[WAITING] * 3, *[TRANSFERRING] * 2, SUCCESS]]},
        {"room": 5002, "polls": [fast, slow]},
        {"room": 5003, "polls": [[*[BOOTSTRAPPING] * 2, FAILED]]},
    ]
    run = finish({"turns": 40, "requests": requests}, "prefill")
    for name, recording in run.recordings().items():
        bootstrap, inflight = stream(recording, "prefill.bootstrap"), stream(recording, "prefill.inflight")
        left = {
            item.room: (rounds.queue, run.ordinal, item.action)
            for rounds in (bootstrap, inflight)
            for run in rounds.runs
            for item in rounds.items(run) or []
            if item.action != Action.KEPT
        }
        assert left[5003] == ("prefill.bootstrap", 2, Action.FAILED)
        assert left[5001][0] == left[5002][0] == "prefill.inflight"
        assert left[5001][2] == left[5002][2] == Action.COMMITTED
        # tp0 is done three turns before tp1, and the reduction keeps it.
        waits = [i for r in inflight.runs for i in inflight.items(r) or [] if i.room == 5002 and i.local == SUCCESS]
        kept = [item for item in waits if item.reduced == WAITING]
        assert bool(kept) == (name == "tp0")
        # The attention-CP group has one member here: its rounds would say nothing.
        assert [s.group.kind for s in recording.streams] == ["attn-tp", "attn-tp"]
    assert not verdict(run).findings


def polled(snapshots: list[Snapshot] | None) -> list[Snapshot] | None:
    """Return the snapshots where every rank has its request in the transfer queue, and it has been in a round."""
    queues = [one.queues["decode.transfer"] for one in snapshots or ()]
    there = bool(queues) and all(queues)
    return snapshots if there and all(entry.state != UNKNOWN for queue in queues for entry in queue) else None


def test_seams_and_snapshot_of_a_live_rank(version: str, host: LightHost, tmp_path: Path) -> None:
    script = {"turns": 100_000, "pause_s": 0.01, "requests": [{"room": 7001, "polls": [[TRANSFERRING]]}]}
    run = host.run(script, "decode", tmp_path)
    try:
        until("two ranks", lambda: len([r for r in run.ranks() if r.live]) == 2, 120)
        statuses = until("both answer", lambda: asked(run, "status", Status), 100)
        snapshots = until("both have polled", lambda: polled(asked(run, "queues", Snapshot)), 100)
        for status in statuses:
            seams = {seam.name: seam for seam in status.seams}
            absent = {name for name, seam in seams.items() if not seam.present}
            # the scripted KV manager sends none and starts none; the loop is a script
            expected = {"fault.silence-heartbeat", "events.ending", "threads"}
            expected |= set() if version in ("0.5.22", "0.5.23") else {"events.checksum"}
            expected |= set() if HAS_GATE[version] else {"gate", "slots.zeroed"}
            if version == "0.5.10.post1":
                expected |= {QUERY_FORCED}
            assert absent == expected, [seams[name] for name in absent ^ expected]
            assert not status.hook_errors
            assert not status.hooks_removed
        for snapshot in snapshots:
            [entry] = snapshot.queues["decode.transfer"]
            assert (entry.room, entry.rid, entry.slot, entry.state) == (7001, "r7001", 0, TRANSFERRING)
            assert entry.age > 0
            [slot] = snapshot.slots
            assert (slot.slot, slot.expected, slot.found) == (0, 7001, 7001)
            assert set(snapshot.queues) | set(snapshot.missing) == {
                "decode.pending",
                "decode.prealloc",
                "decode.transfer",
                "decode.retracted",
                "waiting",
                "running",
            }
    finally:
        run.kill()


def test_late_metadata(version: str, host: LightHost, tmp_path: Path) -> None:
    """Without the gate the ranks part in round 3 and hang in round 4; with it round 20 commits on both."""
    run = host.run(LATE, "decode", tmp_path)
    if HAS_GATE[version]:
        assert host.wait(run, 120), run.output()
        held_by_the_gate(run)
    else:
        until("both ranks are in round 4", lambda: in_round(run, 4), 120)
        assert not host.wait(run, 1.0), "a rank got out of the collective it can't get out of"
        diverged(run)


@pytest.mark.parametrize("idle", [False, True], ids=["loaded", "idle"])
def test_an_agent_goes_into_the_scheduler(version: str, host: LightHost, tmp_path: Path, *, idle: bool) -> None:
    """Wherever its main thread is, in what the engine sleeps in while it is idle, too."""
    requests = [] if idle else STEADY["decode"]
    script = {"turns": 10_000_000, "size": 1, "requests": requests, "sleeps": idle}
    run = host.prepare(script, tmp_path)
    host.add(run, "decode", 0, {"PDCTL_AGENT": "off"})
    try:
        until("it takes its turns", lambda: "turns" in run.output(), 120)
        [pid] = run.pids.values()
        seen = pdctl(run, "attach", str(pid), "--inject-agent", code=0)
        [put] = seen["processes"]
        assert (put["state"], put["rank"]) == ("running", "decode dp0 pp0 tp0"), run.output()
        [status] = until("its agent answers", lambda: asked(run, "status", Status), 100)
        assert {seam.name for seam in status.seams if seam.present} >= {"queue.decode.transfer", "poll", "tick"}
        [snapshot] = until("its queues are read", lambda: asked(run, "queues", Snapshot), 100)
        assert len(snapshot.queues["decode.transfer"]) == (0 if idle else 1)
        until("its turns are counted", lambda: [s for s in asked(run, "status", Status) or () if s.ticks > 1], 100)
    finally:
        run.kill()


def in_round(run: LightRun, ordinal: int) -> bool:
    recordings = run.recordings()
    rounds = [recording.stream("decode.transfer") for recording in recordings.values()]
    return len(rounds) == 2 and all(
        s is not None and s.last == ordinal and s.runs[-1].phase == Phase.ENTERED for s in rounds
    )


def held_by_the_gate(run: LightRun) -> None:
    recordings = run.recordings()
    for name, recording in recordings.items():
        rounds = stream(recording, "decode.transfer")
        assert rounds.last == 20
        held = [i for r in rounds.runs if 3 <= r.ordinal < 20 for i in rounds.items(r) or [] if i.room == 7001]
        assert {(i.local, i.gated, i.reduced) for i in held} == {
            (SUCCESS, TRANSFERRING if name == "tp1" else SUCCESS, TRANSFERRING)
        }
        assert rooms_at(recording, "decode.transfer", 20) == [7001]
    landed = [event for event in recordings["tp1"].events() if event.kind == EventKind.LANDED]
    assert [(event.room, event.slot, event.b) for event in landed] == [(7001, 0, 7001)]
    assert not [event for event in recordings["tp0"].events() if event.kind == EventKind.LANDED]
    document = verdict(run)
    assert {group.verdict for group in document.groups} == {"UNKNOWN"}, "its ranks have ended"
    assert {row.verdict for group in document.groups for row in group.queues} <= {"unknown", "not polled"}
    assert all("recorded rounds agree" in row.text for group in document.groups for row in group.queues if row.text)
    assert not [finding for finding in document.findings if finding.level != "info"]


def diverged(run: LightRun) -> None:
    recordings = run.recordings()
    assert rooms_at(recordings["tp0"], "decode.transfer", 4) == [7002]
    assert rooms_at(recordings["tp1"], "decode.transfer", 4) == [7001, 7002]
    for name, action, found in (("tp0", Action.COMMITTED, 7001), ("tp1", Action.KEPT, 0)):
        rounds = stream(recordings[name], "decode.transfer")
        at = rounds.at(3)
        assert at is not None
        item = (rounds.items(at) or [])[0]
        assert (item.room, item.local, item.reduced, item.action, item.found) == (7001, SUCCESS, SUCCESS, action, found)
    document = verdict(run)
    assert "PD101" in [finding.code for finding in document.findings]
    [group] = document.groups
    assert (group.verdict, group.queue, group.round) == ("DIVERGED", "decode.transfer", 3)
    assert [split.room for split in group.splits] == [7001]


@pytest.mark.parametrize("others", [0, 2], ids=["empty against one", "n against m"])
def test_an_entry_missing_on_one_rank(version: str, host: LightHost, tmp_path: Path, others: int) -> None:
    """tp1 loses room 7001 in turn 10: it skips the collective, or enters it with a shorter list."""
    del version
    requests = [{"room": 7001 + i, "polls": [[TRANSFERRING]]} for i in range(1 + others)]
    script = {"turns": 100_000, "requests": requests, "drop": {"rank": 1, "turn": 10, "room": 7001}}
    run = host.run(script, "decode", tmp_path)
    until("tp0 is in round 10", lambda: entered(run, "tp0", 10), 120)
    if others:
        # Gloo may let the shorter list out of the collective, so tp1 can be a round further.
        until("tp1 is in round 10 or past it", lambda: last_round(run, "tp1") >= 10, 120)
        assert rooms_at(run.recordings()["tp0"], "decode.transfer", 10) == [7001, 7002, 7003]
        assert rooms_at(run.recordings()["tp1"], "decode.transfer", 10) == [7002, 7003]
    else:
        until("tp1 goes on without polling", lambda: ticks(run, "tp1") > 11, 120)
        assert stream(run.recordings()["tp1"], "decode.transfer").last == 9
    document = until("a finding about room 7001", lambda: found_something(run, 7001), 100)
    [group] = document.groups
    assert group.verdict in ("DIVERGED", "WAITING")


# Room 7002 gets the only slot after 7001; its metadata comes late on tp1.
USED_SLOT = {
    "turns": 80,
    "slots": 1,
    "requests": [
        {"room": 7001, "polls": [[WAITING, TRANSFERRING, SUCCESS]]},
        {"room": 7002, "arrives": 10, "polls": [[WAITING, TRANSFERRING, SUCCESS]], "lands": [10, 50]},
    ],
}


def test_a_slot_that_still_holds_its_previous_owners_room(version: str, finish: Callable[..., LightRun]) -> None:
    """C8: stale, not corrupt, where freed slots keep their room; where they are zeroed the gate waits for the row."""
    run = finish(USED_SLOT, "decode")
    with client_of_tests() as client:
        document = judge_rows(collect_rows(View(discover(parse_places(run.environ)), client)), now_s=time.time())
    found = [finding for finding in document.findings if finding.level != "info"]
    if HAS_GATE[version]:
        assert not found
        return
    assert [(f.code, f.ranks, f.rooms) for f in found] == [("PD131", ("decode dp0 pp0 tp1",), (7002, 7001))], (
        run.output()
    )
    assert "slot 0 on decode dp0 pp0 tp1 held room 7001" in found[0].summary
    assert "room 7001 owned this slot before" in found[0].summary


def test_slots_of_live_ranks(version: str, host: LightHost, tmp_path: Path) -> None:
    """The engine's own buffers, read while it works: not written on tp1, then landed; and nothing leaks."""
    requests = [{"room": 7001, "polls": [[TRANSFERRING]], "lands": [0, 300]}]
    run = host.run({"turns": 100_000, "pause_s": 0.01, "requests": requests}, "decode", tmp_path)
    try:

        def missing() -> Any:
            slots = rows(run, "landed", "not written")
            polled = slots and all(slot.state == "Transferring" for slot in slots)  # "-" before its first poll
            return slots if polled else None

        slots = until("the row is missing on tp1", missing, 120)
        assert {(slot.slot, slot.expected) for slot in slots} == {(0, 7001)}
        tensors = {len(slot.sums) for slot in slots}
        assert tensors == {10}
        # The rows differ in nothing but the room: nobody wrote a token.
        differ = [name for name in slots[0].sums if slots[0].sums[name] != slots[1].sums[name]]
        assert differ == ["bootstrap_room"]
        slots = until("it has landed", lambda: rows(run, "landed", "landed"), 120)
        assert slots[0].sums == slots[1].sums
        with client_of_tests() as client:
            found = discover(parse_places(run.environ))
            metadata = client.ask(run.ranks(), "metadata", Metadata)
            leaks = judge_leaks(collect_leaks(View(found, client), watch_s=1.0), watch_s=1.0)
        assert [(a.body.gate, a.body.zeroed) for a in metadata if a.body] == [(HAS_GATE[version],) * 2] * 2
        assert not leaks.findings
        assert all(row.judged for row in leaks.ranks), leaks.problems
    finally:
        run.kill()


STEADY = {
    "decode": [
        {"room": 7001, "polls": [[TRANSFERRING]], "lands": [0, 10_000_000]},
        {"room": 7003, "polls": [[BOOTSTRAPPING]], "queue": "prealloc"},
    ],
    "prefill": [{"room": room, "polls": [[BOOTSTRAPPING]]} for room in (7001, 7003)],
}


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_read_from_outside_it_is_what_the_agent_says(version: str, host: LightHost, tmp_path: Path, role: str) -> None:
    run = host.run({"turns": 10_000_000, "requests": STEADY[role]}, role, tmp_path)
    try:
        until("both ranks hold their requests", lambda: holding(run), 120)
        for rank in run.ranks():
            opened = OutsideRank(OpenProcess(rank.identity.pid, 60))
            own = {"pdctl_version": "", "started_wall_ns": 0, "started_mono_ns": 0, "armed": False, "loaded_by": ""}
            assert msgspec.structs.replace(opened.identity, **own) == msgspec.structs.replace(rank.identity, **own)
            assert opened.identity.engine_version == version
            until("both have polled, and are seen alike", lambda opened=opened: alike(run, opened), 60)
    finally:
        run.kill()


def test_a_rank_whose_agent_is_silent_is_read_from_outside_in_its_group(
    version: str, host: LightHost, tmp_path: Path
) -> None:
    run = host.run({"turns": 10_000_000, "requests": STEADY["decode"]}, "decode", tmp_path)
    try:
        inside = until("both ranks hold their requests", lambda: holding(run), 120)
        [silent] = [rank for rank in run.ranks() if rank.identity.tp == 1]
        Path(silent.endpoint.removeprefix("ipc://")).unlink()
        Path(silent.endpoint.removeprefix("ipc://")).mkdir()  # else it would listen there again
        seen = pdctl(run, "ranks")
        rows = {row["tp"]: (row["state"], row["source"]) for row in seen["ranks"]}
        assert rows == {0: ("live", "agent"), 1: ("silent", "outside")}
        [row] = [row for row in seen["ranks"] if row["tp"] == 1]
        assert "; read from outside" in row["reason"]
        assert row["engine_version"] == version
        assert row["rounds"], "its recording goes on, and is still read"
        held = sorted((name, e.room) for name, entries in inside[1].queues.items() for e in entries)

        def read_outside() -> bool:
            requests = pdctl(run, "dump", "queues")["requests"]
            return sorted((r["queue"], r["room"]) for r in requests if r["rank"] == silent.identity.label) == held

        # A rank that works is not stopped at a good moment: a queue may be just in the engine's hands.
        until("its queues are read from outside", read_outside)
        seen = pdctl(run, "diff-queues")
        assert [group["ranks"] for group in seen["groups"]] == [["tp0", "tp1"]]
        assert {now["rank"]: now["state"] for now in seen["groups"][0]["now"]} == {"tp0": "live", "tp1": "outside"}
        assert sum(seen["groups"][0]["compared"].values()) > 0, "rounds are compared as before"
        assert not seen["findings"]
        seen = pdctl(run, "stuck", "--pause", "100ms")
        assert [problem for problem in seen["problems"] if "read from outside, its agent is silent" in problem]
    finally:
        run.kill()


def pdctl(run: LightRun, *command: str, code: int | None = None) -> Any:
    """Return the document of a command on these ranks. code: its exit code, None for any."""
    words = [sys.executable, "-m", "pdctl.cli", *command, "-o", "json", "--timeout", "100"]
    words += [] if command[0] == "attach" else ["--rank-timeout", "30"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PDCTL_")}
    done = subprocess.run(words, env={**kept, **run.environ}, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout, done.stderr
    assert code in (None, done.returncode), done.stdout + done.stderr
    return json.loads(done.stdout)


def holding(run: LightRun) -> list[Snapshot] | None:
    found = asked(run, "queues", Snapshot)
    ready = found is not None and len(found) == 2 and all(sum(map(len, s.queues.values())) == 2 for s in found)
    return found if ready else None


def alike(run: LightRun, opened: OutsideRank) -> bool:
    """Whether a rank's agent, asked before and after, says of its queues what is read from outside in between."""
    before, read, after = holding(run), plain(opened.queues()), holding(run)
    tp = opened.identity.tp
    return before is not None and after is not None and plain(before[tp]) == read == plain(after[tp])


def plain(snapshot: Snapshot) -> dict[str, list[tuple[int, str, int, int]]]:
    """Queues without ages, which go on between two looks."""
    return {name: [(e.room, e.rid, e.slot, e.state) for e in entries] for name, entries in snapshot.queues.items()}


def rows(run: LightRun, *wanted: str):  # type: ignore[no-untyped-def]
    """The slots that have an owner, tp0's first, if their verdicts are these."""
    with client_of_tests() as client:
        document = judge_rows(collect_rows(View(discover(parse_places(run.environ)), client)), now_s=time.time())
    assert not document.findings
    slots = [slot for slot in document.slots if slot.expected]
    return slots if tuple(slot.verdict for slot in slots) == wanted else None


def ticks(run: LightRun, name: str) -> int:
    recording = run.recordings().get(name)
    return recording.ticks if recording else 0


def last_round(run: LightRun, name: str) -> int:
    recording = run.recordings().get(name)
    rounds = recording.stream("decode.transfer") if recording else None
    return rounds.last if rounds else -1


def entered(run: LightRun, name: str, ordinal: int) -> bool:
    recording = run.recordings().get(name)
    rounds = recording.stream("decode.transfer") if recording else None
    return rounds is not None and rounds.last == ordinal and rounds.runs[-1].phase == Phase.ENTERED


def asked(run: LightRun, op: str, kind: type[T]) -> list[T] | None:
    with client_of_tests() as client:
        bodies = [answer.body for answer in client.ask(run.ranks(), op, kind)]
    found = [body for body in bodies if body is not None]
    return found if len(found) == len(bodies) else None


def verdict(run: LightRun, *, sockets: bool = False):  # type: ignore[no-untyped-def]
    """What diff-queues makes of it, from recordings alone."""
    with client_of_tests() as client:
        return judge(collect(View(discover(parse_places(run.environ)), client), sockets=sockets), stalled_s=2.0)


def found_something(run: LightRun, room: int):  # type: ignore[no-untyped-def]
    document = verdict(run, sockets=True)
    return document if any(room in finding.rooms for finding in document.findings) else None
