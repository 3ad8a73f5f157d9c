"""An agent that leaves takes its files with it, also where its thread comes late: nothing of them is made again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pdctl.agent import local, server
from pdctl.agent.core import Agent
from pdctl.agent.local import LocalSocket
from pdctl.protocol.model import ATTACHED
from tests.support.patience import until
from tests.system.targets.tiny import TinyAdapter


@pytest.fixture(autouse=True)
def looks_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LOOK_S", 0.0)


@pytest.mark.parametrize("removed", [False, True])
def test_a_socket_is_made_again_unless_it_was_removed_for_good(tmp_path: Path, removed: bool) -> None:
    path = tmp_path / "s"
    socket = LocalSocket(path, bytes, lambda _: None)
    try:
        if removed:
            socket.remove()
        else:
            path.unlink()
        socket.turn(0)
        assert path.exists() is not removed
        path.unlink(missing_ok=True)
        path.mkdir()
        socket.remove()  # nothing that it could remove
    finally:
        socket.close()


class Late(TinyAdapter):
    """Its agent's thread waits at the begin of a turn for ``go``."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, count=0, group=None)
        self.at, self.go = threading.Event(), threading.Event()

    def poll_awaited(self) -> bool:
        self.at.set()
        self.go.wait()
        return True


def test_the_thread_of_an_agent_that_has_stopped_makes_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STOP_S", 0.01)
    adapter, run = Late(), tmp_path / "run"
    env = {"PDCTL_RUN_DIR": str(run), "PDCTL_STACKS_SIGNAL": "off", "PDCTL_READERS": "off"}
    agent = Agent(adapter, env, ATTACHED)
    [thread] = [one for one in threading.enumerate() if one.name == "pdctl-agent"]
    try:
        adapter.at.wait()
        assert {path.suffix for path in run.iterdir()} == {".json", ".sock"}
        agent.stop()
        assert thread.is_alive(), "it could not end yet"
        agent.update_registration(agent.registration)
    finally:
        adapter.go.set()
    until("the end of the thread", lambda: not thread.is_alive())
    assert not list(run.iterdir())
