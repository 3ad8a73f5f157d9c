"""What a prefill rank can know about a room whose row is held back."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest
import zmq

from pdctl.engines.base import Hooks
from pdctl.engines.sglang import seams
from pdctl.engines.sglang.backends import backend_of, slot_owner
from pdctl.faults.fault import AimedRank, Fault
from pdctl.faults.kinds import HELD_METADATA
from pdctl.faults.table import FaultTable


def info(room: int, slot: int, session: str = "s1") -> SimpleNamespace:
    return SimpleNamespace(room=room, dst_aux_index=slot, mooncake_session_id=session)


def manager(**rooms) -> SimpleNamespace:
    return SimpleNamespace(
        decode_kv_args_table={"s1": SimpleNamespace(dst_aux_ptrs=[10, 20])},
        transfer_infos={entry.room: {entry.mooncake_session_id: entry} for entry in rooms.values()},
    )


def test_wanted_while_nothing_says_otherwise():
    there = manager(own=info(7, 3), elsewhere=info(8, 3, "s2"), other_slot=info(9, 4))
    assert slot_owner.check(there, "s1", 7, 3)()
    there.transfer_infos.clear()  # as the engine does once it believes the row sent
    assert slot_owner.check(there, "s1", 7, 3)()


def test_not_wanted_when_a_new_room_names_the_slot():
    there = manager(own=info(7, 3))
    still = slot_owner.check(there, "s1", 7, 3)
    there.transfer_infos[8] = {"s1": info(8, 3)}
    assert not still()


def test_not_wanted_by_a_server_that_started_anew():
    there = manager()
    still = slot_owner.check(there, "s1", 7, 3)
    there.decode_kv_args_table["s1"] = SimpleNamespace(dst_aux_ptrs=[10, 20])
    assert still(), "the same process may register again"
    there.decode_kv_args_table["s1"] = SimpleNamespace(dst_aux_ptrs=[11, 21])
    assert not still()


class MooncakeKVManager(SimpleNamespace):
    """Named as the engine's: the backend is found by it."""


def backend(there: SimpleNamespace):
    found = backend_of(SimpleNamespace(disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=there)))
    assert found.prefix == "Mooncake"
    return found


@pytest.fixture
def engine(monkeypatch):
    def set_up(**receiver) -> None:
        module = ModuleType(seams.MOONCAKE)
        module.MooncakeKVReceiver = type("MooncakeKVReceiver", (), receiver)
        monkeypatch.setitem(sys.modules, seams.MOONCAKE, module)

    return set_up


@pytest.fixture
def sockets():
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
    yield pull, push
    context.destroy(linger=0)


def holding(room: int) -> FaultTable:
    table = FaultTable(True)
    table.arm(Fault("f", "delay-metadata", 500.0, float("inf"), None, "decode tp1", (AimedRank(tp=1),)))
    taken = table.offer(HELD_METADATA, room, tp=1)
    assert taken is not None
    assert table.hold(taken, lambda: None, room=room)
    return table


def dropped(table: FaultTable) -> None:
    for _ in range(2000):
        if table.status()[0].dropped:
            return
        threading.Event().wait(0.005)
    raise AssertionError("never dropped")


def test_an_abort_message_drops_the_row_and_every_message_reaches_the_engine(engine, sockets):
    engine(_send_abort_notification=lambda self: None)
    pull, push = sockets
    table, hooks, there = holding(7), Hooks(), MooncakeKVManager(server_socket=pull)
    assert slot_owner.watch_aborts(hooks, backend(there), table).present
    messages = [[b"8", b"x"], [b"ABORT", b"9", b"h", b"1"], [b"ABORT", b"seven"], [b"ABORT", b"7", b"h", b"1"]]
    for message in messages:
        push.send_multipart(message)
        assert there.server_socket.recv_multipart() == message
    dropped(table)
    assert hooks.errors() == {"abort-message": 1}
    assert there.server_socket.getsockopt(zmq.TYPE) == zmq.PULL
    hooks.remove_all()
    assert there.server_socket is pull
    table.heal()


def test_an_abort_method_is_used_where_there_is_one(engine):
    engine()
    table, hooks, seen = holding(7), Hooks(), []
    there = MooncakeKVManager(_handle_abort_notification=lambda msg: seen.append(msg) or True)
    assert slot_owner.watch_aborts(hooks, backend(there), table).present
    assert there._handle_abort_notification([b"ABORT", b"7"]) is True
    assert seen == [[b"ABORT", b"7"]]
    dropped(table)
    table.heal()


def test_versions_that_do_not_tell_are_said_to_be_so(engine):
    engine()
    there = MooncakeKVManager(server_socket=object())
    before = there.server_socket
    assert not slot_owner.watch_aborts(Hooks(), backend(there), FaultTable(True)).present
    assert not slot_owner.watch_aborts(Hooks(), backend(there), FaultTable(False)).present
    assert there.server_socket is before
