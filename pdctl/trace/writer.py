"""Writes a trace: whole, or not at all."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from pdctl.protocol.files import atomic_file
from pdctl.recording import format as f
from pdctl.recording.header import parse_header
from pdctl.recording.source import Source
from pdctl.trace.manifest import MANIFEST, WHOLE, Manifest, TraceRank

_CHUNK = 1 << 18


@dataclass(frozen=True)
class Member:
    """One rank for a trace: what the manifest says of it, and its recording, None where it is missing.

    rank: without ``member``, ``size`` and ``sha256``, which :func:`write_trace` fills in.
    """

    rank: TraceRank
    data: Source | None = None


def member_of(data: bytes, *, state: str = "recorded") -> Member:
    """Return the member of a whole recording. Raises ValueError where ``data`` is none."""
    header = parse_header(data[: f.HEADER_SIZE])
    rank = TraceRank(
        rank=header.identity.label,
        state=state,
        kept=WHOLE,
        identity=header.identity,
        writer=f.STATE_NAMES.get(header.state, "unknown"),
    )
    return Member(rank, Source(data))


def write_trace(
    path: Path,
    members: Iterable[Member],
    manifest: Manifest,
    *,
    force: bool = False,
    documents: Mapping[str, bytes] | None = None,
) -> Manifest:
    """Write a trace to ``path`` (mode 0600) and return its manifest with the ranks of ``members``.

    documents: other files that are in it, by their names there, as the manifest's collectors have them.

    The file appears complete or not at all. Raises PdctlError: USAGE if a file exists (unless force) or can't be created,
    PARTIAL if it can't be written, for instance on a full disk.
    """
    with atomic_file(path, force=force, mode=0o600) as file:
        return _write(file, members, manifest, documents or {})


def _write(file: IO[bytes], members: Iterable[Member], manifest: Manifest, documents: Mapping[str, bytes]) -> Manifest:
    ranks: list[TraceRank] = []
    names: set[str] = set()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in members:
            rank = member.rank
            if member.data is not None:
                name = _name(rank, names)
                sum_ = _packed(archive, name, member.data)
                rank = msgspec.structs.replace(rank, member=name, size=member.data.size, sha256=sum_)
            ranks.append(rank)
        for name, data in documents.items():
            archive.writestr(_info(name), data)
        done = msgspec.structs.replace(manifest, ranks=tuple(ranks))
        archive.writestr(_info(MANIFEST), msgspec.json.format(msgspec.json.encode(done), indent=1))
    return done


def _packed(archive: zipfile.ZipFile, name: str, source: Source) -> str:
    """Write a member piece by piece; returns the SHA-256 of its bytes."""
    sum_, info = hashlib.sha256(), _info(name)
    info.file_size = source.size  # so that one of 2 GiB gets the fields for it
    with archive.open(info, "w") as member:
        for at in range(0, source.size, _CHUNK):
            piece = source.read(at, _CHUNK)
            member.write(piece)
            sum_.update(piece)
    return sum_.hexdigest()


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)  # of 1980: when things were is in the manifest, to the nanosecond
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o600 << 16
    return info


def _name(rank: TraceRank, taken: set[str]) -> str:
    stem = re.sub(r"[^A-Za-z0-9]+", "-", rank.rank).strip("-")[:100] or "rank"
    stem = f"{stem}-{rank.identity.pid}"
    number = 1
    while (name := f"recordings/{stem}{f'-{number}' * (number > 1)}.pdrec") in taken:
        number += 1
    taken.add(name)
    return name
