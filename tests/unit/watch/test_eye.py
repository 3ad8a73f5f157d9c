"""An eye that waits for its next look hears that it is over."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pdctl.probes.queues.model import RankView
from pdctl.probes.run import Asked
from pdctl.protocol.model import STAGE_BEFORE, Call, Status
from pdctl.targets import bridges
from pdctl.targets.follow import interruptible
from pdctl.targets.reach import Reach
from pdctl.watch import eye
from pdctl.watch.checking import Checked
from tests.support.identities import identity


class Nothing:
    """A checker that checks nothing."""

    last, now, parted = Checked(), None, False

    def __init__(self, *_: object) -> None:
        pass

    def tell(self) -> None:
        pass

    def close(self) -> None:
        pass


def status_of(mono_ns: int, ticks: int, inside: str, pp_size: int) -> Status:
    """Return the status of a rank whose last turn began 9 s after its clock did."""
    return Status(
        identity=identity(pp_size=pp_size), mono_ns=mono_ns, ticks=ticks, tick_mono_ns=9 * 10**9, call=Call(inside=inside),
        stack=(), rounds={}, seams=(), recording="", recording_off="", hook_errors={}, hooks_removed=(), faults=(),
        agent_cpu_s=0.0,
    )  # fmt: skip


def test_a_signal_ends_the_wait_for_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eye, "Checker", Nothing)
    asked = Asked(Reach(run_dir=tmp_path, record_dir=tmp_path))
    with interruptible(signal.SIGTERM) as over, eye.Eye(asked, every_s=20, over=over) as one:
        first = one.next()
        assert not one.checked
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert one.next() is first
    assert over.is_set()


def test_a_check_that_failed_has_come_to_an_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nothing, "last", Checked(problems=("no ranks found",)))
    monkeypatch.setattr(eye, "Checker", Nothing)
    with eye.Eye(Asked(Reach(run_dir=tmp_path, record_dir=tmp_path))) as one:
        assert "no ranks found" in one.next().problems
        assert one.checked


def test_looks_tell_for_how_long_a_stage_has_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eye, "Checker", Nothing)
    with eye.Eye(Asked(Reach(run_dir=tmp_path, record_dir=tmp_path))) as one:

        def looked(at_s: float, *, ticks: int = 5, inside: str = STAGE_BEFORE, pp_size: int = 2) -> float | None:
            status = status_of(int(at_s * 1e9), ticks, inside, pp_size)
            turn = one._waits(RankView(status.identity, "live", status=status))
            return None if turn is None else turn.stood_s

        assert [looked(at) for at in (10.0, 10.5, 11.0)] == [None, 0.5, 1.0]
        assert [looked(11.5, ticks=6), looked(12.5, ticks=6)] == [None, 1.0]
        assert [looked(13.0, ticks=6, inside="model forward"), looked(14.5, ticks=6, inside="model forward")] == [
            None
        ] * 2
        assert [looked(at, pp_size=1) for at in (20.0, 22.0)] == [None] * 2


def test_only_a_stage_that_stands_is_asked_and_a_deaf_one_not_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eye, "Checker", Nothing)
    monkeypatch.setattr(eye, "not_asked", lambda rank: None)
    asked: list[int] = []

    def ask(ranks: list[Any], *_: object) -> list[Any]:
        asked.extend(rank.identity.pp for rank in ranks)
        return [SimpleNamespace(rank=rank, body=None) for rank in ranks]

    with eye.Eye(Asked(Reach(run_dir=tmp_path, record_dir=tmp_path))) as one:
        monkeypatch.setattr(one._client, "ask", ask)
        views: list[Any] = []
        for pp, age_s in ((0, 0.2), (1, 0.4)):
            who = identity(pp=pp, pp_size=2, pid=100 + pp)
            recording = SimpleNamespace(tick_mono_ns=10**9)
            views.append(RankView(who, "live", recording=recording, now_ns=int((1 + age_s) * 1e9)))  # type: ignore[arg-type]
        ranks: list[Any] = [SimpleNamespace(identity=view.identity) for view in views]
        for now in (50.0, 50.5, 55.5):
            assert one._ask_standing(now, ranks, views) == {}
    assert asked == [1, 1]


def test_what_a_check_reads_of_a_bridge_is_not_lost_to_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eye, "Checker", Nothing)
    monkeypatch.setattr(bridges, "_relays", [])
    with eye.Eye(Asked(Reach(hosts=("gpu1",)))):
        assert bridges._relays
