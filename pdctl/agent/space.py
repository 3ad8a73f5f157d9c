"""The size of a new recording, and which old recordings to remove. The engine has priority in shared memory."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from pdctl.protocol import paths
from pdctl.protocol.model import Identity
from pdctl.recording import format as f
from pdctl.recording.header import read_header

SHARE = 8
"""A recording takes at most one eighth of what is free: NCCL and torch need shared memory too, and ranks are many."""

_SUFFIXES = (paths.REGISTRATION_SUFFIX, paths.SOCKET_SUFFIX, paths.RECORDING_SUFFIX, paths.STACKS_SUFFIX)
KEEP_STARTS = 2
"""Earlier starts of a server whose recordings are kept."""
_MOST_FILES = 4096
"""Files of a directory that are looked at: an engine does not start later because of what was left there."""


def recording_size(folder: Path, wanted: str) -> int:
    """Return the size in bytes of a new recording in ``folder``.

    wanted: PDCTL_RECORD_SIZE, used as it is if so much space is free. If it is empty: the default, or less if space is short.
    Raises ValueError if it is no number of bytes, OSError if there is no space even for a small recording.
    """
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if wanted:
        try:
            size = int(wanted)
        except ValueError:
            raise ValueError(f"PDCTL_RECORD_SIZE={wanted[:40]!r} is no number of bytes") from None
        if size > f.MAX_SIZE:
            raise ValueError(f"PDCTL_RECORD_SIZE={size} is over {f.MAX_SIZE}, the most that is read")
        if size > free:  # to reserve it would first fill what is there
            raise OSError(f"PDCTL_RECORD_SIZE asks for more than the {free // 1024} KiB that are free in {folder}")
        return size
    size = min(f.DEFAULT_SIZE, free // SHARE // 4096 * 4096)
    if size < f.MIN_SIZE:
        raise OSError(f"only {free // 1024} KiB are free in {folder}; PDCTL_RECORD_DIR names another place")
    return size


@dataclass(frozen=True)
class _Left:
    """What a rank left behind."""

    stem: str
    identity: Identity


def make_way(folders: list[Path], own: Identity) -> int:
    """Remove the files of dead ranks of this host and service, except for the KEEP_STARTS newest earlier starts.

    Return the number of ranks whose files were removed. Files of ``own``'s start, of other services and hosts, and unreadable
    files stay. Never raises.
    """
    left: dict[str, _Left] = {}
    for folder in folders:
        try:
            if paths.not_private(folder):  # another user made a default one, and what is in it
                continue
            with os.scandir(folder) as entries:
                names = [entry.name for entry in itertools.islice(entries, _MOST_FILES)]
        except OSError:
            continue
        for name in names:
            found = _left(folder / name, own)
            if found is not None:
                left.setdefault(found.stem, found)
    starts = sorted({(r.identity.started_wall_ns // 10**9, r.identity.instance) for r in left.values()}, reverse=True)
    kept: list[str] = []
    for _, instance in starts:  # ranks of one start begin at slightly different times: its newest rank counts
        if instance not in kept:
            kept.append(instance)
    gone = [r for r in left.values() if r.identity.instance not in kept[:KEEP_STARTS]]
    for rank in gone:
        for folder in folders:
            for suffix in _SUFFIXES:
                try:
                    (folder / f"{rank.stem}{suffix}").unlink(missing_ok=True)
                except OSError:
                    pass
    return len(gone)


def _left(path: Path, own: Identity) -> _Left | None:
    """Return the dead rank that ``path`` belongs to, None unless it is of an earlier start of the same server."""
    try:
        stem = paths.parse_stem(path.name)
        if stem is None or path.suffix not in (paths.RECORDING_SUFFIX, paths.REGISTRATION_SUFFIX):
            return None
        if path.suffix == paths.RECORDING_SUFFIX:
            identity = read_header(path).identity
        else:
            identity = paths.read_registration(path).identity
        same = (identity.cluster, identity.service, identity.host) == (own.cluster, own.service, own.host)
        if not same or identity.instance == own.instance or _may_live(*stem):
            return None
    except Exception:  # whatever somebody put there, a recording of this rank is not lost to it
        return None
    return _Left(paths.stem(*stem), identity)


def _may_live(pid: int, start: int) -> bool:
    """Return whether this process may still run; True if that is unknown, for instance if no descriptor is left."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(stat.rsplit(b")", 1)[1].split()[19]) == start
