"""Processes of a server beside its schedulers: what is told of those that have ended or are stopped, and of whom it is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pdctl.introspect import services
from pdctl.introspect.services import DETOKENIZER, MAIN, Service, held, held_in
from pdctl.probes.service_processes import Serving, judge
from pdctl.probes.view import View
from pdctl.protocol.processes import Child, Process, look
from pdctl.protocol.rank import Access, FoundRank
from pdctl.report.causes import connect
from pdctl.report.findings import finding
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from tests.support.identities import identity
from tests.support.patience import until

RUNS, ZOMBIE, STOPS = Process("S", 1), Process("Z", 2, 9), Process("T", 3)
MAIN_PID, RANK, OTHER_RANK = 10, 20, 21


def tree(detokenizer: Process = RUNS, main: Process = RUNS, *, controller: Process | None = None) -> dict[int, Child]:
    """A server of two schedulers, and a stranger with a detokenizer of its own."""
    above = MAIN_PID if controller is None else 11
    made = {
        1: Child("init", 0, RUNS),
        MAIN_PID: Child("python", 1, main),
        RANK: Child("sglang::schedul", above, RUNS),
        OTHER_RANK: Child("sglang::schedul", above, RUNS),
        30: Child("sglang::detoken", MAIN_PID, detokenizer),
        31: Child("python", MAIN_PID, ZOMBIE),  # multiprocessing's own, or a warm-up's
        40: Child("sglang::detoken", 1, ZOMBIE),
    }
    return made if controller is None else made | {11: Child("sglang::data_pa", MAIN_PID, controller)}


def names(table: dict[int, Child]) -> list[str]:
    return [one.name for one in held_in(table, [RANK]).get(RANK, [])]


def test_what_has_ended_or_is_stopped_beside_a_scheduler() -> None:
    assert names(tree()) == []
    assert names(tree(ZOMBIE)) == names(tree(STOPS)) == [DETOKENIZER]
    assert names(tree(main=STOPS)) == [MAIN]
    assert names(tree(ZOMBIE, controller=RUNS)) == [DETOKENIZER]
    assert names(tree(controller=STOPS)) == ["data-parallel controller"]
    assert held_in(tree(ZOMBIE), [99]) == {}, "a process that is not there"


def serving(process: Process, name: str = DETOKENIZER, tp: int = 0) -> Serving:
    return Serving(identity(engine="sglang", tp=tp, tp_size=2), Service(name, 30, process))


def test_one_that_ended_is_an_error_and_the_server_has_to_be_restarted() -> None:
    [found] = judge([serving(ZOMBIE), serving(ZOMBIE, tp=1)])
    assert (found.code, found.level.value) == ("PD118", "error")
    assert found.summary == (
        "The detokenizer (pid 30) of decode has ended, killed by SIGKILL: no answer goes out to a client or to the router. Its"
        " schedulers go on and do not notice."
    )
    assert found.next_step.startswith("Restart this server")
    assert len(found.ranks) == 2
    wait = finding("PD143", "room 7 waits", rooms=(7,), units=found.units)
    assert [(one.code, one.follows) for one in connect([wait, found])] == [("PD118", ""), ("PD143", "PD118")]


def test_one_that_is_stopped_is_let_go_on() -> None:
    [found] = judge([serving(STOPS, MAIN)])
    assert "The main process (pid 30) of decode is stopped (SIGSTOP): no request comes in" in found.summary
    assert found.next_step.startswith("kill -CONT 30 on ")
    assert judge([]) == ()


# A server as /proc shows one: a main process that does not ask how its children ended.
SERVER = (
    "import os, sys, time\n"
    "def child(name, lives):\n"
    "    pid = os.fork()\n"
    "    if not pid:\n"
    "        open('/proc/self/comm', 'w').write(name)\n"
    "        while lives: time.sleep(3600)\n"
    "        os._exit(0)\n"
    "    return pid\n"
    "print(child('sglang::schedul', True), child('sglang::detoken', sys.argv[1] == 'well'), flush=True)\n"
    "time.sleep(3600)\n"
)


@pytest.fixture(params=["well", "ended"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """How the server's detokenizer is, and the pid of its scheduler."""
    main = subprocess.Popen([sys.executable, "-c", SERVER, request.param], stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    children = [int(pid) for pid in main.stdout.readline().split()]
    try:
        state = "S" if request.param == "well" else "Z"
        until("the detokenizer is as it is to be", lambda: look(children[1]).state == state)
        yield request.param, children[0]
    finally:
        for pid in (*children, main.pid):
            os.kill(pid, signal.SIGKILL)
        main.stdout.close()
        main.wait()


class Quiet(Client):
    """A client that waits for nothing between two looks."""

    def pause(self, seconds: float) -> None:
        """Wait for nothing."""


def test_of_real_processes(server: tuple[str, int]) -> None:
    how, pid = server
    assert [[one.name for one in found] for found in held([pid]).values()] == ([] if how == "well" else [[DETOKENIZER]])
    rank = FoundRank(identity(engine="sglang", pid=pid, proc_start=look(pid).start), "live")
    with Quiet(timeout_s=3600) as client:
        seen = View(Found((rank,)), client).held_services()
        assert [one.service.name for one in seen] == ([] if how == "well" else [DETOKENIZER])
        away = FoundRank(rank.identity, "live", access=Access())
        assert View(Found((away,)), client).held_services() == [], "its pid is another process's here"


def test_what_is_seen_once_is_a_server_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([{os.getpid(): [Service(DETOKENIZER, 30, ZOMBIE)]}, {}])
    monkeypatch.setattr(services, "held", lambda _: next(looks))
    rank = FoundRank(identity(engine="sglang", pid=os.getpid(), proc_start=look(os.getpid()).start), "live")
    with Quiet(timeout_s=3600) as client:
        assert View(Found((rank,)), client).held_services() == []
    with Quiet(timeout_s=0.0) as client:
        monkeypatch.setattr(services, "held", lambda _: {os.getpid(): [Service(DETOKENIZER, 30, ZOMBIE)]})
        assert View(Found((rank,)), client).held_services() == [], "no time for a second look"
