"""An agent put into a process that runs: the process never notices, whatever becomes of pdctl meanwhile."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.introspect import hijack
from tests.support.labs import Labs
from tests.support.patience import patience, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800, method="signal")]
if hijack.unsupported():
    pytest.skip(hijack.unsupported(), allow_module_level=True)

TARGET = Path(__file__).with_name("targets") / "busy.py"
INJECTIONS = int(os.environ.get("PDCTL_TEST_INJECTIONS", "15"))
"""300 for the record."""
KILLS = int(os.environ.get("PDCTL_TEST_INJECT_KILLS", "8"))
WAITERS = ("main", "sleep", "futex", "select", "poll", "epoll")


class Busy:
    def __init__(self, folder: Path, *words: str, python: str | Path = sys.executable) -> None:
        self.folder = folder
        self.process = subprocess.Popen([str(python), str(TARGET), str(folder), *words], stdin=subprocess.PIPE)
        until("the process to be up", (folder / "up").exists)

    def turns(self) -> dict[str, int]:
        return {name: int((self.folder / name).read_text() or 0) for name in WAITERS if (self.folder / name).exists()}

    def goes_on(self) -> None:
        """All its threads still take turns, those that were borrowed as well."""
        assert self.process.poll() is None, f"it ended with {self.process.returncode}"
        before = self.turns()
        until("a turn of every waiter", lambda: all(now > before.get(name, 0) for name, now in self.turns().items()))
        assert set(before) == set(WAITERS)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    target = Busy(tmp_path)
    until("a first turn of every waiter", lambda: set(target.turns()) == set(WAITERS))
    yield target
    target.process.kill()
    target.process.wait()


def made_to_run(pid: int) -> tuple[int, bytes]:
    """Return how many pages of code belong to no file, and what is in the last page of each library's code."""
    parts = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    of_no_file = [part for part in parts if part[1] == "r-xp" and len(part) == 5]
    ends = [int(part[0].partition("-")[2], 16) for part in parts if part[1] == "r-xp" and part[-1].startswith("/")]
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        return len(of_no_file), b"".join(os.pread(memory.fileno(), 4096, end - 4096) for end in ends)


def test_many_threads_started_in_a_process_that_allocates(busy: Busy, tmp_path: Path) -> None:
    pid = busy.process.pid
    before = made_to_run(pid)
    for number in range(INJECTIONS):
        file = tmp_path / f"done.{number}"
        hijack.start_thread(pid, f"open({str(file)!r}, 'w').close()")
        until("the agent's file", file.exists)
    busy.goes_on()
    # Nothing is left: no thread, no page of code, and no code behind any library's.
    until("the end of the threads that were started", lambda: len(list(Path(f"/proc/{pid}/task").iterdir())) == 8)
    until("the memory as it was", lambda: made_to_run(pid) == before)


def test_pdctl_is_killed_at_any_moment_of_it(busy: Busy, tmp_path: Path) -> None:
    pid, choose = busy.process.pid, random.Random(int(os.environ.get("PDCTL_TEST_SEED", "7")))
    code = (
        "import sys\nfrom pdctl.introspect import hijack\nprint(flush=True)\n"
        "while True:\n    hijack.start_thread(int(sys.argv[1]), 'pass')"
    )
    for _ in range(KILLS):
        tool = subprocess.Popen([sys.executable, "-c", code, str(pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert tool.stdout is not None
        assert tool.stderr is not None
        tool.stdout.readline()
        time.sleep(choose.uniform(0, 0.1))
        tool.kill()
        _, said = tool.communicate()
        assert tool.returncode == -signal.SIGKILL, said.decode()
    busy.goes_on()
    file = tmp_path / "after"
    hijack.start_thread(pid, f"open({str(file)!r}, 'w').close()")
    until("the agent's file", file.exists)
    busy.goes_on()


def attach(labs: Labs, *words: object, code: int | None = 0) -> dict[str, Any]:
    limit = () if "--timeout" in words else ("--timeout", f"{patience(30):.0f}s")
    done = labs.cli("attach", *words, *limit, "-o", "json", code=code)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_who_has_the_gil_is_told_while_the_agent_waits_for_it(tmp_path: Path) -> None:
    target = Busy(tmp_path, "gil")
    try:
        with Labs() as labs:
            [found] = attach(labs, target.process.pid, "--inject-agent", "--timeout", "1s", code=3)["processes"]
            assert found["state"] == "pending"
            assert "waits for the GIL, which its main thread has in main (targets/busy.py:" in found["reason"]
            assert target.process.stdin is not None
            target.process.stdin.close()
            # It gets its turn when the GIL is free, and finds that this is no rank.
            [result] = [file for file in (labs.folder / "run").glob("*.attach") if ".waits." not in file.name]
            until("the result of the attempt", lambda: result.read_text().strip())
            assert result.read_text().startswith("no scheduler was found on its main thread")
            until("a turn of every waiter", lambda: len(target.turns()) == len(WAITERS))
            target.goes_on()
    finally:
        target.process.kill()
        target.process.wait()


def test_an_agent_that_has_not_started_yet_can_be_taken_back() -> None:
    with Labs() as labs:
        labs.env["PDCTL_AGENT"] = "off"
        lab = labs.up()
        process = lab.process("decode dp0 pp0 tp0")
        before = labs.files()
        os.kill(process.pid, signal.SIGSTOP)
        [found] = attach(labs, process.pid, "--inject-agent", "--arm", "--timeout", "1s", code=None)["processes"]
        if found["state"] == "pending":  # else no thread of a stopped process could be borrowed, which is said
            assert "process is stopped" in found["reason"]
            [row] = attach(labs, process.pid, "--remove-agent")["ranks"]
            assert (row["pid"], row["kept"]) == (process.pid, "")
        else:
            assert found["state"] == "refused"
        os.kill(process.pid, signal.SIGCONT)
        assert lab.load(requests=4).good
        assert labs.files() == before, "no agent has started since"


def test_only_one_agent_waits_in_a_process() -> None:
    """Whoever comes after it hears of it, and starts nothing; who wants faults with it has to take it back first."""
    with Labs() as labs:
        labs.env["PDCTL_AGENT"] = "off"
        lab = labs.up()
        pid = lab.process("decode dp0 pp0 tp0").pid
        os.kill(pid, signal.SIGSTOP)
        [first] = attach(labs, pid, "--inject-agent", "--timeout", "1s", code=None)["processes"]
        if first["state"] != "pending":
            pytest.skip(first["reason"])
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        [second] = attach(labs, pid, "--inject-agent", "--timeout", "1s", code=3)["processes"]
        assert second["state"] == "pending"
        assert "one was put in before" in second["reason"]
        [armed] = attach(labs, pid, "--inject-agent", "--arm", "--timeout", "1s", code=5)["processes"]
        assert (armed["state"], armed["unarmed"]) == ("refused", True)
        assert "--remove-agent takes it back" in armed["next_step"]
        assert len(list(Path(f"/proc/{pid}/task").iterdir())) == threads
        command = labs.start("attach", pid, "--inject-agent", "-o", "json", "--timeout", "60s")
        time.sleep(1)
        os.kill(pid, signal.SIGCONT)
        out, _ = command.communicate(timeout=patience(120))
        [found] = json.loads(out)["processes"]
        assert (found["state"], command.returncode) == ("there", 0)
        assert "(attach, not armed)" in found["reason"]


def test_two_put_an_agent_into_one_process_at_the_same_time() -> None:
    with Labs() as labs:
        labs.env["PDCTL_AGENT"] = "off"
        pid = labs.up().process("decode dp0 pp0 tp0").pid
        before = labs.files()
        words = ("attach", pid, "--inject-agent", "--arm", "--timeout", f"{patience(30):.0f}s", "-o", "json")
        commands = [labs.start(*words) for _ in range(4)]
        found = [json.loads(command.communicate(timeout=patience(120))[0])["processes"][0] for command in commands]
        assert sorted(one["state"] for one in found) == ["running", "there", "there", "there"], found
        assert {command.returncode for command in commands} == {0}
        assert len({one["endpoint"] for one in found}) == 1
        attach(labs, pid, "--remove-agent")
        until("the files as they were", lambda: labs.files() == before)


def test_a_run_directory_that_takes_nothing() -> None:
    """A full disk: nothing is done to the rank, and once there is room all is well."""
    with Labs() as labs:
        labs.env["PDCTL_AGENT"] = "off"
        lab = labs.up()
        pids = [process.pid for process in lab.processes if "tp" in process.label]
        full = labs.folder / "full"
        full.mkdir(mode=0o700)
        mount = ["mount", "-t", "tmpfs", "-o", "size=8k,mode=0700", "tmpfs", str(full)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("this user may not mount")
        try:
            with (full / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * 4096)
            found = attach(labs, *pids, "--inject-agent", "--run-dir", full, code=4)["processes"]
            assert [one["pid"] for one in found] == pids
            assert all("No space left" in one["reason"] for one in found), found
            (full / "fill").unlink()
        finally:
            subprocess.run(["umount", str(full)], check=True)
        assert {one["state"] for one in attach(labs, *pids, "--inject-agent")["processes"]} == {"running"}
        rows = attach(labs, pids[0], 999_999, "--remove-agent", code=3)["ranks"]
        assert [(row["pid"], row["kept"]) for row in rows] == [(pids[0], ""), (999_999, "no agent answers in it")]


def test_what_is_no_rank_is_refused(busy: Busy) -> None:
    with Labs() as labs:
        [found] = attach(labs, busy.process.pid, "--inject-agent", code=4)["processes"]
        assert found["state"] == "refused"
        assert "no scheduler was found" in found["reason"]
        [found] = attach(labs, 4_000_000, "--inject-agent", code=4)["processes"]
        assert (found["state"], found["reason"]) == ("refused", "no such process")
        shell = subprocess.Popen(["sleep", "60"])
        [found] = attach(labs, shell.pid, "--inject-agent", code=4)["processes"]
        shell.kill()
        shell.wait()
        assert found["state"] == "refused"
        assert "no Python process" in found["reason"]
        assert labs.cli("attach", busy.process.pid, "--arm", code=2).returncode == 2
    busy.goes_on()


def test_an_agent_that_was_put_in_answers_takes_faults_and_leaves() -> None:
    with Labs() as labs:
        labs.env["PDCTL_AGENT"] = "off"
        lab = labs.up()
        del labs.env["PDCTL_AGENT"]
        before = labs.files()
        ranks = {process.label: process.pid for process in lab.processes if "tp" in process.label}
        found = attach(labs, *ranks.values(), "--inject-agent", "--arm")["processes"]
        assert {one["rank"]: one["pid"] for one in found} == ranks
        assert {one["state"] for one in found} == {"running"}
        assert not set(itertools.chain(ranks.values())) & {one["thread"] for one in found}, "never the main thread"
        rows = json.loads(labs.cli("ranks", "-o", "json").stdout)["ranks"]
        assert {row["rank"]: (row["state"], row["armed"]) for row in rows} == dict.fromkeys(ranks, ("live", True))
        assert lab.load(requests=8).good
        for wish in ((), ("--arm",)):  # it is fulfilled already
            again = attach(labs, *ranks.values(), "--inject-agent", *wish)["processes"]
            assert {(one["rank"], one["state"]) for one in again} == {(label, "there") for label in ranks}
            assert all("has an agent already (attach, armed) at ipc://" in one["reason"] for one in again)
        lab.inject_late_metadata(delay="1s")
        outcome = lab.load(requests=2)
        assert outcome.good
        assert outcome.latency_max_s >= 1.0, "the fault has fired"
        assert {row["kept"] for row in attach(labs, *ranks.values(), "--remove-agent")["ranks"]} == {""}
        assert not [file for file in labs.files() if file.endswith((".json", ".sock")) and file not in before]
        until("the files as they were", lambda: labs.files() == before)
        assert lab.load(requests=8).good
        assert "no agent answers" in labs.cli("attach", *ranks.values(), "--remove-agent", code=4).stderr
        # And once more, unarmed.
        attach(labs, *ranks.values(), "--inject-agent")
        done = labs.cli("inject", "--delay-metadata", "1s", "--rank", "decode:tp1", "--detach", code=5)
        assert "armed" in done.stderr
        pids = list(ranks.values())
        assert {one["state"] for one in attach(labs, *pids, "--inject-agent")["processes"]} == {"there"}
        for one in attach(labs, *pids, "--inject-agent", "--arm", code=5)["processes"]:
            assert (one["state"], one["unarmed"]) == ("refused", True)
            assert "has an agent already (attach, not armed)" in one["reason"]
            assert one["next_step"] == f"pdctl attach {one['pid']} --remove-agent, and then --inject-agent --arm."
        attach(labs, pids[0], "--remove-agent")
        mixed = attach(labs, *pids, "--inject-agent", "--arm", code=3)["processes"]
        assert [one["state"] for one in mixed] == ["running", *["refused"] * (len(pids) - 1)]


def test_an_agent_that_is_there_and_does_not_answer_fulfils_no_wish() -> None:
    with Labs() as labs:
        lab = labs.up()
        pid = lab.process("decode dp0 pp0 tp0").pid
        [socket] = (labs.folder / "run").glob(f"{pid}-*.sock")
        socket.unlink()
        socket.mkdir()  # else it would listen there again
        [found] = attach(labs, pid, "--inject-agent", code=4)["processes"]
        assert (found["state"], found["rank"]) == ("refused", "decode dp0 pp0 tp0")
        assert f"nobody listens on its socket {socket}" in found["reason"]


def test_a_rank_with_an_agent_that_cant_be_read_from_outside() -> None:
    with Labs() as labs:
        pid = labs.up().process("decode dp0 pp0 tp0").pid
        [row] = attach(labs, pid, code=4)["processes"]
        assert row["reason"].startswith(
            "it has pdctl's agent (decode dp0 pp0 tp0, loaded by lab), and can't be read from"
        )
        assert row["next_step"] == "Other commands ask its agent: pdctl ranks."


def test_a_python_without_what_the_agent_needs(tmp_path: Path) -> None:
    """It is said what to install, and once that is there the same process takes the agent's code."""
    place = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    folder = tmp_path / "busy"
    folder.mkdir()
    target = Busy(folder, python=place / "bin/python")
    try:
        with Labs() as labs:
            [found] = attach(labs, target.process.pid, "--inject-agent", code=4)["processes"]
            assert found["state"] == "refused"
            assert found["reason"] == "its Python has no module msgspec, which the agent needs"
            assert f"{place}/bin/python -m pip install msgspec numpy" in found["next_step"]
            [site] = place.glob("lib/python3*/site-packages")
            for name in ("msgspec", "numpy"):
                there = Path(importlib.util.find_spec(name).origin or "").parent  # type: ignore[union-attr]
                for each in {there, *there.parent.glob(f"{name}.libs")}:
                    if not (site / each.name).exists():
                        (site / each.name).symlink_to(each)
            [found] = attach(labs, target.process.pid, "--inject-agent", code=4)["processes"]
            assert "no scheduler was found on its main thread" in found["reason"]
        target.goes_on()
    finally:
        target.process.kill()
        target.process.wait()


def test_an_agent_that_came_with_its_rank_does_not_leave() -> None:
    with Labs() as labs:
        lab = labs.up()
        pid = lab.process("decode dp0 pp0 tp0").pid
        [row] = attach(labs, pid, "--remove-agent", code=5)["ranks"]
        assert "came with the engine" in row["kept"]
        [found] = attach(labs, pid, "--inject-agent", "--arm")["processes"]
        assert found["state"] == "there"
        assert "has an agent already (lab, armed) at ipc://" in found["reason"]
