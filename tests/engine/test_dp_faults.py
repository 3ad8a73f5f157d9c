"""Faults at the registration of rooms' dp ranks, on a real prefill server with two of them, by the command line.

Its rooms are registered because its load balancing does not follow them.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pdctl.inject.drill.journal import read
from pdctl.inject.drill.records import DURING, LoadLine
from pdctl.protocol.model import Action, EventKind
from tests.engine.conftest import engine
from tests.engine.dp_attention import ARGUMENTS, with_dp_attention
from tests.engine.env import Namespace
from tests.engine.harness import BOOTSTRAP_PORT, Pair
from tests.engine.injecting import fault
from tests.support.patience import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]

TP0, TP1 = "decode dp0 pp0 tp0", "decode dp0 pp0 tp1"


def registered(pair: Pair, room: int) -> int | None:
    """Return the dp rank that the bootstrap server has for a room."""
    body = json.dumps({"bootstrap_rooms": [room]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{BOOTSTRAP_PORT}/query_dp_ranks", body, {"content-type": "application/json"}
    )
    with pair.ns.entered(), urllib.request.urlopen(request, timeout=10) as answer:
        found = json.loads(answer.read()).get(str(room))
    return None if found is None else int(found)


def told(pair: Pair, label: str, room: int) -> list[int]:
    """Return what a decode rank was told of a room's dp rank, in order; -1 for not found."""
    return [event.a for event in pair.recordings()[label].events_of([room], [EventKind.DP_ANSWER])]


def beliefs(pair: Pair, room: int) -> tuple[dict[str, Any], list[str]]:
    """Return what ``verify-routing`` says of a room, and the codes of what it finds."""
    done = pair.pdctl("verify-routing", str(room), "-o", "json", "--rank-timeout", "20", "--timeout", "60", limit_s=200)
    document = json.loads(done.stdout)
    [row] = document["rooms"]
    serious = any(finding["level"] != "info" for finding in document["findings"])
    assert done.returncode == int(serious), done.stderr
    return row, [finding["code"] for finding in document["findings"]]


def decode_dps(row: dict[str, Any]) -> dict[str, int | None]:
    """Return place → prefill dp rank that each decode rank takes the room to be on."""
    return {place: asker["dp"] for asker in row["decode"] for place in asker["places"]}


def warmed(pair: Pair) -> None:
    """Both prefill dp ranks serve, and register what they serve."""
    for dp in (0, 1):
        [answer] = pair.begin(1, prefill_dp=dp)
        assert answer().tokens
        assert registered(pair, pair.rooms[-1]) == dp


def routed_elsewhere_is_no_harm(pair: Pair, journal: Path) -> None:
    """The drill for dp routing breaks nothing where decode asks: the pinned request completes. Swapped URLs are refused."""
    journals = (journal.with_suffix(f".{number}") for number in itertools.count())

    def steady() -> tuple[subprocess.CompletedProcess[str], str, Path] | None:
        """A request of a new shape may take a rank half a minute: the drill is run again until it has its steady state."""
        file = next(journals)
        words = ("drill", "run", "dp-routing", *pair.urls, "--rank-timeout", "10", "--journal", str(file), "-o", "json")
        done = pair.pdctl(*words, limit_s=200)
        assert done.returncode == 3, done.stderr
        reason = str(json.loads(done.stdout)["reason"])
        return None if "no steady state" in reason else (done, reason, file)

    done, reason, journal = until("the drill has its steady state", steady, 300)
    assert "none of 1 requests was sent to the wrong prefill dp rank" in reason, done.stderr
    [during] = [record for record in read(journal) if isinstance(record, LoadLine) and record.step == DURING]
    assert (during.completed, during.misrouted) == (1, 0)

    _, prefill, _, decode = pair.urls
    done = pair.pdctl("drill", "run", "dp-routing", "--prefill-url", decode, "--decode-url", prefill)
    assert done.returncode == 2
    assert "is a decode server" in done.stderr


def hidden_from_one(pair: Pair) -> None:
    """One decode rank waits for what the other knows; both keep the request on the same queue all the same."""
    with fault(pair, "--hide-registration", rank="decode:tp0") as placed:
        [answer] = pair.begin(1, limit_s=300, prefill_dp=1)
        room = pair.rooms[-1]
        until("hide-registration has fired", placed.fired, 60, 0.5)
        until("tp1 was told", lambda: 1 in told(pair, TP1, room), 60)
        assert registered(pair, room) == 1
        assert 1 not in told(pair, TP0, room)
        pending = pair.queued("decode.pending")
        assert (room in pending[TP0], room in pending[TP1]) == (True, False)
        prealloc = pair.queued("decode.prealloc")
        assert room in prealloc[TP0] & prealloc[TP1]
        assert pair.pdctl("diff-queues").returncode == 0
        row, codes = beliefs(pair, room)
        assert (row["bootstrap"], row["formula"], decode_dps(row)) == (1, None, {"tp0": None, "tp1": 1})
        assert codes == [], "what only one rank was not told yet is no finding where both have it enqueued"
        assert placed.heal()["fired"] > 0
        assert answer().tokens


def registered_late(pair: Pair) -> None:
    """Both decode ranks wait until the room is registered; other rooms are served meanwhile."""
    with fault(pair, "--delay-registration", "4m", rank="prefill:dp0") as placed:
        [answer] = pair.begin(1, limit_s=300, prefill_dp=0)
        room = pair.rooms[-1]
        until("delay-registration has fired", placed.fired, 60, 0.5)
        until("both were told nothing", lambda: told(pair, TP0, room) == told(pair, TP1, room) == [-1], 60)
        assert registered(pair, room) is None
        pending = pair.queued("decode.pending")
        assert room in pending[TP0] & pending[TP1]
        row, codes = beliefs(pair, room)
        assert (row["verdict"], row["bootstrap_note"], codes) == ("UNREGISTERED", "not registered", ["PD122"])
        assert {holder["dp"] for holder in row["prefill"]} == {0}
        assert decode_dps(row) == {"tp0": None, "tp1": None}
        [other] = pair.begin(1, prefill_dp=0)
        assert other().tokens
        assert placed.heal()["released"] == 1
        assert answer().tokens
        assert registered(pair, room) == 0
        assert told(pair, TP0, room) == told(pair, TP1, room) == [-1, 0]


def registered_elsewhere(pair: Pair) -> None:
    """Decode asks a rank that never hears of the room; healing does not undo it, and the client gives up."""
    with fault(pair, "--misroute", "1", "--hits", "1", rank="prefill:dp0") as placed:
        [answer] = pair.begin(1, limit_s=15, prefill_dp=0)
        room = pair.rooms[-1]
        until("decode was told", lambda: told(pair, TP0, room)[-1:] == told(pair, TP1, room)[-1:] == [1], 60)
        assert placed.ended()["fired"] == 1
        assert registered(pair, room) == 1
        assert room in pair.queued("prefill.bootstrap")["prefill dp0 pp0 tp0"]
        assert answer().tokens is None
    assert all(outcome.tokens for outcome in pair.generate(2))


def of_another(pair: Pair) -> None:
    """One rank reads the room of an earlier request, and aborts what the other commits."""
    before = pair.rooms[0]
    with fault(pair, "--stale-metadata", str(before), "--hits", "1"):
        pair.begin(1, limit_s=60, prefill_dp=0)  # one room at a time: it is placed on one dp rank
        room = pair.rooms[-1]
        until("diff-queues sees it", lambda: pair.pdctl("diff-queues").returncode == 1, 120, 1)
        stream = pair.recordings()[TP1].stream("decode.transfer")
        assert stream is not None
        ended = [i for run in stream.runs for i in stream.items(run) or [] if i.room == room and i.action]
        assert [(item.action, item.found) for item in ended] == [(Action.ABORTED, before)]


def test_registration(site: Path, namespace: Namespace, tmp_path: Path) -> None:
    env = with_dp_attention(engine("0.5.13.post1", site), tmp_path)
    arguments = (*ARGUMENTS, "--load-balance-method", "round_robin")
    with Pair.start(env, namespace, tmp_path, prefill_tp=2, prefill_args=arguments) as pair:
        warmed(pair)
        routed_elsewhere_is_no_harm(pair, tmp_path / "journal")
        hidden_from_one(pair)
        registered_late(pair)
        registered_elsewhere(pair)
        of_another(pair)  # last: it leaves the pair diverged
