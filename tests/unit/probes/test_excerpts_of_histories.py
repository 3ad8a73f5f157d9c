"""What digests and excerpts say of a group is what its whole recordings say, whatever has happened to it and to its files."""

from __future__ import annotations

import copy
import os
import random
from itertools import count
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdctl.agent.tap import QueueTap
from pdctl.probes.queues.model import RankView
from pdctl.protocol.model import EventKind
from pdctl.protocol.processes import look
from pdctl.recording import format as f
from pdctl.recording.answers import Answerer, Known, answer
from pdctl.recording.excerpt import Wanted
from pdctl.recording.reader import BadRecording, parse
from tests.support.crafted import places, seal
from tests.support.excerpted import judge
from tests.unit.probes.test_queue_judge import FAILED, SUCCESS, TRANSFERRING, WAITING, Rank, turn

NOW_NS = 1 << 59
SIZES = (f.RINGS_OFFSET + 6_000, f.RINGS_OFFSET + 24_000, f.RINGS_OFFSET + 240_000)
"""Recordings with rings for 11, 46 and 468 runs: small ones wrap."""


class History:
    """A group of ranks with two queues, what happens to it, and what is then in its ranks' files. All of it by one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.gate = self.chance.random() < 0.5
        size = self.chance.randrange(2, 5)
        self.group = [Rank(n, size, folder, lacks=() if self.gate else ("gate",)) for n in range(size)]
        self.followers = [Answerer(rank.path, os.getpid(), look(os.getpid()).start) for rank in self.group]
        self.read_early: dict[int, bytes] = {}
        self.queues = [self.group, [self._second(rank) for rank in self.group]]
        self.rooms = count(1)
        self.harm = self.chance.choice((0.0, 0.0, 0.02, 0.1))

    @staticmethod
    def _second(rank: Rank) -> Rank:
        """The same rank's other queue."""
        other = copy.copy(rank)
        other.queue, other.slots = [], {}
        other.tap = QueueTap("decode.prealloc", other, rank.writer, lambda: 1)
        return other

    def happen(self, turns: int) -> None:
        """Take turns until they are over, or until the group hangs."""
        half = self.chance.randrange(turns + 1)
        for number in range(turns):
            if number == half:
                for one in self.followers:
                    one.answer(Wanted(newest=1))
            lists = self.queues[0] if self.chance.random() < 0.7 else self.queues[1]
            if not self._turn(lists):
                return
            if self.chance.random() < 0.02:
                n = self.chance.randrange(len(self.group))
                self.read_early[n] = self.group[n].path.read_bytes()

    def _turn(self, group: list[Rank]) -> bool:
        chance = self.chance
        arrivals = [next(self.rooms) for _ in range(chance.choice((0, 0, 0, 1, 2)))]
        for rank in group:
            rank.arrive(*arrivals)
            for room in arrivals:
                rank.writer.event(EventKind.ENQUEUE, queue=4, room=room, slot=room % 1024, text=f"rid-{room}")
        common = [r.room for r in group[0].queue]
        polls = [{room: chance.choice((WAITING, TRANSFERRING, SUCCESS)) for room in common} for _ in group]
        fails = {room: FAILED for room in common if chance.random() < 0.05}
        for n, rank in enumerate(group):
            polls[n].update(fails)
            for request in rank.queue:
                if not self.gate or chance.random() < 0.6:
                    rank.slots[request.slot] = request.room
        if chance.random() < self.harm:
            self._harm(chance.choice(group), polls)
        for _ in range(chance.choice((1, 1, 1, 4))):  # equal turns are one run
            if chance.random() < self.harm / 10:
                return self._killed(group, polls)
            if not turn(group, polls, gate=self.gate):
                return False
        return True

    def _harm(self, rank: Rank, polls: list[dict[int, int]]) -> None:
        """Do one rank what parts it from the others, now or later."""
        kinds = ("order", "skips", "other room", "other room", "lost metadata", "late", "missing", "more", "abort")
        kind = self.chance.choices(kinds, (6, 6, 3, 3, 1, 1, 1, 1, 1))[0]
        if kind == "missing" or (kind == "abort" and not rank.queue):
            rank.queue = rank.queue[1:]
        elif kind == "more":
            rank.arrive(next(self.rooms))
        elif kind == "order":
            rank.queue = rank.queue[::-1]
        elif kind == "skips":
            rank.tap.visit([])
        elif kind == "other room":
            rank.queue = rank.queue[:-1]
            rank.arrive(next(self.rooms))
        elif kind == "lost metadata":
            rank.slots = {}
        elif kind == "abort":
            gone = rank.queue[0]
            rank.writer.event(EventKind.ABORT, queue=4, room=gone.room, text=f"rid-{gone.room}")
            rank.queue = rank.queue[1:]
        else:
            late = rank.queue[0].room if rank.queue else 1
            rank.slots[late % 1024] = 0
            rank.writer.event(EventKind.LANDED, room=late, slot=late % 1024, a=5_900_000_000, b=late)
            for one in polls:
                one[late] = SUCCESS

    def _killed(self, group: list[Rank], polls: list[dict[int, int]]) -> bool:
        """End each rank somewhere in a round."""
        for n, rank in enumerate(group):
            how_far = self.chance.randrange(3)
            brought = rank.enter(polls[n], self.gate) if how_far else None
            if brought is not None and how_far == 2:
                rank.tap.left(0, bytes(brought), 1)
        return False

    def files(self) -> list[bytes]:
        """Return what is read of each rank: now, or at an earlier moment, and some of it damaged."""
        found = [self.read_early.get(n) or rank.path.read_bytes() for n, rank in enumerate(self.group)]
        if self.chance.random() < 0.4:
            n = self.chance.randrange(len(found))
            found[n] = self._parted(found[n])
        return [self._damaged(data) if self.chance.random() < 0.1 else data for data in found]

    def _parted(self, data: bytes) -> bytes:
        """Have a rank do something else in one run that has ended, or be a turn late from there on; all else as it was."""
        changed = bytearray(data)
        at = places(data, "rounds")
        if at:
            name, offset = self.chance.choice((("hash", 68), ("after", 76), ("turns", 52)))
            first = self.chance.randrange(len(at))
            for place in at[first:] if name == "turns" else at[first : first + 1]:
                changed[place + offset] ^= 0x40
                seal(changed, place)
        return bytes(changed)

    def _damaged(self, data: bytes) -> bytes:
        changed = bytearray(data)
        rounds, rounds_cap, items, items_cap, events, events_cap = f.layout(len(data))
        kind = self.chance.choice(("round", "live", "item", "event", "cut", "older lost", "counters"))
        if kind == "cut":
            return data[: self.chance.randrange(f.RINGS_OFFSET, len(data))]
        if kind == "older lost":
            gone = self.chance.randrange(rounds_cap) * f.ROUND_SIZE
            changed[rounds : rounds + gone] = bytes(gone)
            return bytes(changed)
        begin, size, number = {
            "round": (rounds, f.ROUND_SIZE, rounds_cap),
            "live": (f.LIVE_OFFSET, f.ROUND_SIZE, 4),
            "item": (items, f.ITEM_SIZE, items_cap),
            "event": (events, f.EVENT_SIZE, events_cap),
            "counters": (f.PULSE_OFFSET, f.IDENTITY_OFFSET - f.PULSE_OFFSET, 1),
        }[kind]
        used = [at for at in range(begin, begin + number * size, size) if any(changed[at : at + 8])] or [begin]
        changed[self.chance.choice(used) + self.chance.randrange(size)] ^= 1 << self.chance.randrange(8)
        return bytes(changed)


def check_alike(seed: int, turns: int, size: int, folder: Path) -> str:
    """Judge a history both ways; returns what was found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f, "MIN_SIZE", size)
        history = History(seed, folder)
        history.happen(turns)
        for rank, follower in zip(history.group, history.followers, strict=True):
            check_follower(follower, rank.path.read_bytes())
        try:
            recordings = [parse(data) for data in history.files()]
        except BadRecording:
            return "not read"
        ranks = zip(history.group, recordings, strict=True)
        document = judge([RankView(rank.identity, "live", recording=one, now_ns=NOW_NS) for rank, one in ranks])
        return document.groups[0].verdict


def check_follower(follower: Answerer, data: bytes) -> None:
    """What is answered of a file that was followed is what is answered of it when it is read at once.

    A follower also has some runs that were overwritten meanwhile, so of a ring that wrapped only digests are compared.
    """
    recording = parse(data)
    cuts = {
        s.number: [s.first, s.first, (s.first + s.last) // 2, s.last] for s in recording.streams if s.last > s.first + 1
    }
    begin = Wanted(newest=5)
    mine, whole = follower.answer(begin), answer(Known(recording), begin, data[: f.RINGS_OFFSET])
    assert mine == whole or any(stream.first for stream in recording.streams)
    for wanted in (Wanted(cuts=cuts), Wanted(rounds=cuts)):
        assert follower.answer(wanted) == answer(Known(recording), wanted)


GIVEN = given(
    seed=st.integers(0, 2**32), turns=st.integers(0, 150), size=st.sampled_from(SIZES)
)  # a seed, not choices one by one: thousands of them would be drawn for one history


@settings(max_examples=60, deadline=None)
@GIVEN
@example(seed=6021, turns=181, size=SIZES[1])  # lists of two laps begin at one place of the ring
def test_a_history_is_judged_alike(seed: int, turns: int, size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    check_alike(seed, turns, size, tmp_path_factory.mktemp("h"))


@pytest.mark.long
def test_ten_thousand_histories_are_judged_alike(tmp_path: Path) -> None:
    chance = random.Random(1)
    seen: dict[str, int] = {}
    for seed in range(10_000):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            verdict = check_alike(seed, chance.randrange(400), chance.choice(SIZES), folder)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for path in folder.iterdir():
            path.unlink()
        seen[verdict] = seen.get(verdict, 0) + 1
    assert min(seen.get(verdict, 0) for verdict in ("AGREE", "DIVERGED", "WAITING", "HELD")) > 100, seen
