"""Every kind of fault that one prefill and one decode server can carry, fired on real servers by the command line.

What is held back keeps its request, and the request ends with the right tokens once the fault is healed; what fails one
request leaves the next ones alone. Kinds that need several dp ranks are not here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.model import Action, EventKind, KVPoll
from tests.engine.conftest import engine
from tests.engine.env import Namespace
from tests.engine.harness import Pair, wait_for
from tests.engine.injecting import fault

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PREFILL, TP0, TP1 = "prefill dp0 pp0 tp0", "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"
OFTEN = {"SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2"}


def polled(pair: Pair, room: int) -> set[int]:
    """What decode tp1's own polls of a room in its transfer queue have said."""
    stream = pair.recordings()[TP1].stream("decode.transfer")
    assert stream is not None
    return {item.local for run in stream.runs for item in stream.items(run) or [] if item.room == room}


def heartbeats_go_unanswered(pair: Pair, right: list[int]) -> None:
    """The engine gives the prefill server up, and finds it again with the next request."""
    with fault(pair, "--silence-heartbeat", "4m") as placed:
        # Prefill never hears of this request, so nothing but the heartbeats can end it.
        [answer] = pair.begin(1, limit_s=120, to=("decode",))
        wait_for("silence-heartbeat has fired", placed.fired, 60, 0.5)
        assert answer().tokens is None
        failed = [e.room for e in pair.recordings()[TP1].events() if e.kind == EventKind.STATE and e.a == KVPoll.FAILED]
        assert pair.rooms[-1] in failed
        assert "connection with prefill instance" in pair.servers[1].log.read_text(errors="replace")
        assert placed.heal()["fired"] >= 2
    assert pair.one_by_one(1) == [right]


def rooms_are_used_twice(pair: Pair, right: list[int]) -> None:
    """A request takes the room of one that waits, on prefill alone and on both decode ranks; both end with an abort."""
    for role, labels, queue in (("prefill", [PREFILL], "prefill.bootstrap"), ("decode", [TP0, TP1], "decode.transfer")):
        names = [f"{role}-earlier", f"{role}-later"]
        [earlier] = pair.begin(1, to=(role,), rid=names[0])
        room = pair.rooms[-1]

        def there(rooms: list[int], labels: list[str] = labels, queue: str = queue) -> bool:
            queues = pair.queues()
            return all(queues[label][queue] == rooms for label in labels)

        wait_for(f"the earlier one waits in {queue}", lambda room=room, there=there: there([room]), 60, 0.2)
        which = ("--rid", names[1], "--allow-ranks", str(len(labels)))
        with fault(pair, "--duplicate-room", "any", *which, rank=role) as placed:
            [later] = pair.begin(1, rid=names[1])
            wait_for("both have one room", lambda room=room, there=there: there([room, room]), 60, 0.2)
            out, err = placed.process.communicate(timeout=60)
            # 6: a rank of a busy machine did not answer in time, so that it may remain; then its lease has ended it
            assert placed.process.returncode in (0, 6), err
            assert placed.process.returncode or json.loads(out)["fired"] == len(labels)
            wait_for("it is in place nowhere", lambda: pair.pdctl("faults").stdout == "no faults\n", 30, 0.5)
        assert pair.pdctl("diff-queues").returncode == 0
        pair.abort(*names)
        assert earlier().tokens is None
        assert later().tokens is None
        wait_for("none is left", lambda there=there: there([]), 60, 0.2)
        assert pair.one_by_one(1) == [right]


def stuck_is_told(pair: Pair, room: int, kind: str) -> None:
    """C9 and C10: what waits for a message says which time-out ends it, what waits for metadata that none does."""

    def look() -> dict[str, Any] | None:
        done = pair.pdctl("stuck", "-o", "json", "--stuck-after", "2s", "--watch", "1s")
        document: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (1 if document["findings"] else 0), done.stderr
        return document if document["findings"] else None

    document = wait_for(f"stuck names what {kind} holds", look, 90)
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


@pytest.mark.parametrize("version", ["0.5.13.post1", "0.5.23"])
def test_faults_fire_and_heal(version: str, site: Path, namespace: Namespace, tmp_path: Path) -> None:
    with Pair.start(engine(version, site), namespace, tmp_path, environ=OFTEN) as pair:
        [right] = pair.one_by_one(1)
        assert right
        available = json.loads(pair.pdctl("faults", "--available", "-o", "json").stdout)
        assert available

        held = {
            ("--drop-metadata",): KVPoll.SUCCESS,
            ("--stall-transfer", "4m"): KVPoll.WAITING_FOR_INPUT,
            ("--drop-status",): KVPoll.WAITING_FOR_INPUT,
        }
        for kind, state in held.items():
            with fault(pair, *kind) as placed:
                [answer] = pair.begin(1, limit_s=300)
                room = pair.rooms[-1]
                wait_for(f"{kind[0]} has fired", placed.fired, 60, 0.5)
                wait_for(f"tp1 polls {state.name}", lambda room=room, state=state: state in polled(pair, room), 60)
                if state is not KVPoll.SUCCESS:
                    assert KVPoll.SUCCESS not in polled(pair, room)
                if kind[0] != "--stall-transfer":
                    stuck_is_told(pair, room, kind[0])
                status = pair.pdctl("diff-queues")
                assert status.returncode == 0, status.stdout
                went = placed.heal()
                assert went["released"] == 1, went
                assert answer().tokens == right, kind
                assert json.loads(pair.pdctl("stuck", "-o", "json").stdout)["requests"] == []

        with fault(pair, "--flip-poll", "Transferring") as placed:
            [answer] = pair.begin(1, limit_s=300)
            wait_for("flip-poll has fired", placed.fired, 60, 0.5)
            placed.heal()
            assert answer().tokens == right

        with fault(pair, "--skew-poll", "100ms") as placed:
            [answer] = pair.begin(1, limit_s=300)
            wait_for("skew-poll has fired", placed.fired, 60, 0.5)
            assert answer().tokens == right
            assert placed.heal()["fired"] > 0

        for kind in ("--fail-transfer", "--abort"):
            with fault(pair, kind, "--hits", "1") as placed:
                [answer] = pair.begin(1, limit_s=120)
                outcome = answer()
                assert outcome.tokens is None, f"{kind}: {outcome}"
                placed.process.wait(60)
            assert pair.one_by_one(1) == [right], kind

        heartbeats_go_unanswered(pair, right)
        rooms_are_used_twice(pair, right)

        # The same seed takes the same rooms, whatever the order they come in.
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

        # Last, since it leaves the pair diverged: one rank aborts what the other commits.
        with fault(pair, "--corrupt-room", "--hits", "1"):
            pair.begin(1, limit_s=120)
            room = pair.rooms[-1]
            wait_for("diff-queues sees it", lambda: pair.pdctl("diff-queues").returncode == 1, 120, 1)
            stream = pair.recordings()[TP1].stream("decode.transfer")
            assert stream is not None
            ended = [i for run in stream.runs for i in stream.items(run) or [] if i.room == room and i.action]
            assert [item.action for item in ended] == [Action.ABORTED]
            assert ended[0].found not in (None, 0, room)
