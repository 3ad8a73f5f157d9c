"""The judge of queues, on recordings that real taps wrote while an engine-like group took its turns."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.agent.tap import QueueTap
from pdctl.probes.queues.explain import _advice
from pdctl.probes.queues.judge import unconfirmed
from pdctl.probes.queues.model import QueuesDocument, RankView
from pdctl.probes.turns import RUNNING, Turn
from pdctl.protocol.model import QUEUES, Action, Call, EventKind, GroupInfo, Identity, QueueEntry, Snapshot, Status
from pdctl.recording import format as f
from pdctl.recording.reader import parse
from pdctl.recording.writer import RecordingWriter
from pdctl.report.findings import Level
from tests.support.excerpted import excerpted, judge
from tests.support.identities import identity

FAILED, WAITING, TRANSFERRING, SUCCESS = 0, 2, 3, 4


@dataclass(eq=False)
class Request:
    room: int
    slot: int
    poller: object = field(default_factory=object)


@dataclass
class Rank:
    """One rank of a decode group: its queue, its slots, its recording."""

    number: int
    size: int
    folder: Path
    instance: str = "i"
    lacks: tuple[str, ...] = ()
    queue_name: str = "decode.transfer"

    def __post_init__(self) -> None:
        self.slots: dict[int, int] = {}
        self.queue: list[Request] = []
        group = GroupInfo("attn-tp", tuple(range(self.size)), f"w{self.instance}")
        self.identity = Identity(
            engine="sglang",
            engine_version="0.5.x",
            pdctl_version="0",
            role="decode",
            host="h",
            pid=os.getpid(),
            proc_start=1,
            started_wall_ns=1,
            started_mono_ns=1,
            instance=self.instance,
            service="s",
            cluster="c",
            world=f"w{self.instance}",
            world_rank=self.number,
            tp=self.number,
            tp_size=self.size,
            groups=(group,),
            lacks=self.lacks,
        )
        self.path = self.folder / f"{self.instance}-{self.number}"
        self.writer = RecordingWriter.create(self.path, msgspec.json.encode(self.identity), size=f.MIN_SIZE)
        streams = count()
        self.tap = QueueTap(self.queue_name, self, self.writer, lambda: next(streams))

    def describe(self, entry: Any) -> tuple[int, int]:
        return entry.room, entry.slot

    def found(self, slots: Any) -> list[int]:
        return [self.slots.get(slot, 0) for slot in slots]

    def arrive(self, *rooms: int) -> None:
        self.queue = [*self.queue, *(Request(room, room % 1024) for room in rooms)]

    def enter(self, polls: dict[int, int], gate: bool) -> list[int] | None:
        """Visit, poll and enter the collective; None when the queue is empty and the rank skips it."""
        self.tap.visit(self.queue)
        if not self.queue:
            return None
        self.tap.polled([request.poller for request in self.queue])
        local = [polls.get(request.room, TRANSFERRING) for request in self.queue]
        if gate:
            self.tap.raw(local)
            local = [
                TRANSFERRING if poll == SUCCESS and self.slots.get(r.slot, 0) == 0 else poll
                for poll, r in zip(local, self.queue, strict=True)
            ]
        self.tap.entering(0, bytes(local), 1)
        return local

    def apply(self, reduced: list[int], zero_on_free: bool = True) -> None:
        self.tap.left(0, bytes(reduced), 1)
        stays = []
        for request, poll in zip(self.queue, reduced, strict=True):
            if poll == SUCCESS:
                found = self.slots.get(request.slot, 0)
                late = Action.KEPT if found == 0 and "gate" in self.lacks else Action.ABORTED
                action = Action.COMMITTED if found == request.room else late
                self.tap.decided(request, action, found)
                if action is Action.KEPT:
                    stays.append(request)
                elif zero_on_free:
                    self.slots[request.slot] = 0
            elif poll != FAILED:
                stays.append(request)
        self.queue = stays
        self.tap.leave(stays)

    def view(self, **more: Any) -> RankView:
        recording = parse(self.path.read_bytes())
        how = {"state": "live", "now_ns": recording.start_mono_ns + 10**12, **more}
        return RankView(identity=self.identity, recording=recording, **how)


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., list[Rank]]:
    return lambda size=2, **more: [Rank(n, size, tmp_path, **more) for n in range(size)]


def turn(group: list[Rank], polls: list[dict[int, int]] | None = None, *, gate: bool = False) -> bool:
    """One turn of a group in step: positional MIN over what each rank brings. False when they would hang."""
    brought = [rank.enter((polls or [{}] * len(group))[n], gate) for n, rank in enumerate(group)]
    lists = [b for b in brought if b is not None]
    if len(lists) < len(group) or len({len(b) for b in lists}) > 1:
        return not lists  # someone waits for ever
    reduced = [min(column) for column in zip(*lists, strict=True)]
    for rank in group:
        rank.apply(reduced)
    return True


def judged(group: list[Rank], **more: Any) -> QueuesDocument:
    return judge([rank.view() for rank in group], **more)


def test_metadata_late_on_one_rank_without_a_gate(ranks: Callable[..., list[Rank]]) -> None:
    a, b = group = ranks(lacks=("gate",))
    for rank in group:
        rank.arrive(71, 72, 73)
    for _ in range(40):
        assert turn(group)
    a.slots[71] = 71
    assert turn(group, [{71: SUCCESS}, {71: SUCCESS}])
    b.writer.event(EventKind.LANDED, room=71, slot=71, a=5_900_000_000, b=71)
    assert not turn(group)
    document = judged(group)
    [report] = document.groups
    assert (report.verdict, report.queue, report.round) == ("DIVERGED", "decode.transfer", 40)
    [split] = report.splits
    assert split.room == 71
    assert [(s.rank, s.action, s.slot, s.found) for s in split.sides] == [
        ("tp0", "committed", 71, 71),
        ("tp1", "kept", 71, 0),
    ]
    assert split.sides[1].landed_s == pytest.approx(5.9)
    [finding] = document.findings
    assert (finding.code, finding.level, finding.rooms, finding.ranks) == ("PD101", Level.ERROR, (71,), ("tp0", "tp1"))
    assert "no metadata gate" in finding.versions
    assert "upgrade decode to 0.5.13 or newer" in finding.next_step
    [row] = report.queues
    assert (row.lengths, row.verdict, row.text) == ((2, 3), "diverged", "room 71 is on tp1 only")


def test_the_same_where_a_gate_let_it_through_is_an_abort_and_has_the_same_cause(
    ranks: Callable[..., list[Rank]],
) -> None:
    group = ranks()
    for rank in group:
        rank.arrive(71)
    group[0].slots[71] = 71
    assert turn(group, [{71: SUCCESS}, {71: SUCCESS}])
    document = judged(group)
    [split] = document.groups[0].splits
    assert [(s.rank, s.action, s.found) for s in split.sides] == [("tp0", "committed", 71), ("tp1", "aborted", 0)]
    [finding] = document.findings
    assert (finding.code, finding.rooms) == ("PD101", (71,))
    assert "has a metadata gate, and yet this happened" in finding.versions
    assert "an upgrade that would prevent it is not known" in finding.next_step


@pytest.mark.parametrize("version", ["0.5.14", "0.5.13.post1", "0.5.20+cu128", "0.5.13.dev12+g123", "nightly", ""])
@pytest.mark.parametrize("code", ["PD101", "PD107"])
def test_nobody_is_told_to_upgrade_to_a_version_that_they_have(code: str, version: str) -> None:
    """A release with the gate that lacks it here was changed; what a build before its release has, its number does not tell."""
    said, step = _advice(code, identity(engine="sglang", engine_version=version, lacks=("gate",)))
    changed = version[:1] == "0" and "dev" not in version
    assert ("install the release as it is" in step) is changed
    assert ("from 0.5.13 on" in said) is not changed
    assert said.split(" ")[0 if not changed else 1].startswith("SGLang")
    assert "  " not in said


def test_the_same_with_a_gate_is_held_and_clean(ranks: Callable[..., list[Rank]]) -> None:
    a, b = group = ranks()
    for rank in group:
        rank.arrive(71, 72)
    a.slots[71] = 71
    for _ in range(25):
        assert turn(group, [{71: SUCCESS}, {71: SUCCESS}], gate=True)
    document = judged(group)
    assert [(g.verdict, g.compared) for g in document.groups] == [("HELD", {"decode.transfer": 25})]
    [finding] = document.findings
    assert (finding.code, finding.level) == ("PD102", Level.INFO)
    assert "held by the gate on tp1 for 25 rounds" in finding.summary
    b.slots[71] = 71
    assert turn(group, [{71: SUCCESS}, {71: SUCCESS}], gate=True)
    document = judged(group)
    assert (document.groups[0].verdict, document.findings) == ("AGREE", ())
    assert "room 71 on tp1 until round 24 (25 rounds" in document.groups[0].queues[0].text


def test_late_on_two_ranks_of_four_names_both(ranks: Callable[..., list[Rank]]) -> None:
    group = ranks(4, lacks=("gate",))
    for rank in group:
        rank.arrive(5)
    for n in (0, 2):
        group[n].slots[5] = 5
    assert turn(group, [{5: SUCCESS}] * 4)
    [finding] = judged(group).findings
    assert finding.code == "PD101"
    assert "landed on tp0 and tp2 before tp1 and tp3" in finding.summary


@pytest.mark.parametrize(
    ("lacks", "says", "advises"),
    [
        (
            ("gate",),
            "SGLang 0.5.x does not zero slots when it frees them; SGLang does from 0.5.13 on.",
            "Upgrade decode",
        ),
        (
            (),
            "SGLang 0.5.x zeroes slots when it frees them: the room was written after that, late.",
            "pdctl story of the room found there",
        ),
    ],
)
def test_a_stale_owner_is_not_called_late_metadata(
    ranks: Callable[..., list[Rank]], lacks: tuple[str, ...], says: str, advises: str
) -> None:
    a, b = group = ranks(lacks=lacks)
    for rank in group:
        rank.arrive(21)
    a.slots[21], b.slots[21] = 21, 5
    assert turn(group, [{21: SUCCESS}] * 2, gate=True)
    [finding] = judged(group).findings
    assert finding.code == "PD107"
    assert "tp1 slot 21 held room 5" in finding.summary
    assert finding.versions == says
    assert finding.next_step.startswith("Restart this decode server now")
    assert advises in finding.next_step
    assert ("Upgrade" in finding.next_step) == bool(lacks)
    assert judged(group).groups[0].queues[0].text == "room 21 was committed on tp0 and aborted on tp1"


def test_empty_against_one_is_a_skipped_collective(ranks: Callable[..., list[Rank]]) -> None:
    _a, b = group = ranks()
    for _ in range(3):
        assert turn(group)
    b.arrive(9)
    assert not turn(group)
    [report] = judged(group).groups
    [finding] = judged(group).findings
    assert (finding.code, finding.ranks, finding.rooms) == ("PD103", ("tp0",), (9,))
    assert (report.verdict, report.round, report.queues[0].lengths) == ("DIVERGED", 0, (0, 1))


@pytest.mark.parametrize(("entered", "code"), [
    (("decode.pending",), "PD106"),
    (("decode.prealloc", "decode.pending"), "PD103"),  # a receiver that is enqueued on arrival, then taken off this rank
    (("decode.pending", "decode.prealloc"), "PD103"),
])  # fmt: skip
@pytest.mark.parametrize("answers", [False, True])
def test_pending_is_who_never_was_in_the_handshake(
    ranks: Callable[..., list[Rank]], entered: tuple[str, ...], code: str, answers: bool
) -> None:
    a, b = ranks(queue_name="decode.prealloc")
    for queue in ("decode.prealloc", "decode.pending"):  # an earlier request with this room, long gone
        a.writer.event(EventKind.ENQUEUE, queue=QUEUES.index(queue), room=9, text="earlier")
    for queue in entered:
        a.writer.event(EventKind.ENQUEUE, queue=QUEUES.index(queue), room=9, text="r9")
    b.arrive(9)
    assert not turn([a, b])
    now = Snapshot(0, 0, {"decode.pending": [QueueEntry(9, "r9")]}, [], {})
    [finding] = judge([a.view(snapshot=now if answers else None), b.view()]).findings
    assert (finding.code, finding.rooms) == (code, (9,))


def test_a_skipped_collective_shows_even_after_the_rank_went_on(ranks: Callable[..., list[Rank]]) -> None:
    a, b = group = ranks()
    for rank in group:
        rank.arrive(1)
    assert turn(group)
    a.queue = []  # taken off this rank alone
    a.enter({}, gate=False)
    b.enter({}, gate=False)
    a.arrive(1)
    a.enter({}, gate=False)  # pairs with the round that b entered a turn earlier
    [finding] = judged(group).findings
    assert (finding.code, finding.ranks) == ("PD103", ("tp0",))


def test_n_against_m_and_one_different_rid(ranks: Callable[..., list[Rank]]) -> None:
    a, _b = group = ranks()
    for rank in group:
        rank.arrive(1, 2, 3)
    assert turn(group)
    a.queue = a.queue[1:]
    assert not turn(group)
    [finding] = judged(group).findings
    assert (finding.code, finding.rooms) == ("PD104", (1,))
    assert "tp0 2, tp1 3" in finding.summary
    assert "room 1 is on tp1 only" in finding.summary


def test_same_length_different_rooms_and_order(ranks: Callable[..., list[Rank]], tmp_path: Path) -> None:
    a, b = group = ranks()
    a.arrive(1, 2)
    b.arrive(1, 3)
    assert turn(group)
    [finding] = judged(group).findings
    assert (finding.code, set(finding.rooms)) == ("PD104", {2, 3})
    (tmp_path / "o").mkdir()
    c, d = [Rank(n, 2, tmp_path / "o") for n in range(2)]
    c.arrive(1, 2)
    d.arrive(2, 1)
    assert turn([c, d])
    [finding] = judged([c, d]).findings
    assert finding.code == "PD105"


def test_nothing_is_compared_across_starts_of_a_server(tmp_path: Path) -> None:
    old, new = Rank(0, 2, tmp_path, instance="old"), Rank(1, 2, tmp_path, instance="new")
    old.arrive(1)
    new.arrive(2, 3)
    old.enter({}, gate=False)
    new.enter({}, gate=False)
    document = judge([old.view(), new.view()], stalled_s=10**9)
    assert not document.findings
    assert [group.verdict for group in document.groups] == ["UNKNOWN", "UNKNOWN"]


def test_a_straggler_is_named_only_after_a_while(ranks: Callable[..., list[Rank]]) -> None:
    a, _b = group = ranks()
    for rank in group:
        rank.arrive(1)
    assert turn(group)
    a.enter({}, gate=False)
    document = judged(group, stalled_s=10**9)
    assert not document.findings
    assert (document.groups[0].leaders, document.groups[0].stragglers) == ((), ())
    document = judged(group, stalled_s=5)
    [finding] = document.findings
    assert (finding.code, finding.ranks, finding.level) == ("PD110", ("tp1",), Level.WARNING)
    assert (document.groups[0].leaders, document.groups[0].stragglers) == (("tp0",), ("tp1",))


def test_who_is_waited_for_outside_of_rounds_is_named_as_well(ranks: Callable[..., list[Rank]]) -> None:
    """tp0 waits in a collective of the model, and tp1 is where neither work nor waiting takes it."""
    a, b = group = ranks()
    for rank in group:
        rank.arrive(1)
    assert turn(group)
    model = Call("all_reduce", "tp", 64, "model forward", seq=18, pg="7")
    waits = Turn(turned=False, age_s=34.0, doing="model forward", state=RUNNING, stood_s=2.0, call=model)
    away = Turn(turned=False, age_s=34.5, doing="acquire (threading.py:320)", state=RUNNING, stood_s=2.0)
    document = judge([a.view(turn=waits), b.view(turn=away)])
    assert document.groups[0].verdict == "WAITING"
    [found] = document.findings
    assert (found.code, found.ranks, found.summary) == ("PD110", ("tp1",), "tp0 has waited 34 s for tp1")
    for well in (replace(away, computing=True), replace(away, age_s=3.0), replace(away, turned=True), None):
        document = judge([a.view(turn=waits), b.view(turn=well)])
        assert (document.groups[0].verdict, document.findings) == ("AGREE", ())
    document = judge([a.view(turn=replace(waits, stood_s=0.0)), b.view(turn=away)])  # it may wait since just now
    assert (document.groups[0].verdict, document.findings) == ("AGREE", ())


def test_nobody_waits_on_after_its_end(ranks: Callable[..., list[Rank]]) -> None:
    """A server that was shut down, one rank in a round that the other did not come to any more: nobody waited long."""
    a, b = group = ranks()
    for rank in group:
        rank.arrive(1)
    assert turn(group)
    a.enter({}, gate=False)
    both = [rank.view(state="dead", ended=True) for rank in group]
    assert not judge(both, stalled_s=5).findings
    [finding] = judge([both[0], b.view()], stalled_s=5).findings  # the one that did not come is still there
    assert finding.code == "PD110"
    assert re.fullmatch(r"tp0 waited for tp1, for \d+ s at most, and ended", finding.summary)


def test_one_rank_silent_and_the_other_waits_for_it(ranks: Callable[..., list[Rank]]) -> None:
    a, b = group = ranks()
    for rank in group:
        rank.arrive(1)
    a.enter({}, gate=False)
    silent = RankView(identity=b.identity, state="live", silence="no answer within 2 s: stopped (state T)")
    document = judge([a.view(flight_off="no answer within 5 s: busy"), silent], stalled_s=5)
    assert document.groups[0].pairing == ("flight recorder of tp0: not read, no answer within 5 s: busy",)
    [finding] = document.findings
    assert (finding.code, finding.ranks) == ("PD110", ("tp1",))
    assert "state T" in finding.evidence[0]
    assert document.partial


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 4), turns=st.integers(0, 120), gate=st.booleans())
def test_a_healthy_group_read_at_any_moments_has_no_finding(
    seed: int, size: int, turns: int, gate: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = random.Random(seed)
    group = [Rank(n, size, tmp_path_factory.mktemp("r")) for n in range(size)]
    rooms = count(1)
    views: list[RankView | None] = [None] * size
    for _ in range(turns):
        arrivals = [next(rooms) for _ in range(chance.choice([0, 0, 0, 1, 2]))]
        for rank in group:
            rank.arrive(*arrivals)
        common = [r.room for r in group[0].queue]
        polls = [{room: chance.choice([WAITING, TRANSFERRING, SUCCESS]) for room in common} for _ in group]
        fails = {room: FAILED for room in common if chance.random() < 0.05}
        for n, rank in enumerate(group):
            polls[n].update(fails)
            for request in rank.queue:
                # with a gate metadata may be late anywhere; without one it has always landed by Success
                if not gate or chance.random() < 0.6:
                    rank.slots[request.slot] = request.room
        assert turn(group, polls, gate=gate)
        if chance.random() < 0.05:
            views[chance.randrange(size)] = group[chance.randrange(size)].view() and None
            n = chance.randrange(size)
            views[n] = group[n].view()  # this rank is read now, the others later
    document = judge([view or rank.view() for view, rank in zip(views, group, strict=True)])
    assert [f for f in document.findings if f.level is not Level.INFO] == []


@pytest.mark.parametrize(
    ("how", "verdict"),
    [({"silence": "process has ended", "ended": True}, "UNKNOWN"), ({"silence": "no answer within 2 s"}, "UNKNOWN"),
     ({"stands": True}, "WAITING")],
)  # fmt: skip
def test_ranks_agree_only_where_every_one_was_heard_and_turns(
    ranks: Callable[..., list[Rank]], how: dict[str, Any], verdict: str
) -> None:
    a, b = group = ranks()
    for rank in group:
        rank.arrive(5)
    assert turn(group)
    assert judged(group).groups[0].verdict == "AGREE"
    [report] = judge([a.view(), b.view(**how)]).groups
    assert report.verdict == verdict
    [row] = report.queues
    if "silence" in how:
        assert (row.verdict, row.text) == ("unknown", "recorded rounds agree; tp1 has not answered")


def test_without_rounds_a_difference_counts_only_once_it_has_lasted(ranks: Callable[..., list[Rank]]) -> None:
    a, b = ranks()

    def look(*lists: list[int]) -> list[RankView]:
        views = []
        for rank, rooms in zip((a, b), lists, strict=True):
            queues: Any = {"decode.transfer": [(room, f"r{room}") for room in rooms]}
            body = msgspec.msgpack.encode({"mono_ns": 1, "ticks": 1, "queues": queues, "slots": [], "missing": {}})
            snapshot = msgspec.msgpack.decode(body, type=Snapshot)
            views.append(
                RankView(
                    identity=rank.identity,
                    state="live",
                    snapshot=snapshot,
                    recording_off="disk full",
                    status=_status(rank.identity),
                )
            )
        return views

    first = look([1], [1, 2])
    assert unconfirmed(first)
    assert not unconfirmed(look([2], [1, 2]), first)
    assert not unconfirmed(look([1, 2], [1, 2]), first)
    assert unconfirmed(look([1], [1, 2]), first)
    assert judge(first, confirmed=False).findings == ()
    [finding] = judge(first, confirmed=True).findings
    assert (finding.code, finding.level) == ("PD111", Level.WARNING)
    assert "tp1 has rooms 1, 2" in finding.summary


def _status(identity: Identity) -> Status:
    return Status(
        identity=identity,
        mono_ns=1,
        ticks=1,
        tick_mono_ns=1,
        call=Call(),
        stack=(),
        rounds={},
        seams=(),
        recording="",
        recording_off="disk full",
        hook_errors={},
        hooks_removed=(),
        faults=(),
        agent_cpu_s=0.0,
    )


def test_requests_lost_from_a_recording_are_unknown_and_not_absent(ranks: Callable[..., list[Rank]]) -> None:
    a, b = group = ranks(lacks=("gate",))
    for rank in group:
        rank.arrive(71)
    a.slots[71] = 71
    assert turn(group, [{71: SUCCESS}] * 2)
    assert [f.code for f in judged(group).findings] == ["PD101"]
    whole = b.view()
    cut = parse(b.path.read_bytes()[: f.layout(f.MIN_SIZE)[2]])  # up to where the requests begin
    document = judge([a.view(), RankView(identity=b.identity, state="dead", recording=cut, now_ns=whole.now_ns)])
    [finding] = document.findings
    assert finding.code == "PD108"
    assert "what tp1 had can't be read" in finding.summary
    assert [side.action for side in document.groups[0].splits[0].sides] == ["committed", "not readable"]
    assert "on no rank" not in document.groups[0].queues[0].text


def test_two_servers_with_groups_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    pairs = []
    for service in ("decode@a", "decode@b"):
        folder = tmp_path / service
        folder.mkdir()
        pairs += [Rank(n, 2, folder, instance=service) for n in range(2)]
    views = [rank.view() for rank in pairs]
    views = [replace(v, identity=msgspec.structs.replace(v.identity, service=v.identity.instance)) for v in views]
    titles = [group.title for group in judge(views).groups]
    assert [title.rpartition(" · ")[2] for title in titles] == ["decode@a", "decode@b"]
    assert judge(views[:2]).groups[0].title.endswith("group of 2")


def test_rounds_of_a_rank_whose_hooks_failed_are_not_compared(ranks: Callable[..., list[Rank]]) -> None:
    group = ranks()
    for rank in group:
        rank.arrive(7)
    turn(group)
    group[0].enter({}, gate=False)  # one round more than tp1 has recorded
    group[0].apply([TRANSFERRING])
    group[1].arrive(8)
    turn(group)
    assert judged(group).findings
    failed = msgspec.structs.replace(_status(group[1].identity), hook_errors={"collective": 1})
    document = judge([group[0].view(), group[1].view(status=failed)])
    assert not document.findings
    assert any("hooks failed at collective" in problem for problem in document.problems)
    assert document.partial


def test_of_ranks_that_agree_little_is_read_and_what_is_odd_is_read_whole(ranks: Callable[..., list[Rank]]) -> None:
    a, b = ranks(2)
    a.arrive(1, 2, 3)
    b.arrive(1, 2, 3)
    for number in range(300):
        polls = {1: 3, 2: 3, 3: TRANSFERRING if number % 2 else WAITING}
        turn([a, b], [polls, polls])
    views = [a.view(), b.view()]
    short, sent = excerpted(views)
    assert all(0 < size < 4000 for size in sent)
    runs = [len(one.recording.streams[0]) for one in short if one.recording is not None]
    assert max(runs) < 70  # those that the newest list is built on
    recording = b.view().recording
    assert recording is not None
    data = bytearray(recording.source.read(0, recording.source.size))
    data[f.RINGS_OFFSET + 10 * f.ROUND_SIZE + 40] ^= 1
    torn = replace(views[1], recording=parse(bytes(data)))
    short, sent = excerpted([views[0], torn])
    assert short[1] == torn
    assert sent[1] == 0
    judge([views[0], torn])
