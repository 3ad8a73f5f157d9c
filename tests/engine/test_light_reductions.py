"""What ranks agree on besides the polls of queues, by each version's own functions: recorded as rounds, compared, told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdctl.introspect.sglang import OutsideRank
from pdctl.introspect.target import OpenProcess
from pdctl.protocol.model import EventKind, KVPoll, Phase
from tests.engine.conftest import EVERY_VERSION
from tests.engine.light.host import LightHost, LightRun
from tests.support.patience import until

BOOTSTRAPPING, WAITING, FAILED = KVPoll.BOOTSTRAPPING, KVPoll.WAITING_FOR_INPUT, KVPoll.FAILED

_OLD = ("0.5.10.post1", "0.5.11", "0.5.12.post1")
_BEFORE_WAITING = (*_OLD, "0.5.13.post1")
_BEFORE_RELEASES = (*_BEFORE_WAITING, "0.5.15", "0.5.18")
_BEFORE_AGREEING = (*_BEFORE_RELEASES, "0.5.22")
"""Versions that do not resolve the handshakes of waiting requests, keep no memory for prefill, let each rank decide alone."""

Finish = Callable[[dict[str, object], str], LightRun]


@pytest.fixture(scope="module", params=EVERY_VERSION)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def lacking(version: str, those: tuple[str, ...]) -> None:
    if version in those:
        pytest.skip(f"{version} does not do this")


def rounds(run: LightRun, name: str, queue: str) -> list[tuple[int, list[tuple[int, int, int]]]]:
    """Return (first round, [(room, own number, reduced)]) of each run of equal rounds of a rank."""
    found = run.recordings()[name].stream(queue, "attn-tp")
    assert found is not None, f"{name} has no rounds of {queue}"
    return [(one.ordinal, [(i.room, i.local, i.reduced) for i in found.items(one) or []]) for one in found.runs]


def told(run: LightRun, *command: str) -> tuple[int, Any]:
    """Return the exit code and the document of a command, on these ranks or on what they left."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PDCTL_")}
    done = subprocess.run(
        [sys.executable, "-m", "pdctl.cli", *command, "-o", "json", "--timeout", "100"],
        env={**kept, **run.environ}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def nothing_found(run: LightRun) -> bool:
    """Whether ``diff-queues`` finds nothing in what ranks left that have ended."""
    _, document = told(run, "diff-queues")
    assert {one["code"] for one in document["findings"]} <= {"PD112", "PD113"}, document["findings"]
    return sum(sum(group["compared"].values()) for group in document["groups"]) > 0


def test_handshakes_of_waiting_requests(version: str, finish: Finish) -> None:
    lacking(version, _BEFORE_WAITING)
    requests = [
        {"room": 6001, "queue": "waiting", "polls": [[*[BOOTSTRAPPING] * 3, WAITING], [*[BOOTSTRAPPING] * 6, WAITING]]},
        {"room": 6002, "queue": "waiting", "polls": [[*[BOOTSTRAPPING] * 4, FAILED]]},
    ]
    run = finish({"turns": 20, "requests": requests}, "prefill")
    for name, own in (("tp0", (WAITING, BOOTSTRAPPING)), ("tp1", (BOOTSTRAPPING, BOOTSTRAPPING))):
        found = rounds(run, name, "prefill.waiting")
        assert found[0] == (0, [(6001, BOOTSTRAPPING, BOOTSTRAPPING), (6002, BOOTSTRAPPING, BOOTSTRAPPING)])
        assert (4, [(6001, *own), (6002, FAILED, FAILED)]) in found
        assert found[-1] == (6, [(6001, WAITING, WAITING)])
    assert nothing_found(run)


def test_the_handshake_of_a_request_that_is_computed_in_parts(version: str, finish: Finish) -> None:
    lacking(version, _OLD)
    requests = [
        {"room": 6003, "queue": "chunk", "polls": [[*[BOOTSTRAPPING] * 2, WAITING], [*[BOOTSTRAPPING] * 4, WAITING]]}
    ]
    run = finish({"turns": 12, "requests": requests}, "prefill")
    assert rounds(run, "tp0", "prefill.chunk") == [
        (0, [(6003, BOOTSTRAPPING, BOOTSTRAPPING)]),
        (2, [(6003, WAITING, BOOTSTRAPPING)]),
        (4, [(6003, WAITING, WAITING)]),
    ]
    assert nothing_found(run)


def test_a_waiting_request_that_one_rank_alone_has_aborted(version: str, host: LightHost, tmp_path: Path) -> None:
    """The engine leaves it out of the list there: that rank skips the collective, and the other stands in it."""
    lacking(version, _BEFORE_WAITING)
    requests = [{"room": 6004, "queue": "waiting", "polls": [[BOOTSTRAPPING]]}]
    script = {"turns": 1_000_000, "requests": requests, "abort": {"rank": 1, "turn": 5, "room": 6004}}
    run = host.run(script, "prefill", tmp_path)
    try:
        until("tp0 stands in round 5", lambda: stands(run, "tp0", "prefill.waiting", 5), 120)
        until("tp1 has left it out", lambda: skipped(run, "tp1", "prefill.waiting", 5), 60)
        code, document = told(run, "diff-queues", "--stalled", "1s")
        assert code == 1
        [found] = [one for one in document["findings"] if one["code"] == "PD103"]
        assert (found["rooms"], found["ranks"]) == ([6004], ["tp1"])
        assert "tp1 had nothing in prefill.waiting and skipped the collective of round 5" in found["summary"]
    finally:
        run.kill()


def stands(run: LightRun, name: str, queue: str, ordinal: int) -> bool:
    recording = run.recordings().get(name)
    found = recording.stream(queue) if recording is not None else None
    return found is not None and found.last == ordinal and found.runs[-1].phase == Phase.ENTERED


def skipped(run: LightRun, name: str, queue: str, ordinal: int) -> bool:
    recording = run.recordings()[name]
    visits = recording.visits.get(queue)
    return visits is not None and visits.empty and visits.count > ordinal


# ---- memory that is kept for prefill ---------------------------------------------------------------------------------


def releases(*acks: tuple[int, int], **more: object) -> dict[str, object]:
    requests = [{"room": 6100 + n, "polls": [[FAILED]], "acks": turns} for n, turns in enumerate(acks)]
    return {"runs": "releases", "turns": 40, "requests": requests, **more}


def test_memory_that_is_kept_until_the_last_rank_has_heard_prefill(version: str, finish: Finish) -> None:
    lacking(version, _BEFORE_AGREEING)
    run = finish(releases((5, 12), (20, 20)), "decode")
    assert rounds(run, "tp0", "decode.held") == [(0, [(6100, 1, 1), (6101, 1, 1)])]
    assert rounds(run, "tp0", "decode.deferred") == [
        (0, [(6100, 0, 0), (6101, 0, 0)]),
        (5, [(6100, 1, 0), (6101, 0, 0)]),
        (12, [(6100, 1, 1), (6101, 0, 0)]),
        (13, [(6101, 0, 0)]),
        (20, [(6101, 1, 1)]),
    ]
    assert nothing_found(run)


def test_memory_that_is_kept_is_shown_with_its_acks_and_its_deadline(
    version: str, host: LightHost, tmp_path: Path
) -> None:
    lacking(version, _BEFORE_RELEASES)
    first = 10_000_000 if version in _BEFORE_AGREEING else 0  # each rank gives its memory back by itself there
    run = host.run(releases((first, 10_000_000), turns=10_000_000, pause_s=0.01), "decode", tmp_path)
    try:
        until("both ranks are there", lambda: len([rank for rank in run.ranks() if rank.live]) == 2, 120)

        def kept() -> list[dict[str, Any]]:
            requests = told(run, "dump", "queues")[1]["requests"]
            return [one for one in requests if one["queue"] == "decode.deferred"]

        tp0, tp1 = until("both keep it", lambda: rows if len(rows := kept()) == 2 else None, 60)
        assert [(row["room"], row["needed"], row["acks"]) for row in (tp0, tp1)] == [(6100, 1, not first), (6100, 1, 0)]
        assert 0 < tp1["left_s"] <= 600
        code, document = told(run, "stuck", "--pause", "200ms")
        [waits] = document["requests"]
        assert (code, waits["queue"], waits["state"]) == (0, "decode.deferred", "0 of 1 acks")
        assert waits["cover"].endswith("DEFERRED_DECODE_KV_RELEASE_TIMEOUT")
        for rank in run.ranks():
            [outside] = OutsideRank(OpenProcess(rank.identity.pid, 60)).rooms().deferred
            assert (outside.room, outside.needed, outside.acks) == (6100, 1, 0 if rank.identity.tp else not first)
            assert 0 < outside.left_s <= 600
        code, document = told(run, "dump", "leaks", "--for", "500ms")
        assert not document["findings"]
    finally:
        run.kill()


def test_memory_that_one_rank_alone_has_given_back(version: str, host: LightHost, tmp_path: Path) -> None:
    lacking(version, _BEFORE_AGREEING)
    script = releases((10_000_000, 10_000_000), turns=10_000_000, drop={"rank": 1, "turn": 7})
    run = host.run(script, "decode", tmp_path)
    try:
        until("tp0 stands in round 7", lambda: stands(run, "tp0", "decode.deferred", 7), 120)
        until("tp1 has none left", lambda: skipped(run, "tp1", "decode.deferred", 7), 60)
        code, document = told(run, "diff-queues", "--stalled", "1s")
        assert code == 1
        [found] = [one for one in document["findings"] if one["code"] == "PD103"]
        assert (found["rooms"], found["ranks"]) == ([6100], ["tp1"])
        assert "decode.deferred" in found["summary"]
    finally:
        run.kill()


# ---- checksums -------------------------------------------------------------------------------------------------------


def test_kv_that_its_checksum_says_is_wrong(version: str, finish: Finish) -> None:
    lacking(version, _BEFORE_RELEASES)
    requests = [{"room": 6200}, {"room": 6201, "wrong": [1]}, {"room": 6202}]
    run = finish({"runs": "checksums", "turns": 1, "requests": requests}, "decode")
    agreed = version not in _BEFORE_AGREEING
    recordings = run.recordings()
    failures = {
        name: [(e.room, e.text[:20]) for e in recording.events() if e.kind is EventKind.FAILURE]
        for name, recording in recordings.items()
    }
    dropped = [(6201, "KV checksum mismatch")]
    assert failures == {"tp0": dropped if agreed else [], "tp1": dropped}
    if agreed:
        assert rounds(run, "tp0", "decode.checksum") == [(0, [(6200, 0, 0), (6201, 0, 1), (6202, 0, 0)])]
        assert rounds(run, "tp1", "decode.checksum") == [(0, [(6200, 0, 0), (6201, 1, 1), (6202, 0, 0)])]
    code, document = told(run, "dump", "metadata")
    [found] = [one for one in document["findings"] if one["code"] == "PD138"]
    assert (found["rooms"], found["ranks"]) == ([6201], ["decode dp0 pp0 tp1"]), code
    _, document = told(run, "story", "6201")
    texts = {(e["rank"], e["text"]) for e in document["stories"][0]["entries"] if e["kind"] == "failure"}
    assert ("decode tp1", "the engine dropped it: its KV was not what prefill sent, by its checksum") in texts
