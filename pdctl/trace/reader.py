"""Reads a trace: a ZIP file of ``manifest.json`` and ``recordings/NAME.pdrec``. A bundle is one that has documents, too.

Names, sizes, checksums and versions in a file are checked before they are used. Recordings are unpacked into a private
directory of this user, where zero pages stay holes, as in a rank's own file.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import io
import math
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import open_regular
from pdctl.recording import format as f
from pdctl.trace.folder import private_folder
from pdctl.trace.manifest import MANIFEST, MISSING, Foreign, Manifest, TraceRank, decode
from pdctl.trace.salvage import DAMAGE, manifest_of, open_member, with_list

MAX_MANIFEST = 32 << 20
MAX_TOTAL = 64 << 30
MAX_DIRECTORY = 4 << 20
"""Bytes of the ZIP file's own list of its members: that of 4096 recordings with the longest names has a third of it."""
MAX_RATIO = 100
FREE_BYTES = 64 << 20
"""What a trace may unpack to without holes: this, and so many times its own size. Real ones are packed to a tenth."""
MAX_DOCUMENT = 32 << 20
MAX_DOCUMENTS = 128 << 20
"""Bytes of one document of a bundle, and of all."""
MAX_READ, MAX_VALUES = 64 << 20, 2_500_000
"""Bytes and values of all documents that are read at once. A small value takes up to 70 bytes of memory."""
_DOCUMENT = re.compile(r"(?:documents|stories|logs)/[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_MEMBER = re.compile(r"recordings/[A-Za-z0-9][A-Za-z0-9._-]{0,150}\.pdrec")
_PAGE = 4096
_CHUNK = 64 * _PAGE
_ZERO = bytes(_CHUNK)
_ZERO_PAGE = bytes(_PAGE)


@dataclass(frozen=True)
class Trace:
    """A trace that is unpacked: its manifest, and the directory its sound recordings are in, by their base names.

    Ranks whose recording is damaged are ``missing`` in this manifest, with the reason.
    """

    path: Path
    manifest: Manifest
    folder: Path


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the trace at ``path``. The recordings are not read. Raises as :func:`open_trace`."""
    with _archive(path) as (archive, wrong):
        return _manifest(path, archive, wrong=wrong)


@contextmanager
def open_trace(path: Path, *, timeout_s: float | None = None, spent_s: float = 0.0) -> Iterator[Trace]:
    """Unpack the trace at ``path`` and yield it; the directory of its recordings (``*.pdrec``) is removed at the end.

    A recording whose checksum is wrong is left out; the manifest says which. timeout_s: time limit of the command in seconds,
    None for none. Recordings not unpacked in time are left out too. spent_s: the part of that time used before. Of a trace
    that is cut off or damaged there is what is whole, and a line of the manifest's ``problems`` says so. Raises PdctlError
    (UNREACHABLE) for a file that can't be read, is no trace, has nothing whole in it, is of a later version, or not to be
    trusted.
    """
    with private_folder() as folder:
        with _archive(path) as (archive, wrong):
            manifest = _manifest(path, archive, wrong=wrong)
            members = _members(path, archive, manifest)
            unpacking = _Unpacking(archive, members, path, folder, timeout_s, spent_s, cut=bool(wrong))
            ranks = tuple(unpacking.rank(rank) for rank in manifest.ranks)
        yield Trace(path, msgspec.structs.replace(manifest, ranks=ranks), folder)


def read_documents(
    path: Path, wanted: Callable[[str], bool], *, timeout_s: float | None = None, spent_s: float = 0.0
) -> dict[str, bytes]:
    """Return the ``wanted`` documents of the bundle at ``path`` by the names of their collectors; nothing of a trace that is no
    bundle.

    A document that is damaged, too large or not there is left out. timeout_s, spent_s: as in :func:`open_trace`. Raises
    PdctlError (UNREACHABLE) where that time is over before all are read, and as :func:`open_trace`.
    """
    found: dict[str, bytes] = {}
    left, values = MAX_READ, MAX_VALUES
    end = _end(timeout_s, spent_s)
    with _archive(path) as (archive, wrong):
        manifest = _manifest(path, archive, wrong=wrong)
        members = _members(path, archive, manifest)
        for one in manifest.collectors:
            if one.name in found or not wanted(one.name) or not _DOCUMENT.fullmatch(one.member):
                continue
            info = members.pop(one.member, None)  # a member is read once, whatever comes of it
            cost = max(info.file_size, info.compress_size) if info is not None else 0
            if info is None or cost > min(left, MAX_DOCUMENT):
                continue
            left -= cost
            try:
                raw = _whole(archive, info, cost, end)
            except DAMAGE:
                continue
            except TimeoutError:
                said = f"{shown(path)}: its documents are not read: no time left of {timeout_s:g} s (--timeout)"
                raise _bad(said, "Give it more --timeout.") from None
            count = sum(map(raw.count, (b",", b"[", b"{")))
            if count <= values:
                values -= count
                found[one.name] = raw
    return found


_GIVE = "Give a trace that pdctl record made, or a directory."
_held = ExitStack()
_traces: dict[tuple[str, int, int], Trace] = {}
atexit.register(_held.close)


def open_cached(path: Path, *, timeout_s: float | None = None, spent_s: float = 0.0) -> Trace:
    """Return the unpacked trace at ``path``. It is kept until this process ends; the same file is unpacked once.

    timeout_s, spent_s and errors: as in :func:`open_trace`.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise _bad(f"{shown(path)}: {said}", _GIVE) from None
    key = (os.fspath(path.absolute()), found.st_ino, found.st_mtime_ns)
    if key not in _traces:
        _traces[key] = _held.enter_context(open_trace(path, timeout_s=timeout_s, spent_s=spent_s))
    return _traces[key]


def shown(path: Path) -> str:
    """Return ``path`` for a message, shortened to its end if it is very long."""
    text = str(path)
    return text if len(text) <= 300 else f"…{text[-200:]}"


def _bad(message: str, next_step: str = "Copy it again, or record anew with pdctl record.") -> PdctlError:
    return PdctlError(message, next_step, Exit.UNREACHABLE)


class _Reader(io.BufferedReader):
    """A file that refuses reads of more than MAX_DIRECTORY bytes: :mod:`zipfile` reads its directory in one piece."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return bytes as any file does. Raises BadZipFile for too many at once."""
        if size is None or size < 0 or size > MAX_DIRECTORY:
            data = super().read(MAX_DIRECTORY + 1)
            if len(data) > MAX_DIRECTORY:
                raise zipfile.BadZipFile(f"the list of its members has more than {MAX_DIRECTORY} bytes")
            return data
        return super().read(size)


@contextmanager
def _archive(path: Path) -> Iterator[tuple[zipfile.ZipFile, str]]:
    """Yield the archive, and what is wrong with it, "" if nothing: it has then the members that are whole."""
    try:
        fd = open_regular(path, follow=True)
    except OSError as error:
        if error.errno == errno.EINVAL:
            said = f"{shown(path)} {error.strerror}"
            raise _bad(said, "Give a trace that pdctl record made, or a directory of recordings.") from None
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise _bad(f"{shown(path)}: {error.strerror}", _GIVE) from None
        raise _bad(f"{shown(path)} can't be read: {error.strerror or error}", "Is it yours to read?") from None
    try:
        with _Reader(io.FileIO(fd)) as file:
            head = file.read(8)
            if not head:
                raise _bad(f"{path} is empty")
            if head == f.MAGIC:
                raise _bad(f"{path} is one recording, not a trace", "Give the directory it is in.")
            if head[:4] not in (b"PK\3\4", b"PK\5\6"):
                raise _bad(
                    f"{path} is not a trace", "Give a file that pdctl record made, or a directory of recordings."
                )
            wrong = ""
            try:
                archive = zipfile.ZipFile(file)
            except (*DAMAGE, ValueError, OverflowError) as error:
                # The end of the list of members is the end of the file: a copy that ended early lacks it.
                wrong = f"damaged: {error}" if zipfile.is_zipfile(file) else "cut off"
                left = with_list(file, _Reader)
                if left is None:
                    raise _bad(f"{path} is {wrong}: nothing in it is whole") from None
                try:
                    archive = zipfile.ZipFile(left)
                except (*DAMAGE, ValueError, OverflowError) as worse:
                    raise _bad(f"{path} is {wrong}: its members can't be read: {worse}") from None
            with archive:
                yield archive, wrong
    except OSError as error:
        raise _bad(f"{path} can't be read: {error.strerror or error}", "Is it yours to read?") from None


def _manifest(path: Path, archive: zipfile.ZipFile, *, wrong: str) -> Manifest:
    """Return the manifest. wrong: what is wrong with the file becomes a problem, and without a manifest one is made."""
    infos = [info for info in archive.infolist() if info.filename == MANIFEST]
    if wrong:
        recordings = [info for info in archive.infolist() if _MEMBER.fullmatch(info.filename)]
        if not recordings:
            raise _bad(f"{path} is {wrong}: no recording in it is whole")
        many = f"{len(recordings)} recording{'s'[: len(recordings) != 1]}"
        said = f"{path.name} is {wrong}: {many} whole"
        if infos:
            left = _read_manifest(path, archive, infos)
        else:
            left = manifest_of(archive, recordings, f"it is {wrong}")
            said += "; without its manifest nothing is known of other ranks, nor of when it was made"
        return msgspec.structs.replace(left, problems=(*left.problems, said))
    return _read_manifest(path, archive, infos)


def _read_manifest(path: Path, archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo]) -> Manifest:
    if len(infos) != 1:
        foreign = "is a ZIP file, but no trace: it has no" if not infos else "has more than one"
        raise _bad(f"{path} {foreign} {MANIFEST}", "Give a file that pdctl record made.")
    if infos[0].file_size > MAX_MANIFEST:
        raise _bad(f"{path}: {MANIFEST} has {infos[0].file_size} bytes, at most {MAX_MANIFEST} are read")
    try:
        return decode(_whole(archive, infos[0], MAX_MANIFEST))
    except Foreign as error:
        if error.next_step:
            raise _bad(f"{path} is of {error}", error.next_step) from None
        raise _bad(f"{path} is a ZIP file, but no trace: {error}") from None
    except (ValueError, *DAMAGE) as error:
        raise _bad(f"{path}: {MANIFEST} is damaged: {error}") from None


def _end(timeout_s: float | None, spent_s: float) -> float:
    """Return when the time of a command is over, on the monotonic clock."""
    return math.inf if timeout_s is None else time.monotonic() + timeout_s - spent_s


def _whole(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int, end: float = math.inf) -> bytes:
    """Return the bytes of a member. Raises TimeoutError after ``end`` (:func:`_end`), and what DAMAGE has."""
    data = bytearray()
    with open_member(archive, info) as stream:
        while chunk := stream.read(_CHUNK):
            if time.monotonic() > end:
                raise TimeoutError
            data += chunk
            if len(data) > most:
                raise zipfile.BadZipFile(f"it has more than {most} bytes")
    return bytes(data)


def _members(path: Path, archive: zipfile.ZipFile, manifest: Manifest) -> dict[str, zipfile.ZipInfo]:
    """Return the members that the manifest names. Raises PdctlError where names or sizes are not to be trusted."""
    names = [rank.member for rank in manifest.ranks if rank.member]
    if len(set(names)) != len(names):
        raise _bad(f"{path} can't be trusted: its manifest names recordings twice")
    infos: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.filename in infos:
            raise _bad(f"{path} can't be trusted: it has two members {info.filename!r}")
        infos[info.filename] = info
    total = 0
    for rank in manifest.ranks:
        if not rank.member:
            continue
        if not _MEMBER.fullmatch(rank.member):
            raise _bad(f"{path} can't be trusted: a recording is called {rank.member[:200]!r}")
        found = infos.get(rank.member)
        size = found.file_size if found else 0
        total += size
        if size > f.MAX_SIZE or total > MAX_TOTAL:
            raise _bad(f"{path} can't be trusted: {rank.member} would unpack to {size} bytes, {total} in all so far")
    return infos


class _Unpacking:
    """Unpack the recordings of one trace into ``folder``, within its time, and within the bounds for a file of its size."""

    def __init__(
        self,
        archive: zipfile.ZipFile,
        members: dict[str, zipfile.ZipInfo],
        path: Path,
        folder: Path,
        timeout_s: float | None,
        spent_s: float,
        *,
        cut: bool,
    ) -> None:
        self._archive, self._members, self._path, self._folder = archive, members, path, folder
        self._timeout_s, self._cut = timeout_s, cut
        self._end = _end(timeout_s, spent_s)
        self._room = FREE_BYTES + MAX_RATIO * path.stat().st_size

    def rank(self, rank: TraceRank) -> TraceRank:
        """Unpack the rank's recording; returns the rank, as missing where its recording is damaged."""
        if not rank.member:
            return rank
        target = self._folder / Path(rank.member).name
        why = "is not in the file"
        info = self._members.get(rank.member)
        if info is not None and info.file_size != rank.size:
            why = f"has {info.file_size} bytes, its manifest says {rank.size}"
        elif info is not None:
            try:
                with open_member(self._archive, info) as stream:
                    why = self._sparse(stream, target, rank)
            except DAMAGE as error:
                why = f"is damaged: {error}"
            except OSError as error:
                where = tempfile.gettempdir()
                raise PdctlError(
                    f"{self._path} can't be unpacked into {where}: {error.strerror or error}",
                    "Set TMPDIR to a directory with room.",
                    Exit.UNREACHABLE,
                ) from None
        if not why:
            return rank
        target.unlink(missing_ok=True)
        said = f"its recording in {self._path.name} {why}"
        return msgspec.structs.replace(rank, kept=MISSING, reason=said, member="", problems=(*rank.problems, said))

    def _sparse(self, stream: IO[bytes], target: Path, rank: TraceRank) -> str:
        """Write a recording with holes for its zero pages; returns what is wrong with it, "" for nothing."""
        sum_, size = hashlib.sha256(), 0
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while chunk := stream.read(_CHUNK):
                if time.monotonic() > self._end:
                    return f"is not unpacked: no time left of {self._timeout_s:g} s (--timeout)"
                sum_.update(chunk)
                if chunk != _ZERO[: len(chunk)]:
                    self._pages(fd, memoryview(chunk), size)
                size += len(chunk)
                if self._room < 0:
                    return "would unpack to more than a recording in a file of its size can hold"
                if size > rank.size:
                    return f"has more bytes than the {rank.size} that its manifest says"
            os.ftruncate(fd, size)
        finally:
            os.close(fd)
        if size != rank.size:
            return f"has {size} bytes, its manifest says {rank.size}"
        if self._cut and not rank.sha256:
            return ""  # made without a manifest: zipfile has looked at its own sum
        return "" if sum_.hexdigest() == rank.sha256 else "is damaged: its checksum is not that of the manifest"

    def _pages(self, fd: int, view: memoryview, offset: int) -> None:
        for at in range(0, len(view), _PAGE):
            page = view[at : at + _PAGE]
            if page != _ZERO_PAGE[: len(page)]:
                self._room -= len(page)
                _put(fd, page, offset + at)


def _put(fd: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written
