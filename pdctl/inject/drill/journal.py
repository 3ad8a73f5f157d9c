"""Writes a drill's journal line by line, and reads one back."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pdctl.inject.drill.records import VERSION, Manifest, Record
from pdctl.protocol import structs
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import read_regular
from pdctl.protocol.paths import user_dir
from pdctl.report.escaping import json_encoded

_GIVE = "Give the journal of a drill: pdctl drill run says where it is."
MOST_BYTES = 256 << 20


def default_path(name: str, env: Mapping[str, str], now: float) -> Path:
    """Return where a drill's journal goes: beside the audit log, named after the drill and the time, never twice the same."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return user_dir(env, "XDG_STATE_HOME") / "drills" / f"{name}-{stamp}-{os.urandom(2).hex()}.jsonl"


class Journal:
    """Keeps the records, and appends each to a file before the drill goes on. Times are seconds since it was made."""

    def __init__(self, path: Path) -> None:
        """Raises PdctlError (USAGE) when the file is there already or can't be made: nothing is injected unrecorded."""
        self.path = path
        self.records: list[Record] = []
        self._began = time.monotonic()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PdctlError(
                f"journal {path} can't be made: {error.strerror}", "Choose another with --journal.", Exit.USAGE
            ) from None

    @property
    def at(self) -> float:
        """Seconds since the drill began."""
        return round(time.monotonic() - self._began, 3)

    def write(self, record: Record) -> None:
        """Keep and append ``record``. A file that can't be written any more is given up, the drill goes on to heal."""
        self.records.append(record)
        if self._handle >= 0:
            try:
                os.write(self._handle, f"{json_encoded(record)}\n".encode())
            except OSError:
                self.close()

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def read(path: Path) -> list[Record]:
    """Return the records of a journal. A last line that was cut off is left out, as if it had not been written.

    Raises PdctlError: UNREACHABLE for a file that is not there, no journal or damaged, naming the line; PARTIAL for one
    that a newer pdctl wrote.
    """
    try:
        data = read_regular(path, MOST_BYTES, follow=True)
    except OSError as error:
        raise PdctlError(f"{path} can't be read: {error.strerror}", _GIVE, Exit.UNREACHABLE) from None
    lines = data.split(b"\n")
    cut = lines.pop()  # "" after a whole last line
    if not lines:
        text = "is empty" if not cut else "is no journal of a drill, or not even its first line is whole"
        raise PdctlError(f"{path} {text}", _GIVE, Exit.UNREACHABLE)
    _check_manifest(path, lines[0])
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        try:
            record: Record = structs.from_json(line, Record)  # type: ignore[arg-type]  # a union
        except msgspec.MsgspecError as error:
            raise PdctlError(
                f"{path}, line {number}: {error}", "The journal is damaged. Run the drill again.", Exit.UNREACHABLE
            ) from None
        if isinstance(record, Manifest) != (number == 1):
            raise PdctlError(
                f"{path}, line {number}: a journal has one manifest, its first line", code=Exit.UNREACHABLE
            )
        records.append(record)
    return records


class _Head(msgspec.Struct):
    record: str = ""
    version: int = 1


def _check_manifest(path: Path, line: bytes) -> None:
    try:
        head = structs.from_json(line, _Head)
    except msgspec.MsgspecError:
        head = _Head()
    if head.record != "manifest":
        raise PdctlError(f"{path} is no journal of a drill: it does not begin with a manifest", code=Exit.UNREACHABLE)
    if head.version > VERSION:
        raise PdctlError(
            f"{path} was written in version {head.version} of the journal, this pdctl reads up to {VERSION}",
            "Judge it with the pdctl that wrote it, or a newer one.",
            Exit.PARTIAL,
        )
