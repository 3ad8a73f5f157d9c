"""docs/recording-format.md is true: its numbers are the code's, and a reader written from it alone reads the same.

The class Second below is that reader. It is written from the document, with the standard library only: numbers it needs
come from the document's tables, not from pdctl.
"""

from __future__ import annotations

import json
import random
import re
import struct
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from pdctl.protocol.model import QUEUES, Action, EventKind, KVPoll, Phase
from pdctl.recording import format as f
from pdctl.recording import reader
from tests.unit.agent.test_tap_recording import Engine, Request

DOCUMENT = (Path(__file__).parents[3] / "docs" / "recording-format.md").read_text()
SIZES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q"}


def tables() -> list[tuple[str, list[list[str]]]]:
    """Every table of the document: its header line, and its rows as cells."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", DOCUMENT, re.MULTILINE):
        head, _, *rows = block.splitlines()
        found.append((head, [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]))
    return found


def table(head: str, first: str) -> list[list[str]]:
    """Rows of the table whose header begins with ``head`` and that has a row whose third cell is ``first``."""
    (rows,) = [
        rows for line, rows in tables() if line.startswith(head) and (not first or any(row[2] == first for row in rows))
    ]
    return rows


def structure(field: str) -> struct.Struct:
    """The layout that the table with this field describes; its offsets must add up."""
    text = "<"
    for offset, kind, name, *_ in table("| Offset | Type | Field |", field):
        assert struct.calcsize(text) == int(offset), f"{name or 'padding'} of the table with {field}"
        size = re.fullmatch(r"(\d+) bytes", kind)
        text += SIZES[kind] if size is None else f"{size[1]}{'s' if name else 'x'}"
    return struct.Struct(text)


CONSTANTS = {name: value for name, value, _ in table("| Constant | Value |", "")}
HEADER, ROUND, ITEM, EVENT = (structure(field) for field in ("magic", "n_after", "gated", "text"))
AT = {name: int(value) for name, value in CONSTANTS.items() if value.isdigit()}
QUEUE_OF = {int(code): name for code, name in table("| Code | Queue |", "")}
ROUND_FIELDS = [row[2] for row in table("| Offset | Type | Field |", "n_after") if row[2]]


class Second:
    """A second reader: streams as {stream: [(run, requests or None)]}, events, visits."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        head = HEADER.unpack_from(data)
        assert head[0] == CONSTANTS["MAGIC"].encode()
        self.size, self.rings = head[3], head[9:]
        length, crc = struct.unpack_from("<II", data, AT["IDENTITY_OFFSET_FIELDS"])
        raw = data[AT["IDENTITY_OFFSET"] :][:length]
        assert crc32(raw) == crc
        self.identity = json.loads(raw)
        self.runs = self._runs()

    def _round(self, at: int) -> dict[str, int] | None:
        raw = self.data[at : at + ROUND.size]
        if len(raw) < ROUND.size or raw[:8] == bytes(8):
            return None
        run = dict(zip(ROUND_FIELDS, ROUND.unpack(raw), strict=True))
        return run if crc32(raw[:100]) == run["crc"] and run["repeat"] and run["queue"] in QUEUE_OF else None

    def _runs(self) -> dict[int, list[dict[str, int]]]:
        streams: dict[int, list[dict[str, int]]] = {}
        offset, capacity = self.rings[:2]
        ended = [(place, self._round(offset + place * ROUND.size)) for place in range(capacity)]
        sound = [run for place, run in ended if run is not None and (run["seq"] - 1) % capacity == place]
        for run in sorted(sound, key=lambda run: run["seq"]):
            streams.setdefault(run["stream"], []).append(run)
        for stream in range(AT["MAX_STREAMS"]):
            first = AT["LIVE_OFFSET"] + 2 * stream * AT["ROUND_SIZE"]
            cells = [run for run in (self._round(first), self._round(first + AT["ROUND_SIZE"])) if run is not None]
            if cells:
                live = max(cells, key=lambda run: run["seq"])
                entered, time, applied = struct.unpack_from("<QqQ", self.data, AT["REPEATS_OFFSET"] + 32 * stream)
                if entered and entered >> 48 == live["seq"] & 0xFFFF:
                    live["flags"] = live["flags"] & 0xF0 | (3 if applied == entered else 1)
                    live["repeat"], live["t_enter"] = entered & (1 << 48) - 1, time
                known = streams.setdefault(stream, [])
                if not known or live["ordinal"] > known[-1]["ordinal"]:
                    known.append(live)
        return streams

    def requests(self, stream: int) -> list[list[list[Any]] | None]:
        """For each run of a stream its requests, as lists of the fields of the items table."""
        lists: list[list[list[Any]] | None] = []
        for number, run in enumerate(self.runs[stream]):
            items = self._items(run)
            if items is None or run["flags"] & 16:
                lists.append(items if items is not None and len(items) == run["n"] else None)
                continue
            before = lists[-1] if lists else None
            if (
                before is None
                or self.runs[stream][number - 1]["ordinal"] + self.runs[stream][number - 1]["repeat"]
                != (run["ordinal"])
            ):
                lists.append(None)
                continue
            whole: list[Any] = [request for request in before if request[7] == 0]
            whole += [None] * (run["n"] - len(whole))
            for item in items:
                whole[item[3]] = item
            lists.append(whole if len(whole) == run["n"] and None not in whole else None)
        return lists

    def _items(self, run: dict[str, int]) -> list[list[Any]] | None:
        offset, capacity = self.rings[2:4]
        if run["items_count"] > capacity:
            return None
        places = [(run["items_start"] + k) % capacity for k in range(run["items_count"])]
        raw = [self.data[offset + place * ITEM.size :][: ITEM.size] for place in places]
        if crc32(b"".join(raw)) != run["items_crc"] or any(len(item) < ITEM.size for item in raw):
            return None
        return [list(ITEM.unpack(item)) for item in raw]

    def events(self) -> list[tuple[Any, ...]]:
        """All events by number: (seq, time, kind, queue, slot, room, a, b, text)."""
        offset, capacity = self.rings[4:]
        found = []
        for place in range(capacity):
            raw = self.data[offset + place * EVENT.size :][: EVENT.size]
            if len(raw) == EVENT.size and raw[:8] != bytes(8):
                *fields, text, crc = EVENT.unpack(raw)
                if crc32(raw[:120]) == crc and (fields[0] - 1) % capacity == place:
                    fields[3] = QUEUE_OF.get(fields[3], "")
                    del fields[4]
                    found.append((*fields, text.rstrip(b"\0").decode("utf-8", "replace")))
        return sorted(found)

    def visits(self) -> dict[str, tuple[int, bool, int]]:
        """By queue: turns, whether the last found it empty, its time."""
        words = {
            q: struct.unpack_from("<Qq", self.data, AT["VISITS_OFFSET"] + 16 * code) for code, q in QUEUE_OF.items()
        }
        return {q: (word % 2**63, word >= 2**63, time) for q, (word, time) in words.items() if word}


def compare(data: bytes) -> int:
    """Assert that both readers see the same; returns how many lists of requests were compared."""
    second, first = Second(data), reader.parse(data)
    assert second.identity["role"] == first.identity.role
    assert second.visits() == {q: (v.count, v.empty, v.mono_ns) for q, v in first.visits.items()}
    events = [(e.seq, e.mono_ns, int(e.kind), e.queue, e.slot, e.room, e.a, e.b, e.text) for e in first.events()]
    assert second.events() == events
    assert len(second.runs) == len(first.streams)
    compared = 0
    for stream in first.streams:
        (number,) = [n for n, runs in second.runs.items() if QUEUE_OF[runs[-1]["queue"]] == stream.queue]
        runs, lists = second.runs[number], second.requests(number)
        fields = ("n", "n_after", "ordinal", "repeat", "visit", "t_first", "t_enter", "t_done", "hash", "after_hash")
        assert [[run[name] for name in fields] for run in runs] == [
            [getattr(run, name) for name in fields] for run in stream.runs
        ]
        assert [run["flags"] & 15 for run in runs] == [int(run.phase) for run in stream.runs]
        for run, mine in zip(stream.runs, lists, strict=True):
            theirs = stream.items(run)
            assert (mine is None) == (theirs is None)
            if mine is None or theirs is None:
                continue
            compared += 1
            phase = 3 if run.repeat > 1 else int(run.phase)
            for place, (request, item) in enumerate(zip(mine, theirs, strict=True)):
                room, found, slot, index, local, gated, reduced, action, flags = request
                # a request that moved up keeps the index it was written with; its place in the list is what counts
                assert index >= place
                assert (room, slot, local, gated) == (item.room, item.slot, item.local, item.gated)
                if phase >= 2:
                    assert (reduced, found if flags & 1 else None) == (item.reduced, item.found)
                if phase >= 3:
                    assert action == item.action
    return compared


def recorded(folder: Path, seed: int, turns: int, size: int = f.MIN_SIZE) -> tuple[Path, Engine]:
    """A recording of random turns of an engine-like queue, with random events, left in the middle of a turn or not."""
    dice = random.Random(seed)
    path = folder / f"{seed}"
    engine = Engine(path, size)
    rooms = count(1)
    polls: list[int] = []
    for turn in range(turns):
        for _ in range(dice.choice((0, 0, 0, 1, 2))):
            room = next(rooms) << dice.choice((0, 40))
            engine.queue = [*engine.queue, Request(room, dice.randrange(-1, 64))]
            engine.view.slots[engine.queue[-1].slot] = dice.choice((0, room))
        if dice.random() < 0.05 and engine.queue:
            engine.queue = engine.queue[1:]
        if dice.random() < 0.5 or len(polls) != len(engine.queue):
            polls = dice.choices((0, 1, 2, 3, 4), (1, 4, 4, 20, 8), k=len(engine.queue))
        keep = {request.room for request in engine.queue if dice.random() < 0.6}
        engine.turn(polls, polls, keep, {request.room for request in engine.queue if dice.random() < 0.3})
        if dice.random() < 0.3:
            kind = dice.choice(list(EventKind))
            engine.writer.event(
                kind, queue=dice.choice((4, 255)), room=turn, slot=turn, a=-turn, b=turn, text="zé" * turn
            )
    if dice.random() < 0.6 and engine.queue:
        tap = engine.tap
        tap.visit(engine.queue)
        tap.polled([request.poller for request in engine.queue])
        tap.entering(0, bytes([3] * len(engine.queue)), 1)
        if dice.random() < 0.5:
            tap.left(0, bytes(dice.choices((3, 4), k=len(engine.queue))), 1)
    return path, engine


@pytest.mark.parametrize("seed", range(25))
def test_a_reader_written_from_the_document_reads_the_same(seed: int, tmp_path: Path) -> None:
    path, engine = recorded(tmp_path, seed, turns=20 + seed * 4)
    assert compare(path.read_bytes()) or not engine.log


def test_rings_that_came_round_are_read_the_same(tmp_path: Path) -> None:
    path, _ = recorded(tmp_path, 99, turns=3000)
    data = path.read_bytes()
    first = reader.parse(data).streams[0]
    assert first.first > 0, "the ring did not come round"
    assert compare(data) > 50


@pytest.mark.parametrize("seed", range(20))
def test_damage_is_seen_the_same(seed: int, tmp_path: Path) -> None:
    path, _ = recorded(tmp_path, 7, turns=60)
    data = bytearray(path.read_bytes())
    dice = random.Random(seed)
    used = [at for at in range(f.LIVE_OFFSET, len(data)) if data[at]]
    for at in dice.sample(used, 20):
        data[at] ^= 1 << dice.randrange(8)
    compare(bytes(data))


@pytest.mark.parametrize("name", sorted(CONSTANTS))
def test_a_constant_is_the_codes(name: str) -> None:
    value = getattr(f, name)
    assert CONSTANTS[name] == (value.decode() if isinstance(value, bytes) else str(value))


def test_all_places_are_in_the_document() -> None:
    places = {
        name for name in vars(f) if re.fullmatch(r"[A-Z_]+_(OFFSET|OFFSET_FIELDS|SIZE|MAX)|MAGIC|VERSION|MAX_\w+", name)
    }
    inside = {"STATE_OFFSET", "ROUND_CRC_OFFSET", "ROUND_BODY_SIZE", "EVENT_CRC_OFFSET"}  # in the records' tables
    assert places - inside == set(CONSTANTS)


def test_records_are_laid_out_as_in_the_code() -> None:
    assert HEADER.format == f.FIXED.format
    head, tail = f.ROUND_HEAD.format, f.ROUND_TAIL.format.removeprefix("<")
    assert ROUND.format == f"{head}{tail}{f.ROUND_CRC_OFFSET - f.ROUND_BODY_SIZE}xI"
    assert (ROUND.size, ITEM.size, EVENT.size) == (f.ROUND_SIZE, f.ITEM_SIZE, f.EVENT_SIZE)
    assert ITEM.format == f.ITEM.format
    assert EVENT.unpack(bytes(range(128)))[:4] == f.EVENT.unpack(bytes(range(120)))[:4]
    assert f.EVENT.format.removesuffix("72s") in EVENT.format
    assert structure("length").format == f.IDENTITY_FIELDS.format
    assert structure("ticks").format == f.PULSE.format
    assert structure("visits").format == f.VISITS.format


def test_names_and_codes_are_the_codes() -> None:
    assert dict(enumerate(QUEUES)) == QUEUE_OF
    rows = table("| Value | Poll | Action | Phase |", "")
    for column, kind in ((1, KVPoll), (2, Action), (3, Phase)):
        assert {int(row[0]): row[column] for row in rows if row[column]} == {int(one): one.name for one in kind}
    kinds = {int(row[0]): row[1] for row in table("| Kind | Name | Says |", "")}
    assert kinds == {int(kind): kind.name for kind in EventKind}
