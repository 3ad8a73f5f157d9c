"""A held metadata write sends the row as it was, however late and whatever the engine did with its slot since."""

from __future__ import annotations

import ctypes
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pdctl.engines.base import Hooks
from pdctl.engines.sglang.backends import backend_of
from pdctl.faults.fault import AimedRank, Fault
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import EventKind
from pdctl.recording.null import NullRecorder


class Recorder(NullRecorder):
    def __init__(self) -> None:
        super().__init__("a test")
        self.events: list[tuple[int, int, int, int]] = []

    def event(self, kind: int, **fields: Any) -> None:
        self.events.append((kind, fields["room"], fields["a"], fields["b"]))


class Engine:
    """Mooncake's engine: copies from address to address."""

    def __init__(self) -> None:
        self.registered: list[tuple[int, int]] = []
        self.result = 0

    def register(self, address: int, length: int) -> None:
        self.registered.append((address, length))

    def deregister(self, address: int) -> None:
        self.registered = [known for known in self.registered if known[0] != address]


class MooncakeKVManager:
    """What `send_aux` of sglang.srt.disaggregation.mooncake.conn (0.5.12.post1) uses."""

    def __init__(self, rows: list[np.ndarray[Any, Any]]) -> None:
        self.engine = Engine()
        self.kv_args = SimpleNamespace(
            aux_data_ptrs=[row.ctypes.data for row in rows], aux_item_lens=[row[0].nbytes for row in rows]
        )
        self.decode_kv_args_table = {
            f"session{tp}": SimpleNamespace(dst_tp_rank=tp, dst_aux_ptrs=[1, 2]) for tp in (0, 1)
        }
        self.transfer_infos: dict[int, Any] = {}
        self.transfers: list[str] = []

    def send_aux(self, req: Any, prefill_aux_index: int, dst_aux_ptrs: list[int]) -> int:
        blocks = []
        for i, target in enumerate(dst_aux_ptrs):
            length = self.kv_args.aux_item_lens[i]
            source = self.kv_args.aux_data_ptrs[i] + length * prefill_aux_index
            blocks.append((source, target + length * req.dst_aux_index, length))
        return self._transfer_data(req.mooncake_session_id, blocks)

    def _transfer_data(self, session: str, blocks: list[tuple[int, int, int]]) -> int:
        for source, target, length in blocks:
            ctypes.memmove(target, source, length)
        self.transfers.append(session)
        return self.engine.result


@pytest.fixture
def parts() -> Any:
    """A prefill rank's manager with slot 1 filled for room 77, a decode rank's empty buffers, and the hook between."""
    ids, rooms = np.zeros((4, 4), np.int32), np.zeros((4, 8), np.uint64)
    ids[1], rooms[1, 0] = 5, 77
    manager = MooncakeKVManager([ids, rooms])
    here = np.zeros_like(ids), np.zeros_like(rooms)
    scheduler = SimpleNamespace(
        disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=manager),
        disagg_metadata_buffers=SimpleNamespace(bootstrap_room=SimpleNamespace(device=SimpleNamespace(type="cpu"))),
    )
    hooks, recorder, table = Hooks(), Recorder(), FaultTable(armed=True)
    found = backend_of(scheduler).install(hooks, recorder, table, "prefill")
    yield SimpleNamespace(
        manager=manager, source=(ids, rooms), target=here, recorder=recorder, table=table, seams=found, hooks=hooks
    )
    table.heal()
    hooks.remove_all()


def request(tp: int, room: int = 77) -> Any:
    return SimpleNamespace(room=room, mooncake_session_id=f"session{tp}", dst_aux_index=2)


def send(parts: Any, tp: int) -> int:
    return int(parts.manager.send_aux(request(tp), 1, [array.ctypes.data for array in parts.target]))


def arm(parts: Any, tp: int) -> None:
    fault = Fault("f", "delay-metadata", 600.0, float("inf"), None, f"decode:tp{tp}", targets=(AimedRank(tp=tp),))
    assert parts.table.arm(fault) == ""


def settled(parts: Any) -> None:
    """Wait until nothing is held back any more."""
    while parts.table.metadata:
        time.sleep(0.005)


def test_without_a_fault_it_writes_and_says_so(parts: Any) -> None:
    assert send(parts, 1) == 0
    assert parts.target[1][2, 0] == 77
    assert parts.recorder.events == [(EventKind.META_SENT, 77, 1, 0)]
    present = {seam.name for seam in parts.seams if seam.present}
    assert {"events.metadata", "fault.delay-metadata"} <= present


def test_the_other_rank_is_not_held_back(parts: Any) -> None:
    arm(parts, 1)
    assert send(parts, 0) == 0
    assert parts.target[1][2, 0] == 77


def test_the_late_write_is_the_row_as_it_was(parts: Any) -> None:
    arm(parts, 1)
    assert send(parts, 1) == 0
    assert not parts.target[1].any(), "it was not held back"
    parts.source[0][1], parts.source[1][1, 0] = 9, 88  # the engine gives the slot to the next request
    parts.table.heal()
    settled(parts)
    assert parts.target[1][2, 0] == 77
    assert parts.target[0][2].tolist() == [5] * 4
    assert parts.manager.transfers == ["session1"]
    assert parts.manager.engine.registered == [], "the copy is still registered"


def test_a_failed_late_write_is_counted(parts: Any) -> None:
    arm(parts, 1)
    parts.manager.engine.result = -1
    send(parts, 1)
    parts.table.heal()
    settled(parts)
    assert parts.table.history()[-1].failed == 1
    assert parts.table.history()[-1].released == 0


def test_metadata_on_a_device_refuses_the_fault() -> None:
    manager = MooncakeKVManager([np.zeros((1, 8), np.uint64)])
    scheduler = SimpleNamespace(
        disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=manager),
        disagg_metadata_buffers=SimpleNamespace(bootstrap_room=SimpleNamespace(device=SimpleNamespace(type="cuda"))),
    )
    hooks = Hooks()
    seams = backend_of(scheduler).install(hooks, Recorder(), FaultTable(armed=True), "prefill")
    found = {seam.name: seam for seam in seams}
    hooks.remove_all()
    assert found["events.metadata"].present
    assert not found["fault.delay-metadata"].present
    assert "cuda" in found["fault.delay-metadata"].detail
