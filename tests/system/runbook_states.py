"""Brings a lab into the state that a runbook begins with. Each yields what stands for words of the runbook's commands."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from pdctl.probes.routing import GRACE_S
from pdctl.recording.witness import SAME_S
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

        room = str(until("rooms in a finding", rooms)[0])
        until("the landing that only the other rank has acted on", lambda: lab.events("decode dp0 pp0 tp1", 13))
        return room


@contextmanager
def hang() -> Iterator[tuple[Labs, Words]]:
    """Decode tp0 committed a request that tp1 kept: both hang in different collectives."""
    with Labs() as labs:
        lab = labs.up("--without", "gate")
        room = _diverged(labs, lab)
        until("loops that have stood for long enough", lambda: labs.cli("ranks", code=None).returncode == 1)
        yield labs, {"ROOM": room}


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
        until("a recording of decode that goes back before the request", lambda: lab.recorded_s("decode") > SAME_S)
        with _sending(lab, requests=1, room=4001, to="prefill", seconds=600):
            until("the room at prefill", lambda: lab.queues()["prefill dp0 pp0 tp0"]["prefill.bootstrap"] == [4001])
            time.sleep(SAME_S)  # who lacks it is a witness once it is older than that
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
                and "Failed" in labs.cli("dump", "queues", code=None).stdout
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


@contextmanager
def decode_only() -> Iterator[tuple[Labs, Words]]:
    """A request that the router sent to decode alone."""
    with Labs() as labs:
        lab = labs.up()
        until("a recording of prefill that goes back before the request", lambda: lab.recorded_s("prefill") > SAME_S)
        with _sending(lab, requests=1, room=4101, to="decode", seconds=600):
            _until_waiting(lab, "decode.transfer", 4101)
            time.sleep(2.5)  # --stuck-after of the runbook
            yield labs, {"ROOM": "4101"}


@contextmanager
def full() -> Iterator[tuple[Labs, Words]]:
    """Decode has KV space for three requests, and they take long."""
    with Labs() as labs:
        lab = labs.up("--kv-tokens", "400", "--step", "decode=500ms")
        with _sending(lab, requests=6, concurrency=6, prompt_tokens=100, new_tokens=90, room=4201, seconds=600):
            until("a request that waits for space", lambda: any(_queue(lab, "decode.prealloc")))
            yield labs, {}


@contextmanager
def batch() -> Iterator[tuple[Labs, Words]]:
    """The running batch has two places, and their requests take long."""
    with Labs() as labs:
        lab = labs.up("--max-running", "2", "--step", "decode=500ms")
        with _sending(lab, requests=4, concurrency=4, new_tokens=400, room=4301, seconds=600):
            until("requests that wait for a place", lambda: len(_queue(lab, "waiting")) == 2)
            yield labs, {}


@contextmanager
def computing() -> Iterator[tuple[Labs, Words]]:
    """Prefill is in a long forward, and a second request lies unread in its socket."""
    with Labs() as labs:
        lab = labs.up("--step", "prefill=300s")
        with _sending(lab, requests=1, room=4401, seconds=600):
            until("the first at work", lambda: lab.queues()["prefill dp0 pp0 tp0"]["running"] == [4401])
            with _sending(lab, requests=1, room=4402, seconds=600):
                _until_waiting(lab, "decode.transfer", 4402)
                yield labs, {}


@contextmanager
def refused() -> Iterator[tuple[Labs, Words]]:
    """A router's bootstrap port is wrong: nobody listens there."""
    with Labs() as labs:
        labs.up()
        load = labs.start("lab", "load", "-n", "2", "--bootstrap", "127.0.0.1:1", "--seconds", "600")
        _until_found(labs, "PD145", "wait for it")
        yield labs, {}
        load.wait()


@contextmanager
def given_up() -> Iterator[tuple[Labs, Words]]:
    """The same, after decode has given up."""
    with refused() as (labs, words):
        _until_found(labs, "PD145", "Decode gave up")
        _until_found(labs, "PD142", "has let it go", "stuck")
        yield labs, words


@contextmanager
def replaced() -> Iterator[tuple[Labs, Words]]:
    """Prefill was started anew at its address, and decode has not noticed."""
    with Labs() as labs:
        lab = labs.up("--heartbeat", "60s")
        assert lab.load(requests=2).good
        labs.cli("lab", "restart", "prefill")
        yield labs, {}


@contextmanager
def shared() -> Iterator[tuple[Labs, Words]]:
    """Two prefill servers have registered with one bootstrap server."""
    with Labs() as labs:
        labs.up("--prefills", "2", "--shared-bootstrap")
        yield labs, {}


@contextmanager
def ended() -> Iterator[tuple[Labs, Words]]:
    """Prefill was killed while a request waited for it."""
    with Labs() as labs:
        lab = labs.up("--heartbeat", "600s")
        with _sending(lab, requests=1, room=4501, to="decode", seconds=600):
            _until_waiting(lab, "decode.transfer", 4501)
            prefill = [process for process in lab.left() if process.label.startswith("prefill")]
            for process in prefill:
                end_process(process)
            until("the end of prefill", lambda: not any(process.alive for process in prefill))
            yield labs, {"ROOM": "4501"}


def _queue(lab: Lab, name: str) -> list[int]:
    return lab.queues()["decode dp0 pp0 tp0"][name]


def _until_waiting(lab: Lab, queue: str, room: int) -> None:
    until(f"room {room} in {queue}", lambda: room in _queue(lab, queue))


def _until_found(labs: Labs, code: str, words: str, command: str = "verify-routing") -> None:
    def found() -> bool:
        done = labs.cli(command, "-o", "json", "--rank-timeout", "30s", "--timeout", "60s", code=None)
        there = json.loads(done.stdout)["findings"] if done.stdout else []
        return any(one["code"] == code and words in one["summary"] for one in there)

    until(f"{code}: {words}", found)


BRANCHES: dict[str, Callable[[], AbstractContextManager[tuple[Labs, Words]]]] = {
    "full": full,
    "batch": batch,
    "computing": computing,
    "refused": refused,
    "given-up": given_up,
    "replaced": replaced,
    "shared": shared,
}
"""States of single branches of runbooks."""

STATES: dict[str, Callable[[], AbstractContextManager[tuple[Labs, Words]]]] = {
    "requests-hang-on-decode": hang,
    "prefill-or-decode-died": ended,
    "decode-died-with-a-gloo-error": died,
    "requests-wait-though-groups-agree": decode_only,
    "bootstrap-times-out": one_sided,
    "queue-gauge-never-returns-to-zero": orphan,
    "routing-mismatch": misrouted,
    "before-and-after-an-upgrade": healthy,
}
