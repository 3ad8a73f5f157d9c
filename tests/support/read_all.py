"""All that is ever read of a recording or a trace, for tests and fuzzers that only want to know what is raised."""

from __future__ import annotations

from pathlib import Path

from pdctl.probes.metadata.history import history
from pdctl.protocol.model import EventKind
from pdctl.recording.reader import Recording, read_from
from pdctl.recording.requests import last_sign_ns, rooms_of
from pdctl.recording.source import Source
from pdctl.trace import columns
from pdctl.trace.carry import Carried
from pdctl.trace.reader import open_trace
from pdctl.trace.redact import Names, redact

ROOMS = {5, 6, 7203441}


def read_all(source: Source) -> Recording:
    """Read a recording in every way there is. Raises BadRecording where it is none, and nothing else."""
    recording = read_from(source)
    recording.events()
    recording.events_of(ROOMS, list(EventKind))
    for stream in recording.streams:
        stream.changes()
        stream.changes(3)
        stream.sightings(ROOMS)
        for run in stream.runs[-20:]:
            stream.items(run)
            stream.at(run.ordinal)
    last_sign_ns(recording)
    rooms_of(recording, last_sign_ns(recording))
    history(recording)
    columns.items(recording, columns.rounds(recording.streams))
    columns.events(recording)
    return recording


def carry(source: Source) -> Recording | None:
    """Carry a recording over, as ``record --for`` does; None where it says no."""
    try:
        carried = Carried(source)
        carried.look()
        carried.look()
    except (ValueError, OSError):
        return None
    carried.gaps()
    return read_from(carried.build())


def without_names(data: bytes) -> bytes | None:
    """Take the names out of a recording; None where it says no."""
    try:
        return redact(data, Names("5a" * 16))
    except ValueError:
        return None


def read_trace(path: Path) -> int:
    """Unpack a trace and return how many recordings it had. Raises PdctlError where it is none."""
    with open_trace(path) as there:
        folder = there.folder
        return len(list(folder.iterdir()))
