"""``pdctl watch`` on a lab: a rank that is stopped, ranks that part, a server that is gone, and what is kept of it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.watch.incidents import LINES
from tests.support.labs import Labs
from tests.support.patience import patience, until
from tests.support.tiny_ranks import TinyRanks

pytestmark = pytest.mark.system
TP1 = "decode dp0 pp0 tp1"
STARTED: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait()


class Watching:
    """A ``pdctl watch``, and what it has said so far. most_lines: its standard output is closed after so many."""

    def __init__(self, labs: Labs | TinyRanks, *options: object, most_bytes: int = 0, most_lines: int = 0) -> None:
        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

        self.process = subprocess.Popen(
            [sys.executable, "-m", "pdctl.cli", "watch", *map(str, options)],
            env={**labs.env, "PYTHONDONTWRITEBYTECODE": "1"},  # a limited one would cut off what it writes
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=limited if most_bytes else None,  # noqa: PLW1509  # nothing else runs in this process then
        )
        STARTED.append(self.process)
        self.lines: list[str] = []
        self.notes: list[str] = []
        for stream, kept, most in (
            (self.process.stdout, self.lines, most_lines),
            (self.process.stderr, self.notes, 0),
        ):
            threading.Thread(target=self._read, args=(stream, kept, most), daemon=True).start()

    @staticmethod
    def _read(stream: Any, kept: list[str], most: int) -> None:
        with stream:
            for line in stream:
                kept.append(line.decode().rstrip("\n"))
                if len(kept) == most:
                    return

    def changes(self, kind: str = "") -> list[dict[str, Any]]:
        found = [json.loads(line) for line in list(self.lines)]
        return [one for one in found if kind in ("", one["change"])]

    def one(self, kind: str, code: str = "", limit_s: float = 60.0) -> dict[str, Any]:
        """Wait for the newest change of a kind."""

        def there() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.notes
            return next((one for one in self.changes(kind)[::-1] if code in ("", one["code"])), None)

        said: dict[str, Any] = until(f"a change {kind} {code}", there, limit_s)
        return said

    def end(self, number: int, code: int) -> None:
        self.process.send_signal(number)
        assert self.process.wait(patience(20)) == code, self.notes


def test_what_goes_wrong_is_told_once_kept_and_over(labs: Labs) -> None:
    lab = labs.up("--without", "gate")
    kept, told = labs.folder / "kept", labs.folder / "told"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        watching = Watching(
            labs, "-o", "jsonl", "--on-finding", f"record={kept}", "--exec", f"tee -a {told}",
            "--webhook", f"http://127.0.0.1:{silent.getsockname()[1]}/",
        )  # fmt: skip
        full = Watching(
            labs, "-o", "jsonl", "--on-finding", f"record={labs.folder / 'full'}", most_bytes=4096, most_lines=1
        )
        for one in (watching, full):
            assert one.one("ranks")["summary"] == "3 ranks: 3 live"
        assert lab.load(requests=10).completed == 10

        # A rank that is stopped, and goes on.
        pid = lab.process(TP1).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            stopped = watching.one("began")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert stopped["code"] == "PD114"
        assert TP1 in stopped["ranks"]
        assert watching.one("over")["incident"] == stopped["incident"]

        # Ranks that part: the alarm has the round, the room and the cause.
        lab.inject_late_metadata()
        load = threading.Thread(target=lab.load, kwargs={"requests": 1, "seconds": 5})
        load.start()
        parted = watching.one("began", "PD101")
        load.join()
        assert (parted["queue"], parted["group"]) == ("decode.transfer", "decode dp0 pp0 · attention-TP group of 2")
        [room] = parted["rooms"]
        assert parted["round"] >= 0
        assert parted["next_step"]
        place = until("its evidence", lambda: next((one for one in kept.glob("*PD101*")), None))
        assert sorted(one.name for one in place.iterdir()) == [
            "finding.json", "settings.json", "stacks.json", "trace.pdtrace",
        ]  # fmt: skip
        assert json.loads((place / "finding.json").read_text()) == parted
        assert json.loads((place / "stacks.json").read_text())["schema"] == "pdctl.stacks"
        seen = json.loads(labs.cli("diff-queues", "--from", place / "trace.pdtrace", "-o", "json", code=1).stdout)
        assert room in [split["room"] for group in seen["groups"] for split in group["splits"]]
        until("the full disk is said", lambda: any("no evidence of PD" in line for line in full.notes))
        assert list((labs.folder / "full").iterdir()) == []

        # The server is gone, and another one is there.
        labs.cli("lab", "down")
        labs.up()
        ended = lambda: [one["incident"] for one in watching.changes("ended")]  # noqa: E731
        until("its incident is ended", lambda: parted["incident"] in ended())
        until("its command has heard it", lambda: '"change":"ended"' in told.read_text())
        watching.end(signal.SIGTERM, 0)
        full.end(signal.SIGINT, 0)
    told_once = [(one["change"], one["code"]) for one in watching.changes() if one["incident"]]
    assert [code for change, code in told_once if change == "began"].count("PD101") == 1
    # While a server ends that is told, too, if a look comes just then.
    assert {"PD114", "PD101"} <= {code for _, code in told_once} <= {"PD114", "PD101", "PD112", "PD113"}


def test_it_ends_where_nobody_listens_and_says_that_nobody_is_there(labs: Labs) -> None:
    watching = Watching(labs, most_lines=1)
    assert watching.process.wait(patience(60)) == 4
    assert "no ranks: no ranks found in" in watching.lines[0]
    assert watching.notes == []
    waited = Watching(labs, "--for", "1s")
    assert waited.process.wait(patience(60)) == 4


@pytest.mark.long
def test_a_rank_that_restarts_again_and_again_has_a_few_lines(ranks: TinyRanks) -> None:
    watching = Watching(ranks, "-o", "jsonl")
    for number in range(15):
        ranks.start(TINY_INSTANCE=f"start {number}").kill()
    last = ranks.start(TINY_INSTANCE="the last")
    until("it is folded", lambda: watching.changes("often"), 120)
    told = watching.changes()
    assert len([one for one in told if one["change"] == "ranks"]) <= 2 * LINES
    assert len(told) < 40
    assert last.poll() is None
    descriptors = Path(f"/proc/{watching.process.pid}/fd")
    until("files of ranks that are gone are closed", lambda: len(list(descriptors.iterdir())) < 25)

    def over() -> bool:
        last_of = {one["incident"]: one for one in watching.changes() if one["incident"]}
        return all(one["change"] in ("over", "ended") or "now it is over" in one["summary"] for one in last_of.values())

    until("what was told of the killed ranks is over", over, 120)
    watching.end(signal.SIGTERM, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-o", "yaml"), "table or jsonl"),
        (("--on-finding", "keep"), "write record=DIR"),
        (("--exec", "a 'b"), "No closing quotation"),
        (("--exec", ""), ""),
        (("--webhook", "file:///etc/passwd"), "write http://HOST/"),
        (("--every", "1ms"), "from 100ms to 1m"),
        (("--check", "2h"), "from 1s to 1h"),
        (("--on-finding", "record=/proc/x"), "can't be used for evidence"),
    ],
)
def test_what_can_not_be_meant_is_refused(labs: Labs, options: tuple[str, ...], said: str) -> None:
    done = labs.cli("watch", "--for", "100ms", *options, code=None)
    assert done.returncode == (2 if said else 4)
    assert said in done.stderr


def test_the_file_of_a_unit_has_a_command_that_exists() -> None:
    root = Path(__file__).parents[2] / "deploy"
    [line] = [one for one in (root / "watch.service").read_text().splitlines() if one.startswith("ExecStart=")]
    assert line.split()[1:] == ["watch", "-o", "jsonl", "--on-finding", "record=/var/lib/pdctl-watch"]
