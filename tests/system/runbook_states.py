"""Brings a lab into the state that a runbook begins with. Each yields what stands for words of the runbook's commands."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from pdctl.probes.routing import GRACE_S
from pdctl.probes.stuck.sides import SAME_S
from tests.support.labs import Lab, Labs, end_process
from tests.support.patience import until

Words = dict[str, str]


@contextmanager
def _sending(lab: Lab, **how: object) -> Iterator[threading.Thread]:
    """Send a load on a thread of its own while the block runs; it is given up when its time is over."""
    thread = threading.Thread(target=lambda: lab.load(**how), daemon=True)
    thread.start()
    yield thread


def _diverged(labs: Labs, lab: Lab) -> str:
    """Hang decode by late metadata, without the gate; returns the room."""
    lab.inject_late_metadata(delay="2s")
    with _sending(lab, requests=1, seconds=600):  # several may die in Gloo instead of hanging

        def rooms() -> list[int]:
            done = labs.cli("diff-queues", "-o", "json", "--rank-timeout", "30s", "--timeout", "30s", code=None)
            found = json.loads(done.stdout)["findings"] if done.stdout else []
            return next((finding["rooms"] for finding in found if finding["code"] == "PD101"), [])

        return str(until("rooms in a finding", rooms)[0])


def _recorded_s(lab: Lab) -> float:
    """Return for how long each rank of decode has been recorded, in seconds."""
    begun = (lab.recording(one.label).start_mono_ns for one in lab.left() if one.label.startswith("decode"))
    return (time.monotonic_ns() - max(begun)) / 1e9


@contextmanager
def hang() -> Iterator[tuple[Labs, Words]]:
    """Decode tp0 committed a request that tp1 kept: both hang in different collectives."""
    with Labs() as labs:
        lab = labs.up("--without", "gate")
        yield labs, {"ROOM": _diverged(labs, lab)}


@contextmanager
def died() -> Iterator[tuple[Labs, Words]]:
    """The same, and then decode was killed, as Gloo's abort or a supervisor does."""
    with Labs() as labs:
        lab = labs.up("--without", "gate")
        room = _diverged(labs, lab)
        decode = [process for process in lab.left() if process.label.startswith("decode")]
        for process in decode:
            end_process(process)
        until("the end of the decode ranks", lambda: not any(process.alive for process in decode))
        yield labs, {"ROOM": room}


@contextmanager
def one_sided() -> Iterator[tuple[Labs, Words]]:
    """A request that the router sent to prefill alone."""
    with Labs() as labs:
        lab = labs.up()
        until("a recording of decode that goes back before the request", lambda: _recorded_s(lab) > SAME_S)
        with _sending(lab, requests=1, room=4001, to="prefill", seconds=600):
            until("the room at prefill", lambda: lab.queues()["prefill dp0 pp0 tp0"]["prefill.bootstrap"] == [4001])
            yield labs, {"ROOM": "4001"}


@contextmanager
def orphan() -> Iterator[tuple[Labs, Words]]:
    """A request that was given up in the bootstrap queue of a pipeline whose second stage forgets to drain it."""
    with Labs() as labs:
        lab = labs.up("--prefill", "pp=2", "--without", "orphan-drain")
        lab.load(requests=1, room=4003, to="prefill", abort_after_s=0.5, seconds=10)
        first, second = "prefill dp0 pp0 tp0", "prefill dp0 pp1 tp0"
        until(
            "the requests in their queues",
            lambda: (
                (queues := lab.queues())
                and queues[second]["prefill.bootstrap"] == [4003]
                and not queues[first]["prefill.bootstrap"]
            ),
        )
        yield labs, {"ROOM": "4003"}


@contextmanager
def misrouted() -> Iterator[tuple[Labs, Words]]:
    """A room that was sent to another prefill dp rank than its number implies; nothing refuses it."""
    with Labs() as labs:
        lab = labs.up("--prefill", "dp=2", "--without", "dp-registration")
        with _sending(lab, requests=1, room=7, prefill_dp=0, seconds=600):
            until("the room at prefill", lambda: lab.queues()["prefill dp0 pp0 tp0"]["prefill.bootstrap"] == [7])
            time.sleep(2 * GRACE_S)  # a difference that is younger may be skew
            yield labs, {"ROOM": "7"}


@contextmanager
def healthy() -> Iterator[tuple[Labs, Words]]:
    """An armed cluster that serves."""
    with Labs() as labs:
        lab = labs.up()
        assert lab.load(requests=8).good
        yield labs, {}


STATES: dict[str, Callable[[], AbstractContextManager[tuple[Labs, Words]]]] = {
    "requests-hang-on-decode": hang,
    "decode-died-with-a-gloo-error": died,
    "bootstrap-times-out": one_sided,
    "queue-gauge-never-returns-to-zero": orphan,
    "routing-mismatch": misrouted,
    "before-and-after-an-upgrade": healthy,
}
