"""Threads of an engine that have ended beside its scheduler, and what is none."""

from __future__ import annotations

from typing import Any

from pdctl.probes.service_threads import Ended, judge, recorded
from pdctl.protocol.model import ServiceThread
from pdctl.protocol.notes import ROLE_CHANGED, THREAD_ENDED
from pdctl.report.causes import connect
from pdctl.report.findings import Level, finding
from tests.support.identities import identity

DIED = ServiceThread("bootstrap_thread", 0, 1, 5, "AssertionError, conn.py:1846")


def prefill(**changes: Any) -> Any:
    return identity(role="prefill", service="prefill@here:1", **changes)


def test_a_dead_bootstrap_thread_is_named_with_its_exception_and_what_waits_for_it() -> None:
    [found] = judge([Ended(prefill(), DIED, 12.0)])
    assert (found.code, found.level) == ("PD117", Level.ERROR)
    assert found.summary == (
        "The bootstrap thread of prefill dp0 pp0 tp0 ended 12.0 s ago by AssertionError, conn.py:1846. On prefill dp0 "
        "pp0 tp0 it hears no decode rank any more: later requests wait in prefill.bootstrap."
    )
    assert "Restart this server" in found.next_step
    assert "0.5.18" not in found.next_step
    assert found.units == (prefill().unit,)


def test_where_an_abort_does_it_the_next_step_says_so() -> None:
    [found] = judge([Ended(prefill(lacks=("aborts", "failures")), DIED, 12.0)])
    assert "abort nothing on decode, and upgrade prefill to 0.5.18" in found.next_step


def test_one_of_several_workers() -> None:
    [found] = judge([Ended(prefill(), ServiceThread("transfer_worker", 3, 1, 5, "KeyError in add, queue.py:9"), None)])
    assert found.summary.startswith(
        "1 of 4 transfer workers of prefill dp0 pp0 tp0 has ended by KeyError in add, queue.py:9."
    )


def test_ranks_of_one_server_are_one_finding_and_servers_are_not() -> None:
    ended = [Ended(prefill(tp=n, tp_size=2), DIED, 3.0) for n in (0, 1)]
    listener = ServiceThread("decode_listener_thread", 0, 1, 5)
    both = judge([*ended, Ended(identity(), listener, 1.0)])
    assert [found.ranks for found in both] == [
        ("prefill dp0 pp0 tp0", "prefill dp0 pp0 tp1"),
        ("decode dp0 pp0 tp0",),
    ]
    assert "So has the bootstrap thread of prefill dp0 pp0 tp1." in both[0].summary
    assert "The receiver thread of decode dp0 pp0 tp0 ended 1.0 s ago. " in both[1].summary


def test_the_heartbeat_alone_is_a_warning_and_explains_no_wait() -> None:
    [found] = judge([Ended(identity(), ServiceThread("heartbeat_checker", 0, 1, 5), 1.0)])
    assert (found.level, found.units) == (Level.WARNING, ())


def test_requests_that_wait_follow_from_it() -> None:
    [cause] = judge([Ended(prefill(), DIED, 12.0)])
    wait = finding("PD141", "It waits.", rooms=(7,), units=(prefill().unit, identity().unit))
    assert [(one.code, one.follows) for one in connect([wait, cause])] == [("PD117", ""), ("PD141", "PD117")]


def test_a_recording_tells_which_ended_and_not_how_many_run() -> None:
    died, left = f"{THREAD_ENDED}: transfer_worker: AssertionError, conn.py:9", f"{THREAD_ENDED}: decode_thread"
    notes = [(died, 9.0), ("scheduler ended: TypeError", 8.0), (died, 7.0), (left, None), ("thread ended", 1.0)]
    ended = recorded(prefill(), notes)
    assert [(one.thread, one.age_s) for one in ended] == [
        (ServiceThread("transfer_worker", ended=1, error="AssertionError, conn.py:9"), 9.0),
        (ServiceThread("decode_thread", ended=1), None),
    ]
    [found] = judge(ended)
    assert found.summary.startswith(
        "A transfer worker of prefill dp0 pp0 tp0 ended 9.0 s ago by AssertionError, conn.py:9."
    )
    assert not any("running" in line for line in found.evidence)


def test_threads_of_a_role_that_the_rank_has_no_more_are_not_told() -> None:
    notes = [(f"{THREAD_ENDED}: bootstrap_thread", 9.0), (f"{ROLE_CHANGED}: prefill to decode", 5.0)]
    assert recorded(identity(), notes) == []
