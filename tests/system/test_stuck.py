"""``pdctl stuck`` on a lab: what waits is found with what ends it, and what only takes its time is not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pdctl.lab.client import Client, Load
from tests.support.labs import Lab, Labs
from tests.support.patience import patience, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600, method="signal")]  # the machine may be busy

PATIENT = ("--rank-timeout", "60s", "--timeout", "60s")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Labs() as labs:
        yield labs.up("--kv-tokens", 160, "--slots", 8)


def stuck(lab: Lab, *options: object, code: int) -> dict[str, Any]:
    done = lab.labs.cli("stuck", "-o", "json", *PATIENT, *options, code=code)
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "pdctl.stuck"
    return document


class Sending:
    """A load on a thread of its own; the block ends when every request has, or when it was told to stop."""

    def __init__(self, lab: Lab, **how: Any) -> None:
        self.client = Client(lab.config, Load(**{"seconds": patience(60), **how}))
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.outcome = self.client.run()

    def __enter__(self) -> Sending:  # noqa: PYI034
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self.client.close()


def recordings_alone(lab: Lab, kind: str) -> None:
    """The same from the files: what waits and that the other side is done with it; not which time-out covers it."""
    lost = kind == "--drop-status"
    source = ("--from", lab.labs.folder / "rec")
    document = stuck(lab, *source, "--stuck-after", "2s", "--pause", "1s", code=1 if lost else 0)
    [request] = [each for each in document["requests"] if each["role"] == "decode"]
    assert (request["room"], request["queue"], request["cover"]) == (4000, "decode.transfer", "unknown")
    assert request["rid"]
    assert request["age_s"] > 2
    assert "prefill dp0 pp0 tp0 had Success" in request["peer"]
    assert [found["code"] for found in document["findings"]] == (["PD142"] if lost else [])

    checked = json.loads(lab.labs.cli("check", "-o", "json", *source, code=1 if lost else 0).stdout)
    levels = {row["stage"]: row["level"] for row in checked["stages"]}
    assert list(levels) == ["ranks", "queues", "routing", "metadata", "stuck"]
    assert levels["ranks"] == "ok"
    assert levels["stuck"] == ("error" if lost else "unknown")  # what is computed is not in recordings
    refused = lab.labs.cli("check", "--only", "leaks", *source, code=2)
    assert "recordings do not tell of leaks" in " ".join(refused.stderr.split())

    routed = json.loads(lab.labs.cli("verify-routing", "-o", "json", *source, 4000, code=None).stdout)
    [row] = [row for row in routed["rooms"] if row["room"] == 4000]
    assert [asker["queues"] for asker in row["decode"]] == [["decode.transfer"]]


@pytest.mark.parametrize("kind", ["--drop-status", "--drop-metadata"])
def test_what_never_arrives(lab: Lab, kind: str) -> None:
    """C9 and C10: a message, or the metadata, that does not come."""
    lab.labs.cli("inject", kind, "--rank", "decode:tp1", "--for", "10m", "--detach", "--room", 4000)
    code = "PD142" if kind == "--drop-status" else "PD141"
    try:
        with Sending(lab, requests=1, room=4000) as sending:
            until("room 4000 in transfer", lambda: lab.queues()["decode dp0 pp0 tp1"]["decode.transfer"] == [4000])
            # Until both sides are where they stay: the first looks may see it move.
            document = until(
                "a finding",
                lambda: (found := stuck(lab, "--stuck-after", "2s", "--pause", "1s", code=None))["findings"] and found,
            )
            [finding] = document["findings"]
            assert (finding["code"], finding["rooms"]) == (code, [4000])
            [request] = [each for each in document["requests"] if each["role"] == "decode"]
            assert request["queue"] == "decode.transfer"
            assert request["peer_ended_s"] > 0
            assert "prefill dp0 pp0 tp0 had Success" in request["peer"]
            if kind == "--drop-status":
                assert request["cover"] == "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
                assert 0 < request["left_s"] < request["limit_s"] == 300.0
            else:
                assert (request["cover"], request["left_s"]) == ("nothing", None)
                assert "1 of 8 metadata slots are held this way" in " ".join(finding["evidence"])
            recordings_alone(lab, kind)
            drawn = lab.labs.cli("stuck", "--stuck-after", "2s", *PATIENT, code=1).stdout
            assert "room 4000" in drawn
            assert code in drawn
            lab.labs.cli("heal", "--all")
    finally:
        lab.labs.cli("heal", "--all", code=None)
    assert sending.outcome.completed == 1
    assert stuck(lab, code=0)["requests"] == []


def test_a_failure_that_was_delivered_is_no_finding(lab: Lab) -> None:
    """The twin of C9."""
    lab.labs.cli("inject", "--fail-transfer", "--rank", "decode:tp1", "--for", "10m", "--detach", "--room", 4002)
    try:
        assert lab.load(requests=1, room=4002).failed == 1
        assert stuck(lab, "--stuck-after", "1s", code=0)["findings"] == []
    finally:
        lab.labs.cli("heal", "--all")


def test_a_full_decode_is_full(lab: Lab) -> None:
    """C12: two requests fill the KV pool, ten wait in line."""
    with Sending(lab, requests=10_000, concurrency=12, prompt_tokens=30, new_tokens=60, seconds=600) as sending:
        try:
            found = until("a finding", lambda: stuck(lab, "--stuck-after", "1s", "--pause", "1s", code=0)["findings"])
        finally:
            sending.client.load.requests = (
                1  # no more, and those on their way to the end: the next test has the same lab
            )
    assert {(finding["code"], finding["level"]) for finding in found} == {("PD140", "info")}
    assert (sending.outcome.failed, sending.outcome.wrong) == (0, 0)


def test_a_room_that_only_one_side_has(lab: Lab) -> None:
    with Sending(lab, requests=1, room=4004, to="prefill", seconds=patience(600)) as sending:
        try:
            document = until(
                "a finding",
                lambda: (found := stuck(lab, "--stuck-after", "2s", "--pause", "1s", code=None))["findings"] and found,
            )
        finally:
            sending.client.load.abort_after_s = 1e-3
    assert [(f["code"], f["rooms"]) for f in document["findings"]] == [("PD143", [4004])]
    [request] = document["requests"]
    assert request["cover"] == "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"
    assert (request["peer"], request["peer_is"]) == ("it never came to decode", "never")


@pytest.mark.parametrize("words", [["--by", "size"], ["--older", "soon"], ["--pause", "-1s"]])
def test_bad_options(lab: Lab, words: list[str]) -> None:
    done = lab.labs.cli("stuck", *words, code=2)
    assert "Traceback" not in done.stderr
    assert words[0] in done.stderr
