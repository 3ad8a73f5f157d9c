"""A rank's fault table with its real threads: what ends a fault, and what happens to the writes it holds."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.faults import table as table_module
from pdctl.faults.fault import AimedRank, Fault
from pdctl.faults.kinds import HELD_METADATA
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import FaultStatus
from tests.support.patience import patience, until

FAR = 500.0
TP1 = (AimedRank(tp=1),)


def fault(name: str = "f", *, delay: float = FAR, ttl: float = FAR, lease: float | None = None, **more) -> Fault:
    now = time.monotonic()
    more.setdefault("targets", TP1)
    return Fault(name, "delay-metadata", delay, now + ttl, None if lease is None else now + lease, "decode tp1", **more)


def past(table: FaultTable, name: str = "f") -> FaultStatus:
    until(f"the end of {name}", lambda: any(f.id == name for f in table.history()))
    return next(f for f in table.history() if f.id == name)


class Writes:
    """Stands at the engine's place: writes rows through the table as a site does, and counts what was written."""

    def __init__(self, table: FaultTable) -> None:
        self.table = table
        self.late: Counter[int] = Counter()
        self.direct: Counter[int] = Counter()
        self.held: Counter[int] = Counter()

    def write(self, room: int, tp: int = 1, *, place=None, still_wanted=None, key: int | None = None) -> bool:
        key = room if key is None else key
        taken = self.table.offer(HELD_METADATA, room, tp=tp, place=place) if self.table.metadata else None
        if taken is not None and self.table.hold(
            taken, lambda: self.late.update([key]), room=room, tp=tp, place=place, still_wanted=still_wanted
        ):
            self.held[key] += 1
            return True
        self.direct[key] += 1
        return False


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(table_module, "SITE_PATIENCE_S", patience(5))  # a busy machine lets no write pass undecided
    made = FaultTable(True)
    yield made
    made.heal()


def test_nothing_is_in_the_way_of_a_site_without_a_fault(table):
    assert table.metadata == ()
    assert table._thread is None


@pytest.mark.parametrize(
    ("placed", "why"),
    [
        ({"ttl": 0.05}, "time is up"),
        ({"lease": 0.05}, "lease lost"),
        ({"ttl": 0.05, "lease": FAR}, "time is up"),
    ],
)
def test_whatever_ends_first_ends_it_and_the_held_write_is_done(table, placed, why):
    writes = Writes(table)
    table.arm(fault(**{"ttl": FAR, **placed}))
    held = writes.write(7)
    ended = past(table)
    assert ended.ended == why
    until("the site to be free again", lambda: table.metadata == ())
    assert writes.late[7] + writes.direct[7] == 1
    assert ended.fired == int(held)
    assert not writes.write(8)


def test_heal_lets_go_of_what_is_held_and_can_be_repeated(table):
    writes = Writes(table)
    table.arm(fault())
    assert writes.write(7)
    assert table.heal() == ["f"]
    assert table.heal() == []
    assert table.heal("f") == []
    assert table.heal("another") == []
    until("nothing left", lambda: not table.status())
    assert writes.late == {7: 1}
    assert past(table).released == 1


def test_a_delay_that_is_over_releases_and_the_fault_takes_the_next_room(table):
    writes = Writes(table)
    table.arm(fault(delay=0.01))
    assert writes.write(7)
    until("the release of room 7", lambda: not table.status()[0].pending)
    assert writes.write(8)
    until("the release of room 8", lambda: not table.status()[0].pending)
    assert writes.late == {7: 1, 8: 1}
    assert table.status()[0].fired == 2


def test_one_room_at_a_time_and_every_rank_of_it(table):
    writes = Writes(table)
    table.arm(fault(targets=(AimedRank(tp=1), AimedRank(tp=3))))
    assert writes.write(7, tp=1)
    assert not writes.write(8, tp=1)
    assert writes.write(7, tp=3, key=73)
    assert not writes.write(7, tp=2, key=72)
    (status,) = table.status()
    assert (status.visits, status.eligible, status.fired, status.pending) == (4, 3, 2, 2)


def test_only_the_named_room_and_only_so_many(table):
    writes = Writes(table)
    table.arm(fault(room=9, delay=0.01, hits=1))
    assert not writes.write(7)
    assert writes.write(9)
    assert past(table).ended == "hit count reached"
    assert writes.late == {9: 1}


def test_hits_count_rooms_and_end_the_fault_after_the_last_release(table):
    writes = Writes(table)
    table.arm(fault(hits=1, targets=(AimedRank(tp=1), AimedRank(tp=3))))
    assert writes.write(7, tp=1)
    assert writes.write(7, tp=3, key=73)
    assert table.status()[0].pending == 2
    table.gone(7)
    assert past(table).ended == "hit count reached"
    assert not writes.write(8)


def test_the_last_hit_is_held_to_its_end(table):
    writes = Writes(table)
    table.arm(fault(hits=1))
    assert writes.write(7)
    time.sleep(0.1)  # turns of the keeper, in which it must not take the fault for over
    (status,) = table.status()
    assert (status.ended, status.pending) == ("", 1)
    assert writes.late == {}


def test_no_room_over_the_hits_even_before_the_fault_is_seen_to_be_over(table, monkeypatch):
    monkeypatch.setattr(FaultTable, "_turn", lambda self, now: ([], []))  # the keeper is late
    writes = Writes(table)
    over = fault(hits=1)
    table.arm(over)
    over.rooms = 1
    assert not writes.write(8)


def test_a_fault_that_ended_meanwhile_takes_nothing(table):
    table.arm(fault())
    taken = table.offer(HELD_METADATA, 7, tp=1)
    assert taken is not None
    table.heal()
    assert not table.hold(taken, lambda: None, room=7)
    late = fault("late")
    table.arm(late)
    taken = table.offer(HELD_METADATA, 7, tp=1)
    assert taken is late
    late.expires = 0.0
    assert not table.hold(late, lambda: None, room=7)


@pytest.mark.parametrize(
    ("target", "site", "hit"),
    [
        (AimedRank(tp=1), (-1, 1, ""), True),
        (AimedRank(tp=1), (-1, 0, ""), False),
        (AimedRank(dp=1, tp=1), (-1, 1, ""), False),
        (AimedRank(dp=1, tp=1), (1, 1, ""), True),
        (AimedRank(dp=0, tp=1), (-1, 1, ""), True),
        (AimedRank(dp=0, tp=1, address="h:1"), (-1, 1, "h:2"), False),
        (AimedRank(dp=5, tp=5, address="h:1"), (0, 0, "h:1"), True),
        (AimedRank(dp=0, tp=1, address="h:1"), (-1, 1, ""), True),
        (AimedRank(tp=-2, address="h:1"), (-1, 1, ""), False),
    ],
)
def test_an_address_decides_where_both_sides_know_it(target, site, hit):
    assert fault(targets=(target,)).aims_at(7, *site) is hit


def test_a_write_nobody_waits_for_is_dropped(table):
    writes = Writes(table)
    table.arm(fault())
    assert writes.write(7, still_wanted=lambda: False)
    table.heal()
    until("nothing left", lambda: not table.status())
    assert writes.late == {}
    assert (past(table).dropped, past(table).released) == (1, 0)


def test_a_check_that_fails_does_not_leave_a_request_waiting(table):
    writes = Writes(table)
    table.arm(fault())
    assert writes.write(7, still_wanted=lambda: 1 // 0 == 0)
    table.heal()
    until("the write", lambda: writes.late[7] == 1)


def test_an_aborted_room_is_dropped_at_once_and_makes_way(table):
    writes = Writes(table)
    table.arm(fault())
    assert writes.write(7)
    table.gone(6)
    assert table.status()[0].pending == 1
    table.gone(7)
    until("the drop", lambda: not table.status()[0].pending)
    assert writes.late == {}
    assert writes.write(8)


def test_a_slot_with_a_new_owner_never_gets_the_old_row(table):
    writes = Writes(table)
    table.arm(fault())
    assert writes.write(7, place=("session", 3))
    assert not writes.write(8, place=("session", 3))
    until("the drop", lambda: table.status()[0].dropped == 1)
    assert writes.late == {}
    assert writes.direct == {8: 1}


def test_a_row_that_is_being_written_late_comes_before_the_new_owners(table, monkeypatch):
    monkeypatch.setattr(table_module, "SITE_PATIENCE_S", 60.0)
    order, started, go_on = [], threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        go_on.wait()
        order.append("old")

    table.arm(fault())
    assert table.hold(table.offer(HELD_METADATA, 7, tp=1), slow, room=7, place="slot 3")
    table.heal()
    started.wait()

    def new_owner() -> None:
        table.offer(HELD_METADATA, 8, tp=1, place="slot 3")
        order.append("new")

    writer = threading.Thread(target=new_owner)
    writer.start()
    writer.join(0.2)
    go_on.set()
    writer.join()
    assert order == ["old", "new"]


def test_a_row_that_hangs_does_not_keep_the_new_owner_waiting(table, monkeypatch):
    monkeypatch.setattr(table_module, "SITE_PATIENCE_S", 0.01)
    stuck, started = threading.Event(), threading.Event()
    table.arm(fault())
    write = lambda: (started.set(), stuck.wait())  # noqa: E731
    assert table.hold(table.offer(HELD_METADATA, 7, tp=1), write, room=7, place="slot 3")
    table.heal()
    started.wait()
    assert table.offer(HELD_METADATA, 8, tp=1, place="slot 3") is None
    stuck.set()
    until("the end", lambda: not table.status())


def test_the_new_owner_is_seen_even_after_the_fault_has_ended(table):
    stuck, writes = threading.Event(), Writes(table)
    table.arm(fault(targets=(AimedRank(tp=1), AimedRank(tp=3))))
    assert table.hold(table.offer(HELD_METADATA, 7, tp=1), stuck.wait, room=7)
    table.heal()
    assert table.metadata, "a site that no longer asks would not see who comes next"
    stuck.set()
    until("the end", lambda: table.metadata == ())
    assert not writes.write(8)


def test_an_engine_write_that_fails_is_counted_and_the_keeper_lives(table):
    table.arm(fault(delay=0.01))
    taken = table.offer(HELD_METADATA, 7, tp=1)
    assert taken is not None
    assert table.hold(taken, lambda: 1 // 0, room=7)
    until("the failure", lambda: table.status()[0].failed == 1)
    assert Writes(table).write(8)


def test_a_release_that_hangs_keeps_no_fault_from_ending(table):
    stuck = threading.Event()
    table.arm(fault("stuck"))
    taken = table.offer(HELD_METADATA, 7, tp=1)
    assert taken is not None
    assert table.hold(taken, stuck.wait, room=7)
    assert table.arm(fault("next")), "a rank that still holds something takes no other fault"
    assert table.arm(fault("next", ttl=0.05), limit=2) == ""
    table.heal("stuck")
    assert past(table, "next").ended == "time is up"
    (left,) = table.status()
    assert (left.id, left.pending, left.ended) == ("stuck", 1, "heal")
    stuck.set()
    until("nothing left", lambda: not table.status())


def test_one_fault_at_a_time_and_no_id_twice(table):
    assert table.arm(fault(owner="ann@host:1")) == ""
    assert "ann@host:1" in table.arm(fault("other"))
    assert "already" in table.arm(fault(), limit=9)


def test_a_lease_that_ran_out_is_not_revived(table):
    late = fault(lease=FAR)
    table.arm(late)
    assert table.renew("f", FAR)
    late.lease_expires = time.monotonic() - 1
    assert not table.renew("f", FAR)
    assert past(table).ended == "lease lost"
    assert not table.renew("f", FAR)
    assert not table.renew("unknown", FAR)


def test_a_site_does_not_wait_for_a_busy_table(table, monkeypatch):
    monkeypatch.setattr(table_module, "SITE_PATIENCE_S", 0.001)
    table.arm(fault())
    taken = table.offer(HELD_METADATA, 7, tp=1)
    assert taken is not None
    with table._lock:
        assert table.offer(HELD_METADATA, 7, tp=1) is None
        assert not table.hold(taken, lambda: None, room=7)
        table.gone(7)


def test_without_a_thread_to_end_it_there_is_no_fault(table, monkeypatch):
    def no_thread(self) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(RuntimeError):
        table.arm(fault())
    assert table.status() == ()
    assert table.metadata == ()


def test_a_recorder_that_fails_changes_nothing():
    def record(what, fault, room, text):
        raise OSError("no space")

    table = FaultTable(True, record)
    writes = Writes(table)
    table.arm(fault())
    assert writes.write(7)
    table.heal()
    until("the write", lambda: writes.late[7] == 1)


def test_each_step_is_recorded():
    seen: list[tuple[str, int, str]] = []
    table = FaultTable(True, lambda what, fault, room, text: seen.append((what, room, text)))
    writes = Writes(table)
    table.arm(fault())
    writes.write(7)
    table.heal(why="told to")
    until("four records", lambda: len(seen) == 4)
    assert seen[:2] == [("armed", 0, "delay-metadata"), ("fired", 7, "tp1")]
    assert sorted(seen[2:]) == [("ended", 0, "told to"), ("released", 7, "")]


OPERATIONS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 4), st.integers(0, 3)),
    st.tuples(st.just("gone"), st.integers(1, 4), st.just(0)),
    st.tuples(st.sampled_from(["heal", "expire", "lose", "renew", "arm", "pause"]), st.just(0), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATIONS, max_size=40), st.sampled_from([0.0, 0.001, FAR]), st.integers(0, 3))
def test_no_order_of_events_holds_two_rooms_or_loses_a_write(operations, delay, hits):
    table = FaultTable(True)
    writes = Writes(table)
    made: list[Fault] = []

    def arm() -> None:
        placed = fault(f"f{len(made)}", delay=delay, lease=FAR, hits=hits)
        if not table.arm(placed):
            made.append(placed)

    arm()
    for number, (name, room, slot) in enumerate(operations):
        if name == "write":
            writes.write(room, place=("session", slot), key=number * 10 + room)
        elif name == "gone":
            table.gone(room)
        elif name == "heal":
            table.heal()
        elif name == "renew":
            table.renew(made[-1].id, FAR)
        elif name == "arm":
            arm()
        elif name == "pause":
            time.sleep(0.002)
        elif name == "expire":
            made[-1].expires = 0.0
        else:
            made[-1].lease_expires = 0.0
        with table._lock:
            assert len({held.room for held in table._all_held()}) <= 1
    table.heal()
    until("nothing left", lambda: not table.status())
    assert set((writes.late + writes.direct).values()) <= {1}
    done = [table_fault for table_fault in table.history() if table_fault.id in {f.id for f in made}]
    assert sum(f.fired for f in done) == sum(writes.held.values())
    assert sum(f.released for f in done) == sum(writes.late.values())
    assert all(f.fired == f.released + f.dropped for f in done)
    writes_asked = sum(1 for name, *_ in operations if name == "write")
    assert sum(writes.held.values()) + sum(writes.direct.values()) == writes_asked


def test_many_threads_hold_one_room_and_lose_nothing():
    table = FaultTable(True)
    writes = Writes(table)
    guard, stop, rooms_seen = threading.Lock(), threading.Event(), []
    late: Counter[int] = Counter()
    direct: Counter[int] = Counter()

    def engine(first: int) -> None:
        for number in range(300):
            key = first + number
            taken = table.offer(HELD_METADATA, key, tp=1) if table.metadata else None

            def write(key: int = key) -> None:
                with guard:
                    late[key] += 1

            if taken is None or not table.hold(taken, write, room=key):
                with guard:
                    direct[key] += 1
            time.sleep(0)

    def look() -> None:
        while not stop.is_set():
            with table._lock:
                rooms_seen.append(len({held.room for held in table._all_held()}))
            time.sleep(0)

    threads = [threading.Thread(target=engine, args=(10_000 * n,)) for n in range(1, 5)]
    watcher = threading.Thread(target=look)
    watcher.start()
    table.arm(fault("first", delay=0.0005))  # the threads may be done before this one has its next turn
    for thread in threads:
        thread.start()
    number = 0
    while any(thread.is_alive() for thread in threads):
        table.arm(fault(f"f{number}", delay=0.0005, ttl=0.01, lease=0.008))
        number += 1
        table.renew(f"f{number - 1}", 0.005)
        if number % 3 == 0:
            table.heal()
        time.sleep(0.001)
    for thread in threads:
        thread.join()
    table.heal()
    until("nothing left", lambda: not table.status())
    stop.set()
    watcher.join()
    assert max(rooms_seen) <= 1
    assert sum(late.values()) > 0, "no write was ever held: this run shows nothing"
    assert set((late + direct).values()) == {1}
    assert len(late + direct) == 1200
    assert writes.late == {}
