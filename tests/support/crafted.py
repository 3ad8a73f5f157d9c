"""Recordings and traces that nobody's rank wrote: numbers, names and sizes chosen to hurt, with right checksums."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from pdctl.protocol.model import EventKind
from pdctl.recording import format as f
from tests.unit.agent.test_tap_recording import IDENTITY, Engine, Request

ROOM = 7203441
U64 = (1 << 64) - 1
ROUND_FIELDS = {
    "stream": (8, "<B"), "queue": (9, "<B"), "group": (10, "<B"), "flags": (11, "<B"), "repeat": (12, "<Q"),
    "t_enter": (20, "<q"), "t_done": (28, "<q"), "n": (36, "<I"), "n_after": (40, "<I"), "ordinal": (44, "<Q"),
    "visit": (52, "<Q"), "t_first": (60, "<q"), "items_start": (84, "<Q"), "items_count": (92, "<I"),
}  # fmt: skip
EVENT_FIELDS = {"mono": (8, "<q"), "kind": (16, "<B"), "queue": (17, "<B"), "slot": (20, "<i"), "room": (24, "<Q"),
                "a": (32, "<q"), "b": (40, "<q")}  # fmt: skip


def pair(folder: Path) -> dict[str, bytearray]:
    """The recordings of two decode ranks that part: tp0 committed ROOM, tp1 kept it."""
    found = {}
    for tp in (0, 1):
        path = folder / f"{4001 + tp}-1.pdrec"
        engine = Engine(path)
        who = msgspec.structs.replace(
            IDENTITY, tp=tp, tp_size=2, pid=4001 + tp, world_rank=tp, service="decode@h:1", instance="decode@h:1/1"
        )
        engine.writer.set_identity(msgspec.json.encode(who))
        engine.writer.event(EventKind.ENQUEUE, queue=4, room=ROOM, slot=3, text="a-request")
        engine.queue = [Request(5, 1), Request(ROOM, 3), Request(6, 2)]
        for polls in ([3, 3, 3], [3, 3, 3], [1, 3, 3], [3, 3, 2]):
            engine.turn(polls, polls, set())
        engine.turn([3, 4, 3], [3, 4, 3], {ROOM} if tp else set())
        polls = [3] * len(engine.queue)
        engine.turn(polls, polls, set())
        found[path.name] = bytearray(path.read_bytes())
        path.unlink()
    return found


def places(data: bytes, ring: str) -> list[int]:
    """Where the records of a ring are, or those of the live cells."""
    if ring == "live":
        return [at for at in range(f.LIVE_OFFSET, f.RINGS_OFFSET, f.ROUND_SIZE) if any(data[at : at + 8])]
    rounds, rounds_cap, _, _, events, events_cap = f.layout(len(data))
    start, count = (rounds, rounds_cap) if ring == "rounds" else (events, events_cap)
    return [at for at in range(start, start + 128 * count, 128) if any(data[at : at + 8])]


def seal(data: bytearray, at: int, *, event: bool = False) -> None:
    """Make the checksum of a record right."""
    body, crc = (f.EVENT.size, f.EVENT_CRC_OFFSET) if event else (f.ROUND_BODY_SIZE, f.ROUND_CRC_OFFSET)
    struct.pack_into("<I", data, at + crc, crc32(data[at : at + body]))


def set_round(data: bytearray, at: int, **values: int) -> None:
    for name, value in values.items():
        offset, form = ROUND_FIELDS[name]
        struct.pack_into(form, data, at + offset, value)
    seal(data, at)


def set_rounds(data: bytearray, **values: int) -> None:
    """Give every run these values, in the ring and in the live cells."""
    for at in (*places(data, "rounds"), *places(data, "live")):
        set_round(data, at, **values)
    data[f.REPEATS_OFFSET : f.IDENTITY_OFFSET] = bytes(f.IDENTITY_OFFSET - f.REPEATS_OFFSET)


def set_events(data: bytearray, **values: int) -> None:
    for at in places(data, "events"):
        for name, value in values.items():
            offset, form = EVENT_FIELDS[name]
            struct.pack_into(form, data, at + offset, value)
        seal(data, at, event=True)


def set_size(data: bytearray, size: int) -> None:
    """Claim another size, with the rings where they then belong, as far as that can be written."""
    struct.pack_into("<Q", data, 16, size & U64)
    struct.pack_into("<6Q", data, 56, *(number & U64 for number in f.layout(size)))


def set_identity(data: bytearray, **values: object) -> None:
    length, _ = f.IDENTITY_FIELDS.unpack_from(data, f.IDENTITY_OFFSET_FIELDS)
    identity = json.loads(data[f.IDENTITY_OFFSET : f.IDENTITY_OFFSET + length])
    set_identity_raw(data, json.dumps({**identity, **values}).encode())


def set_identity_raw(data: bytearray, raw: bytes) -> None:
    data[f.IDENTITY_OFFSET : f.HEADER_SIZE] = raw.ljust(f.IDENTITY_MAX, b"\0")
    f.IDENTITY_FIELDS.pack_into(data, f.IDENTITY_OFFSET_FIELDS, len(raw), crc32(raw))


def _header(offset: int, form: str, *values: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(form, data, offset, *values)


def _sizes(size: int) -> Callable[[bytearray], None]:
    return lambda data: set_size(data, size)


def _rounds(**values: int) -> Callable[[bytearray], None]:
    return lambda data: set_rounds(data, **values)


def _events(**values: int) -> Callable[[bytearray], None]:
    return lambda data: set_events(data, **values)


def _who(**values: object) -> Callable[[bytearray], None]:
    return lambda data: set_identity(data, **values)


def _shared_items(data: bytearray) -> None:
    """Every run claims the same items: a list of zeros as long as the ring."""
    _, _, start, capacity, _, _ = f.layout(len(data))
    zeros = crc32(bytes(capacity * f.ITEM_SIZE))
    data[start : start + capacity * f.ITEM_SIZE] = bytes(capacity * f.ITEM_SIZE)
    for at in (*places(data, "rounds"), *places(data, "live")):
        struct.pack_into("<I", data, at + 96, zeros)
        set_round(data, at, items_start=0, items_count=capacity, n=capacity)


def _jumping_numbers(data: bytearray) -> None:
    for ring, event in (("rounds", False), ("events", True)):
        offsets = places(data, ring)
        capacity = f.layout(len(data))[5 if event else 1]
        for at in offsets[-1:]:
            (seq,) = struct.unpack_from("<Q", data, at)
            struct.pack_into("<Q", data, at, seq + capacity * ((1 << 58) // capacity))
            seal(data, at, event=event)


RECORDINGS: dict[str, Callable[[bytearray], None]] = {
    **{f"size 2^{power}": _sizes(1 << power) for power in (31, 40, 62, 63)},
    "size 2^64-1": _sizes(U64),
    "size without a record": _sizes(f.RINGS_OFFSET),
    "size 0": _sizes(0),
    "rings elsewhere": _header(56, "<6Q", 1 << 60, 1 << 30, 0, 1, 5, 1 << 62),
    "a list of 4e9": _rounds(n=(1 << 32) - 16, flags=3),
    "a list of 5e7": _rounds(n=50_000_000, flags=3),
    "a whole list of 4e9": _rounds(n=(1 << 32) - 1, n_after=(1 << 32) - 1),
    "items of 4e9": _rounds(items_count=(1 << 32) - 1),
    "items at the end of time": _rounds(items_start=U64),
    "items all the same": _shared_items,
    "phase 0": _rounds(flags=0x10),
    "phase 9": _rounds(flags=0x19),
    "stream 255": _rounds(stream=255),
    "queue 77": _rounds(queue=77),
    "group 200": _rounds(group=200),
    "repeat 2^64-1": _rounds(repeat=U64),
    "repeat 2^47": _rounds(repeat=1 << 47),
    "round 2^64-1": _rounds(ordinal=U64),
    "round 2^59": _rounds(ordinal=1 << 59),
    "turn 2^64-1": _rounds(visit=U64),
    "times before time": _rounds(t_enter=-(1 << 63), t_done=-(1 << 63), t_first=-(1 << 63)),
    "times after time": _rounds(t_enter=(1 << 63) - 1, t_done=(1 << 63) - 1, t_first=(1 << 63) - 1),
    "times near the end": _rounds(t_enter=(1 << 60) - 1, t_done=(1 << 60) - 1, t_first=(1 << 60) - 1),
    "numbers that jump": _jumping_numbers,
    "wall -2^63": _header(24, "<q", -(1 << 63)),
    "wall and mono 2^63-1": _header(24, "<qq", (1 << 63) - 1, (1 << 63) - 1),
    "wall 2^62-1": _header(24, "<q", (1 << 62) - 1),
    "mono 2^60-1": _header(32, "<q", (1 << 60) - 1),
    "pulse": _header(f.PULSE_OFFSET, "<Qq", U64, -(1 << 63)),
    "visits": _header(f.VISITS_OFFSET, "<16q", *([-1, -(1 << 63)] * 8)),
    "repeats": _header(f.REPEATS_OFFSET, "<QqQ", U64, (1 << 63) - 1, U64),
    "events before time": _events(mono=-(1 << 63)),
    "events after time": _events(mono=(1 << 63) - 1),
    "events of any kind": _events(kind=200, queue=99),
    "events with large numbers": _events(a=-(1 << 63), b=(1 << 63) - 1, slot=-(1 << 31), room=U64),
    "a service of two lines": _who(service="a\nPD000 forged"),
    "an engine that escapes": _who(engine="\x1b[2J", host="\x9b2J"),
    "a version of 4500 digits": _who(engine="sglang", engine_version="9" * 4500 + ".1.1"),
    "a version of 900 digits": _who(engine="sglang", engine_version="9" * 900 + ".1.1"),
    "sizes of 10^9": _who(tp_size=10**9, dp_size=10**9),
    "sizes of 10^6": _who(tp_size=10**6, dp_size=10**6, pp_size=10**6, cp_size=10**6),
    "a place below 0": _who(tp=-5),
    "a pid of 10^30": _who(pid=10**30),
    "a pid below 0": _who(pid=-1),
    "started in the year 2554": _who(started_wall_ns=U64, started_mono_ns=U64),
    "a group of 3000": _who(groups=[{"kind": "attn-tp", "ranks": list(range(2000)), "world": "w"}]),
    "a group of nobody": _who(groups=[{"kind": "", "ranks": [], "world": ""}]),
    "a group of numbers that no rank has": _who(groups=[{"kind": "x", "ranks": [-1, 1 << 40], "world": "w"}]),
    "an identity nested deep": lambda data: set_identity_raw(data, b'{"x":' + b"[" * 7000 + b"]" * 7000 + b"}"),
    "an identity of another kind": lambda data: set_identity_raw(data, b"[1]"),
}
"""What is done to a sound recording, by what it then says."""


def crafted(folder: Path) -> Iterator[tuple[str, dict[str, bytearray]]]:
    """Each of RECORDINGS, done to the second of two ranks."""
    for name, craft in RECORDINGS.items():
        both = {key: bytearray(data) for key, data in pair(folder).items()}
        craft(list(both.values())[1])
        yield name, both


# ---- traces ----------------------------------------------------------------------------------------------------------


def manifest_of(recordings: dict[str, bytearray]) -> dict[str, Any]:
    ranks = []
    for name, data in recordings.items():
        length, _ = f.IDENTITY_FIELDS.unpack_from(data, f.IDENTITY_OFFSET_FIELDS)
        identity = json.loads(data[f.IDENTITY_OFFSET : f.IDENTITY_OFFSET + length])
        ranks.append(
            {
                "rank": f"decode dp0 pp0 tp{identity['tp']}", "state": "live", "kept": "whole", "identity": identity,
                "member": f"recordings/{name}", "size": len(data), "sha256": hashlib.sha256(data).hexdigest(),
            }
        )  # fmt: skip
    return {
        "schema": "pdctl.trace", "version": 1, "pdctl_version": "0", "started_wall_ns": 1, "seconds": 1.0,
        "stopped": "", "clock": {"host": "h", "boot": "b", "wall_ns": 10**18, "mono_ns": 10**9}, "ranks": ranks,
    }  # fmt: skip


def write(
    path: Path,
    recordings: dict[str, bytearray],
    manifest: dict[str, Any] | bytes | None = None,
    *,
    method: int = zipfile.ZIP_DEFLATED,
) -> Path:
    """Write a trace with a manifest that fits, or with this one."""
    made = manifest_of(recordings) if manifest is None else manifest
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in recordings.items():
            archive.writestr(f"recordings/{name}", bytes(data))
        archive.writestr("manifest.json", made if isinstance(made, bytes) else json.dumps(made))
    return path


def strangers(manifest: dict[str, Any], count: int) -> dict[str, Any]:
    """The manifest with ``count`` more ranks without a recording, each of a server of its own."""
    one = json.dumps({**manifest["ranks"][0], "member": "", "kept": "missing", "reason": "gone"})
    for number in range(count):
        rank = json.loads(one)
        rank["identity"].update(pid=10_000 + number, proc_start=number, groups=[], instance="", service=f"s{number}")
        manifest["ranks"].append(rank)
    return manifest
