"""A bundle that nobody vouches for: names, sizes, twins and links in it."""

from __future__ import annotations

import stat
import time
import zipfile
from pathlib import Path
from typing import IO

import msgspec
import pytest

from pdctl.probes import run
from pdctl.probes.stacks.probe import PROBE as STACKS
from pdctl.probes.view import View
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.report.output import Output
from pdctl.targets.client import Client
from pdctl.targets.find import Found
from pdctl.ticket.gather import gather
from pdctl.trace import reader
from pdctl.trace.manifest import MANIFEST, MAX_COLLECTORS, Collector, Manifest, new
from pdctl.trace.reader import read_manifest
from pdctl.trace.writer import member_of, write_trace
from tests.support import crafted


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The members that are opened, in order, but for the manifest."""
    names: list[str] = []
    open_member = reader.open_member

    def spy(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
        names.extend([info.filename] * (info.filename != MANIFEST))
        return open_member(archive, info)

    monkeypatch.setattr(reader, "open_member", spy)
    return names


def slow(monkeypatch: pytest.MonkeyPatch, each_s: float) -> None:
    """Let each member, but for the manifest, take ``each_s`` seconds of the clock."""
    clock, late, open_member = time.monotonic, [0.0], reader.open_member

    def slowly(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
        late[0] += each_s * (info.filename != MANIFEST)
        return open_member(archive, info)

    monkeypatch.setattr(time, "monotonic", lambda: clock() + late[0])
    monkeypatch.setattr(reader, "open_member", slowly)


def read_documents(file: Path) -> dict[str, bytes]:
    return reader.read_documents(file, lambda _: True)


def row(member: str, name: str = "check") -> Collector:
    return Collector(name=name, command="pdctl check", status="kept", member=member)


def manifest(*rows: Collector) -> Manifest:
    return msgspec.structs.replace(new("made by a test"), collectors=rows)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    write_trace(file, [], manifest(row("documents/check.json")), documents={"documents/check.json": b"{}"})
    assert read_documents(file) == {"check": b"{}"}
    assert read_manifest(file).collectors[0].status == "kept"


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x.json", "documents/../../x", "documents/a/b.json", "recordings/x"]
)
def test_a_document_with_any_other_name_is_not_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / "b.zip"
    write_trace(file, [], manifest(row(name)), documents={name: b"{}"})
    assert read_documents(file) == {}


def test_a_bomb_is_left_out_and_the_rest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_DOCUMENT", 1 << 20)
    file = tmp_path / "b.zip"
    there = {"documents/a.json": bytes(64 << 20), "documents/b.json": b"{}"}
    write_trace(file, [], manifest(row("documents/a.json", "a"), row("documents/b.json", "b")), documents=there)
    assert file.stat().st_size < 1 << 20
    assert read_documents(file) == {"b": b"{}"}


def test_all_documents_together_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_READ", 30)
    file = tmp_path / "b.zip"
    there = {f"documents/{n}.json": bytes(10) for n in range(5)}
    write_trace(file, [], manifest(*(row(member, member[10]) for member in there)), documents=there)
    assert len(read_documents(file)) == 3


def test_a_document_of_very_many_values_is_left_out_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_VALUES", 100)
    file = tmp_path / "b.zip"
    there = {"documents/a.json": b"[0," * 101, "documents/b.json": b"{}", "documents/c.json": b"[0,[" * 33}
    write_trace(file, [], manifest(*(row(member, member[10]) for member in there)), documents=there)
    assert list(read_documents(file)) == ["b", "c"]


def _crafted(file: Path, made: Manifest, *members: tuple[zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(MANIFEST, msgspec.json.encode(made))
        for info, data in members:
            archive.writestr(info, data)
    return file


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_twins_and_too_many_collectors_are_refused_and_a_link_is_only_its_bytes(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("documents/check.json")
    twice = _crafted(tmp_path / "twice.zip", manifest(row(info.filename)), (info, b"{}"), (info, b"[]"))
    with pytest.raises(PdctlError, match="two members") as refused:
        read_documents(twice)
    assert refused.value.code is Exit.UNREACHABLE
    many = _crafted(tmp_path / "many.zip", manifest(*[row("", "x")] * (MAX_COLLECTORS + 1)))
    with pytest.raises(PdctlError, match="damaged"):
        read_documents(many)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    link = _crafted(tmp_path / "link.zip", manifest(row(info.filename)), (info, b"/etc/passwd"))
    assert read_documents(link) == {"check": b"/etc/passwd"}


def test_a_list_of_a_million_members_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_DIRECTORY", 64 << 10)
    members = [(zipfile.ZipInfo(f"documents/{n}.json"), b"") for n in range(5_000)]
    file = _crafted(tmp_path / "long.zip", manifest(), *members)
    with pytest.raises(PdctlError, match=r"can't be read|damaged|whole"):
        read_documents(file)


def test_only_what_is_wanted_is_opened(tmp_path: Path, opened: list[str]) -> None:
    file = tmp_path / "b.zip"
    there = {f"documents/{name}.json": b"{}" for name in ("check", "stacks", "more")}
    write_trace(file, [], manifest(*(row(member, Path(member).stem) for member in there)), documents=there)
    assert reader.read_documents(file, lambda name: name == "stacks") == {"stacks": b"{}"}
    assert opened == ["documents/stacks.json"]


def _damaged(file: Path, made: Manifest, names: list[str], data: bytes, many: int) -> Path:
    """A bundle with a member of ``data`` for each name; the first ``many`` have another sum than their bytes."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(MANIFEST, msgspec.json.encode(made))
        for number, name in enumerate(names):
            archive.writestr(zipfile.ZipInfo(name), data)
            if number < many:
                archive.getinfo(name).CRC ^= 1  # the list of members is written at the end
    return file


def test_a_damaged_member_is_tried_once_whatever_names_it(tmp_path: Path, opened: list[str]) -> None:
    member = "documents/x.json"
    made = manifest(*(row(member, f"story-{number}") for number in range(50)))
    assert read_documents(_damaged(tmp_path / "b.zip", made, [member], b"{}", 1)) == {}
    assert opened == [member]


def test_what_is_read_in_vain_counts_too(tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_READ", 30)
    names = [f"documents/{number}.json" for number in range(5)]
    made = manifest(*(row(name, name[10]) for name in names))
    assert read_documents(_damaged(tmp_path / "b.zip", made, names, bytes(10), 2)) == {"2": bytes(10)}
    assert opened == names[:3]


def test_documents_are_read_within_the_time_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    there = {"documents/stacks.json": b"{}"}
    write_trace(file, [], manifest(row(*there, "stacks")), documents=there)
    for given in ({"timeout_s": 0.0}, {"timeout_s": 5.0, "spent_s": 6.0}):
        with pytest.raises(PdctlError, match=rf"no time left of {given['timeout_s']:g} s \(--timeout\)") as over:
            reader.read_documents(file, lambda _: True, **given)
        assert over.value.code is Exit.UNREACHABLE
    assert reader.read_documents(file, lambda _: False, timeout_s=0) == {}
    with pytest.raises(PdctlError, match="no time left of 0 s"):
        run.bundled(STACKS, STACKS.options(), run.Asked(timeout_s=0), file)


@pytest.mark.parametrize("each_s", [70.0, 40.0])
def test_a_report_has_one_time_for_documents_and_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each_s: float
) -> None:
    file = tmp_path / "b.zip"
    data = [bytes(one) for one in crafted.pair(tmp_path).values()][:1]
    there = {"documents/check.json": b"{}"}
    write_trace(file, map(member_of, data), manifest(row(*there)), documents=there)
    slow(monkeypatch, each_s)
    if each_s > 60:
        with pytest.raises(PdctlError, match=r"documents are not read: no time left of 60 s"):
            gather(file, timeout_s=60)
    else:
        case = gather(file, timeout_s=60)
        assert any("is not unpacked: no time left of 60 s (--timeout)" in line for line in case.unseen), case.unseen


def test_looking_has_the_time_that_documents_and_recordings_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b.zip"
    data = [bytes(one) for one in crafted.pair(tmp_path).values()][:1]
    there = {"documents/stacks.json": b"no stacks"}
    write_trace(file, map(member_of, data), manifest(row(*there, "stacks")), documents=there)
    slow(monkeypatch, 25.0)

    def look(_: Found, client: Client, **__: object) -> View:
        raise PdctlError(f"{client.deadline.left(60.0):.0f} s are left")

    monkeypatch.setattr(View, "open", look)
    with pytest.raises(PdctlError, match=r"^(\d|10) s are left"):
        run.run(STACKS, STACKS.options(), run.Asked(source=file, timeout_s=60), Output())
