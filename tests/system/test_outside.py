"""Ranks without an agent: processes of SGLang's shape, under every Python that this machine has, read from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.introspect import snapshot
from pdctl.introspect.memory import Bulk, GoneError, NotPermittedError
from pdctl.introspect.sglang import OutsideRank, is_scheduler
from pdctl.introspect.snapshot import NotStoppedError
from pdctl.introspect.target import OpenProcess, UnreadableError
from pdctl.protocol.processes import look
from pdctl.protocol.rank import Silence
from tests.support.outside_targets import READABLE, Ranks, pythons, ranks
from tests.support.patience import until

ROOT = Path(__file__).parents[2]
PATIENT = ("--timeout", "120", "--rank-timeout", "60")
"""For ranks that can be read, however busy the machine is."""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Ranks]:
    with ranks(tmp_path) as here:
        yield here


def document(here: Ranks, *args: str) -> tuple[int, dict[str, Any]]:
    done = here.pdctl(*args, "-o", "json", *PATIENT)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


# ---- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", READABLE)
@pytest.mark.parametrize("then", ["wait", "gil", "move"])
def test_every_python_is_read_whatever_its_main_thread_does(
    started: Ranks, version: tuple[int, int], then: str
) -> None:
    name = ".".join(map(str, version))
    python = pythons().get(name)
    if python is None:
        pytest.skip(f"no Python {name} here")
    child = started.start("--rooms", "11,12", "--landed", "11", "--size", 2, "--then", then, python=python)
    status, seen = document(started, "attach", str(child.pid))
    [row] = seen["processes"]
    assert (status, row["reason"], row["lacks"]) == (0, "", ["rounds: no agent counts them"])
    assert (row["rank"], row["python"]) == ("decode dp0 pp0 tp0", name)
    assert (row["requests"], row["slots"]) == (2, 8)
    opened = OutsideRank(OpenProcess(child.pid, 60))
    snapshot = opened.queues()
    assert [(e.room, e.rid, e.slot, e.state) for e in snapshot.queues["decode.transfer"]] == [
        (11, "rid-11", 0, 4),
        (12, "rid-12", 1, 3),
    ]
    assert [(s.slot, s.expected, s.found) for s in snapshot.slots] == [(0, 11, 11), (1, 12, 0)]
    assert opened.identity.service.startswith("decode@")
    assert opened.identity.groups[0].ranks == (0, 1)
    assert opened.settings().env == {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "77"}
    rooms = {room.room: room for room in opened.rooms().rooms}
    assert (rooms[12].tokens, opened.rooms().space.slots_free) == (10, 6)


def test_what_moves_is_read_of_one_moment(started: Ranks) -> None:
    child = started.start("--then", "move")
    target = OpenProcess(child.pid, 60)
    root = target.root(is_scheduler)
    stops, values = [], []
    for _ in range(40):
        (first, second), how = target.look(root, lambda s, _: (s.first, s.second))
        if not how.torn:
            values.append((first, second))
            stops.append(how.stopped_ms)
    assert values, "not one look was of one moment"
    assert all(first - second in (0, 1) for first, second in values)
    assert len({first for first, _ in values}) > 1
    assert max(stops) > 0


def test_what_stands_is_not_stopped(started: Ranks) -> None:
    child = started.start("--rooms", "11", "--then", "wait")
    opened = OutsideRank(OpenProcess(child.pid, 60))
    for _ in range(10):
        opened.queues()
    assert opened.target.longest_stop_ms == 0.0


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.fixture
def parted(started: Ranks) -> Ranks:
    """Two ranks of a decode server of which tp1 still has a room that tp0 has not, its GIL held for ever."""
    started.start("--size", 2, "--rooms", "12", "--landed", "12")
    started.start("--size", 2, "--tp", 1, "--rooms", "12,77", "--then", "gil", title="sglang::scheduler_TP1")
    return started


def test_diff_queues_names_room_and_ranks(parted: Ranks) -> None:
    status, seen = document(parted, "diff-queues")
    [group] = seen["groups"]
    assert (status, group["verdict"]) == (1, "SKEWED")
    [finding] = seen["findings"]
    assert finding["code"] == "PD111"
    assert "tp1 has rooms 12, 77" in finding["summary"]
    assert {now["state"] for now in group["now"]} == {"outside"}
    assert [problem for problem in seen["problems"] if "no rounds" in problem]


def test_a_difference_that_does_not_last_is_no_finding(started: Ranks) -> None:
    started.start("--size", 2, "--rooms", "12", "--landed", "12")
    started.start("--size", 2, "--tp", 1, "--rooms", "12", "--landed", "12", title="sglang::scheduler_TP1")
    status, seen = document(started, "diff-queues")
    assert seen["findings"] == []
    assert status == 3  # in step as far as it goes, without rounds


@pytest.mark.parametrize(
    "command",
    [["ranks"], ["stacks"], ["stuck"], ["dump", "queues"], ["dump", "metadata"], ["verify-routing"], ["diff-queues"]],
    ids=" ".join,
)
def test_every_reading_command_has_a_row_for_each(parted: Ranks, command: list[str]) -> None:
    done = parted.pdctl(*command, "-o", "json", *PATIENT)
    assert done.returncode == (1 if command == ["diff-queues"] else 0), done.stderr  # they have parted
    text = json.dumps(json.loads(done.stdout))
    assert "Traceback" not in done.stderr
    assert "decode" in text
    if command != ["verify-routing"]:  # no room waits to be routed
        assert "tp0" in text
        assert "tp1" in text
        drawn = parted.pdctl(*command, *PATIENT)
        assert re.search(r"\btp(0,)?1\b", drawn.stdout), "by itself, or with its peer where both are at one place"


def test_ranks_says_what_is_not_known(parted: Ranks) -> None:
    status, seen = document(parted, "ranks")
    assert status == 0
    for row in seen["ranks"]:
        assert (row["state"], row["source"], row["ticks"]) == ("outside", "outside", None)
        assert "no agent" in row["reason"]
        assert row["where"] == "scheduler loop"


def test_metadata_rows_are_read(parted: Ranks) -> None:
    _, seen = document(parted, "dump", "metadata")
    rows = {(slot["rank"], slot["slot"]): (slot["expected"], slot["found"]) for slot in seen["slots"]}
    assert rows == {
        ("decode dp0 pp0 tp0", 0): (12, 12),
        ("decode dp0 pp0 tp1", 0): (12, 0),
        ("decode dp0 pp0 tp1", 1): (77, 0),
    }


def test_a_missing_rank_of_a_server_read_from_outside_has_a_row(started: Ranks) -> None:
    started.start("--size", 2)
    status, seen = document(started, "ranks")
    states = {row["rank"]: row["state"] for row in seen["ranks"]}
    assert states == {"decode dp0 pp0 tp0": "outside", "decode dp0 pp0 tp1": "no agent"}
    assert status == 3


@pytest.mark.parametrize(
    "command",
    [
        ["inject", "--delay-metadata", "1s", "--rank", "decode:tp1", "--detach"],
        ["heal", "--all"],
        ["faults"],
        ["drill", "run", "metadata-gate"],
    ],
    ids=" ".join,
)
def test_commands_that_need_an_agent_say_how_many_have_none_and_how_they_get_one(
    parted: Ranks, command: list[str]
) -> None:
    done = parted.pdctl(*command)
    pids = " ".join(str(child.pid) for child in parted.children)
    assert (done.returncode, done.stdout) == (4, "")
    assert "2 ranks found on this host, none with pdctl's agent" in done.stderr
    assert f"pdctl attach {pids} --inject-agent --arm" in done.stderr
    parted.env["PDCTL_OUTSIDE"] = "all"
    done = parted.pdctl(*command)
    assert "ranks found on this host, none with pdctl's agent" in done.stderr
    assert "pdctl attach --all --inject-agent --arm" in done.stderr


@pytest.mark.parametrize("command", ["record", "story"])
def test_commands_that_need_recordings_say_that_only_agents_record(parted: Ranks, tmp_path: Path, command: str) -> None:
    asked = str(tmp_path / "x.pdtrace") if command == "record" else "12"
    done = parted.pdctl(command, asked, *PATIENT[: 4 if command == "story" else 0])
    assert (done.returncode, done.stdout) == (4, "")
    assert "2 ranks found, none with pdctl's agent, and only an agent records" in done.stderr
    assert not (tmp_path / "x.pdtrace").exists()


@pytest.mark.parametrize(
    "command", [["ranks"], ["dump", "queues"], ["diff-queues"], ["stuck"], ["stacks"]], ids=" ".join
)
def test_pids_that_cant_be_read_have_rows_that_say_why(parted: Ranks, command: list[str]) -> None:
    parted.env["PDCTL_OUTSIDE"] += ",4000000"
    done = parted.pdctl(*command, "-o", "json", *PATIENT)
    assert done.returncode == (1 if command == ["diff-queues"] else 3), done.stderr  # a finding comes first
    assert "no such process" in done.stdout
    parted.env["PDCTL_OUTSIDE"] = "bogus"
    done = parted.pdctl(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert "PDCTL_OUTSIDE='bogus' is none of: all, off, pids" in done.stderr


@pytest.mark.parametrize("time", ["1ms", "20ms", "300ms"])
def test_no_time_is_said_in_words_that_make_sense(parted: Ranks, time: str) -> None:
    pids = [str(child.pid) for child in parted.children]
    done = parted.pdctl("attach", *pids, "--timeout", time, "-o", "json")
    for row in json.loads(done.stdout)["processes"]:
        assert not re.search(r"-\d|\b0(\.0+)? ?m?s\b", row["reason"] + " ".join(row["lacks"])), row
        # At which step the time is over depends on the machine: reading its memory, or py-spy.
        assert time != "1ms" or "no time was left for" in row["reason"]


def test_strangers_are_left_alone_where_a_run_directory_is_named(started: Ranks) -> None:
    started.start("--size", 1)
    del started.env["PDCTL_OUTSIDE"]
    done = started.pdctl("ranks")
    assert (done.returncode, done.stdout) == (4, "")
    assert "no ranks found" in done.stderr
    assert "pdctl attach --all" in done.stderr


# ---- what can't be read ----------------------------------------------------------------------------------------------


def refused(pid: int) -> UnreadableError:
    with pytest.raises(UnreadableError) as caught:
        OutsideRank(OpenProcess(pid, 60))
    return caught.value


def test_a_stopped_process_is_read(started: Ranks) -> None:
    child = started.start("--rooms", "11")
    os.kill(child.pid, signal.SIGSTOP)
    try:
        opened = OutsideRank(OpenProcess(child.pid, 60))
        assert [e.room for e in opened.queues().queues["decode.transfer"]] == [11]
        assert look(child.pid).state == "T"
    finally:
        os.kill(child.pid, signal.SIGCONT)


def test_a_zombie_and_one_that_is_gone(started: Ranks) -> None:
    child = started.start()
    child.kill()
    while look(child.pid).state != "Z":
        time.sleep(0.01)
    why = refused(child.pid)
    assert (why.silence, "zombie" in why.reason) == (Silence.DEAD, True)
    child.wait()
    assert "no such process" in refused(child.pid).reason


def test_one_that_ends_between_two_looks(started: Ranks) -> None:
    child = started.start("--rooms", "11")
    opened = OutsideRank(OpenProcess(child.pid, 60))
    assert opened.queues().queues["decode.transfer"]
    child.kill()
    child.wait()
    for ask in (opened.queues, opened.rooms, lambda: opened.status(60)):
        with pytest.raises(UnreadableError) as caught:
            ask()
        assert (caught.value.silence, caught.value.reason) == (Silence.DEAD, "process has ended")


def test_a_foreign_program_that_calls_itself_a_scheduler(started: Ranks) -> None:
    sleeper = subprocess.Popen(["sglang::scheduler_TP3", "600"], executable="/bin/sleep")
    started.children.append(sleeper)  # type: ignore[arg-type]
    status, seen = document(started, "attach", str(sleeper.pid))
    [row] = seen["processes"]
    assert status == 4
    assert "no Python process" in row["reason"]
    assert "pdctl run" in row["next_step"]


@pytest.mark.parametrize("version", ["3.8", "3.9"])
def test_a_python_without_a_layout(started: Ranks, version: str) -> None:
    python = pythons().get(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    child = started.start(python=python)
    assert f"Python {version}: objects of CPython 3.10 to 3.13" in refused(child.pid).reason


def test_a_python_that_is_no_scheduler(started: Ranks) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.PIPE, text=True)
    started.children.append(child)
    until("a Python that is more than starting", lambda: "no SGLang scheduler" in refused(child.pid).reason)


AS_ANOTHER = """
import ctypes, os, sys
from pdctl.introspect.target import OpenProcess, UnreadableError
import pdctl.introspect.sglang
how, pid = sys.argv[1], int(sys.argv[2])
if how == "user":
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
else:
    class Header(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
    class Data(ctypes.Structure):
        _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]
    header, data = Header(0x20080522, 0), (Data * 2)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(ctypes.byref(header), data) == 0
    for half in data:
        half.effective = half.permitted = half.permitted & (0 if how == "none" else ~(1 << 19))
    assert libc.capset(ctypes.byref(header), data) == 0
try:
    OpenProcess(pid, 60)
    print("read")
except UnreadableError as error:
    print(error.silence.value, "|", error.reason, "|", error.next_step)
"""


def asked_as(how: str, pid: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER, how, str(pid)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user(started: Ranks) -> None:
    child = started.start()
    said = asked_as("user", child.pid)
    assert said.startswith("not authorised | not permitted (uid): it runs as uid 0")
    assert "sudo -u '#0'" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")
def test_fewer_capabilities_than_the_target_has(started: Ranks) -> None:
    child = started.start()
    said = asked_as("none", child.pid)
    assert "not permitted (capabilities)" in said
    assert "--cap-add SYS_PTRACE" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")
def test_one_that_made_itself_unreadable(started: Ranks) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", AS_UNDUMPABLE], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, cwd=ROOT
    )
    started.children.append(child)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    said = asked_as("none", child.pid)
    assert "not permitted (dumpable)" in said


AS_UNDUMPABLE = (
    AS_ANOTHER[: AS_ANOTHER.index("how, pid")]
    + """
class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
header, data = Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.capset(ctypes.byref(header), data) == 0
assert libc.prctl(4, 0, 0, 0, 0) == 0
print("ready", flush=True)
sys.stdin.read()
"""
)


def test_without_py_spy_it_is_said_what_to_install(started: Ranks, tmp_path: Path) -> None:
    child = started.start()
    program = "import sys, pdctl.introspect.pyspy as p; sys.executable = '/nowhere/python'\n"
    program += "try:\n    p.find(1, ())\nexcept p.PySpyError as e:\n    print(e, '|', e.next_step)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "py-spy is not installed" in done.stdout
    assert "pip install 'pdctl[attach]'" in done.stdout
    del child


# ---- many, and the worst moment --------------------------------------------------------------------------------------


def test_thirty_two_at_once(started: Ranks) -> None:
    for tp in range(32):
        started.begin("--size", 32, "--tp", tp, "--rooms", "11", title=f"sglang::scheduler_TP{tp}")
    for child in started.children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    status, seen = document(started, "ranks")
    assert len(seen["ranks"]) == 32
    assert {row["rank"] for row in seen["ranks"]} == {f"decode dp0 pp0 tp{tp}" for tp in range(32)}
    assert {row["source"] for row in seen["ranks"]} == {"outside"}
    assert status == 0
    # and in less time than it takes, every rank has a row all the same
    done = started.pdctl("ranks", "-o", "json", "--timeout", "0.2", "--rank-timeout", "0.1")
    assert len(json.loads(done.stdout)["ranks"]) >= 32, done.stderr


HOLDS = """
import sys, time
from pdctl.introspect import tracing
pid = int(sys.argv[1])
assert tracing.ask(tracing.SEIZE, pid) == 0
assert tracing.ask(tracing.INTERRUPT, pid) == 0
assert tracing.stop(pid, 60.0)[0] == 0
print("held", flush=True)
time.sleep(600)
"""


def test_a_reader_killed_while_it_holds_the_main_thread_leaves_it_running(started: Ranks) -> None:
    child = started.start("--then", "move")
    reader = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(child.pid)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    started.children.append(reader)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "held\n"
    assert look(child.pid).state == "t"
    reader.kill()
    reader.wait()
    target = OpenProcess(child.pid, 60)
    root = target.root(is_scheduler)
    before, _ = target.look(root, lambda s, _: s.first)
    until("another turn", lambda: target.look(root, lambda s, _: s.first)[0] != before)
    assert look(child.pid).state in ("R", "S")
    assert child.poll() is None


COUNTS = """
import signal, time
n = 0
def count(*_):
    global n
    n += 1
signal.signal(signal.SIGUSR1, count)
print("ready", flush=True)
while n < 200:
    time.sleep(0)
print(n, flush=True)
"""


def test_a_signal_that_arrives_in_the_moment_of_a_stop_is_not_lost(started: Ranks) -> None:
    child = subprocess.Popen([sys.executable, "-c", COUNTS], stdout=subprocess.PIPE, text=True)
    started.children.append(child)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"

    def ended() -> bool:  # with each signal lost it would take one more; with most, for ever
        os.kill(child.pid, signal.SIGUSR1)
        with contextlib.suppress(NotStoppedError, GoneError, NotPermittedError):  # the last two: it has just ended
            snapshot.copy(child.pid, Bulk([]))
        return look(child.pid).state in ("Z", "")

    until("200 signals", ended, limit_s=120, every_s=0.0)
    assert child.stdout.readline() == "200\n"
