"""From a registration to a rank. All sources of registrations use this one way."""

from __future__ import annotations

import socket
import stat
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from pdctl.protocol import structs
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.files import describe_type, names, read_regular, status
from pdctl.protocol.model import Identity
from pdctl.protocol.paths import MAX_REGISTRATION, SOCKET_SUFFIX, Registration, owners, parse_stem, registration
from pdctl.protocol.paths import REGISTRATION_SUFFIX as SUFFIX
from pdctl.protocol.processes import Process, look
from pdctl.protocol.rank import FoundRank
from pdctl.protocol.wire import PROTOCOL

MAX_RANKS = 4096
"""Registrations of one directory that are read."""
MAX_CLAIMS = 64
"""Registrations of others that are read to see which servers they claim to be of."""


@dataclass(frozen=True)
class Claim:
    """An unused registration that another user may have made. server: the cluster, service and instance that it names."""

    path: str
    server: tuple[str, str, str]
    why: str


def read(
    folder: Path, problems: list[str], others: list[str], claims: list[Claim], until: float
) -> Iterable[FoundRank]:
    """Yield the ranks registered in ``folder``, a private directory of this user on this host.

    problems: gets unreadable or invalid files: only this user can have made them. others, claims: get files of other users,
    and the servers that these name. until: monotonic time at which to stop, with a problem. Raises PdctlError (UNREACHABLE) if
    the directory can't be read.
    """
    for path in files(folder, SUFFIX, problems, until):
        try:
            raw = read_regular(path, MAX_REGISTRATION, owners=owners())
        except FileNotFoundError:
            continue  # the rank ended while we looked
        except OSError as error:
            if _of_somebody_else(path):
                others.append(f"{path} {error.strerror}")
                claims += claim(path, path, None, f"it {error.strerror}", MAX_CLAIMS - len(claims))
            else:
                problems.append(f"{path}: {error.strerror}")
            continue
        rank = _rank(path, raw, problems)
        if rank is not None:
            yield rank


def files(folder: Path, suffix: str, problems: list[str], until: float) -> Iterable[Path]:
    """Yield the files of a directory that end in ``suffix``, in order, while there is time. Raises as :func:`read`."""
    try:
        found, whole = names(folder, suffix, MAX_RANKS, until)
    except FileNotFoundError:
        return
    except OSError as error:
        raise PdctlError(
            f"{folder} can't be read: {error.strerror}", "Run pdctl as the user the engine runs as."
        ) from None
    if not whole:
        problems.append(f"{folder}: more than {len(found)} files {suffix}; the others were not read")
    for number, name in enumerate(found):
        if time.monotonic() >= until:
            problems.append(f"{folder}: {len(found) - number} files {suffix} or more were not read in time")
            return
        yield folder / name


def claim(path: Path, file: Path | str, folder: int | None, why: str, most: int) -> list[Claim]:
    """Return the claim of an unused registration: the server that it names. Empty if it can't be decoded.

    path: its name for messages. file, folder: its location. why: the reason for not using it. most: limit of claims.
    """

    class Said(msgspec.Struct):
        identity: Identity

    if most <= 0:
        return []
    try:
        who = structs.from_json(read_regular(file, MAX_REGISTRATION, dir_fd=folder), Said).identity
    except (OSError, ValueError):
        return []
    return [Claim(str(path), (who.cluster, who.service, who.instance), why)]


def _of_somebody_else(path: Path) -> bool:
    try:
        return status(path).st_uid not in owners()
    except OSError:
        return False


def _rank(path: Path, raw: bytes, problems: list[str]) -> FoundRank | None:
    try:
        r = registration(path.name, raw)
    except ValueError as error:
        other = _of_another_protocol(path, raw)
        if other is None:
            problems.append(f"{path}: not a registration this pdctl reads: {error}")
            return None
        r = other
    process = look(r.identity.pid)
    live = process.runs_since(r.identity.proc_start)
    if not live and process.state == "" and r.endpoint:
        live = _listens(r.endpoint)  # its process is in another pid namespace
    recording = Path(r.recording) if r.recording else None
    return rank_of(r, "live" if live else "dead", recording, process, owners())


def _listens(endpoint: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(endpoint.removeprefix("ipc://"))
        except BlockingIOError:
            return True  # somebody listens, and is behind
        except OSError:
            return False
    return True


def rank_of(
    r: Registration, state: str, recording: Path | None, process: Process, owners: Collection[int]
) -> FoundRank:
    """Return the rank of a registration whose files can be seen from here.

    state: as FoundRank has it. recording: where its recording is, as seen from here, None without one. owners: user ids it
    may belong to.
    """
    why_not = _unfit(recording, owners) if recording is not None else ""
    there = recording is not None and not why_not
    return FoundRank(
        identity=r.identity,
        state=state,
        endpoint=r.endpoint,
        endpoint_off=r.endpoint_off,
        protocol=r.protocol,
        recording=recording if there else None,
        recording_size=r.recording_size if there else 0,
        recording_off=r.recording_off
        if there or not r.recording
        else f"{recording or r.recording} {why_not or 'is not looked at'}",
        process=process,
        tcp=r.tcp,
        tcp_off=r.tcp_off,
        store=r.store,
        log=Path(r.log) if r.log.startswith("/") else None,
    )


def _unfit(recording: Path, owners: Collection[int]) -> str:
    """Return why a file is no recording to open, "" where it may be one."""
    try:
        there = status(recording)
    except FileNotFoundError:
        return "is gone"
    except (OSError, ValueError) as error:
        return f"can't be looked at: {error.strerror if isinstance(error, OSError) else error}"
    if not stat.S_ISREG(there.st_mode):
        return f"is {describe_type(there.st_mode)}, not a regular file"
    return "" if there.st_uid in owners else f"belongs to uid {there.st_uid}"


def apply_registration(rank: FoundRank, r: Registration) -> FoundRank:
    """Return ``rank`` with the data of its registration from another host. Its endpoint and keys stay.

    Its recording is on its own host and comes through the socket.
    """
    return replace(
        rank,
        identity=r.identity,
        protocol=r.protocol,
        recording_size=r.recording_size if r.recording else 0,
        recording_off=r.recording_off,
        tcp=r.tcp,
        tcp_off=r.tcp_off,
        store=r.store,
    )


def _of_another_protocol(path: Path, raw: bytes) -> Registration | None:
    """Return a rank for a registration of another protocol version.

    path: the file. None if it is of this protocol, or no registration.
    """
    stem, protocol = parse_stem(path.name), _protocol_of(raw)
    if protocol in (0, PROTOCOL) or stem is None:
        return None
    return Registration(
        protocol, nameless(f"pid {stem[0]}", *stem), endpoint=f"ipc://{path.with_suffix(SOCKET_SUFFIX)}"
    )


def nameless(name: str, pid: int = 0, proc_start: int = 0) -> Identity:
    """Return the identity of a rank whose server and coordinates are unknown. Its name is ``name``."""
    return Identity(
        engine="", engine_version="", pdctl_version="", role="unknown", host="", pid=pid, proc_start=proc_start,
        started_wall_ns=0, started_mono_ns=0, instance="", service=name, cluster="", world="", world_rank=-1,
        dp=-1, pp=-1, cp=-1, tp=-1,
    )  # fmt: skip


def _protocol_of(raw: bytes) -> int:
    class Protocol(msgspec.Struct):
        protocol: int = 0

    try:
        return structs.from_json(raw, Protocol).protocol
    except ValueError:
        return 0
