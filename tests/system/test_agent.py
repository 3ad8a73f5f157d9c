"""The agent in real processes: what it leaves, what it answers while the main thread does not, how it ends."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from pdctl.protocol.model import FlightEntry, Snapshot, Status
from pdctl.protocol.paths import Registration
from pdctl.recording.reader import parse, read
from tests.support.tiny_ranks import ROOT, TinyRanks, Wire

pytestmark = pytest.mark.system


def modes(folder: Path) -> dict[str, int]:
    return {path.suffix: stat.S_IMODE(path.lstat().st_mode) for path in folder.iterdir()}


def test_what_it_leaves_is_closed_to_others_whatever_the_umask(ranks: TinyRanks) -> None:
    old = os.umask(0)
    try:
        ranks.start()
    finally:
        os.umask(old)
    assert modes(ranks.run_dir) == {".json": 0o600, ".sock": 0o600, ".stacks": 0o600}
    assert modes(ranks.record_dir) == {".pdrec": 0o600}
    assert stat.S_IMODE(ranks.run_dir.stat().st_mode) == stat.S_IMODE(ranks.record_dir.stat().st_mode) == 0o700


def test_it_answers_while_the_main_thread_waits_in_a_collective_and_names_it(ranks: TinyRanks) -> None:
    children = ranks.group(2, "collective", TORCH_FR_BUFFER_SIZE="200")
    with Wire(ranks.socket_of(children[0])) as wire:
        status = msgspec.msgpack.decode(wire.ask("status").body, type=Status)
        while status.call.op == "":  # on its way there
            status = msgspec.msgpack.decode(wire.ask("status").body, type=Status)
        assert (status.call.op, status.call.group, status.call.elements) == ("all_reduce", "attn-tp", 7)
        assert status.call.inside == "poll of decode.transfer"
        assert status.rounds == {"decode.transfer/attn-tp": 0}
        assert any(frame.function == "turn" and frame.file == "targets/tiny.py" for frame in status.stack)
        snapshot = msgspec.msgpack.decode(wire.ask("queues").body, type=Snapshot)
        assert [entry.room for entry in snapshot.queues["decode.transfer"]] == list(range(1000, 1007))
        entries: list[FlightEntry] = []
        while not entries:  # the call is named before torch has noted it
            entries = msgspec.msgpack.decode(wire.ask("flight_recorder").body, type=list[FlightEntry])
        [entry] = entries
        assert (entry.op, entry.backend, entry.sizes, entry.retired) == ("all_reduce", "gloo", ((7,),), False)


def test_the_recording_through_the_socket_is_the_file(ranks: TinyRanks) -> None:
    children = ranks.group(2, "collective")
    [path] = ranks.record_dir.glob(f"{children[0].pid}-*")
    with Wire(ranks.socket_of(children[0])) as wire:
        while not read(path).streams:
            time.sleep(0.05)
        data = b""
        while part := msgspec.msgpack.decode(wire.ask("recording", {"offset": len(data), "length": 1 << 20}).body):
            data += part
    assert data == path.read_bytes()
    assert parse(data).streams[0].newest.n == 7


def test_a_part_of_the_recording_is_never_over_the_limit(ranks: TinyRanks) -> None:
    with Wire(ranks.socket_of(ranks.start())) as wire:
        assert len(msgspec.msgpack.decode(wire.ask("recording", {"offset": 0, "length": 1 << 40}).body)) == 1 << 20
        for bad in ({}, {"offset": -1, "length": 5}, {"offset": "a", "length": 5}, {"offset": 0, "length": 1, "x": 2}):
            assert wire.ask("recording", bad).error


def test_a_flight_recorder_that_is_off_says_so(ranks: TinyRanks) -> None:
    with Wire(ranks.socket_of(ranks.start())) as wire:
        assert "TORCH_FR_BUFFER_SIZE" in wire.ask("flight_recorder").error


def test_a_clean_end_leaves_the_recording_closed_and_nothing_to_connect_to(ranks: TinyRanks) -> None:
    child = ranks.start()
    child.communicate("")
    assert child.returncode == 0
    assert list(ranks.run_dir.iterdir()) == []
    [path] = ranks.record_dir.iterdir()
    assert read(path).state == "closed"


def test_a_forked_child_has_no_agent_and_leaves_the_parent_s_alone(ranks: TinyRanks) -> None:
    child = ranks.start("--then", "fork")
    assert child.stdout is not None
    assert child.stdout.readline().split() == ["child", "None", "True"]
    with Wire(ranks.socket_of(child)) as wire:
        hello = msgspec.msgpack.decode(wire.ask("hello").body, type=Registration)
    assert hello.identity.pid == child.pid
    [path] = ranks.record_dir.iterdir()
    assert read(path).state == "writing"


def test_it_is_off_when_switched_off(ranks: TinyRanks) -> None:
    line = ranks.ready(ranks.begin(PDCTL_AGENT="off"))
    assert "without an agent" in line
    assert not ranks.run_dir.exists()
    assert not ranks.record_dir.exists()


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"PDCTL_RECORD": "off"}, "switched off"),
        ({"PDCTL_RECORD_SIZE": "many"}, "many"),
        ({"PDCTL_RECORD_SIZE": "5"}, "needs at least"),
        ({"PDCTL_RECORD_DIR": "/proc/nowhere"}, "/proc/nowhere"),
        ({"PDCTL_RECORD_DIR": "/dev/null"}, "not a directory"),
    ],
)
def test_without_a_recording_the_rank_works_and_says_why(ranks: TinyRanks, env: dict[str, str], reason: str) -> None:
    child = ranks.start("--port", "0", **env)
    [row] = ranks.rows(code=0)
    assert row["state"] == "live"
    assert row["recording"] == ""
    assert reason in row["recording_off"]
    assert child.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk to fill")
def test_a_full_disk_switches_the_recording_off_and_nothing_else(ranks: TinyRanks, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("this root may not mount anything")
    try:
        asked = ranks.start(PDCTL_RECORD_DIR=str(disk), PDCTL_RECORD_SIZE=str(4 << 20))
        left_to_pdctl = ranks.start(PDCTL_RECORD_DIR=str(disk), TINY_SERVICE="second")
        rows = {row["pid"]: row for row in ranks.rows(code=0)}
        assert "asks for more than the 1024 KiB that are free" in rows[asked.pid]["recording_off"]
        assert "are free in" in rows[left_to_pdctl.pid]["recording_off"]
        assert list(disk.iterdir()) == []
    finally:
        for child in ranks.children:
            child.kill()
            child.wait()
        subprocess.run(["umount", disk], check=True)


def test_a_run_directory_that_can_not_be_used_leaves_the_recording(ranks: TinyRanks) -> None:
    for run_dir, reason in (("/proc/nowhere", "nowhere"), (str(ranks.record_dir / ("x" * 100)), "at most 107 fit")):
        line = ranks.ready(ranks.begin(PDCTL_RUN_DIR=run_dir))
        assert "socket off" in line
        assert reason in line
        assert ".pdrec" in line


def test_hooks_that_can_not_be_put_in_are_said_and_the_rest_answers(ranks: TinyRanks) -> None:
    ranks.start(TINY_BREAK_INSTALL="1")
    [row] = ranks.rows(code=0)
    assert row["state"] == "live"
    assert row["hooks_removed"] == ["install"]


def test_starting_twice_is_starting_once_and_logs_one_line(tmp_path: Path) -> None:
    program = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(levelname)s %(message)s")
from pdctl.agent.core import Agent
from tests.system.targets.tiny import TinyAdapter
first = Agent.start(TinyAdapter(0, 1, 1, None))
assert first is Agent.start(TinyAdapter(0, 1, 1, None)) is Agent.current

class Broken(TinyAdapter):
    def identity(self):
        raise RuntimeError("not yet")

first.stop()
assert Agent.start(Broken(0, 1, 1, None)) is None
"""
    env = os.environ | {"PDCTL_RUN_DIR": str(tmp_path / "run"), "PDCTL_RECORD_DIR": str(tmp_path / "record")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    started, off = done.stdout.splitlines()
    assert started.startswith("INFO pdctl agent ")
    assert off == "INFO pdctl agent is off: RuntimeError: not yet"


def test_registrations_are_whole_json_at_every_moment(ranks: TinyRanks) -> None:
    child = ranks.begin()
    while child.poll() is None and not list(ranks.run_dir.glob("*.json")):
        time.sleep(0.001)
    [path] = ranks.run_dir.glob("*.json")
    assert json.loads(path.read_bytes())["identity"]["pid"] == child.pid
