"""How tests wait: a busy machine stretches a limit, and a hang still becomes a failure."""

from __future__ import annotations

import pytest

from tests.support import patience


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet machine of two cores, whatever this one is."""
    monkeypatch.setattr(patience, "_factor", 0.0)
    monkeypatch.setattr(patience, "QUIET_S", 600.0)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)


def test_a_quiet_machine_stretches_nothing() -> None:
    assert patience.patience(60) == 60


@pytest.mark.parametrize(
    ("load", "beside", "seconds"), [(8.0, "1", 40), (0.0, "6", 30), (8.0, "6", 40), (9e9, "1", 200)]
)
def test_a_busy_machine_stretches_every_wait(
    monkeypatch: pytest.MonkeyPatch, load: float, beside: str, seconds: float
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", beside)
    assert patience.patience(10) == seconds


def test_a_wait_goes_on_when_the_machine_became_busy_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert patience.factor() == 1
    monkeypatch.setattr("os.getloadavg", lambda: (40.0, 0.0, 0.0))
    looks = iter([0] * 20 + [7])
    assert patience.until("the last of them", lambda: next(looks), limit_s=0.2, every_s=0.05) == 7


def test_what_never_comes_is_a_failure_that_names_it_and_what_was_seen_last() -> None:
    with pytest.raises(AssertionError, match=r"a blue moon; the last look gave \[\]"):
        patience.until("a blue moon", list, limit_s=0.1, every_s=0.01)
