"""A pair with the metadata gate: late metadata is held (C1's twin), the drill holds, every kind of fault fires and heals.

One pair a version, which the tests share in their order. What is held back keeps its request, and the request ends with the
right tokens once the fault is healed; what fails one request leaves the next ones alone. The last two tests hang decode:
one by a wrong room, and, started anew with the gate taken out, the drill's control.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.protocol.model import Action, EventKind, KVPoll
from tests.engine import stories
from tests.engine.checks import SECRET, document, dumped, dumps_are_clean, in_step, is_healthy, late_metadata
from tests.engine.conftest import engine
from tests.engine.drilling import drill_late_metadata
from tests.engine.env import ROOT, Namespace
from tests.engine.harness import Pair, patiently
from tests.engine.injecting import fault
from tests.engine.tokens import PROMPTS, right_tokens
from tests.support.curve import Keyring
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PREFILL, TP0, TP1 = "prefill dp0 pp0 tp0", "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"
HELD = {
    ("--drop-metadata",): KVPoll.SUCCESS,
    ("--stall-transfer", "4m"): KVPoll.WAITING_FOR_INPUT,
    ("--drop-status",): KVPoll.WAITING_FOR_INPUT,
}
"""What holds a request back, and the last state that decode tp1 polls of it."""


@pytest.fixture(scope="module", params=["0.5.13.post1", pytest.param("0.5.23", marks=pytest.mark.long)])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    return Keyring(tmp_path_factory.mktemp("ring"), alice="observe")


@pytest.fixture(scope="module")
def pair(
    version: str, site: Path, ring: Keyring, namespace: Namespace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    environ = {"PDCTL_LISTEN": "tcp://127.0.0.1", **ring.env}
    folder = tmp_path_factory.mktemp("pair")
    with Pair.start(engine(version, site), namespace, folder, environ=environ) as started:
        yield started


@pytest.fixture
def right(version: str) -> list[int]:
    """The tokens of the first prompt."""
    return right_tokens(version)[0]


def test_tokens_are_those_without_pdctl(version: str, pair: Pair) -> None:
    assert pair.one_by_one(PROMPTS) == right_tokens(version)


def test_preflight_finds_it_fit_by_its_ranks_by_its_urls_and_by_a_request(version: str, pair: Pair) -> None:
    by_ranks = pair.pdctl("preflight", "-o", "json")
    by_urls = pair.pdctl("preflight", *pair.urls, "-o", "json")
    sent = pair.pdctl("preflight", "--handshake", *pair.urls, "-o", "json", limit_s=120)
    unknown = {}
    for way, done in (("ranks", by_ranks), ("urls", by_urls), ("request", sent)):
        assert done.returncode == 0, f"{way}\n{done.stdout}{done.stderr}"
        told = json.loads(done.stdout)
        assert told["fit"] is True
        unknown[way] = {one["check"] for one in told["lines"] if one["verdict"] == "unknown"}
        assert version in next(one["found"] for one in told["lines"] if one["check"] == "versions")
    assert unknown == {"ranks": set(), "urls": {"kv-layout", "metadata-rows", "time-outs", "ports"}, "request": set()}
    [way] = [one["found"] for one in json.loads(sent.stdout)["lines"] if one["check"] == "handshake"]
    assert "prefill tp0: prefill.bootstrap > " in way
    assert way.count("decode.prealloc") == 2


def test_it_is_healthy(pair: Pair) -> None:
    is_healthy(pair, "plugin")
    dumps_are_clean(pair)


@pytest.mark.long
def test_a_thousand_looks_find_nothing(pair: Pair) -> None:
    is_healthy(pair, "plugin", 1000)


def test_it_is_found_by_its_stores(version: str, pair: Pair, ring: Keyring, tmp_path: Path) -> None:
    """Ranks publish themselves in the store that SGLang made for its own process groups, and answer on TCP."""
    rows = json.loads(pair.pdctl("ranks", "-o", "json").stdout)["ranks"]
    stores = {row["role"]: row["store"] for row in rows}
    assert stores["prefill"] != stores["decode"], "a store a server"
    away = {"PDCTL_RUN_DIR": "", "PDCTL_RECORD_DIR": "", "PYTHONPATH": str(ROOT), **ring.env}
    away["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    command = (sys.executable, "-m", "pdctl.cli", *patiently("ranks", "-o", "json"))
    for role, count in (("prefill", 1), ("decode", 2)):
        named = {**os.environ, **away, "PDCTL_STORE": stores[role]}

        def found(named: dict[str, str] = named, count: int = count) -> list[dict[str, Any]]:
            done = subprocess.run(pair.ns.argv(command), env=named, capture_output=True, text=True, check=False)
            rows = json.loads(done.stdout)["ranks"] if done.returncode == 0 else []
            return rows if len(rows) == count else []

        for row in until(f"the {role} ranks are published", found, 60, 1.0):
            assert (row["role"], row["state"], row["engine_version"]) == (role, "live", version)
            assert str(row["endpoint"]).startswith("tcp://127.0.0.1:")
            assert row["store"] == stores[role]


def test_rows_are_told_apart(pair: Pair) -> None:
    """While the row of tp1 is held back it reads 0 there; tp0 has its own. Afterwards both slots are zeroed."""
    with late_metadata(pair, "5m"):
        [held_back] = pair.begin(1, limit_s=150, text=SECRET)

        def held() -> dict[str, Any] | None:
            status, seen = dumped(pair, "metadata", "--rank", "decode")
            assert status == 0, seen["findings"]
            verdicts = [slot["verdict"] for slot in seen["slots"] if slot["expected"]]
            return seen if verdicts == ["landed", "not written"] else None

        seen = until("dump metadata tells the rows apart", held, 60, 0.2)
        tp0, tp1 = [slot for slot in seen["slots"] if slot["expected"]]
        assert (tp0["found"], tp1["found"]) == (tp0["expected"], 0)
        assert tp0["expected"] == tp1["expected"] in pair.rooms
        assert tp0["sent_s"] >= 0
        assert tp1["sent_s"] is None
        assert tp0["sums"]["bootstrap_room"] != tp1["sums"]["bootstrap_room"]
        assert {(rank["gate"], rank["zeroed"], rank["aux"], rank["safe"]) for rank in seen["ranks"]} == {
            (True, True, "rdma", "yes")
        }
    assert held_back().tokens
    status, seen = dumped(pair, "metadata", "--rank", "decode")
    assert (status, seen["slots"]) == (0, [])


def test_the_gate_holds(version: str, pair: Pair, tmp_path: Path) -> None:
    """C1's twin: the same delay, no divergence, the gate is named, and the tokens are right."""
    right = right_tokens(version)
    with late_metadata(pair, "5m"):
        [held_back] = pair.begin(1, limit_s=150)

        def held() -> list[dict[str, Any]]:
            return [group for group in in_step(pair) if group["verdict"] == "HELD"]

        [group] = until("diff-queues sees the gate hold", held, 60, 0.2)
        assert group["queue"] in ("", "decode.transfer")
        room, copy = pair.rooms[-1], tmp_path / "held"
        shutil.copytree(pair.record_dir, copy)  # as it is now; what takes its time comes later
        # Others pass meanwhile: the gate holds the one request alone.
        assert pair.one_by_one(PROMPTS - 1, first=1) == right[1:]
    assert held_back().tokens == right[0]
    stories.is_held(stories.story(pair, room, "--from", str(copy)))
    stories.is_whole(stories.story(pair, room), late=True)
    stories.is_whole(stories.story(pair, pair.rooms[0], "--from", str(pair.record_dir)), late=False)
    stories.has_files(pair, room, tmp_path)
    status, seen = document(pair)
    assert status == 0, seen["findings"]


def test_the_drill_holds(pair: Pair, tmp_path: Path) -> None:
    drill_late_metadata(pair, tmp_path / "journal", control=False)


def polled(pair: Pair, room: int) -> set[int]:
    """What decode tp1's own polls of a room in its transfer queue have said."""
    stream = pair.recordings()[TP1].stream("decode.transfer")
    assert stream is not None
    return {item.local for run in stream.runs for item in stream.items(run) or [] if item.room == room}


def stuck_is_told(pair: Pair, room: int, kind: str) -> None:
    """C9 and C10: what waits for a message says which time-out ends it, what waits for metadata that none does."""

    def look() -> dict[str, Any] | None:
        done = pair.pdctl("stuck", "-o", "json", "--stuck-after", "2s", "--pause", "1s")
        assert done.stdout, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (1 if document["findings"] else 0), done.stderr
        return document if document["findings"] else None

    document = until(f"stuck names what {kind} holds", look, 90)
    [request] = [each for each in document["requests"] if each["role"] == "decode"]
    assert (request["room"], request["queue"]) == (room, "decode.transfer")
    assert f"{PREFILL} had Success" in request["peer"]
    [found] = document["findings"]
    assert found["rooms"] == [room]
    if kind == "--drop-status":
        assert found["code"] == "PD142"
        assert request["cover"] == "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
        assert 0 < request["left_s"] < request["limit_s"] == 300.0
    else:
        assert found["code"] == "PD141"
        assert (request["cover"], request["left_s"]) == ("nothing", None)
        assert "metadata slots are held this way" in " ".join(found["evidence"])


@pytest.mark.parametrize("kind", HELD, ids=lambda kind: kind[0])
def test_what_holds_a_request_back(pair: Pair, right: list[int], kind: tuple[str, ...]) -> None:
    state = HELD[kind]
    available = pair.pdctl("faults", "--available", "-o", "json")
    assert available.returncode == 0, available.stderr
    with fault(pair, *kind) as placed:
        [answer] = pair.begin(1, limit_s=150)
        room = pair.rooms[-1]
        until(f"{kind[0]} has fired", placed.fired, 60, 0.5)
        until(f"tp1 polls {state.name}", lambda: state in polled(pair, room), 60)
        if state is not KVPoll.SUCCESS:
            assert KVPoll.SUCCESS not in polled(pair, room)
        if kind[0] != "--stall-transfer":
            stuck_is_told(pair, room, kind[0])
        in_step(pair)
        went = placed.heal()
        assert went["released"] == 1, went
        assert answer().tokens == right, kind
        left = pair.pdctl("stuck", "-o", "json")
        assert left.stdout, left.stderr
        assert json.loads(left.stdout)["requests"] == []


@pytest.mark.parametrize("kind", [("--flip-poll", "Transferring"), ("--skew-poll", "100ms")], ids=lambda kind: kind[0])
def test_what_changes_a_poll(pair: Pair, right: list[int], kind: tuple[str, ...]) -> None:
    with fault(pair, *kind) as placed:
        [answer] = pair.begin(1, limit_s=150)
        until(f"{kind[0]} has fired", placed.fired, 60, 0.5)
        if kind[0] == "--skew-poll":
            assert answer().tokens == right
        assert placed.heal()["fired"] > 0
        assert answer().tokens == right


@pytest.mark.parametrize("kind", ["--fail-transfer", "--abort"])
def test_what_fails_a_request(pair: Pair, right: list[int], kind: str) -> None:
    with fault(pair, kind, "--hits", "1") as placed:
        [answer] = pair.begin(1)
        outcome = answer()
        assert outcome.tokens is None, f"{kind}: {outcome}"
        placed.ended()
    assert pair.one_by_one(1) == [right], kind


@pytest.mark.long  # the light harness has it on every version
def test_heartbeats_go_unanswered(pair: Pair, right: list[int]) -> None:
    """The engine gives the prefill server up, and finds it again with the next request."""
    with fault(pair, "--silence-heartbeat", "4m") as placed:
        # Prefill never hears of this request, so nothing but the heartbeats can end it.
        [answer] = pair.begin(1, limit_s=120, to=("decode",))
        until("silence-heartbeat has fired", placed.fired, 60, 0.5)
        assert answer().tokens is None
        failed = [e.room for e in pair.recordings()[TP1].events() if e.kind == EventKind.STATE and e.a == KVPoll.FAILED]
        assert pair.rooms[-1] in failed
        assert "connection with prefill instance" in pair.servers[1].log.read_text(errors="replace")
        assert placed.heal()["fired"] >= 2
    assert pair.one_by_one(1) == [right]


def test_rooms_are_used_twice(pair: Pair, right: list[int]) -> None:
    """A request takes the room of one that waits, on prefill alone and on both decode ranks; both end with an abort."""
    for role, labels, queue in (("prefill", [PREFILL], "prefill.bootstrap"), ("decode", [TP0, TP1], "decode.transfer")):
        names = [f"{role}-earlier", f"{role}-later"]
        [earlier] = pair.begin(1, to=(role,), rid=names[0])
        room = pair.rooms[-1]

        def there(rooms: list[int], labels: list[str] = labels, queue: str = queue) -> bool:
            queues = pair.queues()
            return all(queues[label][queue] == rooms for label in labels)

        until(f"the earlier one waits in {queue}", lambda room=room, there=there: there([room]), 60, 0.2)
        which = ("--rid", names[1], "--allow-ranks", str(len(labels)))
        with fault(pair, "--duplicate-room", "any", *which, rank=role) as placed:
            [later] = pair.begin(1, rid=names[1])
            until("both have one room", lambda room=room, there=there: there([room, room]), 60, 0.2)
            assert placed.ended()["fired"] == len(labels)
        assert pair.pdctl("diff-queues").returncode == 0
        pair.abort(*names)
        assert earlier().tokens is None
        assert later().tokens is None
        until("none is left", lambda there=there: there([]), 60, 0.2)
        assert pair.one_by_one(1) == [right]


def test_a_seed_takes_the_same_rooms_whatever_their_order(pair: Pair) -> None:
    rooms = [9_001 + number for number in range(8)]
    seen = []
    for order in (rooms, rooms[::-1]):
        with fault(pair, "--fail-transfer", "--share", "50%", "--seed", "5", "--hits", "100") as placed:
            outcomes = [pair.generate(1, first_room=room)[0] for room in order]
            fired = placed.heal()["fired"]
        seen.append({outcome.room for outcome in outcomes if outcome.tokens is None})
        assert fired == len(seen[-1])
    assert seen[0] == seen[1]
    assert 0 < len(seen[0]) < len(rooms)


def test_a_wrong_room_parts_the_ranks(pair: Pair) -> None:
    """One rank aborts what the other commits: decode hangs."""
    with fault(pair, "--corrupt-room", "--hits", "1"):
        pair.begin(1)
        room = pair.rooms[-1]
        until("diff-queues sees it", lambda: pair.pdctl("diff-queues").returncode == 1, 60, 1)
        stream = pair.recordings()[TP1].stream("decode.transfer")
        assert stream is not None
        ended = [i for run in stream.runs for i in stream.items(run) or [] if i.room == room and i.action]
        assert [item.action for item in ended] == [Action.ABORTED]
        assert ended[0].found not in (None, 0, room)


def test_without_its_gate_the_drill_breaks(pair: Pair, tmp_path: Path) -> None:
    pair.restart("decode", environ={"PDCTL_REVERT": "gate"})
    drill_late_metadata(pair, tmp_path / "journal", control=True)
