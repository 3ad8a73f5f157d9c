"""A bundle that nobody vouches for: names, sizes, twins and links in it."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import msgspec
import pytest

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.trace import reader
from pdctl.trace.manifest import MANIFEST, MAX_COLLECTORS, Collector, Manifest, new
from pdctl.trace.reader import read_documents, read_manifest
from pdctl.trace.writer import write_trace


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
    monkeypatch.setattr(reader, "MAX_DOCUMENTS", 30)
    file = tmp_path / "b.zip"
    there = {f"documents/{n}.json": bytes(10) for n in range(5)}
    write_trace(file, [], manifest(*(row(member, member[10]) for member in there)), documents=there)
    assert len(read_documents(file)) == 3


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
