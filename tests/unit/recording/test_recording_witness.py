"""What a recording is a witness of: from when on it has every request, and when its rank last took in new ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.protocol.model import EventKind
from pdctl.recording import format as f
from pdctl.recording.reader import Recording, parse
from pdctl.recording.witness import witness
from tests.support.story_world import Request, World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def read(world: World, cut: int | None = None) -> Recording:
    return parse(world.data(world.ranks[0])[:cut])


def test_all_of_a_young_recording_is_known(world: World) -> None:
    prefill = world.rank("prefill")
    prefill.event(EventKind.STATE, room=7, a=1)
    recording = read(world)
    seen = witness(recording)
    assert (seen.since_ns, seen.why, seen.took_in_ns) == (recording.start_mono_ns, "it begins there", 0)
    world.wait(10)
    prefill.writer.pulse(1, prefill.now())  # an engine without a hook at its input queue
    assert witness(read(world)).took_in_ns == prefill.now()
    world.wait(10)
    prefill.enter("prefill.bootstrap", Request(7, "r"))
    world.round("prefill.bootstrap", [prefill], reduced=1)
    at = witness(read(world)).took_in_ns
    assert 0 <= prefill.now() - at < 10**7
    world.wait(10)
    prefill.writer.pulse(2, prefill.now())  # a turn has begun, and may wait for its peers before it takes in any
    assert witness(read(world)).took_in_ns == at


def test_what_is_overwritten_is_not_known(world: World) -> None:
    prefill = world.rank("prefill")
    for _ in range(read(world).rings[5] + 3):
        world.wait(1)
        prefill.event(EventKind.STATE, room=7, a=1)
    recording = read(world)
    seen = witness(recording)
    assert recording.events()[0].seq > 1
    assert (seen.since_ns, seen.why) == (recording.events()[0].mono_ns, "what was before is overwritten")


def test_half_a_recording_is_no_witness(world: World) -> None:
    world.rank("prefill").event(EventKind.STATE, room=7, a=1)
    seen = witness(read(world, cut=100_000))
    assert (seen.since_ns, seen.why) == (None, "its recording is cut off")


def test_a_recording_that_stopped_is_no_witness(world: World) -> None:
    data = bytearray(world.data(world.rank("prefill")))
    f.STATE.pack_into(data, f.STATE_OFFSET, f.STATE_STOPPED)
    seen = witness(parse(bytes(data)))
    assert (seen.since_ns, seen.why) == (None, "its recording has stopped")
