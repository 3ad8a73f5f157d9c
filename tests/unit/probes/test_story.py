"""A room's story from recordings made in a world whose true times are known."""

from __future__ import annotations

import json
import random
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from pdctl.probes.story import judge
from pdctl.probes.story.absence import never_came, others_of, shared
from pdctl.probes.story.find import called_by, known_rooms, meant, nearest
from pdctl.probes.story.model import RankPast, RoomStory, StoryDocument
from pdctl.probes.story.perfetto import arrows, trace, uncertainty
from pdctl.probes.story.render import render
from pdctl.protocol.model import Action, EventKind
from pdctl.protocol.notes import WRONG_ELSEWHERE, WRONG_KV
from pdctl.recording import format as f
from tests.support.excerpted import story
from tests.support.story_world import MS, Rank, Request, World, served

ROOM, RID = 7203441, "request-1"
STATIONS = ["arrival", "query", "answer", "handshake", "allocation", "poll", "enqueue", "landed"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def pair(world: World, seed: int = 1, **how: object) -> tuple[Rank, list[Rank]]:
    """A prefill rank and two decode ranks on three hosts whose clocks have nothing to do with each other."""
    rng = random.Random(seed)

    def clock() -> dict[str, int]:
        return {"offset": rng.randrange(10**15), "wall_error": rng.randrange(-3 * 10**9, 3 * 10**9)}

    prefill = world.rank("prefill", **clock(), **how)
    return prefill, [world.rank("decode", tp, tp_size=2, **clock(), **how) for tp in (0, 1)]


def times(told: RoomStory, rank: str, kind: str) -> list[float]:
    return [e.t_s for e in told.entries if e.rank == rank and e.kind == kind]


@pytest.mark.parametrize("asked", ["²", "٣", "9" * 5000])
def test_a_name_that_is_no_room_s_number_is_an_id(asked: str) -> None:
    assert called_by([asked], (), (), ()) == ([], [asked])


@pytest.mark.parametrize("seed", range(12))
def test_what_happened_first_is_told_first_whatever_the_clocks_say(world: World, seed: int) -> None:
    prefill, decode = pair(world, seed)
    for n in range(6):
        served(world, prefill, decode, ROOM + n, f"{RID}-{n}", slot=n)
    told = story(world.pasts(), ROOM + 3)
    assert told.rids == (f"{RID}-3",)
    for rank in ("decode tp0", "decode tp1"):
        firsts = [times(told, rank, kind)[0] for kind in STATIONS]
        assert firsts == sorted(firsts)
        assert times(told, rank, "landed") <= times(told, rank, "decision")[-1:] <= times(told, rank, "freed")
        [sent] = [e for e in told.entries if e.kind == "sent" and f"decode {rank.split()[1]}" in e.text]
        [success] = [e for e in told.entries if e.rank == rank and e.kind == "state" and e.value == "Success"]
        assert sent.t_s <= success.t_s
        assert times(told, rank, "handshake")[0] <= times(told, "prefill tp0", "handshake")[0]
    assert [e.value for e in told.entries if e.kind == "decision" and e.rank == "decode tp0"] == [
        "moved on",
        "committed",
    ]
    assert not told.gaps
    lines = {line.rank: line for line in told.ranks}
    # Whatever rank is the reference: its own clock is exact, decode ranks share rounds, messages tie the sides.
    assert {line.uncertainty_s for line in lines.values() if line.reference} == {0}
    others = [line for line in lines.values() if not line.reference]
    assert len(others) == 2
    for line in others:
        assert line.uncertainty_s is not None
        assert 0 < line.uncertainty_s < 0.05
        assert "by " in line.clock


@pytest.mark.parametrize("seed", range(6))
def test_each_time_is_off_by_no_more_than_is_shown(world: World, seed: int) -> None:
    prefill, decode = pair(world, seed)
    truth: dict[tuple[str, int], int] = {}
    names = {prefill.identity.label: "prefill tp0", **{r.identity.label: f"decode tp{r.identity.tp}" for r in decode}}
    for rank in world.ranks:

        def noting(kind: EventKind, rank: Rank = rank, event: object = rank.writer.event, **what: object) -> None:
            if kind is EventKind.STATE and what["room"] == ROOM:
                truth[names[rank.identity.label], int(what["a"])] = world.now  # type: ignore[call-overload]
            event(kind, **what)  # type: ignore[operator]

        rank.writer.event = noting  # type: ignore[method-assign,assignment]
    served(world, prefill, decode, ROOM, RID)
    told = story(world.pasts(), ROOM)
    sure = {line.rank: line.uncertainty_s for line in told.ranks}
    value = {1: "Bootstrapping", 2: "WaitingForInput", 4: "Success"}
    start = truth["prefill tp0", 1]  # the story's reference: the first rank that saw it
    zero = next(e.t_s for e in told.entries if e.rank == "prefill tp0" and e.value == "Bootstrapping")
    for (rank, state), at in truth.items():
        [entry] = [
            e for e in told.entries if e.rank == rank and e.kind in ("state", "handshake") and e.value == value[state]
        ]
        off = abs(entry.t_s - zero - (at - start) / 1e9)
        within = sure[rank]
        assert within is not None
        assert off <= within + 1e-6, (rank, state)


def test_without_messages_the_sides_have_wall_clocks_only(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    pasts = world.pasts()
    for past in pasts[:1]:
        assert past.recording is not None
        past.recording.events().clear()
    told = judge.story(pasts, ROOM)
    lines = {line.rank: line for line in told.ranks}
    assert lines["prefill tp0"].uncertainty_s is None or lines["decode tp0"].uncertainty_s is None
    assert any(line.clock.startswith("wall clocks only") for line in told.ranks)
    assert uncertainty(None) == "± unknown: wall clocks only"


def test_a_message_of_no_room_binds_no_clock(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, 7, "rid-7")
    before = story(world.pasts(), 7)
    prefill.event(EventKind.META_SENT, room=0, slot=3, a=0, b=0)
    assert story(world.pasts(), 7).ranks == before.ranks


def test_a_room_of_another_pair_of_servers_binds_no_clock(world: World) -> None:
    prefill, decode = pair(world)
    other = {"instance": "other", "service": "other:30000"}
    there = world.rank("prefill", host="there", **other), world.rank("decode", host="far", offset=7 * 10**14, **other)
    for n in range(3):
        served(world, prefill, decode, ROOM + n, f"{RID}-{n}", slot=n)
    served(world, there[0], [there[1]], ROOM, "other")
    told = story(world.pasts(), ROOM)
    lines = {line.host: line.clock for line in told.ranks}
    assert "by " in lines["decode-0"]
    assert lines["there"].startswith("wall clocks only")
    assert lines["far"].startswith("wall clocks only")


def test_ranks_of_one_host_have_one_clock(world: World) -> None:
    ranks = [world.rank("prefill", host="h"), *(world.rank("decode", tp, tp_size=2, host="h") for tp in (0, 1))]
    served(world, ranks[0], ranks[1:], ROOM, RID)
    told = story(world.pasts(), ROOM)
    assert {(line.uncertainty_s, line.clock) for line in told.ranks} == {(0.0, "one clock: all ranks ran on one host")}


def test_one_host_name_with_two_clocks_is_noticed(world: World) -> None:
    """Two machines with one name, booted together: their rounds give them away."""
    prefill = world.rank("prefill", host="h")
    decode = [world.rank("decode", tp, tp_size=2, host="h", offset=tp * 5 * 10**9) for tp in (0, 1)]
    served(world, prefill, decode, ROOM, RID)
    told = story(world.pasts(), ROOM)
    assert any("none is taken to be shared" in note for note in told.notes)
    [tp1] = [line for line in told.ranks if line.rank == "decode tp1"]
    assert tp1.uncertainty_s is not None
    assert abs(times(told, "decode tp0", "decision")[-1] - times(told, "decode tp1", "decision")[-1]) < 0.05


def test_the_gate_s_hold_is_one_line_with_its_rounds(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID, late_ms=400)
    told = story(world.pasts(), ROOM)
    [held] = [e for e in told.entries if e.kind == "held"]
    assert held.rank == "decode tp1"
    assert held.rounds == 50
    assert held.until_s is not None
    assert held.until_s - held.t_s == pytest.approx(0.46, abs=0.1)
    [waits] = [e for e in told.entries if e.rank == "decode tp0" and "reduced Transferring" in e.text]
    assert waits.rounds == 50
    [landed] = [e for e in told.entries if e.rank == "decode tp1" and e.kind == "landed"]
    assert "400.0 ms after Success" in landed.text
    assert [e.value for e in told.entries if e.kind == "fault"] == ["delay-metadata"]
    assert [(a.peer, b.rank) for a, b in arrows(told)] == [(0, "decode tp0"), (1, "decode tp1")]


def test_a_rank_that_died_in_a_round_is_last_seen_in_it(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    stays = decode[1]

    request = Request(ROOM + 1, "other", slot=5, poll=2)
    for rank in decode:
        rank.enter("decode.transfer", request)
    world._acting = stays
    tap = stays.tap("decode.transfer")
    tap.visit([request])
    tap.polled([request.poller])
    tap.raw([2])
    tap.entering(0, bytes([2]), 1)
    told = story([world.past(rank, state="dead") for rank in world.ranks], ROOM + 1)
    [last] = [e for e in told.entries if e.kind == "last"]
    assert (last.rank, last.round) == ("decode tp1", 4)
    assert "in its all_reduce of 1 poll, not out of it when this was read" in last.text
    [stay] = [s for s in told.stays if s.rank == "decode tp1"]
    assert stay.until_s is None
    assert any(gap.startswith("decode tp1 is dead: its recording ends at ") for gap in told.gaps)


def test_overwritten_history_is_said(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    for n in range(2000):
        decode[1].event(EventKind.NOTE, room=1, text=str(n))
        world.wait(1)
    told = story(world.pasts(), ROOM)
    [gap] = told.gaps
    assert gap.startswith("decode tp1: older events are overwritten: history before ")
    assert gap.endswith(" is gone")
    # Its rounds are still there, and say what the events no longer do.
    assert not times(told, "decode tp1", "arrival")
    assert times(told, "decode tp1", "decision")
    # A room that came after all that has lost nothing.
    served(world, prefill, decode, ROOM + 1, "later")
    assert story(world.pasts(), ROOM + 1).gaps == ()


def test_overwritten_rounds_are_said(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    for n in range(700):  # more runs than the ring has records
        served_quickly(world, decode, 10**6 + n)
    told = story(world.pasts(), ROOM)
    assert any("rounds of decode.transfer before round" in gap and "decode tp0" in gap for gap in told.gaps)
    assert times(told, "decode tp0", "arrival")


def served_quickly(world: World, decode: list[Rank], room: int) -> None:

    for rank in decode:
        rank.queues["decode.transfer"] = [Request(room, "", slot=1, poll=2)]
    world.round("decode.transfer", decode, reduced=2, skew=0.01)
    world.round("decode.transfer", decode, reduced=0, skew=0.01, leaves=None)


def test_torn_records_and_files_cut_in_half(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    pasts = world.pasts()
    torn = bytearray(world.data(decode[0]))
    events_at = f.layout(f.MIN_SIZE)[4]
    torn[events_at + 2 * f.EVENT_SIZE + 20] ^= 0xFF
    pasts[1] = world.past(decode[0], bytes(torn))
    data = world.data(decode[1])
    pasts[2] = world.past(decode[1], data[: len(data) // 2])
    told = story(pasts, ROOM)
    assert "decode tp0: 1 event record torn and left out" in told.gaps
    assert any(gap.startswith("decode tp1: cut off: ") for gap in told.gaps)
    assert any(
        gap == "decode tp1: no events can be read: arrival, states and messages are not known" for gap in told.gaps
    )
    assert times(told, "decode tp1", "decision")  # its rounds are in the half that is left


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_leaves_a_story_or_says_that_nothing_is_known(world: World, seed: int) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID, late_ms=30)
    rng = random.Random(seed)
    pasts = world.pasts()
    for n, rank in enumerate(decode, 1):
        data = bytearray(world.data(rank))
        for _ in range(rng.randrange(1, 60)):
            data[rng.randrange(f.HEADER_SIZE, len(data))] ^= 1 << rng.randrange(8)
        for _ in range(30):  # damage where something is written, not only in empty rings
            at = rng.choice([f.LIVE_OFFSET, f.RINGS_OFFSET, f.layout(f.MIN_SIZE)[2], f.layout(f.MIN_SIZE)[4]])
            data[at + rng.randrange(2000)] ^= 1 << rng.randrange(8)
        pasts[n] = world.past(rank, bytes(data[: rng.randrange(f.HEADER_SIZE, len(data))]))
    told = story(pasts, ROOM)
    assert times(told, "prefill tp0", "arrival")
    assert told.gaps
    truthful = {(e.rank, e.kind, e.value, e.round) for e in story(world.pasts(), ROOM).entries if e.kind == "decision"}
    assert {(e.rank, e.kind, e.value, e.round) for e in told.entries if e.kind == "decision"} <= truthful
    json.dumps(trace([told]))


def test_ranks_without_a_recording_and_ranks_that_never_saw_it(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    third = world.rank("decode", 0, tp_size=2, dp=1, dp_size=2, offset=3, instance="decode 1")
    silent = msgspec.structs.replace(third.identity, tp=1)
    told = story([*world.pasts(), RankPast(silent, "dead", None, "/dev/shm/x.pdrec is gone")], ROOM)
    lines = {line.rank: line for line in told.ranks}
    assert lines["decode dp1 tp0"].saw is False
    assert "decode dp1 tp1 has no recording: /dev/shm/x.pdrec is gone" in told.gaps


def test_two_starts_of_a_server_are_told_apart(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    later = {"instance": "decode 2", "started_wall_ns": decode[0].identity.started_wall_ns + 9}
    again = [world.rank("decode", tp, tp_size=2, offset=tp, **later) for tp in (0, 1)]
    served(world, prefill, again, ROOM + 1, "second")
    pasts = world.pasts()
    told = story(pasts, ROOM + 1)
    assert {e.rank for e in told.entries} == {"prefill tp0", "decode tp0 #2", "decode tp1 #2"}
    assert {e.rank for e in story(pasts, ROOM).entries} == {"prefill tp0", "decode tp0 #1", "decode tp1 #1"}


def test_a_room_given_to_two_requests_names_both(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, "first")
    served(world, prefill, decode, ROOM, "second")
    told = story(world.pasts(), ROOM)
    assert told.rids == ("first", "second")
    assert f"prefill was given room {ROOM} for 2 requests: first, second" in told.notes
    assert f"decode was given room {ROOM} for 2 requests: first, second" in told.notes
    assert len([e for e in told.entries if e.kind == "arrival" and e.rank == "decode tp0"]) == 2


def test_each_side_may_name_the_request_itself(world: World) -> None:
    """Without a router's id, each server makes one up."""
    prefill, decode = pair(world)
    event = prefill.writer.event

    def renamed(kind: int, *, text: str = "", **what: Any) -> None:
        event(kind, text="mine" if text == RID else text, **what)

    prefill.writer.event = renamed  # type: ignore[method-assign]
    served(world, prefill, decode, ROOM, RID)
    told = story(world.pasts(), ROOM)
    assert set(told.rids) == {"mine", RID}
    assert told.notes == ()


def test_addresses_that_come_before_the_request_still_bind_the_clocks(world: World) -> None:
    """Decode was first: prefill's state is made WaitingForInput, and Bootstrapping never shows."""
    prefill, decode = pair(world)
    event = prefill.writer.event

    def late(kind: int, **what: Any) -> None:
        if (kind, what.get("a")) != (EventKind.STATE, 1):
            event(kind, **what)

    prefill.writer.event = late  # type: ignore[method-assign]
    served(world, prefill, decode, ROOM, RID)
    sure = [line.uncertainty_s for line in story(world.pasts(), ROOM).ranks]
    assert all(within is not None and within < 0.05 for within in sure)


def test_aborts_by_request_id(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    decode[0].event(EventKind.ABORT, text=RID)
    decode[1].event(EventKind.ABORT, text="another")
    decode[1].event(EventKind.ABORT, text="all requests")  # it is over there: not its abort
    told = story(world.pasts(), ROOM)
    assert [(e.rank, e.value) for e in told.entries if e.kind == "abort"] == [("decode tp0", RID)]


# ---- which room is meant ---------------------------------------------------------------------------------------------


def test_kv_that_its_checksum_says_is_wrong(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID, slot=1)
    for rank in decode:
        rank.queues["decode.checksum"] = [Request(ROOM, RID, poll=rank.identity.tp)]
    world.round("decode.checksum", decode, reduced=1, leaves=Action.KEPT)
    for rank, text in zip(decode, (f"{WRONG_ELSEWHERE} req={RID}", f"{WRONG_KV} req={RID} got=0x1"), strict=True):
        rank.event(EventKind.FAILURE, room=ROOM, text=text)
        rank.queues["decode.checksum"] = [Request(ROOM + 1, "another", poll=0)]
    world.round("decode.checksum", decode, reduced=0, leaves=Action.KEPT)
    told = story(world.pasts(), ROOM)
    assert [(e.rank, e.text) for e in told.entries if e.queue == "decode.checksum"] == [
        ("decode tp0", "round 0 of decode.checksum: own flag right, reduced wrong, for 1 round"),
        ("decode tp1", "round 0 of decode.checksum: flag wrong, for 1 round"),
    ]
    assert sorted((e.rank, e.text) for e in told.entries if e.kind == "failure") == [
        ("decode tp0", "the engine dropped it: its KV was wrong on another rank of the group"),
        ("decode tp1", "the engine dropped it: its KV was not what prefill sent, by its checksum"),
    ]
    assert not told.gaps
    assert "decode.checksum" not in {stay.queue for stay in told.stays}


def test_why_the_engine_failed_it(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID, slot=1)
    decode[1].event(EventKind.FAILURE, room=ROOM, text="Lost connection with prefill instance")
    [why] = [e for e in story(world.pasts(), ROOM).entries if e.kind == "failure"]
    assert (why.rank, why.text) == (
        "decode tp1",
        "the engine's reason of its failure: Lost connection with prefill instance",
    )


def test_rooms_by_number_and_by_request_id(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    served(world, prefill, decode, ROOM + 1, "8")  # a request id that looks like a room
    served(world, prefill, decode, 8, "x" * 100)
    served(world, prefill, decode, 9, RID)
    recordings = [past.recording for past in world.pasts() if past.recording is not None]
    known = known_rooms(recordings)
    assert known[0].room == 9
    assert meant(str(ROOM), known, recordings) == [ROOM]
    assert meant("8", known, recordings) == [8, ROOM + 1]
    assert meant("x" * 100, known, recordings) == [8]
    assert meant(RID, known, recordings) == [ROOM, 9]
    for wrong in ("7203442x", "0", "-5", str(1 << 64), str(1 << 70), "²", ""):
        assert meant(wrong, known, recordings) == []
    assert nearest("7203", known)[0].startswith("720344")
    assert nearest("request-7", known)[0] == f"9 (rid {RID})"
    assert nearest("zzz", known) == [
        "9 (rid request-1)",
        f"8 (rid {'x' * 72})",
        f"{ROOM + 1} (rid 8)",
        f"{ROOM} (rid {RID})",
    ]
    assert nearest("zzz", []) == []


# ---- trace -----------------------------------------------------------------------------------------------------------


def test_the_trace_has_a_track_for_each_rank_s_queues_states_and_polls(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID, late_ms=100)
    told = story(world.pasts(), ROOM)
    made = json.loads(msgspec.json.encode(trace([told])))
    events = made["traceEvents"]
    names = {(e["pid"], e["args"]["name"].split(" (")[0]) for e in events if e["name"] == "process_name"}
    assert [name for _, name in sorted(names)] == ["prefill tp0", "decode tp0", "decode tp1"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {t for (pid, _), t in threads.items() if pid == 3} == {
        "events", "state", "in decode.prealloc", "in decode.transfer", "poll in decode.prealloc", "poll in decode.transfer",
    }  # fmt: skip
    timed = [e for e in events if e["ph"] != "M"]
    assert all((e["pid"], e["tid"]) in threads and e["ts"] >= 0 for e in timed)
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    # An arrow starts and ends inside a slice of its own track, or Perfetto drops it.
    flows = [e for e in timed if e["ph"] in "sf"]
    assert sorted((e["id"], e["ph"]) for e in flows) == [(1, "f"), (1, "s"), (2, "f"), (2, "s")]
    slices = [e for e in timed if e["ph"] == "X"]
    for flow in flows:
        around = [s for s in slices if (s["pid"], s["tid"]) == (flow["pid"], flow["tid"])]
        assert any(s["ts"] <= flow["ts"] < s["ts"] + s["dur"] and timed.index(s) < timed.index(flow) for s in around)
    # Slices of one track are one after the other or one within the other: Perfetto drops what overlaps.
    for track in threads:
        own = [s for s in slices if (s["pid"], s["tid"]) == track]
        for s, t in [
            (s, t) for s in own for t in own if s is not t and s["ts"] <= t["ts"] and timed.index(s) < timed.index(t)
        ]:
            ends = s["ts"] + s["dur"]
            assert t["ts"] >= ends - 0.002 or t["ts"] + t["dur"] <= ends + 0.002, (s, t)


def test_a_trace_of_two_rooms_has_both_on_one_time_line(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    world.wait(500)
    served(world, prefill, decode, ROOM + 1, RID)
    pasts = world.pasts()
    made = trace([story(pasts, ROOM), story(pasts, ROOM + 1)])
    first = min(e["ts"] for e in made["traceEvents"] if e["name"].startswith(f"room {ROOM}:"))
    second = min(e["ts"] for e in made["traceEvents"] if e["name"].startswith(f"room {ROOM + 1}:"))
    assert first == 0
    assert second > 500 * MS / 1000


def decode_only(world: World, prefill: Rank, decode: Rank) -> None:
    """A request that was sent to decode only; decode tells prefill its addresses."""
    request = Request(ROOM, RID, slot=3, poll=2)
    decode.event(EventKind.STATE, room=ROOM, a=1)
    decode.enter("decode.prealloc", request)
    world.round("decode.prealloc", [decode], reduced=2, leaves=Action.MOVED)
    decode.enter("decode.transfer", request)
    prefill.event(EventKind.STATE, room=ROOM, a=2)
    world.round("decode.transfer", [decode], reduced=2)


def test_a_request_that_never_came_to_one_side(world: World) -> None:
    prefill, decode = world.rank("prefill"), world.rank("decode")
    decode_only(world, prefill, decode)
    told = story(world.pasts(), ROOM)
    [state] = [entry for entry in told.entries if entry.rank == "prefill tp0"]
    assert state.text == "told by decode: state WaitingForInput"
    [gap] = told.gaps
    assert gap == "whether it came to prefill: prefill tp0 last took in requests, too early to tell"
    world.wait(3000)
    world.round("prefill.bootstrap", [prefill], reduced=2)  # it takes its turns, and has nothing to do
    told = story(world.pasts(), ROOM)
    assert told.gaps == ()
    [note] = told.notes
    assert note.startswith("it never came to prefill: prefill tp0 took in requests until ")
    assert note.endswith(", and no request with this room")


def test_a_server_that_ended_before_a_request_came_never_had_it(world: World) -> None:
    old, prefill, decode = (
        world.rank("prefill", service="old", instance="old 1"),
        world.rank("prefill"),
        world.rank("decode"),
    )
    world.round("prefill.bootstrap", [old], reduced=2)
    world.wait(5000)
    decode_only(world, prefill, decode)
    world.wait(3000)
    world.round("prefill.bootstrap", [prefill], reduced=2)
    here = [world.past(prefill), world.past(decode)]
    [note] = story([world.past(old, state="dead"), *here], ROOM).notes
    assert note.startswith("it never came to prefill: prefill tp0 prefill:30000 took in requests until ")
    assert note.endswith("; prefill tp0 old had ended before")
    hangs = story([world.past(old, state="live"), *here], ROOM)
    assert (hangs.notes, len(hangs.gaps)) == ((), 1)  # it may be unread there


def test_a_room_that_two_servers_were_given_names_both(world: World) -> None:
    prefill, decode = pair(world)
    other = world.rank("prefill", service="other", instance="other 1")
    served(world, prefill, decode, ROOM, RID)
    assert story(world.pasts(), ROOM).notes == ()
    other.enter("prefill.bootstrap", Request(ROOM + 1, "second", poll=1))
    served(world, prefill, decode, ROOM + 1, "first")
    [note] = story(world.pasts(), ROOM + 1).notes
    assert note == f"prefill was given room {ROOM + 1} for 2 requests: first (prefill prefill:30000), second (other)"
    other.enter("prefill.bootstrap", Request(ROOM, RID, poll=1))
    assert story(world.pasts(), ROOM).notes == (f"room {ROOM} went to 2 prefill servers: other, prefill prefill:30000",)


def test_a_request_that_came_late_came(world: World) -> None:
    prefill, decode = world.rank("prefill"), world.rank("decode")
    decode_only(world, prefill, decode)
    world.wait(52_000)
    prefill.enter("prefill.bootstrap", Request(ROOM, RID, poll=2))
    world.round("prefill.bootstrap", [prefill], reduced=2)
    told = story(world.pasts(), ROOM)
    assert (told.gaps, told.notes) == ((), ())
    assert "state WaitingForInput" in {entry.text for entry in told.entries if entry.rank == "prefill tp0"}


def test_a_side_of_which_a_part_has_no_recording_may_have_had_it(world: World) -> None:
    prefill, decode = world.rank("prefill"), world.rank("decode")
    decode_only(world, prefill, decode)
    world.wait(3000)
    world.round("prefill.bootstrap", [prefill], reduced=2)
    other = RankPast(msgspec.structs.replace(prefill.identity, dp=1, dp_size=2), "live", None, "switched off")
    told = story([*world.pasts(), other], ROOM)
    assert "whether it came to prefill: not every prefill rank has a recording" in told.gaps
    assert not any("never came" in note for note in told.notes)


def test_a_dead_rank_has_no_event_after_the_end_of_its_recording(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    world.wait(5000)
    decode[1].event(EventKind.NOTE, room=ROOM, text="a thread of the engine goes on")
    told = story([world.past(rank, state="dead") for rank in world.ranks], ROOM)
    [note] = [entry for entry in told.entries if entry.kind == "note"]
    assert f"decode tp1 is dead: its recording ends at {note.time[11:23]}" in told.gaps


def test_what_no_recording_knows(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    pasts = world.pasts()
    now_ns = pasts[0].recording.start_wall_ns + 10**10  # type: ignore[union-attr]
    said, hint = never_came("4711", pasts, now_ns)
    assert said == "room 4711 never came here: 3 recordings, complete since 2026-09-21 14:13:21 UTC, do not have it"
    assert hint == "Look in the router's log for the servers that it was sent to: ask those next."
    said, hint = never_came("its-rid", pasts[:1], now_ns)
    assert said.startswith("rid its-rid never came here: 1 recording, ")
    assert hint.startswith("No decode rank is in sight: ask there next")
    silent = RankPast(prefill.identity, "live", None, "switched off")
    said, _ = never_came("4711", [*pasts, silent], now_ns)
    assert said == "room 4711 is unknown here: no recording has it, and 1 rank has no recording that can be read"
    live = [world.past(rank, state="live") for rank in world.ranks]
    said, _ = never_came("4711", live, now_ns + 45 * 10**9)
    assert said.startswith("room 4711 is unknown here: no recording has it, and prefill tp0 last took in requests ")
    assert said.endswith(" ago: it may be unread there")


def test_one_request_id_of_two_rooms(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode, ROOM, RID)
    served(world, prefill, decode, ROOM + 1, RID)
    pasts = world.pasts()
    one, two = story(pasts, ROOM), story(pasts, ROOM + 1)
    assert shared([one, two]) == ()  # one after the other: a retry
    known = known_rooms([past.recording for past in pasts if past.recording is not None])
    assert list(others_of(one, known)) == [f"rid {RID} is also that of room {ROOM + 1}: pdctl story {RID} tells all"]
    [found] = shared([one, msgspec.structs.replace(two, started=one.started)])
    assert (found.code, found.rooms) == ("PD147", (ROOM, ROOM + 1))
    assert found.summary == f"rid {RID} has 2 rooms at the same time: {ROOM}, {ROOM + 1}."


def test_dp_ranks_that_need_not_know_a_room_are_not_said_to_miss_it(world: World) -> None:
    prefill, decode = pair(world)
    world.rank("decode", dp=1, dp_size=2)
    world.rank("prefill", dp=1, dp_size=2)
    served(world, prefill, decode, ROOM, RID)
    told = story(world.pasts(), ROOM)
    assert {line.rank: line.elsewhere for line in told.ranks if not line.saw} == {
        "decode dp1 tp0": True, "prefill dp1 tp0": True,
    }  # fmt: skip
    assert not any("never on" in line for line in drawn(told))


def test_a_rank_of_the_group_that_has_the_room_is_said_to_miss_it(world: World) -> None:
    prefill, decode = pair(world)
    served(world, prefill, decode[:1], ROOM, RID)
    told = story(world.pasts(), ROOM)
    assert [line.rank for line in told.ranks if not line.saw and not line.elsewhere] == ["decode tp1"]
    assert any("never on decode tp1" in line for line in drawn(told))


def drawn(told: RoomStory) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=160)
    for part in render(StoryDocument(asked=str(told.room), stories=(told,))):
        console.print(part)
    return out.getvalue().splitlines()
