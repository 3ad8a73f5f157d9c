"""Which processes of a lab a name means, and what a signal does to them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from pdctl.lab import processes, rank, state
from pdctl.lab.config import LabConfig, Shape
from pdctl.lab.launch import expected
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.processes import look
from tests.support.patience import patience

CONFIG = LabConfig("x", prefill=Shape(pp=2), decode=Shape(tp=2), prefills=2)
ALL = [state.Process(label, 1, 1) for label in ("supervisor", *expected(CONFIG))]


def labels(text: str, config: LabConfig = CONFIG) -> list[str]:
    return [process.label for process in processes.select(config, ALL, text)]


@pytest.mark.parametrize("text", ["decode dp0 pp0 tp1", "decode:tp1", "decode-dp0-pp0-tp1", "Decode:dp0,tp1"])
def test_a_rank_has_many_ways_to_be_written(text: str) -> None:
    assert labels(text) == ["decode dp0 pp0 tp1"]


def test_a_server_has_its_own_bootstrap_server_with_it() -> None:
    assert labels("prefill1") == ["bootstrap1", *rank.labels_of(CONFIG, "prefill1")]
    assert labels("prefill1:tp0") == rank.labels_of(CONFIG, "prefill1")
    assert labels("decode") == rank.labels_of(CONFIG, "decode")
    assert labels("bootstrap") == ["bootstrap"]
    assert labels("supervisor") == ["supervisor"]


@pytest.mark.parametrize("text", ["", "gateway", "decode:tp2", "prefill2", "tp1", "decode tp1 tp0"])
def test_what_names_no_process(text: str) -> None:
    with pytest.raises(PdctlError, match="there is no process") as raised:
        labels(text)
    assert raised.value.code == Exit.USAGE


def test_signals_reach_processes_that_are_there() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    start = look(child.pid).start
    there, stranger = state.Process("a", child.pid, start), state.Process("b", child.pid, start + 1)
    assert processes.send_signal([there, stranger], "STOP") == [there]
    assert not processes.wait_for_end([there], 0.0)
    assert processes.send_signal([there, stranger], "KILL", wait_s=60.0) == [there]
    assert child.wait() == -9
    assert processes.send_signal([there], "TERM") == []


def test_an_abort_is_told_to_those_that_listen(tmp_path: Path) -> None:
    config = LabConfig("x", prefill=Shape(dp=2), run_dir=str(tmp_path))
    config.state_dir.mkdir()
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(rank.request_endpoint(config, "prefill", 1))
        assert processes.abort(config, ["a"], ["prefill"], patience(1.0)) == {"prefill dp0": False, "prefill dp1": True}
        assert socket.poll(patience(1000)), "it has come"


@pytest.mark.parametrize(("supervised", "says"), [(True, state.ENDED), (False, state.READY)])
def test_how_a_process_ended_is_waited_for_while_somebody_can_note_it(
    supervised: bool, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    ended = state.Process("decode dp0 pp0 tp0", child.pid, look(child.pid).start, state.READY)
    child.wait()
    config = LabConfig("x", run_dir=str(tmp_path))
    config.state_dir.mkdir()
    state.write(config.state_dir, ended)
    if supervised:
        state.write(config.state_dir, state.me("supervisor", state.READY))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 100:  # later than a quiet machine needs
            state.write(config.state_dir, state.Process(ended.label, ended.pid, ended.start, state.ENDED))

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=sleep))
    assert [one.state for one in processes.how_they_are(config, [ended])] == [says]
    assert (len(slept) >= 100) == supervised
