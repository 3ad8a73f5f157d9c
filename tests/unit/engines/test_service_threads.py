"""Which threads of a process are an engine's service threads, and what is written down when one ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pdctl.engines.base import Hooks
from pdctl.engines.threads import ServiceThreads
from pdctl.protocol.model import EventKind, ServiceThread
from pdctl.protocol.notes import THREAD_ENDED
from tests.support.patience import until


class Manager:
    """Starts its threads as the engine's managers do: a method, a closure, and a closure that guards another."""

    def __init__(self, *, guarded: bool = False) -> None:
        self.gate = threading.Event()
        self.fails: dict[str, bool] = {}
        for _ in range(2):
            threading.Thread(target=self.transfer_worker, daemon=True).start()
        self._start_bootstrap_thread(guarded=guarded)
        threading.Thread(target=lambda gate=self.gate: gate.wait(), daemon=True).start()  # nobody's

    def wait(self, name: str) -> None:
        self.gate.wait()
        if self.fails.get(name):
            raise AssertionError("a prompt that must not be kept")

    def transfer_worker(self) -> None:
        threading.Event().wait()

    def _start_bootstrap_thread(self, *, guarded: bool) -> None:
        def bootstrap_thread() -> None:
            self.wait("bootstrap")

        def bootstrap_thread_guarded() -> None:
            try:
                bootstrap_thread()
            except Exception:
                self.told = True
                raise

        threading.Thread(target=bootstrap_thread_guarded if guarded else bootstrap_thread, daemon=True).start()


class Notes(list[str]):
    def __call__(self, kind: EventKind, **fields: Any) -> None:
        assert kind == EventKind.NOTE
        self.append(fields["text"])


@pytest.fixture
def watch() -> Any:
    hooks = Hooks()

    def start(manager: Callable[[], Any], notes: Notes) -> ServiceThreads:
        threads = ServiceThreads(manager, notes)
        assert threads.install(hooks)
        return threads

    before = threading.excepthook
    yield start
    hooks.remove_all()
    assert threading.excepthook is before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("guarded", [False, True])
def test_a_thread_that_an_exception_ends(watch: Any, guarded: bool) -> None:
    manager, notes = Manager(guarded=guarded), Notes()
    threads = watch(lambda: manager, notes)
    assert set(threads.state()) == {ServiceThread("transfer_worker", 2), ServiceThread("bootstrap_thread", 1)}
    manager.fails["bootstrap"] = True
    manager.gate.set()
    until("a note", lambda: notes)
    found = threads.state()[0]
    assert (found.function, found.running, found.ended) == ("bootstrap_thread", 0, 1)
    assert found.error.startswith("AssertionError in wait, test_service_threads.py:")
    assert notes == [f"{THREAD_ENDED}: bootstrap_thread: {found.error}"]
    assert "prompt" not in notes[0]


def test_a_thread_that_just_ends_is_seen_at_the_next_look(watch: Any) -> None:
    manager, notes = Manager(), Notes()
    threads = watch(lambda: manager, notes)
    manager.gate.set()

    def looked() -> bool:
        threads.look()
        return bool(notes)

    until("a note", looked)
    assert notes == [f"{THREAD_ENDED}: bootstrap_thread"]
    assert threads.state()[0].error == ""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_of_threads_that_begin_later_those_that_an_exception_ends_are_told(watch: Any) -> None:
    manager, notes = Manager(), Notes()
    threads = watch(lambda: manager, notes)
    gates = {fails: threading.Event() for fails in (True, False)}

    def later(fails: bool) -> None:
        def one_task() -> None:
            gates[fails].wait()
            if fails:
                raise AssertionError(manager)

        threading.Thread(target=one_task, daemon=True).start()

    later(True)
    later(False)
    until("both", lambda: ServiceThread("one_task", 2) in threads.state())
    gates[False].set()
    until("its end", lambda: ServiceThread("one_task", 1) in threads.state())
    assert notes == [], "what ends in order had one task"
    gates[True].set()
    until("a note", lambda: notes)
    found = threads.state()[0]
    assert (found.function, found.running, found.ended) == ("one_task", 0, 1)
    assert found.error.startswith("AssertionError")


def test_a_thread_that_must_run_and_does_not_ended_before_the_agent_came() -> None:
    manager, notes = Manager(), Notes()
    running = {one.function: one for one in ServiceThreads(lambda: manager, notes, "bootstrap_thread").state()}
    assert running == {
        "transfer_worker": ServiceThread("transfer_worker", 2),
        "bootstrap_thread": ServiceThread("bootstrap_thread", 1),
    }
    manager.gate.set()
    managers: list[Any] = [manager]
    threads = ServiceThreads(lambda: managers[-1], notes, "bootstrap_thread")
    until("its end", lambda: ServiceThreads(lambda: manager, notes).state() == (ServiceThread("transfer_worker", 2),))
    assert threads.state() == (ServiceThread("bootstrap_thread", ended=1), ServiceThread("transfer_worker", 2))
    assert notes == [], "when it was is not known"
    other = Manager()
    other.gate.set()
    until("its end", lambda: ServiceThreads(lambda: other, notes).state() == (ServiceThread("transfer_worker", 2),))
    managers.append(other)
    assert threads.state() == (ServiceThread("transfer_worker", 2),), "another manager may be one of another role"


def test_threads_of_a_manager_that_was_replaced_or_stopped_are_none(watch: Any) -> None:
    first, notes = Manager(), Notes()
    managers: list[Any] = [first]
    threads = watch(lambda: managers[-1], notes)
    first._stopped = True  # type: ignore[attr-defined]
    first.gate.set()
    until("its end", lambda: threads.state() == ())
    managers.append(Manager())
    assert {one.function for one in threads.state()} == {"transfer_worker", "bootstrap_thread"}
    assert all(not one.ended for one in threads.state())
    assert notes == []
    managers.append(None)
    assert threads.state() == ()
