"""What is fuzzed. Each target takes bytes and returns, or raises what nobody expects.

Checksums would keep a fuzzer out: so for recordings and traces the bytes say which edits to make to a sound one, and its
checksums are made right again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from pdctl.protocol import wire
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.model import Snapshot, Status
from pdctl.recording import format as f
from pdctl.recording.header import BadRecording
from pdctl.recording.source import Source
from pdctl.trace import manifest as manifests
from tests.support import crafted
from tests.support.read_all import carry, read_all, read_trace, without_names

_EDIT = 12
_POWERS = [(1 << power) - below for power in (8, 16, 31, 32, 47, 53, 60, 62, 63, 64) for below in (1, 0)][:-1]
_FIELDS = [(crafted.ROUND_FIELDS, "rounds"), (crafted.ROUND_FIELDS, "live"), (crafted.EVENT_FIELDS, "events")]


@cache
def _pair() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return {name: bytes(data) for name, data in crafted.pair(Path(folder)).items()}


def _edits(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (what, where, value) for each 12 bytes."""
    for at in range(0, min(len(data), 40 * _EDIT) - _EDIT + 1, _EDIT):
        what, table, where = data[at], data[at + 1], int.from_bytes(data[at + 2 : at + 4], "little")
        value = int.from_bytes(data[at + 4 : at + 12], "little")
        yield what, where, _POWERS[table] if table < len(_POWERS) else value


def edited(data: bytes) -> bytes:
    """The recording that these edits make, with right checksums."""
    out = bytearray(_pair()["4002-1.pdrec"])
    for what, where, value in _edits(data):
        kind = what % 8
        if len(out) < f.MIN_SIZE:
            break
        if kind < 3:
            fields, ring = _FIELDS[kind]
            offsets = crafted.places(out, ring)
            if not offsets:
                continue
            at = offsets[where % len(offsets)]
            offset, form = list(fields.values())[where // 256 % len(fields)]
            width = {"B": 1, "I": 4, "i": 4}.get(form[-1], 8)
            out[at + offset : at + offset + width] = value.to_bytes(8, "little")[:width]
            crafted.seal(out, at, event=kind == 2)
        elif kind == 3:
            at = 8 + where % (f.IDENTITY_OFFSET - 16)
            out[at : at + 8] = value.to_bytes(8, "little")
        elif kind == 4:
            crafted.set_size(out, value)
        elif kind == 5:
            _identity(out, where, value)
        elif kind == 6:
            _, _, items, capacity, _, _ = f.layout(len(out))
            at = items + where % min(capacity, 40) * f.ITEM_SIZE + where // 256 % 4 * 8
            out[at : at + 8] = value.to_bytes(8, "little")
            _seal_items(out)
        else:
            del out[value % (len(out) + 1) :]
    return bytes(out)


def _identity(out: bytearray, where: int, value: int) -> None:
    length, _ = f.IDENTITY_FIELDS.unpack_from(out, f.IDENTITY_OFFSET_FIELDS)
    with suppress(ValueError):
        who = json.loads(out[f.IDENTITY_OFFSET : f.IDENTITY_OFFSET + length])
        names = sorted(who)
        others = (
            value,
            -value,
            str(value),
            [],
            [value],
            None,
            "x" * (value % 3000),
            {"kind": value},
            chr(value % 0x800),
        )
        who[names[where % len(names)]] = others[where // 256 % len(others)]
        raw = json.dumps(who).encode()
        if len(raw) <= f.IDENTITY_MAX:
            crafted.set_identity_raw(out, raw)


def _seal_items(out: bytearray) -> None:
    from zlib import crc32

    _, _, items, capacity, _, _ = f.layout(len(out))
    for at in (*crafted.places(out, "rounds"), *crafted.places(out, "live")):
        start = int.from_bytes(out[at + 84 : at + 92], "little")
        count = int.from_bytes(out[at + 92 : at + 96], "little")
        if start + count <= capacity:
            begin = items + start * f.ITEM_SIZE
            out[at + 96 : at + 100] = crc32(out[begin : begin + count * f.ITEM_SIZE]).to_bytes(4, "little")
            crafted.seal(out, at)


def recording(data: bytes) -> None:
    """A recording, in every way it is read; raw where the first byte is odd, edited otherwise."""
    made = data[1:] if data[:1] and data[0] & 1 else edited(data[1:])
    with suppress(BadRecording):
        read_all(Source(made))
    carry(Source(made))
    without_names(made)


def trace(data: bytes) -> None:
    """A container: bytes of the ZIP file flipped, or its recordings edited."""
    both = {name: bytearray(raw) for name, raw in _pair().items()}
    where = Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}.pdtrace"
    if data[:1] and data[0] & 1:
        made_of = crafted.manifest_of(both)
        both["4002-1.pdrec"] = bytearray(edited(data[1:]))
        sum_ = hashlib.sha256(both["4002-1.pdrec"]).hexdigest()
        made_of["ranks"][1].update(size=len(both["4002-1.pdrec"]), sha256=sum_)
        made = crafted.write(where, both, made_of)
    else:
        made = crafted.write(where, both)
        raw = bytearray(made.read_bytes())
        begin = zipfile.ZipFile(io.BytesIO(bytes(raw))).start_dir
        for what, place, value in _edits(data[1:]):
            at = (begin if what & 1 else 0) + place % (len(raw) - begin if what & 1 else len(raw))
            width = 1 << (what >> 1 & 3)
            raw[at : at + width] = value.to_bytes(8, "little")[:width]
        made.write_bytes(raw)
    with suppress(PdctlError):
        read_trace(made)


def manifest(data: bytes) -> None:
    """The bytes of a manifest."""
    with suppress(ValueError):
        manifests.decode(data)


def message(data: bytes) -> None:
    """A frame on a control socket, asked or answered."""
    with suppress(ValueError):
        wire.decode_request(data)
    with suppress(ValueError):
        reply = wire.decode_reply(data)
        for kind in (Status, Snapshot):
            with suppress(ValueError):
                msgspec.msgpack.decode(reply.body, type=kind)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "recording": recording,
    "trace": trace,
    "manifest": manifest,
    "message": message,
}


def seeds(name: str) -> list[bytes]:
    """Sound inputs to begin with."""
    if name == "manifest":
        made = crafted.manifest_of({key: bytearray(data) for key, data in _pair().items()})
        samples = Path(crafted.__file__).parent / "data"
        return [
            json.dumps(made).encode(),
            *(zipfile.ZipFile(p).read("manifest.json") for p in samples.glob("*.pdtrace")),
        ]
    if name == "message":
        asked = wire.encode(wire.Request("recording", id=1, args={"offset": 0, "length": 5}))
        return [asked, wire.encode(wire.Reply(id=1, error="no", code=4))]
    edit = b"".join(bytes([kind, 0xFF, 5, 1]) + bytes([1, 0, 0, 0, 0, 0, 0, 0]) for kind in range(8))
    return [
        b"\0",
        b"\0" + edit,
        b"\1" + edit,
        *(b"\0" + bytes([kind, table, 3, 0]) + bytes(8) for kind in range(8) for table in range(20)),
    ]
