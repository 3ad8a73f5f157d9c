"""Recordings and traces whose numbers are chosen to hurt cost one rank, a line and little memory."""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pdctl
from pdctl.probes.stacks import collectives
from pdctl.probes.stacks.model import RankLooks
from pdctl.probes.story import otlp, perfetto
from pdctl.probes.story.model import RankLine
from pdctl.probes.story.names import short_names
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.model import GroupCount, Identity
from pdctl.recording import format as f
from pdctl.recording import source as sources
from pdctl.recording.header import BadRecording, read_header
from pdctl.recording.reader import parse, read
from pdctl.recording.source import FileSource, Held, Source, Spool
from pdctl.targets import registration
from pdctl.targets.find import load_source
from pdctl.targets.nodeset import MOST_PLACES, Place, fold, join, unfold
from pdctl.targets.servers import told_apart
from pdctl.trace import manifest, reader
from pdctl.trace.reader import open_trace, read_manifest
from tests.support import crafted
from tests.support.identities import identity
from tests.support.read_all import carry, read_all, without_names

MOST = 64 << 20
"""Bytes that reading one recording of 256 KiB may take."""


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, bytearray]:
    return crafted.pair(tmp_path)


@pytest.mark.parametrize("name", crafted.RECORDINGS)
def test_a_crafted_recording_is_read_or_refused(name: str, pair: dict[str, bytearray], tmp_path: Path) -> None:
    data = pair["4002-1.pdrec"]
    crafted.RECORDINGS[name](data)
    path = tmp_path / "x.pdrec"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        for source in (Source(bytes(data)), FileSource(path), Held(FileSource(path))):
            with suppress(BadRecording):
                read_all(source)
            carry(source)
        without_names(bytes(data))
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("size 2^62", "header is damaged: a recording has"),
        ("size without a record", "header is damaged: a recording has"),
        ("rings elsewhere", "header is damaged: its rings"),
        ("wall -2^63", "header is damaged: no recording begins"),
        ("a service of two lines", r"its identity can't be read: characters that may not be there - at `\$\.service`"),
        ("a version of 4500 digits", "its identity can't be read: "),
        ("a pid of 10^30", "its identity can't be read: "),
        ("an identity nested deep", "its identity can't be read: "),
    ],
)
def test_what_can_not_be_true_of_a_header_is_said(name: str, why: str, pair: dict[str, bytearray]) -> None:
    data = pair["4002-1.pdrec"]
    crafted.RECORDINGS[name](data)
    with pytest.raises(BadRecording, match=why):
        parse(bytes(data))


@pytest.mark.parametrize(
    "name",
    ["phase 0", "phase 9", "stream 255", "queue 77", "repeat 2^64-1", "round 2^64-1", "times before time",
     "items at the end of time", "items all the same"],
)  # fmt: skip
def test_rounds_that_can_not_be_true_are_left_out_and_counted(name: str, pair: dict[str, bytearray]) -> None:
    data = pair["4002-1.pdrec"]
    before = parse(bytes(data))
    crafted.RECORDINGS[name](data)
    after = parse(bytes(data))
    assert sum(map(len, after.streams)) < sum(map(len, before.streams))
    assert any("can't be true" in problem for problem in after.problems)


def test_a_list_with_places_of_which_nothing_tells_is_not_rebuilt(pair: dict[str, bytearray]) -> None:
    data = pair["4002-1.pdrec"]
    crafted.set_rounds(data, n=1000, flags=3)
    [stream] = parse(bytes(data)).streams
    assert [stream.items(run) for run in stream.runs] == [None] * len(stream)
    assert not stream.changes().known.any()


def test_lists_are_kept_within_bounds_and_rebuilt_again(
    pair: dict[str, bytearray], monkeypatch: pytest.MonkeyPatch
) -> None:
    [stream] = parse(bytes(pair["4002-1.pdrec"])).streams
    before = [stream.items(run) for run in stream.runs]
    monkeypatch.setattr("pdctl.recording.streams.MAX_KEPT", 4)
    [stream] = parse(bytes(pair["4002-1.pdrec"])).streams
    assert [stream.items(run) for run in reversed(stream.runs)] == before[::-1]
    assert sum(len(rows) for rows in stream._cache.values() if rows is not None) <= 4


def test_one_bad_recording_leaves_the_others(pair: dict[str, bytearray], tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    crafted.set_size(pair["4002-1.pdrec"], 1 << 62)
    for name, data in pair.items():
        (folder / name).write_bytes(data)
    found = load_source(folder)
    assert [rank.identity.tp for rank in found.ranks if rank.recording] == [0]
    assert [problem for problem in found.problems if "4002-1.pdrec: header is damaged" in problem]


def test_one_bad_recording_of_a_trace_is_named_as_the_trace_has_it(pair: dict[str, bytearray], tmp_path: Path) -> None:
    crafted.set_size(pair["4002-1.pdrec"], 1 << 62)
    path = crafted.write(tmp_path / "t.pdtrace", pair)
    found = load_source(path)
    assert [rank.identity.tp for rank in found.ranks if rank.recording] == [0]
    [problem] = found.problems
    [member] = [rank.member for rank in read_manifest(path).ranks if "4002" in rank.member]
    assert problem.startswith(f"{path}:{member}: header is damaged: ")


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_sparse_file_is_read_without_its_holes(pair: dict[str, bytearray], tmp_path: Path) -> None:
    path = tmp_path / "x.pdrec"
    data = pair["4001-1.pdrec"]
    crafted.set_size(data, f.MAX_SIZE)
    path.write_bytes(data[: f.RINGS_OFFSET])
    os.truncate(path, f.MAX_SIZE)
    tracemalloc.start()
    try:
        recording = read_all(FileSource(path))
        read_all(Held(FileSource(path)))
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
    assert len(recording.streams) == 1  # its live cells
    with pytest.raises(OSError, match="nearly all holes"):
        sources.whole(path)


def test_recordings_that_are_spooled_are_each_as_they_were_sent(pair: dict[str, bytearray]) -> None:
    sent = [bytes(pair["4001-1.pdrec"]), b"\1" * 10_001, bytes(1 << 20), b"", bytes(pair["4002-1.pdrec"])]
    spool = Spool()
    rooms = [spool.room(len(data)) for data in sent]
    for at in range(0, max(map(len, sent)), 70_001):  # they come at the same time
        for room, data in zip(rooms, sent, strict=True):
            room.add(data[at : at + 70_001])
    kept = [room.source() for room in rooms]
    for data, source in zip(sent, kept, strict=True):
        assert source.size == len(data)
        assert source.read(0, len(data)) == data
        assert source.read(5, 3) == data[5:8]
        last = max(0, len(data) - 1)
        assert source.read(last, 100) == data[last:]
        there = bytearray(len(data))
        for at, length in source.pieces(0, source.size):
            there[at : at + length] = source.read(at, length)
        assert bytes(there) == data, "what is no piece of it is zeros"
    assert sum(length for _, length in kept[2].pieces(0, 1 << 20)) == 0, "which take no room"
    assert read_all(kept[4]).identity == parse(sent[4]).identity


def test_held_bytes_are_the_files(pair: dict[str, bytearray], tmp_path: Path) -> None:
    path = tmp_path / "x.pdrec"
    path.write_bytes(pair["4001-1.pdrec"])
    with path.open("r+b") as file:
        file.truncate(1 << 20)
        file.seek(600_000)
        file.write(b"there")
    data, held = path.read_bytes(), Held(FileSource(path))
    for offset, length in (
        (0, 1 << 20),
        (500_000, 200_000),
        (599_999, 10),
        (600_002, 2),
        ((1 << 20) - 5, 50),
        (1 << 21, 5),
    ):
        assert held.read(offset, length) == data[offset : offset + length]
    assert read(path).events() == read_all(held).events()


@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "device"])
def test_what_is_no_regular_file_is_not_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "1-1.pdrec"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/etc/hosts")
    for reading in (read_header, read):
        with pytest.raises(OSError, match=r"regular file|not followed"):
            reading(path)
    with pytest.raises(PdctlError):
        load_source(tmp_path).require()


def test_a_file_that_is_cut_off_while_it_is_read(pair: dict[str, bytearray], tmp_path: Path) -> None:
    path = tmp_path / "x.pdrec"
    path.write_bytes(pair["4001-1.pdrec"])
    source = FileSource(path)
    recording = read_all(source)
    os.truncate(path, f.RINGS_OFFSET + 100)
    recording.event_table()
    assert [stream.items(stream.newest) for stream in recording.streams]
    assert carry(source) is not None
    os.truncate(path, 10)
    assert carry(source) is None
    with pytest.raises(BadRecording, match="cut off"):
        read_all(source)


@pytest.mark.parametrize("path", ["/" + "a" * 5000, "/tmp/" + "b" * 300, "/dev/null", "/dev/zero", "/proc/self/mem\0x"])
def test_a_source_that_can_not_be_one_is_told(path: str) -> None:
    for reading in (lambda: load_source(Path(path)).require(), lambda: pdctl.load_trace(path)):
        with pytest.raises(PdctlError) as refused:
            reading()
        assert refused.value.code == Exit.UNREACHABLE
        assert len(refused.value.message) < 400
        assert "\n" not in refused.value.message


# ---- traces ----------------------------------------------------------------------------------------------------------


def _manifests() -> dict[str, Callable[[dict[str, object]], object]]:
    return {
        "salt": lambda m: m.update(salt="zz"),
        "long salt": lambda m: m.update(salt="ab" * 65),
        "odd salt": lambda m: m.update(salt="abc"),
        "clock": lambda m: m.update(clock={"host": "h", "boot": "", "wall_ns": 2**63 - 1, "mono_ns": -(2**63)}),
        "seconds": lambda m: m.update(seconds=1e308),
        "version": lambda m: m.update(version=-1),
        "ranks": lambda m: m.update(ranks=[{}] * 5000),
        "no ranks": lambda m: m["ranks"].append(0),  # type: ignore[attr-defined]
        "types": lambda m: m.update(ranks={}),
        "divergence": lambda m: m.update(
            divergence={"group": "a\nb", "queue": "", "round": 0, "rooms": [], "ranks": []}
        ),
    }


@pytest.mark.parametrize("name", _manifests())
def test_a_manifest_that_can_not_be_true_is_refused(name: str, pair: dict[str, bytearray], tmp_path: Path) -> None:
    made = crafted.manifest_of(pair)
    _manifests()[name](made)
    _refused(crafted.write(tmp_path / "t.pdtrace", pair, made), "manifest.json is damaged")


@pytest.mark.parametrize("what", ["nested", "digits"])
def test_json_that_is_meant_to_break_its_reader_is_refused(
    what: str, pair: dict[str, bytearray], tmp_path: Path
) -> None:
    instead = '"x": ' + "[" * 100_000 + "]" * 100_000 if what == "nested" else '"earlier": ' + "9" * 5000
    raw = json.dumps(crafted.manifest_of(pair)).replace('"seconds": 1.0', f'"seconds": 1.0, {instead}')
    _refused(crafted.write(tmp_path / "t.pdtrace", pair, raw.encode()), "manifest.json is damaged")


@pytest.mark.parametrize(("where", "value"), [("ranks", "0,"), ("ranks", "{},"), ("problems", '"a",'), ("x", "[],")])
def test_many_small_values_of_a_manifest_are_not_read(where: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MAX_VALUES", 100_000)
    made = msgspec.json.encode(manifest.new("made by a test")).replace(b'"ranks":[],"', b'"').removesuffix(b"}")
    raw = made.replace(b'"problems":[],', b"") + f',"{where}":[{(value * 100_000)[:-1]}]}}'.encode()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more than 100,000 values"):
            manifest.decode(raw)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def _refused(path: Path, why: str) -> None:
    with pytest.raises(PdctlError, match=why) as refused:
        load_source(path)
    assert refused.value.code == Exit.UNREACHABLE
    assert "\n" not in refused.value.message


def test_a_rank_that_can_not_be_true_is_left_out_of_a_manifest(pair: dict[str, bytearray], tmp_path: Path) -> None:
    made = crafted.manifest_of(pair)
    made["ranks"][1]["identity"]["service"] = "a\nPD000 forged"
    made["ranks"] += [{"rank": 5}] * 50
    found = load_source(crafted.write(tmp_path / "t.pdtrace", pair, made))
    assert [rank.identity.tp for rank in found.ranks if rank.recording] == [0]
    assert "rank 2 of the manifest can't be true" in found.problems[0]
    assert len(found.problems) == manifest.MAX_PROBLEMS + 1
    assert not any("\n" in problem for problem in found.problems)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_members_that_are_packed_in_another_way_are_refused(
    method: int, pair: dict[str, bytearray], tmp_path: Path
) -> None:
    _refused(crafted.write(tmp_path / "t.pdtrace", pair, method=method), f"packed by method {method}")
    path = tmp_path / "u.pdtrace"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in pair.items():
            archive.writestr(f"recordings/{name}", bytes(data), compress_type=method)
        archive.writestr("manifest.json", json.dumps(crafted.manifest_of(pair)))
    with open_trace(path) as trace:
        assert all(f"packed by method {method}" in rank.reason for rank in trace.manifest.ranks)


def test_a_long_list_of_members_is_not_read(pair: dict[str, bytearray], tmp_path: Path) -> None:
    path = crafted.write(tmp_path / "t.pdtrace", pair)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("x" * 60_000)
        for number in range(80):
            info.filename = f"{number}" + "x" * 60_000
            archive.writestr(info, b"")
    _refused(path, "list of its members")


def test_unpacking_heeds_the_time_it_has(pair: dict[str, bytearray], tmp_path: Path) -> None:
    path = crafted.write(tmp_path / "t.pdtrace", pair)
    with open_trace(path, timeout_s=0) as trace:
        assert [rank.kept for rank in trace.manifest.ranks] == ["missing", "missing"]
        assert all("no time left of 0 s (--timeout)" in rank.reason for rank in trace.manifest.ranks)
    found = load_source(path, timeout_s=0)
    assert [rank.recording_off for rank in found.ranks if "no time left" in rank.recording_off]


def test_the_time_that_is_over_is_called_what_the_user_gave(
    pair: dict[str, bytearray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    crafted.write(folder / "t.pdtrace", pair)
    files, clock, late = registration.files, time.monotonic, [0.0]

    def slowly(*args: Any) -> Iterator[Path]:
        for path in files(*args):
            late[0] = 100.0
            yield path

    monkeypatch.setattr(time, "monotonic", lambda: clock() + late[0])
    monkeypatch.setattr(registration, "files", slowly)
    found = load_source(folder, timeout_s=60)
    reasons = {rank.recording_off for rank in found.ranks}
    assert {reason.partition("no time left of ")[2] for reason in reasons} == {"60 s (--timeout)"}


def test_a_bomb_is_left_out_before_it_fills_the_disk(
    pair: dict[str, bytearray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "FREE_BYTES", 1 << 20)
    bomb = {"4001-1.pdrec": pair["4001-1.pdrec"], "4002-1.pdrec": pair["4002-1.pdrec"] + b"\1" * (16 << 20)}
    with open_trace(crafted.write(tmp_path / "t.pdtrace", bomb)) as trace:
        first, second = trace.manifest.ranks
        assert first.kept == "whole"
        assert "would unpack to more" in second.reason


def test_a_member_is_not_unpacked_where_the_manifest_says_another_size(
    pair: dict[str, bytearray], tmp_path: Path
) -> None:
    made = crafted.manifest_of(pair)
    made["ranks"][0]["size"] = 5
    with open_trace(crafted.write(tmp_path / "t.pdtrace", pair, made)) as trace:
        assert "its manifest says 5" in trace.manifest.ranks[0].reason


def test_sizes_that_lie_in_the_file_itself(pair: dict[str, bytearray], tmp_path: Path) -> None:
    path = crafted.write(tmp_path / "t.pdtrace", pair)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    struct.pack_into("<I", data, start + 24, 0xFFFFFFF0)  # the unpacked size of the first
    path.write_bytes(data)
    _refused(path, "can't be trusted|is damaged")


# ---- many ranks ------------------------------------------------------------------------------------------------------


class _Asked:
    """An identity that counts how often it is asked for anything."""

    count = 0

    def __init__(self, one: Identity) -> None:
        self._one = one

    def __getattr__(self, name: str) -> object:
        _Asked.count += 1
        return getattr(self._one, name)


@pytest.mark.parametrize("tell", [short_names, lambda many: told_apart(many, ["same"] * len(many))])
def test_telling_many_servers_apart_asks_each_a_few_times(tell: Callable[[list[object]], list[str]]) -> None:
    many = [_Asked(identity(service=f"s{n}", instance="", tp_size=2, pid=n)) for n in range(1000)]
    _Asked.count = 0
    assert len(set(tell(list(many)))) == 1000
    assert _Asked.count < 50 * 1000


def test_names_with_newlines_are_folded_as_they_are() -> None:
    place = Place("a\nb", 0, 0, 0, 1)
    assert unfold(fold([place])) == {place}


def test_names_of_thousands_of_digits_are_no_numbers() -> None:
    digits = "9" * 5000  # int() raises ValueError for over 4,300
    line = RankLine(rank="tp0", label=f"decode tp{digits}", role="decode", state="live", host="a", pid=1, saw=True)
    assert otlp._coordinates(line) == {}
    assert perfetto._tp(line) == -1
    assert collectives._known(RankLooks(identity(), "live"), GroupCount(digits, "tp", 2, 1))[0] is None


@pytest.mark.parametrize(
    "name",
    [
        f"a dp0-{MOST_PLACES - 1}; b dp0-1",
        "a dp" + f"0-{MOST_PLACES - 1}," * 40,
        "a dp9-0,0-99999999",
        "a dp0-999 tp0-999",
        "x " + "@" * 1000 + " y",
    ],
)
def test_a_name_that_stands_for_many_places_stands_for_itself(name: str) -> None:
    assert join([name]) == name


def test_names_that_stand_for_many_places_together_stand_for_some() -> None:
    names = [f"s{n} dp0-{MOST_PLACES // 2}" for n in range(64)]
    tracemalloc.start()
    try:
        assert join(names).count("; ") == 63
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
