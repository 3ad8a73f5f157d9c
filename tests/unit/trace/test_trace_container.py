"""The container holds what was put in, unpacks it sparsely and privately, and takes nothing on trust."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest

import pdctl
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.recording import format as f
from pdctl.recording.reader import read
from pdctl.targets.find import load_source
from pdctl.trace import folder as trace_folder
from pdctl.trace import manifest, reader
from pdctl.trace.reader import open_trace, read_manifest
from pdctl.trace.redact import Names, redact
from pdctl.trace.writer import Member, member_of, write_trace
from tests.unit.agent.test_tap_recording import Engine, Request

SAMPLES = Path(__file__).parents[2] / "data"


@pytest.fixture
def recording(tmp_path: Path) -> bytes:
    engine = Engine(tmp_path / "a.pdrec")
    engine.queue = [Request(7, 0), Request(8, 1)]
    engine.turn([3, 4], [3, 4], set())
    engine.writer.event(1, room=7, text="rid-7")
    return (tmp_path / "a.pdrec").read_bytes()


@pytest.fixture
def trace(tmp_path: Path, recording: bytes) -> Path:
    path = tmp_path / "t.pdtrace"
    missing = Member(
        manifest.TraceRank(
            rank="decode dp0 pp0 tp1", state="live", kept="missing", reason="off", identity=_tp1(recording)
        )
    )
    write_trace(path, [member_of(recording, state="live"), missing], manifest.new("test"))
    return path


def _tp1(recording: bytes) -> Any:
    return msgspec.structs.replace(member_of(recording).rank.identity, tp=1, pid=4711)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert [
        p for p in folder.iterdir() if not p.name.startswith(f"pdctl-trace-{trace_folder._namespace()}-{os.getpid()}-")
    ] == []


def test_what_was_put_in_comes_out(trace: Path, recording: bytes, temporary: Path) -> None:
    assert stat.S_IMODE(trace.stat().st_mode) == 0o600
    with open_trace(trace) as there:
        folder = there.folder
        [path] = folder.iterdir()
        assert path.suffix == ".pdrec"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.parent == temporary
        assert path.read_bytes() == recording
        assert path.stat().st_blocks * 512 < len(recording) / 2  # zero pages are holes
        assert len(read(path).events()) == 1
    assert not list(temporary.iterdir())
    first, second = read_manifest(trace).ranks
    assert (first.kept, first.state, first.writer, first.size) == ("whole", "live", "writing", len(recording))
    assert (second.kept, second.member, second.reason) == ("missing", "", "off")


def test_discover_has_every_rank_of_the_manifest(trace: Path) -> None:
    found = load_source(trace)
    there, missing = found.ranks
    assert there.recording is not None
    assert there.recording_name == f"{trace}:recordings/decode-dp0-pp0-tp0-{there.identity.pid}.pdrec"
    assert (missing.recording, missing.recording_off, missing.state) == (None, "off", "recorded")


def test_the_unpacked_directory_goes_when_its_user_fails(trace: Path, temporary: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_trace(trace):
        raise KeyboardInterrupt
    assert not list(temporary.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next(trace: Path, temporary: Path) -> None:
    program = f"""
import os, signal, tempfile
from pathlib import Path
from pdctl.trace.reader import open_cached
tempfile.tempdir = {str(temporary)!r}
open_cached(Path({str(trace)!r}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == -9
    [left] = temporary.iterdir()
    (temporary / "pdctl-trace-of-somebody-else").mkdir()
    with open_trace(trace):
        assert not left.exists()
    (temporary / "pdctl-trace-of-somebody-else").rmdir()  # not ours by its name: left alone


def test_an_existing_file_is_kept_unless_forced(trace: Path, recording: bytes) -> None:
    before = trace.read_bytes()
    with pytest.raises(PdctlError, match="exists") as refused:
        write_trace(trace, [member_of(recording)], manifest.new("again"))
    assert refused.value.code == Exit.USAGE
    assert trace.read_bytes() == before
    write_trace(trace, [member_of(recording)], manifest.new("again"), force=True)
    assert read_manifest(trace).stopped == "again"


def test_one_that_came_meanwhile_is_kept(tmp_path: Path, recording: bytes) -> None:
    path = tmp_path / "new.pdtrace"

    def members() -> Iterator[Member]:
        path.write_text("somebody else's")
        yield member_of(recording)

    with pytest.raises(PdctlError, match="exists"):
        write_trace(path, members(), manifest.new("test"))
    assert path.read_text() == "somebody else's"
    assert not list(tmp_path.glob(".*part"))


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def members() -> Iterator[Member]:
        raise OSError(errno.ENOSPC, "No space left on device")
        yield

    with pytest.raises(PdctlError, match="No space left") as full:
        write_trace(tmp_path / "full.pdtrace", members(), manifest.new("test"))
    assert full.value.code == Exit.PARTIAL
    assert not [path for path in tmp_path.iterdir() if "full" in path.name]


# ---- what is not to be trusted ---------------------------------------------------------------------------------------


def rewritten(
    trace: Path, *, rank: dict[str, Any] | None = None, extra: dict[str, bytes] | None = None, **head: Any
) -> Path:
    """Write the same trace with other things in its manifest, and members of other names."""
    path = trace.with_name("changed.pdtrace")
    with zipfile.ZipFile(trace) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        document = json.loads(old.read("manifest.json"))
        document.update(head)
        document["ranks"][0].update(rank or {})
        for info in old.infolist():
            if info.filename != "manifest.json":
                new.writestr(info.filename, old.read(info))
        for name, data in (extra or {}).items():
            new.writestr(name, data)
        new.writestr("manifest.json", json.dumps(document))
    return path


def refused(path: Path) -> str:
    with pytest.raises(PdctlError) as error, open_trace(path):
        pass
    assert error.value.code == Exit.UNREACHABLE
    assert error.value.next_step
    return error.value.message


def test_what_is_no_trace_is_named(tmp_path: Path, recording: bytes) -> None:
    path = tmp_path / "x.pdtrace"
    path.write_bytes(b"")
    assert "is empty" in refused(path)
    path.write_bytes(b"hello, this is a text")
    assert "is not a trace" in refused(path)
    path.write_bytes(recording)
    assert "is one recording, not a trace" in refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "x")
    assert "ZIP file, but no trace" in refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", '{"schema": "else", "version": 1}')
    assert "its schema is 'else'" in refused(path)
    assert "No such file" in refused(tmp_path / "nowhere")


def test_a_truncated_one_has_what_is_whole_in_it_at_any_length(trace: Path, recording: bytes) -> None:
    whole = trace.read_bytes()
    with zipfile.ZipFile(trace) as archive:
        first, last = archive.infolist()
    end = last.header_offset  # of the recording, the first member
    listed = whole.index(b"PK\1\2", last.header_offset)
    for length in (1, 30, end // 2, end - 1):
        trace.write_bytes(whole[:length])
        assert "cut off" in refused(trace) or "not a trace" in refused(trace)
    for length in (end, end + 1, listed - 1, listed, len(whole) - 1):
        trace.write_bytes(whole[:length])
        with open_trace(trace) as there:
            problems = there.manifest.problems
            assert (there.folder / Path(first.filename).name).read_bytes() == recording
            ranks = [(rank.rank, rank.kept) for rank in there.manifest.ranks]
        assert "is cut off: 1 recording whole" in problems[-1]
        assert ("without its manifest" in problems[-1]) is (length < listed)
        assert ranks[0] == ("decode dp0 pp0 tp0", "whole")
        assert len(ranks) == (1 if length < listed else 2)
        assert load_source(trace).problems == problems


def test_a_damaged_one_is_not_said_to_be_cut_off(trace: Path, recording: bytes) -> None:
    data = bytearray(trace.read_bytes())
    data[data.index(b"PK\1\2")] = 0
    trace.write_bytes(data)
    with open_trace(trace) as there:
        assert len(list(there.folder.iterdir())) == 1
        [problem] = there.manifest.problems
    assert "is damaged: Bad magic number for central directory: 1 recording whole" in problem
    assert "cut off" not in problem
    trace.write_bytes(b"PK\5\6" + bytes(4) + b"\1\0\1\0" + b"\xff" * 8 + bytes(2))
    assert "is damaged: " in refused(trace)


def test_whole_members_of_a_truncated_one_are_checked_as_others(trace: Path) -> None:
    data = bytearray(trace.read_bytes())
    with zipfile.ZipFile(trace) as archive:
        first, last = archive.infolist()
    data[first.header_offset + 200] ^= 0xFF
    trace.write_bytes(data[: last.header_offset])
    try:
        with open_trace(trace) as there:
            assert list(there.folder.iterdir()) == []
            assert all(rank.kept == "missing" for rank in there.manifest.ranks)
            assert there.manifest.problems
    except PdctlError:
        pass


def test_sizes_in_the_headers_of_a_truncated_one_are_not_trusted(trace: Path) -> None:
    data = bytearray(trace.read_bytes())
    with zipfile.ZipFile(trace) as archive:
        _, last = archive.infolist()
    for size in (0, 1, 0xFFFFFFFE, 0xFFFFFFFF):
        for at in (18, 22):  # packed, unpacked
            wrong = bytearray(data[: last.header_offset])
            wrong[at : at + 4] = size.to_bytes(4, "little")
            trace.write_bytes(wrong)
            try:
                with open_trace(trace) as there:
                    assert all(rank.kept == "missing" for rank in there.manifest.ranks)
            except PdctlError:
                continue


def test_a_truncated_one_is_not_unpacked_by_methods_that_traces_do_not_use(trace: Path, recording: bytes) -> None:
    with zipfile.ZipFile(trace) as archive:
        name = archive.infolist()[0].filename
    with zipfile.ZipFile(trace, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr(name, recording)
        end = archive.start_dir
    trace.write_bytes(trace.read_bytes()[:end])
    with open_trace(trace) as there:
        assert "packed by method 12" in there.manifest.problems[0]
        assert there.manifest.ranks == ()
        assert list(there.folder.iterdir()) == []


def test_a_future_version_says_so(trace: Path) -> None:
    said = refused(rewritten(trace, version=2, ranks=[{"all": "different"}]))
    assert "trace version 2; this pdctl reads up to 1" in said


def test_unknown_fields_of_a_later_pdctl_are_ignored(trace: Path) -> None:
    with open_trace(rewritten(trace, later="field", rank={"later": 1})) as there:
        assert there.manifest.ranks[0].kept == "whole"


def test_a_wrong_checksum_costs_one_rank_only(trace: Path) -> None:
    with open_trace(rewritten(trace, rank={"sha256": "0" * 64})) as there:
        assert list(there.folder.iterdir()) == []
        rank = there.manifest.ranks[0]
        assert rank.kept == "missing"
        assert "checksum" in rank.reason


def test_damaged_bytes_cost_one_rank_only(trace: Path) -> None:
    data = bytearray(trace.read_bytes())
    with zipfile.ZipFile(trace) as archive:
        info = archive.infolist()[0]
    data[info.header_offset + 200] ^= 0xFF
    trace.write_bytes(data)
    with open_trace(trace) as there:
        assert "is damaged" in there.manifest.ranks[0].reason
        assert list(there.folder.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "../out.pdrec",
        "/etc/x.pdrec",
        "recordings/../../x.pdrec",
        "recordings/.pdrec",
        "recordings/a/b.pdrec",
        "x.pdrec",
    ],
)
def test_names_that_would_leave_the_directory_are_refused(trace: Path, recording: bytes, name: str) -> None:
    assert "can't be trusted" in refused(rewritten(trace, rank={"member": name}, extra={name: recording}))


def test_sizes_are_bounded(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f, "MAX_SIZE", f.MIN_SIZE - 1)
    assert "would unpack to" in refused(trace)
    monkeypatch.setattr(reader, "MAX_MANIFEST", 10)
    assert "manifest.json has" in refused(trace)


def test_a_member_larger_than_the_manifest_says_is_left_out(trace: Path) -> None:
    with open_trace(rewritten(trace, rank={"size": 5})) as there:
        assert "its manifest says 5" in there.manifest.ranks[0].reason


def test_the_same_member_twice_is_refused(trace: Path, recording: bytes) -> None:
    name = read_manifest(trace).ranks[0].member
    with pytest.warns(UserWarning, match="Duplicate"):
        path = rewritten(trace, extra={name: recording})
    assert "two members" in refused(path)


# ---- older traces ----------------------------------------------------------------------------------------------------


def test_a_trace_of_version_1_stays_readable() -> None:
    found = load_source(SAMPLES / "version-1.pdtrace")
    assert [rank.identity.label for rank in found.ranks] == [
        "prefill dp0 pp0 tp0",
        "decode dp0 pp0 tp0",
        "decode dp0 pp0 tp1",
    ]
    assert found.ranks[2].recording_off == "no recording: it was killed before it made one"
    first = found.ranks[1].recording
    assert first is not None
    recording = read(first)
    [stream] = recording.streams
    assert [(run.ordinal, run.repeat, run.n) for run in stream.runs] == [(0, 3, 2), (3, 1, 1)]
    assert [event.text for event in recording.events()] == ["rid-923a4133714ef714"]


# ---- several hosts ---------------------------------------------------------------------------------------------------


def test_a_directory_of_traces_is_read_as_one(tmp_path: Path, recording: bytes) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "broken.pdtrace").write_bytes(b"PK\3\4")
    (folder / "3-1.pdrec").write_bytes(_of(recording, "c", 2))
    for host, tp in (("a", 0), ("b", 1)):
        salt = manifest.new_salt("one salt")
        data = redact(_of(recording, host, tp), Names(salt))
        made = msgspec.structs.replace(manifest.new("test"), redacted=True, salt=salt)
        write_trace(folder / f"{host}.pdtrace", [member_of(data, state="live")], made)
    found = load_source(folder)
    assert [(rank.identity.tp, rank.state) for rank in found.ranks] == [
        (0, "recorded"),
        (1, "recorded"),
        (2, "recorded"),
    ]
    assert found.salts == (manifest.new_salt("one salt"),)
    assert [problem for problem in found.problems if "broken.pdtrace" in problem] == list(found.problems)
    (tmp_path / "cluster" / "broken.pdtrace").unlink()
    assert sorted(pdctl.load_trace(folder).ranks["tp"]) == [0, 1, 2]


def _of(recording: bytes, host: str, tp: int) -> bytes:
    """Return the recording as of another rank of the same group."""
    who = msgspec.structs.replace(member_of(recording).rank.identity, host=host, tp=tp, tp_size=3, pid=4000 + tp)
    raw = msgspec.json.encode(who)
    out = bytearray(recording)
    out[f.IDENTITY_OFFSET : f.IDENTITY_OFFSET + len(raw)] = raw
    f.IDENTITY_FIELDS.pack_into(out, f.IDENTITY_OFFSET_FIELDS, len(raw), crc32(raw))
    return bytes(out)


def test_a_file_system_without_hard_links_will_do(
    tmp_path: Path, recording: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuses)
    path = tmp_path / "x.pdtrace"
    write_trace(path, [member_of(recording)], manifest.new("test"))
    assert read_manifest(path).stopped == "test"
    with pytest.raises(PdctlError, match="exists"):
        write_trace(path, [member_of(recording)], manifest.new("again"))
    assert read_manifest(path).stopped == "test"
