"""What is known of a rank whose transfers go over NIXL, from classes of the shape of each group of versions."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pdctl.engines.base import Hooks
from pdctl.engines.request_tables import Ends
from pdctl.engines.sglang import faults as fault_sites
from pdctl.engines.sglang import request_tables, seams
from pdctl.engines.sglang.backends import backend_of
from pdctl.engines.sglang.queues import QueueReader
from pdctl.faults.fault import AimedRank, Fault
from pdctl.faults.kinds import ABORT, KINDS
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import EventKind, KVPoll
from pdctl.recording.null import NullRecorder


class Recorder(NullRecorder):
    def __init__(self) -> None:
        super().__init__("a test")
        self.events: list[tuple[int, int, int, int]] = []

    def event(self, kind: int, **fields: Any) -> None:
        self.events.append((kind, fields.get("room", 0), fields.get("slot", -1), fields.get("a", 0)))


class Agent:
    """NIXL's agent: writes from address to address, and delivers what is bound to a write after it."""

    name = "agent-of-this-rank"

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.registered: list[Any] = []
        self.state = "DONE"

    def register_memory(self, regions: list[Any], _kind: str) -> Any:
        self.registered.append(regions)
        return regions

    def deregister_memory(self, regions: Any) -> None:
        self.registered.remove(regions)

    def get_xfer_descs(self, places: list[Any], _kind: str) -> list[Any]:
        return places

    def initialize_xfer(self, _way: str, sources: Any, places: Any, _peer: str, notif: bytes = b"") -> Any:
        return sources, places, notif

    def transfer(self, handle: Any) -> str:
        sources, places, notif = handle
        for (source, length, _), (place, _, _) in zip(sources, places, strict=True):
            ctypes.memmove(place, source, length)
        self.heard += [notif.decode()] if notif else []
        return self.state

    def check_xfer_state(self, handle: Any) -> str:
        assert isinstance(handle, tuple), "a handle that is none of NIXL's reached NIXL"
        return self.state

    def release_xfer_handle(self, handle: Any) -> None:
        assert isinstance(handle, tuple)

    def send_notif(self, _peer: str, notif: bytes) -> None:
        self.heard.append(notif.decode())


class Common:
    """What managers of all backends have, up to 0.5.18."""

    def __init__(self) -> None:
        self.agent = Agent()
        self.request_status: dict[int, int] = {}
        self.waiting_timeout, self.bootstrap_timeout = 300.0, 120.0

    def check_status(self, room: int) -> int:
        return self.request_status[room]


class Told(Common):
    """Since 0.5.22 all backends tell decode of failures, since 0.5.23 of every end."""

    def send_kv_status_message(self, *, targets: Any, bootstrap_room: int, status: int) -> None:
        self.told = [(target, bootstrap_room, status) for target in targets]


def _send_with_notification(self: Any, peer_name: str, index: int, targets: Any, dst_aux_index: int, notif: str) -> Any:
    return _posted(self, peer_name, index, targets, dst_aux_index, notif)


def _send(self: Any, peer_name: str, index: int, targets: Any, dst_aux_index: int) -> Any:
    return _posted(self, peer_name, index, targets, dst_aux_index, "")


def _posted(self: Any, peer: str, index: int, targets: Any, slot: int, notif: str) -> Any:
    args = self.kv_args
    pairs = list(zip(args.aux_data_ptrs, args.aux_item_lens, strict=True))
    sources = [(base + length * index, length, 0) for base, length in pairs]
    places = [(base + length * slot, length, 0) for base, (_, length) in zip(targets, pairs, strict=True)]
    handle = self.agent.initialize_xfer("WRITE", sources, places, peer, notif.encode())
    self.agent.transfer(handle)
    return handle


def _asserts(self: Any) -> None:
    def bootstrap_thread() -> None:
        message = self.server_socket.recv_multipart()
        assert message[0] == b"NixlMsgGuard", "First message should be NixlMsgGuard. Foreign traffic?"

    bootstrap_thread()


def _done(self: Any, room: int) -> bool:
    return bool(room in self.statuses)


def _poll(self: Any) -> int:
    return self._check_waiting_timeout() or self.kv_mgr.check_status(self.bootstrap_room)  # type: ignore[no-any-return]


def _waiting(self: Any) -> bool:
    return bool(self.init_time > self.kv_mgr.waiting_timeout)


def _plain_poll(self: Any) -> int:
    return self.kv_mgr.check_status(self.bootstrap_room)  # type: ignore[no-any-return]


def _timed_poll(self: Any) -> int:
    return self._poll_with_status()  # type: ignore[no-any-return]


def _poll_with_status(self: Any) -> int:
    return self._check_bootstrap_timeout() or self.kv_mgr.check_status(self.bootstrap_room)  # type: ignore[no-any-return]


def _bootstrap(self: Any) -> bool:
    return bool(self.init_time > self.kv_mgr.bootstrap_timeout)


NOTIFIES = {"update_transfer_status": lambda _: None, "check_transfer_done": _done, "send_aux": _send_with_notification}
HEARS = {"_handle_abort_notification": lambda *_: True}
TIMED = {"poll": _timed_poll, "_poll_with_status": _poll_with_status, "_check_bootstrap_timeout": _bootstrap}
RECEIVER = {"poll": _poll, "_check_waiting_timeout": _waiting}
SENDS = {"_send_abort_notification": lambda _: None}

SHAPES: dict[str, tuple[type, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "0.5.12": (Common, {**NOTIFIES, "_start_bootstrap_thread": _asserts}, {"poll": _plain_poll}, RECEIVER),
    "0.5.13": (Common, {**NOTIFIES, "_start_bootstrap_thread": _asserts}, {"poll": _plain_poll}, {**RECEIVER, **SENDS}),
    "0.5.18": (Common, {**NOTIFIES, **HEARS, "_start_bootstrap_thread": _asserts}, TIMED, {**RECEIVER, **SENDS}),
    "0.5.22": (Told, {**NOTIFIES, **HEARS, "_start_bootstrap_thread": _asserts}, TIMED, {**RECEIVER, **SENDS}),
    "0.5.23": (
        Told, {**HEARS, "send_aux": _send, "_start_bootstrap_thread": _asserts}, TIMED, {**RECEIVER, **SENDS},
    ),
}  # fmt: skip


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that gives a scheduler whose manager has the shape of a version; it is a prefill's, or a decode's."""

    def make(version: str, role: str = "prefill") -> Any:
        base, manager, sender, receiver = SHAPES[version]
        module = ModuleType(seams.NIXL)
        kind = type("NixlKVManager", (base,), manager)
        vars(module).update(
            NixlKVManager=kind,
            NixlKVSender=type("NixlKVSender", (), sender),
            NixlKVReceiver=type("NixlKVReceiver", (), receiver),
        )
        monkeypatch.setitem(sys.modules, seams.NIXL, module)
        name = "disagg_prefill_bootstrap_queue" if role == "prefill" else "disagg_decode_prealloc_queue"
        rooms = SimpleNamespace(device=SimpleNamespace(type="cpu"), data_ptr=lambda: 0)
        return SimpleNamespace(
            **{name: SimpleNamespace(kv_manager=kind())}, disagg_metadata_buffers=SimpleNamespace(bootstrap_room=rooms)
        )

    return make


# ---- what its code tells ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "lacks", "bootstrap", "aux"),
    [
        ("0.5.12", ("failures",), False, "bound"),
        ("0.5.13", ("aborts", "failures"), False, "bound"),
        ("0.5.18", ("failures",), True, "bound"),
        ("0.5.22", (), True, "bound"),
        ("0.5.23", (), True, "rdma"),
    ],
)
def test_what_a_version_lacks_and_what_ends_a_wait_in_it(
    engine: Any, version: str, lacks: tuple[str, ...], bootstrap: bool, aux: str
) -> None:
    backend = backend_of(engine(version))
    assert backend.lacks() == lacks
    assert backend.ends() == Ends(bootstrap=bootstrap, waiting=True)
    assert backend.aux()[0] == aux


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_abort_is_refused_where_it_ends_prefills_bootstrap_thread(engine: Any, version: str, role: str) -> None:
    scheduler = engine(version, role)
    found = fault_sites.install(Hooks(), role, backend_of(scheduler), FaultTable(armed=True))
    [abort] = [seam for seam in found if seam.name == KINDS[ABORT].seam]
    assert abort.present is (version != "0.5.13")
    assert abort.present or "ends prefill's bootstrap thread for good" in abort.detail


def test_a_backend_that_is_not_known_says_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "sglang.srt.disaggregation.mori.conn"
    module, kind = ModuleType(name), type("MoriKVManager", (Common,), {})
    vars(module).update(MoriKVSender=type("S", (), TIMED), MoriKVReceiver=type("R", (), {"poll": _plain_poll}))
    monkeypatch.setitem(sys.modules, name, module)
    backend = backend_of(SimpleNamespace(disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=kind())))
    assert backend.ends() == Ends(bootstrap=True, waiting=False)
    assert (backend.lacks(), backend.aux()[0]) == ((), "")
    found = {seam.name: seam for seam in backend.install(Hooks(), Recorder(), FaultTable(armed=True), "prefill")}
    assert not any(seam.present for seam in found.values())
    monkeypatch.delitem(sys.modules, name)
    assert backend.ends() is None


def test_settings_of_ucx_and_nixl_are_told_and_no_secrets() -> None:
    env = {"UCX_TLS": "tcp", "NIXL_LOG_LEVEL": "debug", "NIXL_ETCD_PASSWORD": "x", "PATH": "/bin"}
    assert request_tables.environment(env) == {"NIXL_LOG_LEVEL": "debug", "UCX_TLS": "tcp"}


# ---- a decode rank ---------------------------------------------------------------------------------------------------


def test_what_a_receiver_has_concluded_is_its_state(engine: Any) -> None:
    scheduler = engine("0.5.13", "decode")
    manager = scheduler.disagg_decode_prealloc_queue.kv_manager
    manager.request_status = {7: KVPoll.WAITING_FOR_INPUT, 8: KVPoll.WAITING_FOR_INPUT}

    def entry(room: int, concluded: int | None) -> Any:
        req = SimpleNamespace(rid=f"r{room}", bootstrap_room=room, time_stats=SimpleNamespace())
        return SimpleNamespace(req=req, metadata_buffer_index=1, kv_receiver=SimpleNamespace(conclude_state=concluded))

    scheduler.disagg_metadata_buffers = None
    scheduler.disagg_decode_transfer_queue = SimpleNamespace(queue=[entry(7, KVPoll.SUCCESS), entry(8, None)])
    queues, _ = QueueReader(scheduler, "decode").read()
    states = {e.room: e.state for e in queues["decode.transfer"]}
    assert states == {7: KVPoll.SUCCESS, 8: KVPoll.WAITING_FOR_INPUT}


def test_the_end_of_a_transfer_is_recorded_where_no_status_changes(engine: Any) -> None:
    scheduler, hooks, recorder = engine("0.5.18", "decode"), Hooks(), Recorder()
    manager = scheduler.disagg_decode_prealloc_queue.kv_manager
    manager.statuses = {7}
    [seam] = backend_of(scheduler).install(hooks, recorder, FaultTable(armed=False), "decode")
    assert seam.present
    assert (manager.check_transfer_done(6), manager.check_transfer_done(7)) == (False, True)
    assert recorder.events == [(EventKind.STATE, 7, -1, KVPoll.SUCCESS)]
    hooks.remove_all()
    assert backend_of(engine("0.5.23", "decode")).install(hooks, recorder, FaultTable(armed=False), "decode") == []


# ---- the writes of a prefill rank ------------------------------------------------------------------------------------


class Prefill:
    """A prefill rank of a version, slot 1 filled for room 77, and a decode rank's empty buffers; tp1 wants it in slot 2."""

    def __init__(self, scheduler: Any) -> None:
        ids, rooms = np.zeros((4, 4), np.int32), np.zeros((4, 8), np.uint64)
        ids[1], rooms[1, 0] = 5, 77
        self.source, self.target = (ids, rooms), (np.zeros_like(ids), np.zeros_like(rooms))
        self.manager = manager = scheduler.disagg_prefill_bootstrap_queue.kv_manager
        manager.kv_args = SimpleNamespace(
            aux_data_ptrs=[ids.ctypes.data, rooms.ctypes.data], aux_item_lens=[ids[0].nbytes, rooms[0].nbytes]
        )
        tensor = SimpleNamespace(device=SimpleNamespace(type="cpu"), data_ptr=lambda: rooms.ctypes.data)
        scheduler.disagg_metadata_buffers = SimpleNamespace(bootstrap_room=tensor)
        manager.decode_kv_args_table = {
            f"agent{tp}": SimpleNamespace(
                decode_tp_rank=tp, dst_aux_ptrs=[1, 2], endpoint="10.0.0.1", dst_port=500 + tp
            )
            for tp in (0, 1)
        }
        manager.transfer_infos = {77: {f"agent{tp}": SimpleNamespace(room=77, dst_aux_index=2) for tp in (0, 1)}}
        self.notifies = hasattr(manager, "update_transfer_status")
        self.recorder, self.table, self.hooks = Recorder(), FaultTable(armed=True), Hooks()
        found = backend_of(scheduler).install(self.hooks, self.recorder, self.table, "prefill")
        self.seams = {seam.name: seam for seam in found}

    def send(self, tp: int = 1) -> str:
        """Send the row as the engine's worker does, and return what it sees of the transfer."""
        notif = (f"{77}_aux",) if self.notifies else ()
        targets = [array.ctypes.data for array in self.target]
        handle = self.manager.send_aux(f"agent{tp}", 1, targets, 2, *notif)
        state = self.manager.agent.check_xfer_state(handle)
        self.manager.agent.release_xfer_handle(handle) if isinstance(handle, tuple) else handle.release()
        return str(state)

    def arm(self, kind: str, **more: Any) -> None:
        delay = {"delay_s": 600.0} if kind in ("delay-metadata", "stall-transfer") else {"delay_s": 0.0}
        fault = Fault("f", kind, delay["delay_s"], float("inf"), None, "decode:tp1", (AimedRank(tp=1),), **more)
        assert self.table.arm(fault) == ""

    def heal(self) -> None:
        self.table.heal()
        while self.table.any:
            time.sleep(0.005)

    @property
    def landed(self) -> int:
        return int(self.target[1][2, 0])

    @property
    def heard(self) -> list[str]:
        return self.manager.agent.heard  # type: ignore[no-any-return]


@pytest.fixture(params=["0.5.12", "0.5.18", "0.5.22", "0.5.23"])
def prefill(request: pytest.FixtureRequest, engine: Any) -> Any:
    made = Prefill(engine(request.param))
    yield made
    made.heal()
    made.hooks.remove_all()
    assert made.hooks.errors() == {}


def test_a_row_is_sent_as_ever_and_recorded(prefill: Prefill) -> None:
    assert (prefill.send(), prefill.landed) == ("DONE", 77)
    assert prefill.recorder.events == [(EventKind.META_SENT, 77, 2, 1)]
    assert prefill.heard == (["77_aux"] if prefill.notifies else [])
    assert all(seam.present for name, seam in prefill.seams.items() if name.startswith("fault."))
    order = "NIXL's own order" in prefill.seams["fault.delay-metadata"].detail
    assert order is prefill.notifies


def test_a_late_row_comes_after_what_decode_hears_as_it_was(prefill: Prefill) -> None:
    prefill.arm("delay-metadata")
    assert (prefill.send(), prefill.landed) == ("DONE", 0)
    assert prefill.heard == (["77_aux"] if prefill.notifies else [])
    prefill.source[0][1], prefill.source[1][1, 0] = 9, 88  # the engine gives the slot to the next request
    assert prefill.send(0) == "DONE", "the other rank is not held back"
    prefill.target[1][2, 0] = 0
    prefill.heal()
    assert prefill.landed == 77
    assert prefill.target[0][2].tolist() == [5] * 4
    assert prefill.manager.agent.registered == [], "the copy is still registered"


def test_a_late_row_for_a_slot_with_a_new_owner_is_not_written(prefill: Prefill) -> None:
    prefill.arm("drop-metadata")
    prefill.send()
    prefill.manager.transfer_infos = {78: {"agent1": SimpleNamespace(room=78, dst_aux_index=2)}}
    prefill.heal()
    assert (prefill.landed, prefill.table.history()[-1].dropped) == (0, 1)


def test_a_late_write_that_nixl_fails_is_counted(prefill: Prefill) -> None:
    prefill.arm("delay-metadata")
    prefill.send()
    prefill.manager.agent.state = "ERR"
    prefill.heal()
    assert prefill.table.history()[-1].failed == 1


@pytest.mark.parametrize(("kind", "more"), [("corrupt-room", {}), ("stale-metadata", {"value": 5})])
def test_a_row_with_another_room(prefill: Prefill, kind: str, more: dict[str, int]) -> None:
    prefill.arm(kind, **more)
    assert prefill.send() == "DONE"
    assert prefill.landed not in (0, 77)
    assert more.get("value", prefill.landed) == prefill.landed
    assert prefill.heard == (["77_aux"] if prefill.notifies else [])


def test_a_transfer_that_fails_does_so_in_the_engines_worker(prefill: Prefill) -> None:
    prefill.arm("fail-transfer")
    with pytest.raises(RuntimeError, match="a fault of pdctl"):
        prefill.send()
    assert (prefill.landed, prefill.heard) == (0, [])


@pytest.mark.parametrize("kind", ["stall-transfer", "drop-status"])
def test_what_tells_decode_of_the_end_is_held_back(prefill: Prefill, kind: str) -> None:
    prefill.arm(kind)
    assert prefill.send() == "DONE"
    if prefill.notifies:
        assert (prefill.landed, prefill.heard) == (77, []), "the row comes, and nothing with it"
        prefill.heal()
        assert prefill.heard == ["77_aux"]
        return
    prefill.manager.send_kv_status_message(targets=[("10.0.0.1", 500), ("10.0.0.1", 501)], bootstrap_room=77, status=4)
    assert prefill.manager.told == [(("10.0.0.1", 500), 77, 4)]
    prefill.heal()
    assert prefill.manager.told == [(("10.0.0.1", 501), 77, 4)]


def test_a_transfer_must_not_fail_where_decodes_time_out_would_end_prefills_bootstrap_thread(engine: Any) -> None:
    made = Prefill(engine("0.5.13"))
    refused = [name for name, seam in made.seams.items() if not seam.present and name.startswith("fault.")]
    assert refused == ["fault.fail-transfer"]
    assert "after its time-out" in made.seams["fault.fail-transfer"].detail
    assert "held for longer than decode waits" in made.seams["fault.drop-status"].detail
    made.hooks.remove_all()


def test_a_manager_that_has_its_agent_under_another_name_is_recorded_and_takes_no_fault(engine: Any) -> None:
    scheduler, hooks = engine("0.5.23"), Hooks()
    manager = scheduler.disagg_prefill_bootstrap_queue.kv_manager
    manager.kv_args, manager.decode_kv_args_table, manager.transfer_infos = None, {}, {}
    del manager.agent
    found = backend_of(scheduler).install(hooks, Recorder(), FaultTable(armed=True), "prefill")
    told = {seam.name: seam for seam in found}
    assert told["events.metadata"].present
    late = told["fault.delay-metadata"]
    assert (late.present, late.detail) == (False, "no NixlKVManager.agent")
    hooks.remove_all()
