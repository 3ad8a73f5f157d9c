"""A command ends within its --timeout, whatever it asks: one deadline over all questions, each silent rank waited for once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.probes.check.probe import run
from pdctl.probes.registry import stages
from pdctl.probes.view import View
from pdctl.protocol.model import FlightEntry, Status
from pdctl.protocol.processes import look
from pdctl.protocol.rank import FoundRank, Silence
from pdctl.protocol.requests import Rooms
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from tests.support.identities import identity
from tests.support.patience import until


class Deaf:
    """A rank that takes questions and answers none."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        path = folder / "deaf"
        self._socket.bind(str(path))
        self._socket.listen()
        self._socket.settimeout(0.2)
        who = identity(pid=os.getpid(), proc_start=look(os.getpid()).start)
        self.rank = FoundRank(who, "live", endpoint=f"ipc://{path}")

    def asked(self) -> int:
        """How many questions came since this was last called."""
        count = 0
        with contextlib.suppress(TimeoutError):
            while True:
                client, _ = self._socket.accept()
                with client:
                    count += bool(client.recv(65536))
        return count

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[Deaf]:
    rank = Deaf(tmp_path)
    yield rank
    rank.close()


def test_a_rank_that_did_not_answer_is_not_waited_for_again(deaf: Deaf) -> None:
    with Client(timeout_s=60, rank_timeout_s=0.2) as client:
        client.give_up_on_silent()
        [first] = client.ask([deaf.rank], "status", Status)
        [second] = client.ask([deaf.rank], "rooms", Rooms)
    assert first.silence is second.silence is Silence.TIMED_OUT
    assert second.reason == first.reason
    assert deaf.asked() == 1


def test_a_dear_question_is_waited_for_while_there_is_time_and_says_nothing_of_the_next(deaf: Deaf) -> None:
    with Client(timeout_s=2, rank_timeout_s=0.01) as client:
        client.give_up_on_silent()
        [dear] = client.ask([deaf.rank], "flight_recorder", list[FlightEntry])
        client.ask([deaf.rank], "rooms", Rooms)
    assert dear.silence is Silence.TIMED_OUT
    assert "within 0.01 s" not in dear.reason
    assert deaf.asked() == 2


def test_who_asks_again_and_again_waits_for_it_again(deaf: Deaf) -> None:
    with Client(timeout_s=60, rank_timeout_s=0.2) as client:
        for _ in range(2):
            client.ask([deaf.rank], "status", Status)
    assert deaf.asked() == 2


def test_a_rank_for_which_no_time_was_left_is_not_said_to_be_ill(deaf: Deaf) -> None:
    with Client(timeout_s=0.2, rank_timeout_s=60) as client:
        [cut] = client.ask([deaf.rank], "status", Status)
    assert cut.silence is Silence.TIMED_OUT
    assert cut.reason == "no answer within 0.2 s overall: it had less than 2 s to answer, and may be well"


def test_all_stages_share_one_deadline(deaf: Deaf) -> None:
    """The first stage waits for the rank until no time is left; the others say that there was none for them."""
    with Client(timeout_s=0.3, rank_timeout_s=60) as client:
        outcomes = list(run(View(Found((deaf.rank,)), client), stages(), 0.1))
    assert [outcome.name for outcome in outcomes] == [stage.name for stage in stages()]
    assert "no time left of 0.3 s (--timeout)" in outcomes[0].problems[-1]
    assert all(outcome.said == "" and outcome.problems for outcome in outcomes[1:])
    assert not any(outcome.findings for outcome in outcomes[1:])


@pytest.mark.parametrize("command", ["stuck --pause", "check --pause", "dump leaks --for"])
def test_a_pause_that_does_not_fit_is_refused(command: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, [*command.split(), "20s", "--timeout", "5s", "--run-dir", str(tmp_path)], env={"COLUMNS": "200"}
    )
    assert done.exit_code == 2
    assert "20 s do not fit into --timeout, 5 s for the whole command" in done.output


def test_a_stopped_rank_is_not_waited_for_as_others_are(deaf: Deaf) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            child.send_signal(signal.SIGSTOP)
            until("a stopped process", lambda: look(child.pid).state == "T")
            who = identity(pid=child.pid, proc_start=look(child.pid).start)
            with Client(timeout_s=60, rank_timeout_s=60) as client:
                [answer] = client.ask([replace(deaf.rank, identity=who)], "status", Status)
            with Client(timeout_s=60, rank_timeout_s=0.7, acts=True) as client:
                [acted] = client.ask([replace(deaf.rank, identity=who)], "status", Status)
        finally:
            child.kill()
    assert answer.silence is Silence.TIMED_OUT
    assert answer.reason == "no answer within 0.5 s: process is stopped (SIGSTOP or a job control signal)"
    assert acted.reason.startswith("no answer within 0.7 s"), "who acts on it waits: it may go on"


def test_a_recording_that_is_said_to_be_huge_is_not_fetched(deaf: Deaf) -> None:
    with Client(timeout_s=60, rank_timeout_s=60) as client:
        [answer] = client.recordings.read([replace(deaf.rank, recording_size=1 << 60)], through_socket=True)
    assert answer.silence is Silence.GARBAGE
    assert "at most 1 GiB" in answer.reason
    assert deaf.asked() == 0
