"""An eye that waits for its next look hears that it is over."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from pdctl.probes.run import Asked
from pdctl.targets import bridges
from pdctl.targets.follow import interruptible
from pdctl.targets.reach import Reach
from pdctl.watch import eye
from pdctl.watch.checking import Checked


class Nothing:
    """A checker that checks nothing."""

    last, now, parted = Checked(), None, False

    def __init__(self, *_: object) -> None:
        pass

    def tell(self) -> None:
        pass

    def close(self) -> None:
        pass


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


def test_what_a_check_reads_of_a_bridge_is_not_lost_to_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eye, "Checker", Nothing)
    monkeypatch.setattr(bridges, "_relays", [])
    with eye.Eye(Asked(Reach(hosts=("gpu1",)))):
        assert bridges._relays
