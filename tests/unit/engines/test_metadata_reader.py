"""Reading rows next to an engine: rooms and checksums of real tensors, never what is in them."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import msgspec
import pytest
import torch

from pdctl.engines.base import Hooks
from pdctl.engines.device_copy import DeviceCopy, runs, wait_until
from pdctl.engines.metadata_rows import Buffers, MetadataReader, holders, tensors_of
from pdctl.engines.slots import SlotWatch
from pdctl.lab.engine.utils import MetadataBuffers, ReqToMetadataIdxAllocator
from pdctl.protocol.metadata import Holder, Metadata, Wanted
from pdctl.protocol.model import EventKind, QueueEntry

SECRET = 424242424242


def engine_buffers(device: str = "cpu") -> SimpleNamespace:
    """Tensors as SGLang 0.5.23 has them: an optional one that is None, and bfloat16, which numpy does not know."""
    return SimpleNamespace(
        output_ids=torch.zeros((8, 16), dtype=torch.int32, device=device),
        output_topk_index=torch.zeros((8, 16), dtype=torch.int64, device=device),
        output_hidden_states=torch.zeros((8, 24), dtype=torch.bfloat16, device=device),
        bootstrap_room=torch.zeros((8, 8), dtype=torch.uint64, device=device),
        output_token_sampling_mask_len=None,
        kv_checksum=None,
        size=8,
        somebody_elses=torch.zeros((3, 2)),
    )


def reader(owner: Any, free: list[int]) -> MetadataReader:
    allocator = SimpleNamespace(size=8, free_slots=deque(free))
    made = MetadataReader(lambda: Buffers(owner, allocator, {2: 5}, "rdma", "test", True, True))
    made.prepare()
    return made


def test_rows_have_rooms_and_checksums_of_every_tensor() -> None:
    owner = engine_buffers()
    owner.bootstrap_room.numpy()[2, 0] = 2**63 + 11
    owner.output_hidden_states[2] = 1.5
    answer = reader(owner, [0, 1, 3, 4, 5, 6]).read(Wanted(), [Holder(9, "r9", 7, "decode.transfer", 3)], ticks=4)
    names = ["output_ids", "output_topk_index", "output_hidden_states", "bootstrap_room"]
    assert [(t.name, t.row_bytes) for t in answer.tensors] == list(zip(names, (64, 128, 48, 64), strict=True))
    assert [(row.slot, row.found) for row in answer.rows] == [(2, 2**63 + 11), (7, 0)]
    expected = crc32(owner.output_hidden_states[2].view(torch.uint8).numpy().tobytes())
    assert answer.rows[0].sums[2] == expected
    assert not answer.rows[0].changing
    assert answer.rows[0].allocation == 5
    assert answer.rows[1].held_s == -1.0  # taken before anybody looked


def test_the_lab_has_more_rows_than_slots() -> None:
    buffers = MetadataBuffers(4)
    assert len(tensors_of(buffers)) == 10
    allocator = ReqToMetadataIdxAllocator(4)
    answer = MetadataReader(lambda: Buffers(buffers, allocator)).read(Wanted(every=True), [], 0)
    assert [row.slot for row in answer.rows] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("wanted", "slots"),
    [
        (Wanted(), [2, 3, 7]),
        (Wanted(every=True), list(range(8))),
        (Wanted(slots=(1, 99)), [1]),
        (Wanted(rooms=(70,)), [3]),
        (Wanted(rooms=(9,)), [7]),
    ],
)
def test_what_is_asked_for(wanted: Wanted, slots: list[int]) -> None:
    owner = engine_buffers()
    owner.bootstrap_room[3, 0] = 70
    answer = reader(owner, [0, 1, 3, 4, 5, 6]).read(wanted, [Holder(9, "r9", 7, "decode.transfer", 3)], 0)
    assert [row.slot for row in answer.rows] == slots


def test_contents_never_leave_the_rank() -> None:
    owner = engine_buffers()
    owner.output_topk_index[2] = SECRET
    owner.output_ids[2] = 31337
    raw = msgspec.msgpack.encode(reader(owner, []).read(Wanted(every=True), [], 0))
    text = msgspec.json.encode(msgspec.msgpack.decode(raw, type=Metadata)).decode()
    assert str(SECRET) not in text
    assert "31337" not in text
    assert SECRET.to_bytes(8, "big") not in raw


def test_a_row_that_changes_while_it_is_read_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = engine_buffers()
    owner.bootstrap_room[2, 0] = 70
    monkeypatch.setattr("pdctl.engines.metadata_rows.time.sleep", lambda _: owner.output_ids[2].add_(1))
    answer = reader(owner, []).read(Wanted(slots=(1, 2)), [], 0)
    assert [(row.slot, row.changing) for row in answer.rows] == [(1, False), (2, True)]


def test_without_buffers_it_says_so() -> None:
    answer = MetadataReader(lambda: None).read(Wanted(), [], 3)
    assert (answer.rows, answer.not_read) == ([], "this rank has no metadata buffers")


def test_a_request_in_two_places_is_one_holder() -> None:
    queues = {"waiting": [QueueEntry(7, "r7", 3)]}
    others = [Holder(7, "r7", 3, "chunked_req", 255), Holder(8, "r8", 4, "deferred release", 255)]
    assert [(h.room, h.where) for h in holders(queues, others)] == [(7, "waiting"), (8, "deferred release")]


def test_slots_are_seen_taken_and_given_back() -> None:
    events: list[tuple[int, int, int]] = []

    class Sink:
        def event(self, kind: int, *, slot: int = -1, room: int = 0, **_: object) -> None:
            events.append((kind, slot, room))

    allocator, hooks = ReqToMetadataIdxAllocator(2), Hooks()
    watch = SlotWatch(Sink(), {0: 77})  # type: ignore[arg-type]
    assert watch.install(hooks, allocator)
    assert [allocator.alloc(), allocator.alloc(), allocator.alloc()] == [0, 1, None]
    first = watch.taken[0]
    allocator.free(0)
    assert allocator.alloc() == 0
    assert watch.taken[0] > first
    assert events == [
        (EventKind.SLOT_ALLOC, 0, 0), (EventKind.SLOT_ALLOC, 1, 0), (EventKind.SLOT_FREE, 0, 77), (EventKind.SLOT_ALLOC, 0, 0),
    ]  # fmt: skip
    hooks.remove_all()
    allocator.free(0)
    assert len(events) == 4


def test_runs_of_slots() -> None:
    assert list(runs([])) == []
    assert list(runs([5, 1, 2, 3, 5, 7])) == [(1, 4), (5, 6), (7, 8)]


def test_waiting_for_a_device_ends_at_the_deadline() -> None:
    now = [0.0]

    def sleep(s: float) -> None:
        now[0] += s

    assert not wait_until(lambda: False, 1.0, lambda: now[0], sleep)
    assert 1.0 <= now[0] < 1.1
    assert wait_until(lambda: now[0] > 1.05, 9.0, lambda: now[0], sleep)
    assert wait_until(lambda: True, 0.0, lambda: now[0], sleep)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_rows_on_a_device_are_read_while_the_engines_stream_is_busy() -> None:
    owner = engine_buffers("cuda")
    owner.bootstrap_room.view(torch.int64)[2, 0] = 70
    torch.cuda.synchronize()
    made = reader(owner, [])
    torch.cuda._sleep(2_000_000_000)  # about a second on the stream that the engine works on
    answer = made.read(Wanted(slots=(2,), wait_s=0.5), [], 0)
    assert answer.not_read == ""
    assert answer.rows[0].found == 70
    assert not torch.cuda.current_stream().query(), "the engine's stream was waited for"
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_device_that_does_not_answer_is_given_up_on() -> None:
    tensors = tensors_of(engine_buffers("cuda"))
    copy = DeviceCopy(tensors)
    with torch.cuda.stream(copy._stream):
        torch.cuda._sleep(2_000_000_000)
    assert copy.rows(tensors, [1], 0.05) is None
    torch.cuda.synchronize()
    assert copy.rows(tensors, [1], 1.0) is not None
