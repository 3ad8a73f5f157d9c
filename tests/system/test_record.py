"""``pdctl record`` on labs: what is in a trace, that reading it is reading the recordings, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.labs import Lab, Labs, end_process
from tests.support.patience import patience, until

pytestmark = pytest.mark.system

TP0, TP1 = "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"
SMALL = {"PDCTL_RECORD_SIZE": str(256 * 1024)}


@pytest.fixture
def labs(labs: Labs) -> Labs:
    labs.env |= SMALL
    return labs


def hang(labs: Labs) -> Lab:
    """Hang a lab without the gate by metadata that came late on decode tp1."""
    lab = labs.up("--without", "gate")
    lab.inject_late_metadata(delay="1s")
    threading.Thread(target=lambda: lab.load(requests=1, seconds=3), daemon=True).start()
    until("a landing on decode tp1", lambda: lab.events(TP1, 13))
    return lab


def kill(labs: Labs, lab: Lab) -> None:
    for process in lab.processes:
        if process.alive:
            end_process(process)
    until("the end of all processes of the lab", lambda: not lab.left())


def record(labs: Labs, file: Path, *options: object, code: int = 0) -> dict[str, Any]:
    return json.loads(labs.cli("record", file, "-o", "json", *options, code=code).stdout)


def rids(lab: Lab) -> set[str]:
    return {event.text for event in lab.events(TP0, 1)}


def said(labs: Labs, source: Path, *command: str) -> tuple[int, Any]:
    """Return what a command says of recordings, without what depends on where they are and when it is asked."""
    done = labs.cli(*command, "-o", "json", "--from", source, code=None)
    assert done.stdout, done.stderr
    return done.returncode, _timeless(json.loads(done.stdout))


def found(labs: Labs, source: Path, *command: str) -> list[str]:
    """Return the codes of what is found in recordings, without what rests on the end of ranks: traces alone have that."""
    done = labs.cli(*command, "-o", "json", "--from", source, code=None)
    return [one["code"] for one in json.loads(done.stdout)["findings"] if one["code"] not in ("PD112", "PD113")]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in ("recording", "age_s", "tick_age_s", "seconds")}
    if isinstance(value, list):
        return [_timeless(v) for v in value]
    return re.sub(r"[0-9.]+ (ms|s|min) ago", "ago", value) if isinstance(value, str) else value


def test_a_trace_reads_like_the_recordings_live_and_after_kill_9(labs: Labs) -> None:
    lab = hang(labs)
    file = labs.folder / "live.pdtrace"
    document = record(labs, file)
    assert document["schema"] == "pdctl.record"
    ranks = document["trace"]["ranks"]
    assert [(r["rank"], r["state"], r["kept"]) for r in ranks] == [
        ("prefill dp0 pp0 tp0", "live", "whole"),
        (TP0, "live", "whole"),
        (TP1, "live", "whole"),
    ]
    live = json.loads(labs.cli("diff-queues", "-o", "json", "--from", file, code=1).stdout)
    [finding] = live["findings"]
    assert finding["code"] == "PD101"

    kill(labs, lab)
    names = rids(lab)
    dead = labs.folder / "dead.pdtrace"
    document = record(labs, dead, "--keep-names")
    assert {r["state"] for r in document["trace"]["ranks"]} == {"dead"}
    [room] = finding["rooms"]
    folder = labs.folder / "rec"
    for command in (
        ["dump", "metadata"],
        ["dump", "groups"],
        ["verify-routing"],
        ["story", str(room)],
        ["story", next(iter(names))],
    ):
        assert said(labs, dead, *command) == said(labs, folder, *command), command
    for command in (["ranks"], ["diff-queues"], ["stacks"], ["stuck"], ["check"]):
        assert found(labs, dead, *command) == found(labs, folder, *command), command
    assert "PD113" in labs.cli("ranks", "-o", "json", "--from", dead, code=1).stdout
    # Without the recordings the trace is all that is left.
    shutil.rmtree(folder)
    assert labs.cli("diff-queues", "--from", dead, code=1).stdout
    left = [p.name.split("-")[3] for p in Path(tempfile.gettempdir()).glob("pdctl-trace-*")]
    assert not [pid for pid in left if not Path(f"/proc/{pid}").exists()], "what a command unpacks goes with it"


def test_names_are_hashed_unless_kept(labs: Labs) -> None:
    lab = labs.up()
    assert lab.load(requests=4).good
    hashed, kept = labs.folder / "hashed.pdtrace", labs.folder / "kept.pdtrace"
    record(labs, hashed)
    record(labs, kept, "--keep-names")
    name = next(iter(rids(lab)))
    host = socket.gethostname()
    for file, there in ((hashed, False), (kept, True)):
        with zipfile.ZipFile(file) as archive:
            content = b"".join(archive.read(member) for member in archive.namelist())
        assert (name.encode() in content) is there
        assert (json.dumps({"host": host})[1:-1].replace(" ", "").encode() in content) is there
        story = json.loads(labs.cli("story", name, "--from", file, "-o", "json").stdout)
        assert len(story["stories"]) == 1
    assert labs.cli("diff-queues", "--from", hashed).stdout == labs.cli("diff-queues", "--from", kept).stdout
    assert "never came here" in labs.cli("story", f"{name}x", "--from", hashed, code=3).stderr


def test_ranks_that_have_no_recording_are_told_and_cost_code_3(labs: Labs) -> None:
    lab = labs.up("--prefill", "tp=1", "--decode", "tp=2")
    assert lab.load(requests=4).good
    os.kill(lab.process(TP1).pid, signal.SIGKILL)
    until("the end of decode", lambda: not lab.process(TP1).alive and not lab.process(TP0).alive)
    lost = labs.folder / "rec" / f"{lab.process(TP1).pid}-{lab.process(TP1).start}.pdrec"
    lost.unlink()
    (labs.folder / "rec" / "1-1.pdrec").write_bytes(b"garbage of some kind")
    file = labs.folder / "partial.pdtrace"
    document = record(labs, file, code=3)
    kept = {r["rank"]: (r["kept"], r["reason"]) for r in document["trace"]["ranks"]}
    assert kept[TP0] == ("whole", "")
    assert kept[TP1] == ("missing", f"{lost.name} is gone")
    assert document["trace"]["problems"] == ["1-1.pdrec: not a pdctl recording"]
    done = labs.cli("ranks", "--from", file, "-o", "json", code=1)
    [finding] = json.loads(done.stdout)["findings"]
    assert finding["code"] == "PD113"
    row = next(r for r in json.loads(done.stdout)["ranks"] if r["rank"] == TP1)
    assert (row["recording"], row["recording_off"]) == ("", f"{lost.name} is gone")


def test_through_sockets_is_the_same(labs: Labs) -> None:
    lab = labs.up()
    assert lab.load(requests=4).good
    file = labs.folder / "s.pdtrace"
    document = record(labs, file, "--through", "sockets", "--keep-names")
    assert {r["through"] for r in document["trace"]["ranks"]} == {"socket"}
    assert json.loads(labs.cli("diff-queues", "-o", "json", "--from", file).stdout)["findings"] == []


def test_existing_files_and_bad_ones(labs: Labs) -> None:
    labs.up()
    file = labs.folder / "x.pdtrace"
    record(labs, file)
    whole = file.read_bytes()
    done = labs.cli("record", file, code=2)
    assert "exists" in done.stderr
    assert "--force" in done.stderr
    assert file.read_bytes() == whole
    record(labs, file, "--force")
    assert "is not a directory" in labs.cli("record", labs.folder / "no" / "x.pdtrace", code=2).stderr
    with zipfile.ZipFile(file) as archive:
        document = json.loads(archive.read("manifest.json"))
    file.write_bytes(whole[: len(whole) // 2])
    assert "is cut off: " in labs.cli("ranks", "--from", file, code=3).stderr
    for content, words in (
        (whole[:100], "is cut off: nothing in it is whole"),
        (b"foreign", "is not a trace"),
        (b"", "is empty"),
    ):
        file.write_bytes(content)
        for command in (["ranks"], ["diff-queues"], ["story", "7"], ["dump", "metadata"], ["dump", "groups"]):
            done = labs.cli(*command, "--from", file, code=4)
            assert words in done.stderr
            assert "Next:" in done.stderr
            assert done.stdout == ""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("manifest.json", json.dumps({**document, "version": 7}))
    assert "trace version 7; this pdctl reads up to 1" in labs.cli("ranks", "--from", file, code=4).stderr


def test_no_ranks_leave_no_file(labs: Labs) -> None:
    file = labs.folder / "x.pdtrace"
    assert "no ranks found" in labs.cli("record", file, code=4).stderr
    assert not file.exists()


def test_two_at_once_make_one_file(labs: Labs) -> None:
    labs.up()
    file = labs.folder / "same.pdtrace"
    command = [sys.executable, "-m", "pdctl.cli", "record", str(file)]
    both = [subprocess.Popen(command, env=labs.env, stderr=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate(timeout=patience(120))[1].decode() for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    assert any("exists" in error for error in errors)
    assert labs.cli("diff-queues", "--from", file).stdout
    assert not list(labs.folder.glob(".same*"))


def test_a_full_disk_leaves_nothing_behind(labs: Labs) -> None:
    disk = labs.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", disk], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        assert labs.up().load(requests=16).good
        done = labs.cli("record", disk / "x.pdtrace", code=3)
        assert "can't be written: No space left on device" in done.stderr
        assert done.stdout == ""
        assert list(disk.iterdir()) == []
        file = labs.folder / "x.pdtrace"
        record(labs, file)
        labs.env["TMPDIR"] = str(disk)
        done = labs.cli("ranks", "--from", file, code=4)
        assert "can't be unpacked" in done.stderr
        assert "TMPDIR" in done.stderr
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)
