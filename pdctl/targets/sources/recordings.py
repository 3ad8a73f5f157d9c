"""Ranks of which there are recordings: in a record directory, in one of copies, and in traces."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.protocol import paths
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.processes import NO_PROCESS, look
from pdctl.protocol.rank import FoundRank
from pdctl.recording.header import read_header
from pdctl.targets import registration

if TYPE_CHECKING:
    from pdctl.trace.reader import Trace


def open_traces(folder: Path, problems: list[str], timeout_s: float, began: float) -> Iterable[Trace]:
    """Yield the traces in a directory, for instance one trace from each of several hosts.

    timeout_s: for all of them, from ``began`` on, on the monotonic clock.
    """
    for path in registration.files(folder, ".pdtrace", problems, began + timeout_s):
        from pdctl.trace.reader import open_cached  # loads what reads ZIP files

        try:
            yield open_cached(path, timeout_s=timeout_s, spent_s=time.monotonic() - began)
        except PdctlError as error:
            problems.append(error.message)


_LIVED = {"live": True, "outside": True, "dead": False}
"""Whether a rank's process ran when a trace was made; one that was made of recordings alone does not tell."""


def of_trace(trace: Trace, problems: list[str]) -> Iterable[FoundRank]:
    """Yield the ranks of a trace: those recorded, and those that were missing when it was made, with the reason."""
    problems += trace.manifest.problems
    entries = {Path(rank.member).name: rank for rank in trace.manifest.ranks if rank.member}
    for name, entry in sorted(entries.items()):
        member = f"{trace.path}:{entry.member}"
        rank = _rank(trace.folder / name, member, problems, False)
        if rank is not None:
            yield replace(rank, member=member, seen_ns=entry.taken_mono_ns, seen_live=_LIVED.get(entry.state))
    for entry in trace.manifest.ranks:
        if not entry.member and entry.identity.pid:
            yield FoundRank(entry.identity, "recorded", recording_off=entry.reason)


def of_folder(folder: Path, problems: list[str], here: bool, until: float) -> Iterable[FoundRank]:
    """Yield the ranks of the recordings in a directory. here: their processes are of this host. until: monotonic time."""
    for path in registration.files(folder, paths.RECORDING_SUFFIX, problems, until):
        rank = _rank(path, str(path), problems, here)
        if rank is not None:
            yield rank


def _rank(path: Path, name: str, problems: list[str], here: bool) -> FoundRank | None:
    """Return the rank of a recording, None where it is refused. name: what the user knows it by."""
    try:
        header = read_header(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{name}: {error.strerror}")
        return None
    except ValueError as error:
        problems.append(f"{name}: {error}")
        return None
    identity = header.identity
    process = look(identity.pid) if here else NO_PROCESS
    live = here and process.runs_since(identity.proc_start)
    return FoundRank(
        identity=identity,
        state="live" if live else "dead" if here else "recorded",
        endpoint_off="it has no registration, only a recording" if live else "",
        recording=path,
        recording_size=header.size,
        process=process,
    )
