"""What holds for every kind of fault, whatever is done to it in whatever order: a table with its real threads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.faults.fault import AimedRank, Fault
from pdctl.faults.kinds import KINDS, Parameter, Way
from pdctl.faults.table import FaultTable
from tests.support.patience import until

FAR = 500.0
ANYWHERE = (AimedRank(),)
kind_names = st.sampled_from(sorted(KINDS))
few_rooms = st.integers(1, 4)


def place(table: FaultTable, name: str, kind: str, *, limit: int = 8, **more) -> Fault:
    now = time.monotonic()
    delay = more.pop("delay", FAR if KINDS[kind].parameter is Parameter.DURATION else 0.0)
    made = Fault(name, kind, delay, now + FAR, now + FAR, "test", ANYWHERE, **more)
    assert table.arm(made, limit=limit) == ""
    return made


@contextmanager
def a_table() -> Iterator[FaultTable]:
    table = FaultTable(True)
    try:
        yield table
    finally:
        table.heal()
        until("the end of all faults", lambda: not table.status(), every_s=0.001)


@dataclass
class Stage:
    """Stands at the engine's place: visits the sites of a table as each kind's way is, and counts what came of it."""

    table: FaultTable

    def __post_init__(self) -> None:
        self.held: Counter[int] = Counter()
        self.released: Counter[int] = Counter()
        self._guard = threading.Lock()
        self._number = 0

    def visit(self, kind: str, room: int, rid: str = "") -> Fault | None:
        """Return the fault that took this visit."""
        if not self.table.any:
            return None
        if KINDS[kind].way is not Way.HOLDS:
            return self.table.decide(kind, room, rid=rid)
        found = self.table.offer((kind,), room, rid=rid)
        self._number += 1
        number = self._number

        def release() -> None:
            with self._guard:
                self.released[number] += 1

        if found is None or not self.table.hold(found, release, room=room):
            return None
        self.held[number] += 1
        return found


def live(fault: Fault) -> bool:
    return not fault.ended and fault.ends > time.monotonic()


OTHERS = ["expire", "lose lease", "spans over", "heal one", "heal all", "failed", "place", "place", "pause"]
STEPS = st.tuples(st.sampled_from(["visit"] * len(OTHERS) + OTHERS), few_rooms, st.integers(0, 1))


@settings(max_examples=300, deadline=None)
@given(
    st.tuples(kind_names, kind_names),
    st.lists(STEPS, min_size=8, max_size=60),
    st.integers(0, 3),
    st.sampled_from([0, 2]),
    st.integers(1, 2),
    st.sampled_from([0.5, 1.0]),
)
def test_no_order_of_events_takes_what_is_not_a_live_faults(names, steps, hits, only_room, at_once, share):
    """Two faults of two owners, placed anew when they have ended; every visit is checked against what may take it."""
    with a_table() as table:
        stage = Stage(table)
        made: list[list[Fault]] = [[], []]
        acts: dict[str, list[int]] = {}

        def put(which: int) -> None:
            if made[which] and not made[which][-1].ended:
                return
            name = f"{which}-{len(made[which])}"
            more = {"hits": hits, "room": only_room, "at_once": at_once, "share": share, "stop_failed": 2}
            made[which].append(place(table, name, names[which], owner=f"owner {which}", limit=99, **more))
            acts[name] = []

        put(0)
        put(1)
        for what, room, which in steps:
            fault = made[which][-1]
            if what == "visit":
                could = {one.id for ones in made for one in ones if live(one) and one.kind == names[which]}
                taken = stage.visit(names[which], room)
                if taken is not None:
                    assert taken.id in could
                    assert room == only_room or not only_room
                    acts[taken.id].append(room)
            elif what == "expire":
                fault.expires = 0.0
            elif what == "lose lease":
                fault.lease_expires = 0.0
            elif what == "spans over":
                fault.until = 0.0
            elif what == "heal one":
                other = made[1 - which][-1]
                alive = live(other)
                assert set(table.heal(fault.id)) <= {fault.id}
                assert live(other) == alive or other.is_used_up(), "healing one leaves the other's alone"
            elif what == "heal all":
                table.heal()
            elif what == "failed":
                table.room_failed(room)
            elif what == "pause":
                time.sleep(0.001)
            else:
                put(which)
        for ones in made:
            for one in ones:
                check(one, acts[one.id], hits, at_once)
    assert stage.released == stage.held, "all that was held is done once, and nothing else is"
    assert all(one.ended for ones in made for one in ones)
    assert all(one.fired == one.released for ones in made for one in ones if one.of.way is Way.HOLDS)


def check(fault: Fault, acts: list[int], hits: int, at_once: int) -> None:
    assert fault.fired == len(acts)
    way = fault.of.way
    if way is Way.ONCE:
        assert max(Counter(acts).values(), default=0) <= 1
    if hits:
        assert (len(set(acts)) if way is Way.HOLDS else len(acts)) <= hits
    if way is Way.WHILE:
        assert len(set(acts)) <= at_once


@settings(max_examples=150, deadline=None)
@given(kind_names, st.lists(few_rooms, max_size=30), st.randoms(use_true_random=False), st.integers(0, 1 << 32))
def test_a_seed_takes_the_same_visits_in_every_order(kind, rooms, shuffle, seed):
    other_order = list(rooms)
    shuffle.shuffle(other_order)
    seen = []
    for order in (rooms, other_order):
        with a_table() as table:
            stage, visits, taken = Stage(table), Counter(), set()
            place(table, "f", kind, seed=seed, share=0.5, at_once=64)
            for room in order:
                visits[room] += 1
                if stage.visit(kind, room) is not None:
                    taken.add((room, visits[room]))
            seen.append(taken)
    assert seen[0] == seen[1]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(kind_names, min_size=2, max_size=2, unique=True),
    st.lists(st.tuples(st.integers(0, 1), few_rooms), max_size=30),
    st.integers(0, 30),
    st.integers(0, 1 << 32),
)
def test_a_fault_takes_the_same_whoever_elses_is_there(kinds, visits, healed_after, seed):
    seen = []
    for alone in (True, False):
        with a_table() as table:
            stage, taken = Stage(table), []
            place(table, "mine", kinds[0], seed=seed, share=0.5, owner="ann")
            if not alone:
                place(table, "theirs", kinds[1], owner="bob", at_once=4)
            for number, (which, room) in enumerate(visits):
                if number == healed_after and not alone:
                    assert table.heal("theirs") in ([], ["theirs"])
                fault = stage.visit(kinds[which], room)
                if fault is not None and fault.id == "mine":
                    taken.append((number, room))
            seen.append(taken)
    assert seen[0] == seen[1]


@given(kind_names, few_rooms, st.sampled_from(["", "a", "b"]))
def test_a_named_request_is_the_only_one(kind, room, rid):
    with a_table() as table:
        place(table, "f", kind, rid="a", hits=1)
        assert (Stage(table).visit(kind, room, rid) is not None) == (rid == "a")


def test_a_duration_that_spans_ends_the_fault_that_long_after_its_first_hit() -> None:
    spanning = [kind for kind in KINDS.values() if kind.spans]
    assert spanning
    for kind in spanning:
        with a_table() as table:
            fault = place(table, "f", kind.name, delay=0.05)
            time.sleep(0.1)
            assert not fault.ended, "it waits for its first hit"
            assert Stage(table).visit(kind.name, 0) is fault
            until("the end of its duration", lambda: fault.ended, every_s=0.001)  # noqa: B023 - asked in this turn
            assert fault.ended == "its duration is over"
