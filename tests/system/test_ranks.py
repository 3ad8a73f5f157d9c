"""``pdctl ranks`` against real processes in the states a hang leaves them in: every rank has a row, and a reason."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pdctl.protocol import paths, wire
from pdctl.protocol.model import Status
from pdctl.protocol.paths import Registration
from pdctl.protocol.stream import framed
from pdctl.targets.client import Client, Silence
from pdctl.targets.find import discover
from pdctl.targets.places import parse_places
from tests.support.tiny_ranks import TinyRanks, patient, stop

pytestmark = pytest.mark.system


def by_pid(rows: list[dict[str, object]], child: subprocess.Popen[str]) -> dict[str, object]:
    [row] = [row for row in rows if row["pid"] == child.pid]
    return row


def test_ranks_that_answer(ranks: TinyRanks) -> None:
    children = ranks.group(2, "loop")
    rows = ranks.rows(code=0)
    assert [row["rank"] for row in rows] == ["decode dp0 pp0 tp0", "decode dp0 pp0 tp1"]
    for row, child in zip(rows, children, strict=True):
        assert (row["state"], row["source"], row["pid"]) == ("live", "agent", child.pid)
        assert "decode.transfer/attn-tp" in row["rounds"]
        assert row["recording_size"] > 0
        assert row["seams"][1] == {"name": "gate", "present": False, "detail": "tiny has none"}


def test_a_stopped_a_killed_and_a_stuck_rank_next_to_one_that_works(ranks: TinyRanks) -> None:
    waits, _ = ranks.group(2, "collective", TINY_SERVICE="a")
    killed = ranks.start("--then", "sleep", TINY_SERVICE="b")
    works = ranks.start("--size", 4, "--rank", 0, "--then", "sleep")
    stopped = ranks.start("--size", 4, "--rank", 1, "--then", "sleep")
    holds_gil = ranks.start("--size", 4, "--rank", 2, "--then", "gil")
    stop(stopped)
    killed.kill()
    killed.wait()
    rows = ranks.rows("--rank-timeout", "5", code=1)
    assert by_pid(rows, works)["state"] == "live"
    assert by_pid(rows, waits)["state"] == "live"
    assert by_pid(rows, killed)["state"] == "dead"
    assert by_pid(rows, stopped)["state"] == by_pid(rows, holds_gil)["state"] == "silent"
    assert "stopped" in str(by_pid(rows, stopped)["reason"])
    assert [row["pid"] for row in rows if row["stands"]] == [stopped.pid]
    assert "GIL" in str(by_pid(rows, holds_gil)["reason"])
    [absent] = [row for row in rows if row["state"] == "no agent"]
    assert (absent["rank"], absent["pid"]) == ("decode dp0 pp0 tp3", 0)


def test_the_last_round_of_killed_ranks_is_in_their_recordings(ranks: TinyRanks, tmp_path: Path) -> None:
    children = ranks.group(2, "collective")
    while not ranks.rows(code=0)[0]["rounds"]:
        pass
    for child in children:
        child.kill()
        child.wait()
    for row in ranks.rows(code=1):
        assert (row["state"], row["source"]) == ("dead", "recording")
    copied = shutil.copytree(ranks.record_dir, tmp_path / "copied")
    waited, _ = ranks.rows("--from", str(copied), code=0)
    assert (waited["state"], waited["rounds"]) == ("recorded", {"decode.transfer/attn-tp": 0})
    assert waited["where"] == "last round: 0 of decode.transfer, in the all_reduce of 7, group attn-tp"


def test_nothing_to_find_and_nobody_allowed_to_look(ranks: TinyRanks) -> None:
    nothing = ranks.pdctl("ranks")
    assert (nothing.returncode, nothing.stdout) == (4, "")
    assert str(ranks.run_dir) in nothing.stderr
    ranks.start()
    ranks.run_dir.chmod(0o755)
    refused = ranks.pdctl("ranks")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "open to others" in refused.stderr
    assert "Next:" in refused.stderr


def test_only_silent_ranks_without_recordings_are_nothing_reached(ranks: TinyRanks) -> None:
    ranks.start("--then", "gil", PDCTL_RECORD="off")
    [row] = ranks.rows("--rank-timeout", "0.5", code=4)
    assert row["state"] == "silent"


def test_a_recording_that_is_cut_off_or_foreign_is_named_and_the_others_shown(ranks: TinyRanks) -> None:
    ranks.start()
    (ranks.record_dir / "5-5.pdrec").write_bytes(b"PDCTLREC" + bytes(20))
    (ranks.record_dir / "6-6.pdrec").write_bytes(b"not one of ours, surely")
    done = ranks.pdctl("ranks", *patient())
    assert done.returncode == 3
    assert "live" in done.stdout
    assert "5-5.pdrec" in done.stderr
    assert "6-6.pdrec" in done.stderr


class Impostor:
    """Listens where a rank would, as this process, and answers every question with ``answer``."""

    def __init__(self, ranks: TinyRanks, answer: bytes, protocol: int = wire.PROTOCOL) -> None:
        child = ranks.start("--then", "sleep", TINY_SERVICE="impostor")
        path = ranks.socket_of(child)
        registration = json.loads(path.with_suffix(".json").read_bytes()) | {"protocol": protocol}
        registration["endpoint"] = f"ipc://{path}2"
        paths.write_private(path.with_suffix(".json"), json.dumps(registration).encode())
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(f"{path}2")
        self.socket.listen()
        self.answer = answer
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                with client:
                    while client.recv(65536):
                        client.sendall(framed(self.answer))

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.socket.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\x00garbage", "can't be read"),
        (wire.encode({"v": 7}), "speaks protocol 7, this pdctl speaks 2"),
        (wire.encode({"v": 2, "id": 0, "body": {"no": "status"}}), "can't be read"),
        (wire.encode(wire.Reply(error="not today")), "not today"),
    ],
)
def test_an_agent_that_answers_nonsense(ranks: TinyRanks, answer: bytes, reason: str) -> None:
    works = ranks.start("--then", "sleep")
    impostor = Impostor(ranks, answer)
    try:
        rows = ranks.rows(code=3)
    finally:
        impostor.close()
    assert by_pid(rows, works)["state"] == "live"
    [other] = [row for row in rows if row["pid"] != works.pid]
    assert other["state"] == "silent"
    assert reason in str(other["reason"])


def test_an_agent_that_registered_another_protocol_is_not_asked(ranks: TinyRanks) -> None:
    impostor = Impostor(ranks, b"", protocol=1)
    try:
        [row] = ranks.rows(code=3)
    finally:
        impostor.close()
    assert row["reason"] == "its agent speaks protocol 1, this pdctl speaks 2"


def test_a_socket_nobody_listens_on_is_refused(ranks: TinyRanks) -> None:
    child = ranks.start("--then", "sleep", PDCTL_RECORD="off")
    path = ranks.socket_of(child)
    stop(child)  # it would listen there again, and that it is stopped is a finding
    path.unlink()
    [row] = ranks.rows(code=1)
    assert "is gone" in row["reason"]
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(path))
    [row] = ranks.rows(code=1)
    assert "nobody listens" in row["reason"]


def test_the_table_fits_eighty_columns_and_says_the_state_in_words(ranks: TinyRanks) -> None:
    stop(ranks.start("--size", 2, "--then", "sleep", TINY_SERVICE="decode 10.11.12.13:30001"))
    ranks.group(2, "collective", TINY_SERVICE="decode 10.11.12.13:30002")
    done = ranks.pdctl("ranks", "--rank-timeout", "5")
    assert done.returncode == 1
    assert max(map(len, done.stdout.splitlines())) <= 80
    for word in ("live", "silent", "no agent", "10.11.12.13:30002", "all_reduce"):
        assert word in done.stdout
    wide = ranks.pdctl("ranks", "-o", "wide", "--rank-timeout", "5")
    for word in (
        "seams missing: gate (tiny has none)",
        "seams present: poll.decode.transfer",
        "loaded by",
        "test",
        "ipc://",
    ):
        assert word in wide.stdout


def test_older_starts_are_counted_and_shown_on_request(ranks: TinyRanks) -> None:
    for start in ("first", "second"):
        child = ranks.start(TINY_INSTANCE=start)
        if start == "first":
            child.kill()
            child.wait()
    done = ranks.pdctl("ranks")
    assert "1 dead rank of earlier starts left out; --all shows them" in done.stderr
    assert {row["instance"] for row in ranks.rows("--all", code=3)} == {"first", "second"}


@pytest.mark.parametrize("form", ["table", "wide", "json", "jsonl", "yaml", "csv"])
def test_a_reader_that_takes_one_line_sees_no_traceback(ranks: TinyRanks, form: str) -> None:
    ranks.start("--then", "sleep")
    command = f"{sys.executable} -m pdctl.cli ranks -o {form} | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=Path(__file__).parents[2],
        env=ranks.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_interrupting_it_is_130_without_a_traceback(ranks: TinyRanks) -> None:
    stopped = ranks.start("--then", "sleep")
    stop(stopped)
    with subprocess.Popen(
        [sys.executable, "-m", "pdctl.cli", "ranks", "--rank-timeout", "60", "--timeout", "60"],
        cwd=Path(__file__).parents[2],
        env=ranks.env,
        stderr=subprocess.PIPE,
        text=True,
    ) as asking:
        # Its first connection is made when all is imported and it is about to ask.
        while not _has_socket(asking.pid):
            pass
        asking.send_signal(signal.SIGINT)
        _, errors = asking.communicate()
    assert (asking.returncode, errors) == (130, "interrupted\n")


def _has_socket(pid: int) -> bool:
    try:
        return any(str(fd.readlink()).startswith("socket:") for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_the_whole_command_ends_by_its_deadline_whatever_one_rank_may_take(ranks: TinyRanks) -> None:
    for service in ("a", "b", "c"):
        stop(ranks.start("--then", "sleep", TINY_SERVICE=service))
    rows = ranks.rows("--timeout", "500ms", "--rank-timeout", "1h", code=3)
    assert {row["state"] for row in rows} == {"silent"}
    reasons = [str(row["reason"]) for row in rows]
    assert all("no answer within 0.5 s overall: process is stopped" in reason for reason in reasons), reasons


def test_a_recording_comes_through_the_socket_as_well(ranks: TinyRanks) -> None:
    ranks.group(2, "collective")
    [rank, _] = discover(parse_places(ranks.env)).ranks
    with Client() as client:
        by_file = client.recordings.read([rank])[0].body
        while not (by_file and by_file.streams):  # a rank is ready before its first round is written
            time.sleep(0.05)
            by_file = client.recordings.read([rank])[0].body
        by_socket = client.recordings.read([rank], through_socket=True)[0].body
        [nothing] = client.recordings.read([dataclasses.replace(rank, recording=None, recording_off="off here")])
    assert by_socket is not None
    assert by_socket.identity == by_file.identity == rank.identity
    assert [stream.queue for stream in by_socket.streams] == [stream.queue for stream in by_file.streams]
    assert (nothing.body, nothing.reason) == (None, "off here")


def test_a_client_that_gave_up_on_an_answer_does_not_take_it_for_the_next(ranks: TinyRanks) -> None:
    child = ranks.start("--then", "sleep")
    [rank] = discover(parse_places(ranks.env)).ranks
    with Client(rank_timeout_s=0.5) as client:
        stop(child)
        [late] = client.ask([rank], "status", Status)
        assert late.silence is Silence.TIMED_OUT
        child.send_signal(signal.SIGCONT)
        while (hello := client.ask([rank], "hello", Registration)[0]).body is None:
            assert hello.silence is Silence.TIMED_OUT  # the machine is busy
            client.restart()
    assert hello.body.identity.pid == child.pid


def test_wrong_usage_is_2(ranks: TinyRanks) -> None:
    for args in (["ranks", "--timeout", "soon"], ["ranks", "-o", "xml"], ["rank"], ["ranks", "--nonsense"]):
        assert ranks.pdctl(*args).returncode == 2
