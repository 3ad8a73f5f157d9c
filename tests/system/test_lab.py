"""The embedded cluster itself: it serves, it keeps to itself, and nothing of it survives ``down``."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from pdctl.lab.client import Outcome
from pdctl.protocol.model import Action, EventKind, KVPoll
from tests.support.labs import Lab, Labs, end_process
from tests.support.patience import patience, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]  # the machine may be busy

TP0, TP1, PREFILL = "decode dp0 pp0 tp0", "decode dp0 pp0 tp1", "prefill dp0 pp0 tp0"


def gone(labs: Labs, *ended: Lab) -> None:
    for lab in ended:
        assert lab.left() == []
    assert labs.files() == []


def test_up_load_status_down(labs: Labs) -> None:
    lab = labs.up()
    report = json.loads(labs.cli("lab", "load", "-n", 12, "-o", "json").stdout)
    assert (report["sent"], report["completed"], report["failed"], report["wrong"]) == (12, 12, 0, 0)
    status = json.loads(labs.cli("lab", "status", "-o", "json").stdout)
    ranks = [p for p in status["processes"] if p["process"] not in ("supervisor", "bootstrap")]
    assert [p["process"] for p in ranks] == [PREFILL, TP0, TP1]
    assert len({p["transport"] for p in ranks}) == 1
    assert ranks[0]["transport"]
    os.kill(lab.process(TP1).pid, signal.SIGSTOP)
    until("one stopped process", lambda: labs.cli("lab", "status").stdout.count("stopped") == 1)
    os.kill(lab.process(TP1).pid, signal.SIGCONT)
    until("no stopped process", lambda: "stopped" not in labs.cli("lab", "status").stdout)
    # Rounds of every polled queue are in the recordings, and each room was committed once on each decode rank.
    assert {s.queue for s in lab.recording(PREFILL).streams} == {"prefill.bootstrap", "prefill.inflight"}
    for label in (TP0, TP1):
        assert {s.queue for s in lab.recording(label).streams} == {"decode.prealloc", "decode.transfer"}
        committed = [i.room for i in lab.items(label, "decode.transfer") if i.action == Action.COMMITTED]
        assert len(committed) == len(set(committed)) == 12
        assert {i.found for i in lab.items(label, "decode.transfer") if i.action == Action.COMMITTED} == set(committed)
    labs.cli("lab", "down")
    gone(labs, lab)
    labs.cli("lab", "status", code=4)


@pytest.mark.parametrize(
    "options",
    [
        ("--prefill", "dp=2", "--decode", "tp=2,dp=2", "--load-balance", "total_requests"),
        ("--prefill", "dp=2", "--decode", "tp=2,dp=2", "--load-balance", "total_requests", "--dp-attention"),
        ("--prefill", "pp=2", "--decode", "tp=2"),
        ("--prefill", "tp=2,pp=2", "--decode", "pp=2"),
        ("--prefill", "tp=4", "--decode", "tp=2", "--transport", "socket", "--no-netns"),
    ],
    ids=["dp2", "dp-attention", "prefill-pp2", "both-pp2", "sockets"],
)
def test_shapes(labs: Labs, options: tuple[str, ...]) -> None:
    lab = labs.up(*options)
    outcome = lab.load(requests=16, concurrency=6)
    assert outcome.good, outcome
    until("empty queues", lambda: not any(rooms for queues in lab.queues().values() for rooms in queues.values()))
    labs.cli("lab", "down")
    gone(labs, lab)


def test_clients_that_come_and_go_leave_nothing_open(labs: Labs) -> None:
    lab = labs.up()
    folder = Path(f"/proc/{lab.process(TP0).pid}/fd")
    opened = []
    for _ in range(2):
        for _ in range(40):
            assert lab.load(requests=1).good
        opened.append(len(list(folder.iterdir())))
    assert opened[1] < opened[0] + 20, opened


def test_a_full_pool_and_few_slots_delay_requests_and_lose_none(labs: Labs) -> None:
    lab = labs.up("--slots", 3, "--kv-tokens", 96)
    outcome = lab.load(requests=24, concurrency=12, new_tokens=16)
    assert outcome.good, outcome


def test_without_the_gate_late_metadata_hangs_the_ranks_and_recordings_tell(labs: Labs) -> None:
    lab = labs.up("--without", "gate")
    lab.inject_late_metadata()
    outcome = lab.load(requests=1, seconds=2)
    assert outcome.unfinished == 1
    [room] = outcome.unfinished_rooms
    until("a landing on decode tp1", lambda: lab.events(TP1, EventKind.LANDED))
    assert {p.label for p in lab.left()} == {p.label for p in lab.processes}, "a hang, not a crash"
    healed = labs.cli("heal", "--all", "--prove", "--timeout", f"{patience(2):.0f}s", code=1)
    assert "was not answered: no answer within" in healed.stderr, "no fault is left, and what it did is"
    for label in (TP0, TP1):
        end_process(lab.process(label))
    first, second = lab.items(TP0, "decode.transfer")[-1], lab.items(TP1, "decode.transfer")[-1]
    assert (first.room, first.action, first.found, first.reduced) == (room, Action.COMMITTED, room, KVPoll.SUCCESS)
    assert (second.room, second.action, second.found, second.reduced) == (room, Action.KEPT, 0, KVPoll.SUCCESS)
    assert lab.recording(TP0).stream("decode.transfer").last == lab.recording(TP1).stream("decode.transfer").last
    labs.cli("lab", "down")
    gone(labs, lab)


def test_with_the_gate_late_metadata_is_held_and_requests_complete(labs: Labs) -> None:
    lab = labs.up()
    lab.inject_late_metadata()
    outcome = lab.load(requests=8)
    assert outcome.good, outcome
    [landed] = lab.events(TP1, EventKind.LANDED)
    assert landed.b == landed.room
    held = [i for i in lab.items(TP1, "decode.transfer") if i.room == landed.room and i.local != i.gated]
    assert {(i.local, i.gated, i.action) for i in held} == {(KVPoll.SUCCESS, KVPoll.TRANSFERRING, Action.KEPT)}
    assert not lab.events(TP0, EventKind.LANDED)
    assert labs.cli("diff-queues").returncode == 0
    [fault] = {row["fault"] for row in json.loads(labs.cli("faults", "--past", "-o", "json").stdout)["faults"]}
    assert f"pdctl heal {fault} --prove sends one" in labs.cli("heal", fault).stderr
    healed = json.loads(labs.cli("heal", "--all", "--prove", "--timeout", f"{patience(30):.0f}s", "-o", "json").stdout)
    assert (healed["clean"], healed["answered"]) == (True, True)


def test_nothing_survives_down_with_a_stopped_rank_and_a_killed_supervisor(labs: Labs) -> None:
    lab = labs.up()
    os.kill(lab.process(TP1).pid, signal.SIGSTOP)
    os.kill(lab.process("supervisor").pid, signal.SIGKILL)
    labs.cli("lab", "down")
    gone(labs, lab)


def test_nothing_survives_down_when_ranks_hang_and_one_has_died(labs: Labs) -> None:
    lab = labs.up("--without", "gate")
    lab.inject_late_metadata()
    lab.load(requests=1, seconds=1)
    os.kill(lab.process(PREFILL).pid, signal.SIGKILL)
    until("a status that says one is lost", lambda: labs.cli("lab", "status", code=None).returncode == 3)
    assert "SIGKILL" in labs.cli("lab", "status", code=3).stdout
    labs.cli("lab", "down")
    gone(labs, lab)


def test_two_labs_side_by_side_do_not_mix(labs: Labs) -> None:
    one, other = labs.up(name="one"), labs.up("--without", "gate", name="other")
    outcomes: dict[str, Outcome] = {}
    threads = [
        threading.Thread(target=lambda lab=lab: outcomes.update({lab.name: lab.load(requests=12)}))
        for lab in (one, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes["one"].good, outcomes
    assert outcomes["other"].good, outcomes
    identities = {lab.name: lab.recording(TP0).identity for lab in (one, other)}
    assert [identities[name].cluster for name in ("one", "other")] == ["one", "other"]
    assert not {g.key for g in identities["one"].groups} & {g.key for g in identities["other"].groups}
    labs.cli("lab", "down", "--name", "one")
    assert one.left() == []
    assert len(other.left()) == len(other.processes)
    assert other.load(requests=4).good
    labs.cli("lab", "down", "--name", "other")
    gone(labs, one, other)


def test_where_mooncake_can_not_load_sockets_take_over_and_it_is_said(labs: Labs) -> None:
    broken = labs.folder / "broken" / "mooncake"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libibverbs.so.1: cannot open shared object file')\n")
    labs.env["PYTHONPATH"] = str(broken.parent)
    lab = labs.up()
    assert lab.load(requests=8).good
    assert "plain sockets" in labs.cli("lab", "status").stdout
    assert "libibverbs" in lab.recording(TP0).identity.backend
    assert "libibverbs" in labs.cli("lab", "up", "--name", "strict", "--transport", "mooncake", code=4).stderr


def test_errors_say_what_to_do(labs: Labs) -> None:
    unknown = labs.cli("lab", "up", "--without", "gate,brakes", code=2).stderr
    assert "brakes" in unknown
    assert "zero-on-free" in unknown
    assert "tp=2" in labs.cli("lab", "up", "--decode", "two", code=2).stderr
    assert "letters" in labs.cli("lab", "up", "--name", "../x", code=2).stderr
    assert "multiple" in labs.cli("lab", "up", "--prefill", "tp=3", code=2).stderr
    assert "shorter" in labs.cli("lab", "up", "--run-dir", labs.folder / ("x" * 90), code=2).stderr
    (labs.folder / ("x" * 90)).rmdir()
    for command in ("load", "down", "status"):
        assert "pdctl lab up" in labs.cli("lab", command, code=4).stderr
    assert labs.files() == []
    labs.up(name="taken")
    assert "--name" in labs.cli("lab", "up", "--name", "taken", code=5).stderr
    assert "taken" in labs.cli("lab", "load", code=4).stderr


def test_a_rank_that_can_not_start_is_named_and_nothing_is_left(labs: Labs) -> None:
    failed = labs.cli("lab", "up", "--metadata-device", "cuda", code=4).stderr if not _cuda() else ""
    if not failed:
        pytest.skip("this machine has a CUDA device")
    assert "did not start" in failed
    assert labs.files() == []


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()
