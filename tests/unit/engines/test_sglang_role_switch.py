"""A rank whose engine gives it another role while it runs: identity, queues, slots, hooks and recording follow."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from pdctl.agent.core import Agent
from pdctl.engines.sglang import identity as identities
from pdctl.engines.sglang import seams
from pdctl.engines.sglang.adapter import SGLangAdapter
from pdctl.faults.table import FaultTable
from pdctl.protocol.model import EventKind
from pdctl.protocol.notes import ROLE_CHANGED
from pdctl.protocol.paths import read_registration
from pdctl.recording import format as f
from pdctl.recording.reader import Recording, parse
from pdctl.recording.writer import RecordingWriter
from tests.support.identities import identity as made_identity
from tests.support.patience import until

UTILS = """
def poll_and_all_reduce(pollers, gloo_group, decode_reqs=None, metadata_buffers=None):
    tensor = torch.tensor([poller.poll() for poller in pollers], dtype=torch.uint8)
    dist.all_reduce(tensor, group=gloo_group)
    return tensor.tolist()
def poll_and_all_reduce_attn_cp_tp_group(pollers, attn_cp_cpu_group, attn_tp_cpu_group):
    return poll_and_all_reduce(pollers, attn_tp_cpu_group)
"""
DECODE = """
class DecodeTransferQueue:
    def pop_transferred(self):
        if not self.queue:
            return []
        return poll_and_all_reduce([one.kv_receiver for one in self.queue], "g")
class DecodePreallocQueue:
    def pop_preallocated(self):
        self._update_handshake_waiters()
    def _update_handshake_waiters(self):
        pass
"""
PREFILL = """
class PrefillBootstrapQueue:
    def pop_bootstrapped(self):
        if not self.queue:
            return []
        return poll_and_all_reduce_attn_cp_tp_group([req.disagg_kv_sender for req in self.queue], None, "g")
"""


class Mode(Enum):
    PREFILL = "prefill"
    DECODE = "decode"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type:
    """The engine's modules, and its scheduler's class."""
    utils = ModuleType(seams.UTILS)
    vars(utils).update(torch=torch, dist=SimpleNamespace(all_reduce=lambda *_: None))
    exec(UTILS, vars(utils))
    for name, source in ((seams.UTILS, ""), (seams.DECODE, DECODE), (seams.PREFILL, PREFILL)):
        module = utils if name == seams.UTILS else ModuleType(name)
        vars(module).update({one: vars(utils)[one] for one in seams.POLL_FUNCTIONS if one in vars(utils)})
        exec(source, vars(module))
        monkeypatch.setitem(sys.modules, name, module)
    around = _around()
    monkeypatch.setattr(identities, "here", lambda: around)

    class Scheduler:
        server_args = SimpleNamespace(port=30100, disaggregation_transfer_backend="fake", nnodes=1, dp_size=1)
        attn_tp_cpu_group = "g"
        attn_tp_rank, attn_tp_size = 0, 1
        running_batch = None
        waiting_queue: list[Any] = []  # noqa: RUF012

        def __init__(self, mode: Mode) -> None:
            self.becomes(mode)

        def becomes(self, mode: Mode) -> None:
            self.disaggregation_mode = mode
            slots = 4 if mode is Mode.PREFILL else 8
            self.disagg_metadata_buffers = SimpleNamespace(bootstrap_room=torch.zeros((slots, 1), dtype=torch.int64))
            self.req_to_metadata_buffer_idx_allocator = SimpleNamespace(alloc=lambda: 0, free=lambda _: None)
            manager = SimpleNamespace(request_status={})
            self.disagg_prefill_bootstrap_queue = self.disagg_decode_prealloc_queue = None
            self.disagg_decode_transfer_queue = None
            self.disagg_prefill_inflight_queue: list[Any] = []
            modules = sys.modules
            if mode is Mode.PREFILL:
                self.disagg_prefill_bootstrap_queue = modules[seams.PREFILL].PrefillBootstrapQueue()
                self.disagg_prefill_bootstrap_queue.__dict__.update(queue=[], kv_manager=manager)
            else:
                self.disagg_decode_prealloc_queue = modules[seams.DECODE].DecodePreallocQueue()
                self.disagg_decode_prealloc_queue.__dict__.update(
                    queue=[], pending_reqs=[], retracted_queue=[], kv_manager=manager
                )
                self.disagg_decode_transfer_queue = modules[seams.DECODE].DecodeTransferQueue()
                self.disagg_decode_transfer_queue.__dict__.update(queue=[], kv_manager=manager)

        def process_input_requests(self, received: Any) -> None:
            if received is not None:
                self.becomes(received)

        def _handle_kv_checksum_mismatch(self, req: Any, msg: str) -> None:
            self.dropped = req

        def turn(self, received: Any = None) -> None:
            self.process_input_requests(received)
            if self.disaggregation_mode is Mode.PREFILL:
                self.disagg_prefill_bootstrap_queue.pop_bootstrapped()
            else:
                self.disagg_decode_transfer_queue.pop_transferred()

        def waits(self, room: int) -> None:
            """Let a request be polled in the role that it has."""
            transfer = SimpleNamespace(bootstrap_room=room, poll=lambda: 3)
            req = SimpleNamespace(
                bootstrap_room=room,
                rid=f"r{room}",
                time_stats=None,
                disagg_kv_sender=transfer,
                metadata_buffer_index=-1,
            )
            entry = SimpleNamespace(req=req, kv_receiver=transfer, metadata_buffer_index=0)
            if self.disaggregation_mode is Mode.PREFILL:
                self.disagg_prefill_bootstrap_queue.queue.append(req)
            else:
                self.disagg_decode_transfer_queue.queue.append(entry)

    return Scheduler


def _around() -> identities.Around:
    return identities.Around(
        host="h", pid=1, proc_start=1, parent=(2, 3), world_rank=0,
        ranks_of=lambda _: (0,), number_of=lambda _: 1, agreed=lambda mine: mine,
    )  # fmt: skip


def installed(scheduler: Any, folder: Path) -> tuple[SGLangAdapter, Any]:
    adapter = SGLangAdapter(scheduler)
    path = folder / "recording"
    writer = RecordingWriter.create(path, msgspec.json.encode(adapter.identity()), size=f.MIN_SIZE)
    adapter.install(writer, FaultTable(False, lambda *_: None))
    return adapter, lambda: parse(path.read_bytes())


def rooms(recording: Recording, queue: str) -> list[tuple[int, list[int]]]:
    stream = recording.stream(queue, "attn-tp")
    assert stream is not None
    return [(run.ordinal, [item.room for item in stream.items(run) or []]) for run in stream.runs]


def test_all_follows_it_there_and_back(engine: Any, tmp_path: Path) -> None:
    scheduler = engine(Mode.PREFILL)
    adapter, recording = installed(scheduler, tmp_path)
    before = adapter.identity()
    assert (before.role, before.service) == ("prefill", "prefill@h:30100")
    scheduler.waits(11)
    scheduler.turn()
    assert adapter.identity() is before
    scheduler.turn(Mode.DECODE)
    assert (adapter.identity().role, adapter.identity().service) == ("decode", "decode@h:30100")
    scheduler.waits(12)
    scheduler.turn()
    queues, missing = adapter.queues()
    assert [entry.room for entry in queues["decode.transfer"]] == [12]
    assert not [name for name in (*queues, *missing) if name.startswith("prefill")]
    assert [(slot.slot, slot.expected) for slot in adapter.slots()] == [(0, 12)]
    present = {seam.name: seam.detail for seam in adapter.seams() if seam.present}
    assert "rounds.decode.transfer" in present
    assert "rounds.prefill.bootstrap" not in present
    assert "8 slots" in present["slots"]
    scheduler.turn(Mode.PREFILL)
    scheduler.waits(13)
    scheduler.turn()
    scheduler.turn(Mode.DECODE)
    scheduler.waits(14)
    scheduler.turn()
    found = recording()
    assert rooms(found, "prefill.bootstrap") == [(0, [11]), (1, [13])]
    assert rooms(found, "decode.transfer") == [(0, [12]), (1, [14])]
    notes = [event.text for event in found.events() if event.kind is EventKind.NOTE]
    assert [note for note in notes if note.startswith(ROLE_CHANGED)] == [
        f"{ROLE_CHANGED}: prefill to decode", f"{ROLE_CHANGED}: decode to prefill", f"{ROLE_CHANGED}: prefill to decode",
    ]  # fmt: skip
    assert adapter.ticks()[0] == found.ticks == 7
    assert not adapter.hooks.errors()


def test_a_request_whose_kv_is_wrong_is_told_with_its_room(engine: Any, tmp_path: Path) -> None:
    scheduler = engine(Mode.DECODE)
    _, recording = installed(scheduler, tmp_path)
    req = SimpleNamespace(bootstrap_room=12)
    scheduler._handle_kv_checksum_mismatch(req, "KV checksum mismatch req=r12 expected=0x1 got=0x2")
    assert scheduler.dropped is req
    [event] = [event for event in recording().events() if event.kind is EventKind.FAILURE]
    assert (event.room, event.text) == (12, "KV checksum mismatch req=r12 expected=0x1 got=0x2")


def test_a_role_that_is_not_understood_leaves_the_engine_alone(engine: Any, tmp_path: Path) -> None:
    scheduler = engine(Mode.PREFILL)
    adapter, _ = installed(scheduler, tmp_path)
    original = scheduler.becomes

    def breaks(mode: Mode) -> None:
        original(mode)
        scheduler.disagg_metadata_buffers = SimpleNamespace(bootstrap_room=object())

    scheduler.becomes = breaks
    scheduler.turn(Mode.DECODE)
    scheduler.turn()
    assert adapter.hooks.removed() == ("tick",)
    assert "original" not in engine.process_input_requests.__code__.co_freevars


class Changing:
    """An adapter of a rank whose role is set from outside."""

    def __init__(self) -> None:
        from pdctl.engines.base import Hooks

        self.hooks = Hooks()
        self.role = "prefill"

    def identity(self) -> Any:
        return made_identity(role=self.role, service=f"{self.role}@here:1")

    def install(self, recorder: Any, faults: Any) -> None: ...


def test_the_agent_registers_its_rank_anew(tmp_path: Path) -> None:
    folders = {"PDCTL_RUN_DIR": tmp_path / "run", "PDCTL_RECORD_DIR": tmp_path / "record"}
    for folder in folders.values():
        folder.mkdir(mode=0o700)
    adapter: Any = Changing()
    agent = Agent.start(adapter, env={**{k: str(v) for k, v in folders.items()}, "PDCTL_RECORD_SIZE": str(f.MIN_SIZE)})
    assert agent is not None
    try:
        [file] = (tmp_path / "run").glob("*.json")
        before = read_registration(file)
        assert before.identity.role == "prefill"
        adapter.role = "decode"
        after = until("its new role is registered", lambda: _of_role(file, "decode"))
        assert after.endpoint == before.endpoint
        assert (after.identity.pid, after.identity.started_mono_ns) == (
            before.identity.pid,
            before.identity.started_mono_ns,
        )
        [recording] = (tmp_path / "record").glob("*.pdrec")
        until("its recording has it", lambda: parse(recording.read_bytes()).identity.role == "decode")
    finally:
        agent.stop()


def _of_role(file: Path, role: str) -> Any:
    found = read_registration(file)
    return found if found.identity.role == role else None
