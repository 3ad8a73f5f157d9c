"""What ends while a fault is in place: the agent's thread, its socket, the command, the rank. The fault ends each time."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from tests.support.cluster import INJECT, ROOT, Cluster, every_row_once, held
from tests.support.labs import Labs
from tests.support.patience import patience, until
from tests.support.tiny_ranks import stop
from tests.system.targets.writer import TIME_IS_UP

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

PIDFD_GETFD = 438


def tell(rank: subprocess.Popen[str], *lines: str) -> None:
    """Have a rank end the threads of these names, one after the other, or the time of its faults."""
    assert rank.stdin is not None
    for line in lines:
        rank.stdin.write(f"{line}\n")
    rank.stdin.flush()


def sock(cluster: Cluster, rank: subprocess.Popen[str]) -> Path:
    [path] = (cluster.folder / "run").glob(f"{rank.pid}-*.sock")
    return path


def connections(process: subprocess.Popen[str], path: Path) -> list[socket.socket]:
    """Return the process's own connections to the socket at ``path``, shared with it."""
    handle, found = os.pidfd_open(process.pid), []
    try:
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                if not str(entry.readlink()).startswith("socket:"):
                    continue
            except FileNotFoundError:
                continue
            copy = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, handle, int(entry.name), 0)
            if copy < 0:
                continue
            one = socket.socket(fileno=copy)
            if one.family == socket.AF_UNIX and _peer(one) == str(path):
                found.append(one)
            else:
                one.close()
    finally:
        os.close(handle)
    return found


def _peer(one: socket.socket) -> str:
    try:
        return str(one.getpeername())
    except OSError:
        return ""


def unread(process: subprocess.Popen[str], path: Path) -> int:
    """Return how many bytes of the process's questions to ``path`` have not been read."""
    total = 0
    for one in connections(process, path):
        with one:
            total += int.from_bytes(fcntl.ioctl(one, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return total


def cut(process: subprocess.Popen[str], path: Path) -> int:
    """Shut the process's connections to ``path`` down, and return how many there were."""
    found = connections(process, path)
    for one in found:
        one.shutdown(socket.SHUT_RDWR)
        one.close()
    return len(found)


def ended_unseen(cluster: Cluster, command: subprocess.Popen[str], silent: str) -> None:
    """The command says that it can't be sure and why; what is known is from the recording; rows are written."""
    out, err = command.communicate(timeout=patience(60))
    assert command.returncode == 6, err
    assert "NOT HEALED for certain (lease lost" in out
    for text in (out, err):
        assert silent in text
    assert "Counts are those of the last answer" in err
    every_row_once(cluster)
    for args, code in ((("faults",), 3), (("heal", "--all"), 6)):
        done = cluster.run(*args)
        assert done.returncode == code, done.stderr
        for part in (silent, "it may hold" if code == 3 else "may hold", "(lease lost), nothing held any more"):
            assert part in done.stderr


@pytest.mark.parametrize("names", [("pdctl-agent",), ("pdctl-faults", "pdctl-agent")], ids="+".join)
def test_the_agents_thread_ends_under_a_fault(cluster, names):
    prefill = cluster.pair()
    command = cluster.start(*INJECT, "10m", "--for", "15m")
    until("a hit", lambda: held(cluster))
    tell(prefill, *names)
    ended_unseen(cluster, command, "nobody listens on its socket")
    assert "its agent's thread ended" in cluster.run("faults").stderr
    refused = cluster.run(*INJECT, "1s")
    assert refused.returncode == 4
    assert "must be told and does not answer" in refused.stderr
    prefill.kill()
    prefill.wait()
    assert cluster.run("heal", "--all").returncode == 0, "what a dead process held is gone"


def test_the_thread_that_ends_faults_ends(cluster):
    prefill = cluster.pair()
    command = cluster.start(*INJECT, "10m", "--for", "15m")
    until("a hit", lambda: held(cluster))
    tell(prefill, "pdctl-faults")
    command.kill()
    until("the end of the lease, by a thread that a site has started", lambda: not cluster.faults())
    assert cluster.faults("--past")[0]["ended"] == "lease lost"
    every_row_once(cluster)


def test_a_detached_fault_ends_in_time_without_the_agents_thread(cluster):
    prefill = cluster.pair()
    assert cluster.run(*INJECT, "10m", "--for", "15m", "--detach").returncode == 0
    until("a hit", lambda: held(cluster))
    tell(prefill, "pdctl-agent", TIME_IS_UP)
    until("the end of its time", lambda: "(time is up), nothing held any more" in cluster.run("faults").stderr)
    every_row_once(cluster)


def test_requests_of_a_lab_finish_when_the_agents_thread_has_ended():
    with Labs() as labs:
        labs.env["PYTHONPATH"] = f"{ROOT / 'tests/system/targets/hooks'}:{labs.env.get('PYTHONPATH', '')}"
        lab = labs.up("--prefill", "tp=1", "--decode", "tp=2")
        command = subprocess.Popen(
            [sys.executable, "-m", "pdctl.cli", *INJECT, "10m", "--for", "15m"], env=labs.env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            until("the fault", lambda: json.loads(labs.cli("faults", "-o", "json").stdout)["faults"])
            outcomes = []
            load = threading.Thread(target=lambda: outcomes.append(lab.load(requests=2)))
            load.start()
            until(
                "a hit",
                lambda: any(row["held"] for row in json.loads(labs.cli("faults", "-o", "json").stdout)["faults"]),
            )
            os.kill(lab.process("prefill dp0 pp0 tp0").pid, signal.SIGUSR1)
            load.join(patience(60))
            assert outcomes, "requests wait for ever"
            assert outcomes[0].good
            out, err = command.communicate(timeout=patience(60))
            assert command.returncode == 6, err
            assert "lease lost" in out
            assert lab.load(requests=3).good
        finally:
            command.kill()
            command.communicate()


def test_the_socket_file_is_deleted(cluster):
    prefill = cluster.pair()
    command = cluster.start(*INJECT, "10m", "--for", "15m")
    until("a hit", lambda: held(cluster))
    path = sock(cluster, prefill)
    path.unlink()
    until("the agent listens at the same name again", path.exists)
    assert len(cluster.faults()) == 1, "the command goes on over the connection it has"
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=patience(60))
    assert "healed" in out, err
    assert cluster.faults() == []


def test_the_connection_is_cut_and_can_not_be_made_again(cluster):
    prefill = cluster.pair()
    command = cluster.start(*INJECT, "10m", "--for", "15m")
    until("a hit", lambda: held(cluster))
    path = sock(cluster, prefill)
    path.rename(path.with_suffix(".away"))
    path.mkdir()  # else it would listen there again
    assert cut(command, path), "the command has a connection"
    ended_unseen(cluster, command, "nobody listens")
    path.rmdir()
    path.with_suffix(".away").rename(path)
    assert cluster.faults() == [], "the rank itself was there all the time"
    assert cluster.run("heal", "--all").returncode == 0


def test_a_connection_that_is_cut_is_made_again(cluster):
    prefill = cluster.pair()
    command = cluster.start(*INJECT, "10m", "--for", "15m")
    until("a hit", lambda: held(cluster))
    path = sock(cluster, prefill)
    assert cut(command, path)
    until("a new connection", lambda: command.poll() is not None or connections(command, path))
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=patience(60))
    assert "healed" in out, err
    assert "NOT HEALED" not in out
    assert cluster.faults() == []
    every_row_once(cluster)


# ---- the command ends, or stands still, in each phase ----------------------------------------------------------------


STOPS_AT_ITS_AUDIT_LOG = """
import os, signal
from pdctl.inject.audit import Audit
write = Audit.write
def first(self, what, **fields):
    Audit.write = write
    os.kill(os.getpid(), signal.SIGSTOP)
    return write(self, what, **fields)
Audit.write = first
from pdctl.cli import main
main()
"""


def state_of(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


class At:
    """Brings a command to a phase of its life, where it stays until :meth:`go_on` lets the rank it waits for go on."""

    def __init__(self, cluster: Cluster, phase: str) -> None:
        self.cluster, self.phase = cluster, phase
        self.prefill = cluster.pair()
        self.command = getattr(self, f"_{phase}")()

    def go_on(self) -> None:
        if self.prefill.poll() is None:
            self.prefill.send_signal(signal.SIGCONT)

    def _start(self, *args: str, program: str = "") -> subprocess.Popen[str]:
        limits = ("--rank-timeout", "20s", "--timeout", "30s")
        return self.cluster.start(*INJECT, "10m", "--for", "15m", *limits, *args, program=program)

    def _resolve(self) -> subprocess.Popen[str]:
        stop(self.prefill)
        command = self._start()
        until("a question to the rank", lambda: connections(command, sock(self.cluster, self.prefill)))
        return command

    def _arm(self) -> subprocess.Popen[str]:
        """The command, which has resolved everything, stops where it writes its audit log."""
        command = self._start(program=STOPS_AT_ITS_AUDIT_LOG)
        until("the command at its audit log", lambda: state_of(command) == "T")
        stop(self.prefill)
        command.send_signal(signal.SIGCONT)
        log = self.cluster.folder / "state/pdctl/audit.jsonl"
        until("the line in its audit log", lambda: log.exists() and '"what":"inject"' in log.read_text())
        until("the question to the stopped rank", lambda: unread(command, sock(self.cluster, self.prefill)))
        return command

    def _wait(self) -> subprocess.Popen[str]:
        command = self._start("--room", "7")
        until("the fault", self.cluster.faults)
        return command

    def _fire(self) -> subprocess.Popen[str]:
        command = self._start()
        assert command.stderr is not None
        while "fired 1" not in (line := command.stderr.readline()):  # the command itself has seen the hit
            assert line, "the command has ended"
        return command

    def _heal(self) -> subprocess.Popen[str]:
        command = self._fire()
        stop(self.prefill)
        command.send_signal(signal.SIGINT)
        time.sleep(1)  # to ask for healing
        return command


PHASES = ("resolve", "arm", "wait", "fire", "heal")


def nothing_is_left(cluster: Cluster) -> None:
    assert cluster.faults() == []
    every_row_once(cluster)
    again = cluster.run(*INJECT, "100ms", "--hits", "1", "--for", "1m")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("phase", PHASES)
def test_the_command_is_killed_in_each_phase(cluster, phase):
    at = At(cluster, phase)
    at.command.kill()
    at.command.wait()
    at.go_on()
    until("the end of the fault", lambda: not cluster.faults())
    past = cluster.faults("--past")
    assert [row["ended"] for row in past] in {
        "resolve": [[]], "arm": [["lease lost"]], "heal": [["SIGINT"], ["lease lost"]],
    }.get(phase, [["lease lost"]])  # fmt: skip
    nothing_is_left(cluster)


CODES = {
    "resolve": (4, 130),  # what it asked was answered late, or in time
    # The fault acted before its lease was lost, or had no chance to, or its place was answered too late to count: each is
    # true of one order of a stop and a placing, and nothing is left after either.
    "arm": (0, 3, 4),
    "wait": (3,),
    "fire": (0,),
    "heal": (130,),
}


@pytest.mark.parametrize("phase", PHASES)
def test_the_command_stands_still_in_each_phase(cluster, phase):
    at = At(cluster, phase)
    stop(at.command)
    at.go_on()
    until("the end of the fault", lambda: not cluster.faults())
    at.command.send_signal(signal.SIGCONT)
    if phase == "resolve":
        until("the rest of its life", lambda: at.command.poll() is not None or cluster.faults())
        at.command.send_signal(signal.SIGINT)
    out, err = at.command.communicate(timeout=patience(60))
    assert at.command.returncode in CODES[phase], (at.command.returncode, out, err)
    if phase in ("wait", "fire"):
        assert "healed (lease lost)" in out
    nothing_is_left(cluster)


@pytest.mark.parametrize(("phase", "code"), [("resolve", 4), ("arm", 4), ("wait", 3), ("fire", 0), ("heal", 130)])
def test_the_rank_is_killed_in_each_phase(cluster, phase, code):
    at = At(cluster, phase)
    at.prefill.kill()
    at.prefill.wait()
    out, err = at.command.communicate(timeout=patience(90))
    assert at.command.returncode == code, (out, err)
    assert "process has ended" in out + err, (out, err)
    assert cluster.faults() == []
    assert cluster.run("heal", "--all").returncode == 0
