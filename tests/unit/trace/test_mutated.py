"""Any bytes where a recording, a trace, a manifest or a message is expected raise the error made for it, and nothing else."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.protocol import paths, wire
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.model import Identity
from pdctl.protocol.wire import PROTOCOL
from pdctl.recording.header import BadRecording
from pdctl.recording.source import Source
from pdctl.trace import manifest
from tests.support import crafted
from tests.support.read_all import carry, read_all, read_trace, without_names

EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
POWERS = [(1 << power) - below for power in (31, 32, 47, 53, 60, 62, 63, 64) for below in (1, 0)]
NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 16, 255, 256, 65535, *POWERS[:-1]])
PLACES = {
    "round": (crafted.ROUND_FIELDS, "rounds"),
    "live": (crafted.ROUND_FIELDS, "live"),
    "event": (crafted.EVENT_FIELDS, "events"),
}


@cache
def pair() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return {name: bytes(data) for name, data in crafted.pair(Path(folder)).items()}


@st.composite
def recordings(draw: st.DrawFn) -> bytes:
    """A recording some records of which hold other numbers, with right checksums, or other bytes anywhere."""
    data = bytearray(pair()["4002-1.pdrec"])
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from([*PLACES, "header", "bytes", "cut"]))
        if kind in PLACES:
            fields, ring = PLACES[kind]
            at = draw(st.sampled_from(crafted.places(data, ring) or [0]))
            name = draw(st.sampled_from(sorted(fields)))
            offset, form = fields[name]
            width = {"B": 1, "I": 4, "i": 4}.get(form[-1], 8)
            if at and at + offset + width <= len(data):
                data[at + offset : at + offset + width] = (draw(NUMBERS) & (1 << 8 * width) - 1).to_bytes(
                    width, "little"
                )
                crafted.seal(data, at, event=kind == "event")
        elif kind == "header":
            at = 8 * draw(st.integers(1, 200))
            data[at : at + 8] = draw(NUMBERS).to_bytes(8, "little")
        elif kind == "bytes":
            for at in draw(st.lists(st.integers(0, len(data) - 1), max_size=8)):
                data[at] ^= 0xFF
        else:
            del data[draw(st.integers(0, len(data))) :]
        if len(data) < 40_000:
            break
    return bytes(data)


@EXAMPLES
@given(data=recordings())
def test_a_mutated_recording_is_read_or_refused(data: bytes) -> None:
    with suppress(BadRecording):
        read_all(Source(data))
    carry(Source(data))
    without_names(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _inside(value: Any) -> Iterator[Callable[[Any], None]]:
    """Yield, for every value in ``value``, what puts another one in its place."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:

        def put(other: Any, key: Any = key) -> None:
            value[key] = other

        yield put
        yield from _inside(value[key])


@EXAMPLES
@given(seed=st.integers(0, 2**32), value=JSON | NUMBERS, more=st.booleans())
def test_a_mutated_manifest_is_read_or_refused(seed: int, value: Any, more: bool) -> None:
    made = crafted.manifest_of({name: bytearray(data) for name, data in pair().items()})
    random.Random(seed).choice(list(_inside(made)))(value)
    if more:
        made["ranks"] = [made["ranks"], value] if isinstance(made.get("ranks"), dict) else made["ranks"]
    with suppress(ValueError):
        manifest.decode(json.dumps(made).encode())


@EXAMPLES
@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.floats(0.5, 1.5),
)
def test_a_mutated_container_is_read_or_refused(flips: list[tuple[float, int]], cut: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = crafted.write(Path(folder) / "t.pdtrace", {name: bytearray(data) for name, data in pair().items()})
        data = bytearray(path.read_bytes())
        for where, byte in flips:
            data[int(where * len(data))] = byte
        path.write_bytes(data[: int(cut * len(data))])
        with suppress(PdctlError):
            read_trace(path)


@EXAMPLES
@given(data=st.binary(max_size=200), depth=st.sampled_from([0, 0, 0, 20_000]))
def test_any_message_is_read_or_refused(data: bytes, depth: int) -> None:
    nested = b"\x82\xa1v\x01\xa4args\x81\xa1x" + b"\x91" * depth + data
    for frame in (data, nested, msgspec.msgpack.encode({"v": 1, "op": "x", "args": {"x": data}})):
        for decode in (wire.decode_request, wire.decode_reply):
            with suppress(ValueError):
                decode(frame)


@EXAMPLES
@given(data=st.binary(max_size=300), value=JSON)
def test_any_registration_is_read_or_refused(data: bytes, value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    identity = dict.fromkeys(Identity.__struct_fields__, value)
    path = tmp_path_factory.getbasetemp() / "1-1.json"
    for raw in (data, json.dumps({"protocol": PROTOCOL, "endpoint": "", "identity": identity}).encode()):
        path.write_bytes(raw)
        with suppress(ValueError, OSError):
            paths.read_registration(path)
