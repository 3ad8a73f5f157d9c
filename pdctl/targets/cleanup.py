"""Files of ended ranks in the run and record directories: which may be removed, and which are kept, with the reason."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pdctl.agent.injected import RESULT_SUFFIX
from pdctl.protocol import paths
from pdctl.protocol.processes import look
from pdctl.targets.find import FoundRank, discover
from pdctl.targets.places import Places
from pdctl.targets.servers import select_current

KINDS = {
    paths.REGISTRATION_SUFFIX: "registration",
    paths.SOCKET_SUFFIX: "socket",
    paths.RECORDING_SUFFIX: "recording",
    paths.STACKS_SUFFIX: "stacks",
    ".part": "unfinished",
    RESULT_SUFFIX: "unfinished",
}
RECENT_S = 60.0
"""A recording that was written to within this time is somebody's who can't be seen from here: another pid namespace."""


@dataclass(frozen=True)
class Leftover:
    """A file of an ended rank. rank: its label, "" if the file does not contain it. size: bytes on the file system.

    kept: why it is not removed, "" if it may be removed. earlier: whether a newer start of the same server exists.
    """

    path: Path
    kind: str
    rank: str
    size: int
    age_s: float
    earlier: bool
    kept: str = ""


def leftovers(places: Places, *, every: bool = False) -> list[Leftover]:
    """Return the files of ended ranks in the directories of ``places``, by rank and kind.

    every: also allow removing the recordings of each server's newest start, the only evidence of why it ended. Raises
    PdctlError (UNREACHABLE) for a directory that is not private to this user, or can't be read.
    """
    # Nothing here is on another host: ranks at endpoints and in stores are not waited for.
    starts = discover(places.here(), every_start=True).ranks
    newest = {_stem(rank) for rank in select_current(list(starts))[0]}
    by_stem = {_stem(rank): rank for rank in starts if rank.identity.pid}
    found = []
    for folder in dict.fromkeys([*places.run_dirs, places.record_dir]):
        for path in _files(folder):
            one = _look_at(path, by_stem, newest, every)
            if one is not None:
                found.append(one)
    return sorted(found, key=lambda one: (one.rank, one.kind, str(one.path)))


def remove(those: Iterable[Leftover]) -> Iterator[tuple[Leftover, str]]:
    """Remove the files that may be removed. Yield each with the error, "" if it was removed."""
    for one in those:
        if one.kept:
            continue
        try:
            one.path.unlink(missing_ok=True)
        except OSError as error:
            yield one, error.strerror or str(error)
        else:
            yield one, ""


def _stem(rank: FoundRank) -> str:
    return paths.stem(rank.identity.pid, rank.identity.proc_start)


def _files(folder: Path) -> list[Path]:
    """Return the files of pdctl's kinds in a directory of this user; of any other, nothing is removed."""
    try:
        if paths.not_private(folder):
            return []
        return sorted(path for path in folder.iterdir() if path.suffix in KINDS and not path.is_dir())
    except OSError:
        return []  # discover has said so where it is more than missing


def _look_at(path: Path, ranks: Mapping[str, FoundRank], newest: set[str], every: bool) -> Leftover | None:
    """Return what ``path`` is, None where it is in use or none of pdctl's files."""
    name = path.name.removeprefix(".")
    process = paths.parse_stem(name)
    if process is None:
        return None
    stem = paths.stem(*process)
    rank = ranks.get(stem)
    if look(process[0]).runs_since(process[1]) or (rank is not None and rank.live):
        return None
    try:
        status = path.lstat()
    except OSError:
        return None
    kind = KINDS[path.suffix]
    if path.suffix == ".part" and not look(_writer(path)).ended:
        return None
    earlier = rank is not None and stem not in newest
    kept = _why_kept(path, earlier, every) if kind == "recording" else ""
    age_s = max(0.0, time.time() - status.st_mtime)
    return Leftover(path, kind, rank.identity.label if rank else "", status.st_blocks * 512, age_s, earlier, kept)


def _writer(path: Path) -> int:
    """Return the pid in ``.NAME.PID.part``, 0 without one."""
    pid = path.name.removesuffix(".part").rpartition(".")[2]
    return int(pid) if pid.isdecimal() else 0


def _why_kept(path: Path, earlier: bool, every: bool) -> str:
    from pdctl.recording.reader import BadRecording, read
    from pdctl.recording.requests import last_sign_ns  # loads numpy: only where there is something to read

    try:
        recording = read(path)
    except (OSError, BadRecording) as error:
        return "" if every else f"it can't be read ({error}); --all removes it"
    host = recording.identity.host
    if host not in ("", socket.gethostname()):
        return f"it is of host {host}: whether its rank has ended can't be seen from here"
    wrote_s = (time.time_ns() - last_sign_ns(recording) - recording.start_wall_ns + recording.start_mono_ns) / 1e9
    if recording.state == "writing" and 0 <= wrote_s < RECENT_S:
        return (
            f"it was written to {wrote_s:.0f} s ago: if no process here did, one of another container may have; "
            f"{'it may go' if earlier or every else '--all removes it'} when that is {RECENT_S:.0f} s ago, "
            f"in {RECENT_S - wrote_s:.0f} s"
        )
    if not earlier and not every:
        return "it is of its server's newest start, and may tell why that ended; --all removes it"
    return ""
